"""The shard of a rank, on simulated meshes of any shape, compared with torch.chunk; what DTensors are not combined
with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sinpe_ext as sinpe

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor, init_device_mesh

from sinpe_ext.distributed import dtensor


class Mesh:
    """The methods of DeviceMesh that a layout uses."""

    def __init__(self, sizes: Sequence[int], coordinate: Sequence[int] | None) -> None:
        self.sizes, self.coordinate = sizes, coordinate

    def size(self, dim: int) -> int:
        return self.sizes[dim]

    def get_coordinate(self) -> Sequence[int] | None:
        return self.coordinate


PLACES: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1), Shard(2))


@pytest.mark.parametrize("shape", [(4, 8, 12), (3, 7, 10), (1, 3, 0)], ids=str)  # even, uneven, fewer than ranks
@pytest.mark.parametrize("sizes", [(1,), (3,), (8,), (3, 2), (2, 2, 2)], ids=str)
def test_layout(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """All placements, including one dimension sharded by several mesh dimensions."""
    dense = torch.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    for placements in itertools.product(PLACES, repeat=len(sizes)):
        for coordinate in itertools.product(*(range(size) for size in sizes)):
            mesh: Any = Mesh(sizes, coordinate)
            part = dense
            for ranks, rank, placement in zip(sizes, coordinate, placements, strict=True):
                if isinstance(placement, Shard):
                    empty = part.narrow(placement.dim, part.shape[placement.dim], 0)
                    part = [*part.chunk(ranks, placement.dim), *([empty] * ranks)][rank]  # the last may have none
            layout = dtensor.sharding(mesh, placements, shape)
            assert layout.sizes == tuple(part.shape) and layout.part.shape == shape
            box = tuple(slice(at, at + size) for at, size in zip(layout.part.first, layout.sizes, strict=True))
            assert torch.equal(dense[box], part), (placements, coordinate)


@pytest.fixture
def simulated() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("simulated")
def test_torchs_simulation_of_ranks_is_refused() -> None:
    simulation = pytest.importorskip("torch.distributed._local_tensor", reason="this torch cannot simulate ranks")
    x, ids = torch.randn(3, 7, 10), torch.zeros(3, 7, dtype=torch.int64)
    with simulation.LocalTensorMode(4):
        mesh = init_device_mesh("cpu", (4,))
        for call in (
            lambda: sinpe.add(distribute_tensor(x, mesh, [Shard(1)]), 10),
            lambda: sinpe.embed(*(distribute_tensor(t, mesh, [Replicate()]) for t in (ids, x[0]))),
            lambda: sinpe.encode(distribute_tensor(ids, mesh, [Shard(0)]), 10),
            lambda: sinpe.table(8, 10, device_mesh=mesh, placements=[Shard(0)]),
        ):
            with pytest.raises(TypeError, match="of one process, got .* simulation of many ranks in one"):
                call()


@pytest.mark.usefixtures("simulated")
def test_jagged_tensors_and_dtensors_are_not_combined(backend: str) -> None:
    mesh = init_device_mesh("cpu", (4,))

    def dense(*shape: int) -> torch.Tensor:
        return distribute_tensor(torch.ones(shape), mesh, [Replicate()])

    ids, x = (
        torch.nested.nested_tensor_from_jagged(t, torch.tensor([0, 3, 9])) for t in (torch.arange(9), torch.ones(9, 10))
    )
    for name, call in {
        "weight": lambda: sinpe.embed(ids, dense(5, 10)),
        "alpha": lambda: sinpe.add(x, alpha=dense(1)),
        "start": lambda: sinpe.add(x, start=dense(2)),
        "positions": lambda: sinpe.add(dense(2, 5, 10), positions=ids),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}: expected (a dense|an ordinary)"):
            call()
