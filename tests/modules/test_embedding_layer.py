"""`SinusoidalEmbedding` as a replacement for nn.Embedding: state, shared and pretrained weights, limits."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding as Layer

V, B, S, D = 13, 3, 6, 10
P, SEED = 0.3, 77
# float32 sums of a few dozen terms of size 1, in another order
SUMMED = {"rtol": 1e-5, "atol": 1e-5}


def table(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(3)).to(dtype)


def tokens() -> Tensor:
    return torch.randint(0, V, (B, S), generator=torch.Generator().manual_seed(4))


def test_drop_in_for_nn_embedding(backend: str) -> None:
    torch.manual_seed(1)
    theirs = nn.Embedding(V, D, 3)
    torch.manual_seed(1)
    mine = Layer(V, D, 3, scale=D**0.5)
    assert torch.equal(mine.weight, theirs.weight) and list(mine.state_dict()) == ["weight"]
    assert isinstance(mine, nn.Embedding) and mine.padding_idx == 3
    mine.load_state_dict(theirs.state_dict())
    ids = tokens()
    assert torch.equal(mine.eval()(ids), sinpe.add(theirs(ids), scale=D**0.5))
    torch.manual_seed(2)
    trained = mine.train()(ids)
    torch.manual_seed(2)
    assert torch.equal(trained, sinpe.add(theirs(ids), scale=D**0.5, dropout=0.1))
    for other in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert torch.equal(other.eval()(ids), mine.eval()(ids)) and repr(other) == repr(mine)
    assert mine.half()(ids).dtype == torch.float16 and mine.double()(ids).dtype == torch.float64


def test_forms_of_positions(backend: str) -> None:
    layer, ids = Layer(V, D, dropout=0.0, scale=2.0), tokens()
    packed = sinpe.positions.packed(torch.tensor([0, 4, 6]))
    for given in (
        {"start": torch.tensor([0, 9, -4])},
        {"start": 3, "padding_mask": torch.arange(S) > 3},
        {"positions": packed},
        {"positions": torch.rand(B, S), "seed": 4},
    ):
        options = {name: value for name, value in given.items() if name != "seed"}
        assert torch.equal(layer(ids, **given), sinpe.embed(ids, layer.weight, scale=2.0, **options))


def test_from_pretrained(backend: str) -> None:
    weight, ids = table(torch.bfloat16), tokens()
    layer = Layer.from_pretrained(weight, padding_idx=1, dropout=0.0, scale=2.0, encoding="t2t")
    assert not layer.weight.requires_grad and layer.weight.data_ptr() == weight.data_ptr()
    assert torch.equal(layer(ids), sinpe.embed(ids, weight, "t2t", scale=2.0))
    assert Layer.from_pretrained(weight, freeze=False).weight.requires_grad


def test_weight_shared_with_an_output_layer(backend: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = Layer(V, D, dropout=P), nn.Linear(D, V, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.embed(ids, seed=SEED))

    model, ids = Tied(), tokens()
    assert len(list(model.parameters())) == 1
    model(ids).sin().sum().backward()
    weight = model.embed.weight.detach().clone().requires_grad_()
    keep = sinpe.add(torch.full((B, S, D), 9.0), dropout=P, seed=SEED) != 0
    rows = torch.where(keep, (weight[ids] + sinpe.table(S, D)) * (65536 / (65536 - round(P * 65536))), 0.0)
    (rows @ weight.t()).sin().sum().backward()
    assert torch.allclose(model.embed.weight.grad, weight.grad, **SUMMED)


def test_learned_alpha_and_limits(backend: str) -> None:
    layer, ids = Layer(V, D, dropout=0.0, alpha=0.5, learned_alpha=True, max_len=S), tokens()
    assert layer.alpha.shape == (1,) and set(layer.state_dict()) == {"weight", "alpha"}
    assert torch.equal(layer(ids), sinpe.embed(ids, layer.weight, alpha=0.5))
    layer(ids).sum().backward()
    rows = sinpe.table(S, D, dtype=torch.float64)
    assert torch.allclose(layer.alpha.grad.double(), B * rows.sum().reshape(1))
    with pytest.raises(IndexError, match="start: expected rows at positions 0 to 5, .* got 6"):
        layer(ids, start=1)
    with torch.no_grad():
        layer.alpha.fill_(3.0)
    layer.reset_parameters()
    assert layer.alpha.item() == 0.5
    meta = Layer(V, D, learned_alpha=True, device="meta")
    assert meta(ids.to("meta")).shape == (B, S, D)
    made = meta.to_empty(device="cpu")
    made.reset_parameters()
    assert made.eval()(ids).isfinite().all() and made.alpha.item() == 1.0


def test_sparse_adam_trains_as_with_nn_embedding(backend: str) -> None:
    torch.manual_seed(1)
    theirs = nn.Embedding(V, D, 2, sparse=True)
    mine = Layer.from_pretrained(theirs.weight.detach().clone(), freeze=False, padding_idx=2, sparse=True, dropout=0.0)
    rows, target = sinpe.table(S, D), torch.randn(B, S, D)
    for layer, forward in ((theirs, lambda ids: theirs(ids) + rows), (mine, mine)):
        optimizer = torch.optim.SparseAdam(list(layer.parameters()), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (forward(tokens()) - target).square().sum().backward()
            optimizer.step()
    assert torch.allclose(mine.weight, theirs.weight, **SUMMED)


@pytest.mark.bad_input(22, "compiled", "eager", "embedding")
def test_threads_share_a_layer(backend: str) -> None:
    """forward stores nothing: each of eight threads with different seeds gets the result of a single thread."""
    layer, ids = Layer(V, D, dropout=P), tokens()
    want = [layer(ids, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            got = list(pool.map(lambda seed: layer(ids, seed=seed), range(8)))
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        drawn = list(pool.map(lambda _: layer(ids) != 0, range(32)))
    assert len({tuple(mask.flatten().tolist()) for mask in drawn}) == 32


def test_learned_alpha_of_16_bit_layers_is_float32() -> None:
    """Under a 16-bit default dtype, too: small updates of a 16-bit alpha would be lost."""
    try:
        torch.set_default_dtype(torch.bfloat16)
        layers = [
            sinpe.SinusoidalPositionalEncoding(8, learned_alpha=True),
            sinpe.SinusoidalEmbedding(5, 8, learned_alpha=True),
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    layers += [
        sinpe.SinusoidalPositionalEncoding(8, learned_alpha=True, dtype=torch.float16),
        sinpe.SinusoidalEmbedding(5, 8, learned_alpha=True, dtype=torch.float16),
    ]
    assert [layer.alpha.dtype for layer in layers] == [torch.float32] * 4


def test_adapter_of_the_token_embedding() -> None:
    """LoRA as PEFT applies it: the layer's result plus embed_scale times its own part; merging does not change it."""
    layer = sinpe.SinusoidalEmbedding(50, 16, dropout=0.0, scale=4.0).requires_grad_(False)
    down, up = torch.randn(50, 4), torch.randn(4, 16)
    ids = torch.randint(50, (2, 7))
    adapted = layer(ids) + down[ids] @ up * layer.embed_scale
    layer.weight += down @ up
    torch.testing.assert_close(layer(ids), adapted, rtol=1e-5, atol=1e-5)
