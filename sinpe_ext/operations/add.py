"""`add` of a sequence: the checked call, and the operators that generate rows of the encoding while they process x.

A grid, or a sequence with extra tokens: `grid_add.py`.

out = keep * (scale * x + alpha * PE(p)), keep being the dropout mask times its scale, so with G = keep * grad:
d x = scale * G, d alpha = sum(G * PE), d p = alpha * sum_c(G_c * PE'_c), and a channel's derivative
PE' = 2 pi f * A sin(2 pi (p f + (q + 1)/4)) is the partner plan's channel times its angular frequency, the argument
`angular_frequencies` of `row_dots`. The operator `row_dots` computes the sums over channels, and `add_backward` these
and d x, on CUDA in one pass over grad; for alpha, `tree_sum` adds the sums of all rows. They recompute rows and mask
instead of storing them, and their own derivatives consist of the same operators, so derivatives of every order work.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import torch_state
from ..encodings import resolve, values
from ..encodings.encoding import Encoding
from ..encodings.tracing import refuse_jit_trace
from ..operator import Derivative, Operator, one_by_one
from ..records import Add, AddBackward, Dropout, Embed, RowDots, TreeSum
from ..reference import apply, philox
from ..reference.tiles import accumulation, arranged, widest
from ..torch_state import NOT_INTERCEPTED
from . import checks, dropout, encoded_rows, memory, plans
from .checks import Target
from .dropout import DROPOUT, scaled
from .encoded_rows import (
    ROW_DOTS,
    TREE_SUM,
    derivative_plan,
    reduced,
    row_dots_gradients,
    rows_and_grad,
)
from .plans import decoded, pack_plan

_is_compiling = torch.compiler.is_compiling
_Result = TypeVar("_Result")


class Part(NamedTuple):
    """One shard of a tensor that is sharded along any of its dimensions.

    Attributes:
        shape: shape of the whole.
        first: index in the whole of the first element of the shard, one entry for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]

    def first_offset(self) -> int:
        """Index of the first element of the shard in the row-major order of the whole."""
        return sum(at * step for at, step in zip(self.first, philox.row_major(self.shape), strict=True))


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

    def is_sequence(self) -> bool:
        """Whether the encoding is one-dimensional and covers all rows of x."""
        encoding, extra = self.encoding, self.extra_tokens
        if self.grid_shape is not None or not isinstance(extra, int) or extra != 0:
            return False
        return encoding is None or type(encoding) is Encoding or not resolve.is_grid(encoding)


