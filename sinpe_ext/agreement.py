"""Whether a stored table holds the rows of an encoding, up to the rounding errors of the float32 formulas.

This is the one answer for `identify`, for the checkpoints of the layers and for `swap`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import functional
from .encodings.encoding import Encoding
from .encodings.grid import ChannelGroup, GridEncoding
from .encodings.plan import plan

# Relative error of an angle p * w that is computed in float32, for each e-fold between w and the first frequency: the
# exponent is rounded three times, exp or pow is within an ULP, and p * w is a product and a division.
ANGLE_ERROR = 2.5 * 2.0**-23
VALUE_ERROR = 1e-6  # of a sine or cosine in float32, and of the product with the amplitude
# Relative, of a value that is stored.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
SUBNORMAL = 2.0**-25  # of a value near 0 that is stored in float16
CHUNK = 2**21  # elements compared at once


class Comparison(NamedTuple):
    """The rows of a table compared with those of an encoding.

    Attributes:
        differs: (rows,) bool, the rows that differ by more than rounding errors.
        error: (rows,) float64, their largest differences.
    """

    differs: Tensor
    error: Tensor


def agrees(table: Tensor, encoding: Encoding | GridEncoding, lengths: Sequence[int] | None = None) -> bool:
    """Whether every row of a table is that of the encoding, up to rounding errors; see `compare`."""
    return not bool(compare(table, encoding, lengths).differs.any())


def compare(
    table: Tensor,
    encoding: Encoding | GridEncoding,
    lengths: Sequence[int] | None = None,
    *,
    which: Tensor | None = None,
    starts: Sequence[float] = (),
) -> Comparison:
    """Compares the rows of a stored table with those of an encoding.

    Args:
        table: (rows, dim), a tensor on the CPU of any floating-point dtype; row 0 is the encoding's own first position.
        encoding: the encoding; for a grid, the rows are in row-major order of `lengths`.
        lengths: lengths of the axes of a grid; their product is the number of rows.
        which: (n,) int64, the rows to compare, which the result has in this order; None: all.
        starts: the first position of each axis, which may be fractions; (): those of the encoding.
    """
    rows, dim = table.shape
    number = rows if which is None else len(which)
    differs, error = torch.zeros(number, dtype=torch.bool), torch.zeros(number, dtype=torch.float64)
    step = max(1, CHUNK // max(dim, 1))
    for begin in range(0, number, step):
        part = slice(begin, min(begin + step, number))
        index = torch.arange(part.start, part.stop) if which is None else which[part]
        positions = positions_of(index, encoding, lengths, starts)
        exact = functional.encode(positions, encoding, dtype=torch.float64)
        held = table[part if which is None else index].to(torch.float64)
        allowed = rounding_errors(positions, encoding)
        if table.dtype.itemsize == 2:
            # Twice, as a product with the amplitude may be rounded again. And numbers that were found from 16-bit
            # values are not exact, which shows in the smallest values.
            allowed += ROUNDING[table.dtype] * (2 * exact.abs() + exact.abs().max() / 8) + SUBNORMAL
        apart = (held - exact).abs_()  # held may be the table itself
        differs[part] = ~(apart <= allowed).all(1)
        error[part] = apart.amax(1) if dim else 0.0
    return Comparison(differs, error)


def positions_of(
    index: Tensor,
    encoding: Encoding | GridEncoding,
    lengths: Sequence[int] | None = None,
    starts: Sequence[float] = (),
) -> Tensor:
    """The positions of rows (n,) of a table: (n,); for a grid (n, axes), its rows in row-major order of `lengths`.

    `starts` are the first position of each axis, which make them float64; (): those of the encoding.
    """
    if not isinstance(encoding, GridEncoding):
        return index.double() + starts[0] if starts else index + encoding.start
    assert lengths is not None
    strides = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    along = [index // stride % length for stride, length in zip(strides, lengths, strict=True)]
    own = torch.tensor([axis.start for axis in encoding.axes])
    return torch.stack(along, -1) + (torch.tensor(starts, dtype=torch.float64) if starts else own)


def rounding_errors(positions: Tensor, encoding: Encoding | GridEncoding) -> Tensor:
    """(rows, dim) float64: the largest differences of float32 formulas from the exact values at positions
    (rows,), or (rows, axes) for a grid, whose values are not rounded to 16 bits."""
    groups = encoding.channel_groups if isinstance(encoding, GridEncoding) else (ChannelGroup(0, encoding, 0, 1),)
    along = positions if isinstance(encoding, GridEncoding) else positions[:, None]
    allowed = torch.zeros(len(positions), encoding.dim, dtype=torch.float64)
    for axis, part, begin, step in groups:
        frequencies = 2 * math.pi * torch.tensor(plan(part).channel_turns(), dtype=torch.float64)
        channels = slice(begin, begin + step * (part.dim - 1) + 1, step)
        allowed[:, channels] = abs(part.amplitude) * sine_errors(along[:, axis], frequencies)
    return allowed


def sine_errors(positions: Tensor, frequencies: Tensor) -> Tensor:
    """(rows, channels) float64: the largest errors of sines and cosines of positions (rows,) times angular frequencies
    (channels,) that are computed in float32."""
    size = frequencies.abs()
    e_folds = (size.clamp_min(1e-300) / size.max().clamp_min(1e-300)).log().abs()
    angle = torch.outer(positions.double().abs(), size * ANGLE_ERROR * (1 + e_folds))
    return angle.clamp_max_(2.0).add_(VALUE_ERROR)
