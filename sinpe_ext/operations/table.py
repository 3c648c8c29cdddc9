"""`table` and `encode`, for sequences and grids."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_state
from ..encodings import resolve, values
from ..encodings.tracing import refuse_jit_trace
from ..records import TableOut
from . import checks, encoded_rows, grid_rows, memory, plans
from .encoded_rows import TABLE_OUT
from .plans import pack_plan

_is_compiling = torch.compiler.is_compiling


class TableArguments(NamedTuple):
    """The arguments of `table` as given by the caller; see `functional.table`."""

    length: Any
    encoding: Any
    start: Any = 0
    dtype: Any = None
    device: Any = None
    out: Any = None
    flatten: Any = False
    extra_tokens: Any = 0
    dim: Any = None


def table(arguments: TableArguments) -> Tensor:
    """`sinpe_ext.table` without a device mesh."""
    refuse_jit_trace()
    dtype = checks.table_dtype(arguments.dtype, arguments.device, arguments.out)
    dim = resolve.dim_beside(arguments.encoding, arguments.dim)
    arguments = arguments._replace(dtype=dtype, dim=dim)
    is_grid = resolve.is_grid(arguments.encoding)
    if is_grid or checks.extra_tokens(arguments.extra_tokens):
        return _of_grid(arguments if is_grid else arguments._replace(length=(arguments.length,)))
    length, start, device, out = arguments.length, arguments.start, arguments.device, arguments.out
    known = plans.encoding_arguments(arguments.encoding, dim)
    encoding = resolve.encoding(*known)
    values.flag("flatten", arguments.flatten)
    rows: Any = length  # ints, or symbolic ints of a graph
    first: Any = start
    if not _is_compiling():
        rows, first = values.length(length), values.start(start)
        values.position_range(encoding.start + first, rows)
    if out is not None:
        return _into(out, rows, known, first)
    checks.addressable("length", rows, encoding.dim, dtype)
    return encoded_rows.table(known, rows, first, dtype, _device(device))


def _device(device: Any) -> torch.device:
    """The device of a new table, from the argument `device`."""
    if _is_compiling():  # the compiler cannot trace torch.get_default_device
        return torch.empty(0).device if device is None else torch.device(device)
    return torch.get_default_device() if device is None else checks.torch_device(device)


def _check_out(out: Tensor, shape: tuple[int, ...], names: str = "") -> None:
    """Checks the shape of `out`, and that no gradient is lost."""
    if tuple(out.shape) != shape:
        raise ValueError(f"out: expected shape {shape}{names}, got {tuple(out.shape)}; pass a tensor of that shape")
    if out.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("out: expected a tensor without gradient, got one that requires it; pass out.detach()")


def _into(out: Tensor, length: int, known: plans.EncodingArguments, start: int) -> Tensor:
    """`table` with `out`, by the kernel if it can write to a tensor with these strides."""
    encoding = resolve.encoding(*known)
    _check_out(out, (length, encoding.dim), ", (length, dim)")
    if _is_compiling():
        return out.copy_(encoded_rows.table(known, length, start, out.dtype, out.device))
    memory.writable("out", out)
    direct = encoding.angle == "exact" and (out.stride(1) == 1 or encoding.dim == 1) and not out.is_neg()
    if not direct or torch_state.read().traced or out.device.type not in ("cpu", "cuda"):
        return out.copy_(encoded_rows.table(known, length, start, out.dtype, out.device))
    if length:
        TABLE_OUT(TableOut(pack_plan(encoding, out.device), start), out)
    torch.autograd.graph.increment_version(out)
    return out


def _of_grid(arguments: TableArguments) -> Tensor:
    """`table` of a GridEncoding, or with extra tokens."""
    length, encoding, _, dtype, device, out, *_ = arguments
    dim, firsts = resolve.grid_dim_and_starts(encoding, arguments.dim)
    lengths = checks.grid_lengths("length", length, len(firsts))
    extra = checks.extra_tokens(arguments.extra_tokens)
    points = math.prod(lengths)
    shape = (extra + points, dim) if values.flag("flatten", arguments.flatten) or extra else (*lengths, dim)
    if out is not None:
        _check_out(out, shape)
        where = out.device
        memory.writable("out", out)
    else:
        where = _device(device)
        checks.addressable("length", extra + points, dim, dtype)
    starts = checks.grid_starts(arguments.start, firsts, lengths, None, where)
    rows = grid_rows.table(encoding, dim, lengths, starts, dtype, where)
    if arguments.flatten or extra:
        rows = rows.flatten(0, -2)
    if extra:
        rows = torch.cat([rows.new_zeros((extra, dim)), rows])
    return rows if out is None else out.copy_(rows)


def encode(positions: Any, encoding: Any, dim: Any, dtype: torch.dtype, allow_16bit: bool) -> Tensor:
    """`sinpe_ext.encode` of ordinary tensors."""
    refuse_jit_trace()
    if dim is not None:
        dim = resolve.dim_beside(encoding, dim)
    if resolve.is_grid(encoding):
        return _of_coordinates(positions, encoding, dim, dtype, allow_16bit)
    encoding_arguments = plans.encoding_arguments(encoding, dim)
    encoding = resolve.encoding(*encoding_arguments)
    positions = checks.positions(positions, allow_16bit=allow_16bit)
    checks.float_dtype("dtype", dtype)
    checks.addressable("positions", positions.numel(), encoding.dim, dtype)
    return encoded_rows.encode(encoding_arguments, positions, dtype)


def _of_coordinates(positions: Any, encoding: Any, dim: int | None, dtype: torch.dtype, allow_16bit: bool) -> Tensor:
    """`encode` with a GridEncoding."""
    dim, firsts = resolve.grid_dim_and_starts(encoding, dim)
    positions = checks.positions(positions, allow_16bit=allow_16bit)
    if positions.dim() < 1 or positions.shape[-1] != len(firsts):
        raise ValueError(
            f"positions: expected {len(firsts)} coordinates, one per axis of the grid, in the last dimension, got "
            f"shape {tuple(positions.shape)}; stack them with torch.stack(coordinates, -1)"
        )
    checks.float_dtype("dtype", dtype)
    checks.addressable("positions", positions.numel(), dim, dtype)
    return grid_rows.encode(encoding, dim, positions, dtype)