def cached_by_value(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorator: cache the results of a function of values that are not tensors, such as an encoding and a dropout
    probability, by equality and type. Not used while torch.compile is tracing."""
    cached = lru_cache(maxsize=256, typed=True)(function)

    @wraps(function)
    def call(*values: Any) -> _Result:
        if _is_compiling():
            return function(*values)
        try:
            return cached(*values)
        except TypeError:  # an unhashable argument, or an error of the function, which it raises again
            return function(*values)

    return call


@cached_by_value
def _constants(value: Any, dim: int, columns: Any, probability: Any) -> tuple[Any, int, Tensor | None]:
    """(encoding, drop_threshold, packed plan on the CPU); the first three arguments are those of `resolve.encoding`.
    There is no plan for an encoding that kernels do not support, nor in a graph, which has its own."""
    encoding = resolve.encoding(value, dim, columns)
    drop_threshold = values.drop_threshold(probability)
    has_plan = encoding.angle == "exact" and not _is_compiling()
    return encoding, drop_threshold, pack_plan(encoding) if has_plan else None


class Form:
    """The layout of a tensor with a sequence, and its conversion to canonical form and back.

    Attributes:
        axes: the dimensions of the sequence and of the channels.
    """

    def __init__(self, axes: tuple[int, int], rank: int) -> None:
        self.axes = axes
        self.is_canonical = axes == (rank - 2, rank - 1)
        self.order = [d for d in range(rank) if d not in axes] + [*axes]

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor of this layout in canonical form, as a view."""
        return t if self.is_canonical else t.permute(*self.order)

    def restored(self, t: Tensor) -> Tensor:
        """The inverse of `canonical`."""
        return t if self.is_canonical else t.permute(*(self.order.index(d) for d in range(len(self.order))))

    def rng_offsets(self, shape: Sequence[int], part: Part | None = None) -> list[int]:
        """Philox counter base and stride of each dimension of the canonical form, so that the mask follows the
        row-major order of `shape`, or of the whole of which `part` is a part; empty if the two orders are the same.

        Never empty in a graph: AOTInductor reads an empty list back as None.
        """
        if part is not None:
            steps = philox.row_major(part.shape)
            return [part.first_offset(), *(steps[d] for d in self.order)]
        if self.is_canonical and not _is_compiling():
            return []
        steps = philox.row_major(shape)
        return [0, *(steps[d] for d in self.order)]


class Sum:
    """dropout(scale * x + alpha * PE): what `add` and `embed` have in common. The constructors of its subclasses check
    all arguments.

    Attributes:
        state: what intercepts the call.
        shape: shape of the result in canonical form, (batch, *middle, sequence, channels) or (sequence, channels).
        is_empty: whether the result has no elements.
        device, dtype: those of the result.
        has_own_dispatch: whether x or weight is of a tensor subclass that runs the operations on it itself.
        has_no_data: whether tensors have shapes but no data: on the meta device, or under a FakeTensorMode.
        has_kernel: whether an operator computes the result; none does for float32 angles, empty tensors and tensors
            without data.
        encoding: the encoding.
        encoding_arguments: the caller's arguments for the encoding.
        columns: (first channel, number of channels) of a shard that has only some of the encoding's channels.
        row_offset: index of the first row of a shard in the whole.
        whole_rows: number of rows of the whole.
        positions, padding_mask, seed, start, positions_are_starts, scale, drop_threshold, rng_offsets: as in `Add`.
        alpha: float or tensor; None for 1.
        plan: the packed plan, if it has been made.
    """

    columns: tuple[int, int] | None = None
    row_offset = 0
    whole_rows: int
    start: Any = 0
    positions_are_starts = False
    has_kernel: bool
    has_no_data: bool
    has_own_dispatch: bool
    plan: Tensor | None = None

    state: torch_state.TorchState
    is_empty: bool
    shape: torch.Size
    device: torch.device
    dtype: torch.dtype
    alpha: float | Tensor | None = None
    seed: Tensor | None = None
    rng_offsets: Sequence[int] = ()

    def target(self) -> Target:
        """The argument that the others must match."""
        raise NotImplementedError

    def set_data(self, data: Tensor) -> None:
        """Reads what intercepts the call, refuses torch.jit.trace, and stores what follows from x or weight."""
        self.state = torch_state.read()
        if self.state.jit_tracing:
            refuse_jit_trace()
        self.has_own_dispatch = type(data) not in torch_state.PLAIN and torch_state.has_own_dispatch(data)
        if self.has_own_dispatch:
            self.state = self.state._replace(must_decompose=True)
        self.device, self.dtype = data.device, data.dtype
        self.has_no_data = self.state.fake or data.is_meta

    def set_factors_and_seed(self, arguments: Any) -> None:
        """Checks and stores scale, alpha and seed."""
        # Not cached by `cached_by_value`: 0.0 and -0.0 are equal, but results differ in sign.
        scale, alpha, seed = arguments.scale, arguments.alpha, arguments.seed
        self.scale: float = scale if type(scale) is float else checks.number("scale", scale)
        if type(alpha) is not float or self.state.compiling or alpha != 1.0:
            alpha = checks.alpha(alpha, self.target())
            is_one = not isinstance(alpha, Tensor) and (checks.is_one(alpha) if self.state.compiling else alpha == 1.0)
            self.alpha = None if is_one else alpha
        self.seed_argument = None if seed is None else checks.seed(seed, self.device)

    def set_rows(self, arguments: Any, form: Form, shape: Sequence[int], part: Part | None, data: str) -> None:
        """Checks and stores the arguments that `AddArguments` and `EmbedArguments` share.

        Args:
            form, shape: the layout and the shape of the result.
            part: where the result lies in the whole, if it is a shard.
            data: "x" or "weight", the argument whose channels must be those of the encoding.
        """
        (rows_at, channels_at), whole = form.axes, shape if part is None else part.shape
        self.whole_rows, width, count = whole[rows_at], operator.index(whole[channels_at]), shape[channels_at]
        if part is not None:
            self.row_offset = part.first[rows_at]
            if width != operator.index(count):  # one channel broadcasts to data without channels
                self.columns = min(operator.index(part.first[channels_at]), width - 1), max(operator.index(count), 1)
        self.is_empty = 0 in self.shape
        self.encoding_arguments: plans.EncodingArguments = arguments.encoding, width, self.columns
        self.encoding, self.drop_threshold, plan = _constants(*self.encoding_arguments, arguments.dropout)
        self.plan = None if self.device.type == "cuda" else plan
        if self.drop_threshold or self.state.compiling:
            self.rng_offsets = form.rng_offsets(shape, part)
        self.set_factors_and_seed(arguments)
        mask = arguments.padding_mask
        self.padding_mask = None if mask is None else checks.padding_mask(mask, self.target())
        self.set_positions(arguments.positions, arguments.start)
        self.has_kernel = self.encoding.angle == "exact" and not (self.is_empty or self.has_no_data)
        if arguments.encoding is not None or width:
            is_whole = self.columns is None
            dim = self.encoding.dim if is_whole else resolve.encoding(*self.encoding_arguments[:2]).dim
            checks.channels(data, getattr(arguments, data).shape, width, dim)

    def set_positions(self, positions: Any, start: Any) -> None:
        """Checks and stores positions, or start if there are none."""
        self.positions: Tensor | None = None
        if positions is not None:
            if type(start) is not int or start != 0:
                checks.start_beside_positions(start)
            self.positions = checks.row_tensor("positions", checks.positions(positions), self.target())
            return
        if self.state.context_parallel:
            checks.refuse_in_context_parallel()
        if isinstance(start, Tensor):
            self.positions = checks.start_tensor(start, self.target(), self.encoding.start + self.row_offset)
            self.positions_are_starts = True
        elif self.state.compiling and isinstance(start, (int, torch.SymInt)):
            self.start = start + self.row_offset  # may be symbolic; the operator checks the range
        else:
            if type(start) is not int or not values.INT64_MIN <= start <= values.INT64_MAX:
                checks.refuse_list(start, self.target())
                start = values.start(start)
            first = self.encoding.start + start
            if first < values.INT64_MIN or first > values.INT64_MAX - self.whole_rows:
                values.position_range(first, self.whole_rows)
            self.start = start + self.row_offset

    def draw(self) -> None:
        """With dropout, sets the seed or draws it; after all checks, so that a call that raises does not advance the
        generator."""
        if self.is_empty:
            self.drop_threshold = 0
        elif 0 < self.drop_threshold < values.DROP_UNIT:
            self.seed = dropout.seed_tensor(self.seed_argument, self.device)

    def needs_grad(self, other: Tensor) -> bool:
        """Whether a gradient of this call is needed; `other` is x or weight."""
        if not torch.is_grad_enabled():
            return False
        alpha, positions = self.alpha, self.positions
        return bool(
            other.requires_grad
            or (isinstance(alpha, Tensor) and alpha.requires_grad)
            or (positions is not None and positions.requires_grad)
        )

    def packed_plan(self) -> Tensor:
        """The plan as the operators take it, if it is not in `plan`."""
        if self.state.compiling:
            return plans.graph_plan(*self.encoding_arguments, self.device)
        return pack_plan(self.encoding, self.device)

    def alpha_tensor(self) -> Tensor | None:
        """alpha as the operators take it."""
        alpha = self.alpha
        if alpha is None or isinstance(alpha, Tensor):
            return alpha
        return dropout.number(alpha, widest(self.device), self.device)

    def uses_operator(self, learns: bool = False) -> bool:
        """Whether an operator computes the result. Otherwise torch operations do, which a compiler can fuse with others
        and torch.func can transform.

        In a graph an operator is used with dropout, because generating the mask is most of the work and compiled loops
        are several times slower at it, and if it has a derivative that is better than the compiler's (`learns`).
        """
        state = self.state
        if not self.has_kernel or not state.compiling or self.has_own_dispatch:
            return self.has_kernel and not state.must_decompose
        return bool(self.drop_threshold or learns) and not state.transformed and not torch_state.is_exporting()

    def composed(self) -> Tensor:
        """The result in torch operations."""
        raise NotImplementedError

    def rows(self) -> Tensor:
        """The rows of the encoding in the type of the sum, broadcastable to `shape`; differentiable."""
        length, acc, positions = self.shape[-2], accumulation(self.dtype), self.positions
        if positions is None:
            rows = encoded_rows.table(self.encoding_arguments, length, self.start, acc, self.device)
        else:
            positions = encoded_rows.row_positions(positions, self.positions_are_starts, length)
            rows = encoded_rows.encode(self.encoding_arguments, positions, acc)
        return arranged(rows, len(self.shape))

    def sum(self, x: Tensor) -> Tensor:
        """scale * x + alpha * PE in the type of the sum, for x in canonical form; differentiable."""
        rows, acc = self.rows(), accumulation(self.dtype)
        x = x.to(acc)
        if not checks.is_one(self.scale):
            x = x * self.scale
        if self.alpha is not None:
            rows = rows * (self.alpha.to(acc) if isinstance(self.alpha, Tensor) else self.alpha)
        if self.padding_mask is not None:
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 into +0.0. Not torch.where, which would copy the
            # number to the device and wait for it.
            mask = arranged(self.padding_mask.unsqueeze(-1), len(self.shape))
            rows = rows.masked_fill(mask, -0.0)
        return x + rows

    def dropped(self, total: Tensor, rng_offsets: Sequence[int] | None = None) -> Tensor:
        """Dropout of a sum in canonical form, in the result's dtype, differentiable; under torch.func the mask is
        computed in torch operations."""
        if not self.drop_threshold:
            return total.to(self.dtype)
        rng_offsets = self.rng_offsets if rng_offsets is None else rng_offsets
        d = Dropout(total, self.seed, self.drop_threshold, 1.0, rng_offsets)
        has_own_dispatch = self.has_own_dispatch and torch_state.has_own_dispatch(total)
        if not self.state.transformed and not has_own_dispatch:
            return DROPOUT(d).to(self.dtype)
        if self.state.compiling:
            ones = torch.ones(total.shape, dtype=total.dtype, device=self.device)
            keep = DROPOUT(d._replace(x=ones)) != 0
        else:
            keep = philox.keep(self.seed, self.drop_threshold, total.shape, rng_offsets, self.device)
        return (total * philox.kept_scale(self.drop_threshold)).masked_fill(~keep, 0.0).to(self.dtype)


def _make_form(rank: int, seq_dim: Any, channel_dim: Any) -> Form:
    """The layout of x for these dimensions, checked."""
    rows_at, channels_at = checks.axis("seq_dim", seq_dim, rank), checks.axis("channel_dim", channel_dim, rank)
    checks.two_dimensions(rows_at, channels_at, seq_dim, channel_dim)
    return Form((rows_at, channels_at), rank)


_form = cached_by_value(_make_form)


class Addition(Sum):
    """`add`: what a sequence and a grid have in common.

    Attributes:
        arguments: as given by the caller.
        x: as given.
        form: the layout of x.
    """

    form: Any

    def set_x(self, arguments: AddArguments) -> None:
        """Checks and stores x."""
        checks.check_x(arguments.x)
        self.x: Tensor = arguments.x
        self.arguments = arguments
        self.set_data(self.x)

    def operands(self, x: Tensor) -> Add:
        """The operands of the operator `add`, for x in canonical form."""
        plan = self.packed_plan() if self.plan is None else self.plan
        rng_offsets = self.rng_offsets if self.drop_threshold else []
        return Add(
            x, plan, self.positions, self.padding_mask, self.alpha_tensor(), self.seed, self.start,
            self.positions_are_starts, self.scale, self.drop_threshold, rng_offsets,
        )  # fmt: skip

    def by_operator(self, out: Tensor | None = None) -> Tensor:
        """The result, differentiable, in a new tensor or in `out`, which may be differentiated if it is x; for calls
        that use an operator."""
        raise NotImplementedError

    def result(self) -> Tensor:
        """`add`, differentiable; of a jagged x, a jagged tensor."""
        return self.computed()

    def computed(self) -> Tensor:
        """The result in a new tensor, differentiable."""
        self.draw()
        if self.uses_operator():
            return self.by_operator()
        is_seen = self.state.must_decompose or (self.state.traced and not self.has_no_data)
        if is_seen or self.needs_grad(self.x):
            return self.composed()
        return self._written(torch.empty_like(self.x))  # with the strides of empty_like

    def result_in_place(self) -> Tensor:
        """`add_`, differentiable."""
        memory.in_place(self.x)
        self.check_disjoint(self.x)
        return self.write_to(self.x)

    def result_into(self, out: Any) -> Tensor:
        """`add` with `out`."""
        if self.state is not NOT_INTERCEPTED:
            memory.refuse_transforms(self.state, out, self.x, self.alpha, self.positions)
        memory.output(out, self.x, self.has_no_data)
        self.check_disjoint(out)
        memory.refuse_gradient(self.needs_grad(self.x) or out.requires_grad)
        return self.write_to(out)

    def _written(self, out: Tensor) -> Tensor:
        """Writes the result, not differentiable, to `out` in torch operations."""
        if self.is_empty or self.has_no_data:
            torch.autograd.graph.increment_version(out)
            return out
        return out.copy_(self.composed())

    def check_disjoint(self, written: Tensor) -> None:
        """Checks that no argument but x shares memory with the tensor that is written to."""
        a = self.arguments
        read = {"positions": a.positions, "start": a.start, "alpha": a.alpha, "padding_mask": a.padding_mask}
        memory.check_disjoint(written, seed=a.seed, **read)

    def write_to(self, out: Tensor) -> Tensor:
        """Writes the result to `out`, which has been checked."""
        state = self.state
        # A mode may skip an operator that writes to an argument.
        is_seen = state.must_decompose or (state.traced and not self.has_no_data)
        if is_seen or (not self.has_kernel and self.needs_grad(self.x)):
            return out.copy_(self.computed())
        self.draw()
        if not self.has_kernel:
            return self._written(out)
        if out.is_neg():  # kernels would write values of the wrong sign
            return out.copy_(self.by_operator())
        self.by_operator(out)
        if not self.needs_grad(self.x):
            torch.autograd.graph.increment_version(out)
        return out


class SequenceAdd(Addition):
    """`add` with a one-dimensional encoding. If `part` is given, x is a shard of a larger tensor."""

    def __init__(self, arguments: AddArguments, part: Part | None = None) -> None:
        self.set_x(arguments)
        shape = arguments.x.shape
        seq_dim, channel_dim = arguments.seq_dim, arguments.channel_dim
        # Other types than int are not cached: a tensor may change.
        form_of = _form if type(seq_dim) is int and type(channel_dim) is int else _make_form
        self.form = form = form_of(len(shape), seq_dim, channel_dim)
        self.shape = shape if form.is_canonical else torch.Size([shape[d] for d in form.order])
        self.set_rows(arguments, form, shape, part, "x")

    def target(self) -> Target:
        x, rows_at = self.x, self.form.axes[0]
        return Target("x", x.shape, x.device, self.shape[0] if len(self.shape) > 2 else 1, x.shape[rows_at])

    def by_operator(self, out: Tensor | None = None) -> Tensor:
        x, form = self.x, self.form
        is_plain = form.is_canonical and x.is_contiguous()
        if out is None and (is_plain or self.state.traced or self.needs_grad(x)):
            return form.restored(ADD(self.operands(form.canonical(x)), state=self.state))
        out = torch.empty_like(x) if out is None else out
        x = form.canonical(x)
        ADD(self.operands(x), x if out is self.x else form.canonical(out), self.state)
        return out

    def composed(self) -> Tensor:
        return self.form.restored(self.dropped(self.sum(self.form.canonical(self.x))))


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
    if needed.x and needed.alpha and (a.drop_threshold or a.scale != 1.0):
        rows = a.plan, a.positions, a.padding_mask, a.seed, a.start, a.positions_are_starts
        both = ADD_BACKWARD(AddBackward(grad, *rows, a.scale, a.drop_threshold, a.rng_offsets))
        gradients["x"], gradients["alpha"] = both[0], summed(both[1], a)
    else:
        if needed.x:
            gradients["x"] = scaled(Dropout(grad, a.seed, a.drop_threshold, a.scale, a.rng_offsets))
        if needed.alpha:
            gradients["alpha"] = alpha_gradient(grad, a)
    if needed.positions:
        gradients["positions"] = position_gradient(grad, a)
    return gradients


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


ADD = Operator(
    "add",
    Add,
    reference=lambda a: apply.add(decoded(a.plan), a),
    fake=lambda a: torch.empty_like(a.x),
    vmap=_add_batched,
    derivative=Derivative(_gradients, rows_read),
    into=Operator("add_out", Add, "()", reference=lambda a, out: apply.add(decoded(a.plan), a, out)),
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
