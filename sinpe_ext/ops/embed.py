"""The operators of a token lookup with the encoding added: embed, and embed_backward.

ids are (batch, *middle, sequence) or (sequence,); what else there is, as in `rows.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..reference import apply
from .operator import Operator, one_by_one
from .plan_words import decoded
from .rows import alpha_gradient, first_position, position_gradient, scaled


def _embed(
    ids: Tensor,
    weight: Tensor,
    plan: Tensor,
    positions: Tensor | None,
    padding_mask: Tensor | None,
    alpha: Tensor | None,
    seed: Tensor | None,
    start: int,
    positions_are_starts: bool,
    scale: float,
    padding_idx: int,
    sparse: bool,
    drop: int,
    elements: list[int],
) -> Tensor:
    known = decoded(plan)
    first, factor = first_position(known, start, ids.shape[-1], positions), 1.0 if alpha is None else alpha
    return apply.embed(
        known, ids, weight, positions, first, scale, factor, padding_mask, seed=seed, drop=drop, elements=elements
    )


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


EMBED = Operator(
    "embed(Tensor ids, Tensor weight, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, "
    "Tensor? seed, SymInt start, bool positions_are_starts, float scale, int padding_idx, bool sparse, int drop, "
    "SymInt[] elements) -> Tensor",
    reference=_embed,
    fake=lambda ids, weight, *_: weight.new_empty((*ids.shape, weight.shape[1])),
    vmap=one_by_one("embed"),
    derivative=(_embed_setup, _embed_grad),
)


def _embed_backward(
    grad: Tensor,
    ids: Tensor,
    seed: Tensor | None,
    num_embeddings: int,
    padding_idx: int,
    scale: float,
    drop: int,
    elements: list[int],
) -> Tensor:
    return apply.embed_backward(grad, ids, num_embeddings, padding_idx, scale, seed=seed, drop=drop, elements=elements)


def _embed_backward_setup(ctx: Any, inputs: Any, output: Any) -> None:
    _, ids, seed, _, ctx.padding_idx, ctx.scale, ctx.drop, ctx.elements = inputs
    ctx.save_for_backward(ids, seed)


def _embed_backward_grad(ctx: Any, upstream: Tensor) -> Any:
    ids, seed = ctx.saved_tensors
    # An id that is no row has no gradient: the CPU refused it before, and on a device torch's lookup would assert.
    inside = ids if ids.device.type == "cpu" else ids.clamp(0, upstream.shape[0] - 1)
    rows = functional.embedding(inside, upstream)
    if inside is not ids:
        rows = rows.masked_fill((ids != inside).unsqueeze(-1), 0.0)
    if ctx.padding_idx >= 0:
        rows = rows.masked_fill((ids == ctx.padding_idx).unsqueeze(-1), 0.0)
    return scaled(rows, seed, ctx.scale, ctx.drop, ctx.elements), *(None,) * 7


EMBED_BACKWARD = Operator(
    "embed_backward(Tensor grad, Tensor ids, Tensor? seed, SymInt num_embeddings, int padding_idx, float scale, "
    "int drop, SymInt[] elements) -> Tensor",
    reference=_embed_backward,
    fake=lambda grad, ids, seed, rows, *_: grad.new_empty((rows, grad.shape[-1])),
    vmap=one_by_one("embed_backward"),
    derivative=(_embed_backward_setup, _embed_backward_grad),
)
