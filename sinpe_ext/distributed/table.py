"""`table` and `encode` as DTensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..encodings import resolve, values
from ..encodings.values import integer
from ..operations import checks, encoded_rows
from ..operations.table import TableArguments
from . import dtensor


def table(
    table_of: Callable[..., Tensor], arguments: TableArguments, mesh: Any, placements: Sequence[Placement] | None
) -> DTensor:
    """`sinpe_ext.table` with `device_mesh`: each rank computes its own rows and channels by `table_of`, which is
    `sinpe_ext.table` without a mesh."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"device_mesh: expected a DeviceMesh, got {type(mesh).__name__}; pass init_device_mesh(...)")
    length, encoding, start, flatten = arguments.length, arguments.encoding, arguments.start, arguments.flatten
    dtype = torch.float32 if arguments.dtype is None else arguments.dtype
    is_grid, extra = resolve.is_grid(encoding), checks.extra_tokens(arguments.extra_tokens)
    device, named = torch.device(mesh.device_type), resolve.dim_beside(encoding, arguments.dim)
    if is_grid:
        dim, firsts = resolve.grid_dim_and_starts(encoding, named)
        lengths = checks.grid_lengths("length", length, len(firsts))
        starts = checks.grid_starts(start, firsts, lengths, None, device)
    else:
        one = resolve.encoding(encoding, named)
        dim, lengths, starts = one.dim, (values.length(length),), [values.start(start)]
        values.position_range(one.start + starts[0], lengths[0])
    is_flat = bool(extra) or flatten
    shape = (extra + math.prod(lengths), dim) if is_flat else (*lengths, dim)
    layout = dtensor.layout(mesh, _placements(placements, mesh, len(shape)), shape)

    def part(first: Sequence[int], sizes: Sequence[int]) -> Tensor:
        if is_flat:
            whole: Any = table_of(
                length, encoding, dim=named, start=start, dtype=dtype, device=device, flatten=True, extra_tokens=extra
            )
            rows = whole[first[0] : first[0] + sizes[0]]
        else:
            local_starts = [begin + at for begin, at in zip(starts, first, strict=False)]
            if not is_grid:
                columns = encoding, named, (min(first[-1], dim - 1), max(sizes[-1], 1))
                rows = encoded_rows.table(columns, sizes[0], local_starts[0], dtype, device)
                return rows.narrow(-1, 0, sizes[-1])
            rows = table_of(sizes[:-1], encoding, dim=named, start=local_starts, dtype=dtype, device=device)
        return rows.narrow(-1, first[-1], sizes[-1]).contiguous()

    return layout.result(part(layout.part.first, layout.sizes), shape)


def _placements(placements: Any, mesh: DeviceMesh, rank: int) -> list[Placement]:
    """Checks the placements, one for each dimension of the mesh, and makes their dimensions non-negative; None:
    replicated."""
    is_list = isinstance(placements, (list, tuple))
    places = [Replicate()] * mesh.ndim if placements is None else list(placements) if is_list else []
    if len(places) != mesh.ndim or not all(type(p) is Shard or type(p) is Replicate for p in places):
        raise ValueError(
            f"placements: expected Shard or Replicate, {mesh.ndim} of them, one for each dimension of the mesh, got "
            f"{placements}; pass for instance [Shard(0)]"
        )
    at = [
        integer("placements", p.dim, -rank, rank - 1, "pass a dimension of the table") if isinstance(p, Shard) else None
        for p in places
    ]
    return [Replicate() if d is None else Shard(d % rank) for d in at]


def encode(
    encode_of: Callable[..., Tensor], positions: Any, encoding: Any, dim: Any, dtype: torch.dtype, allow_16bit: bool
) -> DTensor:
    """`sinpe_ext.encode` of sharded positions: each rank encodes its own by `encode_of`."""
    positions = dtensor.plain_shards(positions)
    last = positions.dim() - 1
    if resolve.is_grid(encoding):  # the coordinates of a grid point must be on one rank
        wanted = [Replicate() if isinstance(p, Shard) and p.dim == last else p for p in positions.placements]
        positions = positions.redistribute(placements=wanted)
    part = positions.to_local(grad_placements=positions.placements)
    local = encode_of(part, encoding, dim=dim, dtype=dtype, allow_16bit=allow_16bit)
    outer = positions.shape[:-1] if resolve.is_grid(encoding) else positions.shape
    layout = dtensor.layout(positions.device_mesh, positions.placements, positions.shape)
    return layout.result(local, (*outer, local.shape[-1]))
