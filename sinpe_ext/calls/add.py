"""One call of `add`: its checked arguments, and the choice between kernel, reference implementation and graph.

The operators of `ops/rows.py` generate the rows of the encoding while they process x. (A grid, or a sequence with extra
tokens: `grid_add.py`.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..checks.part import Part
from ..ops import traced
from ..ops.packed_plan import pack_plan
from ..ops.rows import ADD, ADD_OUT, AddInPlace
from ..reference.operands import Add
from ..reference.tiles import accumulation
from ..runtime import observers
from ..runtime.observers import is_functional, needs_operations
from .rows import AddArguments, Form, RowsCall, cached_by_value

_is_compiling = torch.compiler.is_compiling


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
        checks.check_x(x)
        self.x: Tensor = x
        self.device, self.acc = x.device, accumulation(x.dtype)

    # Choice of the implementation.

    def result(self) -> Tensor:
        """`add`, differentiable."""
        self.draw()
        if needs_operations():
            return self.traced()
        if not self._needs_torch_operations():
            return self._by_operator()
        return self.traced() if self.needs_grad(self.x) else self.run()

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        self.draw()
        if needs_operations():
            return self.x.copy_(self.traced())
        if not self.needs_grad(self.x):
            self.run(self.x)
            torch.autograd.graph.increment_version(self.x)
            return self.x
        return self.x.copy_(self.traced()) if self._needs_torch_operations() else self._differentiable_in_place()

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
        """Whether no operator computes the result: for float32 angles, empty tensors, and tensors without data."""
        return self.is_empty or not self._is_exact() or observers.no_data(self.device)

    def _is_exact(self) -> bool:
        """Whether the kernels support the encoding."""
        return self.encoding.angle == "exact"

    # Without autograd.

    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes the result, with the layout of x, in a new tensor or in `out`."""
        if out is not None and out.is_neg():  # has the negative bit; kernels would write values of the wrong sign
            with torch.no_grad():
                return out.copy_(self.run())
        target = torch.empty_like(self.x) if out is None else out
        if self.x.numel() and not observers.no_data(self.device):
            with torch.no_grad():
                self._write(target)
        return target

    def _write(self, target: Tensor) -> None:
        """Computes the result into `target`, which has the layout of x."""
        self._fill(self.form.canonical(self.x.detach()), self.form.canonical(target.detach()))

    def _fill(self, x: Tensor, target: Tensor) -> None:
        """Computes the result into `target`; both are in canonical form."""
        if self._is_exact():
            ADD_OUT.run(*self.operands(x), target)
        else:
            target.copy_(self.dropped(self.sum(x.to(self.acc))))

    def operands(self, x: Tensor, packed_plan: Tensor | None = None) -> Add:
        """The operands of the operator `add` for x in canonical form."""
        plan = pack_plan(self.encoding, self.device) if packed_plan is None else packed_plan
        with_x = self.positions, self.padding_mask, self.alpha_or_none(), self.seed
        rng_offsets = self.rng_offsets if self.drop_threshold else []
        return Add(x, plan, *with_x, self.start, self.are_starts, self.scale, self.drop_threshold, rng_offsets)

    # By the operator, which chooses between kernel and reference, with and without autograd.

    def _by_operator(self) -> Tensor:
        x = self.x
        if not self.needs_grad(x) and not (self.form.is_canonical and x.is_contiguous()):
            return self.run()  # the strides of torch.empty_like
        return self.form.restored(ADD(*self.operands(self.form.canonical(x))))

    def _differentiable_in_place(self) -> Tensor:
        return AddInPlace.apply(*self.operands(self.x), self.form, lambda: self.run(self.x))

    # In torch operations, for autograd, compilers and torch.func.

    def traced(self) -> Tensor:
        """`add` in torch operations, which a compiler can fuse with others and torch.func can transform.

        With dropout a graph contains the fused operator instead: generating the mask is most of the work, and compiled
        loops are several times slower at it.
        """
        if self.drop_threshold and _is_compiling() and self._is_exact() and not is_functional():
            packed_plan = traced.pack_plan(*self.given, self.device)
            operands = self.operands(self.form.canonical(self.x), packed_plan)
            return self.form.restored(torch.ops.sinpe_ext.add.default(*operands))
        total = self.sum(self.form.canonical(self.x).to(self.acc))
        return self.form.restored(self.dropped(total).to(self.x.dtype))
