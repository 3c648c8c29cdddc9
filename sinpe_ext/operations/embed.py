"""`embed`, a token lookup with the encoding added: the checked call, and the operators embed and embed_backward."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .. import torch_state
from ..encodings import values
from ..operator import Derivative, Operator, one_by_one
from ..records import Dropout, Embed, EmbedBackward
from ..reference import apply
from ..reference.tiles import accumulation
from . import checks, layout, repetition
from .add import alpha_gradient, position_gradient, rows_read
from .dropout import scaled
from .layout import Part
from .plans import decoded
from .repetition import constant, is_repeatable
from .sum import Sum, check_sum, sum_operands


class EmbedArguments(NamedTuple):
    """The arguments of `embed` as given by the caller, unchecked; see `functional.embed`."""

    ids: Any
    weight: Any
    encoding: Any = None
    positions: Any = None
    start: Any = 0
    scale: Any = 1.0
    alpha: Any = 1.0
    dropout: Any = 0.0
    seed: Any = None
    padding_idx: Any = None
    padding_mask: Any = None
    sparse: Any = False
    encode_padding: Any = True
    seq_dim: Any = -1


def check_embed(arguments: EmbedArguments, part: Part | None = None) -> CheckedEmbed:
    """Checks the arguments of `embed`. If `part` is given, the result is a shard of a larger tensor."""
    weight = checks.weight(arguments.weight)
    ids = checks.ids(arguments.ids, weight)
    num_embeddings, channels = weight.shape
    of_result = layout.of_ids(ids, operator.index(channels), arguments.seq_dim, part)
    padding_idx = checks.padding_idx(arguments.padding_idx, num_embeddings)
    of = check_sum("weight", weight, arguments, of_result)
    sparse = values.flag("sparse", arguments.sparse)
    if not values.flag("encode_padding", arguments.encode_padding):
        of = of._replace(
            padding_mask=_with_padding(of.padding_mask, ids.movedim(of_result.rows_at[0], -1), padding_idx)
        )
    return CheckedEmbed(arguments, ids, weight, padding_idx, sparse, of)


def _with_padding(mask: Tensor | None, ids: Tensor, padding_idx: int) -> Tensor:
    """padding_mask with the padding tokens of ids, (*batch, sequence), added."""
    checks.masks_padding(padding_idx, ids)
    padding = ids == padding_idx
    padding = padding if padding.dim() == 2 else padding.unsqueeze(0)
    return padding if mask is None else mask | padding


class CheckedEmbed(NamedTuple):
    """A call of `embed`, whose arguments have been checked.

    Attributes:
        ids: int64, as given.
        weight: (num_embeddings, channels).
        padding_idx: the row of weight that receives no gradient, -1 for none.
        sparse: whether the gradient of weight is sparse.
    """

    arguments: EmbedArguments
    ids: Tensor
    weight: Tensor
    padding_idx: int
    sparse: bool
    sum: Sum

    def result(self) -> Tensor:
        """`embed`, differentiable."""
        ids, of = self.ids, self.sum
        if not of.state.compiling and torch_state.should_check_values(ids):
            apply.id_range(ids, self.weight.shape[0])  # before a seed is drawn
        call = self._replace(sum=of.drawn())
        if not of.uses_operator:
            return call._composed()
        operands = call._operands()
        result: Tensor = of.layout.restored(EMBED(operands, state=of.state))
        self._keep(operands, result)
        return result

    def _keep(self, e: Embed, result: Tensor) -> None:
        """Keeps the call, so that it is repeated in C."""
        a, of, layout = self.arguments, self.sum, self.sum.layout
        is_contiguous = self.weight.stride(1) == 1
        if layout.part is not None or not is_repeatable(a.weight) or a.encode_padding is not True:
            return
        if a.ids.dtype == torch.uint64 or not (a.ids.is_contiguous() or (layout.is_ordered and result.is_contiguous())):
            return
        if result.requires_grad and not is_contiguous:
            return
        call = repetition.Call(repetition.EMBED, a)
        sizes, (rows_at,) = tuple(-1 - d for d in range(a.ids.dim())), layout.rows_at
        views = (*((d,) for d in layout.batch_at), (rows_at,))
        operands = sum_operands(call, of, e, sizes[rows_at], sizes[layout.batch_at[0]] if layout.batch_at else 1)
        operands["ids"] = call.tensor("ids", sizes, views, None if a.ids.dtype == torch.int64 else Tensor.long)
        dense = None if is_contiguous else Tensor.contiguous
        operands["weight"] = call.tensor("weight", a.weight.shape, ((0,), (1,)), dense)
        views = (*views, (len(sizes),))
        operands["rng_offsets"] = repetition.rng_offsets(views) if e.rng_offsets else constant(())
        to = repetition.Result(sizes=(*sizes, a.weight.shape[1]), dtype=of.dtype, device=of.device)
        record = call.recorder(EMBED, operands, views) if result.requires_grad else None
        call.keep("embed", [*operands.values(), repetition.result_of(views)], to, record)

    def _operands(self) -> Embed:
        """The operands of the operator `embed`."""
        of, weight, rows_at = self.sum, self.weight, self.sum.layout.rows_at[0]
        ids = self.ids if rows_at == self.ids.dim() - 1 else self.ids.movedim(rows_at, -1)
        weight = weight if weight.stride(1) == 1 or weight.shape[1] == 1 else weight.contiguous()
        return Embed(
            ids, weight, of.plan(), of.positions, of.padding_mask, of.alpha_tensor(), of.seed, of.start[0],
            of.positions_are_starts, of.scale, self.padding_idx, self.sparse, of.drop_threshold,
            of.rng_offsets(of.layout.is_ordered) if of.drop_threshold or of.state.compiling else [],
        )  # fmt: skip

    def _composed(self) -> Tensor:
        """The result in torch operations."""
        of, ids, weight, last = self.sum, self.ids, self.weight, self.weight.shape[0] - 1
        if of.state.transformed or (of.has_own_dispatch and weight.requires_grad):
            weight = weight.to(accumulation(of.dtype))  # so that its gradient is summed in acc and rounded once
        of_none = None
        if of.device.type == "cuda":  # torch's embedding fails with a device-side assert for an id out of range
            inside = ids.clamp(0, last)
            ids, of_none = inside, (inside != ids).unsqueeze(-1)
        padding_idx = None if self.padding_idx < 0 else self.padding_idx
        gathered = functional.embedding(ids, weight, padding_idx, sparse=self.sparse)
        if of_none is not None:
            gathered = gathered.masked_fill(of_none, math.nan)
        return of.dropped(of.layout.restored(of.added(of.layout.canonical(gathered))))


def _gradients(e: Embed, needed: Embed, grad: Tensor) -> dict[str, Tensor | None]:
    gradients: dict[str, Tensor | None] = {}
    if needed.weight:
        rest = e.padding_idx, e.scale, e.drop_threshold, e.rng_offsets
        gradients["weight"] = weight_gradient(EmbedBackward(grad, e.ids, e.seed, e.weight.shape[0], *rest), e.sparse)
    if needed.alpha:
        gradients["alpha"] = alpha_gradient(grad, e)
    if needed.positions:
        gradients["positions"] = position_gradient(grad, e)
    return gradients


def weight_gradient(b: EmbedBackward, sparse: bool) -> Tensor:
    """The gradient with respect to weight."""
    if not sparse:
        dense: Tensor = EMBED_BACKWARD(b)
        return dense
    values = scaled(Dropout(b.grad, b.seed, b.drop_threshold, b.scale, b.rng_offsets))
    return _sparse(values, b.ids, b.num_embeddings, b.padding_idx)


def _sparse(values: Tensor, ids: Tensor, num_embeddings: int, padding_idx: int) -> Tensor:
    """The gradient in the form of nn.Embedding(sparse=True): uncoalesced, one row per token that is not padding."""
    flat, values = ids.reshape(-1), values.reshape(-1, values.shape[-1])
    if padding_idx >= 0:
        counted = flat != padding_idx
        flat, values = flat[counted], values[counted]
    shape = (num_embeddings, values.shape[-1])
    return torch.sparse_coo_tensor(flat.unsqueeze(0), values, shape, check_invariants=False)


EMBED = Operator(
    "embed",
    Embed,
    reference=lambda e: apply.embed(decoded(e.plan), e),
    fake=lambda e: apply.with_channels(e.ids, e.weight),
    vmap=one_by_one,
    derivative=Derivative(_gradients, lambda needed: (*(("ids",) if needed.weight else ()), *rows_read(needed))),
)


def _second_gradients(b: EmbedBackward, needed: EmbedBackward, upstream: Tensor) -> dict[str, Tensor | None]:
    # An id out of range has no gradient: on the CPU it has been refused; on other devices torch's embedding would fail.
    inside = b.ids if b.ids.device.type == "cpu" else b.ids.clamp(0, upstream.shape[0] - 1)
    rows = functional.embedding(inside, upstream)
    if inside is not b.ids:
        rows = rows.masked_fill((b.ids != inside).unsqueeze(-1), 0.0)
    if b.padding_idx >= 0:
        rows = rows.masked_fill((b.ids == b.padding_idx).unsqueeze(-1), 0.0)
    return {"grad": scaled(Dropout(rows, b.seed, b.drop_threshold, b.scale, b.rng_offsets))}


EMBED_BACKWARD = Operator(
    "embed_backward",
    EmbedBackward,
    reference=apply.embed_backward,
    fake=lambda b: b.grad.new_empty((b.num_embeddings, b.grad.shape[-1])),
    vmap=one_by_one,
    derivative=Derivative(_second_gradients, values=lambda needed: ("ids",)),
)
