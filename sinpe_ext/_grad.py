"""Gradients: `add` and `encode` as autograd functions whose backward is written in differentiable operations.

d add / d x = scale, d add / d alpha = sum(grad * PE), and the derivative of a channel A sin(2 pi (p f + q/4)) with respect to
p is 2 pi f times the same channel a quarter turn ahead: the partner plan, up to the sign of its cosines. Since `encode` of
the partner is differentiable again, every order works.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from . import _backend, reference
from ._call import AddCall
from ._ops import plan_tensor
from ._plan import Plan


def encode_rows(positions: torch.Tensor, plan: Plan, dtype: torch.dtype) -> torch.Tensor:
    """`encode` of checked arguments, without autograd."""
    if positions.device.type == "meta":
        return positions.new_empty((*positions.shape, plan.dim), dtype=dtype)
    compiling = torch.compiler.is_compiling()
    if compiling or (positions.device.type == "cpu" and _backend.compiled("cpu")):
        words = plan_tensor(plan)
        return torch.ops.sinpe_ext.encode.default(positions.detach().contiguous(), words, plan.dim, dtype)
    return reference.encode(plan, positions.detach(), dtype)


@lru_cache(maxsize=64)
def _slopes(plan: Plan) -> torch.Tensor:
    """2 pi f of each channel, negative where the channel is a cosine (its partner, a sine, enters with a minus)."""
    signs = [0.0 if entry is None else (-1.0 if entry[1] else 1.0) for entry in plan.channels()]
    return torch.tensor(
        [2 * math.pi * f * s for f, s in zip(plan.channel_turns(), signs, strict=True)], dtype=torch.float64
    )


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, positions: torch.Tensor, plan: Plan, dtype: torch.dtype) -> torch.Tensor:
        ctx.plan = plan
        ctx.save_for_backward(positions)
        return encode_rows(positions, plan, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (positions,), (grad,), plan = ctx.saved_tensors, grads, ctx.plan
        acc = torch.float64 if torch.float64 in (grad.dtype, positions.dtype) else torch.float32
        partner = encode(positions, plan.partner(), acc)
        slopes = _slopes(plan).to(positions.device, acc)
        return (grad.to(acc) * partner * slopes).sum(-1).to(positions.dtype), None, None


def encode(positions: torch.Tensor, plan: Plan, dtype: torch.dtype) -> torch.Tensor:
    """`encode` of checked float positions, differentiable."""
    return _Encode.apply(positions, plan, dtype)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, alpha: Any, positions: Any, call: AddCall, in_place: bool) -> torch.Tensor:
        ctx.call = call
        ctx.save_for_backward(
            alpha if isinstance(alpha, torch.Tensor) else None, positions if ctx.needs_input_grad[2] else None
        )
        if not in_place:
            return call.run()
        ctx.mark_dirty(x)
        call.run(call.canonical(x))
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), call = grads, ctx.call
        alpha, positions = ctx.saved_tensors
        to_x = to_alpha = to_positions = None
        if ctx.needs_input_grad[0]:
            to_x = grad * call.scale if call.scale != 1.0 else grad
        acc = call.acc()
        wide = call.canonical(grad).to(acc)
        if ctx.needs_input_grad[1]:
            to_alpha = (wide * call.rows(positions)).sum().reshape(alpha.shape).to(alpha.dtype)
        if ctx.needs_input_grad[2]:
            slopes = encode(positions, call.plan.partner(), acc) * _slopes(call.plan).to(positions.device, acc)
            if call.padding_mask is not None:
                slopes = slopes.masked_fill(call.padding_mask.unsqueeze(-1), 0.0)
            factor = alpha.to(acc) if alpha is not None else call.alpha
            each = (wide * call.arranged(slopes) * factor).sum(-1)
            if each.dim() > 2:
                each = each.sum(tuple(range(1, each.dim() - 1)))
            to_positions = each.sum_to_size(positions.shape).to(positions.dtype)
        return to_x, to_alpha, to_positions, None, None


def add(call: AddCall) -> torch.Tensor:
    """`add` of checked arguments."""
    if torch.compiler.is_compiling():
        return call.traced()
    if not call.needs_grad():
        return call.run()
    return _Add.apply(call.x, call.alpha, call.positions, call, False)


def add_(call: AddCall) -> torch.Tensor:
    """`add_` of checked arguments."""
    if torch.compiler.is_compiling():
        return call.x.copy_(call.traced())
    if call.needs_grad():
        return _Add.apply(call.x, call.alpha, call.positions, call, True)
    call.run(call.canonical(call.x))
    torch.autograd.graph.increment_version(call.x)
    return call.x
