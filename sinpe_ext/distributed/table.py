"""`table` and `encode` as DTensors: each rank computes its own rows and channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ..encodings import resolve
from ..encodings.values import integer
from ..operations import table as tables
from ..operations.table import EncodeArguments, TableArguments
from . import dtensor


def table(arguments: TableArguments, mesh: Any, placements: Sequence[Placement] | None) -> DTensor:
    """`sinpe_ext.table` with `device_mesh`."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"device_mesh: expected a DeviceMesh, got {type(mesh).__name__}; pass init_device_mesh(...)")
    call = tables.check_table(arguments._replace(device=torch.device(mesh.device_type)))
    sharding = dtensor.sharding(mesh, _placements(placements, mesh, len(call.shape)), call.shape)
    return sharding.result(call.part(sharding.part.first, sharding.sizes), call.shape)


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
    advice = "pass a dimension of the table"
    return [
        Shard(integer("placements", p.dim, -rank, rank - 1, advice) % rank) if isinstance(p, Shard) else p
        for p in places
    ]


def encode(arguments: EncodeArguments) -> DTensor:
    """`sinpe_ext.encode` of sharded positions."""
    positions, is_grid = dtensor.plain_shards(arguments.positions), resolve.is_grid(arguments.encoding)
    last = positions.dim() - 1
    if is_grid:  # the coordinates of a grid point must be on one rank
        wanted = [Replicate() if isinstance(p, Shard) and p.dim == last else p for p in positions.placements]
        positions = positions.redistribute(placements=wanted)
    part = positions.to_local(grad_placements=positions.placements)
    local = tables.encode(arguments._replace(positions=part))
    sharding = dtensor.sharding(positions.device_mesh, positions.placements, positions.shape)
    return sharding.result(local, (*(positions.shape[:-1] if is_grid else positions.shape), local.shape[-1]))
