"""The fast path (sinpe_ext/operations/fast_path.py) equals the general path; also with emulated CUDA kernels."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import sinpe_ext as sinpe
from sinpe_ext import functional, torch_state
from sinpe_ext.backend import loader
from sinpe_ext.modules import layers
from sinpe_ext.operations import fast_path as plain
from sinpe_ext.operations import table as tables
from sinpe_ext.operations.add import AddArguments

pytestmark = pytest.mark.emulated

PE = sinpe.Encoding(8)
MASK = torch.tensor([False, True, False])
PLAIN = [
    {},
    {"encoding": PE},
    {"encoding": "t2t"},
    {"encoding": 8},
    {"encoding": sinpe.Encoding(8, layout="sin_cos"), "start": 5},
    {"start": -(2**61)},
    {"scale": 2.5},
    {"scale": float("nan")},
    {"scale": -3, "dropout": 0},
]
ADD_PLAIN = [
    *PLAIN,
    {"seq_dim": 0},
    {"seq_dim": 0, "start": 5, "scale": 0.5, "encoding": sinpe.Encoding(8, start=-3)},
    {"seq_dim": 1, "channel_dim": 2},
    {"extra_tokens": 1, "scale": 0.5},
    {"extra_tokens": 2, "encoding": "t2t"},
    {"extra_tokens": 1, "seq_dim": 0},
    {"extra_tokens": 1, "encoding": "t2t", "seq_dim": 0, "start": 5},
    {"extra_tokens": 2, "start": -(2**61)},
]
ROWS = [
    {"positions": torch.arange(3)},
    {"positions": torch.tensor([[5, 0, -7], [2**62, 9, 9]])},
    {"positions": torch.tensor([[0.5, float("nan"), -1e30]]), "encoding": sinpe.Encoding(8, start=3)},
    {"positions": torch.arange(24, dtype=torch.float64).view(2, 3, 4)[..., 1]},
    {"positions": torch.arange(3).flip(0), "padding_mask": MASK},
    {"positions": torch.tensor(4).expand(2, 3)},
    {"start": torch.tensor(5)},
    {"start": torch.tensor([2**61, -3])},
    {"start": torch.tensor([7])},
    {"start": torch.arange(10)[1::5]},
    {"padding_mask": MASK},
    {"padding_mask": torch.tensor([[True, False, True], [False, False, True]]), "start": 9, "scale": -0.0},
    {"padding_mask": torch.tensor([[False], [True]]).expand(2, 3), "encoding": "t2t"},
]
LAYOUTS = [  # with other numbers of rows than ROWS
    {"seq_dim": 0, "positions": torch.tensor([[1, 2], [7, 0], [-5, 9]]), "padding_mask": MASK[:, None].expand(3, 2)},
    {"seq_dim": 0, "start": torch.tensor([2**61, -3, 4])},
    {"extra_tokens": 1, "positions": torch.tensor([3, -1]), "padding_mask": MASK[1:]},
    {"extra_tokens": 2, "start": torch.tensor([2**61, -3])},
    {"extra_tokens": 1, "seq_dim": 0, "positions": torch.tensor([[5], [7], [0]])},
]
ROW_OTHERS = [  # of add and embed
    {"positions": torch.arange(3), "start": 1},
    {"positions": torch.arange(3), "start": torch.tensor(0)},
    {"positions": torch.arange(4)},
    {"positions": torch.arange(3, dtype=torch.int32)},
    {"positions": torch.arange(3, dtype=torch.float16)},
    {"positions": torch.zeros(3, 3, dtype=torch.int64)},
    {"positions": torch.zeros(1, 1, 3, dtype=torch.int64)},
    {"positions": [0, 1, 2]},
    {"positions": torch._neg_view(torch.zeros(3))},
    {"start": torch.tensor(5), "encoding": sinpe.Encoding(8, start=1)},
    {"start": torch.tensor(5.0)},
    {"start": torch.tensor([1, 2, 3])},
    {"start": torch.tensor([[1, 2]])},
    {"start": torch.tensor(5, dtype=torch.int32)},
    {"padding_mask": MASK[:2]},
    {"padding_mask": MASK.long()},
    {"padding_mask": torch.zeros(3, 3, dtype=torch.bool)},
    {"padding_mask": torch.zeros(2, 1, dtype=torch.bool)},
    {"start": True},
]
OTHERS = [
    *ROW_OTHERS,
    {"start": 2**63 - 1},
    {"scale": 10**400},
    {"dropout": 1.0},
    {"dropout": 0.5, "seed": 2**63},
    {"dropout": 0.5, "seed": torch.tensor(1)},
    {"dropout": 0.5, "extra_tokens": 1},
    {"seed": 1},
    {"channel_dim": 1, "seq_dim": 2, "encoding": 3},
    {"encoding": 9},
    {"encoding": True},
    {"encoding": "mae2d", "grid_shape": (2, 3), "alpha": 0.5},
    {"encoding": "mae2d", "grid_shape": [1, 3]},
    {"extra_tokens": 3},
    {"extra_tokens": -1},
    {"extra_tokens": 2**70},
    {"extra_tokens": False},
    {"seq_dim": 0.0},
    {"seq_dim": 2},
    {"encoding": sinpe.Encoding(8, angle="float32_exp")},
]


@pytest.fixture(autouse=True)
def need_core() -> None:
    if loader.fast_path_module() is None:
        pytest.skip("the fast path needs the module _core")


@pytest.fixture
def need_cpu_kernels() -> None:
    """The CPU's kernels refuse values that those of a device, which the host does not wait for, accept as NaN."""
    if torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("the host does not read the values of tensors on a device")


def some(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).to(dtype)


