"""DTensors and plain shards in 2 and 4 processes: each rank has the whole data, and compares with a single process.

The ranks run all cases one after the other, up to one that fails; the next case starts others. Gradients are integers,
so that sums over ranks are exact in any order, unless the encoding is part of them.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
from children import DEADLINE, SUPPORT, Server, environment, library_environment, until
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import distributed

pytest.importorskip("torch.distributed.tensor")
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

Case: TypeAlias = Callable[[DeviceMesh], None]
Places: TypeAlias = "Placement | Sequence[Placement]"

CASES: dict[str, Case] = {}
SUM = 1e-5  # relative: a float32 sum of a few hundred products in another order
SHAPES = ((4, 6, 8), (3, 7, 10), (1, 3, 5))  # even, uneven, fewer than ranks
PLACEMENTS = (Shard(0), Shard(1), Shard(2), Replicate())


class Missing(Exception):
    """Raised by a case that needs a newer torch."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def run_rank(rank: int, world: int, backend: str, store: str, names: Sequence[str]) -> None:
    """Runs the cases on one of `world` ranks, and prints the outcome of each. A hang or an error ends the process."""
    torch.set_num_threads(1)
    wait = timedelta(seconds=2 * DEADLINE)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=wait)
    with sinpe.use_backend(backend):
        mesh = init_device_mesh("cpu", (world,))
        for name in names:
            faulthandler.dump_traceback_later(DEADLINE, exit=True)
            torch.manual_seed(0)
            try:
                CASES[name](mesh)
                print(f"{name}: right", flush=True)
            except Missing as reason:
                print(f"{name}: {reason}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    dist.barrier()


RANK = "import test_dtensor; test_dtensor.run_rank({}, {}, {!r}, {!r}, {!r})"


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest) -> Iterator[Callable[[str, int, str], str]]:
    """outcome(case, world, backend): "right", why this torch cannot run it, or what the ranks printed."""
    path = os.pathsep.join([str(Path(__file__).parent), str(SUPPORT), environment()["PYTHONPATH"]])
    server = Server("torch._dynamo", "test_dtensor", env=environment(PYTHONPATH=path))
    told: dict[tuple[str, int, str], str] = {}
    ours = [item.callspec.params for item in request.session.items if item.path == request.path]
    wanted = [(given["name"], given["world"], given["backend"]) for given in ours if "world" in given]

    def run(name: str, world: int, backend: str) -> str:
        if (name, world, backend) in told:
            return told[name, world, backend]
        names = [n for n, *of in wanted if of == [world, backend] and (n, *of) not in told]
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            codes = [RANK.format(rank, world, backend, store, names) for rank in range(world)]
            ranks = [server.start(code, library_environment(PYTHONPATH=path)) for code in codes]

            def ended() -> bool:
                states = [rank.poll() for rank in ranks]
                return any(states) or None not in states

            until(ended, "the end of the ranks", limit=2 * DEADLINE * len(names))
            for rank in ranks:
                if rank.wait(5) is None:  # it waits for a rank that failed
                    rank.end()
            printed = [dict(re.findall(r"^(\w+): (.*)$", rank.printed()[0], re.M)) for rank in ranks]
        for n in names:
            said = {each.get(n, "") for each in printed}
            if len(said) > 1 or "" in said:
                told[n, world, backend] = "\n".join(rank.report(n) for rank in ranks)
                break
            told[n, world, backend] = said.pop()
        return told[name, world, backend]

    yield run
    server.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", CASES)


@pytest.mark.parametrize(("backend", "world"), [
    ("compiled", 2),
    pytest.param("compiled", 4, marks=pytest.mark.processes),
    pytest.param("eager", 2, marks=pytest.mark.processes),
], indirect=["backend"])  # fmt: skip
def test_in_processes(name: str, world: int, backend: str, outcome: Callable[[str, int, str], str]) -> None:
    said = outcome(name, world, backend)
    if "\n" not in said and said != "right":
        pytest.skip(said)
    assert said == "right", said


def distribute(t: Tensor, mesh: DeviceMesh, placements: Places) -> DTensor:
    """A leaf DTensor with the values of t."""
    placements = [placements] if isinstance(placements, Placement) else list(placements)
    return distribute_tensor(t.detach(), mesh, placements).detach().requires_grad_(t.is_floating_point())


def same(actual: Tensor, expected: Tensor, what: Any = "") -> None:
    assert isinstance(actual, DTensor), what
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    whole = actual.full_tensor()
    assert torch.equal(whole.view(torch.uint8), expected.contiguous().view(torch.uint8)), what


