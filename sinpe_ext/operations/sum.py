"""dropout(scale * data + alpha * PE): the checked arguments that `add` and `embed` have in common, and the sum in torch
operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_state
from ..encodings import resolve, values
from ..encodings.plan import plan as plan_of
from ..encodings.tracing import refuse_jit_trace
from ..encodings.values import DROP_UNIT
from ..records import Dropout
from ..reference import philox
from ..reference.tiles import accumulation, arranged, widest
from . import checks, dropout, encoded_rows, grid_rows, plans, repetition
from .dropout import DROPOUT
from .layout import Layout
from .repetition import constant


class Sum(NamedTuple):
    """The checked arguments. Tensors are in canonical form (`layout.py`).

    Attributes:
        state: what intercepts the call.
        layout: the layout of the result.
        device, dtype: those of the result.
        has_own_dispatch: whether x or weight is of a tensor subclass that runs the operations on it itself.
        has_no_data: whether tensors have shapes but no data: on the meta device, or under a FakeTensorMode.
        encoding: what `resolve.encoding` takes; for a grid with channel groups, (grid, dim, columns of a shard).
        is_grid: whether the encoding is a grid.
        has_groups: whether the channels have several encodings, those of a grid's channel groups.
        firsts: the start of the encoding, or of those of a grid's axes.
        start: one int per axis, relative to `firsts` and, of a shard, including its first row; or 0-d tensors.
        positions: (1 or B, S), for channel groups (1 or B, S, axes); None: implicit.
        positions_are_starts: whether positions is (1 or B, 1), the positions of the first rows.
        padding_mask: (1 or B, S), True = padding.
        alpha: None for 1.
        drop_threshold: as in `Dropout`, 0 for empty data.
        seed: as given; after `drawn`, a tensor if dropout is random.
        needs_grad, rows_need_grad: whether a gradient is needed, and whether one of alpha or positions is.
        uses_operator: whether an operator computes the result. Otherwise torch operations do, which a compiler can fuse
            with others and torch.func can transform.
    """

    state: torch_state.TorchState
    layout: Layout
    device: torch.device
    dtype: torch.dtype
    has_own_dispatch: bool
    has_no_data: bool
    encoding: plans.EncodingArguments
    is_grid: bool
    has_groups: bool
    firsts: tuple[int, ...]
    start: tuple[Any, ...]
    positions: Tensor | None
    positions_are_starts: bool
    padding_mask: Tensor | None
    scale: float
    alpha: float | Tensor | None
    drop_threshold: int
    seed: Any
    needs_grad: bool
    rows_need_grad: bool
    uses_operator: bool

    def drawn(self) -> Sum:
        """With the seed as a tensor, drawn if none was given; after all checks, so that a call that raises does not
        advance the generator."""
        is_random = 0 < self.drop_threshold < DROP_UNIT
        return self._replace(seed=dropout.seed_tensor(self.seed, self.device) if is_random else None)

    def plan(self) -> Tensor:
        """The plan as the operators take it."""
        if self.state.compiling:
            return plans.graph_plan(*self.encoding, self.device)
        return plans.plan_tensor(plan_of(resolve.encoding(*self.encoding)), self.device)

    def alpha_tensor(self) -> Tensor | None:
        """alpha as the operators take it."""
        if self.alpha is None or isinstance(self.alpha, Tensor):
            return self.alpha
        return dropout.number(self.alpha, widest(self.device), self.device)

    def rng_offsets(self, is_ordered: bool) -> list[int]:
        """Those of the canonical form, empty if its row-major order is that of the whole tensor; never empty in a
        graph: AOTInductor reads an empty list back as None."""
        is_default = is_ordered and self.layout.part is None
        return [] if is_default and not self.state.compiling else self.layout.rng_offsets()

    def added(self, data: Tensor) -> Tensor:
        """scale * data + alpha * PE in the type of the sum, for data in canonical form; differentiable."""
        layout, acc, positions = self.layout, accumulation(self.dtype), self.positions
        if self.has_groups:
            value, dim = self.encoding[0], layout.width
            if positions is None:
                rows = grid_rows.table(value, dim, layout.lengths, self.start, acc, self.device).reshape(-1, dim)
            else:
                rows = grid_rows.encode(value, dim, positions, acc)
            rows = rows if layout.columns is None else rows.narrow(-1, *layout.columns)
        elif positions is None:
            rows = encoded_rows.table(self.encoding, layout.rows, self.start[0], acc, self.device)
        else:
            positions = encoded_rows.row_positions(positions, self.positions_are_starts, layout.rows)
            rows = encoded_rows.encode(self.encoding, positions, acc)
        rank = len(layout.batch_at) + 2
        rows = arranged(rows, rank)
        if self.alpha is not None:
            rows = rows * (self.alpha.to(acc) if isinstance(self.alpha, Tensor) else self.alpha)
        if self.padding_mask is not None:
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 into +0.0. Not torch.where, which would copy the
            # number to the device and wait for it.
            rows = rows.masked_fill(arranged(self.padding_mask.unsqueeze(-1), rank), -0.0)
        return self.scaled(data) + rows

    def scaled(self, data: Tensor) -> Tensor:
        """scale * data in the type of the sum."""
        data = data.to(accumulation(self.dtype))
        return data if checks.is_one(self.scale) else data * self.scale

    def dropped(self, total: Tensor) -> Tensor:
        """Dropout of a sum in the layout of the result, in its dtype, differentiable; under torch.func the mask is
        computed in torch operations."""
        if not self.drop_threshold:
            return total.to(self.dtype)
        rng_offsets = self.layout.own_rng_offsets()
        d = Dropout(total, self.seed, self.drop_threshold, 1.0, rng_offsets)
        if not self.state.transformed and not (self.has_own_dispatch and torch_state.has_own_dispatch(total)):
            return DROPOUT(d).to(self.dtype)
        if self.state.compiling:
            ones = torch.ones(total.shape, dtype=total.dtype, device=self.device)
            keep = DROPOUT(d._replace(x=ones)) != 0
        else:
            keep = philox.keep(self.seed, self.drop_threshold, total.shape, rng_offsets, self.device)
        return (total * philox.kept_scale(self.drop_threshold)).masked_fill(~keep, 0.0).to(self.dtype)


def check_sum(name: str, data: Tensor, arguments: Any, layout: Layout, grid: Any = None) -> Sum:
    """Checks the arguments that `add` and `embed` have in common.

    Args:
        name, data: "x" and x, or "weight" and weight, whose channels must be those of the encoding.
        arguments: as given by the caller.
        layout: the layout of the result.
        grid: of an encoding that is a grid, the result of `grid_rows.outline`.
    """
    a, target, state, width = arguments, layout.target, torch_state.read(), layout.width
    if state.jit_tracing:
        refuse_jit_trace()
    if state.context_parallel and a.positions is None:
        checks.refuse_in_context_parallel()
    has_own_dispatch = type(data) not in torch_state.PLAIN and torch_state.has_own_dispatch(data)
    if has_own_dispatch:
        state = state._replace(must_decompose=True)
    has_no_data, is_empty, is_grid = state.fake or data.is_meta, 0 in layout.shape, grid is not None

    encoding: plans.EncodingArguments = a.encoding, width, layout.columns
    has_groups = False
    if is_grid:
        dim, firsts, is_exact, is_sequence = grid
        has_groups = not is_sequence or layout.columns is not None
        encoding = encoding if has_groups else (a.encoding, width, 0)
    else:
        resolved = resolve.encoding(*encoding)
        is_exact, firsts = resolved.angle == "exact", (resolved.start,)
        dim = resolved.dim if layout.columns is None else resolve.encoding(a.encoding, width).dim
    if width != dim and (a.encoding is not None or width):
        checks.refuse_channels(name, data.shape, width, dim)

    drop_threshold = 0 if type(a.dropout) is float and a.dropout == 0.0 else values.drop_threshold(a.dropout)
    scale = a.scale if type(a.scale) is float else checks.number("scale", a.scale)
    alpha: float | Tensor | None = a.alpha if type(a.alpha) is float else checks.alpha(a.alpha, target)
    if isinstance(alpha, (float, torch.SymFloat)) and (checks.is_one(alpha) if state.compiling else alpha == 1.0):
        alpha = None
    seed = None if a.seed is None else checks.seed(a.seed, data.device)
    mask = None if a.padding_mask is None else checks.padding_mask(a.padding_mask, target)
    positions, are_starts = None, False
    if a.positions is None:
        lengths = layout.lengths if has_groups else (layout.whole_rows,)
        start: Any = checks.starts(a.start, firsts, lengths, is_grid, data.device, target)
        if isinstance(start, Tensor):
            start, positions, are_starts = _start_tensor(start, layout, firsts, has_groups)
        elif layout.part is not None:
            start = tuple([first + layout.row_offset for first in start])
    else:
        start, positions = (0,) * len(firsts), _check_positions(a, target, firsts, is_grid, has_groups)

    can_need_grad = torch.is_grad_enabled()
    rows_need_grad = can_need_grad and any([isinstance(t, Tensor) and t.requires_grad for t in (alpha, positions)])
    data_needs_grad = can_need_grad and data.requires_grad
    if not is_exact or has_no_data or is_empty:
        uses_operator = False
    elif not state.compiling or has_own_dispatch:
        uses_operator = not state.must_decompose
    else:
        # An operator generates the mask several times faster than compiled loops. The compiler would sum the gradient
        # of weight in no fixed order.
        is_better = drop_threshold or (name == "weight" and data_needs_grad)
        uses_operator = bool(is_better) and not state.transformed and not torch_state.is_exporting()
    return Sum(
        state, layout, data.device, data.dtype, has_own_dispatch, has_no_data, encoding, is_grid, has_groups, firsts,
        start, positions, are_starts, mask, scale, alpha, 0 if is_empty else drop_threshold, seed,
        data_needs_grad or rows_need_grad, rows_need_grad, uses_operator,
    )  # fmt: skip


def _check_positions(a: Any, target: checks.Target, firsts: tuple[int, ...], is_grid: bool, has_groups: bool) -> Tensor:
    """`Sum.positions` for explicit positions."""
    checks.start_beside_positions(a.start)
    axes = len(firsts) if is_grid else None
    positions = checks.of_rows("positions", checks.positions(a.positions), target, axes)
    return positions if has_groups or axes is None else positions.select(-1, 0)


def _start_tensor(
    start: Tensor, layout: Layout, firsts: tuple[int, ...], has_groups: bool
) -> tuple[tuple[Any, ...], Tensor | None, bool]:
    """(start, positions, positions_are_starts) of `Sum` for a start of shape (1 or B, axes)."""
    none = (0,) * len(firsts)
    if not has_groups:
        ahead = firsts[0] + layout.row_offset
        return none, start + ahead if ahead else start, True
    if start.shape[0] == 1:
        return start.select(0, 0).unbind(), None, False  # not start[0], which needs CUDA also for fake tensors
    axes = [torch.arange(size, device=start.device) + first for size, first in zip(layout.lengths, firsts, strict=True)]
    coordinates = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(firsts))
    return none, coordinates + start.unsqueeze(1), False


def sum_operands(
    call: repetition.Call, of: Sum, operands: Any, rows: repetition.Code, batch: repetition.Code
) -> dict[str, Any]:
    """Guards of the arguments that `add` and `embed` have in common, and where the operands come from.

    Args:
        operands: those of the checked call, the constants of those that come from no argument.
        rows, batch: the sizes of the rows and of the batch.
    """
    a = call.arguments
    sources = {name: (repetition.CONSTANT, value, ()) for name, value in zip(operands._fields, operands, strict=True)}
    sources["scale"] = call.factor("scale")
    sources["seed"] = call.seed(0 < of.drop_threshold < DROP_UNIT, of.device)
    if not of.has_groups:
        sources["alpha"] = call.alpha()
        if of.positions is None and type(a.start) is int:
            sources["start"] = call.start(of.firsts[0], rows)
    # The start of a sequence in a tensor, whose value Python may have read; derivatives would save the tensor.
    if of.positions_are_starts or (isinstance(a.start, Tensor) and not of.has_groups and not of.rows_need_grad):
        sources["positions"] = call.starts(of.firsts[0], batch)
        sources["start"], sources["positions_are_starts"] = constant(0), constant(True)
    elif of.positions is not None:
        is_narrow = a.positions.dtype not in checks.POSITIONS
        sources["positions"] = call.rows("positions", rows, batch, of.positions, Tensor.long if is_narrow else None)
    if of.padding_mask is not None:
        sources["padding_mask"] = call.rows("padding_mask", rows, batch, of.padding_mask)
    return sources
