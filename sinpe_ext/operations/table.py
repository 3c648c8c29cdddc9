"""`table` and `encode`, for sequences and grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_state
from ..encodings import resolve, values
from ..encodings.encoding import Encoding
from ..encodings.tracing import refuse_jit_trace
from ..encodings.values import INT64_MAX
from ..records import Add, TableOut
from ..reference.tiles import accumulation
from . import checks, encoded_rows, grid_rows, memory, plans, repetition
from .encoded_rows import TABLE_OUT
from .plans import pack_plan
from .repetition import constant, is_repeatable

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
    call, out = check_table(arguments), arguments.out
    if out is None:
        checks.addressable("length", math.prod(call.shape[:-1]), call.shape[-1], call.dtype)
    result = call.result() if out is None else call.result_into(out)
    if not (call.extra_tokens or _is_compiling()):
        if call.is_grid:
            _keep_grid(arguments, call, result)
        else:
            _keep_table(arguments, resolve.encoding(*call.encoding), result)
    return result


class CheckedTable(NamedTuple):
    """A call of `table`, whose arguments have been checked.

    Attributes:
        encoding: what `resolve.encoding` takes; for a grid (grid, number of channels, None).
        lengths: those of the axes; of a sequence, (number of rows,).
        starts: one for each axis, relative to the starts of their encodings: ints, symbolic ints of a graph, or 0-d
            tensors.
        shape: shape of the result, whose points are one dimension with extra_tokens, and for a grid with flatten=True.
    """

    encoding: plans.EncodingArguments
    is_grid: bool
    lengths: tuple[int, ...]
    starts: tuple[Any, ...]
    extra_tokens: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def result(self) -> Tensor:
        dim = self.shape[-1]
        if self.is_grid:
            rows = grid_rows.table(self.encoding[0], dim, self.lengths, self.starts, self.dtype, self.device)
            rows = rows if len(self.shape) == rows.dim() else rows.flatten(0, -2)
        else:
            rows = encoded_rows.table(self.encoding, self.lengths[0], self.starts[0], self.dtype, self.device)
        return torch.cat([rows.new_zeros((self.extra_tokens, dim)), rows]) if self.extra_tokens else rows

    def part(self, first: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The elements of the result from the indices `first` on, of shape `sizes`, without computing other rows if a
        row has an index of its own."""
        dim, (value, named, _) = self.shape[-1], self.encoding
        starts = [start + at for start, at in zip(self.starts, first, strict=False)]
        if self.extra_tokens or len(self.shape) != len(self.lengths) + 1:
            rows = self.result()[first[0] : first[0] + sizes[0]]
        elif self.is_grid:
            rows = grid_rows.table(value, dim, sizes[:-1], starts, self.dtype, self.device)
        else:  # also without other channels
            columns = value, named, (min(first[-1], dim - 1), max(sizes[-1], 1))
            return encoded_rows.table(columns, sizes[0], starts[0], self.dtype, self.device).narrow(-1, 0, sizes[-1])
        return rows.narrow(-1, first[-1], sizes[-1]).contiguous()

    def result_into(self, out: Tensor) -> Tensor:
        """`table` with `out`, by the kernel if it can write to a tensor with these strides."""
        if tuple(out.shape) != self.shape:
            names = "" if self.is_grid or self.extra_tokens else ", (length, dim)"
            raise ValueError(
                f"out: expected shape {self.shape}{names}, got {tuple(out.shape)}; pass a tensor of that shape"
            )
        if out.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("out: expected a tensor without gradient, got one that requires it; pass out.detach()")
        if not _is_compiling():
            memory.writable("out", out)
        if self.is_grid or self.extra_tokens or _is_compiling() or torch_state.read().traced or out.is_neg():
            return out.copy_(self.result())
        encoding = resolve.encoding(*self.encoding)
        is_dense = out.stride(1) == 1 or encoding.dim == 1
        if encoding.angle != "exact" or not is_dense or out.device.type not in ("cpu", "cuda"):
            return out.copy_(self.result())
        if self.lengths[0]:
            TABLE_OUT(TableOut(pack_plan(encoding, out.device), self.starts[0]), out)
        torch.autograd.graph.increment_version(out)
        return out


def check_table(a: TableArguments) -> CheckedTable:
    """Checks the arguments of `table`, except whether `out` can be written to."""
    dtype = checks.table_dtype(a.dtype, a.device, a.out)
    dim = resolve.dim_beside(a.encoding, a.dim)
    is_grid, extra = resolve.is_grid(a.encoding), checks.extra_tokens(a.extra_tokens)
    is_flat, starts = values.flag("flatten", a.flatten) or extra, a.start
    if a.out is not None:
        device = a.out.device
    elif _is_compiling():  # the compiler cannot trace torch.get_default_device
        device = torch.empty(0).device if a.device is None else torch.device(a.device)
    else:
        device = torch.get_default_device() if a.device is None else checks.torch_device(a.device)
    if is_grid:
        dim, firsts = resolve.grid_dim_and_starts(a.encoding, dim)
        lengths = checks.grid_lengths("length", a.length, len(firsts))
        starts = checks.starts(a.start, firsts, lengths, True, device)
        starts = starts[0].unbind() if isinstance(starts, Tensor) else starts
        known: plans.EncodingArguments = a.encoding, dim, None
    else:
        known = plans.encoding_arguments(a.encoding, dim)
        encoding = resolve.encoding(*known)
        dim, lengths = encoding.dim, (a.length,)
        if not _is_compiling():  # symbolic ints of a graph are not checked
            lengths, starts = (values.length(a.length),), values.start(a.start)
            values.position_range(encoding.start + starts, lengths[0])
        starts = (starts,)
    shape = (extra + math.prod(lengths), dim) if is_flat else (*lengths, dim)
    return CheckedTable(known, is_grid, lengths, starts, extra, shape, dtype, device)


