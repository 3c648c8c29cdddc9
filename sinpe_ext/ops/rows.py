"""The operators that make rows of an encoding: table, encode, add with dropout or of a grid, and row_dots, its adjoint.

Tensors are in canonical form: x and grad (batch, *middle, sequence, channels) or (sequence, channels), positions and
padding_mask (batch or 1, sequence), start positions (batch or 1, 1). `drop` counts the 65536ths that dropout drops;
`elements` (empty: row-major) are [first, *steps], the index in the whole tensor of the first element and what a step
along each dimension adds to it, which decide the mask (`reference/philox.py`). `plan` is always the int64 words of
`plan.Plan`, in CUDA memory for CUDA tensors, else on the CPU; `dim` repeats its width for the fake kernels, which see
no data.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times a slope. The sums over channels are the
operator `row_dots`, which makes rows and mask again instead of keeping them; its own derivative is made of the same
operators, so every order works.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..checks import position_range
from ..encodings.plan import Plan
from ..reference import apply, grid_add
from ..reference.tiles import accumulation, arranged
from ..runtime.observers import is_traced
from .operator import Operator, one_by_one
from .plan_words import decoded, derivative_constants


def first_position(plan: Plan, start: int, rows: int, positions: Tensor | None = None) -> int:
    """Where no positions are given; a graph calls with a start that no one has checked."""
    if positions is not None:
        return 0
    position_range(plan.start + start, rows)
    return plan.start + start


def derivative_plan(words: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The partner's words and the slopes of a plan, see `plan_words.py`."""
    if is_traced():
        return torch.ops.sinpe_ext.plan_partner.default(words), torch.ops.sinpe_ext.plan_slopes.default(words, dim)
    return derivative_constants(decoded(words), words.device)


def reduced(each: Tensor, positions: Tensor) -> Tensor:
    """(batch, *middle, sequence) or (sequence,) summed to the shape of positions, (batch or 1, sequence)."""
    each = each.sum(tuple(range(1, each.dim() - 1))) if each.dim() > 2 else each
    return (each if each.dim() > 1 else each.unsqueeze(0)).sum_to_size(positions.shape).to(positions.dtype)


def scaled(grad: Tensor, seed: Tensor | None, scale: float, drop: int, elements: list[int]) -> Tensor:
    """The gradient of the first summand: no pass over memory where there is nothing to do."""
    if drop:
        return DROPOUT(grad, seed, drop, scale, elements)
    return grad if scale == 1.0 else grad * scale


# -------------------------------------------------------------------------------------------------------- table


def _table(plan: Tensor, start: int, length: int, dim: int, dtype: torch.dtype) -> Tensor:
    known = decoded(plan)
    return reference.table(known, length, first_position(known, start, length), dtype)


TABLE = Operator(
    "table(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor",
    reference=_table,
    fake=lambda plan, start, length, dim, dtype: plan.new_empty((length, dim), dtype=dtype),
)


def _table_out(plan: Tensor, start: int, out: Tensor) -> None:
    out.copy_(_table(plan, start, out.shape[0], out.shape[1], out.dtype))


Operator(
    "table_out(Tensor plan, SymInt start, Tensor(a!) out) -> ()",
    reference=_table_out,
    fake=lambda *_: None,
)


# ------------------------------------------------------------------------------------------------------- encode