def raises(kind: type[Exception], words: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        function(*arguments, **named)


def compare(
    function: Callable[..., Tensor], data: Tensor, places: Places, mesh: DeviceMesh, what: Any = "", **arguments: Any
) -> None:
    """Compares function(data, **arguments) of one process and of all ranks: result and gradients."""
    sides = []
    for x in (data.detach().clone().requires_grad_(data.is_floating_point()), distribute(data, mesh, places)):
        given = dict(arguments)
        if isinstance(given.get("alpha"), Tensor):
            given["alpha"] = given["alpha"].clone().requires_grad_()
        sides.append((x, given.get("alpha"), function(x, **given)))
    (x1, alpha1, y1), (xn, alphan, yn) = sides
    assert list(yn.placements) == ([places] if isinstance(places, Placement) else list(places)), (what, yn.placements)
    same(yn, y1, what)
    if not y1.requires_grad:
        return
    grad = torch.randint(-4, 5, y1.shape).to(y1.dtype)
    y1.backward(grad)
    yn.backward(distribute_tensor(grad, mesh, yn.placements))
    same(xn.grad, x1.grad, what)
    if isinstance(alpha1, Tensor):
        # Terms of -0.6 to 0.6: after cancellation, the error is that of the largest partial sum.
        torch.testing.assert_close(alphan.grad, alpha1.grad, rtol=SUM, atol=SUM * y1.numel() ** 0.5)


def compare_embed(
    ids: Tensor, weight: Tensor, of_ids: Places, of_weight: Places, mesh: DeviceMesh, **arguments: Any
) -> DTensor:
    one, many = weight.clone().requires_grad_(), distribute(weight, mesh, of_weight)
    y, ys = sinpe.embed(ids, one, **arguments), sinpe.embed(distribute(ids, mesh, of_ids), many, **arguments)
    same(ys, y, (list(arguments), of_ids, of_weight))
    grad = torch.randint(-4, 5, y.shape).float()
    y.backward(grad)
    ys.backward(distribute_tensor(grad, mesh, ys.placements))
    torch.testing.assert_close(many.grad.full_tensor(), one.grad, rtol=SUM, atol=1e-5)
    return ys


# functions


def calls(b: int, s: int, d: int) -> dict[str, dict[str, Any]]:
    return {
        "start": {"start": 5, "encoding": "t2t"},
        "far": {"start": 10**15, "encoding": sinpe.Encoding(d, layout="sin_cos")},
        "starts": {"start": torch.arange(b) * 3, "encoding": sinpe.Encoding(d, start=2)},
        "0-d start": {"start": torch.tensor(2**33)},
        "positions": {"positions": torch.randint(0, 10**6, (s,)), "encoding": sinpe.Encoding(d, layout="cos_sin")},
        "positions of samples": {"positions": torch.randint(-(10**9), 10**9, (b, s)), "dropout": 0.3, "seed": 7},
        "all": {"alpha": torch.tensor([0.75]), "scale": 2.0, "padding_mask": torch.rand(b, s) > 0.5, "dropout": 0.3,
                "seed": torch.tensor(3), "start": 9},
    }  # fmt: skip


@case
def add(mesh: DeviceMesh) -> None:
    for placement in PLACEMENTS:
        for shape in SHAPES:
            for name, arguments in {"plain": {}, **calls(*shape)}.items():
                compare(sinpe.add, torch.randn(shape), placement, mesh, (name, shape, placement), **arguments)
        for shape, dtype in ((SHAPES[0], torch.bfloat16), (SHAPES[1], torch.float64)):
            arguments = calls(*shape)["all"]
            compare(sinpe.add, torch.randn(shape).to(dtype), placement, mesh, (dtype, placement), **arguments)
    x = torch.zeros(1, 2000, 64, dtype=torch.float64)  # a part uses the same algorithms as the whole
    for placement in (Shard(1), Shard(2)):
        for start in (10**15, 2**50 + 1):
            same(sinpe.add(distribute_tensor(x, mesh, [placement]), start=start), sinpe.add(x, start=start), start)


@case
def add_layouts(mesh: DeviceMesh) -> None:
    """Sequence first, channels first, more dimensions, no batch; strides of empty_like(x), equal on all ranks."""
    for shape, dims in (((6, 3, 8), (0, 2)), ((3, 10, 7), (2, 1)), ((2, 3, 5, 4), (2, 3)), ((7, 6), (0, 1))):
        for d in range(len(shape)):
            arguments = {"seq_dim": dims[0], "channel_dim": dims[1], "dropout": 0.4, "seed": 1, "scale": 3.0}
            compare(sinpe.add, torch.randn(shape), Shard(d), mesh, (shape, d), **arguments)
    for x in (torch.randn(4, 3, 8).transpose(1, 2), torch.randn(4, 5, 8)[:, :3], torch.randn(3, 4, 8).transpose(0, 1)):
        for d in range(3):
            y = sinpe.add(distribute_tensor(x, mesh, [Shard(d)]))
            like = torch.empty_like(torch.empty_strided(x.shape, distribute_tensor(x, mesh, [Shard(d)]).stride()))
            assert y.stride() == like.stride(), (x.stride(), d, y.stride())


@case
def float_positions(mesh: DeviceMesh) -> None:
    """Gradients of replicated positions, and of positions sharded with x."""
    x = torch.randn(4, 7, 8)
    for p in (torch.rand(7) * 100, torch.rand(4, 7) * 100):
        one = p.clone().requires_grad_()
        sinpe.add(x, positions=one).square().sum().backward()
        for placement in (Shard(0), Shard(1), Shard(2)):
            for many in (distribute(p, mesh, Replicate()), p.clone().requires_grad_()):
                sinpe.add(distribute_tensor(x, mesh, [placement]), positions=many).square().sum().backward()
                actual = many.grad.full_tensor() if isinstance(many, DTensor) else many.grad
                torch.testing.assert_close(actual, one.grad, rtol=SUM, atol=1e-4)


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
def add_in_place(mesh: DeviceMesh) -> None:
    x = torch.randn(3, 7, 10)
    expected = sinpe.add(x, dropout=0.25, seed=5)
    for placement in PLACEMENTS:
        sharded, given = (distribute_tensor(x.clone(), mesh, [placement]) for _ in range(2))
        assert sinpe.add_(sharded, dropout=0.25, seed=5) is sharded
        out = distribute_tensor(torch.full_like(x, torch.nan), mesh, [placement])
        assert sinpe.add(given, dropout=0.25, seed=5, out=out) is out
        same(sharded, expected, placement)
        same(out, expected, placement)
        total = (distribute(x, mesh, placement) * given).sum()
        sinpe.add_(given)  # saved for a gradient
        raises(RuntimeError, "modified by an inplace operation", total.backward)
        many, one = distribute(x, mesh, placement), x.clone().requires_grad_()
        sinpe.add_(many * 2, scale=3.0).sum().backward()
        sinpe.add_(one * 2, scale=3.0).sum().backward()
        same(many.grad, one.grad, placement)


@case
def other_placements(mesh: DeviceMesh) -> None:
    """Partial sums, and two dimensions of the mesh."""
    x = torch.randint(-8, 9, (2, 6, 4)).float()
    y = sinpe.add(DTensor.from_local(x, mesh, [Partial()], run_check=False), scale=0.5)
    assert list(y.placements) == [Replicate()]
    same(y, sinpe.add(x * mesh.size(), scale=0.5))
    if mesh.size() < 4:
        return
    square = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("dp", "tp"))
    for shape in SHAPES[:2]:
        for places in ([a, b] for a in PLACEMENTS for b in PLACEMENTS):
            for name in ("starts", "positions of samples", "all"):
                compare(sinpe.add, torch.randn(shape), places, square, (name, places), **calls(*shape)[name])
    ids, weight = torch.randint(0, 8, (4, 6)), torch.randn(8, 4)
    for of_weight in ([Shard(1), Replicate()], [Replicate(), Shard(1)], [Shard(1), Shard(1)]):
        for of_ids in ([a, b] for a in PLACEMENTS[:2] for b in PLACEMENTS[1:] if Shard(2) not in (a, b)):
            compare_embed(ids, weight, of_ids, of_weight, square, dropout=0.3, seed=5)
    row, column = square.get_coordinate()
    assert (distributed.shard_start(7, square, 0), distributed.shard_start(7, square, "tp")) == (4 * row, 4 * column)
    raises(ValueError, "mesh_dim: expected one of the 2 dimensions", distributed.shard_start, 7, square)
    raises(ValueError, "mesh_dim: expected one of ('dp', 'tp')", distributed.shard_start, 7, square, "pp")


