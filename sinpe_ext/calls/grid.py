"""One call of `add` with a grid: its checked arguments, and the choice between kernel, eager twin and graph.

Where all samples share the places' coordinates, the axes' rows are made once and the operator `add_grid_out` puts them
together while x streams past. Where each place has coordinates of its own, each piece of the grid is an ordinary `add`
on its channels. Dropout numbers the elements of x as it is, so neither way shows in the mask.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..checks import grids, seeds
from ..checks.part import Part, no_context_parallel
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding, Piece
from ..ops import seed_tensor
from ..ops.plan_words import plan_words
from ..ops.rows import ADD_GRID_OUT, DROPOUT, add_into
from ..reference.operands import Add, AddGrid, Dropout
from ..reference.tiles import accumulation, arranged
from ..runtime import observers
from ..runtime.no_grad import no_grad
from . import grid_rows
from .add import SumCall
from .arguments import AddArguments
from .grid_form import GridForm

_is_compiling = torch.compiler.is_compiling


class GridCall(SumCall):
    """The arguments of `add` with a grid after every check.

    Attributes:
        x: as given.   form: how x is laid out.   firsts: the axes' own starts.
        shape: of x in canonical form, without extra tokens.
        positions: None, or (1 or B, S, axes).   starts: one per axis, where positions is None.
        front_elements: how the extra tokens count x's elements.
    With `part` x is one of a larger tensor, positions and padding_mask are canonical and start is one per axis.
    """

    starts: list[Any]

    def __init__(self, given: AddArguments, *, part: Part | None = None, is_flat: bool | None = None) -> None:
        x, encoding, channel_dim = given.x, given.encoding, given.channel_dim
        checks.summand(x)
        checks.in_memory("x", x)  # views of it are made before a kernel could look
        self.x: Tensor = x
        self.device, self.acc = x.device, accumulation(x.dtype)
        channels_at = checks.axis("channel_dim", channel_dim, x.dim())
        shape = checks.sizes(x)
        width = shape[channels_at] if part is None else part.shape[channels_at]
        if part is not None and width != shape[channels_at]:
            self.columns = part.first[channels_at], shape[channels_at]
        self.grid_given = (encoding, operator.index(width))
        dim, self.firsts = _outline(x, channel_dim, *self.grid_given)
        is_grid = checks.is_grid(encoding)
        if not is_grid:
            grids.no_shape(given.grid_shape, "pass a GridEncoding, or the name of one")
        checks.channels(x, width, dim)
        self.scale = checks.factor("scale", given.scale)
        if given.positions is not None:
            checks.dense_tensor("positions", given.positions)
        self.form = GridForm(given, len(self.firsts), part, is_flat)
        self.whole_rows, self.is_whole = self.form.places, part is None
        self.shape = torch.Size(self.form.canonical_shape)
        of = checks.Target("x", shape, x.device, self.form.batch, self.form.places)
        self.alpha = checks.alpha(given.alpha, of)
        if part is not None:  # checked, and in canonical form
            self.positions, self.starts, self.padding_mask = given.positions, given.start, given.padding_mask
        elif is_grid:
            self._set_places(given)
        else:
            self._set_sequence(of, given)
        self.drop = checks.dropped(given.dropout)
        self._given_seed = seeds.checked(given.seed, self.device)
        self.seed: Tensor | None = None
        self.elements = self.form.elements
        self.front_elements = self._front_elements()

    def _set_sequence(self, of: checks.Target, given: AddArguments) -> None:
        """Of an encoding of one dimension, behind extra tokens: checked as without them."""
        self.encoding = checks.encoding(*self.grid_given)
        self._set_positions(of, given.positions, given.start)
        mask = given.padding_mask
        self.padding_mask = None if mask is None else checks.padding_mask(mask, of)
        self.starts = [self.start]
        if self.positions is not None:
            (rows,) = self.form.traced_lengths(self.x)
            at = self.positions + torch.arange(rows, device=of.device) if self.are_starts else self.positions
            self.positions = at.unsqueeze(-1)

    def _set_places(self, given: AddArguments) -> None:
        axes, mask = len(self.firsts), given.padding_mask
        shapes = self.form.shapes() if given.positions is not None or mask is not None else []
        self.padding_mask = None if mask is None else grids.padding_mask(mask, shapes, self.x)
        self.positions: Tensor | None = None
        self.starts = [0] * axes
        if given.positions is not None:
            checks.start_beside_positions(given.start)
            self.positions = grids.positions(given.positions, axes, shapes, self.x)
            return
        no_context_parallel()
        batch = self.form.batch if self.form.batch_at else None
        found = grids.starts(given.start, self.firsts, self.form.lengths, batch, self.device)
        if isinstance(found, Tensor):
            self.positions = self._coordinates([0] * axes) + found.unsqueeze(1)
        else:
            self.starts = found

    def _coordinates(self, starts: list[Any]) -> Tensor:
        """Each place's coordinates, (1, S, axes) int64."""
        axes = [
            torch.arange(size, device=self.device) + (first + start)
            for size, first, start in zip(self.form.traced_lengths(self.x), self.firsts, starts, strict=True)
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(self.firsts))

    @property
    def grid(self) -> GridEncoding:
        return checks.grid(*self.grid_given)

    def all_positions(self) -> Tensor:
        """(1 or B, S, axes), also where they are implicit."""
        if self.positions is not None:
            return self.positions
        return self._coordinates(self.starts)

    def _front_elements(self) -> list[int]:
        steps = self.form.elements[1:]
        at = [*self.form.batch_at, self.form.rows_at[-1], self.form.channels_at]
        order = sorted(range(len(at)), key=lambda k: at[k])
        return [self.form.first, *(steps[k] for k in order)]

    # Without autograd.

    @no_grad
    def run(self, out: Tensor | None = None) -> Tensor:
        """Computes; the result, or `out`, has x's form."""
        if out is not None and out.is_neg():
            return out.copy_(self.run())
        target = torch.empty_like(self.x) if out is None else out
        if not self.x.numel() or observers.no_data(self.device):
            return target
        if self._is_cut():
            return target.copy_(self.traced())
        x, form = self.x.detach(), self.form
        if not form.is_viewable(x):
            x = x.contiguous()
        to = target.detach() if form.is_viewable(target) else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if form.extra:
            front = form.front(to)
            seeded = Dropout(form.front(x), self.seed, self.drop, self.scale, self.front_elements)
            front.copy_(DROPOUT.run(*seeded))
        if form.places:
            fill = self._fill_shared if self.positions is None else self._fill_each
            fill(form.canonical(x), form.canonical(to))
        return target if to.data_ptr() == target.data_ptr() else target.copy_(to)

    def _fill_shared(self, x: Tensor, target: Tensor) -> None:
        """Places whose coordinates all samples share."""
        if len(self.firsts) == 1 and len(self.grid.pieces) == 1 and self.grid.pieces[0].encoding.dim == self.grid.dim:
            # One axis: its rows are the table, which no one shall make.
            encoding, first = self.grid.pieces[0].encoding, self.starts[0]
            are_starts = isinstance(first, Tensor)
            at = (first + encoding.start).reshape(1, 1) if are_starts else None
            if encoding.angle == "exact":
                a = self._sum(x, encoding, at, self.elements if self.drop else [])
                first = 0 if are_starts else first
                add_into(a._replace(start=first, positions_are_starts=are_starts), target)
                return
        by_channels = all(t.stride(-1) != 1 and t.stride(-2) == 1 for t in (x, target))
        elements = self.elements if self.drop else []
        if not by_channels:
            self._fill_rows(x, target, False, self.padding_mask, elements)
            return
        x, target = x.transpose(-1, -2), target.transpose(-1, -2)
        elements = [*elements[:-2], *elements[:-3:-1]]
        if self.padding_mask is None:
            self._fill_rows(x, target, True, None, elements)
            return
        # A kernel by channels has no mask, and by places it would step through memory channel by channel.
        plain = self.drop == 0 and self.scale == 1.0 and x.data_ptr() != target.data_ptr()
        bare = x if plain else DROPOUT.run(*Dropout(x, self.seed, self.drop, self.scale, elements))
        self._fill_rows(x, target, True, None, elements)
        mask = arranged(self.padding_mask.unsqueeze(-2), x.dim())
        torch.where(mask, bare, target, out=target)

    def _fill_rows(
        self, x: Tensor, target: Tensor, by_channels: bool, mask: Tensor | None, elements: list[int]
    ) -> None:
        """By the kernel or the eager twin: (*B, S, C), or by channels (*B, C, S)."""
        lengths = tuple(self.form.lengths)
        values = grid_rows.values(self.grid, lengths, self.starts, self.acc, self.device, self.alpha, by_channels)
        words = grid_rows.words(self.grid, lengths, by_channels, self.device)
        ADD_GRID_OUT.run(*AddGrid(x, values, words, mask, self.seed, self.scale, self.drop, elements), target)

    def _sum(self, x: Tensor, encoding: Encoding, positions: Tensor | None, elements: list[int]) -> Add:
        """Of channels of x that one encoding feeds."""
        alpha = self.alpha.detach() if isinstance(self.alpha, Tensor) else self.alpha
        a = Add(x, plan_words(encoding, self.device), positions, self.padding_mask, alpha, self.seed)
        return a._replace(scale=self.scale, drop=self.drop, elements=elements)

    def _fill_each(self, x: Tensor, target: Tensor) -> None:
        """Places with coordinates of their own: each piece on its channels."""
        if not self._is_exact():
            target.copy_(self.dropped(self.sum(x.to(self.acc))))
            return
        assert self.positions is not None
        positions = self.positions.detach()
        if self._fill_as_one(x, target, positions):
            return
        first = 0  # of the channels that no piece feeds: the last ones
        for piece in self.grid.pieces:
            first = max(first, piece.first + (piece.encoding.dim - 1) * piece.step + 1)
            self._fill_piece(x, target, piece, positions.select(-1, piece.axis))
        if first < self.grid.dim:
            self._fill_piece(x, target, Piece(0, grid_rows.nothing(self.grid.dim - first), first, 1), None)

    def _fill_piece(self, x: Tensor, target: Tensor, piece: Piece, positions: Tensor | None) -> None:
        at = piece.first, piece.step, piece.encoding.dim
        a = self._sum(grid_rows.channels_of(x, *at), piece.encoding, positions, self.elements_at(*at[:2]))
        add_into(a, grid_rows.channels_of(target, *at))

    def _fill_as_one(self, x: Tensor, target: Tensor, positions: Tensor) -> bool:
        """Where all axes have the same channels in blocks: each axis' part of a place is a row of its own."""
        shared, axes = grid_rows.alike(*self.grid_given), len(self.firsts)
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
        elements = [*self.elements[:-2], encoding.dim * self.elements[-1], self.elements[-1]]
        if self.drop and self.elements[-2] != self.grid.dim * self.elements[-1]:
            return False
        a = self._sum(x, encoding, positions, elements if self.drop else [])
        add_into(a._replace(padding_mask=mask), target)
        return True

    def elements_at(self, first: int, step: int) -> list[int]:
        """How channels first, first + step, ... count x's elements."""
        base, *steps = self.elements
        return [base + first * steps[-1], *steps[:-1], step * steps[-1]]

    # In operations that autograd, a compiler and torch.func look into.

    def length(self) -> Any:
        return self.form.traced_lengths(self.x)[0] if len(self.firsts) == 1 else self.shape[-2]

    def rows(self) -> Tensor:
        acc, device = self.acc, self.device
        value, dim = self.grid_given
        if self.positions is not None:
            rows = arranged(grid_rows.encode(value, dim, self.positions, acc), len(self.shape))
        else:
            lengths = self.form.traced_lengths(self.x)
            rows = grid_rows.table(value, dim, lengths, self.starts, acc, device).reshape(-1, dim)
        return rows if self.columns is None else rows.narrow(-1, *self.columns)

    def traced(self) -> Tensor:
        """The whole of `add` in differentiable operations."""
        if checks.is_jit_traced():
            return self._recorded()
        form = self.form
        if not form.is_run:
            total = form.restored(self.sum(form.canonical(self.x).to(self.acc)))
            return self.dropped(total, form.numbers).to(self.x.dtype)
        body = self.dropped(self.sum(form.canonical(self.x).to(self.acc))).to(self.x.dtype)
        if not form.extra:
            return form.restored(body)
        front = self.dropped(form.front(self.x).to(self.acc) * self.scale, self.front_elements).to(self.x.dtype)
        return torch.cat([front, form.restored(body)], form.rows_at[0])

    def depend_on(self, zero: Tensor) -> None:
        if self.positions is None:
            self.starts = [start + zero.to(self.device) for start in self.starts]
        else:
            super().depend_on(zero)

    def _recorded(self) -> Tensor:
        """What torch.jit.trace records: the mask is numbered as x is, so that no length is kept but those of
        grid_shape, which x then has to have."""
        form, x = self.form, self.x
        if form.grid_shape is not None:  # has a trace raise for an x of other lengths
            lengths = form.traced_lengths(x)
            given = dict(zip(form.rows_at, [form.extra + math.prod(lengths)] if form.is_flat else lengths, strict=True))
            x = x.reshape([given.get(d, x.shape[d]) for d in range(x.dim())])
        total = form.restored(self.sum(form.canonical(x).to(self.acc)), x)
        if form.extra:
            total = torch.cat([form.front(x).to(self.acc) * self.scale, total], form.rows_at[0])
        return self.dropped(total, []).to(x.dtype)

    def draw(self) -> None:
        """Takes or draws the seed."""
        if 0 in checks.sizes(self.x) and not checks.is_jit_traced():
            self.drop = 0
        if 0 < self.drop < checks.DROP_UNIT:
            self.seed = seed_tensor.tensor(self._given_seed, self.device)

    def _is_exact(self) -> bool:
        return all(axis.angle == "exact" for axis in self.grid.axes)

    def _is_cut(self) -> bool:
        """Whether x is a part that no kernel serves: some of a row's channels, or elements counted with gaps."""
        return self.columns is not None or (self.drop > 0 and not self.form.is_run)

    def _is_formula(self) -> bool:
        """Whether a differentiable call is made of torch's operations: other angles, no elements, no data."""
        return self._is_cut() or not self._is_exact() or 0 in self.x.shape or observers.no_data(self.device)

    def differentiable(self, in_place: bool) -> Tensor:
        from . import grid_gradient

        return grid_gradient.GridAdd.apply(self.x, self.alpha_or_none(), self.positions, self, in_place)

    def run_into(self, out: Tensor) -> None:
        self.run(out)

    def words_of(self, index: int) -> Tensor:
        """The plan of a piece."""
        return plan_words(self.grid.pieces[index].encoding, self.device)


def _outline(x: Tensor, channel_dim: Any, encoding: Any, width: int) -> tuple[int, tuple[int, ...]]:
    """`checks.grid_outline`; where a name does not take x's channels, they may be another dimension's."""
    if _is_compiling() or not isinstance(encoding, str):
        return checks.grid_outline(encoding, width)
    try:
        return checks.grid_outline(encoding, width)
    except ValueError as error:
        raise ValueError(
            f"{error} (x of shape {tuple(x.shape)} has {width} channels in its dimension {channel_dim}; channel_dim "
            "says where they are)"
        ) from None
