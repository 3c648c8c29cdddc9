"""Attributes of layers that change after construction take effect, in eval mode too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, SinusoidalPositionalEncoding

V, B, S, D = 9, 2, 4, 8
IDS = torch.tensor([[3, 0, 5, 3], [1, 1, 0, 8]])
FLOAT32 = sinpe.Encoding(D, angle="float32_exp", base=50.0)


def set_to(name: str, value: Any) -> Callable[[nn.Module], None]:
    def change(layer: nn.Module) -> None:
        if isinstance(value, nn.Parameter) and not isinstance(getattr(layer, name), nn.Module):
            delattr(layer, name)
        setattr(layer, name, value)

    return change


class AlwaysHalf(nn.Module):
    """A custom dropout that is active in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


def hooked(layer: nn.Module) -> None:
    layer.dropout.register_forward_hook(lambda module, inputs, output: output * 3)


CHANGES: dict[str, tuple[Callable[[nn.Module], None], dict[str, Any], float]] = {  # change, arguments of add, factor
    "nothing": (lambda layer: None, {}, 1.0),
    "alpha": (set_to("alpha", 2.0), {"alpha": 2.0}, 1.0),
    "alpha parameter": (set_to("alpha", nn.Parameter(torch.tensor([3.0]))), {"alpha": 3.0}, 1.0),
    "alpha of 1, parameter": (set_to("alpha", nn.Parameter(torch.tensor([1.0]))), {}, 1.0),
    "alpha int": (set_to("alpha", 2), {"alpha": 2.0}, 1.0),
    "scale": (set_to("scale", 0.5), {"scale": 0.5}, 1.0),
    "encoding": (set_to("encoding", sinpe.convention("t2t", D)), {"encoding": sinpe.convention("t2t", D)}, 1.0),
    "angle": (set_to("encoding", FLOAT32), {"encoding": FLOAT32}, 1.0),
    "dropout removed": (set_to("dropout", nn.Identity()), {}, 1.0),
    "custom dropout": (set_to("dropout", AlwaysHalf()), {}, 0.5),
    "dropout hooked": (hooked, {}, 3.0),
    "dropout p": (lambda layer: setattr(layer.dropout, "p", 0.9), {}, 1.0),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_attributes_take_effect(name: str, grad: bool, backend: str) -> None:
    change, arguments, factor = CHANGES[name]
    x = torch.randn(B, S, D)
    one, other = SinusoidalPositionalEncoding(D, 0.1).eval(), SinusoidalEmbedding(V, D, dropout=0.1).eval()
    change(one)
    change(other)
    with torch.set_grad_enabled(grad):
        given = {"encoding": None, **arguments}
        assert torch.equal(one(x), sinpe.add(x, **given) * factor)
        assert torch.equal(other(IDS), sinpe.embed(IDS, other.weight, **given) * factor)


def test_changed_batch_first_and_padding_idx(backend: str) -> None:
    x = torch.randn(S, B, D)
    one, other = SinusoidalPositionalEncoding(D).eval(), SinusoidalEmbedding(V, D, 0).eval()
    one.batch_first = other.batch_first = False
    with torch.no_grad():
        assert torch.equal(one(x), sinpe.add(x, seq_dim=0))
        assert torch.equal(other(IDS.t()), sinpe.embed(IDS.t(), other.weight, seq_dim=0))
        other.batch_first, other.encode_padding = True, False
        bare = sinpe.embed(IDS, other.weight, padding_idx=0, encode_padding=False)
        assert torch.equal(other(IDS), bare) and bool((bare[IDS == 0] == other.weight[0]).all())
        one.batch_first = True
        assert torch.equal(one(x), sinpe.add(x))


def test_tensor_scale_is_rejected(backend: str) -> None:
    layer, x = SinusoidalPositionalEncoding(D), torch.randn(B, S, D)
    layer.scale = torch.tensor(2.0)
    for mode in (layer.train, layer.eval):
        mode()
        with torch.no_grad(), pytest.raises(TypeError, match="scale: expected a float, got torch.float32"):
            layer(x)


@pytest.mark.parametrize("name, value", [("max_norm", 1.0), ("scale_grad_by_freq", True)])
def test_unsupported_nn_embedding_options_are_rejected(name: str, value: Any, backend: str) -> None:
    layer = SinusoidalEmbedding(V, D).eval()
    setattr(layer, name, value)
    with torch.no_grad(), pytest.raises(ValueError, match="max_norm, scale_grad_by_freq: expected None and False"):
        layer(IDS)
    for make in (SinusoidalEmbedding, lambda *a, **k: SinusoidalEmbedding.from_pretrained(torch.ones(V, D), **k)):
        with pytest.raises(ValueError, match="max_norm, scale_grad_by_freq: expected None and False"):
            make(V, D, **{name: value})
    assert SinusoidalEmbedding(V, D, max_norm=None, scale_grad_by_freq=False).eval()(IDS).shape == (B, S, D)
    with pytest.raises(TypeError, match="embeddings: expected a torch.Tensor, got an nn.Embedding; pass its weight"):
        SinusoidalEmbedding.from_pretrained(nn.Embedding(V, D))


def test_negative_views(backend: str) -> None:
    """Tensors with the negative bit, such as the imaginary part of a conjugate."""
    weight, x = torch.randn(V, D), torch.randn(B, S, D)
    layer = SinusoidalEmbedding(V, D).eval()
    layer.weight = nn.Parameter(torch._neg_view(weight), requires_grad=False)
    assert torch.equal(layer(IDS), sinpe.embed(IDS, -weight))
    encode = SinusoidalPositionalEncoding(D).eval()
    assert torch.equal(encode(torch._neg_view(x)), sinpe.add(-x))
    t = torch.rand(5)
    assert torch.equal(sinpe.encode(torch._neg_view(t), D), sinpe.encode(-t, D))
    dropped = sinpe.add(torch._neg_view(x), dropout=0.5, seed=3)
    assert torch.equal(dropped, sinpe.add(-x, dropout=0.5, seed=3))
