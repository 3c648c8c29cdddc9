"""The operators that generate rows of an encoding: table, encode, add, add with dropout or a grid, and their adjoint.

Tensors are in canonical form: x and grad (batch, *middle, sequence, channels) or (sequence, channels), positions and
padding_mask (batch or 1, sequence), start positions (batch or 1, 1). `drop` (`drop_threshold` in Python) is the dropout
probability in units of 1 / 65536. `elements` (`rng_offsets` in Python) is [first, *steps], the index in the whole
tensor of the first element and the increment of that index along each dimension (empty: row-major); it determines the
mask (`reference/philox.py`). `plan` is always a plan packed into int64 words (`plan.Plan`), in CUDA memory for CUDA
tensors, else on the CPU; `dim` repeats its number of channels for the fake kernels, which see no data.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times its angular frequency, the argument
`slopes` of the operators (`angular_frequencies` in Python). The operator `row_dots` computes the sums over channels,
and `add_backward` these and d x in one pass over grad; they recompute rows and mask instead of storing them, and their
own derivatives consist of the same operators, so derivatives of every order work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..checks import position_range
from ..reference import apply, grid_add
from ..reference.operands import Add, AddBackward, AddGrid, Dropout, Embed, RowDots, save, saved
from ..reference.tiles import accumulation, arranged
from ..runtime.observers import is_traced
from .operator import Operator, one_by_one
from .packed_plan import decoded, derivative_constants


def derivative_plan(packed_plan: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The packed partner plan and the angular frequencies of a plan, see `packed_plan.py`."""
    if is_traced():
        return torch.ops.sinpe_ext.plan_partner.default(packed_plan), torch.ops.sinpe_ext.plan_slopes.default(
            packed_plan, dim
        )
    return derivative_constants(decoded(packed_plan), packed_plan.device)


def reduced(each: Tensor, positions: Tensor) -> Tensor:
    """Sums a gradient of shape (batch, *middle, sequence) or (sequence,) to the shape of positions, (batch or 1,
    sequence)."""
    each = each.sum(tuple(range(1, each.dim() - 1))) if each.dim() > 2 else each
    return (each if each.dim() > 1 else each.unsqueeze(0)).sum_to_size(positions.shape).to(positions.dtype)


def scaled(d: Dropout) -> Tensor:
    """The gradient with respect to x: d.x with dropout and scale applied, or d.x itself without dropout and scale."""
    if d.drop_threshold:
        return DROPOUT(*d)
    return d.x if d.scale == 1.0 else d.x * d.scale


# -------------------------------------------------------------------------------------------------------- table


def _table(plan: Tensor, start: int, length: int, dim: int, dtype: torch.dtype) -> Tensor:
    known = decoded(plan)
    position_range(known.start + start, length)  # a graph may pass an unchecked start
    return reference.table(known, length, known.start + start, dtype)


TABLE = Operator(
    "table(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor",
    reference=_table,
    fake=lambda plan, start, length, dim, dtype: plan.new_empty((length, dim), dtype=dtype),
)


def _table_out(plan: Tensor, start: int, out: Tensor) -> None:
    out.copy_(_table(plan, start, out.shape[0], out.shape[1], out.dtype))


TABLE_OUT = Operator(
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
    positions, packed_plan, _, _ = inputs
    ctx.save_for_backward(positions, packed_plan)


def _encode_backward(ctx: Any, grad: Tensor) -> Any:
    positions, packed_plan = ctx.saved_tensors
    if not ctx.needs_input_grad[0]:
        return None, None, None, None
    dim = grad.shape[-1]
    partner, angular_frequencies = derivative_plan(packed_plan, dim)
    wide = grad.to(accumulation(grad.dtype, positions.dtype)).reshape(1, -1, dim)
    dots = ROW_DOTS(*RowDots(wide, partner, positions.reshape(1, -1), angular_frequencies=angular_frequencies))
    return dots.reshape(positions.shape).to(positions.dtype), None, None, None


ENCODE = Operator(
    "encode(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor",
    reference=_encode,
    fake=lambda positions, plan, dim, dtype: positions.new_empty((*positions.shape, dim), dtype=dtype),
    vmap=_encode_batched,
    derivative=(_encode_setup, _encode_backward),
)


# ------------------------------------------------------------------------------------------------------ dropout


def _dropout(*operands: Any) -> Tensor:
    return apply.dropout(Dropout(*operands))


def _dropout_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, Dropout(*inputs), "x")


