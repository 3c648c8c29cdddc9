"""Positions and dropout seeds for sequences that are sharded over processes as ordinary tensors.

DTensors need none of these functions: `add`, `embed`, `encode`, `table` and the layers take the place of a shard from
its DTensor. An ordinary tensor does not tell which part of a sequence it is; its positions must be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..encodings import values
from ..encodings.values import integer
from ..operations import checks
from ..torch_state import in_context_parallel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["agreed_seed", "context_parallel_positions", "in_context_parallel", "shard_positions", "shard_start"]


def __dir__() -> list[str]:
    return list(__all__)


def shard_start(length: int, mesh: DeviceMesh, mesh_dim: int | str | None = None) -> int:
    """Returns the index in the sequence of the first row of this process.

    Equivalent to, for the shards of torch.chunk and of Shard in DTensor::

        min(math.ceil(length / ranks) * rank, length)

    Args:
        length: length of the whole sequence.
        mesh: the device mesh over which the sequence is sharded.
        mesh_dim: the dimension of the mesh over which it is sharded, an index or a name. None: the only one.
    Returns:
        an int from 0 to length; `length` if the shard of this process is empty.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value; RuntimeError in a process that is not part of
        the mesh.
    """
    return chunk(values.length(length), *_ranks_and_rank(mesh, mesh_dim))[0]


def shard_positions(
    length: int, mesh: DeviceMesh, mesh_dim: int | str | None = None, *, start: int = 0, device: Any = None
) -> Tensor:
    """Returns the positions of the rows of this process, for a sequence that is sharded into contiguous chunks.

    Equivalent to::

        distribute_tensor(start + torch.arange(length), mesh, [Shard(0)]).to_local()

    Args:
        length, mesh, mesh_dim: as in `shard_start`.
        start: position of the first row of the sequence. Include encoding.start, as it is not added to positions.
        device: device of the result. None: that of the mesh.
    Returns:
        (number of rows of this process,), int64, for `positions=`.
    Raises:
        as `shard_start`; ValueError for positions beyond int64.
    """
    first, count = chunk(values.length(length), *_ranks_and_rank(mesh, mesh_dim))
    begin = values.start(start) + first
    values.position_range(begin, count)
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
    """Returns the positions of the rows of this process inside of torch's `context_parallel`.

    With load balancing, `context_parallel` splits the sequence into 2 n chunks for n ranks and gives rank r the r-th
    chunk and the r-th from the end, so that causal attention is the same amount of work on every rank (Llama 3,
    arXiv:2407.21783, section 3.3.2). The rows of a process are then not contiguous.

    Equivalent to::

        positions = start + torch.arange(length)
        with context_parallel(mesh, buffers=[positions], buffer_seq_dims=[0]):
            return positions.clone()

    Args:
        length, mesh, mesh_dim: as in `shard_start`; length must be a multiple of the number of ranks n.
        load_balance: True: the order above; False: contiguous chunks. None: True if length is a multiple of 2 n, as in
            torch.
        start, device: as in `shard_positions`.
    Returns:
        (length / n,), int64, for `positions=`.
    Raises:
        ValueError for a length that is not such a multiple; otherwise as `shard_positions`.
    """
    length = values.length(length)
    ranks, rank = _ranks_and_rank(mesh, mesh_dim)
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
    first = values.start(start)
    values.position_range(first, length)
    where = _device(mesh, device)
    chunks = (rank, 2 * ranks - 1 - rank) if load_balance else (rank,)
    each = length // (ranks * len(chunks))
    return torch.cat([torch.arange(first + k * each, first + (k + 1) * each, device=where) for k in chunks])


def agreed_seed(mesh: DeviceMesh, seed: int | Tensor | torch.Generator | None = None, *, device: Any = None) -> Tensor:
    """Returns a dropout seed that is the same in all processes of a mesh, that of the first process.

    Processes that hold replicas of a tensor need the same dropout mask, but would each draw a seed of their own. For
    DTensors, `add` and `embed` do this themselves if no seed is given.

    Args:
        mesh: the device mesh; all its processes must call this function.
        seed: as in `add`. None: the first process draws one from torch's generator of the device.
        device: device of the result. None: that of the mesh.
    Returns:
        (), int64, for `seed=`.
    Raises:
        TypeError for a seed of the wrong type; RuntimeError in a process that is not part of the mesh.
    """
    from . import dtensor

    _coordinate(mesh)
    where = _device(mesh, device)
    return dtensor.agreed_seed(checks.seed(seed, where), mesh, where)


def chunk(length: int, ranks: int, rank: int) -> tuple[int, int]:
    """First row and number of rows of a rank, of `length` rows, with the sizes of torch.chunk."""
    each = -(-length // ranks)
    first = min(each * rank, length)
    return first, min(each, length - first)


def _ranks_and_rank(mesh: Any, mesh_dim: int | str | None) -> tuple[int, int]:
    """The size of a dimension of the mesh, and the index of this process along it."""
    coordinate = _coordinate(mesh)
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
    return mesh.size(at), coordinate[at]


def _coordinate(mesh: Any) -> Sequence[int]:
    """The index of this process along each dimension of a mesh."""
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh: expected a DeviceMesh, got {type(mesh).__name__}; pass init_device_mesh(...)")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError("mesh: expected this process to be part of it, got one that is not; call it in the others")
    return coordinate


def _device(mesh: DeviceMesh, device: Any) -> torch.device:
    """The device of a result: the argument `device`, or that of the mesh."""
    return torch.device(mesh.device_type if device is None else device)