@case
def seeds(mesh: DeviceMesh) -> None:
    """A random seed is the first rank's on all ranks, equal to that of a single process."""
    rank, x = dist.get_rank(), torch.randn(4, 6, 8)
    for placement in PLACEMENTS:
        torch.manual_seed(100 + rank)
        many = sinpe.add(distribute_tensor(x, mesh, [placement]), dropout=0.5)
        torch.manual_seed(100)
        same(many, sinpe.add(x, dropout=0.5), placement)
    sharded = distribute_tensor(x, mesh, [Shard(1)])
    many = sinpe.add(sharded, dropout=0.5, seed=torch.Generator().manual_seed(7 + rank))
    same(many, sinpe.add(x, dropout=0.5, seed=torch.Generator().manual_seed(7)))
    before = torch.get_rng_state()
    for p in (0.0, 1.0):
        sinpe.add(sharded, dropout=p)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(rank)
    seed = distributed.agreed_seed(mesh)
    drawn = [torch.zeros_like(seed) for _ in range(mesh.size())]
    dist.all_gather(drawn, seed)
    assert len(set(map(int, drawn))) == 1 and int(distributed.agreed_seed(mesh, 5 + rank)) == 5


@case
def table(mesh: DeviceMesh) -> None:
    encodings = [sinpe.Encoding(10), sinpe.convention("t2t", 9), sinpe.Encoding(11, odd="pad"), sinpe.Encoding(1)]
    encodings += [sinpe.Encoding(7, cos_frequency="own", layout="cos_sin"), sinpe.Encoding(8, angle="float32_exp")]
    dtypes = torch.float32, torch.float64, torch.bfloat16
    for k, encoding in enumerate(encodings):
        for j, placement in enumerate((Shard(0), Shard(1), Shard(-1), Replicate())):
            length, dtype = (8, 7, 1, 0)[(k + j) % 4], dtypes[k % 3]
            expected = sinpe.table(length, encoding, start=2**35, dtype=dtype)
            more: dict[str, Any] = {"device_mesh": mesh, "placements": [placement], "dtype": dtype}
            same(sinpe.table(length, encoding, start=2**35, **more), expected, (encoding, length, placement))
    for d in range(3):
        more = {"device_mesh": mesh, "placements": [Shard(d)]}
        for arguments in ({"start": (3, 1)}, {"extra_tokens": 2}, {"flatten": True}):
            if d < 2 or "start" in arguments:
                whole = sinpe.table((5, 6), "mae2d", dim=12, **arguments)
                same(sinpe.table((5, 6), "mae2d", dim=12, **arguments, **more), whole, (d, arguments))
        if d < 2:
            same(sinpe.table(6, 10, extra_tokens=1, **more), sinpe.table(6, 10, extra_tokens=1), d)
            same(sinpe.table(6, "t2t", dim=10, **more), sinpe.table(6, "t2t", dim=10), d)


