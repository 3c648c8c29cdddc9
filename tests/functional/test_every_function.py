"""What holds for every public function and layer: values, dtypes, layouts, sizes, backends, modes, threads, copies.

Derivatives, transforms and graphs of the same table, tests/support/public_calls.py: tests/ops.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import close_float64, same
from public_calls import CALLS, MAKERS, Call, Form
from strategies import spread
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from ulp import compare, some_channels
from widths import WIDTHS, every_width

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EMPTY = (Form(batch=0), Form(length=0), Form(batch=0, length=0))
# Relative to the largest term: four roundings to the type of the sum, one to the dtype; the float64 formulas are as
# exact as their angles, up to 500 radians here.
BOUNDS = {torch.float32: 2.0**-22, torch.float64: 2.0**-42, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
every_call = pytest.mark.parametrize("name", MAKERS)


def tensors_of(call: Call) -> dict[str, Tensor]:
    return {name: t for name, t in {**call.tensors, **call.others}.items() if isinstance(t, Tensor)}


def alike(x: Tensor, y: Tensor, is_sum: bool) -> bool:
    """Whether results of two backends agree: the same bits, or of float64, rows that are correct to an ULP."""
    if x.dtype != torch.float64:
        return same(x, y)
    return torch.allclose(x, y, rtol=2.0**-51, atol=2.0**-50) if is_sum else close_float64(x, y)


@every_call
def test_value_equals_formula(name: str, backend: str) -> None:
    forms = itertools.product((Form(), Form(dim=66, batch=3, length=150), Form(dim=9, batch=1)), DTYPES)
    for form, dtype in [*forms, *zip([Form(dim=dim, length=6) for dim in WIDTHS], itertools.cycle(DTYPES))]:
        call = MAKERS[name](form._replace(dtype=dtype))
        got, want = call.run(), call.formula() * call.mask()
        assert got.shape == want.shape and got.dtype == dtype
        off = (got.double() - want).abs()
        # The sum of the terms' sizes is at most that of the operands, 2 to 3 times x or weight, plus 1.
        sizes = [float(t.abs().double().max()) for n, t in tensors_of(call).items() if n in ("x", "weight")]
        largest = (3 * max(sizes, default=0.0) + 1) * (65536 / (65536 - 26214) if call.drops else 1)
        assert float(off.max()) <= BOUNDS[dtype] * largest, (form, dtype)
        assert same(call.run(), got)  # a repeated call


@every_call
def test_backends_give_the_same_bits(name: str, need_kernels: None) -> None:
    for dim, dtype in [*zip(WIDTHS, itertools.repeat(torch.float32)), *zip(WIDTHS, itertools.cycle(DTYPES[1:]))]:
        call = MAKERS[name](Form(dim=dim, batch=2, length=6, dtype=dtype))
        with sinpe.use_backend("eager"):
            want = call.run()
        with sinpe.use_backend("compiled"):
            assert alike(call.run(), want, bool({"x", "weight"} & tensors_of(call).keys())), (dim, dtype)


@every_width
def test_widths_against_mpmath(width: int, backend: str) -> None:
    positions = [0, 7, -12345, 2**30 + 1]
    for dtype, limit in ((torch.float32, 0.5), (torch.float64, 1.0)):
        rows = sinpe.encode(torch.tensor(positions), width, dtype=dtype)
        report = compare(rows, sinpe.Encoding(width), positions, some_channels(4, width, 8))
        assert report.worst <= limit, report


def turned(t: Tensor) -> Tensor:
    return t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # views with the same values
    "dimensions reversed in memory": turned,
    "channels_first_in_memory": lambda t: (
        t.movedim(-1, min(1, t.dim() - 1)).contiguous().movedim(min(1, t.dim() - 1), -1)
    ),
    "gaps and an offset": spread,
    "rows apart": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "negated": lambda t: torch.neg(t)._neg_view() if t.is_floating_point() else t,
    "first sample for all": lambda t: t[:1].expand(t.shape),
    "one number for all": lambda t: t[(slice(0, 1),) * t.dim()].expand(t.shape),
}


@pytest.mark.bad_input(11, "compiled", "eager", "meta", "layer", "embedding", "grid")
@pytest.mark.parametrize("layout", LAYOUTS)
@every_call
def test_layout_of_an_argument_does_not_matter(name: str, layout: str, backend: str) -> None:
    for dtype in DTYPES:
        call = MAKERS[name](Form(dim=10, batch=3, length=6, dtype=dtype))
        for argument, t in tensors_of(call).items():
            view = LAYOUTS[layout](t)
            want = call.run(**{argument: view.clone(memory_format=torch.contiguous_format)})
            got = call.run(**{argument: view})
            assert same(got.contiguous(), want.contiguous()), (dtype, argument)
            if argument == call.like:
                assert got.stride() == torch.empty_like(view).stride(), (dtype, argument)


@pytest.mark.bad_input(9, "compiled", "eager", "meta", "layer", "embedding", "grid", "timestep")
@every_call
def test_empty(name: str, backend: str) -> None:
    for form, dtype, device in itertools.product(EMPTY, DTYPES, ("cpu", "meta")):
        call = MAKERS[name](form._replace(dtype=dtype, device=device))
        got = call.run()
        assert got.shape == call.formula().shape and got.dtype == dtype and got.device.type == device
    for form in EMPTY:
        call = MAKERS[name](form)
        leaves = [t.requires_grad_() for t in call.tensors.values()]
        got = call.run()
        for leaf, grad in zip(leaves, torch.autograd.grad(got.sum(), leaves) if leaves else (), strict=True):
            assert same(grad, torch.zeros_like(leaf)) or got.numel()


@pytest.mark.bad_input(15, "compiled", "eager", "meta", "layer", "embedding", "grid", "timestep")
@every_call
def test_meta_and_fake_tensors(name: str, backend: str) -> None:
    for dtype in DTYPES:
        want, on_meta = (MAKERS[name](Form(dtype=dtype, device=device)).run() for device in ("cpu", "meta"))
        call = MAKERS[name](Form(dtype=dtype))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = call.run(**{n: mode.from_tensor(t) for n, t in tensors_of(call).items()})
        assert on_meta.is_meta and type(fake).__name__ == "FakeTensor" and fake.device.type == "cpu"
        for got in (on_meta, fake):
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())


@pytest.mark.bad_input(13, "compiled", "eager", "layer", "embedding", "grid")
@every_call
def test_arguments_are_not_written_to(name: str, backend: str) -> None:
    for dtype in DTYPES:
        call = MAKERS[name](Form(dtype=dtype))
        before = {n: t.clone() for n, t in tensors_of(call).items()}
        got = call.run()
        for argument, t in tensors_of(call).items():
            assert torch.equal(t, before[argument]) and t._version == 0, argument
            assert got.untyped_storage().data_ptr() != t.untyped_storage().data_ptr(), argument


@every_call
def test_inference_mode_and_autocast(name: str, backend: str) -> None:
    call = MAKERS[name](Form(dtype=torch.float32))
    with torch.inference_mode():
        inside = call.run()
        new = MAKERS[name](Form(dtype=torch.float32, dim=14)).run()  # rows not used before
    want = call.run()
    assert same(inside, want) and inside.is_inference() and not want.is_inference()
    assert same(MAKERS[name](Form(dtype=torch.float32, dim=14)).run(), new)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(call.run(), want)


@pytest.mark.bad_input(22, "compiled", "eager", "embedding")
@every_call
def test_threads(name: str, backend: str) -> None:
    """Several at once, first with a width that was not used before; any number of threads of torch."""
    form = Form(dim=98, batch=3, length=140, dtype=torch.float32)
    results: dict[int, Tensor] = {}

    def work(index: int) -> None:
        results[index] = MAKERS[name](form).run()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            results[10 + count] = MAKERS[name](form).run()
    finally:
        torch.set_num_threads(before)
    assert len(results) == 6 and all(same(result, results[0]) for result in results.values())


@pytest.mark.bad_input(25, "compiled", "eager", "layer", "embedding", "grid", "timestep")
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if "module" in call.others])
def test_copies_of_a_layer(name: str, backend: str) -> None:
    call = MAKERS[name](Form())
    module, want = call.others["module"], call.run()
    for copied in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert repr(copied) == repr(module) and same(call.run(module=copied), want)


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.tensors])
def test_gradient_equals_formula(name: str, backend: str) -> None:
    """For all tensors together and for each alone, of the first call and of a repeated one; see tests/ops."""
    call = MAKERS[name](Form(dim=10, batch=3, length=6))
    for wanted, _ in itertools.product(([name] for name in call.tensors) if len(call.tensors) > 1 else (), range(2)):
        check_gradient(call, wanted)
    check_gradient(call, list(call.tensors))


def check_gradient(call: Call, wanted: list[str]) -> None:
    given = {n: t.clone().requires_grad_(n in wanted) for n, t in call.tensors.items()}
    leaves, got = [given[n] for n in wanted], call.run(**given)
    want = call.formula(**given) * call.mask()
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(8), dtype=got.dtype)
    for mine, theirs in zip(*(torch.autograd.grad(y, leaves, grad) for y in (got, want)), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-11, atol=1e-11)  # sums in other orders


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.tensors])
def test_activation_checkpointing(name: str, backend: str) -> None:
    """The recomputed forward pass draws the same mask."""
    call = MAKERS[name](Form())
    leaves = {n: t.requires_grad_() for n, t in call.tensors.items()}
    drawn: dict[str, Any] = {"seed": None} if call.drops else {}

    def run(*tensors: Tensor) -> Tensor:
        return call.run(**dict(zip(leaves, tensors, strict=True)), **drawn).sin()

    results = []
    for reentrant in (None, False, True):
        torch.manual_seed(3)
        given = [t * 1 for t in leaves.values()]
        got = run(*given) if reentrant is None else checkpoint(run, *given, use_reentrant=reentrant)
        got.square().sum().backward()
        results.append((got, *(leaf.grad for leaf in leaves.values())))
        for leaf in leaves.values():
            leaf.grad = None
    for result in results[1:]:
        assert all(map(same, result, results[0]))
