"""`add` with a grid, or with a sequence behind extra tokens: the layout of x, the checked call and its derivative.

If one encoding covers all channels of x, the operators of `add.py` generate its rows while they process x. If a grid
has several groups, the rows of the axes are generated once and the operator `add_grid_out` combines them. If each grid
point has its own coordinates, or alpha or the coordinates need a gradient, the sum is composed of torch operations over
`encode`. The dropout mask depends on the index of an element in x alone, so it is the same in all these cases.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings import resolve, values
from ..encodings.grid import GridEncoding
from ..operator import Operator
from ..records import AddGrid, Dropout
from ..reference import grid_add, philox
from ..reference.tiles import accumulation, arranged
from . import checks, grid_rows
from .add import ADD, AddArguments, Addition, Part, cached_by_value
from .dropout import DROPOUT, scaled
from .encoded_rows import row_positions

_is_compiling = torch.compiler.is_compiling


class _GridArguments(NamedTuple):
    """The arguments of a call that are not data: the shapes of x and positions, and the arguments of `add` and of
    `GridAdd` with these names."""

    shape: tuple[int, ...]
    positions_shape: tuple[int, ...] | None
    encoding: Any
    grid_shape: Any
    seq_dim: Any
    channel_dim: Any
    extra_tokens: Any
    dropout: Any
    part: Part | None
    is_flat: bool | None


class GridForm:
    """The layout of x of `add` for a grid, or for a sequence with extra tokens. `points` are the points of the grid.

    Attributes:
        lengths: lengths of the axes; (S,) if the grid is flattened and no `grid_shape` was given.
        extra: number of extra tokens, which precede the grid in the sequence.
        canonical_shape: (*B, S, C), without extra tokens.
        rng_offsets: Philox counter base and stride of each dimension of the canonical form, in row-major order of x's
            own shape, or of the shape of the whole that x is a part of.
        own_rng_offsets: the same for x as it is; its first entry, `first`, is the index of x's first element.
        is_evenly_spaced: whether a sample's grid points are evenly spaced in the whole. In a box cut out of a grid they
            are not, and `rng_offsets` is invalid.
    """

    def __init__(self, of: _GridArguments, axes: int) -> None:
        shape, grid_shape, seq_dim, part, is_flat = of.shape, of.grid_shape, of.seq_dim, of.part, of.is_flat
        rank = len(shape)
        self.extra = checks.extra_tokens(of.extra_tokens)
        self.channels_at = checks.axis("channel_dim", of.channel_dim, rank)
        others = [d for d in range(rank) if d != self.channels_at]
        grid_shape = None if grid_shape is None else checks.grid_lengths("grid_shape", grid_shape, axes)
        rows_at = checks.axis("seq_dim", seq_dim, rank)
        if axes == 1 and seq_dim == -2 and rows_at == self.channels_at and others:
            rows_at = others[-1]  # channels first
        if is_flat is None:
            is_flat = axes == 1 or self._decide(of, grid_shape, axes, others, rows_at)
        self.is_flat = is_flat
        if self.is_flat:
            checks.two_dimensions(rows_at, self.channels_at, seq_dim, of.channel_dim)
            self.rows_at = [rows_at]
            size = shape[rows_at] - self.extra
            if size < 0 or (grid_shape is not None and size != math.prod(grid_shape)):
                self._refuse(shape, grid_shape)
            self.lengths: tuple[int, ...] = (size,) if grid_shape is None else grid_shape
        else:
            if rows_at != rank - 2:
                raise ValueError(
                    f"seq_dim: expected -2, its default, where the grid's axes are dimensions of x, got {seq_dim}; use "
                    "x.movedim to bring the axes to the end"
                )
            self.rows_at = others[len(others) - axes :]
            self.lengths = tuple(shape[d] for d in self.rows_at)
        self.batch_at = [d for d in others if d not in self.rows_at]
        self.batch = shape[self.batch_at[0]] if self.batch_at else 1
        self.points = math.prod(self.lengths)
        self.canonical_shape = (*(shape[d] for d in self.batch_at), self.points, shape[self.channels_at])
        steps = philox.row_major(shape if part is None else part.shape)
        self.first = 0 if part is None else part.first_offset()
        self.own_rng_offsets = [self.first, *steps]
        self.is_evenly_spaced = all(steps[a] == shape[b] * steps[b] for a, b in itertools.pairwise(self.rows_at))
        self.rng_offsets = [self.first + (self.extra * steps[self.rows_at[0]] if self.is_flat else 0)]
        self.rng_offsets += [*(steps[d] for d in self.batch_at), steps[self.rows_at[-1]], steps[self.channels_at]]

    def _decide(self, of: _GridArguments, grid_shape: Any, axes: int, others: list[int], rows_at: int) -> bool:
        """Whether the grid is flattened in the sequence; `others` are all dimensions except the channels."""
        rank, shape, positions = len(of.shape), tuple(of.shape), of.positions_shape
        at = others[len(others) - axes :]
        if grid_shape is None:
            has_positions = positions is not None and len(positions) > 1
            if rank > axes + 1 and not self.extra:
                if positions is not None and 2 <= len(positions) <= 3 and positions[-2] == shape[rows_at]:
                    dims = tuple(shape[d] for d in at)
                    if positions[:-1][-axes:] != dims:  # coordinates for each row of the sequence
                        return True
                self._check_channels_outside(at)
                return False
            if has_positions:
                return True
            if positions is not None:
                raise ValueError(
                    f"positions: expected coordinates of a grid of {axes} axes in the last dimension, got shape "
                    f"{tuple(positions)}; stack those of the axes, as positions.grid does"
                )
            why = f"extra_tokens={self.extra}" if self.extra else f"x of {rank} dimensions and a grid of {axes} axes"
            raise ValueError(
                f"grid_shape: expected the lengths of the grid's axes for {why}, got None with x of shape {shape}; "
                f"pass grid_shape=({', '.join('HWD'[:axes] if axes < 4 else ['...'])}), whose product is the length of "
                "the sequence without extra_tokens, or which are dimensions of an x without batch; for channels first "
                "also channel_dim"
            )
        if rows_at != self.channels_at and shape[rows_at] == self.extra + math.prod(grid_shape):
            return True
        if len(others) >= axes and tuple(shape[d] for d in at) == grid_shape and not self.extra:
            self._check_channels_outside(at)
            return False
        self._refuse(of.shape, grid_shape)
        return True

    def _refuse(self, of: Sequence[int], grid_shape: Any) -> None:
        """Raises ValueError for a grid_shape, or extra_tokens, that does not match the shape of x."""
        shape = tuple(of)
        if grid_shape is None:
            raise ValueError(
                f"extra_tokens: expected at most {shape[self.rows_at[0]]}, the sequence of x of shape {shape}, got "
                f"{self.extra}; lower it"
            )
        raise ValueError(
            f"grid_shape: expected a sequence of {self.extra + math.prod(grid_shape)} rows (extra_tokens and "
            f"{' * '.join(map(str, grid_shape))} grid points) or the dimensions {grid_shape} in x, got x of shape "
            f"{shape}; pass the grid_shape, seq_dim and channel_dim of x"
            + (", extra_tokens=1 for a class token" if not self.extra and math.prod(grid_shape) + 1 in shape else "")
        )

    def _check_channels_outside(self, rows_at: Sequence[int]) -> None:
        """Raises ValueError if the channels lie between the grid's dimensions."""
        if rows_at[0] < self.channels_at < rows_at[-1]:
            raise ValueError(
                f"channel_dim: expected the channels before or after the grid's dimensions {tuple(rows_at)}, got "
                f"{self.channels_at}, which lies between them; use x.movedim(channel_dim, -1)"
            )

    def shapes(self) -> list[tuple[tuple[int, ...], bool]]:
        """The shapes that positions (without the coordinates) and padding_mask may have, each with whether its first
        dimension is the batch."""
        every: list[tuple[tuple[int, ...], bool]] = []
        for dims in ((self.points,), tuple(self.lengths)) if self.is_flat else (tuple(self.lengths),):
            every += [(dims, False)]
            every += [((1, *dims), True), ((self.batch, *dims), True)] if self.batch_at else []
        return every

    def is_viewable(self, t: Tensor) -> bool:
        """Whether the grid points of a tensor with the shape of x are evenly spaced in memory, so that they can be
        viewed as one dimension."""
        if t.is_contiguous():
            return True
        sized = [(t.shape[d], t.stride(d)) for d in self.rows_at if t.shape[d] != 1]
        return all(step == size * inner for (_, step), (size, inner) in itertools.pairwise(sized))

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor with the shape of x as (*B, S, C): a view if `is_viewable`."""
        t = t.permute(*self.batch_at, *self.rows_at, self.channels_at)
        first = len(self.batch_at)
        if self.is_flat:
            return t.narrow(first, self.extra, t.shape[first] - self.extra) if self.extra else t
        if len(self.rows_at) == 1:
            return t
        # Not flatten, which autograd.grad(is_grads_batched=True) does not support.
        shape = t.shape
        return t.reshape(*shape[:first], self.points, *shape[first + len(self.rows_at) :])

    def front(self, t: Tensor) -> Tensor:
        """The extra tokens of a tensor with the shape of x."""
        return t.narrow(self.rows_at[0], 0, self.extra)

    def restored(self, canonical: Tensor) -> Tensor:
        """The inverse of `canonical`, without the extra tokens."""
        t = canonical if self.is_flat else canonical.unflatten(len(self.batch_at), self.lengths)
        order = [*self.batch_at, *self.rows_at, self.channels_at]
        return t if order == sorted(order) else t.permute(*(order.index(d) for d in range(len(order))))


class _GridConstants(NamedTuple):
    """What follows from a `_GridArguments`; `form`, `grid` and `is_single_encoding` are those of `GridAdd`.

    Attributes:
        is_grid: whether the encoding is a grid, and not a sequence behind extra tokens.
        grid_given: the encoding as given, and the number of channels of the whole.
        firsts: the starts of the axes' encodings.
        columns: as in `Sum`.
        is_exact: whether the kernels support the encodings of all axes.
    """

    form: GridForm
    is_grid: bool
    grid: GridEncoding | None
    grid_given: tuple[Any, int]
    firsts: tuple[int, ...]
    columns: tuple[int, int] | None
    drop_threshold: int
    is_single_encoding: bool
    is_exact: bool


def _make_grid_constants(*layout: Any) -> _GridConstants:
    """Checks the fields of a `_GridArguments`."""
    of = _GridArguments(*layout)
    channels_at = checks.axis("channel_dim", of.channel_dim, len(of.shape))
    width = operator.index((of.shape if of.part is None else of.part.shape)[channels_at])
    columns = None
    if of.part is not None and width != of.shape[channels_at]:
        columns = of.part.first[channels_at], of.shape[channels_at]
    dim, firsts = _dim_and_starts(of, width)
    is_grid = resolve.is_grid(of.encoding)
    if not is_grid:
        checks.refuse_grid_shape(of.grid_shape, "pass a GridEncoding, or the name of one")
    checks.channels("x", of.shape, width, dim)
    form = GridForm(of, len(firsts))
    drop_threshold = values.drop_threshold(of.dropout)
    is_single_encoding = not is_grid
    if is_grid and len(firsts) == 1 and columns is None:
        ((_, _, _, covered, _), *others) = grid_rows.layout(of.encoding, width)
        is_single_encoding = not others and covered == dim
    grid = resolve.grid(of.encoding, width)
    return _GridConstants(
        form,
        is_grid,
        None if _is_compiling() else grid,  # the compiler must not trace into it
        (of.encoding, width),
        firsts,
        columns,
        drop_threshold,
        is_single_encoding,
        all([axis.angle == "exact" for axis in grid.axes]),
    )


_grid_constants = cached_by_value(_make_grid_constants)


def _dim_and_starts(of: _GridArguments, width: int) -> tuple[int, tuple[int, ...]]:
    """`resolve.grid_dim_and_starts`; if a named convention does not accept the number of channels, the error also
    mentions channel_dim."""
    if _is_compiling() or not isinstance(of.encoding, str):
        return resolve.grid_dim_and_starts(of.encoding, width)
    try:
        return resolve.grid_dim_and_starts(of.encoding, width)
    except ValueError as error:
        raise ValueError(
            f"{error} (x of shape {tuple(of.shape)} has {width} channels in its dimension {of.channel_dim}; "
            "channel_dim says where they are)"
        ) from None


class DifferentiableGrid(torch.autograd.Function):
    """`add` with a grid, differentiable in x; the result is written to x or to a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: GridAdd, into_x: bool) -> Tensor:
        # Nothing is saved, not even the seed: see `Derivative`.
        ctx.dropout = call.seed, call.drop_threshold, call.scale, [] if call.is_whole else call.form.own_rng_offsets
        if not into_x and call.state.traced:  # as in `by_operator`
            return call.composed()
        out = x if into_x else torch.empty_like(x)
        call.write(out)
        if into_x:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return scaled(Dropout(*grads, *ctx.dropout)), None, None


