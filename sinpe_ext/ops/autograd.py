"""Derivatives, each formula once: for the operators (torch.compile, direct calls) and for the functions' eager calls.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times a slope. The sums over channels are the
operator `row_dots`, which makes rows and mask again instead of keeping them; its own derivative is made of the same
operators, so every order works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from ..reference import float32_angle
from ..reference.tiles import accumulation, arranged
from ..runtime.observers import is_traced, is_transformed
from . import encoded_rows, schemas
from .dispatch import ADD, ADD_DROPOUT, DROPOUT, EMBED, EMBED_BACKWARD, ENCODE, ROW_DOTS, TABLE

if TYPE_CHECKING:
    from ..encodings.encoding import Encoding


def derivative_plan(words: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The partner's words and the slopes of a plan, see `plan_words.py`."""
    if is_traced():
        return torch.ops.sinpe_ext.plan_partner.default(words), torch.ops.sinpe_ext.plan_slopes.default(words, dim)
    return schemas.derivative_constants(schemas.decoded(words), words.device)


def reduced(each: Tensor, positions: Tensor) -> Tensor:
    """(batch, *middle, sequence) or (sequence,) summed to the shape of positions, (batch or 1, sequence)."""
    each = each.sum(tuple(range(1, each.dim() - 1))) if each.dim() > 2 else each
    return (each if each.dim() > 1 else each.unsqueeze(0)).sum_to_size(positions.shape).to(positions.dtype)


def scaled(grad: Tensor, seed: Tensor | None, scale: float, drop: int, elements: list[int]) -> Tensor:
    """The gradient of the first summand: no pass over memory where there is nothing to do."""
    if drop:
        return DROPOUT(grad, seed, drop, scale, elements)
    return grad if scale == 1.0 else grad * scale


# Of each operator: what backward needs, then the gradients of its arguments in their order.


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


def _add_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[3]


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    return scaled(grad, None, ctx.scale, 0, []), None, None, None


def _dropout_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, seed, ctx.drop, ctx.scale, ctx.elements = inputs
    ctx.save_for_backward(seed)


def _dropout_backward(ctx: Any, grad: Tensor) -> Any:
    (seed,) = ctx.saved_tensors
    return scaled(grad, seed, ctx.scale, ctx.drop, ctx.elements), None, None, None, None


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


def _embed_setup(ctx: Any, inputs: Any, output: Any) -> None:
    ids, weight, words, positions, mask, alpha, seed, ctx.start, ctx.are_starts, *rest = inputs
    ctx.scale, ctx.padding_idx, ctx.sparse, ctx.drop, ctx.elements = rest
    ctx.num_embeddings = weight.shape[0]
    ctx.save_for_backward(ids, words, positions, mask, alpha, seed)


def _embed_grad(ctx: Any, grad: Tensor) -> Any:
    ids, words, positions, mask, alpha, seed = ctx.saved_tensors
    to_weight = to_alpha = to_positions = None
    if ctx.needs_input_grad[1]:
        of_weight = ctx.num_embeddings, ctx.padding_idx, ctx.scale, ctx.drop, ctx.elements
        if ctx.sparse:
            to_weight = _sparse(scaled(grad, seed, *of_weight[2:]), ids, *of_weight[:2])
        else:
            to_weight = EMBED_BACKWARD(grad, ids, seed, *of_weight)
    rest = seed, ctx.start, ctx.are_starts, ctx.drop, ctx.elements
    if ctx.needs_input_grad[5]:
        to_alpha = alpha_gradient(grad, words, positions, mask, alpha, rest)
    if ctx.needs_input_grad[3]:
        to_positions = position_gradient(grad, words, positions, mask, alpha, rest)
    return None, to_weight, None, to_positions, None, to_alpha, *(None,) * 8


def _sparse(values: Tensor, ids: Tensor, num_embeddings: int, padding_idx: int) -> Tensor:
    """The gradient as nn.Embedding(sparse=True) gives it: a row for each token that is no padding, uncoalesced."""
    flat, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if padding_idx >= 0:
        counted = flat != padding_idx
        flat, values = flat[counted], values[counted]
    shape = (num_embeddings, values.shape[-1])
    return torch.sparse_coo_tensor(flat.unsqueeze(0), values, shape, check_invariants=False)


