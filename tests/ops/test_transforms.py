"""Derivatives and vmap of all public functions and layers: in eager mode, inside a compiled function, and around one.

In each case the value is that of the formula, or an error is raised; never zero, and never the mask of another sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from public_calls import CALLS, TENSORS
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import sinpe_ext as sinpe

Function = Callable[[Tensor], Tensor]


def squared(f: Function) -> Function:
    """A number whose derivatives of every order depend on those of f."""
    return lambda t: f(t).square().sum()


def tangent(t: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).reshape(t.shape)


def dual(f: Function, t: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        derivative: Tensor | None = forward_ad.unpack_dual(f(forward_ad.make_dual(t, tangent(t)))).tangent
        return derivative


def samples(t: Tensor) -> Tensor:
    return torch.stack([t, t * 0.5 + 0.1])


TRANSFORMS: dict[str, Callable[[Function, Tensor], Any]] = {
    "jvp": lambda f, t: jvp(f, (t,), (tangent(t),))[1],
    "vjp": lambda f, t: vjp(f, t)[1](tangent(f(t)))[0],
    "grad": lambda f, t: grad(squared(f))(t),
    "jacfwd": lambda f, t: jacfwd(f)(t),
    "jacrev": lambda f, t: jacrev(f)(t),
    "hessian": lambda f, t: hessian(squared(f))(t),
    "vmap": lambda f, t: vmap(f)(samples(t)),
    "vmap of jvp": lambda f, t: vmap(lambda one: jvp(f, (one,), (tangent(t),))[1])(samples(t)),
    "vmap of grad": lambda f, t: vmap(grad(squared(f)))(samples(t)),
    "dual numbers": dual,
}


def check(got: Any, want: Tensor, name: str) -> None:
    assert isinstance(got, Tensor), (name, got)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_eager(call: str, tensor: str, backend: str) -> None:
    f, formula = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    check(f(t), formula(t), "value")
    for name, transform in TRANSFORMS.items():
        check(transform(f, t), transform(formula, t), name)


INSIDE = pytest.mark.sampled(69, "a second or more each; the stride visits calls and transforms in turn")


@INSIDE
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_compiled(call: str, tensor: str, transform: str) -> None:
    """The transform inside of the compiled function."""
    f, formula = CALLS[call].of(tensor)
    t, run = CALLS[call].tensors[tensor], TRANSFORMS[transform]
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: run(f, t), backend="aot_eager", fullgraph=True)
    check(compiled(t), run(formula, t), transform)
    check(compiled(t * 0.5), run(formula, t * 0.5), transform)


@pytest.mark.parametrize(("call", "tensor"), [("encode", "at"), ("add, dropout", "x")])
def test_dual_numbers_in_a_graph(call: str, tensor: str) -> None:
    """No operator has a forward-mode derivative."""
    test_compiled(call, tensor, "dual numbers")


@INSIDE
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_around_a_compiled_function(call: str, tensor: str, transform: str) -> None:
    """torch supports some of these and raises for the others. With the backend "eager" the graph is run as it is."""
    f, formula = CALLS[call].of(tensor)
    t, run = CALLS[call].tensors[tensor], TRANSFORMS[transform]
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="eager")
    check(compiled(t), formula(t), "value")  # a graph without a transform must not serve one
    try:
        got = run(compiled, t)
    except (RuntimeError, AssertionError, torch._dynamo.exc.TorchDynamoException):
        assert transform != "dual numbers"  # which torch supports
    else:
        check(got, run(formula, t), transform)
    check(compiled(t), formula(t), "value")
    given = t.clone().requires_grad_()
    torch.autograd.grad(compiled(given).sum(), given)


X = torch.ones(3, 4, 8)
DROPS: dict[str, Function] = {  # without seed
    "add": lambda x: sinpe.add(x, dropout=0.5),
    "add, grid": lambda x: sinpe.add(x, "mae2d", grid_shape=(2, 2), dropout=0.5),
    "add_": lambda x: sinpe.add_(x * 1, dropout=0.5),
    "embed": lambda x: sinpe.embed(torch.tensor([[0, 1, 2, 3]]), x, dropout=0.5),
    "SinusoidalPositionalEncoding": sinpe.SinusoidalPositionalEncoding(8, 0.5),
    "SinusoidalEmbedding": lambda x: EMBEDDING((x[..., 0] > 9).long()),
    "torch": lambda x: torch.nn.functional.dropout(x),
}
EMBEDDING = sinpe.SinusoidalEmbedding(5, 8, dropout=0.5)
COMPILED = [(name, "aot_eager") for name in ("add", "SinusoidalEmbedding")]


@pytest.mark.parametrize(("name", "compiler"), [*((name, None) for name in DROPS), *COMPILED])
def test_randomness_of_vmap(name: str, compiler: str | None) -> None:
    """As of torch's dropout: "different" draws a mask for each sample, "same" one for all, "error" raises."""

    def masks(randomness: str) -> Tensor:
        def run(x: Tensor) -> Tensor:
            return vmap(DROPS[name], randomness=randomness)(x)

        torch._dynamo.reset()
        compiled = run if compiler is None else torch.compile(run, backend=compiler, fullgraph=True)
        return compiled(X) == 0

    different, same = masks("different"), masks("same")
    assert not torch.equal(different[0], different[1]) and not torch.equal(different[1], different[2])
    assert torch.equal(same[0], same[1]) and torch.equal(same[1], same[2])
    assert 0.2 < float(different.double().mean()) < 0.8
    with pytest.raises(Exception, match="randomness"):
        masks("error")


