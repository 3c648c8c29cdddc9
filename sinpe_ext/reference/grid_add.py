"""Reference implementation of the operator `add_grid_out`, which adds the encoding of a grid, in torch operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..records import AddGrid
from . import philox
from .apply import _combine, _drop_

MAGIC = 0x53494E504547  # "SINPEG"
HEADER_WORDS, GROUP_WORDS = 8, 5


@torch.no_grad()
def add(a: AddGrid, out: Tensor) -> Tensor:
    """dropout(scale * x + PE) into `out`, which is returned.

    Args:
        a.values, a.grid: the rows of the axes and the packed description of the grid, see `operations/grid_rows.py`.
        a.x: (*B, points, dim), or (*B, dim, points) if the grid is channels first; out has the same shape, or is x.
        a.padding_mask: (1 or B, points) bool, True = no encoding; or None.
        a.seed, a.drop_threshold, a.rng_offsets: as in `apply.py`.
    """
    if a.drop_threshold == philox.DROP_ALL:
        return out.zero_()
    _combine(a.x, decoded(a.values, a.grid), a, out)
    return _drop_(out, a)


def decoded(values: Tensor, packed_grid: Tensor) -> Tensor:
    """The encoding of the whole grid, unpacked: (points, dim), or (dim, points) if the grid is channels first."""
    numbers = packed_grid.tolist()
    if len(numbers) < HEADER_WORDS or numbers[:2] != [MAGIC, len(numbers)] or numbers[6] != values.numel():
        raise RuntimeError("grid: expected a packed grid tensor, got other values; pass grid_rows.pack_grid(...)")
    by_channels, axes, count, dim = bool(numbers[2]), numbers[3], numbers[4], numbers[5]
    lengths = numbers[HEADER_WORDS : HEADER_WORDS + axes]
    channels_at = 0 if by_channels else axes
    out = values.new_zeros((dim, *lengths) if by_channels else (*lengths, dim))
    for k in range(count):
        axis, first, step, width, offset = numbers[HEADER_WORDS + axes + k * GROUP_WORDS :][:GROUP_WORDS]
        rows = values[offset : offset + width * lengths[axis]]
        shape = [1] * axes
        shape[axis] = lengths[axis]
        shape.insert(channels_at, width)
        rows = rows.view(width, lengths[axis]) if by_channels else rows.view(lengths[axis], width)
        place = [slice(None)] * (axes + 1)
        place[channels_at] = slice(first, first + (width - 1) * step + 1, step)
        out[tuple(place)] = rows.reshape(shape)
    return out.reshape(dim, -1) if by_channels else out.reshape(math.prod(lengths), dim)
