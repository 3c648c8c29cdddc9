"""Small calls: the first one is checked in Python, others of its kind are repeated in C; both equal the eager backend.

test_repeated_calls.py has the changes that a repeated call has to notice.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from kernel_table import Kernels, stand_in
from oracles import same
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from ways import repetitions, use

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_repetition")]

Arguments = dict[str, Any]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
PE, OFFSET, GRID = sinpe.Encoding(8), sinpe.Encoding(8, layout="sin_cos", start=3), sinpe.convention("mae2d", 8)
MASK, MASKS = torch.tensor([False, True, False]), torch.tensor([[True, False, True], [False, False, True]])
IDS = torch.tensor([[3, 1, 4], [1, 17, 3]])


@pytest.fixture(scope="module")
def need_repetition(need_kernels: None) -> None:
    if loader.core_module()[0] is None:
        pytest.skip("calls are repeated by the module _core")


@pytest.fixture
def need_cpu_kernels() -> None:
    """The CPU's kernels refuse values that those of a device, for which the host does not wait, accept as NaN."""
    if torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("the host does not read the values of tensors on a device")


def some(dtype: torch.dtype = torch.float32, *shape: int) -> Tensor:
    return torch.randn(shape or (2, 3, 8), generator=torch.Generator().manual_seed(0)).to(dtype)


def check(call: Callable[[], list[Tensor]], way: str = "eager") -> None:
    """Makes a call that returns tensors three times, with the same state of torch's generator.

    Args:
        way: computes the expected tensors.
    """

    def results() -> list[Tensor]:
        torch.manual_seed(7)
        return [*call(), torch.rand(2)]

    with torch.random.fork_rng():
        with use(way):
            want = results()
        with sinpe.use_backend("compiled"):
            found = [results()]
            with repetitions() as repeated:
                found += [results(), results()]
    assert repeated and all(repeated), repeated
    for got in found:
        for one, other in zip(got, want, strict=True):
            assert same(one, other) and one.stride() == other.stride()


def exactly(dtype: torch.dtype) -> str:
    """A way of which the results have the same bits: float64 of the eager backend may differ in the last one."""
    return "checked" if dtype == torch.float64 else "eager"


def forms(x: Tensor, **arguments: Any) -> list[Tensor]:
    """`add`, also with out, and `add_`."""
    out, same_x = torch.full_like(x, torch.nan), x.clone()
    versions = out._version, same_x._version
    results = [sinpe.add(x, **arguments), sinpe.add(x, out=out, **arguments), sinpe.add_(same_x, **arguments)]
    assert results[1] is out and results[2] is same_x and type(results[0]) is Tensor
    assert out._version > versions[0] and same_x._version > versions[1]  # autograd refuses a saved tensor that changed
    return results


# ------------------------------------------------------------------------------------------------------- values

