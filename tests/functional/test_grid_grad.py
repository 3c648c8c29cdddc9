"""Derivatives of `add` and `encode` with a grid: gradcheck, and the formula in torch operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from grids import EXAMPLES, lengths_of, positions_of, truth

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

NAMES = ["mae2d", "timm2d", "t2t2d zeros", "multidim3d cut", "nerf"]
OPTIONS: list[dict[str, Any]] = [{}, {"dropout": 0.25, "seed": 3, "scale": 1.5}]


def inputs(name: str) -> tuple[Any, ...]:
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    x = torch.randn(2, *lengths, grid.dim, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    places = positions_of(grid, lengths).double() + 0.25
    return grid, lengths, x, alpha, places.expand(2, *places.shape).contiguous().requires_grad_()


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "dropout"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients(backend: str, name: str, options: dict[str, Any]) -> None:
    grid, lengths, x, alpha, places = inputs(name)
    n = grid.ndim
    check = lambda f, arguments: torch.autograd.gradcheck(f, arguments, fast_mode=True)  # noqa: E731
    assert check(lambda x, a: sinpe.add(x, grid, alpha=a, **options), (x, alpha))
    assert check(lambda x, a, p: sinpe.add(x, grid, alpha=a, positions=p, **options), (x, alpha, places))
    assert check(lambda p: sinpe.add(x, grid, positions=p[0], **options), (places,))
    flat = x.detach().flatten(1, n).requires_grad_()
    assert check(lambda x, a: sinpe.add(x, grid, alpha=a, grid_shape=lengths, **options), (flat, alpha))
    mask = torch.rand(2, *lengths) < 0.4
    assert check(lambda x, a: sinpe.add(x, grid, alpha=a, padding_mask=mask, start=2, **options), (x, alpha))
    first = x.detach().movedim(-1, 1).contiguous().requires_grad_()
    assert check(lambda x, a: sinpe.add(x, grid, alpha=a, channel_dim=1, **options), (first, alpha))
    tokens = torch.randn(2, 2 + flat.shape[1], grid.dim, dtype=torch.float64, requires_grad=True)
    given: Any = {"grid_shape": lengths, "extra_tokens": 2}
    assert check(lambda x, a: sinpe.add(x, grid, alpha=a, **given, **options), (tokens, alpha))
    assert check(lambda p: sinpe.encode(p, grid, dtype=torch.float64), (places,))


@pytest.mark.parametrize("name", ["mae2d", "nerf"])
def test_second_order(backend: str, name: str) -> None:
    grid, _, x, alpha, places = inputs(name)
    second = torch.autograd.gradgradcheck
    assert second(lambda x, a, p: sinpe.add(x, grid, alpha=a, positions=p), (x, alpha, places), fast_mode=True)
    assert second(lambda p: sinpe.encode(p, grid, dtype=torch.float64), (places,), fast_mode=True)


def test_gradients_in_place(backend: str) -> None:
    grid, _lengths, x, alpha, places = inputs("mae2d")
    options: Any = {"alpha": alpha, "dropout": 0.5, "seed": 1, "scale": 3.0}
    leaves = (x, alpha)
    for more in ({}, {"positions": places}):
        want = torch.autograd.grad(sinpe.add(x, grid, **options, **more).square().sum(), leaves)
        target = x * 1.0
        got = sinpe.add_(target, grid, **options, **more)
        assert got is target
        for a, b in zip(torch.autograd.grad(got.square().sum(), leaves), want, strict=True):
            assert torch.allclose(a, b, rtol=1e-13, atol=1e-12)
    with pytest.raises(RuntimeError, match="leaf"):
        sinpe.add_(x, grid)
    with pytest.raises(RuntimeError, match="out: expected no gradient"):
        sinpe.add(x, grid, out=torch.empty_like(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_alpha_gradient_of_other_dtypes(backend: str, dtype: torch.dtype) -> None:
    grid, lengths, x, *_ = inputs("mae2d")
    alpha = torch.tensor(0.5, requires_grad=True)
    x = x.detach().to(dtype)
    sinpe.add(x, grid, alpha=alpha).float().sum().backward()
    pe = truth(grid, lengths, dtype=torch.float64)
    assert alpha.grad is not None and alpha.grad.dtype == torch.float32
    assert float(alpha.grad) == pytest.approx(float(2 * pe.sum()), rel=1e-5)


def test_torch_func(backend: str) -> None:
    grid, lengths, x, *_ = inputs("mae2d")
    x = x.detach()
    rows = torch.func.vmap(lambda one: sinpe.add(one, grid, grid_shape=lengths))(x)
    assert torch.equal(rows, sinpe.add(x, grid))
    slope = torch.func.grad(lambda a: sinpe.add(x, grid, alpha=a).sum())(torch.tensor(1.0, dtype=torch.float64))
    assert float(slope) == pytest.approx(float(2 * truth(grid, lengths, dtype=torch.float64).sum()), rel=1e-12)
    tangent = torch.func.jvp(lambda x: sinpe.add(x, grid, scale=2.0), (x,), (torch.ones_like(x),))[1]
    assert torch.equal(tangent, torch.full_like(x, 2.0))
