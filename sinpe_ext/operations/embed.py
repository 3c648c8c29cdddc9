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
from . import checks
from .add import Form, Part, Sum, alpha_gradient, cached_by_value, position_gradient, rows_read
from .dropout import scaled
from .plans import decoded


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


def _make_form(rank: int, seq_dim: Any) -> Form:
    """The layout of the result, which has the dimensions of ids, then the channels."""
    return Form((checks.axis("seq_dim", seq_dim, rank, "ids"), rank), rank + 1)


_form = cached_by_value(_make_form)


class EmbedCall(Sum):
    """`embed` of ordinary tensors.

    Attributes:
        ids: int64, (batch, *middle, sequence) or (sequence,).
        weight: (num_embeddings, channels).
        form: the layout of the result.
        padding_idx: the row of weight that receives no gradient, -1 for none.
        sparse: whether the gradient of weight is sparse.

    If `part` is given, the result is a shard of a larger tensor.
    """

    def __init__(self, arguments: EmbedArguments, part: Part | None = None) -> None:
        weight = checks.weight(arguments.weight)
        self.set_data(weight)
        ids = checks.ids(arguments.ids, weight)
        rank = ids.dim()
        self.form = (_form if type(arguments.seq_dim) is int else _make_form)(rank, arguments.seq_dim)
        rows_at, _ = self.form.axes
        self.weight, self.ids = weight, ids if rows_at == rank - 1 else ids.movedim(rows_at, -1)
        self.num_embeddings, channels = weight.shape
        result = torch.Size((*ids.shape, operator.index(channels)))
        self.shape = torch.Size((*self.ids.shape, result[-1]))
        padding_idx, sparse = arguments.padding_idx, arguments.sparse
        self.padding_idx = -1 if padding_idx is None else checks.padding_idx(padding_idx, self.num_embeddings)
        self.set_rows(arguments, self.form, result, part, "weight")
        self.sparse = sparse if type(sparse) is bool else values.flag("sparse", sparse)
        if arguments.encode_padding is not True and not values.flag("encode_padding", arguments.encode_padding):
            self._mask_padding()

    def target(self) -> checks.Target:
        shape = self.ids.movedim(-1, self.form.axes[0]).shape
        return checks.Target("ids", shape, self.device, self.shape[0] if len(shape) > 1 else 1, self.shape[-2])

    def _mask_padding(self) -> None:
        """Adds the padding tokens of ids to padding_mask."""
        checks.masks_padding(self.padding_idx, self.ids)
        mask = self.ids == self.padding_idx
        mask = mask if mask.dim() == 2 else mask.unsqueeze(0)
        self.padding_mask = mask if self.padding_mask is None else self.padding_mask | mask

    def result(self) -> Tensor:
        """`embed`, differentiable."""
        if not self.state.compiling and torch_state.should_check_values(self.ids):
            apply.id_range(self.ids, self.num_embeddings)  # before a seed is drawn
        self.draw()
        # The compiler would sum the gradient of weight in no fixed order.
        if not self.uses_operator(learns=self.weight.requires_grad and torch.is_grad_enabled()):
            return self.composed()
        return self.form.restored(EMBED(self.operands(), state=self.state))

    def operands(self) -> Embed:
        """The operands of the operator `embed`."""
        weight = self.weight if self.weight.stride(1) == 1 or self.shape[-1] == 1 else self.weight.contiguous()
        plan = self.packed_plan() if self.plan is None else self.plan
        return Embed(
            self.ids, weight, plan, self.positions, self.padding_mask, self.alpha_tensor(), self.seed, self.start,
            self.positions_are_starts, self.scale, self.padding_idx, self.sparse, self.drop_threshold,
            self.rng_offsets,
        )  # fmt: skip

    def composed(self) -> Tensor:
        padding_idx = None if self.padding_idx < 0 else self.padding_idx
        weight = self.weight
        if self.state.transformed or (self.has_own_dispatch and weight.requires_grad):
            weight = weight.to(accumulation(self.dtype))  # so that its gradient is summed in acc and rounded once
        ids = self.ids.movedim(-1, self.form.axes[0])  # as given, so that the result is contiguous if it is
        of_none = None
        if self.device.type == "cuda":  # torch's embedding fails with a device-side assert for an id out of range
            inside = ids.clamp(0, self.num_embeddings - 1)
            ids, of_none = inside, (inside != ids).unsqueeze(-1)
        gathered = functional.embedding(ids, weight, padding_idx, sparse=self.sparse)
        if of_none is not None:
            gathered = gathered.masked_fill(of_none, math.nan)
        return self.form.restored(self.dropped(self.sum(self.form.canonical(gathered))))


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
