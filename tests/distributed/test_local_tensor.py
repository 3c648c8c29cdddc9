"""DTensors in torch's simulation of many ranks in one process, where that exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import distributed_cases
import distributed_models
import distributed_support
import pytest
import torch
import torch.distributed as dist
from distributed_support import SUM

import sinpe_ext as sinpe

simulation = pytest.importorskip("torch.distributed._local_tensor", reason="this torch has no simulation of ranks")
tensor = pytest.importorskip("torch.distributed.tensor")
Shard, Replicate = tensor.Shard, tensor.Replicate

pytestmark = pytest.mark.feature("DTensor, simulated ranks")
RANKS = 4
assert distributed_cases.case is distributed_models.case  # both have put theirs in


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


def compared(x: torch.Tensor, dims: tuple[int | None, ...], **arguments: Any) -> None:
    """`add` of one process and of all ranks, a mesh dimension for each of `dims`; gradients of x and alpha."""
    one, grad = x.clone().requires_grad_(), torch.randint(-4, 5, x.shape).float()
    named = {**arguments, "alpha": torch.tensor([0.75], requires_grad=True)}
    expected = sinpe.add(one, **named)
    expected.backward(grad)
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS // 2, 2) if len(dims) == 2 else (RANKS,))
        places = [Replicate() if dim is None else Shard(dim) for dim in dims]
        many = tensor.distribute_tensor(x, mesh, places).detach().requires_grad_()
        alpha = tensor.DTensor.from_local(torch.tensor([0.75]), mesh, [Replicate()] * len(dims)).requires_grad_()
        actual = sinpe.add(many, **{**arguments, "alpha": alpha})
        assert list(actual.placements) == places
        assert torch.equal(whole(actual), expected)
        actual.backward(tensor.distribute_tensor(grad, mesh, places))
        assert torch.equal(whole(many.grad), one.grad)
        torch.testing.assert_close(whole(alpha.grad), named["alpha"].grad, rtol=SUM, atol=SUM * x.numel() ** 0.5)


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (None,), (0, 2), (1, 1), (1, None)], ids=str)
@pytest.mark.parametrize("shape", [(4, 8, 12), (3, 7, 10), (1, 3, 5)], ids=str)  # even, uneven, fewer than ranks
def test_gradients(shape: tuple[int, ...], dims: tuple[int | None, ...], backend: str) -> None:
    compared(torch.randn(shape), dims, dropout=0.3, seed=1, scale=2.0)


def test_generator_and_out(backend: str) -> None:
    x = torch.randn(3, 7, 10)
    expected = sinpe.add(x, dropout=0.5, seed=torch.Generator().manual_seed(7))
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        many, out = (tensor.distribute_tensor(t, mesh, [Shard(1)]) for t in (x, torch.full_like(x, torch.nan)))
        assert sinpe.add(many, dropout=0.5, seed=torch.Generator().manual_seed(7), out=out) is out
        assert torch.equal(whole(out), expected)
        assert sinpe.add_(many, dropout=0.5, seed=torch.Generator().manual_seed(7)) is many
        assert torch.equal(whole(many), expected)


def test_backward_after_the_simulation(backend: str) -> None:
    x = torch.randn(4, 8, 12)
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        many = tensor.distribute_tensor(x, mesh, [Shard(1)]).detach().requires_grad_()
        total = sinpe.add(many, scale=3.0).sum()
    total.backward()
    with simulation.LocalTensorMode(RANKS):
        assert torch.equal(whole(many.grad), torch.full_like(x, 3.0))


GRID = sinpe.convention("mae2d", 12)
GRIDS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((3, 5, 6, 12), {}),
    "all": ((3, 5, 6, 12), {"start": (7, 2), "dropout": 0.3, "seed": 3, "padding_mask": torch.rand(3, 5, 6) > 0.5}),
    "starts": ((3, 5, 6, 12), {"start": torch.randint(0, 9, (3, 2))}),
    "positions": ((3, 5, 6, 12), {"positions": torch.randint(0, 100, (5, 6, 2))}),
    "channels first": ((3, 12, 5, 6), {"channel_dim": 1, "dropout": 0.3, "seed": 3}),
    "in a sequence": ((3, 30, 12), {"grid_shape": (5, 6), "scale": 2.0}),
    "behind a token": ((3, 31, 12), {"grid_shape": (5, 6), "extra_tokens": 1, "dropout": 0.3, "seed": 3}),
}


@pytest.mark.parametrize("name", GRIDS)
def test_grids(name: str, backend: str) -> None:
    shape, arguments = GRIDS[name]
    for dim in (*range(len(shape)), None):
        compared(torch.randn(shape), (dim,), encoding=GRID, **arguments)
    compared(torch.randn(3, 8, 10), (1,), extra_tokens=2, start=5)  # a sequence of one dimension, behind tokens


@pytest.mark.parametrize("of_weight", [None, 0, 1])  # copies, sharded by rows, by channels
@pytest.mark.parametrize("of_ids", [None, 0, 1])
def test_embed(of_ids: int | None, of_weight: int | None, backend: str) -> None:
    ids, weight, grad = torch.randint(0, 9, (3, 7)), torch.randn(9, 10), torch.randint(-4, 5, (3, 7, 10)).float()
    arguments: dict[str, Any] = {"padding_idx": 2, "start": 4, "scale": 2.0}
    one = weight.clone().requires_grad_()
    sinpe.embed(ids, one, **arguments).backward(grad)
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        placed = [Replicate() if dim is None else Shard(dim) for dim in (of_ids, of_weight)]
        many = tensor.distribute_tensor(weight, mesh, placed[1:]).detach().requires_grad_()
        sharded = tensor.distribute_tensor(ids, mesh, placed[:1])
        actual = sinpe.embed(sharded, many, **arguments)
        assert torch.equal(whole(actual), sinpe.embed(ids, weight, **arguments))
        actual.backward(tensor.distribute_tensor(grad, mesh, actual.placements))
        assert torch.equal(whole(many.grad), one.grad)  # whole numbers: sums are exact
        dropped = sinpe.embed(sharded, many.detach(), dropout=0.2, seed=3)
        assert torch.equal(whole(dropped), sinpe.embed(ids, weight, dropout=0.2, seed=3))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_encode(dim: int | None, backend: str) -> None:
    for at in (torch.arange(21).reshape(3, 7) * 10**9, torch.rand(4, 6) * 1000):
        one = at.clone().requires_grad_(at.is_floating_point())
        expected = sinpe.encode(one, 10)
        if one.requires_grad:
            expected.square().sum().backward()
        with simulation.LocalTensorMode(RANKS):
            mesh = tensor.init_device_mesh("cpu", (RANKS,))
            many = tensor.distribute_tensor(at, mesh, [Replicate() if dim is None else Shard(dim)]).detach()
            actual = sinpe.encode(many.requires_grad_(one.requires_grad), 10)
            assert torch.equal(whole(actual), expected)
            if one.requires_grad:
                actual.square().sum().backward()
                assert torch.equal(whole(many.grad), one.grad)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_table(dim: int | None, backend: str) -> None:
    calls: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
        (8, 12, {}),
        (7, sinpe.Encoding(10, layout="cos_sin"), {"start": 2**35, "dtype": torch.bfloat16}),
        (1, 5, {"extra_tokens": 2}),
        ((5, 6), GRID, {"start": (3, 1)}),
        ((5, 6), GRID, {"flatten": True}),
    )
    for length, encoding, arguments in calls:
        with simulation.LocalTensorMode(RANKS):
            mesh = tensor.init_device_mesh("cpu", (RANKS,))
            placements = [Replicate() if dim is None else Shard(dim)]
            actual = whole(sinpe.table(length, encoding, device_mesh=mesh, placements=placements, **arguments))
        assert torch.equal(actual, sinpe.table(length, encoding, **arguments))


def test_rows_of_a_layer(backend: str) -> None:
    """Each rank's own are within max_len, or a rank refuses."""
    layer = sinpe.SinusoidalPositionalEncoding(8, max_len=16).eval()
    x, at = torch.randn(2, 7, 8), torch.tensor([0, 1, 2, 3, 4, 5, 16])  # the last rank's is too far
    with simulation.LocalTensorMode(RANKS):
        mesh = tensor.init_device_mesh("cpu", (RANKS,))
        many = tensor.distribute_tensor(x, mesh, [Shard(1)])
        assert torch.equal(whole(layer(many, positions=at - 1 * (at > 5))), layer(x, positions=at - 1 * (at > 5)))
        with pytest.raises(IndexError, match="expected 0 to 15"):
            layer(many, positions=at)


# Of distributed_cases.py and distributed_models.py: those that do not ask for their own process' number (seeds, fsdp2,
# plain_shards) or a compiler (whose symbols are ints of one rank), and that the tests above do not have.
SHARED = (
    "add_where_it_is_told",
    "float_positions",
    "add_in_place",
    "second_order",
    "sums_that_are_pending",
    "embed",
    "layers",
    "refusals",
    "parallel_styles",
    "embedding_styles",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHARED)
def test_cases_of_processes(name: str, backend: str) -> None:
    with simulation.LocalTensorMode(RANKS):
        try:
            distributed_support.CASES[name](tensor.init_device_mesh("cpu", (RANKS,)))
        except distributed_support.Missing as reason:
            pytest.skip(str(reason))