def _encode(positions: Tensor, plan: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return reference.encode(decoded(plan), positions, dtype)


def _encode_batched(
    info: Any, in_dims: Any, positions: Tensor, plan: Tensor, dim: int, dtype: torch.dtype
) -> tuple[Tensor, int]:
    return ENCODE.op(positions.movedim(in_dims[0], 0).contiguous(), plan, dim, dtype), 0


def _encode_setup(ctx: Any, inputs: Any, output: Any) -> None:
    positions, words, _, _ = inputs
    ctx.save_for_backward(positions, words)


def _encode_backward(ctx: Any, grad: Tensor) -> Any:
    positions, words = ctx.saved_tensors
    if not ctx.needs_input_grad[0]:
        return None, None, None, None
    dim = grad.shape[-1]
    partner, slopes = derivative_plan(words, dim)
    wide = grad.to(accumulation(grad.dtype, positions.dtype)).reshape(1, -1, dim)
    dots = ROW_DOTS(wide, partner, positions.reshape(1, -1), None, slopes, None, 0, False, 0, [])
    return dots.reshape(positions.shape).to(positions.dtype), None, None, None


ENCODE = Operator(
    "encode(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor",
    reference=_encode,
    fake=lambda positions, plan, dim, dtype: positions.new_empty((*positions.shape, dim), dtype=dtype),
    vmap=_encode_batched,
    derivative=(_encode_setup, _encode_backward),
)


# ---------------------------------------------------------------------------------- add, of implicit positions


def _add(x: Tensor, plan: Tensor, start: int, scale: float) -> Tensor:
    known = decoded(plan)
    return apply.add(known, x, None, first_position(known, start, x.shape[-2]), scale, 1.0, None)


def _add_batched(info: Any, in_dims: Any, x: Tensor, plan: Tensor, start: int, scale: float) -> tuple[Tensor, int]:
    return ADD.op(x.movedim(in_dims[0], 0), plan, start, scale), 0


def _add_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[3]


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    return scaled(grad, None, ctx.scale, 0, []), None, None, None


ADD = Operator(
    "add(Tensor x, Tensor plan, SymInt start, float scale) -> Tensor",
    reference=_add,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=_add_batched,
    derivative=(_add_setup, _add_backward),
)


def _add_out(
    x: Tensor,
    plan: Tensor,
    positions: Tensor | None,
    padding_mask: Tensor | None,
    start: int,
    positions_are_starts: bool,
    scale: float,
    alpha: float,
    out: Tensor,
) -> None:
    known = decoded(plan)
    first = first_position(known, start, x.shape[-2], positions)
    apply.add(known, x, positions, first, scale, alpha, padding_mask, out)


ADD_OUT = Operator(
    "add_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, SymInt start, bool positions_are_starts, "
    "float scale, float alpha, Tensor(a!) out) -> ()",
    reference=_add_out,
    fake=lambda *_: None,
)


# ------------------------------------------------------------------------------------------------------ dropout


def _dropout(x: Tensor, seed: Tensor | None, drop: int, scale: float, elements: list[int]) -> Tensor:
    return apply.dropout(x, seed, drop, scale, elements)


def _dropout_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, seed, ctx.drop, ctx.scale, ctx.elements = inputs
    ctx.save_for_backward(seed)


def _dropout_backward(ctx: Any, grad: Tensor) -> Any:
    (seed,) = ctx.saved_tensors
    return scaled(grad, seed, ctx.scale, ctx.drop, ctx.elements), None, None, None, None


DROPOUT = Operator(
    "dropout(Tensor x, Tensor? seed, int drop, float scale, SymInt[] elements) -> Tensor",
    reference=_dropout,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=one_by_one("dropout"),
    derivative=(_dropout_setup, _dropout_backward),
)


# -------------------------------------------------------------------------- add of everything, with dropout too


def _add_dropout(
    x: Tensor,
    plan: Tensor,
    positions: Tensor | None,
    padding_mask: Tensor | None,
    alpha: Tensor | None,
    seed: Tensor | None,
    start: int,
    positions_are_starts: bool,
    scale: float,
    drop: int,
    elements: list[int],
) -> Tensor:
    known = decoded(plan)
    first, factor = first_position(known, start, x.shape[-2], positions), 1.0 if alpha is None else alpha
    return apply.add(known, x, positions, first, scale, factor, padding_mask, seed=seed, drop=drop, elements=elements)


def _add_dropout_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, words, positions, mask, alpha, seed, ctx.start, ctx.are_starts, ctx.scale, ctx.drop, ctx.elements = inputs
    ctx.save_for_backward(words, positions, mask, alpha, seed)


def _add_dropout_backward(ctx: Any, grad: Tensor) -> Any:
    words, positions, mask, alpha, seed = ctx.saved_tensors
    to_x = to_alpha = to_positions = None
    if ctx.needs_input_grad[0]:
        to_x = scaled(grad, seed, ctx.scale, ctx.drop, ctx.elements)
    rest = seed, ctx.start, ctx.are_starts, ctx.drop, ctx.elements
    if ctx.needs_input_grad[4]:
        to_alpha = alpha_gradient(grad, words, positions, mask, alpha, rest)
    if ctx.needs_input_grad[2]:
        to_positions = position_gradient(grad, words, positions, mask, alpha, rest)
    return to_x, None, to_positions, None, to_alpha, *(None,) * 6


def alpha_gradient(
    grad: Tensor, words: Tensor, positions: Tensor | None, mask: Tensor | None, alpha: Tensor, rest: tuple[Any, ...]
) -> Tensor:
    """sum(G * PE); `rest` are the arguments of `row_dots` after slopes."""
    return ROW_DOTS(grad, words, positions, mask, None, *rest).sum().reshape(alpha.shape).to(alpha.dtype)


def position_gradient(
    grad: Tensor, words: Tensor, positions: Tensor, mask: Tensor | None, alpha: Tensor | None, rest: tuple[Any, ...]
) -> Tensor:
    """alpha * sum_c(G_c * PE'_c) of each row."""
    partner, slopes = derivative_plan(words, grad.shape[-1])
    each = ROW_DOTS(grad, partner, positions, mask, slopes, *rest)
    return reduced(each if alpha is None else each * alpha.double(), positions)


ADD_DROPOUT = Operator(
    "add_dropout(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements) -> Tensor",
    reference=_add_dropout,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=one_by_one("add_dropout"),
    derivative=(_add_dropout_setup, _add_dropout_backward),
)


class AddInPlace(torch.autograd.Function):
    """`add_dropout` that writes into x: its arguments, then the form of x and what does the work."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        *of_operator, ctx.form, write = arguments
        ctx.mark_dirty(x)
        _add_dropout_setup(ctx, (x, *of_operator), x)
        write()
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_x, *others = _add_dropout_backward(ctx, ctx.form.canonical(grads[0]))
        return None if to_x is None else ctx.form.restored(to_x), *others, None, None


def _add_dropout_out(
    x: Tensor,
    plan: Tensor,
    positions: Tensor | None,
    padding_mask: Tensor | None,
    seed: Tensor | None,
    start: int,
    positions_are_starts: bool,
    scale: float,
    alpha: float,
    drop: int,
    elements: list[int],
    out: Tensor,
) -> None:
    known = decoded(plan)
    first = first_position(known, start, x.shape[-2], positions)
    apply.add(known, x, positions, first, scale, alpha, padding_mask, out, seed=seed, drop=drop, elements=elements)


Operator(
    "add_dropout_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? seed, SymInt start, "
    "bool positions_are_starts, float scale, float alpha, int drop, SymInt[] elements, Tensor(a!) out) -> ()",
    reference=_add_dropout_out,
    fake=lambda *_: None,
)


# --------------------------------------------------------------------------------------------------- of a grid
# `grid` are the int64 words of a grid and `values` the rows of its axes (`calls/grid_rows.py`), where x is.


def _add_grid_out(
    x: Tensor,
    values: Tensor,
    grid: Tensor,
    padding_mask: Tensor | None,
    seed: Tensor | None,
    scale: float,
    drop: int,
    elements: list[int],
    out: Tensor,
) -> None:
    grid_add.add(values, grid, x, scale, padding_mask, out, seed=seed, drop=drop, elements=elements)


Operator(
    "add_grid_out(Tensor x, Tensor values, Tensor grid, Tensor? padding_mask, Tensor? seed, float scale, int drop, "
    "SymInt[] elements, Tensor(a!) out) -> ()",
    reference=_add_grid_out,
    fake=lambda *_: None,
)


# ----------------------------------------------------------------------------------------------------- row_dots


def _row_dots(
    grad: Tensor,
    plan: Tensor,
    positions: Tensor | None,
    padding_mask: Tensor | None,
    slopes: Tensor | None,
    seed: Tensor | None,
    start: int,
    positions_are_starts: bool,
    drop: int,
    elements: list[int],
) -> Tensor:
    known = decoded(plan)
    first = first_position(known, start, grad.shape[-2], positions)
    return apply.row_dots(known, grad, positions, first, padding_mask, slopes, seed=seed, drop=drop, elements=elements)


def _row_dots_setup(ctx: Any, inputs: Any, output: Any) -> None:
    grad, words, positions, mask, slopes, seed, ctx.start, ctx.are_starts, ctx.drop, ctx.elements = inputs
    ctx.save_for_backward(grad, words, positions, mask, slopes, seed)


def _row_dots_backward(ctx: Any, upstream: Tensor) -> Any:
    grad, words, positions, mask, slopes, seed = ctx.saved_tensors
    to_grad = to_positions = None
    dim, rank = grad.shape[-1], grad.dim()
    if ctx.needs_input_grad[0]:
        acc = accumulation(grad.dtype)
        if positions is None:
            rows = TABLE.op(words, ctx.start, grad.shape[-2], dim, acc).to(grad.device)
        else:
            at = positions + torch.arange(grad.shape[-2], device=grad.device) if ctx.are_starts else positions
            rows = ENCODE(at.contiguous(), words, dim, acc)
        rows = rows if slopes is None else rows * slopes.to(rows.device, acc)
        rows = rows if mask is None else rows.masked_fill(mask.unsqueeze(-1), 0.0)
        product = (upstream.to(acc).unsqueeze(-1) * arranged(rows, rank)).to(grad.dtype)
        to_grad = scaled(product, seed, 1.0, ctx.drop, ctx.elements)
    if ctx.needs_input_grad[2]:
        partner, further = derivative_plan(words, dim)
        further = further if slopes is None else further * slopes
        rest = seed, ctx.start, ctx.are_starts, ctx.drop, ctx.elements
        to_positions = reduced(ROW_DOTS(grad, partner, positions, mask, further, *rest) * upstream, positions)
    return to_grad, None, to_positions, *(None,) * 7


ROW_DOTS = Operator(
    "row_dots(Tensor grad, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? slopes, Tensor? seed, "
    "SymInt start, bool positions_are_starts, int drop, SymInt[] elements) -> Tensor",
    reference=_row_dots,
    fake=lambda grad, *_: grad.new_empty(grad.shape[:-1], dtype=torch.float64),
    vmap=one_by_one("row_dots"),
    derivative=(_row_dots_setup, _row_dots_backward),
)