class GridAdd(Addition):
    """`add` with a grid, or with extra tokens.

    Attributes:
        is_single_encoding: whether one encoding covers all channels; if not, each group of a grid covers some of them,
            and there is no `encoding` and no `encoding_arguments`.
        grid: the GridEncoding; None in a graph.
        shape: shape of x in canonical form, without extra tokens.
        positions: as in Sum; for a grid (1 or B, S, axes).
        starts: one per axis, relative to `firsts`, the starts of the axes' encodings, if positions is None.

    If `part` is given, x is a shard of a larger tensor. The arguments are then in canonical form, `start` has one item
    per axis, and `is_flat` is that of the form of the whole.
    """

    form: GridForm
    firsts: tuple[int, ...]
    starts: list[Any]
    grid: Any

    def __init__(self, arguments: AddArguments, part: Part | None = None, is_flat: bool | None = None) -> None:
        self.set_x(arguments)
        x, positions, encoding = self.x, arguments.positions, arguments.encoding
        if positions is not None:
            values.dense_tensor("positions", positions)
        shapes = x.shape, None if positions is None else tuple(positions.shape)
        lengths = arguments.grid_shape
        if isinstance(lengths, (list, tuple)):
            lengths = tuple(lengths)
        seq_dim, channel_dim, extra_tokens = arguments.seq_dim, arguments.channel_dim, arguments.extra_tokens
        # Other types than int are not cached: 4.0 equals 4, and a tensor may change.
        numbers = seq_dim, channel_dim, extra_tokens, *(lengths if type(lengths) is tuple else ())
        is_cached = (lengths is None or type(lengths) is tuple) and {*map(type, numbers)} == {int}
        constants_of = _grid_constants if is_cached else _make_grid_constants
        known = constants_of(
            *shapes, encoding, lengths, seq_dim, channel_dim, extra_tokens, arguments.dropout, part, is_flat
        )
        self.form, self.firsts, self.grid, self.grid_given = known.form, known.firsts, known.grid, known.grid_given
        self.columns, self.drop_threshold = known.columns, known.drop_threshold
        self.is_single_encoding = known.is_single_encoding
        form = self.form
        self.whole_rows, self.is_whole = form.points, part is None
        self.shape = torch.Size(form.canonical_shape)
        self.set_factors_and_seed(arguments)
        if part is not None:  # checked, and in canonical form
            self.positions, self.starts, self.padding_mask = positions, arguments.start, arguments.padding_mask
        elif known.is_grid:
            self._set_coordinates(arguments, form)
        else:
            self._set_sequence_after_extra_tokens(arguments)
        self.rng_offsets = form.rng_offsets
        self.is_empty = 0 in x.shape
        has_some_channels_of_grid = self.columns is not None and not self.is_single_encoding
        is_unsupported = has_some_channels_of_grid or (self.drop_threshold > 0 and not form.is_evenly_spaced)
        is_unsupported |= self.positions is not None and not self.is_single_encoding
        if torch.is_grad_enabled():  # the derivative of the operators is that of x
            is_unsupported |= any(isinstance(t, Tensor) and t.requires_grad for t in (self.alpha, self.positions))
        if self.is_single_encoding:
            self._set_single_encoding(known.is_grid)
        self.has_kernel = known.is_exact and not (is_unsupported or self.is_empty or self.has_no_data)

    def target(self) -> checks.Target:
        return checks.Target("x", self.x.shape, self.device, self.form.batch, self.form.points)

    def _set_sequence_after_extra_tokens(self, arguments: AddArguments) -> None:
        """Checks the arguments of a one-dimensional encoding with extra tokens, as without them."""
        self.encoding = resolve.encoding(*self.grid_given)
        self.set_positions(arguments.positions, arguments.start)
        mask = arguments.padding_mask
        self.padding_mask = None if mask is None else checks.padding_mask(mask, self.target())
        self.starts = [self.start]

    def _set_coordinates(self, arguments: AddArguments, form: GridForm) -> None:
        """Checks and stores positions, start and padding_mask of a grid."""
        axes, mask = len(self.firsts), arguments.padding_mask
        shapes = form.shapes() if arguments.positions is not None or mask is not None else []
        self.padding_mask = None if mask is None else checks.grid_padding_mask(mask, shapes, self.x)
        self.positions: Tensor | None = None
        self.starts = [0] * axes
        if arguments.positions is not None:
            checks.start_beside_positions(arguments.start)
            self.positions = checks.grid_positions(arguments.positions, axes, shapes, self.x)
            return
        if self.state.context_parallel:
            checks.refuse_in_context_parallel()
        if type(arguments.start) is int and arguments.start == 0 and not any(self.firsts):
            return
        batch = form.batch if form.batch_at else None
        starts = checks.grid_starts(arguments.start, self.firsts, form.lengths, batch, self.device)
        if isinstance(starts, Tensor):
            self.positions = self._implicit_coordinates([0] * axes) + starts.unsqueeze(1)
        else:
            self.starts = starts

    def _set_single_encoding(self, is_grid: bool) -> None:
        """Sets the attributes of Sum for a grid with one axis."""
        value, width = self.grid_given
        if self.columns is not None:
            first, count = self.columns
            self.columns = min(first, width - 1), max(count, 1)  # one channel broadcasts to data without channels
        self.encoding_arguments = value, width, 0 if is_grid else self.columns
        self.encoding = resolve.encoding(*self.encoding_arguments)
        if self.positions is not None:
            self.positions = self.positions.select(-1, 0) if self.positions.dim() > 2 else self.positions
        elif isinstance(self.starts[0], Tensor):
            self.positions, self.positions_are_starts = (self.starts[0] + self.firsts[0]).reshape(1, 1), True
            self.start = 0
        else:
            self.start = self.starts[0]

    def coordinates(self) -> Tensor:
        """The coordinates of each grid point, (1 or B, S, axes), computed if they are implicit. (Grids only.)"""
        if self.positions is None:
            return self._implicit_coordinates(self.starts)
        if not self.is_single_encoding:
            return self.positions
        return row_positions(self.positions, self.positions_are_starts, self.shape[-2]).unsqueeze(-1)

    def _implicit_coordinates(self, starts: list[Any]) -> Tensor:
        """Implicit coordinates that begin at `starts`, (1, S, axes) int64."""
        axes = [
            torch.arange(size, device=self.device) + (first + start)
            for size, first, start in zip(self.form.lengths, self.firsts, starts, strict=True)
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(self.firsts))

    def uses_operator(self, learns: bool = False) -> bool:
        return self.has_kernel and not self.state.must_decompose

    def by_operator(self, out: Tensor | None = None) -> Tensor:
        if self.needs_grad(self.x):
            return DifferentiableGrid.apply(self.x, self, out is not None)
        if out is None and self.state.traced:  # a mode may skip an operator that writes to an argument
            return self.composed()
        out = torch.empty_like(self.x) if out is None else out
        self.write(out)
        return out

    def write(self, target: Tensor) -> None:
        """Computes the result into `target`, which has the layout of x."""
        x, to, form = self.x, target, self.form
        x = x if form.is_viewable(x) else x.contiguous()
        is_viewable = form.is_viewable(to)
        to = to if is_viewable else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if form.extra:
            seeded = Dropout(form.front(x), self.seed, self.drop_threshold, self.scale, form.own_rng_offsets)
            form.front(to).copy_(DROPOUT(seeded))
        if self.shape[-2]:
            self.fill(form.canonical(x), form.canonical(to))
        if not is_viewable:
            target.copy_(to)

    def fill(self, x: Tensor, target: Tensor) -> None:
        """Computes the points of the grid into `target`; both are in canonical form."""
        if self.is_single_encoding:
            ADD(self.operands(x), target, self.state)
        else:
            self._fill_shared(x, target)

    def _fill_shared(self, x: Tensor, target: Tensor) -> None:
        """Computes a grid whose coordinates are the same for all samples."""
        by_channels = x.stride(-1) != 1 == x.stride(-2) and target.stride(-1) != 1 == target.stride(-2)
        rng_offsets = [*self.rng_offsets] if self.drop_threshold else []
        if not by_channels:
            self._fill_rows(x, target, False, self.padding_mask, rng_offsets)
            return
        x, target = x.transpose(-1, -2), target.transpose(-1, -2)
        rng_offsets = [*rng_offsets[:-2], *rng_offsets[:-3:-1]]
        if self.padding_mask is None:
            self._fill_rows(x, target, True, None, rng_offsets)
            return
        # The channels-first kernel takes no mask, and the other one would access memory with large strides.
        plain = self.drop_threshold == 0 and self.scale == 1.0 and x.data_ptr() != target.data_ptr()
        bare = x if plain else DROPOUT(Dropout(x, self.seed, self.drop_threshold, self.scale, rng_offsets))
        self._fill_rows(x, target, True, None, rng_offsets)
        mask = arranged(self.padding_mask.unsqueeze(-2), x.dim())
        torch.where(mask, bare, target, out=target)

    def _fill_rows(
        self, x: Tensor, target: Tensor, by_channels: bool, mask: Tensor | None, rng_offsets: list[int]
    ) -> None:
        """Calls the kernel or the reference: (*B, S, C), or channels first (*B, C, S)."""
        lengths = tuple(self.form.lengths)
        acc = accumulation(self.dtype)
        rows = grid_rows.AxisRows(self.grid, lengths, tuple(self.starts), acc, self.device, by_channels)
        values = grid_rows.values(rows, self.alpha)
        packed_grid = grid_rows.pack_grid(self.grid, lengths, by_channels, self.device)
        ADD_GRID_OUT(
            AddGrid(x, values, packed_grid, mask, self.seed, self.scale, self.drop_threshold, rng_offsets),
            target,
            self.state,
        )

    def composed(self) -> Tensor:
        form = self.form
        total = form.restored(self.sum(form.canonical(self.x)))
        if form.extra:
            front = form.front(self.x).to(accumulation(self.dtype)) * self.scale
            total = torch.cat([front, total], form.rows_at[0])
        return self.dropped(total, form.own_rng_offsets)

    def rows(self) -> Tensor:
        """As in Sum; with several groups, the rows of all points of the grid."""
        if self.is_single_encoding:
            return super().rows()
        acc, device = accumulation(self.dtype), self.device
        value, dim = self.grid_given
        if self.positions is not None:
            rows = arranged(grid_rows.encode(value, dim, self.positions, acc), len(self.shape))
        else:
            lengths = self.form.lengths
            rows = grid_rows.table(value, dim, lengths, self.starts, acc, device).reshape(-1, dim)
        return rows if self.columns is None else rows.narrow(-1, *self.columns)


ADD_GRID_OUT = Operator("add_grid_out", AddGrid, "()", reference=grid_add.add)
