"""`embed`, a token lookup with the encoding added: the checked call, and the operators embed and embed_backward."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import torch_state
from ..encodings import values
from ..encodings.tracing import refuse_jit_trace
from ..operator import Operator, one_by_one
from ..reference import apply
from ..reference.tiles import accumulation
from ..torch_state import is_functional, is_transformed, needs_operations
from . import checks, plans
from .add import alpha_gradient, position_gradient
from .call import Form, RowsCall, cached_by_value
from .dropout import scaled
from .plans import decoded, pack_plan
from .records import Dropout, Embed, EmbedArguments, EmbedBackward, Part, save, saved

_is_compiling = torch.compiler.is_compiling


@cached_by_value
def _form(rank: int, seq_dim: Any) -> Form:
    """The layout of the result, which has the dimensions of ids, then the channels."""
    return Form((checks.axis("seq_dim", seq_dim, rank, "ids"), rank), rank + 1)


class EmbedCall(RowsCall):
    """The arguments of `embed` after all checks.

    Attributes:
        ids: int64, (batch, *middle, sequence) or (sequence,).
        weight: (num_embeddings, channels).
        form: the layout of the result.
        padding_idx: the row of weight that receives no gradient, -1 for none.
        sparse: whether the gradient of weight is sparse.

    If `part` is given, the result is a shard of a larger tensor.
    """

    def __init__(self, arguments: EmbedArguments, part: Part | None = None) -> None:
        refuse_jit_trace()
        weight = arguments.weight
        self.weight: Tensor = checks.weight(weight)
        given = checks.ids(arguments.ids, weight)
        rank = given.dim()
        self.form = _form(rank, arguments.seq_dim)
        rows_at, _ = self.form.axes
        self.ids = given if rows_at == rank - 1 else given.movedim(rows_at, -1)
        shape = self.ids.shape
        self.num_embeddings, channels = weight.shape
        self.device = weight.device
        self.acc = accumulation(weight.dtype)
        result = torch.Size((*given.shape, operator.index(channels)))
        self.shape = torch.Size((*shape, result[-1]))
        _, width = self._set_part(part, rows_at, rank, result)
        self.padding_idx = checks.padding_idx(arguments.padding_idx, self.num_embeddings)
        batch = shape[0] if len(shape) > 1 else 1
        self.set_rows(checks.Target("ids", result[:-1], self.device, batch, shape[-1]), width, arguments)
        dim = self.encoding.dim if self.columns is None else self.whole_dim()
        if width != dim and (arguments.encoding is not None or width):
            checks.weight_channels(weight, width, dim)
        self.rng_offsets = self.form.rng_offsets(result, part)
        self.sparse = values.flag("sparse", arguments.sparse)
        if not values.flag("encode_padding", arguments.encode_padding):
            self._mask_padding()

    def _mask_padding(self) -> None:
        """Adds the padding tokens of ids to padding_mask."""
        checks.masks_padding(self.padding_idx, self.ids)
        mask = self.ids == self.padding_idx
        mask = mask if mask.dim() == 2 else mask.unsqueeze(0)
        self.padding_mask = mask if self.padding_mask is None else self.padding_mask | mask

    def operands(self, packed_plan: Tensor) -> Embed:
        """The operands of the operator `embed`."""
        weight = self.weight if self.weight.stride(1) == 1 or self.shape[-1] == 1 else self.weight.contiguous()
        with_ids = self.positions, self.padding_mask, self.alpha_or_none(), self.seed
        rows = self.start, self.are_starts, self.scale
        gradient = self.padding_idx, self.sparse
        return Embed(self.ids, weight, packed_plan, *with_ids, *rows, *gradient, self.drop_threshold, self.rng_offsets)

    def traced(self) -> Tensor:
        """`embed` in torch operations, which a compiler can fuse and torch.func can transform."""
        padding_idx = None if self.padding_idx < 0 else self.padding_idx
        weight = self.weight
        if is_transformed() and not _is_compiling():
            weight = weight.to(self.acc)  # so that its gradient is summed in acc and rounded once
        ids, of_none = self.ids, None
        if self.device.type == "cuda":  # torch's embedding fails with a device-side assert for an id out of range
            ids = ids.clamp(0, self.num_embeddings - 1)
            of_none = (ids != self.ids).unsqueeze(-1)
        gathered = functional.embedding(ids, weight, padding_idx, sparse=self.sparse)
        if of_none is not None:
            gathered = gathered.masked_fill(of_none, math.nan)
        total = self.sum(gathered.to(self.acc))
        return self.form.restored(self.dropped(total).to(self.weight.dtype))

    def result(self) -> Tensor:
        """`embed`, differentiable."""
        if _is_compiling():
            return self._in_graph()
        on_cpu = self.device.type == "cpu" and not torch_state.unreadable(self.ids)
        by_operator = self._is_exact() and not (needs_operations() or torch_state.no_data(self.device))
        # Checked before a seed is drawn. Without dropout the CPU kernel checks the ids itself; device kernels never do.
        if self.drop_threshold or not by_operator if on_cpu else torch_state.should_check_values(self.ids):
            apply.id_range(self.ids, self.num_embeddings)
        self.draw()
        if not by_operator:
            return self.traced()
        try:
            return self.form.restored(EMBED(*self.operands(pack_plan(self.encoding, self.device))))
        except RuntimeError:
            wrong = apply.bad_ids(self.ids, self.num_embeddings) if on_cpu else None
            if wrong is None:
                raise
            raise wrong from None  # the kernel has refused a bad id before writing; this raises it as an IndexError

    def _is_exact(self) -> bool:
        """Whether the operator supports the encoding and the result is not empty."""
        return self.encoding.angle == "exact" and 0 not in self.shape

    def _in_graph(self) -> Tensor:
        """`embed` for torch.compile, which can fuse a lookup with what follows. If weight needs a gradient or there is
        dropout, the operator is used: the compiler would sum the gradient in no fixed order, and generate the mask
        slowly."""
        self.draw()
        learns = self.weight.requires_grad and torch.is_grad_enabled()
        if not (self.drop_threshold or learns) or not self._is_exact() or is_functional() or torch_state.is_exporting():
            return self.traced()
        operands = self.operands(plans.graph_plan(*self.given, self.device))
        return self.form.restored(torch.ops.sinpe_ext.embed.default(*operands))


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