def disable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the fast path."""
    for name in loader.FAST_FUNCTIONS:
        monkeypatch.setitem(loader.fast_functions, name, loader._unsupported)


def add_general(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **arguments: object) -> torch.Tensor:
    with monkeypatch.context() as patched:
        disable(patched)
        return sinpe.add(x, **arguments)


def fail_general(*_: object) -> None:
    raise AssertionError("general path taken")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", ADD_PLAIN)
def test_fast_path_is_bitwise_equal(arguments, dtype, monkeypatch) -> None:
    x = some(dtype)
    want = add_general(x, monkeypatch, **arguments)
    scaled = add_general(x, monkeypatch, alpha=-0.25, **arguments)
    monkeypatch.setattr(functional, "add_call", fail_general)
    out, same = torch.full_like(x, float("nan")), x.clone()
    assert sinpe.add(x, out=out, **arguments) is out and sinpe.add_(same, **arguments) is same
    for got in (sinpe.add(x, **arguments), out, same):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(sinpe.add(x, alpha=-0.25, out=out, **arguments).view(torch.uint8), scaled.view(torch.uint8))
    assert torch.equal(x, some(dtype))


DENSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels first": lambda x: x.mT.contiguous().mT,
    "batch second": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
}
X_LAYOUTS = {
    **DENSE,
    "slice of rows": lambda x: torch.cat([x, x], 1)[:, 2:5],
    "slice of channels": lambda x: x.repeat_interleave(2, -1)[..., 1::2],
    "expanded": lambda x: x[:1].expand(2, 3, 8),
    "four dimensions": lambda x: torch.cat([x, x, x])[:, None].transpose(0, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments",
    [
        {"start": 7},
        {"positions": torch.tensor([3.5, 1.0, -2.0]), "padding_mask": MASK},
        {"dropout": 0.5, "seed": 5},
        {"dropout": 0.5, "seed": 5, "seq_dim": 0, "positions": None},
        {"encoding": "mae2d", "grid_shape": (1, 3)},
    ],
    ids=lambda arguments: "-".join(arguments),
)
@pytest.mark.parametrize("layout", X_LAYOUTS)
def test_x_in_any_layout(layout, arguments, dtype, monkeypatch) -> None:
    if "encoding" in arguments and layout not in DENSE:
        pytest.skip("takes the general path")
    x = X_LAYOUTS[layout](some(dtype))
    if layout == "four dimensions" and "seq_dim" in arguments:
        pytest.skip("takes the general path")
    learned = x.detach().requires_grad_()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    want = add_general(x, monkeypatch, scale=1.5, **arguments)
    (of_x,) = torch.autograd.grad(add_general(learned, monkeypatch, scale=1.5, **arguments), learned, grad)
    monkeypatch.setattr(functional, "add_call", fail_general)
    other = torch.full_like(x, float("nan"), memory_format=torch.contiguous_format)
    same, outs = x.clone(), [torch.full_like(x, float("nan"))] + ([] if "encoding" in arguments else [other])
    results = [sinpe.add(x, scale=1.5, **arguments), *[sinpe.add(x, out=out, scale=1.5, **arguments) for out in outs]]
    for got in (*results, sinpe.add_(same, scale=1.5, **arguments)):
        assert torch.equal(got, want)
    assert results[0].stride() == torch.empty_like(x).stride()
    result = sinpe.add(learned, scale=1.5, **arguments)
    assert torch.equal(result, want) and torch.equal(torch.autograd.grad(result, learned, grad)[0], of_x)


@pytest.mark.parametrize("given", [{}, {"scale": 2.0}, {"encoding": "mae2d", "grid_shape": (1, 2)}], ids=str)
def test_extra_tokens_in_any_layout(given: dict[str, Any]) -> None:
    x, given = some(), {"extra_tokens": 1, **given}
    want = sinpe.add(x, **given)
    for layout in DENSE.values():
        out = layout(torch.full_like(x, float("nan")))
        assert torch.equal(sinpe.add(x, out=out, **given), want) and torch.equal(sinpe.add(layout(x), **given), want)
        assert torch.equal(sinpe.add_(layout(x.clone()), **given), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"start": 7},
        {"alpha": 0.5},
        {"alpha": 2},
        {"alpha": torch.tensor(0.5)},
        {"padding_mask": MASK},
        {"encoding": "mae2d"},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_gradient_of_x(arguments, dtype, monkeypatch) -> None:
    """Without dropout and scale the gradient is that of the result, of any order."""
    x, grad = some(dtype).requires_grad_(), some(dtype).flip(0)
    if "encoding" in arguments:
        x = x.detach().reshape(2, 3, 2, 4).requires_grad_()
    want = add_general(x.detach(), monkeypatch, **arguments)
    monkeypatch.setattr(functional, "add_call", fail_general)
    got = sinpe.add(x, **arguments)
    assert torch.equal(got.detach().view(torch.uint8), want.view(torch.uint8))
    assert not got.is_leaf and got.data_ptr() != x.data_ptr()
    (first,) = torch.autograd.grad(got, x, grad.reshape(got.shape), create_graph=True)
    assert torch.equal(first, grad.reshape(got.shape))
    parameter = torch.nn.Parameter(x.detach())
    sinpe.add(parameter, **arguments).backward(grad.reshape(got.shape))
    assert torch.equal(parameter.grad, grad.reshape(got.shape))
    got = sinpe.add(x, **arguments)
    (first,) = torch.autograd.grad((got * got).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(first.detach(), 2 * want) and torch.equal(second, torch.full_like(second, 2))
    with torch.no_grad():
        assert not sinpe.add(x, **arguments).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"encoding": "mae2d"}, {"extra_tokens": 1}, {"seq_dim": 0}],
    ids=lambda arguments: "-".join(arguments),
)
def test_gradient_of_scaled_x(arguments, dtype, monkeypatch) -> None:
    x = some(dtype).reshape(2, 3, 2, 4) if "encoding" in arguments else some(dtype)
    x, grad = x.requires_grad_(), torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    for scale in (0.3, 8**0.5, -0.0, float("inf")):
        want = add_general(x, monkeypatch, scale=scale, **arguments)
        (of_want,) = torch.autograd.grad(want, x, grad)
        with monkeypatch.context() as patched:
            patched.setattr(functional, "add_call", fail_general)
            got = sinpe.add(x, scale=scale, **arguments)
            (of_got,) = torch.autograd.grad(got, x, grad)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        assert torch.equal(of_got.view(torch.uint8), of_want.view(torch.uint8))


DROPOUTS: list[dict[str, Any]] = [
    {"dropout": 0.5},
    {"dropout": 1e-9, "seed": -1},
    {"dropout": 1 - 1e-9},
    {"dropout": 1 / 3, "seed": 2**63 - 1},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"start": 7, "scale": 2.0},
        {"positions": torch.arange(3), "alpha": 0.5},
        {"padding_mask": MASK, "encoding": "t2t"},
        {"encoding": "mae2d", "scale": -0.5},
        {"encoding": "mae2d", "channel_dim": 1, "start": (2, 5)},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_dropout(arguments, dtype, monkeypatch) -> None:
    """The mask of the general path, and as many draws of the generator."""
    x = some(dtype)
    if "mae2d" in arguments.values():
        x = x.reshape((2, 4, 2, 3) if "channel_dim" in arguments else (2, 3, 2, 4))
    for dropout in DROPOUTS:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            want = [add_general(x, monkeypatch, **arguments, **dropout) for _ in range(3)]
            after = torch.rand(2)
            torch.manual_seed(7)
            with monkeypatch.context() as patched:
                patched.setattr(functional, "add_call", fail_general)
                out, same = torch.full_like(x, float("nan")), x.clone()
                got = [sinpe.add(x, **arguments, **dropout), sinpe.add(x, out=out, **arguments, **dropout)]
                got.append(sinpe.add_(same, **arguments, **dropout))
            assert torch.equal(torch.rand(2), after)
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_a_refused_call_draws_no_seed() -> None:
    for arguments in ({"positions": torch.arange(4)}, {"start": torch.zeros(5).long()}, {"start": 2**63 - 2}):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            with pytest.raises(ValueError):
                sinpe.add(some(), dropout=0.5, **arguments)
            after = torch.rand(2)
            torch.manual_seed(7)
            assert torch.equal(torch.rand(2), after)


LEARNED = {"alpha": torch.tensor(0.5, requires_grad=True)}


@pytest.mark.parametrize(
    "arguments",
    [
        {"encoding": "mae2d", "grid_shape": (1, 3), **LEARNED},
        {"extra_tokens": 1, **LEARNED},
        {"seq_dim": 0, **LEARNED},
        {"out": some(), **LEARNED},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_other_gradients_take_the_general_path(arguments, monkeypatch) -> None:
    monkeypatch.setattr(functional, "add_call", fail_general)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.add(some(), **arguments)
    for in_place in (lambda: sinpe.add_(some().requires_grad_() * 1), lambda: sinpe.add_(some(), **LEARNED)):
        with pytest.raises(AssertionError, match="general path taken"):
            in_place()


@pytest.mark.parametrize("arguments", OTHERS, ids=lambda arguments: "-".join(arguments))
def test_other_arguments_take_the_general_path(arguments, monkeypatch) -> None:
    monkeypatch.setattr(functional, "add_call", fail_general)
    for call in (sinpe.add, sinpe.add_, lambda x, **rest: sinpe.add(x, out=x, **rest)):
        with pytest.raises(AssertionError, match="general path taken"):
            call(some(), **arguments)


@pytest.mark.usefixtures("need_cpu_kernels")
@pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 1])
def test_starts_beyond_int64_take_the_general_path(last, monkeypatch) -> None:
    """With dropout even valid starts: a kernel could refuse them after the seed has been drawn."""
    monkeypatch.setattr(functional, "add_call", fail_general)
    for arguments in ({"start": torch.tensor([last, 0])}, {"start": torch.tensor([5, 0]), "dropout": 0.5}):
        with pytest.raises(AssertionError, match="general path taken"):
            sinpe.add(some(), **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", LAYOUTS, ids=lambda arguments: "-".join(arguments))
def test_rows_of_other_layouts(arguments, dtype, monkeypatch) -> None:
    x = some(dtype)
    want = add_general(x, monkeypatch, alpha=0.5, scale=3.0, **arguments)
    monkeypatch.setattr(functional, "add_call", fail_general)
    out, same = torch.full_like(x, float("nan")), x.clone()
    assert sinpe.add(x, alpha=0.5, scale=3.0, out=out, **arguments) is out
    assert sinpe.add_(same, alpha=0.5, scale=3.0, **arguments) is same
    for got in (sinpe.add(x, alpha=0.5, scale=3.0, **arguments), out, same):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("change", [lambda x: x.squeeze_(1), lambda x: x.unsqueeze_(0), lambda x: x.resize_(2, 8)])
def test_x_that_changes_while_its_plan_is_made(change, monkeypatch) -> None:
    """As another thread may do: the plan is made by Python."""
    x, made = torch.zeros(2000, 1, 8), []

    def pack_plan(*arguments: Any) -> torch.Tensor:
        monkeypatch.undo()
        change(x)
        made.append(plain.pack_plan(*arguments))
        return made[0]

    monkeypatch.setattr(plain, "pack_plan", pack_plan)
    encoding = sinpe.Encoding(8, base=54321.5 + len(changed))
    changed.append(encoding)  # a new one for each test, so that no plan is in the cache
    result = sinpe.add(x, encoding, seq_dim=0)
    assert made and result.shape == x.shape and torch.equal(result, sinpe.add(x, encoding, seq_dim=0))


changed: list[sinpe.Encoding] = []


def test_extra_tokens_that_share_memory_with_an_argument() -> None:
    for name in ("positions", "padding_mask", "start", "alpha"):
        x = torch.zeros(6, 8)
        front = x[0]
        values = {
            "positions": front[:4],
            "padding_mask": front.view(torch.uint8)[:4].view(torch.bool),
            "start": front.view(torch.int64)[0],
            "alpha": front[0],
        }
        with pytest.raises(RuntimeError, match=f"{name}: expected memory apart from the tensor that is written to"):
            sinpe.add_(x, PE, extra_tokens=2, **{name: values[name]})
        assert not x.any()


@pytest.mark.usefixtures("need_cpu_kernels")
def test_a_refused_call_leaves_x_as_it_is() -> None:
    """Extra tokens are scaled after the rows, whose arguments a kernel may still refuse."""
    x = some()
    for arguments in ({"start": torch.tensor([2**63 - 1, 0])}, {"positions": torch.arange(3)}):
        with pytest.raises(ValueError, match="start|positions"):
            sinpe.add_(x, extra_tokens=1, scale=2.0, **arguments)
        assert torch.equal(x, some())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", ROWS)
def test_positions_starts_and_masks_in_tensors(arguments, dtype, monkeypatch) -> None:
    """Tensors of positions, starts and padding, for which the fast path has no operator."""
    x, flat, wide = (
        some(dtype),
        some(dtype)[:1, :, :].reshape(3, 8),
        some(dtype).repeat_interleave(3, 0).view(2, 3, 3, 8),
    )
    of_samples = any(isinstance(t, torch.Tensor) and 2 in t.shape[:1] for t in arguments.values())
    for given in (x, wide) if of_samples else (x, wide, flat):
        want = add_general(given, monkeypatch, alpha=0.5, **arguments)
        with monkeypatch.context() as patched:
            patched.setattr(functional, "add_call", fail_general)
            out, same = torch.full_like(given, float("nan")), given.clone()
            assert sinpe.add(given, alpha=0.5, out=out, **arguments) is out
            assert sinpe.add_(same, alpha=0.5, **arguments) is same
            for got in (sinpe.add(given, alpha=0.5, **arguments), out, same):
                assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


ALPHAS = {
    "float32": torch.tensor(0.7),
    "one element": torch.tensor([-0.3]),
    "float64": torch.tensor(1e-300, dtype=torch.float64),
    "bfloat16": torch.tensor(0.7, dtype=torch.bfloat16),
    "float16": torch.tensor([float("nan")], dtype=torch.float16),
    "a view": torch.arange(5.0)[3:4],
    "a parameter's data": torch.nn.Parameter(torch.ones(1)).detach(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALPHAS)
def test_alpha_in_a_tensor(name, dtype, monkeypatch) -> None:
    x, alpha = some(dtype), ALPHAS[name]
    want = add_general(x, monkeypatch, alpha=alpha, scale=1.5)
    monkeypatch.setattr(functional, "add_call", fail_general)
    out, same = torch.full_like(x, float("nan")), x.clone()
    assert sinpe.add(x, alpha=alpha, scale=1.5, out=out) is out
    assert sinpe.add_(same, alpha=alpha, scale=1.5) is same
    for got in (sinpe.add(x, alpha=alpha, scale=1.5), out, same):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize(
    "alpha",
    [
        torch.tensor(1),
        torch.tensor([0.5, 0.5]),
        torch.tensor([[0.5]]),
        torch._neg_view(torch.tensor(0.5)),
        torch.tensor(0.5, device="meta"),
        torch.tensor(0.5 + 1j),
        0.5 + 0j,
        10**400,
        True,
    ],
    ids=repr,
)
def test_other_alphas_take_the_general_path(alpha, monkeypatch) -> None:
    monkeypatch.setattr(functional, "add_call", fail_general)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.add(some(), alpha=alpha)


def test_alpha_in_the_memory_of_the_result_is_refused() -> None:
    x = some()
    for alpha in (x[0, 0, :1], x[1, 2, 7]):
        with pytest.raises(RuntimeError, match=r"alpha: expected memory apart from the tensor that is written to"):
            sinpe.add_(x, alpha=alpha)
    alpha = x[0, 0, :1]
    assert torch.equal(sinpe.add(x, alpha=alpha), sinpe.add(x, alpha=float(alpha)))


GRIDS = {
    "mae2d": ("mae2d", (2, 3, 4, 16)),
    "detr2d": ("detr2d", (1, 5, 2, 16)),
    "three axes": ("monai3d", (2, 3, 4, 2, 24)),
    "one axis of length 1": ("mae2d", (2, 1, 4, 16)),
    "blocks with a rest": (sinpe.GridEncoding((sinpe.Encoding(6), sinpe.Encoding(4, start=-3)), dim=13), (2, 3, 4, 13)),
    "starts of the axes": (sinpe.GridEncoding((sinpe.Encoding(8, start=7), sinpe.Encoding(8))), (2, 3, 4, 16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", GRIDS)
def test_small_grids(name, dtype, monkeypatch) -> None:
    encoding, shape = GRIDS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    want = add_general(x, monkeypatch, encoding=encoding, scale=0.5)
    monkeypatch.setattr(functional, "add_call", fail_general)
    for _ in range(2):  # the second time with cached operands
        out, same = torch.full_like(x, float("nan")), x.clone()
        assert sinpe.add(x, encoding, scale=0.5, out=out) is out and sinpe.add_(same, encoding, scale=0.5) is same
        for got in (sinpe.add(x, encoding, scale=0.5), out, same):
            assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


GRID_LAYOUTS = {
    "start": {"start": -1},
    "starts": {"start": (3, 2**40)},
    "grid_shape of dimensions": {"grid_shape": (3, 4)},
    "flattened": {"flat": (2, 12, 16), "grid_shape": (3, 4)},
    "flattened, no batch": {"flat": (12, 32), "grid_shape": (3, 4)},
    "flattened, sequence first": {"flat": (12, 2, 16), "grid_shape": (3, 4), "seq_dim": 0},
    "channels first": {"flat": (2, 16, 3, 4), "channel_dim": 1, "start": (1, 0)},
    "channels first, no batch": {"flat": (32, 3, 4), "channel_dim": 0, "grid_shape": (3, 4)},
    "channels first, flattened": {"flat": (2, 16, 12), "channel_dim": 1, "seq_dim": 2, "grid_shape": (3, 4)},
    "extra tokens": {"flat": (2, 12, 16), "grid_shape": (5, 2), "extra_tokens": 2, "start": 9},
    "extra tokens, channels first": {"flat": (16, 12, 2), "grid_shape": (5, 2), "extra_tokens": 2, "channel_dim": 0},
    "one point": {"flat": (1, 16, 4, 3), "grid_shape": (1, 1), "extra_tokens": 3, "channel_dim": 1, "seq_dim": 2},
    "more dimensions": {"flat": (1, 2, 3, 4, 16)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", GRID_LAYOUTS)
def test_small_grids_of_other_layouts(name, dtype, monkeypatch) -> None:
    arguments = dict(GRID_LAYOUTS[name])
    shape = arguments.pop("flat", (2, 3, 4, 16))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for scale in (0.5, 1.0):
        call: dict[str, Any] = {"encoding": "mae2d", "scale": scale, **arguments}
        want = add_general(x, monkeypatch, **call)
        with monkeypatch.context() as patched:
            patched.setattr(functional, "add_call", fail_general)
            for _ in range(2):  # the second time with cached operands
                out, same = torch.full_like(x, float("nan")), x.clone()
                assert sinpe.add(x, out=out, **call) is out and sinpe.add_(same, **call) is same
                for got in (sinpe.add(x, **call), out, same):
                    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_small_grids_of_changing_layouts(monkeypatch) -> None:
    """The same object and shape with arguments in turn, more of them than the cache holds."""
    x, grid = torch.randn(2, 8, 8), sinpe.convention("mae2d", 8)
    calls: list[dict[str, Any]] = [{"start": start} for start in (0, 1, 2, (0, 1), (1, 0), (2**40, 0), -1, -5)]
    calls += [{"start": start, "extra_tokens": 2, "grid_shape": (2, 3)} for start in (0, 1, (0, 1))]
    calls += [{"channel_dim": 1, "seq_dim": 2, "start": start} for start in (0, 3, (3, 1))]
    for arguments in calls * 2:
        call = {"grid_shape": (2, 4), **arguments}
        with monkeypatch.context() as patched:
            want = add_general(x, patched, encoding=grid, **call)
        assert torch.equal(sinpe.add(x, grid, **call), want)


def test_small_grids_of_changing_sizes(monkeypatch) -> None:
    """More than the cache holds; sizes with the same number of points; the same object for two dtypes."""
    grid = sinpe.convention("mae2d", 8)
    shapes = [(2, 3, 4, 8), (2, 4, 3, 8), (2, 12, 1, 8), (3, 2, 4, 8), *((1, n, 2, 8) for n in range(1, 9))]
    for shape in shapes * 2:
        for dtype in (torch.float32, torch.float16):
            x = torch.randn(shape).to(dtype)
            with monkeypatch.context() as patched:
                want = add_general(x, patched, encoding=grid)
            assert torch.equal(sinpe.add(x, grid), want)


@pytest.mark.parametrize(
    "arguments",
    [
        {"start": [1, 2]},
        {"start": True},
        {"start": torch.tensor([1, 2])},
        {"padding_mask": torch.zeros(3, 4, dtype=torch.bool)},
        {"positions": torch.zeros(3, 4, 2)},
        {"alpha": 0.5},
        {"alpha": torch.tensor(0.5)},
        {"dropout": 1.0},
        {"grid_shape": (3, 5)},
        {"extra_tokens": 1},
        {"channel_dim": 2},
        {"seq_dim": 1},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_other_calls_with_a_grid_take_the_general_path(arguments, monkeypatch) -> None:
    x, grid = torch.randn(2, 3, 4, 8), sinpe.convention("mae2d", 8)
    sinpe.add(x, grid)
    monkeypatch.setattr(functional, "add_call", fail_general)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.add(x, grid, **arguments)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.add(x.movedim(1, 2), grid)  # not contiguous
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.add(x.requires_grad_(), grid, alpha=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "positions",
    [
        torch.tensor([3, -7, 2**62, 0]),
        torch.arange(12).view(2, 1, 6),
        torch.tensor([0.5, float("nan"), -0.0]),
        torch.tensor([[1e9 + 0.25], [float("-inf")]], dtype=torch.float64),
        torch.arange(4096),  # the maximum for eight channels
        torch.arange(6)[1:4],
    ],
    ids=lambda positions: f"{positions.dtype}-{tuple(positions.shape)}",
)
def test_encode_of_a_few_positions(positions, dtype, monkeypatch) -> None:
    for encoding in (PE, sinpe.Encoding(8, layout="sin_cos", start=5)):
        with monkeypatch.context() as patched:
            disable(patched)
            want = sinpe.encode(positions, encoding, dtype=dtype)
        with monkeypatch.context() as patched:
            patched.setattr(tables, "encode", fail_general)
            got = sinpe.encode(positions, encoding, dtype=dtype)
        assert got.dtype == dtype and got.shape == (*positions.shape, 8)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def positions_past_storage() -> torch.Tensor:
    positions = torch.arange(3)
    positions.untyped_storage().resize_(16)
    return positions


@pytest.mark.usefixtures("need_cpu_kernels")
def test_encode_of_other_positions_takes_the_general_path() -> None:
    small = loader.fast_path_module()
    assert small.fast_encode(torch.arange(3), PE, torch.float32, None) is not None
    others = {
        "no dimension": torch.tensor(3),
        "no elements": torch.arange(0),
        "too many": torch.arange(4097),
        "strided": torch.arange(6)[::2],
        "int32": torch.arange(3, dtype=torch.int32),
        "bfloat16": torch.zeros(3, dtype=torch.bfloat16),
        "a gradient": torch.zeros(3, requires_grad=True),
        "a negative bit": torch._neg_view(torch.ones(3)),
        "meta": torch.arange(3, device="meta"),
        "15 dimensions": torch.zeros((1,) * 15),
        "sparse": torch.zeros(3).to_sparse(),
        "a parameter": torch.nn.Parameter(torch.ones(3), requires_grad=False),
        "storage too small": positions_past_storage(),
        "a list": [1, 2],
        "an int": 3,
    }
    taken = [
        name for name, positions in others.items() if small.fast_encode(positions, PE, torch.float32, None) is not None
    ]
    assert not taken


def test_encode_to_another_dtype_or_encoding_takes_the_general_path() -> None:
    small, few = loader.fast_path_module(), torch.arange(3)
    assert small.fast_encode(few, PE, torch.int64, None) is None
    assert small.fast_encode(few, PE, torch.complex64, None) is None
    assert small.fast_encode(few, sinpe.Encoding(8, angle="float32_exp"), torch.float32, None) is None
    with torch.device("meta"):
        assert sinpe.encode(few, PE).device.type == "cpu"
    with pytest.raises(TypeError, match="fast_encode"):
        small.fast_encode(few, PE)


def test_row_arguments_past_their_storage() -> None:
    for dtype, bytes in ((torch.int64, 8), (torch.float32, 4)):
        positions = torch.zeros(3, dtype=dtype)
        assert loader.fast_functions["add"](AddArguments(some(), PE, positions), None) is not None
        positions.untyped_storage().resize_(3 * bytes - 1)
        assert loader.fast_functions["add"](AddArguments(some(), PE, positions), None) is None
    mask = torch.zeros(2, 3, dtype=torch.bool)
    mask.untyped_storage().resize_(5)
    assert loader.fast_functions["add"](AddArguments(some(), PE, padding_mask=mask), None) is None
    starts = torch.zeros(2, dtype=torch.int64)
    starts.untyped_storage().resize_(8)
    assert loader.fast_functions["add"](AddArguments(some(), PE, start=starts), None) is None


def test_out_overlapping_row_arguments_is_rejected() -> None:
    x = torch.zeros(1, 1, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="positions"):
        sinpe.add_(x, PE, positions=x.view(-1)[:1])
    with pytest.raises(RuntimeError, match="start"):
        sinpe.add_(x, PE, start=x.view(torch.int64).view(-1)[:1])


def test_size_limit_includes_positions() -> None:
    layer = sinpe.SinusoidalPositionalEncoding(8, dropout=0.0, max_len=4).eval()
    assert torch.equal(
        layer(some(), positions=torch.tensor([3, 1, 2])), sinpe.add(some(), positions=torch.tensor([3, 1, 2]))
    )
    for arguments in ({"positions": torch.tensor([3, 1, 4])}, {"start": torch.tensor([0, 2])}):
        with pytest.raises(IndexError, match="max_len"):
            layer(some(), **arguments)


def without_storage() -> torch.Tensor:
    x = some()
    x.untyped_storage().resize_(0)
    return x


def past_storage() -> torch.Tensor:
    """A tensor whose storage is too small for its elements."""
    x = some()
    x.untyped_storage().resize_(100)
    return x


def view_past_storage() -> torch.Tensor:
    """A view entirely past the end of its storage."""
    all_of_it = torch.zeros(4096)
    x = all_of_it[1024:1072].view(2, 3, 8)
    all_of_it.untyped_storage().resize_(4096)
    return x


def unsupported_tensors() -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """x and out that the fast path does not take."""
    x, both = some(), torch.zeros(2 * 48)
    with torch.inference_mode():
        unwritable = torch.empty(2, 3, 8)
    return {
        "a gradient and an out": (x.clone().requires_grad_(), some()),
        "a gradient past the storage": (past_storage().requires_grad_(), None),
        "a gradient of an inner tensor": (x.clone().requires_grad_() * 2, torch.empty(2, 3, 8)),
        "an int": (x.long(), None),
        "one dimension": (x[0, 0], None),
        "other channels": (x[..., :6], None),
        "a parameter to write to": (x, torch.nn.Parameter(x.clone(), requires_grad=False)),
        "a negative bit": (torch._neg_view(x), None),
        "an out with gaps": (x, torch.empty(2, 3, 9)[..., :8]),
        "an out whose elements share memory": (x, torch.empty(1, 3, 8).expand(2, 3, 8)),
        "five dimensions in another order": (torch.randn(2, 2, 3, 2, 8).transpose(1, 2), None),
        "the memory of x in another order": (both[:48].view(2, 3, 8), both[:48].view(2, 8, 3).mT),
        "another shape": (x, torch.empty(3, 2, 8)),
        "another dtype": (x, torch.empty(2, 3, 8, dtype=torch.float64)),
        "no tensor": (x, x.numpy()),
        "an out with a gradient": (x, torch.empty(2, 3, 8, requires_grad=True)),
        "shared memory": (both[:48].view(2, 3, 8), both[8:56].view(2, 3, 8)),
        "an inference tensor": (x, unwritable),
        "a zero": (x, torch._efficientzerotensor(2, 3, 8)),
        "meta": (x.to("meta"), None),
        "a zero to add to": (torch._efficientzerotensor(2, 3, 8), None),
        "sparse": (x.to_sparse(), None),
        "compressed": (x[0].to_sparse_csr(), None),
        "complex": (x.to(torch.complex64), None),
        "no elements": (x, x[:0]),
        "no storage": (without_storage(), None),
        "storage too small": (past_storage(), None),
        "out with a storage too small": (x, past_storage()),
        "view past the storage": (view_past_storage(), None),
        "out, a view past the storage": (x, view_past_storage()),
        "out without storage": (x, without_storage()),
        "nested": (torch.nested.nested_tensor([x[0], x[1]]), None),
    }


@pytest.mark.parametrize("name", unsupported_tensors())
def test_other_tensors_take_the_general_path(name: str) -> None:
    x, out = unsupported_tensors()[name]
    assert loader.fast_functions["add"](AddArguments(some(), PE), None) is not None
    assert loader.fast_functions["add"](AddArguments(x, PE), out) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("start", [0, -5, 2**40])
def test_table_into_out(start: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in (PE, sinpe.Encoding(97, layout="sin_cos", start=5)):
        want = sinpe.table(70, encoding, start=start, dtype=dtype)
        for given in (None, dtype):
            out = torch.full((70, encoding.dim), torch.nan, dtype=dtype)
            before = out._version
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table", fail_general)
                assert sinpe.table(70, encoding, start=start, dtype=given, out=out) is out
            assert torch.equal(out, want) and out._version == before + 1


def unsupported_tables() -> dict[str, dict[str, object]]:
    """Arguments of `table` beside a length of 6 and `PE`, with an `out` that the fast path does not take."""
    rows, cut = torch.empty(6, 8), torch.empty(6, 8)
    cut.untyped_storage().resize_(100)
    with torch.inference_mode():
        unwritable = torch.empty(6, 8)
    return {
        "no tensor": {"out": rows.numpy()},
        "a gradient": {"out": torch.empty(6, 8, requires_grad=True)},
        "a parameter": {"out": torch.nn.Parameter(rows, requires_grad=False)},
        "an inference tensor": {"out": unwritable},
        "a negative bit": {"out": torch._neg_view(torch.empty(6, 8))},
        "a zero": {"out": torch._efficientzerotensor(6, 8)},
        "meta": {"out": rows.to("meta")},
        "sparse": {"out": torch.zeros(6, 8).to_sparse()},
        "a storage too small": {"out": cut},
        "strided rows": {"out": torch.empty(6, 16)[:, :8]},
        "rows past the storage": {"out": view_past_storage().view(6, 8)},
        "an integer dtype": {"out": torch.empty(6, 8, dtype=torch.int64)},
        "a length that differs": {"out": torch.empty(7, 8)},
        "a dtype that differs": {"out": rows, "dtype": torch.float64},
        "a device": {"out": rows, "device": torch.device("cpu")},
        "a start beyond int64": {"out": rows, "start": 2**63 - 3},
        "an int that int64 cannot hold": {"out": rows, "start": 2**70},
    }


@pytest.mark.parametrize("name", unsupported_tables())
def test_other_tables_take_the_general_path(name: str) -> None:
    given = tables.TableArguments(6, PE, dim=None, out=torch.empty(6, 8))
    assert loader.fast_functions["table"](given) is not None
    assert loader.fast_functions["table"](given._replace(**unsupported_tables()[name])) is None


def test_dispatch_modes_see_the_operator(monkeypatch) -> None:
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        sinpe.add(some(), PE)
    assert any("sinpe_ext" in name for name in seen)
    assert torch.func.vmap(lambda x: sinpe.add(x, PE))(some()).shape == (2, 3, 8)


def interceptions() -> dict[str, Callable[[Callable[[], None]], object]]:
    """Modes and transforms that observe operators; each is passed the call."""

    def within(manager: Any) -> Callable[[Callable[[], None]], None]:
        def look(call: Callable[[], None]) -> None:
            with manager:
                call()

        return look

    def calling(call: Callable[[], None]) -> Callable[[torch.Tensor], torch.Tensor]:
        def f(t: torch.Tensor) -> torch.Tensor:
            call()
            return t

        return f

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    return {
        "a dispatch mode": within(Mode()),
        "a function mode": within(torch.overrides.TorchFunctionMode()),
        "vmap": lambda call: torch.func.vmap(calling(call))(torch.ones(2)),
        "grad": lambda call: torch.func.grad(calling(call))(torch.ones(())),
        "forward mode": within(torch.autograd.forward_ad.dual_level()),
        "jit.trace": lambda call: torch.jit.trace(calling(call), torch.ones(2), check_trace=False),
        "the compiler": lambda call: torch.compile(calling(call), backend="eager")(torch.ones(2)),
    }


@pytest.mark.parametrize("name", interceptions())
def test_every_observer_disables_the_fast_path(name: str) -> None:
    """By the check in Python and by that in C, which has its own list."""
    given, small, seen = AddArguments(some(), PE), loader.fast_path_module(), []

    def call() -> None:
        result = (
            None if torch.compiler.is_compiling() else loader.fast_functions["add"](given, None)
        )  # as functional.py does
        seen.append((torch_state.is_intercepted(), result is None))

    interceptions()[name](call)
    assert seen and all(one == (True, True) for one in seen)
    assert small.fast_add(given, None) is not None
    if name != "the compiler":  # calls no C
        interceptions()[name](lambda: seen.append((True, small.fast_add(given, None) is None)))
        few = torch.arange(3), PE, torch.float32, None
        interceptions()[name](lambda: seen.append((True, small.fast_encode(*few) is None)))
        assert all(one == (True, True) for one in seen)


def test_context_parallel_disables_the_fast_path(monkeypatch) -> None:
    """Context parallelism replaces torch's attention."""
    small = loader.fast_path_module()
    given = AddArguments(some(), PE)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *_: None)
    assert small.fast_add(given, None) is not None
    monkeypatch.setattr(torch_state, "in_context_parallel", lambda: True)
    assert torch_state.is_intercepted() and small.fast_add(given, None) is None