@case
def encode(mesh: DeviceMesh) -> None:
    for shape in ((4, 6), (3, 7), (5,)):
        p, f = torch.randint(-(2**40), 2**40, shape), torch.rand(shape) * 1000
        for placement in (*(Shard(d) for d in range(len(shape))), Replicate()):
            same(sinpe.encode(distribute_tensor(p, mesh, [placement]), sinpe.Encoding(10)), sinpe.encode(p, 10), shape)
            compare(lambda t: sinpe.encode(t, 6) * 1.0, f, placement, mesh, shape)
    at = torch.randint(0, 500, (3, 7, 2))
    for d in range(3):
        same(sinpe.encode(distribute_tensor(at, mesh, [Shard(d)]), "mae2d", dim=12), sinpe.encode(at, "mae2d", dim=12))


@case
def grids(mesh: DeviceMesh) -> None:
    """Whole grids: samples or channels are sharded, never rows; the same holds for extra tokens before a sequence."""
    grid, at, mask = sinpe.convention("mae2d", 12), torch.randint(0, 100, (5, 6, 2)), torch.rand(3, 5, 6) > 0.5
    drops: dict[str, Any] = {"dropout": 0.3, "seed": 3}
    line = sinpe.GridEncoding((sinpe.Encoding(10, start=2),))
    flat = {"encoding": grid, "grid_shape": (5, 6)}
    calls: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((3, 5, 6, 12), {"encoding": grid, "start": (7, 2), "scale": 2.0, **drops}),
        ((3, 5, 6, 12), {"encoding": grid, "start": torch.randint(0, 9, (3, 2)), "padding_mask": mask}),
        ((3, 5, 6, 12), {"encoding": sinpe.convention("detr2d", 12), "positions": at}),
        ((3, 12, 5, 6), {"encoding": grid, "channel_dim": 1, **drops}),
        ((3, 32, 12), {**flat, "extra_tokens": 2, "alpha": torch.tensor([0.5]), **drops}),
        ((3, 31, 12), {**flat, "extra_tokens": 1, "padding_mask": mask.flatten(1), "start": (1, 2)}),
        ((3, 30, 12), {"encoding": grid, "positions": at.flatten(0, 1)}),
        ((3, 8, 10), {"extra_tokens": 2, "start": 5, **drops}),
        ((3, 8, 10), {"extra_tokens": 2, "start": torch.arange(3)}),
        ((3, 8, 10), {"extra_tokens": 2, "positions": torch.arange(6) * 7}),
        ((3, 8, 10), {"encoding": line, "start": torch.tensor([4])}),
        ((3, 8, 10), {"encoding": line, "positions": torch.arange(24).view(3, 8, 1), **drops}),
    ]
    for shape, arguments in calls:
        for d in range(len(shape)):
            whole = torch.randn(shape)
            if d in (0, arguments.get("channel_dim", -1) % len(shape)):
                compare(sinpe.add, whole, Shard(d), mesh, (shape, list(arguments), d), **arguments)
            else:
                words = "x: expected the whole grid"
                raises(ValueError, words, sinpe.add, distribute(whole, mesh, Shard(d)), **arguments)