ROWS: list[Arguments] = [  # of add and embed
    {},
    {"encoding": "t2t", "scale": 2.5},
    {"encoding": OFFSET, "start": 5, "alpha": 2},
    {"encoding": 8, "start": -(2**61), "scale": -3},
    {"positions": torch.arange(3), "encoding": PE},
    {"positions": torch.tensor([[5, 0, -7], [2**62, 9, 9]]), "scale": 0.5},
    {"positions": torch.tensor([[5, 0, -7]], dtype=torch.int32)},
    {"positions": torch.tensor([5, 0, 200], dtype=torch.uint8)},
    {"positions": torch.tensor([[0.5, torch.nan, -1e30]]), "encoding": OFFSET},
    {"positions": torch.arange(24, dtype=torch.float64).view(2, 3, 4)[..., 1], "padding_mask": MASK},
    {"positions": torch.arange(3).flip(0), "padding_mask": MASKS},
    {"positions": torch.tensor(4).expand(2, 3), "start": 0},
    {"start": torch.tensor(5), "encoding": OFFSET},
    {"start": torch.tensor([2**61, -3])},
    {"start": torch.tensor([7], dtype=torch.int32)},
    {"start": torch.arange(10)[1::5], "encoding": OFFSET, "scale": -0.0},
    {"padding_mask": torch.tensor([[False], [True]]).expand(2, 3), "encoding": "t2t"},
    {"alpha": torch.tensor(1e-300, dtype=torch.float64)},
    {"alpha": torch.tensor([0.7], dtype=torch.bfloat16), "start": 3},
    {"alpha": torch.tensor(torch.nan, dtype=torch.float16)},
    {"alpha": torch.arange(5.0)[3:4], "padding_mask": MASKS},
    {"alpha": torch.nn.Parameter(torch.ones(1), requires_grad=False)},
    {"dropout": 0.5},
    {"dropout": 1 / 3, "seed": 2**63 - 1, "padding_mask": MASK},
    {"dropout": 0.5, "seed": torch.tensor(5), "positions": torch.arange(3)},
    {"dropout": 0.5, "seed": torch.Generator(), "start": torch.tensor([1, 2])},
]
OF_ADD: list[Arguments] = [
    {"seq_dim": 0, "positions": torch.tensor([[1, 2], [7, 0], [-5, 9]]), "padding_mask": MASK[:, None].expand(3, 2)},
    {"seq_dim": 0, "start": torch.tensor([2**61, -3, 4]), "dropout": 0.5},
    {"seq_dim": 1, "channel_dim": 2, "dropout": 0, "scale": -3},
    {"extra_tokens": 1, "positions": torch.tensor([3, -1]), "padding_mask": MASK[1:], "dropout": 0.5, "seed": 1},
    {"extra_tokens": 2, "start": torch.tensor([2**61, -3]), "scale": 0.5},
    {"extra_tokens": 1, "seq_dim": 0, "positions": torch.tensor([[5], [7], [0]])},
]


def name_of(arguments: Arguments) -> str:
    return "-".join(arguments)


def of_new_generator(arguments: Arguments) -> Arguments:
    if isinstance(arguments.get("seed"), torch.Generator):
        return {**arguments, "seed": torch.Generator().manual_seed(3)}
    return arguments


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", [*ROWS, *OF_ADD], ids=name_of)
def test_add(arguments: Arguments, dtype: torch.dtype) -> None:
    for factor in ({}, {"alpha": -0.25}, {"alpha": torch.tensor([0.7])}):
        check(lambda factor=factor: forms(some(dtype), **{**factor, **of_new_generator(arguments)}), exactly(dtype))


X_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels first": lambda x: x.mT.contiguous().mT,
    "batch second": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "slice of rows": lambda x: torch.cat([x, x], 1)[:, 2:5],
    "slice of channels": lambda x: x.repeat_interleave(2, -1)[..., 1::2],
    "expanded": lambda x: x[:1].expand(2, 3, 8),
    "four dimensions": lambda x: torch.cat([x, x, x])[:, None].transpose(0, 1),
    "no batch": lambda x: x[0],
}


@pytest.mark.parametrize("dtype", DTYPES[::2])
@pytest.mark.parametrize(
    "arguments",
    [{"start": 7}, {"padding_mask": MASK, "positions": torch.arange(3)}, {"dropout": 0.5}, {"extra_tokens": 1}],
    ids=name_of,
)
@pytest.mark.parametrize("layout", X_LAYOUTS)
def test_layouts(layout: str, arguments: Arguments, dtype: torch.dtype) -> None:
    x = X_LAYOUTS[layout](some(dtype))
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)

    def call() -> list[Tensor]:
        learned = x.detach().requires_grad_()
        result = sinpe.add(learned, scale=1.5, **arguments)
        into = sinpe.add(x, scale=1.5, out=torch.empty(x.shape, dtype=dtype), **arguments)
        gradient = torch.autograd.grad(result, learned, grad)[0].contiguous()
        return [*forms(x, scale=1.5, **arguments), into, result, gradient]

    check(call)