def test_more_encodings_than_the_cache_holds() -> None:
    encodings = [sinpe.Encoding(8, base=base) for base in range(2, 30)]
    want = [sinpe.table(3, encoding) for encoding in encodings]
    for _ in range(2):
        for encoding, rows in zip(encodings, want, strict=True):
            assert torch.equal(sinpe.add(torch.zeros(1, 3, 8), encoding)[0], rows)
            assert torch.equal(sinpe.add(torch.zeros(1, 3, 8), encoding.replace(base=10000))[0], sinpe.table(3, PE))
    for dim in (8, 16, 8):
        assert torch.equal(sinpe.add(torch.zeros(1, 3, dim))[0], sinpe.table(3, sinpe.Encoding(dim)))


def test_make_fx_pre_dispatch() -> None:
    """It uses a TorchFunctionMode and no visible dispatch mode."""
    for call in (
        lambda x: sinpe.add(x, PE),
        lambda x: sinpe.add(x, PE, start=3),
        lambda x: sinpe.encode(x.sum(-1), PE),
        lambda x: sinpe.embed(x[0, :, :3].long().abs(), torch.ones(9, 8), PE),
    ):
        graph = make_fx(call, pre_dispatch=True)(some())
        assert "sinpe_ext" in graph.code and torch.equal(graph(some() + 1), call(some() + 1))
    for call in (
        lambda x: sinpe.add(x, PE),
        lambda x: sinpe.add(x, PE, dropout=0.5, seed=3),
        lambda x: sinpe.encode(x, PE),
    ):
        graph, given, same = make_fx(call, pre_dispatch=True)(some()), some().requires_grad_(), some().requires_grad_()
        graph(given).sum().backward()
        call(same).sum().backward()
        assert torch.equal(given.grad, same.grad)


