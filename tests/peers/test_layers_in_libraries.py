"""Our layers in models that accelerate, peft and torchao load, adapt or quantize."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

Peer = Callable[[str], Any]
IDS = torch.arange(14).reshape(2, 7)

# accelerate: layers created on the meta device, loaded from a file, and offloaded to disk


def made() -> nn.Module:
    tokens = sinpe.SinusoidalEmbedding(100, 32, padding_idx=0, dropout=0.0, scale=2.0)
    with_table = sinpe.SinusoidalPositionalEncoding(32, 0.0, max_len=512, learned_alpha=True, persistent_table=True)
    return nn.Sequential(tokens, with_table, nn.Linear(32, 8)).eval()


@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("buffers", [False, True])
def test_layers_lose_nothing_on_the_meta_device(buffers: bool, place: str, peer: Peer, tmp_path: Path) -> None:
    accelerate = peer("accelerate")
    model, ids = made(), torch.randint(1, 100, (2, 300))
    with torch.no_grad():
        model[1].alpha.fill_(0.7)
        accelerate.Accelerator(cpu=True).save_model(model, str(tmp_path))
        with accelerate.init_empty_weights(include_buffers=buffers):
            empty = made()
        assert empty[2].weight.is_meta and empty[1].pe.is_meta == buffers
        loaded = accelerate.load_checkpoint_and_dispatch(
            empty, str(tmp_path), {"0": place, "1": place, "2": "cpu"}, offload_folder=str(tmp_path / "offload"),
            offload_buffers=buffers,
        )  # fmt: skip
        assert torch.equal(loaded(ids), model(ids))


# peft and torchao change the embeddings of a model: SinusoidalEmbedding is a subclass of nn.Embedding


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(50, 16, scale=4.0, dropout=0.0)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)


def test_lora_of_peft(peer: Peer) -> None:
    """The adapter's part is scaled like the layer's own, and merging it does not change the output."""
    peft = peer("peft")
    config = peft.LoraConfig(r=4, target_modules=["tokens"], init_lora_weights=False)
    model = peft.get_peft_model(Tokens(), config).eval()
    adapted = model(IDS)
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(IDS), adapted, rtol=1e-5, atol=1e-5)
    assert isinstance(merged.tokens, sinpe.SinusoidalEmbedding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantized_weight_of_torchao(dtype: torch.dtype, peer: Peer) -> None:
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
