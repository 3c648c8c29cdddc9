"""Cases of DTensor arguments of the functions, run on each rank of a mesh: see distributed_support.py."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from distributed_support import SUM, Missing, case, compare, distribute, raises, same
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import sinpe_ext as sinpe

SHAPES = ((4, 6, 8), (3, 7, 10), (1, 3, 5))  # even, uneven, fewer than ranks


def calls(b: int, s: int, d: int) -> dict[str, dict[str, Any]]:
    return {
        "plain": {},
        "start": {"start": 5, "encoding": "t2t"},
        "far": {"start": 10**15, "encoding": sinpe.Encoding(d, layout="sin_cos")},
        "starts": {"start": torch.arange(b) * 3},
        "0-d start": {"start": torch.tensor(2**33)},
        "positions": {"positions": torch.randint(0, 10**6, (s,)), "encoding": sinpe.Encoding(d, layout="cos_sin")},
        "positions of samples": {"positions": torch.randint(-(10**9), 10**9, (b, s))},
        "dropout": {"dropout": 0.3, "seed": 7},
        "all": {
            "alpha": torch.tensor([0.75]),
            "scale": 2.0,
            "padding_mask": torch.rand(b, s) > 0.5,
            "dropout": 0.3,
            "seed": torch.tensor(3),
            "start": 9,
        },
    }


@case
def add(mesh: DeviceMesh) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in SHAPES:
            x = torch.randn(shape).to(dtype)
            for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
                for name, arguments in calls(*shape).items():
                    compare(sinpe.add, x, placement, mesh, (name, shape, placement, dtype), **arguments)


@case
def float64_channels(mesh: DeviceMesh) -> None:
    """Many rows at large positions: a part uses the same algorithms as the whole."""
    x = torch.zeros(1, 2000, 64, dtype=torch.float64)
    for placement in (Shard(1), Shard(2)):
        for start in (10**15, 2**50 + 1):
            same(sinpe.add(distribute_tensor(x, mesh, [placement]), start=start), sinpe.add(x, start=start), start)


@case
def strides(mesh: DeviceMesh) -> None:
    """Strides of empty_like(x), equal on all ranks."""
    for x in (torch.randn(4, 3, 8).transpose(1, 2), torch.randn(4, 5, 8)[:, :3], torch.randn(3, 4, 8).transpose(0, 1)):
        for d in range(3):
            y = sinpe.add(distribute_tensor(x, mesh, [Shard(d)]))
            like = torch.empty_like(torch.empty_strided(x.shape, distribute_tensor(x, mesh, [Shard(d)]).stride()))
            assert y.stride() == like.stride(), (x.stride(), d, y.stride())


@case
def add_dimensions(mesh: DeviceMesh) -> None:
    """Sequence first, channels first, more dimensions, no batch dimension."""
    for shape, dims in (((6, 3, 8), (0, 2)), ((3, 10, 7), (2, 1)), ((2, 3, 5, 4), (2, 3)), ((7, 6), (0, 1))):
        x = torch.randn(shape)
        for d in range(len(shape)):
            arguments = {"seq_dim": dims[0], "channel_dim": dims[1], "dropout": 0.4, "seed": 1, "scale": 3.0}
            compare(sinpe.add, x, Shard(d), mesh, (shape, d), **arguments)


@case
def float_positions(mesh: DeviceMesh) -> None:
    """Gradients of replicated positions, and of positions sharded with x."""
    x = torch.randn(4, 7, 8)
    for shape in ((7,), (4, 7)):
        p = torch.rand(shape) * 100
        one = p.clone().requires_grad_()
        sinpe.add(x, positions=one).square().sum().backward()
        for placement in (Shard(0), Shard(1), Shard(2)):
            for sharded in (False, True):
                many = distribute(p, mesh, Replicate()) if sharded else p.clone().requires_grad_()
                y = sinpe.add(distribute_tensor(x, mesh, [placement]), positions=many)
                y.square().sum().backward()
                actual = many.grad.full_tensor() if sharded else many.grad
                torch.testing.assert_close(actual, one.grad, rtol=SUM, atol=1e-4)


@case
def add_in_place(mesh: DeviceMesh) -> None:
    x = torch.randn(3, 7, 10)
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        expected = sinpe.add(x, dropout=0.25, seed=5)
        sharded = distribute_tensor(x.clone(), mesh, [placement])
        assert sinpe.add_(sharded, dropout=0.25, seed=5) is sharded
        same(sharded, expected, placement)
        given, out = (
            distribute_tensor(x, mesh, [placement]),
            distribute_tensor(torch.full_like(x, torch.nan), mesh, [placement]),
        )
        assert sinpe.add(given, dropout=0.25, seed=5, out=out) is out
        same(out, expected, placement)
        sharded, weight = distribute_tensor(x.clone(), mesh, [placement]), distribute(x, mesh, placement)
        total = (weight * sharded).sum()
        sinpe.add_(sharded)  # saved for the gradient of weight
        raises(RuntimeError, "modified by an inplace operation", total.backward)
        many, one = distribute(x, mesh, placement), x.clone().requires_grad_()
        sinpe.add_(many * 2, scale=3.0).sum().backward()
        sinpe.add_(one * 2, scale=3.0).sum().backward()
        same(many.grad, one.grad, placement)


@case
def second_order(mesh: DeviceMesh) -> None:
    if "grad_placements" not in signature(DTensor.from_local).parameters:
        raise Missing("redistribute of this torch has no second derivative: autograd reports an unused tensor")
    x, p = torch.randn(2, 5, 6, dtype=torch.float64), torch.rand(2, 5, dtype=torch.float64)

    def twice(x: Tensor, p: Tensor) -> Tensor:
        (to_p,) = torch.autograd.grad(sinpe.add(x, positions=p, scale=2.0).square().sum(), p, create_graph=True)
        return torch.autograd.grad(to_p.square().sum(), p)[0]

    expected = twice(x, p.clone().requires_grad_())
    for placement in (Shard(0), Shard(1)):
        actual = twice(distribute_tensor(x, mesh, [placement]), distribute(p, mesh, placement))
        torch.testing.assert_close(actual.full_tensor(), expected)


@case
def partial_sums(mesh: DeviceMesh) -> None:
    x = torch.randint(-8, 9, (2, 6, 4)).float()
    parts = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    y = sinpe.add(parts, scale=0.5)
    assert list(y.placements) == [Replicate()]
    same(y, sinpe.add(x * mesh.size(), scale=0.5))


@case
def two_dimensions_of_mesh(mesh: DeviceMesh) -> None:
    if mesh.size() < 4:
        return
    square = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("dp", "tp"))
    for shape in ((4, 6, 8), (3, 7, 10)):
        x = torch.randn(shape)
        for a in (Shard(0), Shard(1), Shard(2), Replicate()):
            for b in (Shard(0), Shard(1), Shard(2), Replicate()):
                for name in ("plain", "positions of samples", "all"):
                    compare(sinpe.add, x, [a, b], square, (name, shape, a, b), **calls(*shape)[name])


@case
def seeds(mesh: DeviceMesh) -> None:
    """A random seed is the first rank's on all ranks, equal to that of a single process."""
    rank = dist.get_rank()
    x = torch.randn(4, 6, 8)
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        torch.manual_seed(100 + rank)
        many = sinpe.add(distribute_tensor(x, mesh, [placement]), dropout=0.5)
        torch.manual_seed(100)
        same(many, sinpe.add(x, dropout=0.5), placement)
    generator = torch.Generator().manual_seed(7 + rank)
    many = sinpe.add(distribute_tensor(x, mesh, [Shard(1)]), dropout=0.5, seed=generator)
    same(many, sinpe.add(x, dropout=0.5, seed=torch.Generator().manual_seed(7)))
    before = torch.get_rng_state()
    sinpe.add(distribute_tensor(x, mesh, [Shard(1)]), dropout=0.0)
    assert torch.equal(torch.get_rng_state(), before)