@pytest.mark.parametrize("call", [sinpe.add, sinpe.add_, lambda x, e: sinpe.add(x, e, out=torch.empty(2, 3, 8))])
def test_function_mode_takes_the_general_path(call, monkeypatch) -> None:
    monkeypatch.setattr(functional, "add_call", fail_general)

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            return function(*arguments, **(named or {}))

    x = some()
    with torch.device("cpu"):
        call(x, PE)
    with Watch(), pytest.raises(AssertionError, match="general path taken"):
        call(x, PE)


def test_writes_increment_version_counter() -> None:
    x = some().requires_grad_()
    result = some()
    y = (x * result).sum()  # saves result for the backward pass
    before = result._version
    sinpe.add_(result, PE)
    assert result._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    out = torch.empty(2, 3, 8)
    sinpe.add(some(), PE, out=out)
    assert out._version == 1


def test_errors_in_the_order_of_the_general_path() -> None:
    with pytest.raises(TypeError, match="channel_dim"):
        sinpe.add(some(), "papr", channel_dim=1.0, extra_tokens=2)
    with pytest.raises(ValueError, match="ids"):
        sinpe.embed(torch.tensor(1), torch.ones(3, 8), "papr")
    for number in (6, 7, True, "float32", torch.int64):
        with pytest.raises(TypeError, match="dtype: expected torch.float32"):
            sinpe.encode(torch.arange(3), PE, dtype=number)


