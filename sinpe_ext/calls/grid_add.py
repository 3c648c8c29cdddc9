"""One call of `add` with a grid, or with a sequence behind extra tokens.

If one encoding covers all channels of x, the operators of `ops/rows.py` generate its rows while they process x. If a
grid has several pieces and all samples have the same coordinates, the rows of the axes are generated once and the
operator `add_grid_out` combines them. If each grid point has its own coordinates, each piece of the grid is a separate
`add` on its channels. The dropout mask depends on the index of an element in x alone, so it is the same in all these
cases.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..checks import grids, seeds
from ..checks.part import Part, refuse_in_context_parallel
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding, Piece
from ..ops.packed_plan import pack_plan
from ..ops.rows import ADD, ADD_GRID_OUT, ADD_OUT, DROPOUT
from ..reference.operands import Add, AddGrid, Dropout
from ..reference.tiles import arranged
from . import grid_gradient, grid_rows
from .add import SequenceAdd
from .grid_form import GridForm
from .rows import AddArguments

_is_compiling = torch.compiler.is_compiling


class GridAdd(SequenceAdd):
    """The arguments of `add` with a grid or with extra tokens, after all checks.

    Attributes:
        is_unsupported_shard: whether x is a shard that no kernel supports: some channels of a grid, or rows that are
            not evenly spaced in the whole.
        is_single_encoding: whether one encoding covers all channels; if not, each piece of a grid covers some of them,
            and there is no `encoding` and no `given`.
        shape: shape of x in canonical form, without extra tokens.
        positions: as in RowsCall; for a grid (1 or B, S, axes).
        starts: one per axis, relative to `firsts`, the starts of the axes' encodings, if positions is None.
        front_rng_offsets: `rng_offsets` of the extra tokens.

    If `part` is given, x is a shard of a larger tensor. The arguments are then in canonical form, `start` has one item
    per axis, and `is_flat` is that of the form of the whole.
    """

    form: GridForm
    firsts: tuple[int, ...]
    starts: list[Any]

    def __init__(self, given: AddArguments, part: Part | None = None, is_flat: bool | None = None) -> None:
        self._set_x(given.x)
        x, encoding, channel_dim = given.x, given.encoding, given.channel_dim
        checks.check_storage_bounds("x", x)  # here, because views of x are created before a kernel could check
        channels_at = checks.axis("channel_dim", channel_dim, x.dim())
        shape = x.shape
        width = shape[channels_at] if part is None else part.shape[channels_at]
        if part is not None and width != shape[channels_at]:
            self.columns = part.first[channels_at], shape[channels_at]
        self.grid_given = (encoding, operator.index(width))
        dim, self.firsts = _dim_and_starts(x, channel_dim, *self.grid_given)
        is_grid = checks.is_grid(encoding)
        if not is_grid:
            grids.refuse_grid_shape(given.grid_shape, "pass a GridEncoding, or the name of one")
        checks.channels(x, width, dim)
        self.scale = checks.factor("scale", given.scale)
        if given.positions is not None:
            checks.dense_tensor("positions", given.positions)
        self.form = form = GridForm(given, len(self.firsts), part, is_flat)
        self.whole_rows, self.is_whole = form.places, part is None
        self.shape = torch.Size(form.canonical_shape)
        of = checks.Target("x", shape, x.device, form.batch, form.places)
        self.alpha = checks.alpha(given.alpha, of)
        if part is not None:  # checked, and in canonical form
            self.positions, self.starts, self.padding_mask = given.positions, given.start, given.padding_mask
        elif is_grid:
            self._set_coordinates(given, form)
        else:
            self._set_sequence_after_extra_tokens(of, given)
        self.drop_threshold = checks.drop_threshold(given.dropout)
        self._given_seed = seeds.checked(given.seed, self.device)
        self.seed: Tensor | None = None
        self.rng_offsets = form.rng_offsets
        self.front_rng_offsets = _front_rng_offsets(form)
        self.is_empty = 0 in shape
        self.is_single_encoding = self._has_single_encoding(is_grid, dim)
        has_some_channels_of_grid = self.columns is not None and not self.is_single_encoding
        self.is_unsupported_shard = has_some_channels_of_grid or (self.drop_threshold > 0 and not form.is_evenly_spaced)
        if self.is_single_encoding:
            self._set_single_encoding(is_grid)

    def _set_sequence_after_extra_tokens(self, of: checks.Target, given: AddArguments) -> None:
        """Checks the arguments of a one-dimensional encoding with extra tokens, as without them."""
        self.encoding = checks.encoding(*self.grid_given)
        self._set_positions(of, given.positions, given.start)
        mask = given.padding_mask
        self.padding_mask = None if mask is None else checks.padding_mask(mask, of)
        self.starts = [self.start]

    def _set_coordinates(self, given: AddArguments, form: GridForm) -> None:
        """Checks and stores positions, start and padding_mask of a grid."""
        axes, mask = len(self.firsts), given.padding_mask
        shapes = form.shapes() if given.positions is not None or mask is not None else []
        self.padding_mask = None if mask is None else grids.padding_mask(mask, shapes, self.x)
        self.positions: Tensor | None = None
        self.starts = [0] * axes
        if given.positions is not None:
            checks.start_beside_positions(given.start)
            self.positions = grids.positions(given.positions, axes, shapes, self.x)
            return
        refuse_in_context_parallel()
        batch = form.batch if form.batch_at else None
        found = grids.starts(given.start, self.firsts, form.lengths, batch, self.device)
        if isinstance(found, Tensor):
            self.positions = self._implicit_coordinates([0] * axes) + found.unsqueeze(1)
        else:
            self.starts = found

    def _has_single_encoding(self, is_grid: bool, dim: int) -> bool:
        """Whether one encoding covers all channels of x."""
        if not is_grid:
            return True
        if len(self.firsts) > 1 or self.columns is not None:
            return False
        ((_, _, _, width, _), *others) = grid_rows.layout(*self.grid_given)
        return not others and width == dim

    def _set_single_encoding(self, is_grid: bool) -> None:
        """Sets the attributes of RowsCall for a grid with one axis."""
        value, width = self.grid_given
        if self.columns is not None:
            first, count = self.columns
            self.columns = min(first, width - 1), max(count, 1)  # one channel broadcasts to data without channels
        self.given = value, width, 0 if is_grid else self.columns
        self.encoding = checks.encoding(*self.given)
        if self.positions is not None:
            self.positions = self.positions.select(-1, 0) if self.positions.dim() > 2 else self.positions
        elif isinstance(self.starts[0], Tensor):
            self.positions, self.are_starts = (self.starts[0] + self.firsts[0]).reshape(1, 1), True
            self.start = 0
        else:
            self.start = self.starts[0]

    @property
    def grid(self) -> GridEncoding:
        return checks.grid(*self.grid_given)

    def coordinates(self) -> Tensor:
        """The coordinates of each grid point, (1 or B, S, axes), computed if they are implicit. (Grids only.)"""
        if self.positions is None:
            return self._implicit_coordinates(self.starts)
        if not self.is_single_encoding:
            return self.positions
        ahead = torch.arange(self.shape[-2], device=self.device) if self.are_starts else None
        return (self.positions if ahead is None else self.positions + ahead).unsqueeze(-1)

    def _implicit_coordinates(self, starts: list[Any]) -> Tensor:
        """Implicit coordinates that begin at `starts`, (1, S, axes) int64."""
        axes = [
            torch.arange(size, device=self.device) + (first + start)
            for size, first, start in zip(self.form.lengths, self.firsts, starts, strict=True)
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(self.firsts))

    def _needs_torch_operations(self) -> bool:
        """As in SequenceAdd, and for shards that no kernel supports."""
        return self.is_unsupported_shard or super()._needs_torch_operations()

    def _is_exact(self) -> bool:
        """Whether the kernels support the encodings of all axes."""
        return super()._is_exact() if self.is_single_encoding else all(axis.angle == "exact" for axis in self.grid.axes)

    def _write(self, target: Tensor) -> None:
        if self.is_unsupported_shard:
            target.copy_(self.traced())
            return
        x, to, form = self.x.detach(), target.detach(), self.form
        x = x if form.is_viewable(x) else x.contiguous()
        is_viewable = form.is_viewable(to)
        to = to if is_viewable else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if form.extra:
            seeded = Dropout(form.front(x), self.seed, self.drop_threshold, self.scale, self.front_rng_offsets)
            form.front(to).copy_(DROPOUT.run(*seeded))
        if self.shape[-2]:
            self._fill(form.canonical(x), form.canonical(to))
        if not is_viewable:
            target.copy_(to)

    def _fill(self, x: Tensor, target: Tensor) -> None:
        if self.is_single_encoding:
            super()._fill(x, target)
        elif self.positions is None:
            self._fill_shared(x, target)
        else:
            self._fill_by_piece(x, target)

    def _fill_shared(self, x: Tensor, target: Tensor) -> None:
        """Computes a grid whose coordinates are the same for all samples."""
        by_channels = all(t.stride(-1) != 1 and t.stride(-2) == 1 for t in (x, target))
        rng_offsets = self.rng_offsets if self.drop_threshold else []
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
        bare = x if plain else DROPOUT.run(*Dropout(x, self.seed, self.drop_threshold, self.scale, rng_offsets))
        self._fill_rows(x, target, True, None, rng_offsets)
        mask = arranged(self.padding_mask.unsqueeze(-2), x.dim())
        torch.where(mask, bare, target, out=target)

    def _fill_rows(
        self, x: Tensor, target: Tensor, by_channels: bool, mask: Tensor | None, rng_offsets: list[int]
    ) -> None:
        """Calls the kernel or the reference: (*B, S, C), or channels first (*B, C, S)."""
        lengths = tuple(self.form.lengths)
        values = grid_rows.values(self.grid, lengths, self.starts, self.acc, self.device, self.alpha, by_channels)
        packed_grid = grid_rows.pack_grid(self.grid, lengths, by_channels, self.device)
        ADD_GRID_OUT.run(
            *AddGrid(x, values, packed_grid, mask, self.seed, self.scale, self.drop_threshold, rng_offsets), target
        )

    def _fill_by_piece(self, x: Tensor, target: Tensor) -> None:
        """Computes a grid with explicit coordinates by adding each piece to its channels."""
        assert self.positions is not None
        if not self._is_exact():
            target.copy_(self.dropped(self.sum(x.to(self.acc))))
            return
        positions = self.positions.detach()
        if self._fill_equal_axes(x, target, positions):
            return
        first = 0  # index of the first channel after those of all pieces
        for piece in self.grid.pieces:
            first = max(first, piece.first + (piece.encoding.dim - 1) * piece.step + 1)
            self._fill_piece(x, target, piece, positions.select(-1, piece.axis))
        if first < self.grid.dim:
            self._fill_piece(x, target, Piece(0, grid_rows.zero_encoding(self.grid.dim - first), first, 1), None)

    def _fill_piece(self, x: Tensor, target: Tensor, piece: Piece, positions: Tensor | None) -> None:
        """Adds one piece of a grid to its channels, at `positions` along its axis."""
        at = piece.first, piece.step, piece.encoding.dim
        a = self._sum_of(grid_rows.channels_of(x, *at), piece.encoding, positions, self.rng_offsets_at(*at[:2]))
        ADD_OUT.run(*a, grid_rows.channels_of(target, *at))

    def _sum_of(self, x: Tensor, encoding: Encoding, positions: Tensor | None, rng_offsets: list[int]) -> Add:
        """The operands of a sum with one encoding of a grid, for the channels of x that it covers."""
        whole = self.operands(x, pack_plan(encoding, self.device))
        return whole._replace(positions=positions, rng_offsets=rng_offsets if self.drop_threshold else [])

    def _fill_equal_axes(self, x: Tensor, target: Tensor, positions: Tensor) -> bool:
        """If all axes have equal blocks of channels, adds them as rows of one encoding, `axes` rows per grid point;
        returns whether it did."""
        shared, axes = grid_rows.equal_axes(*self.grid_given), len(self.firsts)
        if (
            shared is None
            or shared[0] != "blocks"
            or any(t.stride(-2) != t.shape[-1] * t.stride(-1) for t in (x, target))
        ):
            return False
        encoding = self.grid.axes[0]
        x, target = (t.unflatten(-1, (axes, encoding.dim)).flatten(-3, -2) for t in (x, target))
        positions = grid_rows.ordered(positions, shared[1]).flatten(-2)
        mask = None if self.padding_mask is None else self.padding_mask.repeat_interleave(axes, -1)
        rng_offsets = [*self.rng_offsets[:-2], encoding.dim * self.rng_offsets[-1], self.rng_offsets[-1]]
        if self.drop_threshold and self.rng_offsets[-2] != self.grid.dim * self.rng_offsets[-1]:
            return False
        a = self._sum_of(x, encoding, positions, rng_offsets if self.drop_threshold else [])
        ADD_OUT.run(*a._replace(padding_mask=mask), target)
        return True

    def rng_offsets_at(self, first: int, step: int) -> list[int]:
        """`rng_offsets` of channels first, first + step, ..."""
        base, *steps = self.rng_offsets
        return [base + first * steps[-1], *steps[:-1], step * steps[-1]]

    def _by_operator(self) -> Tensor:
        if not self.needs_grad(self.x):
            return self.run()
        if self.is_single_encoding and not self.form.extra:
            return self.form.restored(ADD(*self.operands(self.form.canonical(self.x))))
        return self._differentiable(into_x=False)

    def _differentiable_in_place(self) -> Tensor:
        if self.is_single_encoding and not self.form.extra:
            return super()._differentiable_in_place()
        return self._differentiable(into_x=True)

    def _differentiable(self, into_x: bool) -> Tensor:
        positions = None if self.positions is None else self.coordinates()
        return grid_gradient.DifferentiableGrid.apply(self.x, self.alpha_or_none(), positions, self, into_x)

    def packed_plan_of(self, index: int) -> Tensor:
        """The packed plan of a piece of a grid."""
        return pack_plan(self.grid.pieces[index].encoding, self.device)

    def traced(self) -> Tensor:
        """As in SequenceAdd; dropout of a grid, or with extra tokens, is an operator of its own."""
        form = self.form
        if self.is_single_encoding and not form.extra and form.is_evenly_spaced:
            return super().traced()
        total = self.sum(form.canonical(self.x).to(self.acc))
        if not form.is_evenly_spaced:
            return self.dropped(form.restored(total), form.own_rng_offsets).to(self.x.dtype)
        body = self.dropped(total).to(self.x.dtype)
        if not form.extra:
            return form.restored(body)
        front = self.dropped(form.front(self.x).to(self.acc) * self.scale, self.front_rng_offsets).to(self.x.dtype)
        return torch.cat([front, form.restored(body)], form.rows_at[0])

    def rows(self) -> Tensor:
        """As in RowsCall; with several pieces, the rows of all points of the grid."""
        if self.is_single_encoding:
            return super().rows()
        acc, device = self.acc, self.device
        value, dim = self.grid_given
        if self.positions is not None:
            rows = arranged(grid_rows.encode(value, dim, self.positions, acc), len(self.shape))
        else:
            lengths = self.form.lengths
            rows = grid_rows.table(value, dim, lengths, self.starts, acc, device).reshape(-1, dim)
        return rows if self.columns is None else rows.narrow(-1, *self.columns)


def _front_rng_offsets(form: GridForm) -> list[int]:
    """Philox counter base and stride of each dimension of the extra tokens."""
    steps = form.rng_offsets[1:]
    at = [*form.batch_at, form.rows_at[-1], form.channels_at]
    order = sorted(range(len(at)), key=lambda k: at[k])
    return [form.first, *(steps[k] for k in order)]


def _dim_and_starts(x: Tensor, channel_dim: Any, encoding: Any, width: int) -> tuple[int, tuple[int, ...]]:
    """`checks.grid_dim_and_starts`; if a named convention does not accept the number of channels, the error also
    mentions channel_dim."""
    if _is_compiling() or not isinstance(encoding, str):
        return checks.grid_dim_and_starts(encoding, width)
    try:
        return checks.grid_dim_and_starts(encoding, width)
    except ValueError as error:
        raise ValueError(
            f"{error} (x of shape {tuple(x.shape)} has {width} channels in its dimension {channel_dim}; channel_dim "
            "says where they are)"
        ) from None
