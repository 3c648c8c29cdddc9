"""One call of `add`: its checked arguments, and the choice between kernel, eager twin and graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..backend import loader
from ..checks.part import Part
from ..ops import traced
from ..ops.plan_words import plan_words
from ..ops.rows import ADD_DROPOUT, AddInPlace, add_into
from ..reference.operands import Add
from ..reference.tiles import accumulation
from ..runtime import observers
from ..runtime.no_grad import no_grad
from ..runtime.observers import is_functional, needs_operations
from .arguments import AddArguments
from .rows import Form, RowsCall, kept

_is_compiling = torch.compiler.is_compiling


class SumCall(RowsCall):
    """`add`, `add_` and `add` with `out` of checked arguments: which of the ways below one of them takes.

    Attributes:
        x: as given.
    """

    x: Tensor

    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes, without autograd."""
        raise NotImplementedError

    def run_into(self, out: Tensor) -> None:
        """Computes into a tensor of x's form, without autograd."""
        raise NotImplementedError

    def traced(self) -> Tensor:
        """In operations that a compiler and torch.func look into."""
        raise NotImplementedError

    def differentiable(self, in_place: bool) -> Tensor:
        """By the kernels, below an autograd function."""
        raise NotImplementedError

    def _is_formula(self) -> bool:
        raise NotImplementedError

    def result(self) -> Tensor:
        """`add`, differentiable."""
        self.draw()
        if needs_operations():
            return self.traced()
        if not self.needs_grad(self.x):
            return self.run()
        return self.traced() if self._is_formula() else self.differentiable(in_place=False)

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        self.draw()
        if needs_operations():
            return self.x.copy_(self.traced())
        if not self.needs_grad(self.x):
            self.run_into(self.x)
            torch.autograd.graph.increment_version(self.x)
            return self.x
        return self.x.copy_(self.traced()) if self._is_formula() else self.differentiable(in_place=True)

    def written(self, out: Any) -> tuple[Any, Tensor]:
        """`out` and x as they lie in memory, to be checked."""
        return out, self.x

    def write_to(self, out: Tensor) -> Tensor:
        """`add` with `out`, which has been checked."""
        self.draw()
        if _is_compiling() or checks.is_jit_traced():
            return out.copy_(self.traced())
        self.run_into(out)
        torch.autograd.graph.increment_version(out)
        return out


@kept
def _form(rank: int, seq_dim: Any, channel_dim: Any) -> Form:
    rows_at, channels_at = checks.axis("seq_dim", seq_dim, rank), checks.axis("channel_dim", channel_dim, rank)
    checks.two_dimensions(rows_at, channels_at, seq_dim, channel_dim)
    return Form((rows_at, channels_at), rank)


class AddCall(SumCall):
    """The arguments of `add` after every check.

    Attributes:
        x: as given.   form: how x is laid out.   view: x in canonical form.
    With `part` x is one of a larger tensor: its rows and channels are some of the encoding's, and so are its elements.
    """

    def __init__(self, given: AddArguments, part: Part | None = None) -> None:
        x = given.x
        checks.summand(x)
        rank = x.dim()
        self.x: Tensor = x
        self.device = x.device
        self.acc = accumulation(x.dtype)
        self.form = _form(rank, given.seq_dim, given.channel_dim)
        rows_at, channels_at = self.form.axes
        self.view = self.form.canonical(x)
        shape = checks.sizes(x)
        self.shape = shape if self.form.is_canonical else checks.sizes(self.view)
        _, width = self._set_part(part, rows_at, channels_at, shape)
        self.set_rows(
            checks.Target("x", shape, x.device, self.shape[0] if rank > 2 else 1, shape[rows_at]), width, given
        )
        dim = self.encoding.dim if self.columns is None else self.whole_dim()
        if width != dim and (given.encoding is not None or width):
            checks.channels(x, width, dim)
        self.elements = self.form.elements(shape, part) if self.drop else []

    @no_grad
    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes, without autograd; `out` in canonical form. The result is in x's own form where `out` is None."""
        if out is not None and out.is_neg():  # its sign turns on reading; kernels write plain numbers
            return out.copy_(self.form.canonical(self.run()))
        has_data = self.view.numel() and not observers.no_data(self.device)
        if has_data and self._leaves_alpha():
            result = ADD_DROPOUT.run(*self.operands(plan_words(self.encoding, self.device)))
            return self.form.restored(result) if out is None else out.copy_(result)
        target = self.form.canonical(torch.empty_like(self.x)) if out is None else out
        if has_data:
            self._fill(target)
        return self.form.restored(target) if out is None else out

    def _leaves_alpha(self) -> bool:
        """Whether alpha is a tensor to be read where it lies, by an operator that makes its own result: looking at the
        number here would wait for the device."""
        on_device = isinstance(self.alpha, Tensor) and self.device.type != "cpu"
        return on_device and self.encoding.angle == "exact" and loader.compiled(self.device.type)

    def _fill(self, target: Tensor) -> None:
        x, target = self.view.detach(), target.detach()
        if self.encoding.angle != "exact":
            target.copy_(self.dropped(self.sum(x.to(self.acc))))
            return
        positions = None if self.positions is None else self.positions.detach()
        a = self._sum(plan_words(self.encoding, self.device))
        add_into(a._replace(x=x, positions=positions), target)

    def _sum(self, words: Tensor) -> Add:
        """Of x in canonical form."""
        with_x = self.positions, self.padding_mask, self.alpha, self.seed
        return Add(self.view, words, *with_x, self.start, self.are_starts, self.scale, self.drop, self.elements)

    def operands(self, words: Tensor) -> Add:
        """The same for the operator `add_dropout`, which takes alpha as a tensor."""
        return self._sum(words)._replace(alpha=self.alpha_or_none())

    def traced(self) -> Tensor:
        """The whole of `add` in operations that a compiler fuses with their neighbours and torch.func looks into.

        With dropout a graph has the fused operator instead: generating the mask is most of the work, and a compiler's
        own loops are several times slower at it. torch.jit.trace records the operator as well, since it follows the
        length of x, where the mask's numbering does not keep a length.
        """
        recorded = checks.is_jit_traced()
        fused = self.drop and _is_compiling() if not recorded else not self.elements and not observers.is_exporting()
        if fused and self.encoding.angle == "exact" and not is_functional():
            words = traced.plan_words(*self.given, self.device)
            return self.form.restored(torch.ops.sinpe_ext.add_dropout.default(*self.operands(words)))
        total = self.sum(self.view.to(self.acc))
        if recorded:
            return self.dropped(self.form.restored(total), []).to(self.x.dtype)
        return self.form.restored(self.dropped(total).to(self.x.dtype))

    def length(self) -> Any:
        return self.view.shape[-2]

    def _is_formula(self) -> bool:
        """Whether a differentiable call is made of torch's operations: other angles, no elements, no data."""
        return self.encoding.angle != "exact" or 0 in self.shape or observers.no_data(self.device)

    def differentiable(self, in_place: bool) -> Tensor:
        a = self.operands(plan_words(self.encoding, self.device))
        if in_place:
            return AddInPlace.apply(*a._replace(x=self.x), self.form, self._write)
        return self.form.restored(ADD_DROPOUT(*a))

    def run_into(self, out: Tensor) -> None:
        self.run(self.form.canonical(out))

    def _write(self) -> None:
        self.run_into(self.x)