def _dropout_backward(ctx: Any, grad: Tensor) -> Any:
    return scaled(saved(ctx)._replace(x=grad)), None, None, None, None


DROPOUT = Operator(
    "dropout(Tensor x, Tensor? seed, int drop, float scale, SymInt[] elements) -> Tensor",
    reference=_dropout,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=one_by_one("dropout"),
    derivative=(_dropout_setup, _dropout_backward),
)


# ---------------------------------------------------------------------------------------------------------- add


def _add(*operands: Any) -> Tensor:
    a = Add(*operands)
    return apply.add(decoded(a.plan), a)


def _add_batched(info: Any, in_dims: Any, *operands: Any) -> tuple[Tensor, int]:
    """The samples are one more dimension of x, if there is no dropout and nothing else has samples or a batch."""
    a, (of_x, *others) = Add(*operands), in_dims
    shared = all(t is None or len(t) == 1 for t in (a.positions, a.padding_mask))
    if a.drop_threshold or not shared or any(isinstance(d, int) for d in others):
        return one_by_one("add")(info, in_dims, *operands)
    return ADD.op(*a._replace(x=a.x.movedim(of_x, 0), rng_offsets=[])), 0


def _add_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, Add(*inputs), "x")


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    a: Add = saved(ctx)
    needs = Add(*ctx.needs_input_grad[: len(Add._fields)])  # AddInPlace has two more arguments
    to_x = to_alpha = None
    if needs.x and needs.alpha and (a.drop_threshold or a.scale != 1.0):
        rows = a.plan, a.positions, a.padding_mask, a.seed, a.start, a.positions_are_starts
        to_x, dots = ADD_BACKWARD(grad, *rows, a.scale, a.drop_threshold, a.rng_offsets)
        to_alpha = summed(dots, a)
    else:
        if needs.x:
            to_x = scaled(Dropout(grad, a.seed, a.drop_threshold, a.scale, a.rng_offsets))
        if needs.alpha:
            to_alpha = alpha_gradient(grad, a)
    to_positions = position_gradient(grad, a) if needs.positions else None
    return to_x, None, to_positions, None, to_alpha, *(None,) * 6


def row_dots_of(grad: Tensor, a: Add | Embed) -> RowDots:
    """The operands of `row_dots` for the rows that `a` adds."""
    rows = a.plan, a.positions, a.padding_mask, None, a.seed, a.start, a.positions_are_starts
    return RowDots(grad, *rows, a.drop_threshold, a.rng_offsets)


def alpha_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d alpha = sum(G * PE)."""
    return summed(ROW_DOTS(*row_dots_of(grad, a)), a)


def summed(dots: Tensor, a: Add | Embed) -> Tensor:
    """The gradient with respect to alpha, from the results of `row_dots`."""
    assert isinstance(a.alpha, Tensor)
    return dots.sum().reshape(a.alpha.shape).to(a.alpha.dtype)


def position_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d p = alpha * sum_c(G_c * PE'_c) for each row."""
    assert a.positions is not None
    partner, angular_frequencies = derivative_plan(a.plan, grad.shape[-1])
    each = ROW_DOTS(*row_dots_of(grad, a)._replace(plan=partner, angular_frequencies=angular_frequencies))
    return reduced(each * a.alpha.double() if isinstance(a.alpha, Tensor) else each, a.positions)


ADD = Operator(
    "add(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements) -> Tensor",
    reference=_add,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=_add_batched,
    derivative=(_add_setup, _add_backward),
)