@case
def table(mesh: DeviceMesh) -> None:
    encodings = [
        sinpe.Encoding(10),
        sinpe.convention("t2t", 9),
        sinpe.Encoding(7, cos_frequency="own", layout="cos_sin"),
    ]
    encodings += [sinpe.Encoding(11, odd="pad"), sinpe.Encoding(8, angle="float32_exp"), sinpe.Encoding(1)]
    for encoding in encodings:
        for length in (8, 7, 1, 0):
            for placement in (Shard(0), Shard(1), Shard(-1), Replicate()):
                for dtype in (torch.float32, torch.float64, torch.bfloat16):
                    expected = sinpe.table(length, encoding, start=2**35, dtype=dtype)
                    more = {"device_mesh": mesh, "placements": [placement], "dtype": dtype}
                    same(sinpe.table(length, encoding, start=2**35, **more), expected, (encoding, length, placement))
    grid = sinpe.convention("mae2d", 12)
    for d in range(3):
        more = {"device_mesh": mesh, "placements": [Shard(d)], "start": (3, 1)}
        same(sinpe.table((5, 6), grid, **more), sinpe.table((5, 6), grid, start=(3, 1)), d)
    for d in range(2):
        more = {"device_mesh": mesh, "placements": [Shard(d)]}
        same(sinpe.table((5, 6), grid, extra_tokens=2, **more), sinpe.table((5, 6), grid, extra_tokens=2), d)
        same(sinpe.table((5, 6), grid, flatten=True, **more), sinpe.table((5, 6), grid, flatten=True), d)
        same(sinpe.table(6, 10, extra_tokens=1, **more), sinpe.table(6, 10, extra_tokens=1), d)
        same(sinpe.table(6, "t2t", dim=10, **more), sinpe.table(6, sinpe.convention("t2t", 10)), d)
        for flat in (False, True):
            by_name = sinpe.table((5, 6), "mae2d", dim=8, flatten=flat, **more)
            same(by_name, sinpe.table((5, 6), sinpe.convention("mae2d", 8), flatten=flat), d)


