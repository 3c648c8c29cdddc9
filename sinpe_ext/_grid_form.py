"""Where x of `add` has the places of a grid: as dimensions of their own, or row-major in its sequence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from . import _checks, _grid_checks, _philox


class GridForm:
    """How x is laid out.

    Attributes:
        lengths: of the axes; (S,) where x has a sequence of places and no `grid_shape` was given.
        extra: places in front of the sequence that are none of the grid's.
        canonical_shape: (*B, S, C), without the extra ones.
        elements: how the canonical form counts x's row-major elements.
    """

    def __init__(
        self,
        x: Tensor,
        axes: int,
        grid_shape: Any,
        has_positions: bool,
        extra: Any,
        seq_dim: Any,
        channel_dim: Any,
    ) -> None:
        rank = x.dim()
        self.extra = _grid_checks.extra(extra)
        self.channels_at = _checks.axis("channel_dim", channel_dim, rank)
        others = [d for d in range(rank) if d != self.channels_at]
        given = None if grid_shape is None else _grid_checks.lengths("grid_shape", grid_shape, axes)
        self.is_flat = self._decide(x, given, has_positions, others, axes, seq_dim)
        if self.is_flat:
            self.rows_at = [_checks.axis("seq_dim", seq_dim, rank)]
            size = x.shape[self.rows_at[0]] - self.extra
            self.lengths: tuple[int, ...] = (size,) if given is None else given
        else:
            self.rows_at = others[len(others) - axes :]
            self.lengths = tuple(x.shape[d] for d in self.rows_at)
        self.batch_at = [d for d in others if d not in self.rows_at]
        self.batch = x.shape[self.batch_at[0]] if self.batch_at else 1
        self.places = math.prod(self.lengths)
        self.canonical_shape = (*(x.shape[d] for d in self.batch_at), self.places, x.shape[self.channels_at])
        steps = _philox.row_major(x.shape)
        self.elements = [self.extra * steps[self.rows_at[0]] if self.is_flat else 0]
        self.elements += [*(steps[d] for d in self.batch_at), steps[self.rows_at[-1]], steps[self.channels_at]]

    def _decide(self, x: Tensor, given: Any, has_positions: bool, others: list[int], axes: int, seq_dim: Any) -> bool:
        """Whether the places are row-major in the sequence."""
        rank, shape = x.dim(), tuple(x.shape)
        if given is None:
            if rank > axes + 1 and not self.extra:
                self._between(others[len(others) - axes :])
                return False
            if has_positions:
                return True
            why = f"extra_tokens={self.extra}" if self.extra else f"x of {rank} dimensions and a grid of {axes} axes"
            raise ValueError(
                f"grid_shape: expected the grid's lengths for {why}, got None with x of shape {shape}; pass "
                f"grid_shape=({', '.join('HWD'[:axes] if axes < 4 else ['...'])}), of places in the sequence of x, or "
                "of dimensions of an x without batch; for channels first also channel_dim"
            )
        rows_at = _checks.axis("seq_dim", seq_dim, rank)
        if rows_at != self.channels_at and x.shape[rows_at] == self.extra + math.prod(given):
            return True
        at = others[len(others) - axes :]
        if len(others) >= axes and tuple(x.shape[d] for d in at) == given and not self.extra:
            self._between(at)
            return False
        raise ValueError(
            f"grid_shape: expected a sequence of {self.extra + math.prod(given)} (extra_tokens + places) or the "
            f"dimensions {given} in x, got x of shape {shape}; pass its own grid_shape, seq_dim and channel_dim"
        )

    def _between(self, rows_at: Sequence[int]) -> None:
        if rows_at[0] < self.channels_at < rows_at[-1]:
            raise ValueError(
                f"channel_dim: expected the channels before or after the grid's dimensions {tuple(rows_at)}, got "
                f"{self.channels_at}, which lies between them; use x.movedim(channel_dim, -1)"
            )

    def shapes(self) -> list[tuple[int, ...]]:
        """Those that positions (less the coordinates) and padding_mask may have."""
        dims = tuple(self.lengths) if not self.is_flat else (self.places,)
        every = [dims, (1, *dims), (self.batch, *dims)] if self.batch_at else [dims]
        return every

    def is_viewable(self, t: Tensor) -> bool:
        """Whether the places of a tensor of x's shape are steps of one length."""
        sized = [(t.shape[d], t.stride(d)) for d in self.rows_at if t.shape[d] != 1]
        return all(step == size * inner for (_, step), (size, inner) in itertools.pairwise(sized))

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor of x's shape as (*B, S, C): a view where `is_viewable`."""
        t = t.permute(*self.batch_at, *self.rows_at, self.channels_at)
        first = len(self.batch_at)
        if self.is_flat:
            return t.narrow(first, self.extra, self.places) if self.extra else t
        return t.flatten(first, first + len(self.rows_at) - 1) if len(self.rows_at) > 1 else t

    def front(self, t: Tensor) -> Tensor:
        """The extra places of a tensor of x's shape."""
        return t.narrow(self.rows_at[0], 0, self.extra)

    def restored(self, canonical: Tensor) -> Tensor:
        """The inverse of `canonical`, without the extra places."""
        first = len(self.batch_at)
        t = canonical if self.is_flat else canonical.unflatten(first, self.lengths)
        order = [*self.batch_at, *self.rows_at, self.channels_at]
        return t.permute(*(order.index(d) for d in range(len(order))))
