"""`add` of a DTensor with a grid, or with extra tokens: which grid points this rank's shard of x contains."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..operations.add import AddArguments, Part
from ..operations.grid_add import GridAdd, GridForm
from .dtensor import Layout, seed_of_all


def local_call(arguments: AddArguments, part: Tensor, layout: Layout) -> GridAdd:
    """The call on this rank's shard of x, which is a DTensor.

    A shard has the whole grid, a box of it, or a range of the flattened grid; for a range the coordinates of each point
    are passed.
    """
    names = "positions", "start", "alpha", "padding_mask"
    arguments = arguments._replace(**{name: layout.local(name, getattr(arguments, name), {}) for name in names})
    arguments = arguments._replace(seed=seed_of_all(arguments.seed, arguments.dropout, layout, part.device))
    whole = GridAdd(arguments)
    form, at = whole.form, None if whole.positions is None else whole.coordinates()
    if at is None and form.is_flat and len(whole.starts) > 1:
        is_cut = layout.sizes[form.rows_at[0]] != arguments.x.shape[form.rows_at[0]]
        at = whole.coordinates() if is_cut else None
    of_whole = arguments._replace(x=part, positions=at, start=list(whole.starts), padding_mask=whole.padding_mask)
    return _call(of_whole, form, layout.part, layout.sizes)


def _call(of_whole: AddArguments, form: GridForm, of: Part, sizes: tuple[int, ...]) -> GridAdd:
    """The call on a shard of shape `sizes` at the offset `of`. `of_whole` has the whole's arguments in canonical form:
    explicit coordinates, or one start per axis."""
    at, starts, mask = of_whole.positions, of_whole.start, of_whole.padding_mask
    first, axes = of.first, len(starts)
    lengths: tuple[int, ...] | None = None
    if form.is_flat and axes > 1:
        lengths = form.lengths if len(form.lengths) == axes else (form.points, *(1,) * (axes - 1))
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
    of_shard = of_whole._replace(positions=at, start=starts, padding_mask=mask, grid_shape=lengths, extra_tokens=front)
    return GridAdd(of_shard, part=of, is_flat=form.is_flat)


def _boxed(t: Tensor, form: Any, box: list[slice]) -> Tensor:
    """The entries of (1 or B, S, ...) that belong to a box of the grid, row-major in the box."""
    if form.is_flat:
        return t[:, box[0]]
    axes = len(form.lengths)
    return t.unflatten(1, form.lengths)[tuple([slice(None), *box])].flatten(1, axes)
