"""The derivative of `add` with a grid: that of `ops/rows.py` for each piece of the grid, on its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ops.rows import ROW_DOTS, position_gradient, row_dots_of, scaled
from ..reference.operands import Add, Dropout
from .grid_form import GridForm

if TYPE_CHECKING:
    from .grid_add import GridAdd


class DifferentiableGrid(torch.autograd.Function):
    """`add` with a grid, differentiable in x, alpha (a tensor or None) and positions ((1 or B, S, axes) or None); the
    result is written to x or to a new tensor."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, alpha: Tensor | None, positions: Tensor | None, call: GridAdd, into_x: bool
    ) -> Tensor:
        ctx.form, ctx.scale, ctx.drop_threshold = call.form, call.scale, call.drop_threshold
        ctx.pieces = [(p.axis, p.first, p.step, p.encoding.dim) for p in call.grid.pieces]
        ctx.packed_plans = [call.packed_plan_of(k) for k in range(len(ctx.pieces))]
        ctx.own_rng_offsets = [] if call.is_whole else call.form.own_rng_offsets
        ctx.rng_offsets = [call.rng_offsets_at(p.first, p.step) for p in call.grid.pieces]
        every = call.coordinates() if ctx.needs_input_grad[1] or ctx.needs_input_grad[2] else None
        ctx.save_for_backward(every if positions is None else positions, call.padding_mask, alpha, call.seed)
        if into_x:
            ctx.mark_dirty(x)
            return call.run(x)
        return call.run()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        positions, mask, alpha, seed = ctx.saved_tensors
        (grad,) = grads
        form: GridForm = ctx.form
        to_x = to_alpha = to_positions = None
        if ctx.needs_input_grad[0]:
            to_x = scaled(Dropout(grad, seed, ctx.drop_threshold, ctx.scale, ctx.own_rng_offsets))
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            places = form.canonical(grad)
            of_axes: list[Any] = [None] * positions.shape[-1]
            for (axis, first, step, count), packed_plan, rng_offsets in zip(
                ctx.pieces, ctx.packed_plans, ctx.rng_offsets, strict=True
            ):
                part = places[..., first : first + (count - 1) * step + 1 : step]
                at = positions[..., axis]
                a = Add(
                    part, packed_plan, at, mask, alpha, seed, drop_threshold=ctx.drop_threshold, rng_offsets=rng_offsets
                )
                if ctx.needs_input_grad[1]:
                    dots = ROW_DOTS(*row_dots_of(part, a)).sum()
                    to_alpha = dots if to_alpha is None else to_alpha + dots
                if ctx.needs_input_grad[2]:
                    one = position_gradient(part, a)
                    of_axes[axis] = one if of_axes[axis] is None else of_axes[axis] + one
            if to_alpha is not None:
                to_alpha = to_alpha.reshape(alpha.shape).to(alpha.dtype)
            if ctx.needs_input_grad[2]:
                zero = torch.zeros(positions.shape[:-1], dtype=positions.dtype, device=positions.device)
                to_positions = torch.stack([zero if one is None else one for one in of_axes], -1)
        return to_x, to_alpha, to_positions, None, None
