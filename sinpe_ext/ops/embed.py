"""The operators of a token lookup with the encoding added: embed, and embed_backward.

ids is (batch, *middle, sequence) or (sequence,); the other arguments are as in `rows.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..reference import apply
from ..reference.operands import Dropout, Embed, EmbedBackward, save, saved
from .operator import Operator, one_by_one
from .packed_plan import decoded
from .rows import alpha_gradient, position_gradient, scaled


def _embed(*operands: Any) -> Tensor:
    e = Embed(*operands)
    return apply.embed(decoded(e.plan), e)


def _embed_setup(ctx: Any, inputs: Any, output: Any) -> None:
    e = Embed(*inputs)
    ctx.num_embeddings = e.weight.shape[0]
    save(ctx, e, "weight")


def _embed_grad(ctx: Any, grad: Tensor) -> Any:
    e: Embed = saved(ctx)
    needs = Embed(*ctx.needs_input_grad)
    to_weight = to_alpha = to_positions = None
    if needs.weight and e.sparse:
        values = scaled(Dropout(grad, e.seed, e.drop_threshold, e.scale, e.rng_offsets))
        to_weight = _sparse(values, e.ids, ctx.num_embeddings, e.padding_idx)
    elif needs.weight:
        rest = e.padding_idx, e.scale, e.drop_threshold, e.rng_offsets
        to_weight = EMBED_BACKWARD(*EmbedBackward(grad, e.ids, e.seed, ctx.num_embeddings, *rest))
    if needs.alpha:
        to_alpha = alpha_gradient(grad, e)
    if needs.positions:
        to_positions = position_gradient(grad, e)
    return None, to_weight, None, to_positions, None, to_alpha, *(None,) * 8


def _sparse(values: Tensor, ids: Tensor, num_embeddings: int, padding_idx: int) -> Tensor:
    """The gradient in the form of nn.Embedding(sparse=True): uncoalesced, one row per token that is not padding."""
    flat, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if padding_idx >= 0:
        counted = flat != padding_idx
        flat, values = flat[counted], values[counted]
    shape = (num_embeddings, values.shape[-1])
    return torch.sparse_coo_tensor(flat.unsqueeze(0), values, shape, check_invariants=False)


EMBED = Operator(
    "embed(Tensor ids, Tensor weight, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, "
    "Tensor? seed, SymInt start, bool positions_are_starts, float scale, int padding_idx, bool sparse, int drop, "
    "SymInt[] elements) -> Tensor",
    reference=_embed,
    fake=lambda ids, weight, *_: weight.new_empty((*ids.shape, weight.shape[1])),
    vmap=one_by_one("embed"),
    derivative=(_embed_setup, _embed_grad),
)


def _embed_backward(*operands: Any) -> Tensor:
    return apply.embed_backward(EmbedBackward(*operands))


def _embed_backward_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, EmbedBackward(*inputs), "grad")


def _embed_backward_grad(ctx: Any, upstream: Tensor) -> Any:
    b: EmbedBackward = saved(ctx)
    # An id out of range has no gradient: on the CPU it has been refused; on other devices torch's embedding would fail.
    inside = b.ids if b.ids.device.type == "cpu" else b.ids.clamp(0, upstream.shape[0] - 1)
    rows = functional.embedding(inside, upstream)
    if inside is not b.ids:
        rows = rows.masked_fill((b.ids != inside).unsqueeze(-1), 0.0)
    if b.padding_idx >= 0:
        rows = rows.masked_fill((b.ids == b.padding_idx).unsqueeze(-1), 0.0)
    return scaled(Dropout(rows, b.seed, b.drop_threshold, b.scale, b.rng_offsets)), *(None,) * 7


EMBED_BACKWARD = Operator(
    "embed_backward(Tensor grad, Tensor ids, Tensor? seed, SymInt num_embeddings, int padding_idx, float scale, "
    "int drop, SymInt[] elements) -> Tensor",
    reference=_embed_backward,
    fake=lambda grad, ids, seed, rows, *_: grad.new_empty((rows, grad.shape[-1])),
    vmap=one_by_one("embed_backward"),
    derivative=(_embed_backward_setup, _embed_backward_grad),
)