@case
def encode(mesh: DeviceMesh) -> None:
    grid = sinpe.convention("mae2d", 12)
    for shape in ((4, 6), (3, 7), (5,)):
        p = torch.randint(-(2**40), 2**40, shape)
        f = torch.rand(shape) * 1000
        for placement in (*(Shard(d) for d in range(len(shape))), Replicate()):
            same(sinpe.encode(distribute_tensor(p, mesh, [placement]), sinpe.Encoding(10)), sinpe.encode(p, 10), shape)
            compare(lambda t: sinpe.encode(t, sinpe.Encoding(6)) * 1.0, f, Replicate(), mesh, shape)
            one, many = f.clone().requires_grad_(), distribute(f, mesh, placement)
            y, ys = sinpe.encode(one, sinpe.Encoding(6)), sinpe.encode(many, sinpe.Encoding(6))
            same(ys, y, shape)
            y.square().sum().backward()
            ys.square().sum().backward()
            same(many.grad, one.grad, (shape, placement))
    at = torch.randint(0, 500, (3, 7, 2))
    for d in range(3):
        same(sinpe.encode(distribute_tensor(at, mesh, [Shard(d)]), grid), sinpe.encode(at, grid), d)
        same(sinpe.encode(distribute_tensor(at, mesh, [Shard(d)]), "mae2d", dim=8),
             sinpe.encode(at, sinpe.convention("mae2d", 8)), d)  # fmt: skip


def refused_along_the_grid(x: DTensor, **arguments: Any) -> None:
    raises(ValueError, "x: expected the whole grid", sinpe.add, x, **arguments)


