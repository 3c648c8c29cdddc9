"""Layout of x of `add` and of the result of `embed`: which dimensions hold the batch, the rows and the channels.

The operators take the canonical form (*batch, rows, channels), whose first rows are the extra tokens. A sequence is a
grid of one axis. The axes of a grid are dimensions of x, or one dimension holds its points in row-major order ("flat").
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..encodings.values import dense_tensor
from ..reference import philox
from . import checks


class Part(NamedTuple):
    """One shard of a tensor that is sharded along any of its dimensions.

    Attributes:
        shape: shape of the whole.
        first: index in the whole of the first element of the shard, one entry for each dimension.
    """

    shape: tuple[int, ...]
    first: tuple[int, ...]


class Layout(NamedTuple):
    """Which dimensions of a tensor are what.

    Attributes:
        shape: shape of the tensor.
        batch_at: the dimensions that are neither rows nor channels; the first is the batch.
        rows_at: the dimension of the rows, or those of the axes of a grid.
        channels_at: the dimension of the channels.
        lengths: lengths of the axes; of a sequence, and of a flat grid without `grid_shape`, (number of rows,).
        extra_tokens: number of rows that precede the encoded ones and get no encoding.
        part: where the tensor lies in the whole, if it is a shard. Extra tokens and grids are never sharded along rows.
        target: what the arguments that accompany x, or ids, have to match.
        order: the dimensions in the order of the canonical form.
        is_ordered: whether the dimensions are in this order already.
        is_canonical: whether the tensor has the canonical form.
        rows, whole_rows: number of encoded rows, and of the whole.
        row_offset: index in the whole of the first row.
        width: number of channels of the whole, which is never symbolic.
        columns: (first channel, number of channels) of a shard that has only some of them, else None.
    """

    shape: Sequence[int]
    batch_at: tuple[int, ...]
    rows_at: tuple[int, ...]
    channels_at: int
    lengths: tuple[int, ...]
    extra_tokens: int
    part: Part | None
    target: checks.Target
    order: tuple[int, ...]
    is_ordered: bool
    is_canonical: bool
    rows: int
    whole_rows: int
    row_offset: int
    width: int
    columns: tuple[int, int] | None

    def canonical(self, t: Tensor) -> Tensor:
        """A tensor of this layout in canonical form: a view if `is_viewable`."""
        t = t if self.is_ordered else t.permute(self.order)
        # Not flatten, which autograd.grad(is_grads_batched=True) does not support.
        return t if len(self.rows_at) == 1 else t.reshape(*t.shape[: len(self.batch_at)], self.rows, t.shape[-1])

    def restored(self, t: Tensor) -> Tensor:
        """The inverse of `canonical`."""
        t = t if len(self.rows_at) == 1 else t.unflatten(len(self.batch_at), self.lengths)
        return t if self.is_ordered else t.permute([self.order.index(d) for d in range(len(self.order))])

    def is_viewable(self, t: Tensor) -> bool:
        """Whether the rows of a tensor of this layout are evenly spaced in memory, so that they can be viewed as one
        dimension."""
        if len(self.rows_at) == 1 or t.is_contiguous():
            return True
        sized = [(t.shape[d], t.stride(d)) for d in self.rows_at if t.shape[d] != 1]
        return all(step == size * inner for (_, step), (size, inner) in itertools.pairwise(sized))

    def rng_offsets(self) -> list[int]:
        """Philox counter base and stride of each dimension of the canonical form, so that the dropout mask follows the
        row-major order of the tensor, or of the whole of which it is a part."""
        first, *steps = self.own_rng_offsets()
        return [first, *(steps[d] for d in self.batch_at), steps[self.rows_at[-1]], steps[self.channels_at]]

    def own_rng_offsets(self) -> list[int]:
        """The same for the tensor as it is."""
        if self.part is None:
            return [0, *philox.row_major(self.shape)]
        steps = philox.row_major(self.part.shape)
        return [sum(at * step for at, step in zip(self.part.first, steps, strict=True)), *steps]


def _layout(
    name: str, given: Tensor, shape: Sequence[int], rows_at: tuple[int, ...], channels_at: int,
    lengths: tuple[int, ...], extra_tokens: int = 0, part: Part | None = None,
) -> Layout:  # fmt: skip
    """The layout of a tensor of `shape`; `given` is x or ids, of the argument `name`."""
    batch_at = tuple([d for d in range(len(shape)) if d != channels_at and d not in rows_at])
    order = (*batch_at, *rows_at, channels_at)
    is_ordered, is_flat = order == tuple(range(len(shape))), len(rows_at) == 1
    rows = whole_rows = math.prod(lengths)
    row_offset, columns = 0, None
    width = operator.index((shape if part is None else part.shape)[channels_at])
    if part is not None:
        if is_flat:
            whole_rows, row_offset = part.shape[rows_at[0]] - extra_tokens, part.first[rows_at[0]]
        count, first = operator.index(shape[channels_at]), operator.index(part.first[channels_at])
        if count != width:  # one channel broadcasts to data without channels
            columns = min(first, width - 1), max(count, 1)
    row_shapes = ((rows,), lengths) if is_flat and len(lengths) > 1 else (lengths,)
    target = checks.Target(name, given.shape, given.device, shape[batch_at[0]] if batch_at else 1, row_shapes)
    return Layout(
        shape, batch_at, rows_at, channels_at, lengths, extra_tokens, part, target, order, is_ordered,
        is_ordered and is_flat, rows, whole_rows, row_offset, width, columns,
    )  # fmt: skip


def of_ids(ids: Tensor, channels: int, seq_dim: Any, part: Part | None = None) -> Layout:
    """The layout of the result of `embed`, which has the dimensions of ids, then the channels."""
    rank, rows_at = ids.dim(), checks.axis("seq_dim", seq_dim, ids.dim(), "ids")
    return _layout("ids", ids, (*ids.shape, channels), (rows_at,), rank, (ids.shape[rows_at],), part=part)


def of_x(arguments: Any, axes: int | None = None, part: Part | None = None) -> Layout:
    """The layout of x, from the arguments of `add`; `axes` is the number of axes of a grid, None for a one-dimensional
    encoding."""
    x, seq_dim, channel_dim, extra = arguments.x, arguments.seq_dim, arguments.channel_dim, arguments.extra_tokens
    shape, rank = x.shape, x.dim()
    if type(seq_dim) is type(channel_dim) is int and -rank <= seq_dim < rank and -rank <= channel_dim < rank:
        rows_at, channels_at = seq_dim % rank, channel_dim % rank
    else:
        rows_at, channels_at = checks.axis("seq_dim", seq_dim, rank), checks.axis("channel_dim", channel_dim, rank)
    if type(extra) is not int or extra != 0:
        extra = checks.extra_tokens(extra)
    grid_shape = None
    if axes is not None:
        others = [d for d in range(rank) if d != channels_at]
        if axes == 1 and seq_dim == -2 and rows_at == channels_at and others:
            rows_at = others[-1]  # channels first
        if arguments.grid_shape is not None:
            grid_shape = checks.grid_lengths("grid_shape", arguments.grid_shape, axes)
        if axes > 1:
            at = tuple(others[max(len(others) - axes, 0) :])
            rows = None if rows_at == channels_at else shape[rows_at]
            if not _is_flat(shape, rows, extra, grid_shape, axes, at, arguments.positions):
                if rows_at != rank - 2 or at[0] < channels_at < at[-1]:
                    _refuse_axes(at, channels_at, seq_dim)
                return _layout("x", x, shape, at, channels_at, tuple([shape[d] for d in at]), part=part)
    if rows_at == channels_at:
        checks.refuse_same_dimensions(seq_dim, channel_dim)
    rows = shape[rows_at] - extra
    if extra and rows < 0:
        raise ValueError(
            f"extra_tokens: expected at most {shape[rows_at]}, the sequence of x of shape {tuple(shape)}, got {extra}; "
            "lower it"
        )
    if grid_shape is not None and rows != math.prod(grid_shape):
        _refuse_grid_shape(shape, extra, grid_shape)
    return _layout("x", x, shape, (rows_at,), channels_at, grid_shape or (rows,), extra, part)


def _refuse_axes(at: tuple[int, ...], channels_at: int, seq_dim: Any) -> None:
    """Raises ValueError for a seq_dim or channel_dim of a grid whose axes are other dimensions of x, `at`."""
    if at[0] < channels_at < at[-1]:
        raise ValueError(
            f"channel_dim: expected the channels before or after the grid's dimensions {at}, got {channels_at}, which "
            "lies between them; use x.movedim(channel_dim, -1)"
        )
    raise ValueError(
        f"seq_dim: expected -2, its default, where the grid's axes are dimensions of x, got {seq_dim}; use "
        "x.movedim to bring the axes to the end"
    )


def _is_flat(
    shape: Sequence[int], rows: Any, extra: int, grid_shape: Any, axes: int, at: tuple[int, ...], positions: Any
) -> bool:
    """Whether a grid of several axes is flattened in the sequence, of `rows` rows; its axes are otherwise the
    dimensions `at`, the last ones."""
    dims = tuple(shape[d] for d in at)
    if grid_shape is not None:
        if rows is not None and rows == extra + math.prod(grid_shape):
            return True
        if dims != grid_shape or extra:
            _refuse_grid_shape(shape, extra, grid_shape)
        return False
    if positions is not None:
        dense_tensor("positions", positions)
    given = () if positions is None else tuple(positions.shape)
    if len(shape) > axes + 1 and not extra:  # flat, if there are coordinates for each row of the sequence
        return 2 <= len(given) <= 3 and given[-2] == rows and given[:-1][-axes:] != dims
    if len(given) > 1:
        return True
    if positions is not None:
        raise ValueError(
            f"positions: expected coordinates of a grid of {axes} axes in the last dimension, got shape {given}; stack "
            "those of the axes, as positions.grid does"
        )
    why = f"extra_tokens={extra}" if extra else f"x of {len(shape)} dimensions and a grid of {axes} axes"
    raise ValueError(
        f"grid_shape: expected the lengths of the grid's axes for {why}, got None with x of shape {tuple(shape)}; "
        f"pass grid_shape=({', '.join('HWD'[:axes] if axes < 4 else ['...'])}), whose product is the length of "
        "the sequence without extra_tokens, or which are dimensions of an x without batch; for channels first "
        "also channel_dim"
    )


def _refuse_grid_shape(shape: Sequence[int], extra: int, grid_shape: tuple[int, ...]) -> None:
    """Raises ValueError for a grid_shape, or extra_tokens, that does not match the shape of x."""
    points = math.prod(grid_shape)
    raise ValueError(
        f"grid_shape: expected a sequence of {extra + points} rows (extra_tokens and "
        f"{' * '.join(map(str, grid_shape))} grid points) or the dimensions {grid_shape} in x, got x of shape "
        f"{tuple(shape)}; pass the grid_shape, seq_dim and channel_dim of x"
        + (", extra_tokens=1 for a class token" if not extra and points + 1 in tuple(shape) else "")
    )