def test_embedding_with_zero_rows(monkeypatch) -> None:
    ids, weight = torch.zeros(2, 0, dtype=torch.int64), torch.randn(6, 8)
    short = sinpe.embed(ids, weight, PE)
    disable(monkeypatch)
    assert sinpe.embed(ids, weight, PE).stride() == short.stride()


def test_unknown_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="papr"):
        sinpe.add(some(), "papr")


def test_copy_on_write() -> None:
    """A lazy clone that is written gets its own memory; one that is read does not."""
    first = some()
    for call in (lambda t: sinpe.add_(t, PE), lambda t: sinpe.add(some(), PE, out=t), lambda t: sinpe.add(t, PE)):
        lazy = torch._lazy_clone(first)
        assert torch.equal(call(lazy), sinpe.add(some(), PE))
        assert torch.equal(first, some())


def test_inference_mode(monkeypatch) -> None:
    want = sinpe.add(some(), PE)
    monkeypatch.setattr(functional, "add_call", fail_general)
    with torch.inference_mode():
        x, out = some().clone(), torch.empty(2, 3, 8)
        assert sinpe.add(x, PE).is_inference() and torch.equal(sinpe.add(x, PE, out=out), want)
        assert torch.equal(sinpe.add_(x, PE), want)
    assert not sinpe.add(x, PE).is_inference()  # outside of inference mode; writes: see unsupported_tensors


