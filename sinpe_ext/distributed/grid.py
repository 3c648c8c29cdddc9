"""`add` with a grid, or behind extra tokens, of a DTensor: which places this rank's part of x has."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from ..calls.grid import GridCall
from ..checks.part import Part
from .dtensor import Layout, seed_of_all


def local_call(
    x: DTensor, part: Tensor, layout: Layout, encoding: Any, arguments: tuple[Any, ...], grid_shape: Any, extra: Any
) -> GridCall:
    """The call of this rank's part of x.

    A part has all rows of the grid, or a box of them, or a run of its places; a run is told by the coordinates of each.
    """
    positions, start, scale, alpha, padding_mask, seq_dim, channel_dim, dropout, seed = arguments
    named = {"positions": positions, "start": start, "alpha": alpha, "padding_mask": padding_mask}
    positions, start, alpha, padding_mask = (layout.local(name, value, {}) for name, value in named.items())
    seed = seed_of_all(seed, dropout, layout, part.device)
    rest = seq_dim, channel_dim, dropout, seed
    whole = GridCall(x, encoding, (grid_shape, extra), positions, start, scale, alpha, padding_mask, *rest)
    form, at = whole.form, whole.positions
    if at is None and form.is_flat and len(whole.starts) > 1:
        is_cut = layout.sizes[form.rows_at[0]] != x.shape[form.rows_at[0]]
        at = whole.all_positions() if is_cut else None
    of_whole = form, at, list(whole.starts), whole.padding_mask
    return _call(part, layout.part, layout.sizes, encoding, of_whole, scale, alpha, rest)


def _call(
    part: Tensor,
    of: Part,
    sizes: tuple[int, ...],
    encoding: Any,
    of_whole: tuple[Any, ...],
    scale: Any,
    alpha: Any,
    rest: Any,
) -> GridCall:
    """The call of a part that lies `of` the whole, of which `at` are the positions where they are not counted."""
    form, at, starts, mask = of_whole
    first, axes = of.first, len(starts)
    lengths: tuple[int, ...] | None = None
    if form.is_flat and axes > 1:
        lengths = form.lengths if len(form.lengths) == axes else (form.places, *(1,) * (axes - 1))
    front = form.extra
    if any(sizes[d] != of.shape[d] for d in form.rows_at):
        if form.is_flat:
            begin, count = first[form.rows_at[0]], sizes[form.rows_at[0]]
            front = min(max(form.extra - begin, 0), count)
            box = [slice(max(begin - form.extra, 0), max(begin + count - form.extra, 0))]
            lengths = (count - front, *(1,) * (axes - 1)) if axes > 1 else None
        else:
            box = [slice(first[d], first[d] + sizes[d]) for d in form.rows_at]
        if at is None:
            starts = [first_of + piece.start for first_of, piece in zip(starts, box, strict=True)]
        else:
            at = _boxed(at, form, box)
        mask = None if mask is None else _boxed(mask, form, box)
    if form.batch_at:
        begin, count = first[form.batch_at[0]], sizes[form.batch_at[0]]
        at, mask = (t if t is None or t.shape[0] == 1 else t[begin : begin + count] for t in (at, mask))
    return GridCall(
        part, encoding, (lengths, front), at, starts, scale, alpha, mask, *rest, part=of, is_flat=form.is_flat
    )


def _boxed(t: Tensor, form: Any, box: list[slice]) -> Tensor:
    """(1 or B, S, ...) of a box of the places, row-major again."""
    if form.is_flat:
        return t[:, box[0]]
    axes = len(form.lengths)
    return t.unflatten(1, form.lengths)[tuple([slice(None), *box])].flatten(1, axes)
