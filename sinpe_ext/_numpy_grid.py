"""`table` and `encode` of a grid in NumPy: each axis by itself, put where its channels belong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import checks
from .encodings.grid import GridEncoding, Piece, lengths_of

Rows = Callable[..., NDArray[Any]]


def table(rows: Rows, length: Any, grid: GridEncoding, start: Any, name: str) -> NDArray[Any]:
    """(*length, dim), from `rows(length, encoding, start=, dtype=)`."""
    lengths = lengths_of("length", length, grid.ndim)
    starts = list(start) if isinstance(start, (tuple, list)) else [start] * grid.ndim
    if len(starts) != grid.ndim:
        raise ValueError(
            f"start: expected an int or {grid.ndim} of them, one per axis of the grid, got {len(starts)}; pass one each"
        )
    checks.addressable("length", math.prod(lengths), grid.dim, np.dtype(name).itemsize)
    out = np.zeros((*lengths, grid.dim), name)
    for piece, channels in _places(grid, out):
        made = rows(lengths[piece.axis], piece.encoding, start=checks.start(starts[piece.axis]), dtype=name)
        shape = [1] * grid.ndim
        shape[piece.axis] = lengths[piece.axis]
        channels[...] = made.reshape(*shape, piece.encoding.dim)
    return out


def encode(rows: Rows, positions: NDArray[Any], grid: GridEncoding, name: str) -> NDArray[Any]:
    """(*positions.shape[:-1], dim), from `rows(positions, encoding, dtype=)`."""
    if positions.ndim < 1 or positions.shape[-1] != grid.ndim:
        raise ValueError(
            f"positions: expected {grid.ndim} coordinates, one per axis of the grid, in the last dimension, got shape "
            f"{positions.shape}; stack them with np.stack(coordinates, -1)"
        )
    out = np.zeros((*positions.shape[:-1], grid.dim), name)
    for piece, channels in _places(grid, out):
        channels[...] = rows(positions[..., piece.axis], piece.encoding, dtype=name)
    return out


def _places(grid: GridEncoding, out: NDArray[Any]) -> Iterator[tuple[Piece, NDArray[Any]]]:
    for piece in grid.pieces:
        last = piece.first + (piece.encoding.dim - 1) * piece.step + 1
        yield piece, out[..., piece.first : last : piece.step]
