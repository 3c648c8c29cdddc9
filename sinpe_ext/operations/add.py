"""`add`: the checked call, and the operators that generate rows of the encoding while they process x.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times its angular frequency, the argument
`angular_frequencies` of `row_dots`. The operator `row_dots` computes the sums over channels, and `add_backward` these
and d x, on CUDA in one pass over grad; for alpha, `tree_sum` adds the sums of all rows. They recompute rows and mask
instead of storing them, and their own derivatives consist of the same operators, so derivatives of every order work.

If the channels of a grid have several encodings, those of its axes, the rows of the axes are generated once and the
operator combines them (`axis_rows`); with a coordinate for each point, or a gradient of alpha, the sum is composed of
torch operations over `encode`. The dropout mask depends on the index of an element in x alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings import resolve, values
from ..encodings.encoding import Encoding
from ..operator import Derivative, Operator, one_by_one
from ..records import Add, AddBackward, Dropout, Embed, RowDots, TreeSum
from ..reference import apply, philox
from ..reference.tiles import accumulation
from ..torch_state import NOT_INTERCEPTED
from . import checks, encoded_rows, grid_rows, layout, memory, repetition
from .dropout import scaled, seed_tensor
from .encoded_rows import (
    ROW_DOTS,
    TREE_SUM,
    derivative_plan,
    reduced,
    row_dots_gradients,
    rows_and_grad,
)
from .layout import Part
from .plans import decoded
from .repetition import constant, is_repeatable
from .sum import Sum, check_sum, sum_operands

_is_compiling = torch.compiler.is_compiling

MAX_TURNED = 1 << 16  # elements: from here on, the operator is slower than torch if x is masked and has channels first


class AddArguments(NamedTuple):
    """The arguments of `add` and `add_` as given by the caller, unchecked; see `functional.add`."""

    x: Any
    encoding: Any = None
    positions: Any = None
    start: Any = 0
    scale: Any = 1.0
    alpha: Any = 1.0
    dropout: Any = 0.0
    seed: Any = None
    padding_mask: Any = None
    seq_dim: Any = -2
    channel_dim: Any = -1
    grid_shape: Any = None
    extra_tokens: Any = 0
    out: Any = None  # of `add_`, x

    def is_sequence(self) -> bool:
        """Whether the encoding is one-dimensional and covers all rows of x."""
        extra = self.extra_tokens
        if self.grid_shape is not None or not isinstance(extra, int) or extra != 0:
            return False
        return not resolve.is_grid(self.encoding)


_X, _SCALE, _SEED = map(AddArguments._fields.index, ("x", "scale", "seed"))


def check_add(arguments: AddArguments, part: Part | None = None) -> CheckedAdd:
    """Checks the arguments of `add`. If `part` is given, x is a shard of a larger tensor."""
    x, encoding, grid = arguments.x, arguments.encoding, None
    checks.check_x(x)
    if type(encoding) is not Encoding and resolve.is_grid(encoding):
        grid = _check_grid(arguments, (x if part is None else part).shape)
    elif arguments.grid_shape is not None:
        checks.refuse_grid_shape(arguments.grid_shape, "pass a GridEncoding, or the name of one")
    of = check_sum("x", x, arguments, layout.of_x(arguments, None if grid is None else len(grid[1]), part), grid)
    return _of_groups(arguments, of) if of.has_groups else CheckedAdd(arguments, x, of)


def _check_grid(arguments: AddArguments, shape: Sequence[int]) -> Any:
    """`grid_rows.outline` for x, or the whole, of `shape`. If a named convention does not accept the number of
    channels, the error also mentions channel_dim."""
    encoding, channel_dim = arguments.encoding, arguments.channel_dim
    width = operator.index(shape[checks.axis("channel_dim", channel_dim, len(shape))])
    if _is_compiling() or not isinstance(encoding, str):
        return grid_rows.outline(encoding, width)
    try:
        return grid_rows.outline(encoding, width)
    except ValueError as error:
        raise ValueError(
            f"{error} (x of shape {tuple(arguments.x.shape)} has {width} channels in its dimension {channel_dim}; "
            "channel_dim says where they are)"
        ) from None


def _of_groups(arguments: AddArguments, of: Sum) -> CheckedAdd:
    """The call for a grid whose channels have several encodings, for which the operator supports less."""
    x, layout, is_masked = arguments.x, of.layout, of.padding_mask is not None
    is_supported = of.positions is None and layout.columns is None and not of.rows_need_grad
    if not of.uses_operator or of.state.must_decompose or not is_supported:
        return CheckedAdd(arguments, x, of._replace(uses_operator=False))
    is_turned = x.stride(layout.channels_at) != 1
    if is_turned and is_masked and x.numel() > MAX_TURNED:
        return CheckedAdd(arguments, x, of._replace(uses_operator=False))
    by_channels = is_turned and x.stride(layout.rows_at[-1]) == 1 and not is_masked and not layout.extra_tokens
    grid, acc = resolve.grid(*of.encoding[:2]), accumulation(of.dtype)
    axis_rows = grid_rows.AxisRows(grid, tuple(layout.lengths), tuple(of.start), acc, of.device, by_channels)
    return CheckedAdd(arguments, x, of, axis_rows, by_channels)


class CheckedAdd(NamedTuple):
    """A call of `add`, whose arguments have been checked.

    Attributes:
        axis_rows: what the operator needs for a grid whose channels have several encodings.
        by_channels: whether the operator gets the points as columns, because they are next to each other in memory.
    """

    arguments: AddArguments
    x: Tensor
    sum: Sum
    axis_rows: grid_rows.AxisRows | None = None
    by_channels: bool = False

    def result(self) -> Tensor:
        """`add`, differentiable."""
        of = self.sum
        call = self._replace(sum=of.drawn()) if of.drop_threshold else self
        if of.uses_operator:
            return call._by_operator()
        if of.needs_grad or self._is_decomposed():
            return call._composed()
        return call._written(torch.empty_like(self.x))  # with the strides of empty_like

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        memory.in_place(self.x)
        self.check_disjoint(self.x)
        return self.write_to(self.x)

    def result_into(self, out: Any) -> Tensor:
        """`add` with `out`."""
        state = self.sum.state
        if state is not NOT_INTERCEPTED:
            memory.refuse_transforms(state, out, self.x, self.sum.alpha, self.sum.positions)
        memory.output(out, self.x, self.sum.has_no_data)
        self.check_disjoint(out)
        if self.sum.needs_grad or (out.requires_grad and torch.is_grad_enabled()):
            memory.refuse_gradient()
        return self.write_to(out)

    def check_disjoint(self, written: Tensor) -> None:
        """Checks that no argument but x shares memory with the tensor that is written to."""
        a = self.arguments
        read = {"positions": a.positions, "start": a.start, "alpha": a.alpha, "padding_mask": a.padding_mask}
        for name, t in (read | {"seed": a.seed}).items():
            if isinstance(t, Tensor):
                memory.check_disjoint(written, name, t)

    def write_to(self, out: Tensor) -> Tensor:
        """Writes the result to `out`, which has been checked and may be x; then differentiable."""
        of = self.sum
        if (of.state is not NOT_INTERCEPTED and self._is_decomposed()) or (of.needs_grad and not of.uses_operator):
            return out.copy_(self.result())
        call = self._replace(sum=of.drawn()) if of.drop_threshold else self
        if not of.uses_operator:
            return call._written(out)
        if out.is_neg():  # kernels would write values of the wrong sign
            return out.copy_(call._by_operator())
        return call._by_operator(out)

    def _is_decomposed(self) -> bool:
        """Whether the call has to consist of operations that return new tensors: a mode may skip an operator that
        writes to an argument."""
        state = self.sum.state
        return state.must_decompose or (state.traced and not self.sum.has_no_data)

    def _written(self, out: Tensor) -> Tensor:
        """Writes the result, not differentiable, to `out` in torch operations."""
        if 0 in self.x.shape or self.sum.has_no_data:
            torch.autograd.graph.increment_version(out)
            return out
        return out.copy_(self._composed())

    def _composed(self) -> Tensor:
        """The result in torch operations."""
        of, x = self.sum, self.sum.layout.canonical(self.x)
        extra = of.layout.extra_tokens
        total = of.added(x.narrow(-2, extra, of.layout.rows) if extra else x)
        if extra:
            total = torch.cat([of.scaled(x.narrow(-2, 0, extra)), total], -2)
        return of.dropped(of.layout.restored(total))

    def _by_operator(self, out: Tensor | None = None) -> Tensor:
        """The result, differentiable, in a new tensor or in `out`, which may be differentiated if it is x."""
        x, layout, state, needs_grad = self.x, self.sum.layout, self.sum.state, self.sum.needs_grad
        is_plain = layout.is_ordered and x.is_contiguous()
        is_viewable = is_plain or layout.is_canonical or layout.is_viewable(x)
        a = self._operands(x if is_viewable else x.contiguous())
        is_new = out is None and (is_plain or state.traced or needs_grad)
        if is_new or not (layout.is_canonical or layout.is_viewable(x if out is None else out)):
            result = ADD(a, state=state)
            result = result.transpose(-1, -2) if self.by_channels else result
            result = result if layout.is_canonical else layout.restored(result)
            if not (is_new and is_viewable):
                result = (torch.empty_like(x) if out is None else out).copy_(result)
        else:
            result = torch.empty_like(x) if out is None else out  # with the strides of x
            ADD(a, a.x if out is x else self._view(result), state)
        if out is not None and not needs_grad:
            torch.autograd.graph.increment_version(out)
        if out is None or not needs_grad:
            self._keep(a, result)
        return result

    def _view(self, t: Tensor) -> Tensor:
        """A tensor with the layout of x as the operator takes it."""
        t = t if self.sum.layout.is_canonical else self.sum.layout.canonical(t)
        return t.transpose(-1, -2) if self.by_channels else t

    def _operands(self, x: Tensor) -> Add:
        """The operands of the operator `add`."""
        of, layout = self.sum, self.sum.layout
        rng_offsets = []
        if of.drop_threshold or of.state.compiling:
            rng_offsets = of.rng_offsets(is_ordered=layout.is_ordered and not self.by_channels)
        if self.by_channels and rng_offsets:
            rng_offsets = [*rng_offsets[:-2], *rng_offsets[:-3:-1]]
        rest = of.scale, layout.extra_tokens, of.drop_threshold, rng_offsets
        seed = of.seed if of.drop_threshold else None
        if self.axis_rows is None:
            alpha = None if of.alpha is None else of.alpha_tensor()
            rows = of.positions, of.padding_mask, alpha, seed, None, of.start[0], of.positions_are_starts
            return Add(self._view(x), of.plan(), *rows, *rest)
        grid, lengths, *_ = self.axis_rows
        packed_grid = grid_rows.pack_grid(grid, lengths, self.by_channels, of.device)
        axis_rows = grid_rows.values(self.axis_rows)
        axis_rows = axis_rows if of.alpha is None else grid_rows.scaled(axis_rows, of.alpha)
        return Add(self._view(x), packed_grid, None, of.padding_mask, None, seed, axis_rows, 0, False, *rest)

    def _keep(self, a: Add, result: Tensor) -> None:
        """Keeps the call with these operands, so that it is repeated in C, where a new result is like x."""
        given, of, layout, x = self.arguments, self.sum, self.sum.layout, self.x
        if (
            layout.part is not None
            or not is_repeatable(x)
            or (of.is_grid and (given.positions is not None or isinstance(given.start, Tensor)))
            or (self.axis_rows is not None and not grid_rows.are_cached(self.axis_rows))
            or (given.out is None and not _have_equal_strides(result, torch.empty_like(x, device="meta")))
        ):
            return
        call = repetition.Call(repetition.ADD, given)
        sizes = [-1 - d for d in range(x.dim())]
        for d in (layout.channels_at, *(layout.rows_at if of.is_grid or layout.extra_tokens else ())):
            sizes[d] = x.shape[d]
        if of.has_groups and of.padding_mask is not None and x.stride(layout.channels_at) != 1:
            sizes = [*x.shape]  # not for larger x, see MAX_TURNED
        rows = layout.rows if of.is_grid or layout.extra_tokens else sizes[layout.rows_at[0]]
        views = *[(d,) for d in layout.batch_at], layout.rows_at, (layout.channels_at,)
        if self.by_channels:
            views = *views[:-2], views[-1], views[-2]
        operands = sum_operands(call, of, a, rows, sizes[layout.batch_at[0]] if layout.batch_at else 1)
        operands["x"] = call.tensor("x", sizes, views)
        operands["rng_offsets"] = repetition.rng_offsets(views) if a.rng_offsets else constant(())
        if self.axis_rows is not None and isinstance(of.alpha, Tensor):
            multiply = partial(grid_rows.scaled, grid_rows.values(self.axis_rows))
            operands["axis_rows"] = call.tensor("alpha", of.alpha.shape, ((0,),), multiply)
        to = repetition.Result(like=call.index["x"])
        if given.out is not None:
            call.tensor("out", sizes, ())
            to = to._replace(written=call.index["out"])
        record = None
        if of.rows_need_grad:
            record = call.recorder(ADD, operands, views)
        elif of.needs_grad:
            record = partial(_record_x, of.drop_threshold)
        call.keep("add", [*operands.values(), repetition.result_of(views)], to, record)


def _have_equal_strides(a: Tensor, b: Tensor) -> bool:
    """Of the dimensions with more than one element."""
    return all([s == t or n == 1 for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)])


def _record_x(drop_threshold: int, result: Tensor, given: tuple[Any, ...], seed: Any) -> Any:
    """The result of a repeated call as differentiable with respect to x: as dropout(scale * x), which differs by a
    constant."""
    x, scale = given[_X], given[_SCALE]
    if not drop_threshold and scale == 1.0:
        return ADD.recorded(result, (x,), _same)
    if 0 < drop_threshold < values.DROP_UNIT:
        seed = seed_tensor(given[_SEED] if seed is None else seed, x.device)
    return ADD.recorded(result, (x,), partial(_x_gradient, seed, drop_threshold, scale))


def _same(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (grad,)


def _x_gradient(seed: Tensor | None, drop_threshold: int, scale: float, ctx: Any, grad: Tensor) -> tuple[Tensor]:
    return (scaled(Dropout(grad, seed, drop_threshold, scale)),)


# ------------------------------------------------------------------------------------------------ operators


def _add_batched(operator: Operator, info: Any, in_dims: Any, *operands: Any) -> tuple[Tensor, int]:
    """The samples are one more dimension of x, if there is no dropout and nothing else has samples or a batch."""
    a, (of_x, *others) = Add(*operands), in_dims
    shared = all(t is None or len(t) == 1 for t in (a.positions, a.padding_mask))
    if a.drop_threshold or not shared or any(isinstance(d, int) for d in others):
        return one_by_one(operator, info, in_dims, *operands)
    return operator.op(*a._replace(x=a.x.movedim(of_x, 0), rng_offsets=[])), 0


def rows_read(needed: Add | Embed) -> tuple[str, ...]:
    """The tensors that determine the rows, if one of their gradients is needed, as of `Derivative.values`. Of alpha
    only the gradient of positions reads the value."""
    rows = ("plan", "positions", "padding_mask") if needed.alpha or needed.positions else ()
    return (*rows, "alpha") if needed.positions else rows


def _gradients(a: Add, needed: Add, grad: Tensor) -> dict[str, Tensor | None]:
    gradients: dict[str, Tensor | None] = {}
    if needed.x and needed.alpha and not a.extra_tokens and (a.drop_threshold or a.scale != 1.0):
        rows = a.plan, a.positions, a.padding_mask, a.seed, a.start, a.positions_are_starts
        both = ADD_BACKWARD(AddBackward(grad, *rows, a.scale, a.drop_threshold, a.rng_offsets))
        gradients["x"], gradients["alpha"] = both[0], summed(both[1], a)
    else:
        if needed.x:
            gradients["x"] = scaled(Dropout(grad, a.seed, a.drop_threshold, a.scale, a.rng_offsets))
        if a.extra_tokens and (needed.alpha or needed.positions):
            grad, a = _behind_extra_tokens(grad, a)
        if needed.alpha:
            gradients["alpha"] = alpha_gradient(grad, a)
    if needed.positions:
        gradients["positions"] = position_gradient(grad, a)
    return gradients


def _behind_extra_tokens(grad: Tensor, a: Add) -> tuple[Tensor, Add]:
    """The gradient of the rows to which an encoding is added, and the operands for these."""
    extra, rng_offsets = a.extra_tokens, a.rng_offsets
    if a.drop_threshold:
        first, *steps = rng_offsets or [0, *philox.row_major(grad.shape)]
        rng_offsets = [first + extra * steps[-2], *steps]
    return grad.narrow(-2, extra, grad.shape[-2] - extra), a._replace(extra_tokens=0, rng_offsets=rng_offsets)


def row_dots_of(grad: Tensor, a: Add | AddBackward | Embed) -> RowDots:
    """The operands of `row_dots` for the rows that `a` adds."""
    rows = a.plan, a.positions, a.padding_mask, None, a.seed, a.start, a.positions_are_starts
    return RowDots(grad, *rows, a.drop_threshold, a.rng_offsets)


def alpha_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d alpha = sum(G * PE)."""
    return summed(ROW_DOTS(row_dots_of(grad, a)), a)


