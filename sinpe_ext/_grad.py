"""Gradients: `add` and `encode` as autograd functions whose backward is written in differentiable operations.

d add / d x = scale, d add / d alpha = sum(grad * PE), and the derivative of a channel A sin(2 pi (p f + q/4)) with
respect to p is 2 pi f times the same channel a quarter turn ahead: the partner plan, up to the sign of its cosines.
Since `encode` of the partner is differentiable again, every order works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _float32_angle, _ops, _rows

if TYPE_CHECKING:
    from ._call import AddCall
    from .encoding import Encoding

_is_compiling = torch.compiler.is_compiling


def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which look into every operation."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class _Encode(torch.autograd.Function):
    """encode(positions); `words`, `partner` and `slopes` are the constants of an encoding, see `_ops`."""

    @staticmethod
    def forward(positions: Tensor, words: Tensor, partner: Tensor, slopes: Tensor, dtype: torch.dtype) -> Tensor:
        if _is_compiling():
            return torch.ops.sinpe_ext.encode.default(positions.contiguous(), words, slopes.shape[0], dtype)
        return _rows.encode(positions, words, slopes.shape[0], dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        positions, words, partner, slopes, ctx.dtype = inputs
        ctx.save_for_backward(positions, words, partner, slopes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        positions, words, partner, slopes = ctx.saved_tensors
        (grad,) = grads
        acc = torch.float64 if torch.float64 in (grad.dtype, positions.dtype) else torch.float32
        rows = derivative(positions, words, partner, slopes, acc)
        return (grad.to(acc) * rows).sum(-1).to(positions.dtype), None, None, None, None


class _EncodeTransformed(_Encode):
    """With what torch.func and forward mode need, and torch.compile refuses."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _Encode.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:4])

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        positions, words, partner, slopes = ctx.saved_tensors
        acc = torch.float64 if torch.float64 in (ctx.dtype, positions.dtype) else torch.float32
        return (tangent.to(acc).unsqueeze(-1) * derivative(positions, words, partner, slopes, acc)).to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: Any, positions: Tensor, *constants: Any) -> Any:
        return _EncodeTransformed.apply(positions.movedim(in_dims[0], 0), *constants), 0


def encode(positions: Tensor, words: Tensor, partner: Tensor, slopes: Tensor, dtype: torch.dtype) -> Tensor:
    """`encode` of checked float positions, differentiable."""
    if not _is_compiling() and is_transformed():
        return _EncodeTransformed.apply(positions, words, partner, slopes, dtype)
    return _Encode.apply(positions, words, partner, slopes, dtype)


def derivative(positions: Tensor, words: Tensor, partner: Tensor, slopes: Tensor, acc: torch.dtype) -> Tensor:
    """d encode / d positions in acc, (*positions.shape, dim), differentiable."""
    return encode(positions, partner, words, -slopes, acc) * slopes.to(positions.device, acc)


def encode_any(positions: Tensor, encoding: Encoding, dtype: torch.dtype) -> Tensor:
    """`encode` of checked arguments outside of a graph, differentiable where that is asked for."""
    if encoding.angle != "exact":
        return _float32_angle.encode(encoding, positions, dtype)
    if is_transformed() or (positions.requires_grad and torch.is_grad_enabled()):
        return encode(positions, *_ops.derivative_constants(encoding), dtype)
    return _rows.encode(positions, _ops.plan_words(encoding), encoding.dim, dtype)


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Any, positions: Any, call: AddCall, in_place: bool) -> Tensor:
        # `call` outlives this function and must not keep x alive: what backward reads of its tensors is saved below.
        _, to_alpha, to_positions, *_ = ctx.needs_input_grad
        mask = call.padding_mask
        if in_place:
            ctx.mark_dirty(x)
            call.run(call.canonical(x))
            out = x
        else:
            out = call.run()
        del call.x, call.view, call.alpha, call.positions, call.padding_mask
        ctx.call = call
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(
            alpha if isinstance(alpha, Tensor) and (to_alpha or to_positions) else None,
            positions if to_alpha or to_positions else None,
            mask if to_alpha or to_positions else None,
        )
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), call = grads, ctx.call
        alpha, positions, mask = ctx.saved_tensors
        to_x = to_alpha = to_positions = None
        if ctx.needs_input_grad[0]:
            to_x = grad * call.scale if call.scale != 1.0 else grad
        wide = call.canonical(grad).to(call.acc)
        if ctx.needs_input_grad[1]:
            products = call.masked(wide * call.rows(positions), mask, 0.0)
            to_alpha = products.sum().reshape(alpha.shape).to(alpha.dtype)
        if ctx.needs_input_grad[2]:
            slopes = call.arranged(derivative(positions, *_ops.derivative_constants(call.encoding), call.acc))
            products = wide * slopes * (ctx.alpha if alpha is None else alpha.to(call.acc))
            each = call.masked(products.sum(-1, keepdim=True), mask, 0.0).squeeze(-1)
            each = each.sum(tuple(range(1, each.dim() - 1))) if each.dim() > 2 else each.unsqueeze(0)
            to_positions = each.sum_to_size(positions.shape).to(positions.dtype)
        return to_x, to_alpha, to_positions, None, None


def add(call: AddCall) -> Tensor:
    """`add` of checked arguments."""
    if _is_compiling() or is_transformed():
        return call.traced()
    if not call.needs_grad():
        return call.run()
    return _Add.apply(call.x, call.alpha, call.positions, call, False)


def add_(call: AddCall) -> Tensor:
    """`add_` of checked arguments."""
    if _is_compiling() or is_transformed():
        return call.x.copy_(call.traced())
    if call.needs_grad():
        return _Add.apply(call.x, call.alpha, call.positions, call, True)
    call.run(call.canonical(call.x))
    torch.autograd.graph.increment_version(call.x)
    return call.x
