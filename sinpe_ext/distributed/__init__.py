"""Positions and seeds for tensors sharded over several processes; torch.distributed does everything else.

DTensors do not need these helpers: `add`, `embed`, `encode`, `table` and the layers know the offsets of their shards.
They are for ordinary tensors that hold a shard, whose offset cannot be read from the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import checks
from ..encodings.values import integer
from ..runtime.parallel import in_context_parallel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["agreed_seed", "context_parallel_positions", "in_context_parallel", "shard_positions", "shard_start"]


def __dir__() -> list[str]:
    return list(__all__)


def shard_start(length: int, mesh: DeviceMesh, mesh_dim: int | str | None = None) -> int:
    """The index in a sequence of the first row of this process's shard.

    Equivalent to, with the sizes of torch.chunk and DTensor's Shard:
        min(math.ceil(length / ranks) * rank, length)

    Args:
        length: length of the whole sequence.
        mesh: the device mesh over which the sequence is sharded.
        mesh_dim: the dimension of the mesh over which it is sharded, an index or a name; may be None if the mesh has
            one dimension only.
    Returns: 0 to length; `length` if the shard of this process is empty.
    Raises: TypeError, ValueError for arguments of the wrong type or value; RuntimeError in a process that is not part
        of the mesh.
    """
    return _run(checks.length(length), mesh, mesh_dim)[0]


def shard_positions(
    length: int, mesh: DeviceMesh, mesh_dim: int | str | None = None, *, start: int = 0, device: Any = None
) -> Tensor:
    """The positions of the rows of this process's shard, for a sequence sharded into contiguous pieces.

    Equivalent to:
        distribute_tensor(start + torch.arange(length), mesh, [Shard(0)]).to_local()

    Args:
        length, mesh, mesh_dim: as `shard_start`.
        start: position of the first row of the sequence; positions are final, so include encoding.start.
        device: device of the result; None: the mesh's.
    Returns: (rows of this process,) int64, to be passed as `positions`.
    Raises: as `shard_start`.
    """
    first, count = _run(checks.length(length), mesh, mesh_dim)
    begin = checks.start(start) + first
    checks.position_range(begin, count)
    return torch.arange(begin, begin + count, device=_device(mesh, device))


def context_parallel_positions(
    length: int,
    mesh: DeviceMesh,
    mesh_dim: int | str | None = None,
    *,
    load_balance: bool | None = None,
    start: int = 0,
    device: Any = None,
) -> Tensor:
    """The positions of the rows of this process inside torch's `context_parallel`.

    It gives rank r of n the r-th of 2 n pieces and the r-th from the end, so that causal attention is the same work on
    all ranks (Llama 3, arXiv:2407.21783, section 3.3.2). An offset cannot describe that.

    Equivalent to:
        positions = start + torch.arange(length)
        with context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]):
            return positions.clone()

    Args:
        length, mesh, mesh_dim: as `shard_start`; length is a multiple of the number of ranks.
        load_balance: whether the sequence is distributed in this way; False: in contiguous pieces; None: True if length
            is a multiple of 2 n, as in torch.
        start, device: as `shard_positions`.
    Returns: (length / n,) int64, to be passed as `positions`.
    Raises: ValueError for a length that cannot be distributed; else as `shard_start`.
    """
    length = checks.length(length)
    rank, ranks = _place(mesh, mesh_dim)
    if length % ranks:
        raise ValueError(
            f"length: expected a multiple of {ranks}, the ranks of the mesh, got {length}; pad the sequence to one"
        )
    if load_balance is None:
        load_balance = length % (2 * ranks) == 0
    if load_balance and length % (2 * ranks):
        raise ValueError(
            f"length: expected a multiple of {2 * ranks}, twice the ranks of the mesh, for load_balance=True, got "
            f"{length}; pad the sequence, or pass load_balance=False"
        )
    first = checks.start(start)
    checks.position_range(first, length)
    where = _device(mesh, device)
    if not load_balance:
        piece = length // ranks
        return torch.arange(first + rank * piece, first + (rank + 1) * piece, device=where)
    piece = length // (2 * ranks)
    return torch.cat(
        [torch.arange(first + k * piece, first + (k + 1) * piece, device=where) for k in (rank, 2 * ranks - 1 - rank)]
    )


def agreed_seed(mesh: DeviceMesh, seed: int | Tensor | torch.Generator | None = None, *, device: Any = None) -> Tensor:
    """A seed that is the same in all processes of a mesh: the one that the first process passes, or draws.

    Processes that hold replicas of a tensor need the same dropout mask, but each would draw its own seed. With DTensors
    `add` and `embed` do this themselves if no seed is given.

    Args:
        mesh: all its processes must make this call.
        seed: as in `add`; None: drawn from torch's generator of the device.
        device: device of the result; None: the mesh's.
    Returns: () int64.
    Raises: TypeError for a seed of the wrong type; RuntimeError in a process that is not part of the mesh.
    """
    from ..checks import seeds
    from . import dtensor

    _mesh(mesh)
    _coordinate(mesh)
    where = _device(mesh, device)
    return dtensor.agreed_seed(seeds.checked(seed, where), mesh, where)


def _place(mesh: Any, mesh_dim: int | str | None) -> tuple[int, int]:
    """The rank of this process along a dimension of the mesh, and the size of that dimension."""
    _mesh(mesh)
    if mesh_dim is None:
        if mesh.ndim != 1:
            raise ValueError(f"mesh_dim: expected one of the {mesh.ndim} dimensions of the mesh, got None; pass it")
        at = 0
    elif isinstance(mesh_dim, str):
        names = mesh.mesh_dim_names or ()
        if mesh_dim not in names:
            raise ValueError(f"mesh_dim: expected one of {names}, got {mesh_dim!r}; pass a name the mesh has")
        at = names.index(mesh_dim)
    else:
        at = integer("mesh_dim", mesh_dim, -mesh.ndim, mesh.ndim - 1, "pass a dimension of the mesh") % mesh.ndim
    return _coordinate(mesh)[at], mesh.size(at)


def _coordinate(mesh: DeviceMesh) -> Sequence[int]:
    """The rank of this process along each dimension of the mesh."""
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError("mesh: expected this process to be part of it, got one that is not; call it in the others")
    return coordinate


def _mesh(mesh: Any) -> None:
    """Raises TypeError if a value is not a DeviceMesh."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}; pass init_device_mesh(...)")


def _run(length: int, mesh: Any, mesh_dim: int | str | None) -> tuple[int, int]:
    """First row and number of rows of this process, with the sizes of torch.chunk."""
    from .dtensor import chunk

    rank, ranks = _place(mesh, mesh_dim)
    return chunk(length, ranks, rank)


def _device(mesh: DeviceMesh, device: Any) -> torch.device:
    return torch.device(mesh.device_type if device is None else device)
