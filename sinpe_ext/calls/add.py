"""One call of `add`: its checked arguments, and the choice between kernel, reference implementation and graph.

The operators of `ops/rows.py` generate the rows of the encoding while they process x. (A grid, or a sequence with extra
tokens: `grid_add.py`.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..backend import loader
from ..checks.part import Part
from ..ops import traced
from ..ops.packed_plan import pack_plan
from ..ops.rows import ADD_DROPOUT, AddInPlace, add_into
from ..reference.operands import Add
from ..reference.tiles import accumulation
from ..runtime import observers
from ..runtime.observers import is_functional, needs_operations
from ..runtime.tracing import refuse_jit_trace
from .rows import AddArguments, Form, RowsCall, cached_by_value

_is_compiling = torch.compiler.is_compiling

LARGE = 4 << 20  # bytes; for larger results it is faster if the operator allocates them (csrc/cpu/populate.cpp)


@cached_by_value
def _form(rank: int, seq_dim: Any, channel_dim: Any) -> Form:
    """The layout of x for these dimensions, checked."""
    rows_at, channels_at = checks.axis("seq_dim", seq_dim, rank), checks.axis("channel_dim", channel_dim, rank)
    checks.two_dimensions(rows_at, channels_at, seq_dim, channel_dim)
    return Form((rows_at, channels_at), rank)


class SequenceAdd(RowsCall):
    """The arguments of `add` with a one-dimensional encoding, after all checks.

    Attributes:
        x: as given.
        form: the layout of x.
        shape: shape of x in canonical form.

    If `part` is given, x is a shard of a larger tensor.
    """

    form: Any

    def __init__(self, given: AddArguments, part: Part | None = None) -> None:
        self._set_x(given.x)
        x, rank = self.x, self.x.dim()
        self.form = form = _form(rank, given.seq_dim, given.channel_dim)
        rows_at, channels_at = form.axes
        shape = x.shape
        self.shape = shape if form.is_canonical else torch.Size([shape[d] for d in form.order])
        _, width = self._set_part(part, rows_at, channels_at, shape)
        of = checks.Target("x", shape, x.device, self.shape[0] if rank > 2 else 1, shape[rows_at])
        self.set_rows(of, width, given)
        dim = self.encoding.dim if self.columns is None else self.whole_dim()
        if width != dim and (given.encoding is not None or width):
            checks.channels(x, width, dim)
        self.rng_offsets = form.rng_offsets(shape, part) if self.drop_threshold else []

    def _set_x(self, x: Any) -> None:
        refuse_jit_trace()
        checks.check_x(x)
        self.x: Tensor = x
        self.device, self.acc = x.device, accumulation(x.dtype)

    # Choice of the implementation.

    def result(self) -> Tensor:
        """`add`, differentiable."""
        self.draw()
        if needs_operations():
            return self.traced()
        if not self.needs_grad(self.x):
            return self.run()
        return self.traced() if self._needs_torch_operations() else self._differentiable(in_place=False)

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        self.draw()
        if needs_operations():
            return self.x.copy_(self.traced())
        if not self.needs_grad(self.x):
            self.run(self.x)
            torch.autograd.graph.increment_version(self.x)
            return self.x
        return self.x.copy_(self.traced()) if self._needs_torch_operations() else self._differentiable(in_place=True)

    def written(self, out: Any) -> tuple[Any, Tensor]:
        """The tensors whose memory is checked for overlap: those that hold `out` and x."""
        return out, self.x

    def write_to(self, out: Tensor) -> Tensor:
        """`add` with `out`, which has been checked."""
        self.draw()
        if _is_compiling():
            return out.copy_(self.traced())
        self.run(out)
        torch.autograd.graph.increment_version(out)
        return out

    def _needs_torch_operations(self) -> bool:
        """Whether a differentiable call uses torch operations: for float32 angles, empty tensors, and tensors without
        data."""
        return self.is_empty or not self._is_exact() or observers.no_data(self.device)

    def _is_exact(self) -> bool:
        """Whether the kernels support the encoding."""
        return self.encoding.angle == "exact"

    # Without autograd.

    @torch.no_grad()
    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes the result, with the layout of x, in a new tensor or in `out`."""
        if out is not None and out.is_neg():  # has the negative bit; kernels would write values of the wrong sign
            return out.copy_(self.run())
        x = self.x
        if not x.numel() or observers.no_data(self.device):
            return torch.empty_like(x) if out is None else out
        if out is None and (isinstance(self.alpha, Tensor) or x.nbytes >= LARGE) and self._has_result_of_operator():
            return self.form.restored(ADD_DROPOUT.run(*self.operands(pack_plan(self.encoding, self.device))))
        target = torch.empty_like(x) if out is None else out
        self._write(target)
        return target

    def _has_result_of_operator(self) -> bool:
        """Whether the operator that allocates its result is called. On a device, it reads a tensor alpha from device
        memory; reading the value here would synchronize. On the CPU, it can populate the new memory."""
        if not self._is_exact() or not loader.compiled(self.device.type):
            return False
        if self.device.type != "cpu":
            return isinstance(self.alpha, Tensor)
        is_dense = self.form.is_canonical and self.x.is_contiguous()
        return is_dense and (isinstance(self.alpha, Tensor) or self.alpha == 1.0)

    def _write(self, target: Tensor) -> None:
        """Computes the result into `target`, which has the layout of x."""
        self._fill(self.form.canonical(self.x.detach()), self.form.canonical(target.detach()))

    def _fill(self, x: Tensor, target: Tensor) -> None:
        """Computes the result into `target`; both are in canonical form."""
        if self._is_exact():
            add_into(self._sum(x, pack_plan(self.encoding, self.device)), target)
        else:
            target.copy_(self.dropped(self.sum(x.to(self.acc))))

    def _sum(self, x: Tensor, packed_plan: Tensor) -> Add:
        """The operands of a sum with one encoding, all detached."""
        positions = None if self.positions is None else self.positions.detach()
        alpha = self.alpha.detach() if isinstance(self.alpha, Tensor) else self.alpha
        with_x = positions, self.padding_mask, alpha, self.seed
        rng_offsets = self.rng_offsets if self.drop_threshold else []
        return Add(x, packed_plan, *with_x, self.start, self.are_starts, self.scale, self.drop_threshold, rng_offsets)

    def operands(self, packed_plan: Tensor) -> Add:
        """The operands of the operator `add_dropout`, which takes alpha as a tensor."""
        with_x = self.positions, self.padding_mask, self.alpha_or_none(), self.seed
        rows = self.start, self.are_starts, self.scale
        return Add(self.form.canonical(self.x), packed_plan, *with_x, *rows, self.drop_threshold, self.rng_offsets)

    # With autograd.

    def _differentiable(self, in_place: bool) -> Tensor:
        """Calls the kernels inside an autograd.Function."""
        a = self.operands(pack_plan(self.encoding, self.device))
        if in_place:
            return AddInPlace.apply(*a._replace(x=self.x), self.form, lambda: self.run(self.x))
        return self.form.restored(ADD_DROPOUT(*a))

    # In torch operations, for autograd, compilers and torch.func.

    def traced(self) -> Tensor:
        """`add` in torch operations, which a compiler can fuse with others and torch.func can transform.

        With dropout a graph contains the fused operator instead: generating the mask is most of the work, and compiled
        loops are several times slower at it.
        """
        if self.drop_threshold and _is_compiling() and self._is_exact() and not is_functional():
            packed_plan = traced.pack_plan(*self.given, self.device)
            return self.form.restored(torch.ops.sinpe_ext.add_dropout.default(*self.operands(packed_plan)))
        total = self.sum(self.form.canonical(self.x).to(self.acc))
        return self.form.restored(self.dropped(total).to(self.x.dtype))