@case
def embed(mesh: DeviceMesh) -> None:
    """ids sharded by sample or sequence, or weight by channel."""
    channels, rows_whole = Shard(1), Replicate()
    places: list[tuple[Placement, Placement, Placement]] = [  # of ids, of weight, of the result
        (Shard(0), rows_whole, Shard(0)), (Shard(1), rows_whole, Shard(1)),
        (Replicate(), channels, Shard(2)), (Shard(0), channels, Shard(2)),
    ]  # fmt: skip
    for (b, s), (rows, d) in (((4, 6), (8, 8)), ((3, 7), (9, 10)), ((2, 3), (3, 5))):
        ids, weight = torch.randint(0, rows, (b, s)), torch.randn(rows, d)
        calls: dict[str, dict[str, Any]] = {
            "padding": {"padding_idx": 1, "encode_padding": False, "start": 4, "scale": 2.0},
            "all": {"dropout": 0.3, "seed": 5, "alpha": torch.tensor([0.5]), "padding_mask": torch.rand(b, s) > 0.5},
            "positions": {"positions": torch.randint(0, 10**6, (b, s)), "encoding": "t2t"},
            "starts": {"start": torch.arange(b) * 5},
        }
        for (name, arguments), (of_ids, of_weight, result) in zip(calls.items(), places, strict=True):
            ys = compare_embed(ids, weight, [of_ids], [of_weight], mesh, **arguments)
            assert list(ys.placements) == [result], (name, (b, s), ys.placements)
        one, many = (weight.clone().requires_grad_() for _ in range(2))  # replicated
        y, ys = sinpe.embed(ids, one), sinpe.embed(distribute_tensor(ids, mesh, [Shard(1)]), many)
        same(ys, y)
        y.sum().backward()
        ys.sum().backward()
        assert torch.equal(many.grad, one.grad)


@case
def errors(mesh: DeviceMesh) -> None:
    """The same error on all ranks, whatever their part of the data."""
    plain = torch.randn(3, 7, 10)
    x = distribute_tensor(plain, mesh, [Shard(1)])
    ids = distribute_tensor(torch.zeros(2, 3).long(), mesh, [Shard(1)])
    other = init_device_mesh("cpu", (1, mesh.size()))
    elsewhere = distribute_tensor(torch.arange(7), other, [Replicate()] * 2)
    positions, across = distribute_tensor(torch.arange(7), mesh, [Shard(0)]), distribute_tensor(plain, mesh, [Shard(0)])
    refused: list[tuple[str, Any, dict[str, Any]]] = [
        ("positions", x, {"positions": torch.arange(4)}),
        ("padding_mask", x, {"padding_mask": torch.zeros(3, 4, dtype=torch.bool)}),
        ("start", x, {"start": torch.arange(2)}),
        ("start", x, {"start": 2**63 - 3}),
        ("x: expected 8 channels", x, {"encoding": 8}),
        ("positions", x, {"positions": torch.arange(7).bfloat16()}),
        ("mesh of the data", x, {"positions": elsewhere}),
        ("out: expected a DTensor", x, {"out": torch.empty(3, 7, 10)}),
        ("out: expected placements", x, {"out": across}),
        ("positions: expected an ordinary tensor", plain, {"positions": positions}),
        ("padding_mask: expected an ordinary tensor", plain, {"padding_mask": positions > 3}),
    ]
    for words, data, arguments in refused:
        raises((TypeError, ValueError), words, sinpe.add, data, **arguments)  # type: ignore[arg-type]
    raises(ValueError, "sparse", sinpe.embed, ids, torch.ones(3, 4), sparse=True)
    for placements in ([Partial()], [Shard(0)] * 3, Shard(0)):
        raises(ValueError, "placements", sinpe.table, 4, 6, device_mesh=mesh, placements=placements)
    raises(ValueError, "device_mesh", sinpe.table, 4, 6, device_mesh=mesh, device="cpu")
    raises(TypeError, "mesh: expected a DeviceMesh", distributed.shard_start, 7, "cpu")
    raises(ValueError, "length: expected a multiple", distributed.context_parallel_positions, 2 * mesh.size() + 1, mesh)
    balanced = partial(distributed.context_parallel_positions, load_balance=True)
    raises(ValueError, "twice the ranks", balanced, mesh.size(), mesh)