def _keep_table(given: TableArguments, encoding: Encoding, result: Tensor) -> None:
    """Keeps a call of `table` for repetition."""
    if not is_repeatable(result) or encoding.angle != "exact" or (result.stride(1) != 1 and encoding.dim > 1):
        return
    call = repetition.Call(repetition.TABLE, given)
    length = -1
    call.integer("length", 1, INT64_MAX, size=length)
    start = call.start(encoding.start, length)
    plan, sizes, groups = pack_plan(encoding, result.device), (length, encoding.dim), ((0,), (1,))
    if given.out is None:
        to = repetition.Result(sizes=sizes, dtype=result.dtype, device=given.device)
    else:
        call.tensor("out", sizes, groups)
        to = repetition.Result(written=call.index["out"])
    call.keep("table_out", [constant(plan), start, repetition.result_of(groups)], to)


def _keep_grid(given: TableArguments, of: CheckedTable, result: Tensor) -> None:
    """Keeps a call of `table` of a grid for repetition, as its sum with -0.0, which changes no number."""
    grid, lengths = resolve.grid(*of.encoding[:2]), tuple(of.lengths)
    rows = grid_rows.AxisRows(grid, lengths, tuple(of.starts), accumulation(of.dtype), result.device, by_channels=False)
    is_exact = all([axis.angle == "exact" for axis in grid.axes])
    if not is_exact or not is_repeatable(result) or not grid_rows.are_cached(rows):
        return
    call = repetition.Call(repetition.TABLE, given)
    zeros = torch.full((), -0.0, dtype=of.dtype, device=result.device).expand(math.prod(lengths), grid.dim)
    packed_grid = grid_rows.pack_grid(grid, lengths, False, result.device)
    to = repetition.Result(sizes=tuple(result.shape), dtype=of.dtype, device=given.device)
    if given.out is not None:
        call.tensor("out", result.shape, ())
        to = repetition.Result(written=call.index["out"])
    a = Add(zeros, packed_grid, axis_rows=grid_rows.values(rows))
    last = result.dim() - 1
    call.keep("add", [*map(constant, a), repetition.result_of((tuple(range(last)), (last,)))], to)


class EncodeArguments(NamedTuple):
    """The arguments of `encode` as given by the caller; see `functional.encode`."""

    positions: Any
    encoding: Any = None
    dim: Any = None
    dtype: Any = torch.float32
    allow_16bit: Any = False


def encode(given: EncodeArguments) -> Tensor:
    """`sinpe_ext.encode` of ordinary tensors."""
    refuse_jit_trace()
    encoding, dtype, dim = given.encoding, given.dtype, resolve.dim_beside(given.encoding, given.dim)
    is_grid = resolve.is_grid(encoding)
    if is_grid:
        dim, firsts = resolve.grid_dim_and_starts(encoding, dim)
    else:
        known = plans.encoding_arguments(encoding, dim)
        encoding = resolve.encoding(*known)
        dim = encoding.dim
    positions = checks.positions(given.positions, allow_16bit=given.allow_16bit)
    if is_grid and (positions.dim() < 1 or positions.shape[-1] != len(firsts)):
        raise ValueError(
            f"positions: expected {len(firsts)} coordinates, one per axis of the grid, in the last dimension, got "
            f"shape {tuple(positions.shape)}; stack them with torch.stack(coordinates, -1)"
        )
    checks.float_dtype("dtype", dtype)
    checks.addressable("positions", positions.numel(), dim, dtype)
    if is_grid:
        return grid_rows.encode(encoding, dim, positions, dtype)
    result = encoded_rows.encode(known, positions, dtype)
    _keep_encode(given, encoding, result)
    return result


def _keep_encode(given: EncodeArguments, encoding: Encoding, result: Tensor) -> None:
    """Keeps a call of `encode` for repetition."""
    positions = given.positions
    if not is_repeatable(result) or encoding.angle != "exact" or positions.dtype == torch.uint64:
        return
    call = repetition.Call(repetition.ENCODE, given)
    sizes, groups = tuple(-1 - d for d in range(positions.dim())), tuple((d,) for d in range(positions.dim()))
    convert: Any = None if positions.is_contiguous() else Tensor.contiguous
    if positions.dtype not in checks.POSITIONS:
        convert = Tensor.float if positions.is_floating_point() else Tensor.long
    operand, plan = call.tensor("positions", sizes, groups, convert), constant(pack_plan(encoding, result.device))
    constants = {"dim": constant(encoding.dim), "dtype": constant(result.dtype)}
    of_result, record = (*groups, (len(groups),)), None
    if result.requires_grad:
        record = call.recorder(encoded_rows.ENCODE, {"positions": operand, "plan": plan, **constants}, of_result)
    to = repetition.Result(sizes=(*sizes, encoding.dim), dtype=result.dtype, device=result.device)
    call.keep("encode", [operand, plan, repetition.result_of(of_result)], to, record)
