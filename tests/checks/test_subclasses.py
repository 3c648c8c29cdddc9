"""Tensor subclasses that run the operations on them themselves: torch's operations, or a message of this library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree

import sinpe_ext as sinpe

D = 8


class Quantized(Tensor):
    """A subclass that supports only torch's own operators, as those of quantization libraries."""

    plain: Tensor

    @staticmethod
    def __new__(cls, plain: Tensor) -> Quantized:
        layout: dict[str, Any] = {"strides": plain.stride(), "dtype": plain.dtype, "device": plain.device}
        return Tensor._make_wrapper_subclass(cls, plain.shape, requires_grad=plain.requires_grad, **layout)

    def __init__(self, plain: Tensor) -> None:
        self.plain = plain

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "aten":
            raise NotImplementedError(f"Quantized: {func}")
        given = _pytree.tree_map(lambda t: t.plain if isinstance(t, Quantized) else t, (args, kwargs or {}))
        result = func(*given[0], **given[1])
        return Quantized(result) if func is torch.ops.aten.detach.default else result


KINDS = {"quantized": Quantized, "two": lambda t: TwoTensor(t, t.clone())}
X, WEIGHT = torch.randn(2, 4, D), torch.randn(9, D)
IDS = torch.randint(9, (2, 4))
SEED = {"dropout": 0.5, "seed": 3}
LAYER = sinpe.SinusoidalPositionalEncoding(D, 0.5, scale=2.0)


def layer(ids: Tensor, weight: Tensor) -> Tensor:
    made = sinpe.SinusoidalEmbedding(9, D, dropout=0.5, scale=4.0)
    made.weight = torch.nn.Parameter(weight, requires_grad=False)
    return made(ids, seed=3)


Kind = Callable[[Tensor], Tensor]
DATA: list[Callable[[Kind], Tensor]] = [
    lambda of: sinpe.add(of(X), scale=2.0),
    lambda of: sinpe.add(of(X), **SEED),
    lambda of: sinpe.add(of(X), "mae2d", grid_shape=(2, 2), **SEED),
    lambda of: sinpe.add_(of(X.clone()), **SEED),
    lambda of: sinpe.embed(IDS, of(WEIGHT), scale=4.0),
    lambda of: sinpe.embed(IDS, of(WEIGHT), **SEED),
    lambda of: LAYER(of(X), seed=3),
    lambda of: layer(IDS, of(WEIGHT)),
]
OTHERS: list[tuple[str, Callable[[Kind], Tensor]]] = [
    ("positions", lambda of: sinpe.add(X, positions=of(torch.arange(4)))),
    ("start", lambda of: sinpe.add(X, start=of(torch.tensor([1, 2])))),
    ("alpha", lambda of: sinpe.add(X, alpha=of(torch.tensor([0.5])))),
    ("padding_mask", lambda of: sinpe.add(X, padding_mask=of(torch.ones(2, 4, dtype=torch.bool)))),
    ("ids", lambda of: sinpe.embed(of(IDS), WEIGHT)),
    ("seed", lambda of: sinpe.add(X, dropout=0.5, seed=of(torch.tensor([3])))),
    ("positions", lambda of: sinpe.encode(of(torch.arange(4.0)), D)),
    ("positions", lambda of: sinpe.TimestepEncoding(D)(of(torch.arange(4.0)))),
    ("out", lambda of: sinpe.add(X, out=of(torch.empty_like(X)))),
    ("out", lambda of: sinpe.table(4, D, out=of(torch.empty(4, D)))),
]


def plain(t: Tensor) -> Tensor:
    return t.plain if isinstance(t, Quantized) else t.a if isinstance(t, TwoTensor) else t


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(DATA)))
def test_data(number: int, kind: str, backend: str) -> None:
    assert torch.equal(plain(DATA[number](KINDS[kind])), DATA[number](lambda t: t))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("argument", "call"), OTHERS)
def test_other_arguments(argument: str, call: Callable[[Kind], Tensor], kind: str, backend: str) -> None:
    want = call(lambda t: t)
    try:
        got = plain(call(KINDS[kind]))
    except TypeError as error:
        assert kind == "quantized"
        assert str(error).startswith(f"{argument}: expected an ordinary tensor, or a subclass that supports "), error
    else:
        assert torch.equal(got, want)


def test_gradient_of_weight(backend: str) -> None:
    """Summed in float32 and rounded once, as of an ordinary weight."""
    weight = WEIGHT.bfloat16().requires_grad_()
    ids = torch.zeros(4, 300, dtype=torch.int64)
    want = torch.autograd.grad(sinpe.embed(ids, weight).float().sum(), weight)[0]
    wrapped = TwoTensor(weight.detach(), weight.detach().clone()).requires_grad_()
    got = torch.autograd.grad(sinpe.embed(ids, wrapped).float().sum(), wrapped)[0]
    assert torch.equal(plain(got), want)


def test_functional_tensors_reach_the_dispatcher(backend: str) -> None:
    """The tensors of functionalization have no memory of their own, and no mode reports them."""
    torch._enable_functionalization(reapply_views=True)
    try:
        wrapped = sinpe.add(torch._to_functional_tensor(X))
        torch._sync(wrapped)
    finally:
        torch._disable_functionalization()
    assert torch.equal(torch._from_functional_tensor(wrapped), sinpe.add(X))
