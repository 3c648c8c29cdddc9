"""The rows of a grid from those of its axes, `axis_rows` of the operator `add`, in torch operations."""

from __future__ import annotations

import math

from torch import Tensor

MAGIC = 0x53494E504547  # "SINPEG"
HEADER_WORDS, GROUP_WORDS = 8, 5


def decoded(axis_rows: Tensor, packed_grid: Tensor) -> Tensor:
    """The encoding of the whole grid, unpacked: (points, dim), or (dim, points) if the grid is channels first."""
    numbers = packed_grid.tolist()
    if len(numbers) < HEADER_WORDS or numbers[:2] != [MAGIC, len(numbers)] or numbers[6] != axis_rows.numel():
        raise RuntimeError("plan: expected a packed grid tensor, got other values; pass grid_rows.pack_grid(...)")
    by_channels, axes, count, dim = bool(numbers[2]), numbers[3], numbers[4], numbers[5]
    lengths = numbers[HEADER_WORDS : HEADER_WORDS + axes]
    channels_at = 0 if by_channels else axes
    out = axis_rows.new_zeros((dim, *lengths) if by_channels else (*lengths, dim))
    for k in range(count):
        axis, first, step, width, offset = numbers[HEADER_WORDS + axes + k * GROUP_WORDS :][:GROUP_WORDS]
        rows = axis_rows[offset : offset + width * lengths[axis]]
        shape = [1] * axes
        shape[axis] = lengths[axis]
        shape.insert(channels_at, width)
        rows = rows.view(width, lengths[axis]) if by_channels else rows.view(lengths[axis], width)
        place = [slice(None)] * (axes + 1)
        place[channels_at] = slice(first, first + (width - 1) * step + 1, step)
        out[tuple(place)] = rows.reshape(shape)
    return out.reshape(dim, -1) if by_channels else out.reshape(math.prod(lengths), dim)
