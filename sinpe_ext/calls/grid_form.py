"""The layout of x of `add` for a grid, whose axes are dimensions of x or are flattened, row-major, in its sequence; and
for a sequence with extra tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import checks
from ..checks import grids
from ..checks.part import Part
from ..reference import philox
from .rows import AddArguments


class GridForm:
    """The layout of x of `add` for a grid, or for a sequence with extra tokens. `places` are the points of the grid.

    Attributes:
        lengths: lengths of the axes; (S,) if the grid is flattened and no `grid_shape` was given.
        extra: number of extra tokens, which precede the grid in the sequence.
        canonical_shape: (*B, S, C), without extra tokens.
        rng_offsets: Philox counter base and stride of each dimension of the canonical form, in row-major order of x's
            own shape, or of the shape of the whole that x is a part of.
        own_rng_offsets: the same for x as it is; its first entry, `first`, is the index of x's first element.
        is_evenly_spaced: whether the places of a sample are evenly spaced in the whole. In a box cut out of a grid they
            are not, and `rng_offsets` is invalid.
    """

    def __init__(
        self, arguments: AddArguments, axes: int, part: Part | None = None, is_flat: bool | None = None
    ) -> None:
        x, grid_shape, seq_dim = arguments.x, arguments.grid_shape, arguments.seq_dim
        rank, shape = x.dim(), x.shape
        self.extra = grids.extra(arguments.extra_tokens)
        self.channels_at = checks.axis("channel_dim", arguments.channel_dim, rank)
        others = [d for d in range(rank) if d != self.channels_at]
        given = None if grid_shape is None else grids.lengths("grid_shape", grid_shape, axes)
        rows_at = checks.axis("seq_dim", seq_dim, rank)
        if axes == 1 and seq_dim == -2 and rows_at == self.channels_at and others:
            rows_at = others[-1]  # channels first
        if is_flat is None:
            is_flat = axes == 1 or self._decide(arguments, given, axes, others, rows_at)
        self.is_flat = is_flat
        if self.is_flat:
            checks.two_dimensions(rows_at, self.channels_at, seq_dim, arguments.channel_dim)
            self.rows_at = [rows_at]
            size = shape[rows_at] - self.extra
            if size < 0 or (given is not None and size != math.prod(given)):
                self._refuse(x, given)
            self.lengths: tuple[int, ...] = (size,) if given is None else given
        else:
            if rows_at != rank - 2:
                raise ValueError(
                    f"seq_dim: expected -2, its default, where the grid's axes are dimensions of x, got {seq_dim}; use "
                    "x.movedim to bring the axes to the end"
                )
            self.rows_at = others[len(others) - axes :]
            self.lengths = tuple(shape[d] for d in self.rows_at)
        self.grid_shape = grid_shape
        self.batch_at = [d for d in others if d not in self.rows_at]
        self.batch = shape[self.batch_at[0]] if self.batch_at else 1
        self.places = math.prod(self.lengths)
        self.canonical_shape = (*(shape[d] for d in self.batch_at), self.places, shape[self.channels_at])
        steps = philox.row_major(shape if part is None else part.shape)
        self.first = 0 if part is None else sum(at * step for at, step in zip(part.first, steps, strict=True))
        self.own_rng_offsets = [self.first, *steps]
        self.is_evenly_spaced = all(steps[a] == shape[b] * steps[b] for a, b in itertools.pairwise(self.rows_at))
        self.rng_offsets = [self.first + (self.extra * steps[self.rows_at[0]] if self.is_flat else 0)]
        self.rng_offsets += [*(steps[d] for d in self.batch_at), steps[self.rows_at[-1]], steps[self.channels_at]]

    def _decide(self, arguments: AddArguments, given: Any, axes: int, others: list[int], rows_at: int) -> bool:
        """Whether the grid is flattened in the sequence; `given` is grid_shape, `others` all dimensions except the
        channels."""
        x, positions = arguments.x, arguments.positions
        rank, shape = x.dim(), tuple(x.shape)
        at = others[len(others) - axes :]
        if given is None:
            has_positions = isinstance(positions, Tensor) and positions.dim() > 1
            if rank > axes + 1 and not self.extra:
                if has_positions and positions.dim() <= 3 and positions.shape[-2] == shape[rows_at]:
                    dims = tuple(shape[d] for d in at)
                    if tuple(positions.shape[:-1])[-axes:] != dims:  # coordinates for each row of the sequence
                        return True
                self._check_channels_outside(at)
                return False
            if has_positions:
                return True
            why = f"extra_tokens={self.extra}" if self.extra else f"x of {rank} dimensions and a grid of {axes} axes"
            raise ValueError(
                f"grid_shape: expected the grid's lengths for {why}, got None with x of shape {shape}; pass "
                f"grid_shape=({', '.join('HWD'[:axes] if axes < 4 else ['...'])}), of places in the sequence of x, or "
                "of dimensions of an x without batch; for channels first also channel_dim"
            )
        if rows_at != self.channels_at and shape[rows_at] == self.extra + math.prod(given):
            return True
        if len(others) >= axes and tuple(shape[d] for d in at) == given and not self.extra:
            self._check_channels_outside(at)
            return False
        self._refuse(x, given)
        return True

    def _refuse(self, x: Tensor, given: Any) -> None:
        """Raises ValueError for a grid_shape, or extra_tokens, that does not match the shape of x."""
        shape = tuple(x.shape)
        if given is None:
            raise ValueError(
                f"extra_tokens: expected at most {shape[self.rows_at[0]]}, the sequence of x of shape {shape}, got "
                f"{self.extra}; lower it"
            )
        raise ValueError(
            f"grid_shape: expected a sequence of {self.extra + math.prod(given)} rows (extra_tokens and "
            f"{' * '.join(map(str, given))} cells) or the dimensions {given} in x, got x of shape {shape}; pass the "
            "grid_shape, seq_dim and channel_dim of x"
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
        for dims in ((self.places,), tuple(self.lengths)) if self.is_flat else (tuple(self.lengths),):
            every += [(dims, False)]
            every += [((1, *dims), True), ((self.batch, *dims), True)] if self.batch_at else []
        return every

    def is_viewable(self, t: Tensor) -> bool:
        """Whether the places of a tensor with the shape of x are evenly spaced in memory, so that they can be viewed as
        one dimension."""
        sized = [(t.shape[d], t.stride(d)) for d in self.rows_at if t.shape[d] != 1]
        return all(step == size * inner for (_, step), (size, inner) in itertools.pairwise(sized))

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor with the shape of x as (*B, S, C): a view if `is_viewable`."""
        t = t.permute(*self.batch_at, *self.rows_at, self.channels_at)
        first = len(self.batch_at)
        if self.is_flat:
            return t.narrow(first, self.extra, t.shape[first] - self.extra) if self.extra else t
        return t.flatten(first, first + len(self.rows_at) - 1) if len(self.rows_at) > 1 else t

    def front(self, t: Tensor) -> Tensor:
        """The extra tokens of a tensor with the shape of x."""
        return t.narrow(self.rows_at[0], 0, self.extra)

    def restored(self, canonical: Tensor) -> Tensor:
        """The inverse of `canonical`, without the extra tokens."""
        t = canonical if self.is_flat else canonical.unflatten(len(self.batch_at), self.lengths)
        order = [*self.batch_at, *self.rows_at, self.channels_at]
        return t if order == sorted(order) else t.permute(*(order.index(d) for d in range(len(order))))
