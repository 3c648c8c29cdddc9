"""Rows of an encoding for checked arguments, from the kernels or the reference implementation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..backend import loader
from ..encodings.encoding import Encoding
from ..encodings.plan import plan as _plan_of
from ..reference import float32_angle
from ..reference.tiles import accumulation
from ..runtime import observers
from ..runtime.observers import is_traced, is_transformed
from .packed_plan import decoded, derivative_constants, pack_plan
from .rows import ENCODE


def table(encoding: Encoding, length: int, start: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows at positions encoding.start + start, ..., encoding.start + start + length - 1, without autograd."""
    fx_tracing = observers.is_fx_tracing()
    if observers.no_data(device) and not fx_tracing:
        return torch.empty((length, encoding.dim), dtype=dtype, device=device)
    if encoding.angle != "exact":
        positions = torch.arange(length, device=device) + (encoding.start + start)
        return float32_angle.encode(encoding, positions, dtype)
    if fx_tracing or loader.compiled(device.type):
        packed_plan = pack_plan(encoding, device)
        try:
            return torch.ops.sinpe_ext.table.default(packed_plan, start, length, encoding.dim, dtype)
        except RuntimeError:
            torch.empty(
                (length, encoding.dim), dtype=dtype, device=device
            )  # if the memory was insufficient, torch's error says how much was needed
            raise
    return reference.table(_plan_of(encoding), length, encoding.start + start, dtype, device)


def rows_at(positions: Tensor, packed_plan: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Rows at int64, float32 or float64 positions, without autograd."""
    fx_tracing = observers.is_fx_tracing()
    if observers.no_data(positions.device) and not fx_tracing:
        return positions.new_empty((*positions.shape, dim), dtype=dtype)
    if fx_tracing or loader.compiled(positions.device.type):
        # When tracing, positions are not detached: their gradient may be needed when the graph runs.
        given = positions if fx_tracing else positions.detach()
        try:
            return torch.ops.sinpe_ext.encode.default(given.contiguous(), packed_plan, dim, dtype)
        except RuntimeError:
            torch.empty((*positions.shape, dim), dtype=dtype, device=positions.device)
            raise
    return reference.encode(decoded(packed_plan), positions.detach(), dtype)


class _EncodeTransformed(torch.autograd.Function):
    """encode(positions) for torch.func and forward-mode AD, which the operator's derivative does not support, and for
    fake tensors, which an operator does not accept together with a plan tensor."""

    @staticmethod
    def forward(
        positions: Tensor, packed_plan: Tensor, partner: Tensor, angular_frequencies: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return rows_at(positions, packed_plan, angular_frequencies.shape[0], dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        positions, packed_plan, partner, angular_frequencies, ctx.dtype = inputs
        ctx.save_for_backward(positions, packed_plan, partner, angular_frequencies)
        ctx.save_for_forward(positions, packed_plan, partner, angular_frequencies)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        positions, packed_plan, partner, angular_frequencies = ctx.saved_tensors
        (grad,) = grads
        acc = accumulation(grad.dtype, positions.dtype)
        rows = _derivative(positions, packed_plan, partner, angular_frequencies, acc)
        return (grad.to(acc) * rows).sum(-1).to(positions.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        positions, packed_plan, partner, angular_frequencies = ctx.saved_tensors
        acc = accumulation(ctx.dtype, positions.dtype)
        return (
            tangent.to(acc).unsqueeze(-1) * _derivative(positions, packed_plan, partner, angular_frequencies, acc)
        ).to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: Any, positions: Tensor, *constants: Any) -> Any:
        return _EncodeTransformed.apply(positions.movedim(in_dims[0], 0), *constants), 0


def _derivative(
    positions: Tensor, packed_plan: Tensor, partner: Tensor, angular_frequencies: Tensor, acc: torch.dtype
) -> Tensor:
    """d encode / d positions in dtype acc, (*positions.shape, dim), differentiable."""
    return _EncodeTransformed.apply(
        positions, partner, packed_plan, -angular_frequencies, acc
    ) * angular_frequencies.to(positions.device, acc)


def encode(positions: Tensor, encoding: Encoding, dtype: torch.dtype) -> Tensor:
    """`encode` of checked arguments outside of a graph, differentiable if positions require grad."""
    if encoding.angle != "exact":
        return float32_angle.encode(encoding, positions, dtype)
    packed_plan = pack_plan(encoding, positions.device)
    if is_transformed() or (is_traced() and positions.requires_grad):
        constants = derivative_constants(decoded(packed_plan), packed_plan.device)
        return _EncodeTransformed.apply(positions, packed_plan, *constants, dtype)
    if positions.requires_grad and torch.is_grad_enabled():
        return ENCODE(positions.contiguous(), packed_plan, encoding.dim, dtype)
    return rows_at(positions, packed_plan, encoding.dim, dtype)
