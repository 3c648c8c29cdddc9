"""Grids on CUDA against the CPU, value by value: axes, layouts, forms, dtypes, gradients.

As in `test_cuda_parity.py`, each test also runs on the CPU, comparing kernels with eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cuda_support import FLOATS, assert_sums, dtypes, expected, leaf, moved, randn, same_gradients, same_sums
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.operations import grid_rows

P = 0.3

GRIDS: dict[str, sinpe.GridEncoding] = {
    "mae2d": sinpe.convention("mae2d", 48),
    "wide": sinpe.convention("mae2d", 2052),
    "interleaved": sinpe.GridEncoding((sinpe.Encoding(5), sinpe.Encoding(5)), arrangement="interleaved", dim=11),
    "grouped": sinpe.convention("monai2d", 24),
    "uneven": sinpe.GridEncoding((sinpe.Encoding(4, start=3), sinpe.Encoding(3, layout="cos_sin")), order=(1, 0)),
}
IMAGES: dict[str, Callable[[Tensor], Tensor]] = {  # of (B, H, W, C)
    "channels last": lambda x: x,
    "channels first": lambda x: x.movedim(-1, 1).contiguous().movedim(1, -1),
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "window": lambda x: torch.cat([x, x], -2)[..., 1 : 1 + x.shape[-2], :],
    "expanded": lambda x: x[:1].expand(x.shape),
}
GRID_FORMS: dict[str, dict[str, Any]] = {
    "implicit": {},
    "start": {"start": (7, -2), "scale": 0.5, "alpha": -0.3},
    "starts": {"start": torch.tensor([[4, 0], [0, 9], [-9, 1]])},
    "a start": {"start": torch.tensor([5, 6])},
    "masked": {"padding_mask": torch.arange(3 * 4 * 5).reshape(3, 4, 5) % 3 == 1, "scale": 3.7},
    "positions": {"positions": torch.arange(40.0).reshape(4, 5, 2) / 3},
    "alpha": {"alpha": torch.tensor([0.7]), "scale": 1.5},
}


@pytest.mark.parametrize("name", GRIDS)
def test_grid(name: str, device: torch.device) -> None:
    """By places and by channels, in each form, with and without dropout."""
    grid = GRIDS[name]
    for dtype in dtypes(device):
        x = randn(3, 4, 5, grid.dim, dtype=dtype)
        for form in ("implicit", "masked") if name == "wide" else GRID_FORMS:
            for view in IMAGES.values() if device.type == "cuda" else [IMAGES["window"]]:
                for drop in (0.0, P):
                    named = {**GRID_FORMS[form], "dropout": drop, "seed": 11}
                    same_sums(device, lambda d: sinpe.add(view(x.to(d)), grid, **moved(named, d)))  # noqa: B023


@pytest.mark.parametrize("dtype", FLOATS)
def test_grid_into(dtype: torch.dtype, cuda: torch.device) -> None:
    """Images with many tiles of places, in place and with out, channels before and after the places."""
    for shape in ((2, 7, 60, 70), (1, 130, 3, 5), (70, 9, 7, 7)):
        grid = sinpe.convention("mae2d", 4).replace(dim=shape[1])
        x = randn(*shape, dtype=dtype)
        for drop in (0.0, P):
            named: dict[str, Any] = {"channel_dim": 1, "scale": 2.0, "dropout": drop, "seed": 5}
            want = expected(cuda, lambda d: sinpe.add(x.to(d), grid, **named))  # noqa: B023
            assert_sums(cuda, sinpe.add(x.to(cuda), grid, **named), want, 40.0)
            for memory in (torch.contiguous_format, torch.channels_last):
                out = torch.full_like(x, torch.nan, device=cuda, memory_format=memory)
                assert sinpe.add(x.to(cuda), grid, out=out, **named) is out
                assert_sums(cuda, out, want, 40.0)
                given = x.to(cuda).clone(memory_format=memory)
                assert sinpe.add_(given, grid, **named) is given
                assert_sums(cuda, given, want, 40.0)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_grid_after_extra_tokens(axes: int, device: torch.device) -> None:
    grid = sinpe.GridEncoding((sinpe.Encoding(8),) * axes, dim=30)
    lengths = (3, 4, 5)[:axes]
    for extra in (0, 1, 5):
        x = randn(2, extra + int(torch.tensor(lengths).prod()), 30)
        named = {"grid_shape": lengths, "extra_tokens": extra, "dropout": P, "seed": 3}
        same_sums(device, lambda d: sinpe.add(x.to(d), grid, **named), 10.0)  # noqa: B023


def test_grid_at_many_corners(cuda: torch.device) -> None:
    """More corners than those whose rows are kept, each twice."""
    x, grid = randn(2, 4, 5, 16), sinpe.convention("mae2d", 16)
    for corner in range(grid_rows.MAX_CORNERS + 9):
        for _ in range(2):
            same_sums(cuda, lambda d: sinpe.add(x.to(d), grid, start=(corner, -3 * corner)), 10.0)  # noqa: B023


def test_gradients_of_a_grid(device: torch.device) -> None:
    grid = sinpe.convention("mae2d", 16)
    x, grad = randn(3, 4, 5, 16), randn(3, 4, 5, 16, seed=6)
    places = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(5.0), indexing="ij"), -1) / 3
    for named in ({}, {"positions": places}):

        def run(d: torch.device) -> tuple[Tensor, ...]:
            given = leaf(x, d)
            alpha = torch.tensor([0.7], device=d, requires_grad=True)
            at = {name: leaf(t, d) for name, t in named.items()}  # noqa: B023
            out = sinpe.add(given, grid, alpha=alpha, scale=1.5, dropout=P, seed=4, **at)
            return torch.autograd.grad(out, (given, alpha, *at.values()), grad.to(d))

        same_gradients(device, run)