def summed(dots: Tensor, a: Add | Embed) -> Tensor:
    """The gradient with respect to alpha, from the results of `row_dots`."""
    assert a.alpha is not None
    total: Tensor = TREE_SUM(TreeSum(dots))
    return total.reshape(a.alpha.shape).to(a.alpha.dtype)


def position_gradient(grad: Tensor, a: Add | Embed) -> Tensor:
    """d p = alpha * sum_c(G_c * PE'_c) for each row."""
    assert a.positions is not None
    partner, angular_frequencies = derivative_plan(a.plan, grad.shape[-1])
    each = ROW_DOTS(row_dots_of(grad, a)._replace(plan=partner, angular_frequencies=angular_frequencies))
    return reduced(each * a.alpha.to(each.dtype) if isinstance(a.alpha, Tensor) else each, a.positions)


def _add(a: Add, out: Tensor | None = None) -> Tensor:
    return apply.add(decoded(a.plan) if a.axis_rows is None else None, a, out)


# With axis_rows, the derivative is that of x.
ADD = Operator(
    "add",
    Add,
    reference=_add,
    fake=lambda a: torch.empty_like(a.x),
    vmap=_add_batched,
    derivative=Derivative(_gradients, rows_read),
    into=Operator("add_out", Add, "()", reference=_add),
)


def _add_backward(b: AddBackward) -> tuple[Tensor, Tensor]:
    return apply.dropout(b.to_x()), apply.row_dots(decoded(b.plan), row_dots_of(b.grad, b))


def _second_gradients(b: AddBackward, needed: AddBackward, of_x: Tensor, of_dots: Tensor) -> dict[str, Tensor | None]:
    gradients = row_dots_gradients(row_dots_of(b.grad, b), needed, of_dots)
    if needed.grad:
        of_dropout = scaled(b.to_x()._replace(x=of_x))
        gradients["grad"] = of_dropout if (of_rows := gradients["grad"]) is None else of_rows + of_dropout
    return gradients


# The gradient with respect to x, and the result of `row_dots`; on CUDA in one pass over grad.
ADD_BACKWARD = Operator(
    "add_backward",
    AddBackward,
    "(Tensor, Tensor)",
    reference=_add_backward,
    fake=lambda b: (torch.empty_like(b.grad), encoded_rows.empty_dots(b.grad)),
    vmap=one_by_one,
    derivative=Derivative(_second_gradients, rows_and_grad),
)
