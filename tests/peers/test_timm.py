"""timm: build_sincos2d_pos_embed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ModuleSpec

import pytest
import torch
from agreement import compare
from timm_function import timm_sincos2d

import sinpe_ext as sinpe


@pytest.fixture
def build(timm: ModuleSpec) -> Callable[..., torch.Tensor]:
    """The function, loaded from timm's file."""
    return timm_sincos2d()


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("shape", [(14, 9), (4097, 2), (2, 4097)])
def test_images(shape: tuple, interleave: bool, build: Callable, release: Callable) -> None:
    name = "hf2d" if interleave else "timm2d"
    for dim, base in ((16, 10000.0), (64, 10000.0), (64, 100.0)):
        grid = sinpe.convention(name, dim, base=base)
        compare(
            release("timm"),
            f"build_sincos2d_pos_embed(interleave_sin_cos={interleave})",
            build(list(shape), dim, temperature=base, interleave_sin_cos=interleave),
            convention=name,
            exact=sinpe.table(shape, grid, flatten=True, dtype=torch.float64),
            positions=float(max(shape)),
            compatible=sinpe.table(shape, grid.with_axes(angle="float32_pow"), flatten=True),
            mode="float32_pow",
        )


def test_reversed_coordinates(build: Callable) -> None:
    """reverse_coord reverses the image's shape, nothing else."""
    theirs = build([5, 3], 16, reverse_coord=True)
    ours = sinpe.table((3, 5), sinpe.convention("timm2d", 16, angle="float32_pow"), flatten=True)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dim", [2, 6, 7, 10])
def test_rejected_by_both(dim: int, build: Callable) -> None:
    with pytest.raises(AssertionError):
        build([2, 2], dim)
    with pytest.raises(ValueError, match="multiple of 4 for timm2d"):
        sinpe.convention("timm2d", dim)
