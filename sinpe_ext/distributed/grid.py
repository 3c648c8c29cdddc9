"""`add` of a DTensor with a grid, or with extra tokens: the same call on this rank's samples or channels."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import Shard

from ..operations.add import AddArguments
from ..operations.grid_add import GridAdd
from .dtensor import Layout, seed_of_all


def local_call(arguments: AddArguments, part: Tensor, layout: Layout) -> GridAdd:
    """The call on this rank's shard of x, which is a DTensor. Raises ValueError if x is sharded along the grid."""
    names = "positions", "start", "alpha", "padding_mask"
    arguments = arguments._replace(**{name: layout.local(name, getattr(arguments, name), {}) for name in names})
    arguments = arguments._replace(seed=seed_of_all(arguments.seed, arguments.dropout, layout, part.device))
    whole = GridAdd(arguments)
    form, axes, of = whole.form, len(whole.starts), layout.part
    for placement in layout.placements:
        if isinstance(placement, Shard) and placement.dim in form.rows_at:
            raise ValueError(
                "x: expected the whole grid (or sequence with extra_tokens) on every rank, got a DTensor that is "
                f"sharded along dimension {placement.dim} of shape {tuple(arguments.x.shape)}; shard its samples or "
                "channels, or call add on x.to_local() with the positions of its rows"
            )
    at, mask = None if whole.positions is None else whole.coordinates(), whole.padding_mask
    if form.batch_at:
        begin, count = of.first[form.batch_at[0]], layout.sizes[form.batch_at[0]]
        at, mask = (t if t is None or t.shape[0] == 1 else t[begin : begin + count] for t in (at, mask))
    lengths: tuple[int, ...] | None = None
    if form.is_flat and axes > 1:
        lengths = form.lengths if len(form.lengths) == axes else (form.points, *(1,) * (axes - 1))
    of_shard = arguments._replace(
        x=part, positions=at, start=list(whole.starts), padding_mask=mask, grid_shape=lengths, extra_tokens=form.extra
    )
    return GridAdd(of_shard, part=of, is_flat=form.is_flat)