@case
def parts_unlike_chunk(mesh: DeviceMesh) -> None:
    """Parts from from_local that differ from torch.chunk have no known position and are rejected."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    length = 2 * ranks
    x = torch.randn(2, length, 8)

    def uneven(t: Tensor, d: int) -> DTensor:
        """One row more on the first rank, one less on the last."""
        local = t.narrow(d, 0, 2 + (rank == 0) - (rank == ranks - 1))
        return DTensor.from_local(local, mesh, [Shard(d)], run_check=False, shape=t.shape, stride=t.stride())

    even = distribute_tensor(x, mesh, [Shard(1)])
    ids, weight = torch.zeros(2, length).long(), torch.randn(9, 8)
    grid, behind = {"encoding": "mae2d", "grid_shape": (2, ranks)}, {"extra_tokens": 1}
    calls: list[tuple[str, Any, Tensor, int]] = [
        *(("x", partial(sinpe.add, **more), x, 1) for more in ({}, {"dropout": 0.5, "seed": 1}, grid, behind)),
        ("x", sinpe.add_, x, 1),
        ("x", sinpe.SinusoidalPositionalEncoding(8, 0.0), x, 1),
        ("out", lambda t: sinpe.add(even, out=t), x, 1),
        ("positions", lambda t: sinpe.add(even, positions=t), torch.arange(length), 0),
        ("padding_mask", lambda t: sinpe.add(even, padding_mask=t), torch.zeros(length).bool(), 0),
        ("ids", lambda t: sinpe.embed(t, weight), ids, 1),
        ("weight", lambda t: sinpe.embed(ids, t), torch.randn(9, length), 1),
    ]
    for name, call, whole, d in calls:
        if rank in (0, ranks - 1):
            raises(ValueError, f"{name}: expected a part of shape", call, uneven(whole, d))
    p = uneven(torch.arange(length), 0)
    assert torch.equal(sinpe.encode(p, 8).to_local(), sinpe.encode(p.to_local(), 8))  # positions are given


@case
def outside_the_mesh(mesh: DeviceMesh) -> None:
    """A process outside the mesh: no elements, no error, no waiting, as in torch."""
    half = DeviceMesh("cpu", list(range(mesh.size() // 2)))
    is_member = half.get_coordinate() is not None
    x, ids, weight = torch.randn(2, 7, 8), torch.zeros(2, 7).long(), torch.randn(9, 8)
    rows, image = (distribute_tensor(t, half, [Shard(0)]) for t in (x, torch.randn(2, 3, 4, 8)))
    learned = sinpe.SinusoidalPositionalEncoding(8, 0.5, max_len=50, learned_alpha=True)
    calls: dict[str, Any] = {
        "add": lambda: sinpe.add(rows, positions=torch.arange(7), padding_mask=torch.zeros(7).bool(), start=0),
        "a copy": lambda: sinpe.add(distribute_tensor(x, half, [Replicate()])),
        "drawn": lambda: sinpe.add(rows, dropout=0.5),
        "add_": lambda: sinpe.add_(distribute_tensor(x, half, [Shard(2)])),
        "out": lambda: sinpe.add(rows, out=torch.empty_like(rows)),
        "layer": lambda: learned(rows.detach().requires_grad_()),
        "grid": lambda: sinpe.add(image, "mae2d"),
        "table": lambda: sinpe.table(7, 8, device_mesh=half, placements=[Shard(0)]),
        "encode": lambda: sinpe.encode(distribute_tensor(torch.arange(7), half, [Shard(0)]), 8),
        "embed": lambda: sinpe.embed(ids, distribute_tensor(weight, half, [Replicate()])),
        "embed channels": lambda: sinpe.embed(ids, distribute_tensor(weight, half, [Shard(1)])),
    }
    for name, call in calls.items():
        y = call()
        assert isinstance(y, DTensor) and bool(y.to_local().numel()) == is_member, name
        assert y.shape[-1] == 8 and y.dtype == torch.float32 and y.requires_grad == (name == "layer"), name
    if not is_member:
        raises(RuntimeError, "expected this process to be part of it", distributed.agreed_seed, half)


@case
def compiled(mesh: DeviceMesh) -> None:
    """One graph with the same results and gradients."""

    def graph(function: Callable[..., Tensor], backend: str = "eager") -> Any:
        torch.compiler.reset()
        return torch.compile(function, backend=backend, fullgraph=True)

    x = torch.randn(4, 8, 8)
    for placement, arguments in (
        (Shard(1), {"dropout": 0.3, "seed": 5, "start": 4}),
        (Shard(0), {"start": torch.arange(4)}),
    ):
        run = graph(lambda t, a=arguments: sinpe.add(t, **a) * 2, "aot_eager" if placement == Shard(1) else "eager")
        compare(lambda t, r=run, a=arguments: r(t) if isinstance(t, DTensor) else sinpe.add(t, **a) * 2, x, placement,
                mesh, placement)  # fmt: skip
    run = graph(lambda t: sinpe.add(t))
    uneven = distribute_tensor(torch.randn(2, 2 * mesh.size() + 1, 8), mesh, [Shard(1)])
    raises(Exception, "expected shards of one size under torch.compile", run, uneven)
    for length in (2 * mesh.size(), 5 * mesh.size()):
        x = torch.randn(2, length, 8)
        same(run(distribute_tensor(x, mesh, [Shard(1)])), sinpe.add(x), length)
    run = graph(lambda: sinpe.table(6, 8, device_mesh=mesh, placements=[Shard(1)]) * 2)
    same(run(), sinpe.table(6, 8) * 2)
    run = graph(lambda t: sinpe.add(t, dropout=0.5))
    torch.manual_seed(dist.get_rank())  # the seed is the first rank's
    kept = (run(distribute_tensor(torch.ones(4, 6, 8), mesh, [Replicate()])).to_local() != 0).float()
    total = kept.clone()
    dist.all_reduce(total)
    assert torch.equal(total, kept * mesh.size())


# layers and models


class Front(nn.Module):
    """The embedding layers of a model, and one layer after them."""

    def __init__(self, rows: int = 16, dim: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, dim)
        self.encoding = sinpe.SinusoidalPositionalEncoding(dim, 0.0, learned_alpha=True, scale=dim**0.5)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, rows)

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.encoding(self.embedding(ids), positions=positions)))


def same_gradients(one: nn.Module, many: nn.Module, factor: float = 1.0) -> None:
    expected = dict(one.named_parameters())
    for name, parameter in many.named_parameters():
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        # sums over samples, in another order
        torch.testing.assert_close({name: grad * factor}, {name: expected[name].grad}, rtol=1e-4, atol=1e-5)


@case
def layers(mesh: DeviceMesh) -> None:
    """Modules after distribute_module: parameters are DTensors."""
    from torch.distributed.tensor import distribute_module

    one, x = sinpe.SinusoidalPositionalEncoding(8, 0.0, max_len=16, learned_alpha=True), torch.randn(2, 7, 8)
    many = distribute_module(copy.deepcopy(one), mesh)
    expected = one(x)
    expected.sum().backward()
    for placement in (Shard(0), Shard(1), Shard(2)):
        y = many(distribute_tensor(x, mesh, [placement]))
        same(y, expected.detach())
        y.sum().backward()
        same_gradients(one, many)
        many.alpha.grad = None
    raises(IndexError, "x: expected at most 16 rows", many, distribute_tensor(torch.randn(2, 17, 8), mesh, [Shard(1)]))


@case
def parallel_styles(mesh: DeviceMesh) -> None:
    """parallelize_module: sequence parallel layers after an embedding sharded by rows or channels; our embedding."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    ids = torch.randint(0, 16, (2, 8))
    for style in (RowwiseParallel, ColwiseParallel):
        one = Front()
        one.head = nn.Identity()
        many = copy.deepcopy(one)
        embedding = style(input_layouts=Replicate(), output_layouts=Shard(1))
        plan = {"embedding": embedding, "encoding": SequenceParallel(), "norm": SequenceParallel()}
        parallelize_module(many, mesh, plan)
        expected, actual = one(ids), many(ids).full_tensor()
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)  # reductions of the norm
        expected.square().sum().backward()
        actual.square().sum().backward()
        same_gradients(one, many)
    for result in (Replicate(), Shard(1)):
        one = nn.Sequential(sinpe.SinusoidalEmbedding(16, 8, 0, dropout=0.0, scale=2.0))
        many, by_rows = copy.deepcopy(one), copy.deepcopy(one)
        layouts: dict[str, Any] = {"input_layouts": Replicate(), "output_layouts": result, "use_local_output": False}
        parallelize_module(many, mesh, {"0": ColwiseParallel(**layouts)})
        expected, actual = one(ids), many(ids)
        same(actual, expected.detach(), result)
        expected.sum().backward()
        actual.sum().backward()
        assert torch.equal(many[0].weight.grad.full_tensor(), one[0].weight.grad), result
        parallelize_module(by_rows, mesh, {"0": RowwiseParallel(**layouts)})
        raises(ValueError, "weight: expected all rows on every rank", by_rows, ids)


