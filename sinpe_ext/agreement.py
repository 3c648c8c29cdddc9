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
from .encodings.grid import GridEncoding, Piece
from .encodings.plan import plan

# Relative error of an angle p * w that is computed in float32, for each e-fold between w and the first frequency: the
# exponent is rounded three times, exp or pow is within an ULP, and p * w is a product and a division.
ANGLE_ERROR = 2.5 * 2.0**-23
VALUE_ERROR = 1e-6  # of a sine or cosine in float32, and of the product with the amplitude
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # relative, of a value that is stored in 16 bits
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


def compare(table: Tensor, encoding: Encoding | GridEncoding, lengths: Sequence[int] | None = None) -> Comparison:
    """Compares the rows of a stored table with those of an encoding.

    Args:
        table: (rows, dim), a tensor on the CPU of any floating-point dtype; row 0 is the encoding's own first position.
        encoding: the encoding; for a grid, the rows are in row-major order of `lengths`.
        lengths: lengths of the axes of a grid; their product is the number of rows.
    """
    rows, dim = table.shape
    if isinstance(encoding, GridEncoding):
        assert lengths is not None and math.prod(lengths) == rows
        first = torch.tensor([axis.start for axis in encoding.axes])
    differs, error = torch.zeros(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64)
    step = max(1, CHUNK // max(dim, 1))
    for begin in range(0, rows, step):
        part = slice(begin, min(begin + step, rows))
        index = torch.arange(part.start, part.stop)
        if isinstance(encoding, GridEncoding):
            assert lengths is not None
            positions = torch.stack(torch.unravel_index(index, tuple(lengths)), -1) + first
        else:
            positions = index + encoding.start
        exact = functional.encode(positions, encoding, dtype=torch.float64)
        apart = (table[part].to(torch.float64) - exact).abs()
        outside = ~(apart <= rounding_errors(positions, encoding) + ROUNDING.get(table.dtype, 0.0) * exact.abs())
        differs[part], error[part] = outside.any(1), apart.amax(1) if dim else 0.0
    return Comparison(differs, error)


def rounding_errors(positions: Tensor, encoding: Encoding | GridEncoding) -> Tensor:
    """(rows, dim) float64: the largest differences of float32 formulas from the exact values at integer positions
    (rows,), or (rows, axes) for a grid, whose values are not rounded to 16 bits."""
    pieces = encoding.pieces if isinstance(encoding, GridEncoding) else (Piece(0, encoding, 0, 1),)
    along = positions if isinstance(encoding, GridEncoding) else positions[:, None]
    allowed = torch.zeros(len(positions), encoding.dim, dtype=torch.float64)
    for axis, part, begin, step in pieces:
        turns = torch.tensor(plan(part).channel_turns(), dtype=torch.float64).abs()
        e_folds = (turns.clamp_min(1e-300) / max(float(turns.max()), 1e-300)).log().abs()
        angle = torch.outer(along[:, axis].double().abs(), turns * (2 * math.pi * ANGLE_ERROR) * (1 + e_folds))
        channels = slice(begin, begin + step * (part.dim - 1) + 1, step)
        allowed[:, channels] = abs(part.amplitude) * (angle.clamp_max(2.0) + VALUE_ERROR)
    return allowed