@case
def grids(mesh: DeviceMesh) -> None:
    grid = sinpe.convention("mae2d", 12)
    at = torch.randint(0, 100, (5, 6, 2))
    mask = torch.rand(3, 5, 6) > 0.5
    calls: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((3, 5, 6, 12), {}),
        ((3, 5, 6, 12), {"start": (7, 2), "dropout": 0.3, "seed": 3, "scale": 2.0}),
        ((3, 5, 6, 12), {"start": torch.randint(0, 9, (3, 2)), "padding_mask": mask}),
        ((3, 5, 6, 12), {"positions": at}),
        ((3, 12, 5, 6), {"channel_dim": 1, "dropout": 0.3, "seed": 3}),
        ((3, 30, 12), {"grid_shape": (5, 6)}),
        (
            (3, 32, 12),
            {"grid_shape": (5, 6), "extra_tokens": 2, "dropout": 0.3, "seed": 3, "alpha": torch.tensor([0.5])},
        ),
        ((3, 31, 12), {"grid_shape": (5, 6), "extra_tokens": 1, "padding_mask": mask.flatten(1), "start": (1, 2)}),
        ((3, 30, 12), {"positions": at.flatten(0, 1)}),
    ]
    for encoding in (grid, sinpe.convention("detr2d", 12)):
        for shape, arguments in calls:
            channels_at = arguments.get("channel_dim", -1) % len(shape)
            for d in range(len(shape)):
                what, given = (shape, list(arguments), d), {"encoding": encoding, **arguments}
                whole = torch.randn(shape)
                if d in (0, channels_at):
                    compare(sinpe.add, whole, Shard(d), mesh, what, **given)
                else:
                    refused_along_the_grid(distribute(whole, mesh, Shard(d)), **given)
    behind: list[dict[str, Any]] = [{}, {"start": 5, "dropout": 0.3, "seed": 3}, {"start": torch.arange(3)}]
    for more in (*behind, {"positions": torch.arange(6) * 7}):
        for d in (0, 2):
            compare(sinpe.add, torch.randn(3, 8, 10), Shard(d), mesh, (list(more), d), extra_tokens=2, **more)
        refused_along_the_grid(distribute(torch.randn(3, 8, 10), mesh, Shard(1)), extra_tokens=2, **more)
    line = sinpe.GridEncoding((sinpe.Encoding(10, start=2),))
    places: list[dict[str, Any]] = [
        {},
        {"start": 5},
        {"start": torch.tensor([4])},
        {"positions": torch.arange(8)[:, None] + 3},
    ]
    for more in (*places, {"positions": torch.arange(24).view(3, 8, 1), "dropout": 0.3, "seed": 3}):
        for d in (0, 2):
            compare(sinpe.add, torch.randn(3, 8, 10), Shard(d), mesh, ("line", list(more), d), encoding=line, **more)
        refused_along_the_grid(distribute(torch.randn(3, 8, 10), mesh, Shard(1)), encoding=line, **more)


@case
def errors(mesh: DeviceMesh) -> None:
    """The same error on all ranks, whatever their part of the data."""
    plain = torch.randn(3, 7, 10)
    x = distribute_tensor(plain, mesh, [Shard(1)])
    ids = distribute_tensor(torch.zeros(2, 3).long(), mesh, [Shard(1)])
    other = init_device_mesh("cpu", (1, mesh.size()))
    elsewhere = distribute_tensor(torch.arange(7), other, [Replicate()] * 2)
    positions, across = distribute_tensor(torch.arange(7), mesh, [Shard(0)]), distribute_tensor(plain, mesh, [Shard(0)])
    short = torch.zeros(3, 4, dtype=torch.bool)
    raises(ValueError, "positions", sinpe.add, x, positions=torch.arange(4))
    raises(ValueError, "padding_mask", sinpe.add, x, padding_mask=short)
    raises(ValueError, "start", sinpe.add, x, start=torch.arange(2))
    raises(ValueError, "start", sinpe.add, x, start=2**63 - 3)
    raises(ValueError, "x: expected 8 channels", sinpe.add, x, 8)
    raises(TypeError, "positions", sinpe.add, x, positions=torch.arange(7).bfloat16())
    raises(ValueError, "mesh of the data", sinpe.add, x, positions=elsewhere)
    raises(TypeError, "out: expected a DTensor", sinpe.add, x, out=torch.empty(3, 7, 10))
    raises(ValueError, "out: expected placements", sinpe.add, x, out=across)
    raises(ValueError, "sparse", sinpe.embed, ids, torch.ones(3, 4), sparse=True)
    raises(TypeError, "positions: expected an ordinary tensor", sinpe.add, plain, positions=positions)
    raises(TypeError, "padding_mask: expected an ordinary tensor", sinpe.add, plain, padding_mask=positions > 3)
    raises(ValueError, "placements", sinpe.table, 4, 6, device_mesh=mesh, placements=[Partial()])
    raises(ValueError, "placements", sinpe.table, 4, 6, device_mesh=mesh, placements=[Shard(0)] * 3)
    raises(ValueError, "placements", sinpe.table, 4, 6, device_mesh=mesh, placements=Shard(0))
    raises(ValueError, "device_mesh", sinpe.table, 4, 6, device_mesh=mesh, device="cpu")