class AddInPlace(torch.autograd.Function):
    """In-place `add`: takes its arguments, then the `Form` of x and a function that writes the result to x."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *operands, ctx.form, write = arguments
        ctx.mark_dirty(operands[0])
        _add_setup(ctx, operands, None)
        write()
        return operands[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_x, *others = _add_backward(ctx, ctx.form.canonical(grads[0]))
        return None if to_x is None else ctx.form.restored(to_x), *others, None, None


def _add_out(*operands: Any) -> None:
    *of_sum, out = operands
    a = Add(*of_sum)
    apply.add(decoded(a.plan), a, out)


ADD_OUT = Operator(
    "add_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements, Tensor(a!) out) -> ()",
    reference=_add_out,
    fake=lambda *_: None,
)


# ---------------------------------------------------------------------------------------------- add with a grid
# `grid` is a grid packed into int64 words, `values` the rows of its axes (`calls/grid_rows.py`), on the device of x.


def _add_grid_out(*operands: Any) -> None:
    *of_sum, out = operands
    grid_add.add(AddGrid(*of_sum), out)


ADD_GRID_OUT = Operator(
    "add_grid_out(Tensor x, Tensor values, Tensor grid, Tensor? padding_mask, Tensor? seed, float scale, int drop, "
    "SymInt[] elements, Tensor(a!) out) -> ()",
    reference=_add_grid_out,
    fake=lambda *_: None,
)


# ----------------------------------------------------------------------------------------------------- row_dots


def _row_dots(*operands: Any) -> Tensor:
    a = RowDots(*operands)
    return apply.row_dots(decoded(a.plan), a)


def _row_dots_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, RowDots(*inputs))


def _row_dots_backward(ctx: Any, upstream: Tensor) -> Any:
    to_grad, to_positions = row_dots_gradients(saved(ctx), upstream, ctx.needs_input_grad)
    return to_grad, None, to_positions, *(None,) * 7


def row_dots_gradients(a: RowDots, upstream: Tensor, needs: Any) -> tuple[Tensor | None, Tensor | None]:
    """The gradients with respect to grad and positions, the first and the third operand."""
    to_grad = to_positions = None
    dim, rank = a.grad.shape[-1], a.grad.dim()
    if needs[0]:
        acc, device = accumulation(a.grad.dtype), a.grad.device
        if a.positions is None:
            rows = TABLE.op(a.plan, a.start, a.grad.shape[-2], dim, acc).to(device)
        else:
            ahead = torch.arange(a.grad.shape[-2], device=device) if a.positions_are_starts else None
            at = a.positions if ahead is None else a.positions + ahead
            rows = ENCODE(at.contiguous(), a.plan, dim, acc)
        rows = rows if a.angular_frequencies is None else rows * a.angular_frequencies.to(rows.device, acc)
        rows = rows if a.padding_mask is None else rows.masked_fill(a.padding_mask.unsqueeze(-1), 0.0)
        product = (upstream.to(acc).unsqueeze(-1) * arranged(rows, rank)).to(a.grad.dtype)
        to_grad = scaled(Dropout(product, a.seed, a.drop_threshold, 1.0, a.rng_offsets))
    if needs[2]:
        assert a.positions is not None
        partner, further = derivative_plan(a.plan, dim)
        further = further if a.angular_frequencies is None else further * a.angular_frequencies
        to_positions = reduced(ROW_DOTS(*a._replace(plan=partner, angular_frequencies=further)) * upstream, a.positions)
    return to_grad, to_positions


ROW_DOTS = Operator(
    "row_dots(Tensor grad, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? slopes, Tensor? seed, "
    "SymInt start, bool positions_are_starts, int drop, SymInt[] elements) -> Tensor",
    reference=_row_dots,
    fake=lambda grad, *_: grad.new_empty(grad.shape[:-1], dtype=torch.float64),
    vmap=one_by_one("row_dots"),
    derivative=(_row_dots_setup, _row_dots_backward),
)


# ------------------------------------------------------------------------------------------------ add_backward


def _gradients(*operands: Any) -> tuple[Tensor, Tensor]:
    b = AddBackward(*operands)
    return apply.dropout(b.to_x()), apply.row_dots(decoded(b.plan), b.row_dots())


def _gradients_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, AddBackward(*inputs))


def _gradients_backward(ctx: Any, of_x: Tensor, of_dots: Tensor) -> Any:
    b: AddBackward = saved(ctx)
    to_grad, to_positions = row_dots_gradients(b.row_dots(), of_dots, ctx.needs_input_grad)
    if to_grad is not None:
        to_grad = to_grad + scaled(b.to_x()._replace(x=of_x))
    return to_grad, None, to_positions, *(None,) * 7


# The gradient with respect to x, and the result of `row_dots`, in one pass over grad.
ADD_BACKWARD = Operator(
    "add_backward(Tensor grad, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? seed, SymInt start, "
    "bool positions_are_starts, float scale, int drop, SymInt[] elements) -> (Tensor, Tensor)",
    reference=_gradients,
    fake=lambda grad, *_: (torch.empty_like(grad), grad.new_empty(grad.shape[:-1], dtype=torch.float64)),
    vmap=one_by_one("add_backward"),
    derivative=(_gradients_setup, _gradients_backward),
)
