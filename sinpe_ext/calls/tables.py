"""`table` and `encode` of a grid."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..checks import grids, memory
from . import grid_rows

_is_compiling = torch.compiler.is_compiling


def table(
    length: Any,
    encoding: Any,
    start: Any,
    dtype: torch.dtype,
    device: torch.device | str | None,
    out: Tensor | None,
    extra_tokens: int,
    flatten: bool,
) -> Tensor:
    """`sinpe_ext.table` of a GridEncoding."""
    dim, firsts = checks.grid_outline(encoding, None)
    lengths = grids.lengths("length", length, len(firsts))
    extra = grids.extra(extra_tokens)
    places = math.prod(lengths)
    shape = (extra + places, dim) if checks.flag("flatten", flatten) or extra else (*lengths, dim)
    if out is not None:
        if tuple(checks.sizes(out)) != shape:
            raise ValueError(f"out: expected shape {shape}, got {tuple(out.shape)}; pass a tensor of that shape")
        checks.no_gradient_into(out)
        where = out.device
        memory.writable("out", out)
    else:
        # A compiler cannot trace torch.get_default_device.
        default = torch.empty(0).device if _is_compiling() else torch.get_default_device()
        where = default if device is None else torch.device(device) if _is_compiling() else checks.device(device)
        if not _is_compiling():
            checks.addressable("length", extra + places, dim, dtype.itemsize)
    starts = grids.starts(start, firsts, lengths, None, where)
    rows = grid_rows.table(encoding, dim, grids.traced_lengths(length, lengths), starts, dtype, where)
    if flatten or extra:
        rows = rows.flatten(0, -2)
    if extra:
        rows = torch.cat([rows.new_zeros((extra, dim)), rows])
    return rows if out is None else out.copy_(rows)


def encode(positions: Any, encoding: Any, dtype: torch.dtype, allow_16bit: bool) -> Tensor:
    """`sinpe_ext.encode` of a GridEncoding."""
    dim, firsts = checks.grid_outline(encoding, None)
    positions = checks.positions(positions, allow_16bit=allow_16bit)
    if positions.dim() < 1 or checks.sizes(positions)[-1] != len(firsts):
        raise ValueError(
            f"positions: expected {len(firsts)} coordinates, one per axis of the grid, in the last dimension, got "
            f"shape {tuple(positions.shape)}; stack them with torch.stack(coordinates, -1)"
        )
    checks.float_dtype("dtype", dtype)
    if not _is_compiling() and not checks.is_jit_traced():
        checks.addressable("positions", positions.numel(), dim, dtype.itemsize)
    return grid_rows.encode(encoding, dim, positions, dtype)