def _embed_backward_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ids, seed, _, ctx.padding_idx, ctx.scale, ctx.drop, ctx.elements = inputs
    ctx.save_for_backward(ids, seed)


def _embed_backward_backward(ctx: Any, upstream: Tensor) -> Any:
    ids, seed = ctx.saved_tensors
    # An id that is no row has no gradient: the CPU refused it before, and on a device torch's lookup would assert.
    inside = ids if ids.device.type == "cpu" else ids.clamp(0, upstream.shape[0] - 1)
    rows = functional.embedding(inside, upstream)
    if inside is not ids:
        rows = rows.masked_fill((ids != inside).unsqueeze(-1), 0.0)
    if ctx.padding_idx >= 0:
        rows = rows.masked_fill((ids == ctx.padding_idx).unsqueeze(-1), 0.0)
    return scaled(rows, seed, ctx.scale, ctx.drop, ctx.elements), *(None,) * 7


ENCODE.differentiable(_encode_setup, _encode_backward)
ADD.differentiable(_add_setup, _add_backward)
DROPOUT.differentiable(_dropout_setup, _dropout_backward)
ADD_DROPOUT.differentiable(_add_dropout_setup, _add_dropout_backward)
ROW_DOTS.differentiable(_row_dots_setup, _row_dots_backward)
EMBED.differentiable(_embed_setup, _embed_grad)
EMBED_BACKWARD.differentiable(_embed_backward_setup, _embed_backward_backward)


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


class _EncodeTransformed(torch.autograd.Function):
    """encode(positions) for torch.func and forward mode, which the operator's derivative does not serve, and for fake
    tensors, which an operator does not take together with the words of a plan."""

    @staticmethod
    def forward(positions: Tensor, words: Tensor, partner: Tensor, slopes: Tensor, dtype: torch.dtype) -> Tensor:
        return encoded_rows.encode(positions, words, slopes.shape[0], dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        positions, words, partner, slopes, ctx.dtype = inputs
        ctx.save_for_backward(positions, words, partner, slopes)
        ctx.save_for_forward(positions, words, partner, slopes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        positions, words, partner, slopes = ctx.saved_tensors
        (grad,) = grads
        acc = accumulation(grad.dtype, positions.dtype)
        rows = _derivative(positions, words, partner, slopes, acc)
        return (grad.to(acc) * rows).sum(-1).to(positions.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
        positions, words, partner, slopes = ctx.saved_tensors
        acc = accumulation(ctx.dtype, positions.dtype)
        return (tangent.to(acc).unsqueeze(-1) * _derivative(positions, words, partner, slopes, acc)).to(ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: Any, positions: Tensor, *constants: Any) -> Any:
        return _EncodeTransformed.apply(positions.movedim(in_dims[0], 0), *constants), 0


def _derivative(positions: Tensor, words: Tensor, partner: Tensor, slopes: Tensor, acc: torch.dtype) -> Tensor:
    """d encode / d positions in acc, (*positions.shape, dim), differentiable."""
    return _EncodeTransformed.apply(positions, partner, words, -slopes, acc) * slopes.to(positions.device, acc)


def encode(positions: Tensor, encoding: Encoding, dtype: torch.dtype) -> Tensor:
    """`encode` of checked arguments outside of a graph, differentiable where that is asked for."""
    if encoding.angle != "exact":
        return float32_angle.encode(encoding, positions, dtype)
    words = schemas.plan_words(encoding, positions.device)
    if is_transformed() or (is_traced() and positions.requires_grad):
        constants = schemas.derivative_constants(schemas.decoded(words), words.device)
        return _EncodeTransformed.apply(positions, words, *constants, dtype)
    if positions.requires_grad and torch.is_grad_enabled():
        return ENCODE(positions.contiguous(), words, encoding.dim, dtype)
    return encoded_rows.encode(positions, words, encoding.dim, dtype)