def test_calls_release_their_references() -> None:
    x, out = some(), torch.empty(2, 3, 8)
    before = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(100):
        sinpe.add(x, PE, out=out)
        result = weakref.ref(sinpe.add(x, PE))
        assert result() is None
        sinpe.add(x, PE, out=torch.empty(2, 3, 9)[..., :8])  # not on the fast path
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before


@pytest.mark.parametrize("shape", [(1, 8), (1, 1, 8), (2, 2, 3, 8), (8192, 8), (16384, 8), (1, 1, 1, 1, 1, 8)])
def test_sizes_around_the_limit(shape, monkeypatch) -> None:
    x = torch.randn(shape)
    want = add_general(x, monkeypatch)
    assert torch.equal(sinpe.add(x), want) and torch.equal(sinpe.add(x, PE, out=torch.full_like(x, torch.nan)), want)
    assert torch.equal(sinpe.add(x.mT.contiguous().mT), want)


class Kernels(ctypes.Structure):
    """csrc/core/kernels.h."""

    _fields_ = (
        ("bytes", ctypes.c_int64),
        ("in_host_memory", ctypes.c_bool),
        ("max_elements", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("is_ready", "table", "encode", "add", "add_grid", "dropout", "embed")),
    )


LAUNCH_FAILED = 6
FAIL = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: LAUNCH_FAILED)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes a function of the table of the loaded library fail."""
    table = ctypes.CDLL(loader.resolve("cpu").library).sinpe_kernels
    table.restype = ctypes.POINTER(Kernels)
    module, original, copies = loader.fast_path_module(), table(), []

    def fail(name: str) -> None:
        copy = Kernels.from_buffer_copy(original.contents)
        setattr(copy, name, ctypes.cast(FAIL, ctypes.c_void_p))
        copies.append(copy)
        module.set_kernels(1, ctypes.addressof(copy))

    yield fail
    module.set_kernels(1, ctypes.addressof(original.contents))


def test_launch_that_fails_after_another_raises(failing) -> None:
    """The general path would scale x and add the encoding a second time."""
    x = torch.ones(1, 9000, 8)
    failing("dropout")
    with pytest.raises(RuntimeError, match="a kernel could not be launched"):
        sinpe.add_(x, PE, extra_tokens=2, scale=2.0)
    assert torch.equal(x[0, 2:], 2 + sinpe.table(8998, PE)) and torch.equal(x[0, :2], torch.ones(2, 8))


def test_launch_that_fails_first_takes_the_general_path(failing) -> None:
    x = torch.ones(1, 9000, 8)
    want = sinpe.add(x, PE)
    failing("add")
    assert torch.equal(sinpe.add(x, PE), want) and torch.equal(sinpe.add_(x, PE), want)


def test_table_of_other_sources_is_refused(failing) -> None:
    x = torch.ones(1, 9000, 8)
    want, other = sinpe.add(x, PE), Kernels(bytes=8)
    loader.fast_path_module().set_kernels(1, ctypes.addressof(other))
    assert torch.equal(sinpe.add(x, PE), want)


def test_large_calls_let_other_threads_run() -> None:
    """Without Python's lock. They are on torch's threads, and a profiler sees their operators."""
    x, ran = torch.ones(64, 4096, 256), []
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


def test_layer_in_eval_takes_the_fast_path(monkeypatch) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(8, dropout=0.5, max_len=10).eval()
    embedding = sinpe.SinusoidalEmbedding(20, 8, dropout=0.5, max_len=10).eval().requires_grad_(False)
    ids = torch.tensor([[3, 1, 4], [1, 5, 9]])
    want = sinpe.add(some(), PE, start=7), sinpe.embed(ids, embedding.weight, PE, start=7)
    monkeypatch.setattr(layers, "add_call", fail_general)
    monkeypatch.setattr(layers, "embed_call", fail_general)
    assert torch.equal(layer(some(), start=7), want[0]) and torch.equal(embedding(ids, start=7), want[1])
    with torch.random.fork_rng():
        torch.manual_seed(3)
        want = sinpe.add(some(), PE, dropout=0.5)
        torch.manual_seed(3)
        assert torch.equal(layer.train()(some()), want)
    for call in (lambda: layer(some(), start=8), lambda: embedding(ids, start=8)):
        with pytest.raises(AssertionError, match="general path taken"):
            call()


EMBED_OTHERS = [
    *ROW_OTHERS,
    {"scale": 10**400},
    {"dropout": 1.0},
    {"dropout": 0.5, "seed": 2**63},
    {"seed": 1},
    {"padding_idx": 0, "encode_padding": False},
    {"padding_idx": 20},
    {"sparse": 1},
    {"seq_dim": -2},
    {"encoding": 9},
    {"encoding": True},
    {"encoding": sinpe.Encoding(8, angle="float32_exp")},
]


@pytest.mark.parametrize("arguments", EMBED_OTHERS, ids=lambda arguments: "-".join(arguments))
def test_other_arguments_of_embed_take_the_general_path(arguments, monkeypatch) -> None:
    ids, weight = torch.tensor([[3, 1, 4]]), torch.randn(20, 8)
    monkeypatch.setattr(functional, "embed_call", fail_general)
    assert sinpe.embed(ids, weight, PE, start=2, scale=0.5, padding_idx=-1, sparse=True).shape == (1, 3, 8)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.embed(ids, weight, **{"encoding": PE, **arguments})
    for others in (
        (ids.int(), weight),
        (ids, weight.long()),
    ):
        with pytest.raises(AssertionError, match="general path taken"):
            sinpe.embed(*others, PE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments", [*PLAIN, *ROWS, {"alpha": -0.25}, {"alpha": torch.tensor([0.5])}], ids=lambda a: "-".join(a)
)
@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 3)])
def test_embed_is_bitwise_equal(shape, arguments, dtype, monkeypatch) -> None:
    ids, table = torch.arange(6).mul(7).remainder(20).reshape(shape), torch.randn(20, 16).to(dtype)
    weights = table[:, :8].contiguous(), table[:, :8], torch.nn.Parameter(table[::2, 8:].clone(), requires_grad=False)
    for weight in weights:
        rows = ids % len(weight)
        with monkeypatch.context() as patched:
            disable(patched)
            want = sinpe.embed(rows, weight, **arguments)
        with monkeypatch.context() as patched:
            patched.setattr(functional, "embed_call", fail_general)
            got = sinpe.embed(rows, weight, padding_idx=3, **arguments)
        assert type(got) is torch.Tensor and got.is_contiguous() and got.shape == (*shape, 8)
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"start": torch.tensor([5, -(2**61)])}, {"positions": torch.tensor([[1, 2, 3], [9, 0, 4]]), "scale": 3.0}],
    ids=lambda a: "-".join(a),
)
def test_embed_with_the_sequence_first(arguments, dtype, monkeypatch) -> None:
    ids, weight = torch.tensor([[3, 1], [0, 2], [3, 3]]), torch.randn(4, 8).to(dtype)
    for rows in (ids, ids[:, 0].contiguous()):
        if rows.dim() == 1 and arguments:
            continue
        with monkeypatch.context() as patched:
            disable(patched)
            want = sinpe.embed(rows, weight, seq_dim=0, **arguments)
        with monkeypatch.context() as patched:
            patched.setattr(functional, "embed_call", fail_general)
            got = sinpe.embed(rows, weight, seq_dim=0, **arguments)
        assert got.shape == (*rows.shape, 8) and torch.equal(got.view(torch.uint8), want.view(torch.uint8))
        assert got.is_contiguous() and want.is_contiguous()


def test_gradient_of_weight_with_the_sequence_first(monkeypatch) -> None:
    """It is summed batch first, whatever seq_dim is."""
    ids, weight = torch.randint(0, 3, (4, 5)), torch.randn(3, 8, requires_grad=True)
    grad = torch.randn(4, 5, 8)

    def gradients() -> list[torch.Tensor]:
        calls = sinpe.embed(ids, weight, seq_dim=0), sinpe.embed(ids.t(), weight).transpose(0, 1)
        return [torch.autograd.grad(call, weight, grad)[0] for call in calls]

    fast = gradients()
    with monkeypatch.context() as patched:
        disable(patched)
        general = gradients()
    assert all(torch.equal(one, fast[0]) for one in (*fast, *general))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"scale": 16.0},
        {"scale": 0.3, "dropout": 0.3, "seed": 5},
        {"padding_idx": 3, "dropout": 0.5, "seed": -1},
        {"padding_idx": -2, "start": 5},
    ],
)
@pytest.mark.parametrize("rows", [4, 5])
def test_gradient_of_weight(rows, arguments, sparse, dtype, monkeypatch) -> None:
    """The gradient of torch's own lookup (up to 64 tokens) has the bits of ours, -0 and NaN included."""
    ids, grad = torch.randint(0, 7, (rows, 16)), torch.randn(rows, 16, 24).to(dtype)
    grad[ids == 1], grad[0, :, 0], grad[1, :, 1] = -0.0, float("nan"), float("inf")
    weight = torch.nn.Parameter(torch.randn(9, 24).to(dtype))

    def both() -> list[torch.Tensor]:
        result = sinpe.embed(ids, weight, sparse=sparse, **arguments)
        (to_weight,) = torch.autograd.grad(result, weight, grad)
        if not sparse:
            return [result.detach(), to_weight]
        assert not to_weight.is_coalesced()
        return [result.detach(), to_weight._indices(), to_weight._values()]

    with monkeypatch.context() as patched:
        disable(patched)
        want = both()
    monkeypatch.setattr(functional, "embed_call", fail_general)
    for a, b in zip(both(), want, strict=True):
        assert torch.equal(torch.where(a.isnan(), 0, a), torch.where(b.isnan(), 0, b))
        assert torch.equal(a.isnan(), b.isnan()) and torch.equal(torch.signbit(a), torch.signbit(b))
    if "dropout" in arguments or dtype not in (torch.float32, torch.float64):
        return
    once = sinpe.embed(ids, weight, sparse=False, **arguments)
    (first,) = torch.autograd.grad((once * once).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    counts = torch.bincount(ids.flatten(), minlength=9).to(dtype)
    if "padding_idx" in arguments:
        counts[arguments["padding_idx"]] = 0
    want = (2 * arguments.get("scale", 1.0) ** 2 * counts).unsqueeze(1).expand(9, 24)
    torch.testing.assert_close(second, want)


def test_other_gradients_of_embed_take_the_general_path(monkeypatch) -> None:
    ids, weight = torch.arange(6), torch.nn.Parameter(torch.randn(9, 8))
    with monkeypatch.context() as patched:
        patched.setattr(functional, "embed_call", fail_general)
        with pytest.raises(AssertionError, match="general path taken"):
            sinpe.embed(ids.reshape(2, 3), weight, seq_dim=0)
        with pytest.raises(AssertionError, match="general path taken"):
            sinpe.embed(ids.reshape(2, 3), weight.detach(), seq_dim=0, **LEARNED)


@pytest.mark.parametrize("arguments", [{"positions": torch.arange(3).int()}, {"start": torch.tensor(5).int()}])
def test_a_refused_call_of_embed_saves_no_ids(arguments, monkeypatch) -> None:
    """They would be saved a second time by the general path, and activation checkpointing counts them."""
    ids, weight, saved = torch.tensor([[3, 1, 4]]), torch.randn(20, 8, requires_grad=True), []
    monkeypatch.setattr(functional, "embed_call", fail_general)
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        with pytest.raises(AssertionError, match="general path taken"):
            sinpe.embed(ids, weight, PE, **arguments)
    assert saved == []


LEARNS = [
    {},
    {"start": 7, "scale": 0.5},
    {"start": torch.tensor([4, 0])},
    {"padding_mask": MASK, "dropout": 0.5},
    {"padding_mask": MASK[None], "positions": torch.tensor([3.5, 1.0, -2.0]), "dropout": 0.5, "seed": 5},
    {"positions": torch.tensor([[0.5, 1.0, -2.0], [7.0, 2.25, 0.0]], dtype=torch.float64, requires_grad=True)},
    {"positions": torch.tensor([0.5, 1.0, 2.0], requires_grad=True), "alpha": 3.0, "dropout": 0.25},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", LEARNS, ids=lambda arguments: "-".join(arguments) or "alpha")
@pytest.mark.parametrize("learns", [False, True], ids=["", "data learns"])
@pytest.mark.parametrize("name", ["add", "embed"])
def test_gradients_of_alpha_and_positions(name, learns, arguments, dtype, monkeypatch) -> None:
    """The values and gradients of the general path, to the second order, and as many tensors saved for backward."""
    of = torch.float64 if dtype == torch.float64 else torch.float32
    alpha = torch.nn.Parameter(torch.tensor([0.375], dtype=of))
    arguments = {"alpha": alpha, **arguments}
    data = some(dtype) if name == "add" else torch.randn(20, 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    data.requires_grad_(learns)
    ids = torch.tensor([[3, 1, 4], [1, 17, 3]])
    wanted = [t for t in (data, alpha, arguments.get("positions")) if t is not None and t.requires_grad]
    grad = torch.randn((2, 3, 8), generator=torch.Generator().manual_seed(2)).to(dtype)

    def run() -> list[Any]:
        saved: list[torch.Tensor] = []
        with torch.random.fork_rng():
            torch.manual_seed(4)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
                if name == "add":
                    result = sinpe.add(data, PE, **arguments)
                else:
                    result = sinpe.embed(ids, data, PE, padding_idx=-3, **arguments)
            count = len(saved)
            first = torch.autograd.grad(result, wanted, grad, create_graph=True, allow_unused=True)
            squares = torch.autograd.grad((result * result).sum(), wanted, create_graph=True, allow_unused=True)
            total = sum(t.double().sum() for t in squares if t is not None)
            second = torch.autograd.grad(total, wanted, allow_unused=True)
            return [count, result, *first, *second, torch.rand(2)]

    with monkeypatch.context() as patched:
        disable(patched)
        want = run()
    monkeypatch.setattr(functional, f"{name}_call", fail_general)
    got = run()
    assert got[0] == want[0] and type(got[1]) is torch.Tensor and got[1].requires_grad
    for one, other in zip(got[1:], want[1:], strict=True):
        assert (one is None) == (other is None) and (one is None or torch.equal(one, other))


@pytest.mark.usefixtures("need_cpu_kernels")
def test_refused_ids_draw_no_seed() -> None:
    for weight in (torch.randn(9, 8), torch.nn.Parameter(torch.randn(9, 8))):
        before = torch.get_rng_state()
        for ids in (torch.tensor([9]), torch.tensor([[0, -1]])):
            for dropout in (0.0, 0.5):
                with pytest.raises(IndexError, match="ids"):
                    sinpe.embed(ids, weight, dropout=dropout)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", [{}, {"scale": 3.0, "seed": 5}, {"encoding": "mae2d"}, {"padding_mask": MASK}])
def test_gradient_with_dropout(arguments, dtype, monkeypatch) -> None:
    """Recorded as that of an operator, with the seed that is drawn in C."""
    x = some(dtype).reshape((2, 3, 2, 4) if "encoding" in arguments else (2, 3, 8)).requires_grad_()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.random.fork_rng():
            torch.manual_seed(4)
            result = sinpe.add(x, dropout=0.5, **arguments)
            assert not result.is_leaf and result.requires_grad
            (first,) = torch.autograd.grad(result, x, grad, create_graph=True)
            (again,) = torch.autograd.grad((result * result).sum(), x, create_graph=True)
            return result.detach(), first.detach(), torch.autograd.grad(again.sum(), x)[0], torch.rand(2)

    with monkeypatch.context() as patched:
        disable(patched)
        want = run()
    monkeypatch.setattr(functional, "add_call", fail_general)
    for one, other in zip(run(), want, strict=True):
        assert torch.equal(one, other)


def test_embed_of_damaged_tensors_takes_the_general_path(monkeypatch) -> None:
    ids, weight = torch.tensor([[3, 1, 4]]), torch.randn(20, 8)
    cut_ids, cut_weight, no_storage = ids.clone(), weight.clone(), weight.clone()
    cut_ids.untyped_storage().resize_(16)
    cut_weight.untyped_storage().resize_(100)
    no_storage.untyped_storage().resize_(0)
    mask = MASK.clone()
    mask.untyped_storage().resize_(2)
    nothing = None, PE, None, 0, 1.0, 1.0, 0.0, None, None, None, False, True, -1
    plainly = (ids, weight, *nothing[1:])
    assert loader.fast_functions["embed"](plainly) is not None
    others = {
        "ids past their storage": (cut_ids, weight),
        "weight past its storage": (ids, cut_weight),
        "weight without storage": (ids, no_storage),
        "a negative bit": (ids, torch._neg_view(weight)),
        "a zero": (ids, torch._efficientzerotensor(20, 8)),
        "zero ids": (torch._efficientzerotensor(1, 3, dtype=torch.int64), weight),
        "meta": (ids.to("meta"), weight.to("meta")),
        "columns": (ids, torch.randn(8, 20).t()),
        "a list": ([3, 1], weight),
        "three dimensions": (ids, weight.unsqueeze(0)),
        "strided ids": (torch.arange(12).view(2, 6)[:, ::2], weight),
        "no ids": (ids[:, :0], weight),
        "other channels": (ids, torch.randn(20, 9)),
    }
    assert [
        name for name, two in others.items() if loader.fast_functions["embed"]((*two, *nothing[1:])) is not None
    ] == []
    masked = [*plainly]
    masked[10] = mask
    assert loader.fast_functions["embed"](tuple(masked)) is None
    with pytest.raises(TypeError, match="fast_embed"):
        loader.fast_path_module().fast_embed(plainly[:-1])
    with pytest.raises(TypeError, match="fast_table"):
        loader.fast_path_module().fast_table((6, PE))


def test_table_of_a_few_rows(monkeypatch) -> None:
    for dtype in (None, torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for encoding in (PE, sinpe.Encoding(97, layout="sin_cos", start=5)):
            with monkeypatch.context() as patched:
                disable(patched)
                want = sinpe.table(70, encoding, start=-3, dtype=dtype)
            with monkeypatch.context() as patched:
                patched.setattr(tables, "table", fail_general)
                got = sinpe.table(70, encoding, start=-3, dtype=dtype)
            assert got.dtype == want.dtype and torch.equal(got, want)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert sinpe.table(3, PE).dtype == torch.float32
    finally:
        torch.set_default_dtype(default)
    with torch.device("meta"):
        assert sinpe.table(3, PE).is_meta


NAMED = {
    "an int": {"encoding": 24},
    "dim": {"dim": 24},
    "a name": {"encoding": "t2t", "dim": 24},
    "another name": {"encoding": "ddpm", "dim": 25},
    "an int again": {"encoding": 26},
}


@pytest.mark.parametrize("name", NAMED)
def test_table_and_encode_of_a_name_or_a_number_of_channels(name, monkeypatch) -> None:
    for call in (lambda: sinpe.table(5, start=3, **NAMED[name]), lambda: sinpe.encode(torch.arange(5), **NAMED[name])):
        with monkeypatch.context() as patched:
            disable(patched)
            want = call()
        with monkeypatch.context() as patched:
            patched.setattr(tables, "table", fail_general)
            patched.setattr(tables, "encode", fail_general)
            assert torch.equal(call(), want) and torch.equal(call(), want)


@pytest.mark.parametrize(
    "arguments",
    [
        {"encoding": 24, "dim": 24},
        {"encoding": PE, "dim": 8},
        {"encoding": "t2t"},
        {"encoding": 0},
        {"encoding": 2**70},
        {"encoding": True},
        {"dim": 0},
        {"dim": -1},
        {"dim": 2**70},
        {"dim": True},
        {"encoding": "mae2d", "dim": 16},
    ],
    ids=str,
)
def test_other_names_take_the_general_path(arguments, monkeypatch) -> None:
    monkeypatch.setattr(tables, "table", fail_general)
    monkeypatch.setattr(tables, "encode", fail_general)
    for call in (lambda: sinpe.table(5, **arguments), lambda: sinpe.encode(torch.arange(5), **arguments)):
        with pytest.raises(AssertionError, match="general path taken"):
            call()


@pytest.mark.usefixtures("need_cpu_kernels")
def test_id_out_of_range_takes_the_general_path(monkeypatch) -> None:
    monkeypatch.setattr(functional, "embed_call", fail_general)
    with pytest.raises(AssertionError, match="general path taken"):
        sinpe.embed(torch.tensor([[3, 20]]), torch.randn(20, 8), PE)


def test_cached_call_distinguishes_signed_zeros() -> None:
    x, mask = torch.full((1, 2, 8), -1.0), torch.tensor([True, True])
    for scale, negative in ((0.0, True), (-0.0, False), (0.0, True)):
        assert bool(sinpe.add(x, PE, scale=scale, padding_mask=mask).signbit().all()) == negative
        assert bool(sinpe.add(x, PE, scale=scale, padding_mask=mask, dropout=-0.0).signbit().all()) == negative


def test_first_invalid_argument_is_named() -> None:
    with pytest.raises(TypeError, match=r"^x: expected a torch.Tensor, got list"):
        sinpe.add([1], "nonsense")
    with pytest.raises(TypeError, match=r"^x: expected a torch.Tensor, got int"):
        sinpe.add_(3, sinpe.convention("mae2d", 8))


CHECKPOINTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, weight: sinpe.add(x),
    "scale": lambda x, weight: sinpe.add(x, scale=3.0, alpha=0.5, positions=torch.arange(x.shape[1])),
    "dropout": lambda x, weight: sinpe.add(x, dropout=0.5, padding_mask=torch.arange(x.shape[1]) < 2),
    "extra tokens": lambda x, weight: sinpe.add(x, extra_tokens=1, alpha=0.5),
    "grid": lambda x, weight: sinpe.add(x.unflatten(-1, (2, -1)), "mae2d", dropout=0.5),
    "embed": lambda x, weight: sinpe.embed(torch.arange(6).reshape(2, 3), weight),
    "embed, scale": lambda x, weight: sinpe.embed(torch.arange(6).reshape(2, 3), weight, scale=8.0, alpha=0.5),
    "embed, dropout": lambda x, weight: sinpe.embed(torch.arange(6), weight, dropout=0.5, positions=torch.arange(6)),
}


@pytest.mark.parametrize("rows", [3, 3000])
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_checkpoint_repeats_a_call_on_another_path(name: str, rows: int) -> None:
    """A mode that is active in the forward or in the backward pass only: both paths save equal tensors, and draw equal
    seeds."""
    x, weight = torch.randn(2, rows, 32).requires_grad_(), torch.nn.Parameter(torch.randn(9, 32))
    results = []
    for modes in ((), ("forward",), ("backward",)):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            with FlopCounterMode(display=False) if "forward" in modes else contextlib.nullcontext():
                y = checkpoint(lambda: CHECKPOINTED[name](x, weight) * 2, use_reentrant=False)
            with FlopCounterMode(display=False) if "backward" in modes else contextlib.nullcontext():
                wanted = weight if name.startswith("embed") else x
                results.append((y.detach(), *torch.autograd.grad((y * y).sum(), wanted)))
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(result, results[0], strict=True))
