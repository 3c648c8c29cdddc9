"""The local part of a sharded tensor, on simulated meshes of any shape, compared with torch.chunk. torch's simulation
of ranks is rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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


def local_part(dense: torch.Tensor, mesh: Mesh, placements: Sequence[Placement]) -> torch.Tensor:
    """A rank's part by torch.chunk; the last ranks may have none."""
    assert mesh.coordinate is not None
    for ranks, rank, placement in zip(mesh.sizes, mesh.coordinate, placements, strict=True):
        if isinstance(placement, Shard):
            chunks = dense.chunk(ranks, placement.dim)
            empty = dense.narrow(placement.dim, dense.shape[placement.dim], 0)
            dense = chunks[rank] if rank < len(chunks) else empty
    return dense


@pytest.mark.parametrize("length", range(10))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_chunk(length: int, ranks: int) -> None:
    at = 0
    for rank in range(ranks):
        first, count = dtensor.chunk(length, ranks, rank)
        assert (first, count) == (at, len(local_part(torch.arange(length), Mesh([ranks], [rank]), [Shard(0)])))
        assert 0 <= first <= length
        at += count
    assert at == length


PLACES: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1), Shard(2))


@pytest.mark.parametrize("shape", [(4, 8, 12), (3, 7, 10), (1, 3, 5)], ids=str)  # even, uneven, fewer than ranks
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (3, 2), (2, 2, 2)], ids=str)
def test_layout(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """All placements, including one dimension sharded by several mesh dimensions."""
    dense = torch.arange(shape[0] * shape[1] * shape[2]).reshape(shape)
    for placements in itertools.product(PLACES, repeat=len(sizes)):
        for coordinate in itertools.product(*(range(size) for size in sizes)):
            mesh = Mesh(sizes, coordinate)
            part = local_part(dense, mesh, placements)
            layout = dtensor.sharding(mesh, placements, shape)  # type: ignore[arg-type]
            assert layout.sizes == tuple(part.shape) and layout.part.shape == shape
            box = tuple(slice(at, at + size) for at, size in zip(layout.part.first, layout.sizes, strict=True))
            assert torch.equal(dense[box], part), (placements, coordinate)


def test_rank_outside_the_mesh() -> None:
    layout = dtensor.sharding(Mesh([3], None), [Shard(1)], (2, 7))  # type: ignore[arg-type]
    assert layout.sizes == (2, 0) and dtensor.is_outside(Mesh([3], None))  # type: ignore[arg-type]


def test_simulated_ranks(backend: str) -> None:
    simulation = pytest.importorskip("torch.distributed._local_tensor", reason="this torch cannot simulate ranks")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    x, ids = torch.randn(3, 7, 10), torch.zeros(3, 7, dtype=torch.int64)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
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
    finally:
        dist.destroy_process_group()


def test_jagged_tensors_and_dtensors_are_not_combined(backend: str) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def jagged(values: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 9]))

    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (1,))

        def dense(*shape: int) -> torch.Tensor:
            return distribute_tensor(torch.ones(shape, dtype=torch.float32), mesh, [Replicate()])

        ids = jagged(torch.zeros(9, dtype=torch.int64))
        refused = {
            "weight": lambda: sinpe.embed(ids, dense(5, 10)),
            "alpha": lambda: sinpe.add(jagged(torch.zeros(9, 10)), alpha=dense(1)),
            "start": lambda: sinpe.add(jagged(torch.zeros(9, 10)), start=dense(2)),
            "positions": lambda: sinpe.add(dense(2, 5, 10), positions=ids),
        }
        for name, call in refused.items():
            with pytest.raises(TypeError, match=f"^{name}: expected (a dense|an ordinary)"):
                call()
    finally:
        dist.destroy_process_group()
