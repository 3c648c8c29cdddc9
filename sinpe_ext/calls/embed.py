"""One call of `embed`: its checked arguments, and the choice between kernel, reference implementation and graph."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .. import checks
from ..checks import embedding
from ..checks.part import Part
from ..ops import traced
from ..ops.embed import EMBED
from ..ops.packed_plan import pack_plan
from ..reference.operands import Embed
from ..reference.tiles import accumulation
from ..runtime import observers
from ..runtime.observers import is_functional, is_transformed, needs_operations
from ..runtime.tracing import refuse_jit_trace
from .rows import EmbedArguments, Form, RowsCall, cached_by_value

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
        self.weight: Tensor = embedding.weight(weight)
        given = embedding.ids(arguments.ids, weight)
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
        self.padding_idx = embedding.padding_idx(arguments.padding_idx, self.num_embeddings)
        batch = shape[0] if len(shape) > 1 else 1
        self.set_rows(checks.Target("ids", result[:-1], self.device, batch, shape[-1]), width, arguments)
        dim = self.encoding.dim if self.columns is None else self.whole_dim()
        if width != dim and (arguments.encoding is not None or width):
            embedding.weight_channels(weight, width, dim)
        self.rng_offsets = self.form.rng_offsets(result, part)
        self.sparse = checks.flag("sparse", arguments.sparse)
        if not checks.flag("encode_padding", arguments.encode_padding):
            self._mask_padding()

    def _mask_padding(self) -> None:
        """Adds the padding tokens of ids to padding_mask."""
        embedding.masks_padding(self.padding_idx, self.ids)
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
        on_cpu = self.device.type == "cpu" and not observers.unreadable(self.ids)
        by_operator = self._is_exact() and not (needs_operations() or observers.no_data(self.device))
        # Checked before a seed is drawn. Without dropout the CPU kernel checks the ids itself; device kernels never do.
        if self.drop_threshold or not by_operator if on_cpu else observers.should_check_values(self.ids):
            embedding.id_range(self.ids, self.num_embeddings)
        self.draw()
        if not by_operator:
            return self.traced()
        try:
            return self.form.restored(EMBED(*self.operands(pack_plan(self.encoding, self.device))))
        except RuntimeError:
            wrong = embedding.bad_ids(self.ids, self.num_embeddings) if on_cpu else None
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
        if not (self.drop_threshold or learns) or not self._is_exact() or is_functional() or observers.is_exporting():
            return self.traced()
        operands = self.operands(traced.pack_plan(*self.given, self.device))
        return self.form.restored(torch.ops.sinpe_ext.embed.default(*operands))
