"""DTensors in torch's simulation of many ranks in one process, where that exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import sinpe_ext as sinpe

simulation = pytest.importorskip("torch.distributed._local_tensor", reason="this torch has no simulation of ranks")
tensor = pytest.importorskip("torch.distributed.tensor")
Shard, Replicate = tensor.Shard, tensor.Replicate

pytestmark = pytest.mark.feature("DTensor, simulated ranks")
RANKS = 4


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


def whole(t: Any) -> torch.Tensor:
    """What all ranks agree on."""
    t = t.full_tensor()
    return t.reconcile() if hasattr(t, "reconcile") else t


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"start": 2**40, "encoding": "t2t"},
    "positions": {"positions": torch.arange(7) * 1001},
    "starts": {"start": torch.arange(3)},
    "dropout": {"dropout": 0.3, "seed": 7, "scale": 2.0},
    "drawn": {"dropout": 0.3},
}


@pytest.mark.parametrize("dim", [0, 1, 2, None])
@pytest.mark.parametrize("name", CALLS)
def test_add(name: str, dim: int | None, backend: str) -> None:
    """Uneven shards, of which some ranks have none."""
    x = torch.randn(3, 7, 10)
    torch.manual_seed(5)
    expected = sinpe.add(x, **CALLS[name])
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        torch.manual_seed(5)
        sharded = tensor.distribute_tensor(x, mesh, [Replicate() if dim is None else Shard(dim)])
        actual = sinpe.add(sharded, **CALLS[name])
        assert actual.placements == sharded.placements
        assert torch.equal(whole(actual), expected)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradient(dim: int, backend: str) -> None:
    x, grad = torch.randn(4, 8, 12), torch.randint(-4, 5, (4, 8, 12)).float()
    one = x.clone().requires_grad_()
    sinpe.add(one, dropout=0.3, seed=1, scale=2.0).backward(grad)
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        many = tensor.distribute_tensor(x, mesh, [Shard(dim)]).detach().requires_grad_()
        sinpe.add(many, dropout=0.3, seed=1, scale=2.0).backward(tensor.distribute_tensor(grad, mesh, [Shard(dim)]))
        assert torch.equal(whole(many.grad), one.grad)


def test_embed_and_encode(backend: str) -> None:
    ids, weight, at = torch.randint(0, 9, (3, 7)), torch.randn(9, 10), torch.arange(11) * 10**9
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        for dim in (0, 1):
            actual = sinpe.embed(tensor.distribute_tensor(ids, mesh, [Shard(dim)]), weight, dropout=0.2, seed=3)
            assert torch.equal(whole(actual), sinpe.embed(ids, weight, dropout=0.2, seed=3))
        actual = sinpe.encode(tensor.distribute_tensor(at, mesh, [Shard(0)]), 10)
        assert torch.equal(whole(actual), sinpe.encode(at, 10))
