"""`add` of a sequence: the checked call, and the operators that generate rows of the encoding while they process x.

A grid, or a sequence with extra tokens: `grid_add.py`.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times its angular frequency, the argument
`slopes` of the operators (`angular_frequencies` in Python). The operator `row_dots` computes the sums over channels,
and `add_backward` these and d x in one pass over grad; they recompute rows and mask instead of storing them, and their
own derivatives consist of the same operators, so derivatives of every order work.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch_state
from ..operator import Operator, one_by_one
from ..reference import apply
from ..reference.tiles import accumulation
from ..torch_state import is_functional, needs_operations
from . import checks, plans
from .call import Form, RowsCall, cached_by_value
from .dropout import scaled
from .encoded_rows import ROW_DOTS, derivative_plan, reduced, row_dots_gradients
from .plans import decoded, pack_plan
from .records import Add, AddArguments, AddBackward, Dropout, Embed, Part, RowDots, save, saved

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
        return self.is_empty or not self._is_exact() or torch_state.no_data(self.device)

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
        if self.x.numel() and not torch_state.no_data(self.device):
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
            packed_plan = plans.graph_plan(*self.given, self.device)
            operands = self.operands(self.form.canonical(self.x), packed_plan)
            return self.form.restored(torch.ops.sinpe_ext.add.default(*operands))
        total = self.sum(self.form.canonical(self.x).to(self.acc))
        return self.form.restored(self.dropped(total).to(self.x.dtype))


# ------------------------------------------------------------------------------------------------ operators


def _add(*operands: Any) -> Tensor:
    a = Add(*operands)
    return apply.add(decoded(a.plan), a)


def _add_batched(info: Any, in_dims: Any, *operands: Any) -> tuple[Tensor, int]:
    """The samples are one more dimension of x, if there is no dropout and nothing else has samples or a batch."""
    a, (of_x, *others) = Add(*operands), in_dims
    shared = all(t is None or len(t) == 1 for t in (a.positions, a.padding_mask))
    if a.drop_threshold or not shared or any(isinstance(d, int) for d in others):
        return one_by_one("add")(info, in_dims, *operands)
    return ADD.op(*a._replace(x=a.x.movedim(of_x, 0), rng_offsets=[])), 0


def _add_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, Add(*inputs), "x")


def _add_backward(ctx: Any, grad: Tensor) -> Any:
    a: Add = saved(ctx)
    needs = Add(*ctx.needs_input_grad[: len(Add._fields)])  # AddInPlace has two more arguments
    to_x = to_alpha = None
    if needs.x and needs.alpha and (a.drop_threshold or a.scale != 1.0):
        rows = a.plan, a.positions, a.padding_mask, a.seed, a.start, a.positions_are_starts
        to_x, dots = ADD_BACKWARD(grad, *rows, a.scale, a.drop_threshold, a.rng_offsets)
        to_alpha = summed(dots, a)
    else:
        if needs.x:
            to_x = scaled(Dropout(grad, a.seed, a.drop_threshold, a.scale, a.rng_offsets))
        if needs.alpha:
            to_alpha = alpha_gradient(grad, a)
    to_positions = position_gradient(grad, a) if needs.positions else None
    return to_x, None, to_positions, None, to_alpha, *(None,) * 6


def row_dots_of(grad: Tensor, a: Add | Embed) -> RowDots:
    """The operands of `row_dots` for the rows that `a` adds."""
    rows = a.plan, a.positions, a.padding_mask, None, a.seed, a.start, a.positions_are_starts
    return RowDots(grad, *rows, a.drop_threshold, a.rng_offsets)


def alpha_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d alpha = sum(G * PE)."""
    return summed(ROW_DOTS(*row_dots_of(grad, a)), a)


def summed(dots: Tensor, a: Add | Embed) -> Tensor:
    """The gradient with respect to alpha, from the results of `row_dots`."""
    assert isinstance(a.alpha, Tensor)
    return dots.sum().reshape(a.alpha.shape).to(a.alpha.dtype)


def position_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d p = alpha * sum_c(G_c * PE'_c) for each row."""
    assert a.positions is not None
    partner, angular_frequencies = derivative_plan(a.plan, grad.shape[-1])
    each = ROW_DOTS(*row_dots_of(grad, a)._replace(plan=partner, angular_frequencies=angular_frequencies))
    return reduced(each * a.alpha.double() if isinstance(a.alpha, Tensor) else each, a.positions)


ADD = Operator(
    "add(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements) -> Tensor",
    reference=_add,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=_add_batched,
    derivative=(_add_setup, _add_backward),
)


class AddInPlace(torch.autograd.Function):
    """In-place `add`: takes its arguments, then the `Form` of x and a function that writes the result to x."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *operands, ctx.form, write = arguments
        ctx.mark_dirty(operands[0])
        _add_setup(ctx, operands, None)
        write()
        return operands[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_x, *others = _add_backward(ctx, ctx.form.canonical(grads[0]))
        return None if to_x is None else ctx.form.restored(to_x), *others, None, None


def _add_out(*operands: Any) -> None:
    *of_sum, out = operands
    a = Add(*of_sum)
    apply.add(decoded(a.plan), a, out)


ADD_OUT = Operator(
    "add_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? alpha, Tensor? seed, "
    "SymInt start, bool positions_are_starts, float scale, int drop, SymInt[] elements, Tensor(a!) out) -> ()",
    reference=_add_out,
    fake=lambda *_: None,
)


def _gradients(*operands: Any) -> tuple[Tensor, Tensor]:
    b = AddBackward(*operands)
    return apply.dropout(b.to_x()), apply.row_dots(decoded(b.plan), b.row_dots())


def _gradients_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, AddBackward(*inputs))


def _gradients_backward(ctx: Any, of_x: Tensor, of_dots: Tensor) -> Any:
    b: AddBackward = saved(ctx)
    to_grad, to_positions = row_dots_gradients(b.row_dots(), of_dots, ctx.needs_input_grad)
    if to_grad is not None:
        to_grad = to_grad + scaled(b.to_x()._replace(x=of_x))
    return to_grad, None, to_positions, *(None,) * 7


# The gradient with respect to x, and the result of `row_dots`, in one pass over grad.
ADD_BACKWARD = Operator(
    "add_backward(Tensor grad, Tensor plan, Tensor? positions, Tensor? padding_mask, Tensor? seed, SymInt start, "
    "bool positions_are_starts, float scale, int drop, SymInt[] elements) -> (Tensor, Tensor)",
    reference=_gradients,
    fake=lambda grad, *_: (torch.empty_like(grad), grad.new_empty(grad.shape[:-1], dtype=torch.float64)),
    vmap=one_by_one("add_backward"),
    derivative=(_gradients_setup, _gradients_backward),
)