def test_vmap_over_other_arguments(backend: str) -> None:
    """Positions, starts, ids and masks, in any dimension; float32 has the same bits."""
    x, p, starts = torch.randn(3, 2, 4, 8), torch.rand(3, 4, dtype=torch.float64), torch.tensor([3, 1, 4])
    ids, mask = torch.arange(24).reshape(3, 2, 4) % 5, torch.arange(24).reshape(3, 2, 4) % 3 == 0
    weight, layer = torch.randn(5, 8), sinpe.SinusoidalPositionalEncoding(8).eval()
    calls: list[tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = [
        (lambda t: sinpe.add(t, start=2), (x,)),
        (lambda t: sinpe.add_(t * 1), (x,)),
        (layer, (x,)),
        (lambda t, q: sinpe.add(t, positions=q), (x, p)),
        (lambda t, q: sinpe.add(t, positions=q), (x, p.long())),
        (lambda t, s: sinpe.add(t, start=s), (x, starts)),
        (lambda t, m: sinpe.add(t, padding_mask=m), (x, mask)),
        (lambda q: sinpe.encode(q, 8, dtype=torch.float32), (p,)),
        (lambda i: sinpe.embed(i, weight, scale=3.0), (ids,)),
    ]
    for call, given in calls:
        each = torch.stack([call(*sample) for sample in zip(*given, strict=True)])
        assert torch.equal(vmap(call)(*given), each)
    assert torch.equal(vmap(lambda t: sinpe.add(t), 1, 1)(x), sinpe.add(x))


@pytest.mark.parametrize("arguments", [{}, {"scale": 3.0}, {"dropout": 0.5, "seed": 1}, {"alpha": 0.5}])
def test_out_under_transforms(arguments: dict[str, Any], backend: str) -> None:
    """A derivative would be lost: refused, as torch refuses it, and nothing is written."""
    x, out = torch.randn(2, 3, 8), torch.zeros(2, 3, 8)
    refused = partial(pytest.raises, RuntimeError, match="out: expected no transform")
    with forward_ad.dual_level():
        with refused():
            sinpe.add(forward_ad.make_dual(x, torch.ones_like(x)), out=out, **arguments)
        with refused():
            sinpe.add(x, out=forward_ad.make_dual(out, torch.ones_like(out)), **arguments)
        assert not out.any()
        assert torch.equal(sinpe.add(x, out=torch.empty_like(x), **arguments), sinpe.add(x, **arguments))
    for transform in (vmap, lambda call: grad(lambda t: call(t).sum())):
        with refused():
            transform(lambda t: sinpe.add(t, out=torch.empty_like(t), **arguments))(x)