@case
def fsdp2(mesh: DeviceMesh) -> None:
    """fully_shard: each rank has different samples; a learned alpha of one element is sharded like other parameters."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank, ranks = mesh.get_local_rank(), mesh.size()
    ids, one = torch.randint(0, 16, (ranks, 6)), Front()
    mine = ids[rank : rank + 1]
    many = fully_shard(copy.deepcopy(one), mesh=mesh)
    assert many.encoding.alpha.shape == (1,) and isinstance(many.encoding.alpha, DTensor)
    expected, actual = one(ids), many(mine)
    assert torch.equal(actual, expected[rank : rank + 1])
    expected.square().sum().backward()
    actual.square().sum().backward()
    same_gradients(one, many, factor=ranks)  # FSDP averages
    # Mixed precision casts floating-point inputs: int64 positions are unchanged, float ones are rejected.
    at, cast = torch.arange(6) + 100_003, copy.deepcopy(one).bfloat16()
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    many = fully_shard(copy.deepcopy(one), mesh=mesh, mp_policy=half)
    assert torch.equal(many(mine, at), cast(mine, at))
    raises(TypeError, "cast_forward_inputs=False", many, mine, at.float())
    whole = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    many = fully_shard(copy.deepcopy(one), mesh=mesh, mp_policy=whole)
    assert torch.equal(many(mine, at.float()), cast(mine, at))
    for shape in ((), (1,)):  # a full checkpoint on the first rank only
        with torch.device("meta"):
            empty = fully_shard(Front(), mesh=mesh)
        full = {**one.state_dict(), "encoding.alpha": torch.full(shape, 2.5)}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        for many in (fully_shard(Front(), mesh=mesh), empty):
            set_model_state_dict(many, dict(full) if rank == 0 else {}, options=options)
            assert many.encoding.alpha.full_tensor().tolist() == [2.5], shape


@case
def context_parallel(mesh: DeviceMesh) -> None:
    """Head-tail load balancing: positions are sharded with the data; a call without them is rejected."""
    from torch.distributed.tensor.experimental import context_parallel

    layer, embedding = sinpe.SinusoidalPositionalEncoding(8).eval(), sinpe.SinusoidalEmbedding(9, 8).eval()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    for length in (8 * mesh.size(), 3 * mesh.size()):  # the second cannot be balanced
        x = torch.randn(2, length, 8)
        expected = sinpe.add(x, start=5)
        local, at, wanted = x.clone(), torch.arange(length) + 5, expected.clone()
        assert not distributed.in_context_parallel() and torch.equal(compiled(x), layer(x))
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(context_parallel(mesh, buffers=[local, at, wanted], buffer_seq_dims=[1, 0, 1]))
            except AssertionError:  # torch 2.11 supports balanced parts only
                assert length % (2 * mesh.size())
                continue
            assert distributed.in_context_parallel() and local.shape[1] == length // mesh.size()
            assert torch.equal(sinpe.add(local, positions=at), wanted)
            assert torch.equal(layer(local, positions=at), wanted)
            assert torch.equal(distributed.context_parallel_positions(length, mesh, start=5), at)
            words = "positions: expected the positions of these rows"
            for call in (sinpe.add, lambda t: sinpe.add_(t.clone(), start=3), layer, compiled,
                         lambda t: embedding(torch.zeros(2, 4).long()),
                         lambda t: sinpe.add(t.unflatten(1, (-1, 1)), "mae2d")):  # fmt: skip
                raises(Exception, words, call, local)
        assert not distributed.in_context_parallel() and torch.equal(sinpe.add(x, start=5), expected)


@case
def plain_shards(mesh: DeviceMesh) -> None:
    """Plain tensors, of which each rank has a part; and docs/distributed.md, whose marked blocks run on each rank."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    layer = sinpe.SinusoidalPositionalEncoding(8, require_positions=True).eval()
    for length in (8, 7, 3):
        x = torch.randn(2, length, 8)
        parts = list(x.chunk(ranks, 1))
        mine = parts[rank] if rank < len(parts) else x[:, :0]
        first, at = distributed.shard_start(length, mesh), distributed.shard_positions(length, mesh, start=9)
        expected = sinpe.add(x, start=9)[:, first : first + mine.shape[1]]
        assert torch.equal(sinpe.add(mine, start=9 + first), expected)
        assert torch.equal(layer(mine, positions=at), expected)
        raises(ValueError, "require_positions", layer, mine)
        same(layer(distribute_tensor(x, mesh, [Shard(1)])), sinpe.add(x))
    text = (SUPPORT.parent.parent / "docs" / "distributed.md").read_text()
    blocks = re.findall(r"<!-- runs on every rank in the tests -->\n```python\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "distributed.md", "exec"), names)
    first = distributed.shard_start(7, mesh)
    expected = sinpe.add(names["x"])[:, first : first + names["part"].shape[1]]
    assert torch.equal(names["layer"].eval()(names["part"], positions=names["positions"]), expected)
