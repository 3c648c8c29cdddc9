"""SinusoidalEmbedding, a subclass of nn.Embedding, under libraries that change the embeddings of a model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

IDS = torch.arange(14).reshape(2, 7)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(50, 16, scale=4.0, dropout=0.0)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)


def test_lora_of_peft(peer: Any) -> None:
    """The adapter's part is scaled like the layer's own, and merging it does not change the output."""
    peft = peer("peft")
    config = peft.LoraConfig(r=4, target_modules=["tokens"], init_lora_weights=False)
    model = peft.get_peft_model(Model(), config).eval()
    adapted = model(IDS)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(IDS), adapted, rtol=1e-5, atol=1e-5)
    assert isinstance(merged.tokens, sinpe.SinusoidalEmbedding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_weight_of_torchao(dtype: torch.dtype, peer: Any) -> None:
    """As nn.Embedding with the same quantized weight, then add; in training and compiled, too."""
    quantization = peer("torchao.quantization")
    plain = nn.Embedding(50, 16).to(dtype)
    layer = sinpe.SinusoidalEmbedding(50, 16, scale=4.0, dropout=0.1).to(dtype)
    layer.load_state_dict(plain.state_dict())
    for module in (plain, layer):
        quantization.quantize_(
            module, quantization.Int8WeightOnlyConfig(), filter_fn=lambda m, _: isinstance(m, nn.Embedding)
        )
    assert type(layer.weight) is not nn.Parameter
    assert torch.equal(layer.eval()(IDS), sinpe.add(plain(IDS), scale=4.0))
    assert torch.equal(layer.train()(IDS, seed=3), sinpe.add(plain(IDS), scale=4.0, dropout=0.1, seed=3))
    compiled = torch.compile(layer.eval(), backend="aot_eager")
    torch.testing.assert_close(compiled(IDS), sinpe.add(plain(IDS), scale=4.0))