@case
def parts_unlike_chunk(mesh: DeviceMesh) -> None:
    """Parts from from_local that differ from torch.chunk have no known position and are rejected."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    length = 2 * ranks
    x = torch.randn(2, length, 8)

    def uneven(t: Tensor, d: int) -> tuple[DTensor, bool]:
        """One row more on the first rank, one less on the last."""
        local = t.narrow(d, 0, 2 + (rank == 0) - (rank == ranks - 1))
        part = DTensor.from_local(local, mesh, [Shard(d)], run_check=False, shape=t.shape, stride=t.stride())
        return part, rank in (0, ranks - 1)

    even = distribute_tensor(x, mesh, [Shard(1)])
    ids, weight = torch.zeros(2, length).long(), torch.randn(9, 8)
    layer = sinpe.SinusoidalPositionalEncoding(8, 0.0)
    grid, behind = {"encoding": "mae2d", "grid_shape": (2, ranks)}, {"extra_tokens": 1}
    calls: list[tuple[str, Any, Tensor, int]] = [
        *(("x", partial(sinpe.add, **more), x, 1) for more in ({}, {"dropout": 0.5, "seed": 1}, grid, behind)),
        ("x", sinpe.add_, x, 1),
        ("x", layer, x, 1),
        ("out", lambda t: sinpe.add(even, out=t), x, 1),
        ("positions", lambda t: sinpe.add(even, positions=t), torch.arange(length), 0),
        ("padding_mask", lambda t: sinpe.add(even, padding_mask=t), torch.zeros(length).bool(), 0),
        ("ids", lambda t: sinpe.embed(t, weight), ids, 1),
        ("weight", lambda t: sinpe.embed(ids, t), torch.randn(9, length), 1),
    ]
    for name, call, whole, d in calls:
        part, is_uneven = uneven(whole, d)
        if is_uneven:
            raises(ValueError, f"{name}: expected a part of shape", call, part)
    p, _ = uneven(torch.arange(length), 0)
    assert torch.equal(sinpe.encode(p, 8).to_local(), sinpe.encode(p.to_local(), 8))  # positions are given


@case
def outside_the_mesh(mesh: DeviceMesh) -> None:
    """A process outside the mesh: no elements, no error, no waiting, as in torch."""
    half = DeviceMesh("cpu", list(range(mesh.size() // 2)))
    is_member = half.get_coordinate() is not None
    x, image = torch.randn(2, 7, 8), torch.randn(2, 3, 4, 8)
    rows = distribute_tensor(x, half, [Shard(1)])
    learned = sinpe.SinusoidalPositionalEncoding(8, 0.5, max_len=50, learned_alpha=True)
    grad = rows.detach().requires_grad_()
    ids, weight = torch.zeros(2, 7).long(), torch.randn(9, 8)
    many = {p: distribute_tensor(weight, half, [p]) for p in (Shard(1), Replicate())}
    calls: dict[str, Any] = {
        "add": lambda: sinpe.add(rows, positions=torch.arange(7), padding_mask=torch.zeros(7).bool(), start=0),
        "a copy": lambda: sinpe.add(distribute_tensor(x, half, [Replicate()])),
        "drawn": lambda: sinpe.add(rows, dropout=0.5),
        "add_": lambda: sinpe.add_(distribute_tensor(x, half, [Shard(2)])),
        "out": lambda: sinpe.add(rows, out=torch.empty_like(rows)),
        "layer": lambda: learned(grad),
        "grid": lambda: sinpe.add(distribute_tensor(image, half, [Shard(0)]), "mae2d"),
        "table": lambda: sinpe.table(7, 8, device_mesh=half, placements=[Shard(0)]),
        "encode": lambda: sinpe.encode(distribute_tensor(torch.arange(7), half, [Shard(0)]), 8),
        **{f"embed {p}": lambda w=w: sinpe.embed(ids, w) for p, w in many.items()},
    }
    for name, call in calls.items():
        y = call()
        assert isinstance(y, DTensor) and bool(y.to_local().numel()) == is_member, name
        assert y.shape[-1] == 8 and y.dtype == torch.float32, name
    assert learned(grad).requires_grad
    if not is_member:
        from sinpe_ext import distributed

        raises(RuntimeError, "expected this process to be part of it", distributed.agreed_seed, half)