GRIDS: dict[str, tuple[tuple[int, ...], Arguments]] = {
    "starts": ((2, 3, 4, 8), {"start": (3, 2**40), "dropout": 0.5}),
    "alpha": ((2, 3, 4, 8), {"start": -1, "alpha": 0.5}),
    "mask": ((2, 3, 4, 8), {"padding_mask": torch.arange(12).view(3, 4) % 3 == 0}),
    "other encodings": (
        (2, 3, 4, 13),
        {"encoding": sinpe.GridEncoding((sinpe.Encoding(6), sinpe.Encoding(4, start=-3)), dim=13)},
    ),
    "three axes": ((2, 3, 4, 2, 24), {"encoding": "monai3d"}),
    "one point": ((1, 1, 5, 8), {}),
    "flat": ((2, 12, 8), {"grid_shape": (3, 4), "padding_mask": torch.arange(12) > 8}),
    "flat, no batch": ((12, 8), {"grid_shape": [3, 4]}),
    "flat, sequence first": ((12, 2, 8), {"grid_shape": (3, 4), "seq_dim": 0, "dropout": 0.5, "seed": 5}),
    "channels first": ((2, 8, 3, 4), {"channel_dim": 1, "start": (1, 0), "alpha": -2.0, "dropout": 0.5}),
    "channels first, flat": ((2, 8, 12), {"channel_dim": 1, "seq_dim": 2, "grid_shape": (3, 4)}),
    "extra tokens": ((2, 12, 8), {"grid_shape": (5, 2), "extra_tokens": 2, "start": 9, "alpha": 0.5, "dropout": 0.5}),
    "extra tokens, channels first": ((8, 12, 2), {"grid_shape": (5, 2), "extra_tokens": 2, "channel_dim": 0}),
    "more dimensions": ((1, 2, 3, 4, 8), {}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRIDS)
def test_grids(name: str, dtype: torch.dtype) -> None:
    shape, arguments = GRIDS[name]
    call: Arguments = {"encoding": GRID, "scale": 0.5, **arguments}

    def gradient() -> list[Tensor]:
        x = some(dtype, *shape).requires_grad_()
        result = sinpe.add(x, **call)
        return [result, torch.autograd.grad(result, x, some(dtype, *shape))[0].contiguous()]

    check(lambda: [*forms(some(dtype, *shape), **call), *gradient()], exactly(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", [*ROWS, {"padding_idx": -3, "sparse": True}], ids=name_of)
def test_embed(arguments: Arguments, dtype: torch.dtype) -> None:
    table = some(dtype, 20, 16)

    def call() -> list[Tensor]:
        given, weights = of_new_generator(arguments), (table[:, :8].contiguous(), table[:, :8], table[:, ::2])
        results = [sinpe.embed(IDS, weight, **{"alpha": 0.5, **given}) for weight in weights]
        others = IDS.int(), IDS[:, None], IDS.repeat_interleave(2, 1)[:, ::2]
        return results + [sinpe.embed(ids, weights[0], **given) for ids in others]

    check(call, exactly(dtype))
    rows = torch.arange(3), IDS.t().int().contiguous()
    check(lambda: [sinpe.embed(ids, table[:, :8], seq_dim=0, start=4) for ids in rows], exactly(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "positions",
    [
        torch.tensor([3, -7, 2**62, 0]),
        torch.arange(12).view(2, 1, 6).mT,
        torch.tensor([0.5, torch.nan, -0.0]),
        torch.tensor([[1e9 + 0.25], [-torch.inf]], dtype=torch.float64),
        torch.arange(12, dtype=torch.int16)[1::3],
        torch.tensor(3),
    ],
    ids=lambda positions: f"{positions.dtype}-{tuple(positions.shape)}",
)
def test_encode(positions: Tensor, dtype: torch.dtype) -> None:
    named: list[Arguments] = [{"encoding": PE}, {"encoding": OFFSET}, {"encoding": "ddpm", "dim": 25}, {"dim": 6}]
    check(lambda: [sinpe.encode(positions, dtype=dtype, **given) for given in named], exactly(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_table(dtype: torch.dtype) -> None:
    named: list[Arguments] = [{"encoding": PE}, {"encoding": 97}, {"encoding": "t2t", "dim": 24}, {"dim": 6}]

    def call() -> list[Tensor]:
        results = []
        for given in named:
            table = sinpe.table(70, start=-3, dtype=dtype, **given)
            for out in (torch.empty_like(table), table.repeat(1, 2)[:, : table.shape[1]]):
                before = out._version
                assert sinpe.table(70, start=-3, out=out, **given) is out and out._version > before
                results += [table, out]
        return results

    check(call, exactly(dtype))


@pytest.mark.parametrize("shape", [(1, 8), (65535, 1), (8192, 8), (8193, 8), (1, 2, 4097, 8), (1, 1, 1, 1, 1, 8)])
def test_sizes_around_65536_elements(shape: tuple[int, ...]) -> None:
    check(lambda: forms(some(torch.float32, *shape), dropout=0.25))


# ----------------------------------------------------------------------------------------------------- gradients

LEARNS: list[Arguments] = [
    {},
    {"start": 7, "scale": 0.5},
    {"start": torch.tensor([4, 0]), "alpha": 2.0},
    {"padding_mask": MASK, "dropout": 0.5, "alpha": torch.nn.Parameter(torch.tensor([0.375]))},
    {"padding_mask": MASKS, "positions": torch.tensor([3.5, 1.0, -2.0]), "dropout": 0.5, "seed": 5},
    {"positions": torch.arange(6.0).view(2, 3).double().requires_grad_()},
    {"positions": torch.tensor([0.5, 1.0, 2.0], requires_grad=True), "alpha": 3.0, "dropout": 0.25},
    {"positions": torch.tensor([0.5, 1.0, 2.0], requires_grad=True), "alpha": 3},
    {"alpha": torch.tensor(0.5, requires_grad=True)},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", LEARNS, ids=name_of)
@pytest.mark.parametrize("learns", [False, True], ids=["", "data learns"])
@pytest.mark.parametrize("function", [sinpe.add, sinpe.embed])
def test_gradients(function: Any, learns: bool, arguments: Arguments, dtype: torch.dtype) -> None:
    """To the second order, and as many tensors saved for backward as by a call that is checked in Python: activation
    checkpointing may repeat a call in the other way."""
    data = (some(dtype) if function is sinpe.add else some(dtype, 20, 8)).requires_grad_(learns)
    wanted = [t for t in (data, *arguments.values()) if isinstance(t, Tensor) and t.requires_grad]
    operands = [data] if function is sinpe.add else [IDS, data]
    if not wanted:
        pytest.skip("nothing is learned")

    def call() -> list[Tensor]:
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            result = function(*operands, **arguments)
        count = torch.tensor(float(len(saved)))
        first = torch.autograd.grad(result, wanted, some(dtype).flip(0), create_graph=True)
        squares = torch.autograd.grad((result * result).sum(), wanted, create_graph=True)
        second = torch.autograd.grad(sum(t.double().sum() for t in squares), wanted, materialize_grads=True)
        return [count, result, *first, *squares, *second]

    check(call, "checked")


def test_change_between_forward_and_backward() -> None:
    """Is refused only where the value is needed: that of alpha for the gradient of positions."""
    for times in range(3):
        x, alpha = some().requires_grad_() * 1, torch.tensor(0.5, requires_grad=True)
        positions = torch.arange(3.0, requires_grad=True)
        with repetitions() if times else nullcontext([True]) as repeated:
            both, every = sinpe.add(x, alpha=alpha), sinpe.add(x, alpha=alpha, positions=positions)
        assert all(repeated)
        with torch.no_grad():
            x.zero_(), alpha.zero_()
        want = sinpe.table(3, 8).expand(2, 3, 8).sum()
        torch.testing.assert_close(torch.autograd.grad(both.sum(), alpha)[0], want)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            every.sum().backward()


CHECKPOINTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, weight: sinpe.add(x, scale=3.0, alpha=0.5, positions=torch.arange(x.shape[1])),
    "dropout": lambda x, weight: sinpe.add(x, dropout=0.5, padding_mask=torch.arange(x.shape[1]) < 2),
    "extra tokens": lambda x, weight: sinpe.add(x, extra_tokens=1, alpha=0.5),
    "grid": lambda x, weight: sinpe.add(x.unflatten(-1, (2, -1)), "mae2d", dropout=0.5),
    "embed": lambda x, weight: sinpe.embed(torch.arange(6).reshape(2, 3), weight, scale=8.0, dropout=0.5),
}


@pytest.mark.parametrize("rows", [3, 3000])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoint_makes_a_call_in_another_way(name: str, rows: int) -> None:
    """A mode that is active in the forward or in the backward pass only: both save as many tensors, and draw equal
    seeds."""
    x, weight = torch.randn(2, rows, 32).requires_grad_(), torch.nn.Parameter(torch.randn(9, 32))
    results = []
    for modes in ((), ("forward",), ("backward",), ()):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            with FlopCounterMode(display=False) if "forward" in modes else nullcontext():
                y = checkpoint(lambda: CHECKPOINTED[name](x, weight) * 2, use_reentrant=False)
            with FlopCounterMode(display=False) if "backward" in modes else nullcontext():
                wanted = weight if name == "embed" else x
                results.append((y.detach(), *torch.autograd.grad((y * y).sum(), wanted)))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))


# ------------------------------------------------------------------------------------------------------ refusals


def warm(call: Callable[[], Any]) -> None:
    """Makes a call until it is repeated."""
    call()
    with repetitions() as repeated:
        call()
    assert repeated == [True]


def test_calls_that_are_never_repeated_replace_no_others() -> None:
    """Large calls under a profiler, of which each is checked in Python."""
    warm(lambda: sinpe.add(some(), "t2t"))
    x = torch.ones(1, 9000, 8)
    with torch.profiler.profile(), repetitions() as repeated:
        for _ in range(200):
            sinpe.add(x, PE)
    assert not any(repeated)
    with repetitions() as repeated:
        sinpe.add(some(), "t2t")
    assert repeated == [True]


@pytest.mark.usefixtures("need_cpu_kernels")
@pytest.mark.parametrize("learns", [False, True])
def test_refused_ids_draw_no_seed(learns: bool) -> None:
    weight = some(torch.float32, 9, 8).requires_grad_(learns)
    warm(lambda: sinpe.embed(torch.tensor([8, 0]), weight, dropout=0.5))
    before = torch.get_rng_state()
    for ids in (torch.tensor([9, 0]), torch.tensor([0, -1])):
        with pytest.raises(IndexError, match="ids"):
            sinpe.embed(ids, weight, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("need_cpu_kernels")
def test_refused_starts_draw_no_seed_and_leave_x() -> None:
    arguments: Arguments = {"dropout": 0.5, "extra_tokens": 1, "scale": 2.0}
    warm(lambda: sinpe.add_(some(), start=torch.tensor([0, 1]), **arguments))
    x, before = some(), torch.get_rng_state()
    with pytest.raises(ValueError, match="start"):
        sinpe.add_(x, start=torch.tensor([2**63 - 1, 0]), **arguments)
    assert torch.equal(x, some()) and torch.equal(torch.get_rng_state(), before)


def test_memory_in_common_with_the_result() -> None:
    """Also only with the extra tokens."""
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "positions": lambda row: row[:4],
        "padding_mask": lambda row: row.view(torch.uint8)[:4].view(torch.bool),
        "start": lambda row: row.view(torch.int64)[0],
        "alpha": lambda row: row[0],
    }
    for name, argument in made.items():
        x, apart = torch.zeros(6, 8), argument(torch.zeros(8))
        warm(lambda name=name, apart=apart: sinpe.add_(torch.zeros(6, 8), PE, extra_tokens=2, **{name: apart}))
        with pytest.raises(RuntimeError, match=f"{name}: expected memory apart from the tensor that is written to"):
            sinpe.add_(x, PE, extra_tokens=2, **{name: argument(x[0])})
        assert not x.any()
    both = torch.zeros(56)
    warm(lambda: sinpe.add(some(), PE, out=torch.empty(2, 3, 8)))
    with pytest.raises(RuntimeError, match="out: expected"):
        sinpe.add(both[:48].view(2, 3, 8), PE, out=both[8:].view(2, 3, 8))


def test_errors_in_the_order_of_the_eager_backend() -> None:
    warm(lambda: sinpe.add(some(), "t2t"))
    calls: list[Callable[[], Any]] = [
        lambda: sinpe.add(some(), "papr", channel_dim=1.0, extra_tokens=2),
        lambda: sinpe.embed(torch.tensor(1), torch.ones(3, 8), "papr"),
        lambda: sinpe.add([1], "papr"),
        lambda: sinpe.encode(torch.arange(3), PE, dtype=6),
        lambda: sinpe.add(some(), positions=torch.arange(4), start=2.0),
    ]
    for call in calls:
        texts = []
        for backend in ("eager", "compiled"):
            with sinpe.use_backend(backend), pytest.raises((TypeError, ValueError)) as caught:
                call()
            texts.append(str(caught.value))
        assert texts[0] == texts[1]


def test_limit_of_a_layer() -> None:
    layer = sinpe.SinusoidalPositionalEncoding(8, dropout=0.0, max_len=4).eval()
    kinds: dict[str, tuple[Any, Any]] = {  # an allowed value and one beyond
        "start": (1, 2),
        "positions": (torch.tensor([3, 1, 2]), torch.tensor([3, 1, 4])),
    }
    for name, (allowed, beyond) in kinds.items():
        for _ in range(3):
            assert torch.equal(layer(some(), **{name: allowed}), sinpe.add(some(), **{name: allowed}))
        with pytest.raises(IndexError, match="max_len"):
            layer(some(), **{name: beyond})


# ---------------------------------------------------------------------------------- what intercepts or observes calls


def test_make_fx_pre_dispatch() -> None:
    """It uses a TorchFunctionMode and no visible dispatch mode."""
    weight = torch.ones(9, 8)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: sinpe.add(x, PE, dropout=0.5, seed=3),
        lambda x: sinpe.encode(x.sum(-1), PE),
        lambda x: sinpe.embed(x[0, :, :3].long().abs(), weight, PE),
    ]
    for call in calls:
        warm(lambda call=call: call(some()))
        graph = make_fx(call, pre_dispatch=True)(some())
        assert "sinpe_ext" in graph.code and torch.equal(graph(some() + 1), call(some() + 1))


def test_context_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recognized by torch's attention, which it replaces; other replacements do not matter."""
    warm(lambda: sinpe.add(some(), PE))

    def attention() -> None: ...

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    for module, is_repeated in (("elsewhere", True), ("torch.distributed.tensor.experimental._attention", False)):
        attention.__module__ = module
        with repetitions() as repeated, suppress(ValueError):  # which positions a rank has is not known
            sinpe.add(some(), PE)
        assert repeated == [is_repeated]


def test_large_calls_let_other_threads_run() -> None:
    """Without Python's lock. They are on torch's threads, and a profiler sees their operators."""
    x, ran = torch.ones(64, 4096, 256), []
    warm(lambda: sinpe.add_(x))
    thread = threading.Thread(target=lambda: [ran.append(time.perf_counter()) or time.sleep(0) for _ in range(20000)])
    thread.start()
    begin = time.perf_counter()
    sinpe.add_(x)
    end = time.perf_counter()
    thread.join()
    assert any(begin < at < end for at in ran)
    with torch.profiler.profile() as profiler:
        sinpe.add(x[:1])
    assert any("sinpe_ext::add" in event.key for event in profiler.key_averages())


# ---------------------------------------------------------------------------------------------- launches that fail


def test_launch_that_fails_is_made_again_in_python() -> None:
    x = torch.ones(1, 9000, 8)
    want = sinpe.add(x, PE), sinpe.add(x, PE, dropout=0.5, seed=3)
    warm(lambda: sinpe.add_(x.clone(), PE))
    for in_host_memory in (True, False):
        with stand_in(in_host_memory, fails=True) as calls:
            for got in (sinpe.add(x, PE), sinpe.add_(x.clone(), PE)):
                assert torch.equal(got, want[0])
            assert torch.equal(sinpe.add(x, PE, dropout=0.5, seed=3), want[1])
            assert calls == ["run"] * 3 if in_host_memory else ["is_ready", "run"] * 3


def test_launch_that_fails_after_a_seed_was_drawn_raises() -> None:
    """On a device, where Python would draw a second one."""
    x = torch.ones(1, 9000, 8)
    warm(lambda: sinpe.add(x, PE, dropout=0.5))
    with stand_in(in_host_memory=False, fails=True), pytest.raises(RuntimeError, match="could not be launched"):
        sinpe.add(x, PE, dropout=0.5)


def test_table_of_other_sources_is_refused() -> None:
    x = torch.ones(1, 9000, 8)
    warm(lambda: sinpe.add(x, PE))
    want, other = sinpe.add(x, PE), Kernels(bytes=8)
    loader.core_module()[0].set_kernels(1, ctypes.addressof(other))
    assert torch.equal(sinpe.add(x, PE), want)


def _refusal(call: Callable[[], Tensor]) -> str:
    try:
        return f"{call().shape}"
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", ["positions", "start"])
def test_large_unsigned_positions_are_refused_after_small_ones(name: str) -> None:
    x = torch.randn(8, 8, 16)
    for value in (5, 5, 5, 2**63 + 5):
        call = functools.partial(sinpe.add, x, **{name: torch.full((8,), value, dtype=torch.uint64)})
        assert ("2**63 - 1" in _refusal(call)) == (value > 5)


def test_seeds_of_other_types_are_checked_each_time() -> None:
    x = torch.randn(2, 8, 16)
    for seed in (np.array(5), np.array(5), np.uint64(5)):
        assert torch.equal(sinpe.add(x, dropout=0.5, seed=seed), sinpe.add(x, dropout=0.5, seed=5))
        sinpe.add(x, seed=seed)
    assert _refusal(lambda: sinpe.add(x, seed=np.array([1, 2]))).startswith("TypeError: seed")


def test_negated_views_after_ordinary_tensors() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 8, 16).to(dtype)
        for y in (x, x, torch._neg_view(x)):
            assert torch.equal(sinpe.add(y), sinpe.add(y.clone()))


def test_strides_of_repeated_calls() -> None:
    x = torch.randn(1, 2, 12).expand(4, 2, 12).detach().requires_grad_()
    assert len({sinpe.add(x, seq_dim=0).stride() for _ in range(3)}) == 1


def test_errors_where_memory_cannot_be_allocated() -> None:
    for _ in range(3):
        sinpe.table(8, 512)
    assert _refusal(lambda: sinpe.table(2**52, 512)).startswith("ValueError: length")


def test_starts_beyond_int64_after_others() -> None:
    x, encoding = torch.randn(2, 8, 16), sinpe.Encoding(16, start=5)
    for start in ([1, 2], [1, 2], [1, 2**63 - 3]):
        call = functools.partial(sinpe.add, x, encoding, start=torch.tensor(start))
        assert _refusal(call).startswith("ValueError: start") == (start[1] > 2)
