"""MONAI: build_sincos_position_embedding in two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import compare

import sinpe_ext as sinpe

SHAPES = {2: [(14, 9), (4097, 2), (2, 4097)], 3: [(4, 6, 5), (4097, 1, 2), (1, 2, 4097)]}


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(("channels", "base"), [(4, 10000.0), (16, 10000.0), (16, 50.0)])
def test_tables(number: int, channels: int, base: float, peer: Any, release: Callable) -> None:
    module = peer("monai.networks.blocks.pos_embed_utils")
    dim = number * channels
    grid = sinpe.convention(f"monai{number}d", dim, base=base)
    for shape in SHAPES[number]:
        theirs = module.build_sincos_position_embedding(list(shape), dim, number, temperature=base)
        compare(
            release("monai"),
            f"build_sincos_position_embedding(spatial_dims={number})",
            theirs.detach()[0],
            convention=f"monai{number}d",
            exact=sinpe.table(shape, grid, flatten=True, dtype=torch.float64),
            positions=float(max(shape)),
            compatible=sinpe.table(shape, grid.with_axes(angle="float32_pow"), flatten=True),
            mode="float32_pow",
        )


@pytest.mark.parametrize(("number", "dim"), [(2, 6), (2, 7), (3, 4), (3, 8), (3, 9)])
def test_rejected_by_both(number: int, dim: int, peer: Any) -> None:
    module = peer("monai.networks.blocks.pos_embed_utils")
    with pytest.raises(AssertionError):
        module.build_sincos_position_embedding(2, dim, number)
    with pytest.raises(ValueError, match=f"multiple of {2 * number} for monai{number}d"):
        sinpe.convention(f"monai{number}d", dim)
