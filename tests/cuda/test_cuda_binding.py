"""Argument checks of the bindings, called below the Python checks: of the CPU library, the emulated CUDA library
(--require-backend=emulated), and the CUDA library if there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.operations import grid_rows
from sinpe_ext.operations.plans import pack_plan
from sinpe_ext.operator import OPERATORS

pytestmark = pytest.mark.emulated

B, S, D, ROWS = 2, 3, 8, 5
GRID = sinpe.GridEncoding((sinpe.Encoding(D),))
KEYS = {"cpu": torch._C.DispatchKey.CPU, "cuda": torch._C.DispatchKey.CUDA}
OTHER = {"cpu": "meta", "cuda": "cpu"}  # a device that the binding rejects


def emulated() -> bool:
    return torch.ops.sinpe_ext.cpu_isa() == "emulated"


def arguments(name: str, device: torch.device) -> dict[str, Any]:
    """Valid arguments of the operator, by their names in the schema."""
    x = torch.zeros(B, S, D, device=device)
    known: dict[str, Any] = {
        "x": x,
        "grad": x,
        "out": torch.zeros(S, D, device=device) if name == "table_out" else torch.zeros_like(x),
        "plan": pack_plan(sinpe.convention("fairseq", D)).to(device),
        "ids": torch.zeros(B, S, dtype=torch.int64, device=device),
        "weight": torch.zeros(ROWS, D, device=device),
        "positions": torch.zeros(1, S, dtype=torch.int64, device=device),
        "padding_mask": torch.zeros(B, S, dtype=torch.bool, device=device),
        "alpha": torch.ones(1, device=device),
        "seed": torch.zeros(1, dtype=torch.int64, device=device),
        "angular_frequencies": torch.ones(D, dtype=torch.float64, device=device),
        "terms": torch.zeros(B, S, dtype=torch.float64, device=device),
        "axis_rows": None, "extra_tokens": 0,
        "start": 0, "length": S, "dim": D, "dtype": torch.float32, "positions_are_starts": False, "scale": 1.0,
        "drop_threshold": 100, "rng_offsets": [], "padding_idx": -1, "sparse": False, "num_embeddings": ROWS,
    }  # fmt: skip
    return {a.name: known[a.name] for a in op(name)._schema.arguments}


def grid(device: torch.device) -> dict[str, Any]:
    """Arguments of `add` that make it that of a grid."""
    packed = grid_rows.pack_grid(GRID, (S,), False, device)
    return {"plan": packed, "axis_rows": torch.zeros(S * D, device=device), "positions": None}


def op(name: str) -> Any:
    return getattr(torch.ops.sinpe_ext, name).default


def call(name: str, device: torch.device, **changed: Any) -> Any:
    """Calls the device's kernel directly; a changed argument may be computed from the original."""
    given = arguments(name.removesuffix(" grid"), device)
    if name.endswith(" grid"):
        name = name.removesuffix(" grid")
        given |= grid(device)
    for argument, value in changed.items():
        given[argument] = value(given[argument]) if callable(value) else value
    return op(name).redispatch(torch._C.DispatchKeySet(KEYS[device.type]), *given.values())


# The operators of a compiled library, and the tensors that each takes.
KERNELS = [name for name in OPERATORS if name not in ("plan_partner", "plan_angular_frequencies", "draw_seed")]
TENSORS = [
    (name, a.name)
    for name in KERNELS
    for a in op(name)._schema.arguments
    if "Tensor" in str(a.type) and a.name != "axis_rows"
]
TENSORS += [("add_out grid", name) for name in ("x", "plan", "padding_mask", "axis_rows", "out")]


@pytest.mark.parametrize("name", [*KERNELS, "add grid", "add_out grid"])
def test_arguments_of_these_tests_are_valid(name: str, device: torch.device) -> None:
    result = call(name, device)
    for made in result if isinstance(result, tuple) else (result,):
        assert made is None or made.device.type == device.type


@pytest.mark.parametrize("name, operand", TENSORS)
def test_tensor_on_another_device_is_rejected(name: str, operand: str, device: torch.device) -> None:
    other = OTHER[device.type]
    with pytest.raises(RuntimeError, match=rf"^\w+: expected a tensor on {device.type}.*, got one on {other}; ") as e:
        call(name, device, **{operand: lambda t: t.to(other)})
    assert str(e.value).startswith(operand) or (operand == "grad" and str(e.value).startswith("x"))  # row_dots


twice: Callable[[Tensor], Tensor] = lambda t: t.repeat(*[1] * (t.dim() - 1), 2)  # noqa: E731
strided: Callable[[Tensor], Tensor] = lambda t: twice(t)[..., ::2]  # noqa: E731
first: Callable[[Tensor], Tensor] = lambda t: t[0]  # noqa: E731
GRID_OUT, BACKWARD = "add_out grid", "embed_backward"
ERRORS: list[tuple[str, str, Any, str]] = [  # operator, arguments, their invalid value, message
    ("add", "plan", Tensor.int, "plan: unsupported dtype, got Int$"),
    ("table", "plan", Tensor.double, "plan: expected int64 words, got Double$"),
    ("encode", "plan", strided, "plan: expected contiguous words, got strides; "),
    ("add", "x", Tensor.long, "x: expected a floating-point type, got Long$"),
    ("dropout", "x", Tensor.int, "x: unsupported dtype, got Int$"),
    ("add", "x", lambda t: t[0, 0], "x: expected 2 to 16 dimensions, got 1$"),
    ("dropout", "x", lambda t: t[(None,) * 14], "x: expected 1 to 16 dimensions, got 17$"),
    ("add_out", "out", twice, f"out: expected the shape of x, .* dimension 2 is {D}, got {2 * D}$"),
    ("add_out", "out", first, "out: expected the rank and dtype of x$"),
    ("add_out", "out", Tensor.double, "out: expected the rank and dtype of x$"),
    ("table_out", "out", first, r"out: expected the shape \(length, dim\)"),
    ("table_out", "out", strided, r"out: expected .* with contiguous channels$"),
    ("tree_sum", "terms", Tensor.float, "terms: expected contiguous float64, got Float; pass terms"),
    ("tree_sum", "terms", lambda t: t.mT, "terms: expected contiguous float64, got Double; pass"),
    ("table", "length", -1, "length: expected 0 or more, got -1$"),
    ("table", "dim", 0, "dim: expected "),
    ("encode", "dtype", torch.int64, "dtype: expected a floating-point type, got Long$"),
    (GRID_OUT, "plan", lambda t: t[:0], "plan: expected a packed plan tensor, got none$"),
    (GRID_OUT, "axis_rows", Tensor.double, "axis_rows: .* row of Float, got 1 dimensions of Double$"),
    (GRID_OUT, "x out", Tensor.double, "axis_rows: .* row of Double, got 1 dimensions of Float$"),
    (GRID_OUT, "axis_rows", strided, "axis_rows: expected a contiguous row of Float"),
    (GRID_OUT, "axis_rows", lambda t: t[None], "axis_rows: .* of Float, got 2 dimensions of Float$"),
    (GRID_OUT, "positions", lambda _: torch.zeros(1, S), "positions: expected None where axis_rows is given"),
    ("encode", "positions", strided, "positions: expected a contiguous"),
    ("add_out", "positions", first, "positions: expected 2 dimensions, .* got 1$"),
    ("add", "positions", twice, rf"positions: expected the shape \({B} or 1, {S}\), got \(1, {2 * S}\)$"),
    ("add_out", "positions_are_starts", True, rf"positions: expected the shape \({B} or 1, 1\), got \(1, {S}\)$"),
    ("row_dots", "positions", Tensor.int, "positions: unsupported dtype, got Int$"),
    ("add_out", "padding_mask", Tensor.long, "padding_mask: expected bool, got Long$"),
    ("embed", "padding_mask", lambda t: t[:, :1], rf"padding_mask: .* or 1, {S}\), got \({B}, 1\)$"),
    ("add", "alpha", twice, "alpha: expected one number, got 2$"),
    ("embed", "alpha", Tensor.long, "alpha: expected a floating-point type, got Long$"),
    ("dropout", "seed", None, "seed: expected one int64, got None while drop_threshold is 100$"),
    ("add", "seed", twice, "seed: expected one int64, got 2 of Long$"),
    (BACKWARD, "seed", Tensor.double, "seed: expected one int64, got 1 of Double$"),
    ("add", "extra_tokens", S + 1, f"extra_tokens: expected 0 to {S}, got {S + 1}$"),
    ("dropout", "drop_threshold", -1, "drop_threshold: expected 0 to 65536, got -1$"),
    ("embed", "drop_threshold", 65537, "drop_threshold: expected 0 to 65536, got 65537$"),
    ("add", "rng_offsets", [0, 1, 2], r"rng_offsets: expected 4 integers \(.*\), got 3$"),
    ("row_dots", "angular_frequencies", twice, rf"angular_frequencies: .* shape \({D},\), got {2 * D} of Double$"),
    ("row_dots", "angular_frequencies", Tensor.float, f"angular_frequencies: .* float64 .*, got {D} of Float$"),
    ("embed", "ids", Tensor.double, "ids: expected int64, got Double$"),
    ("embed", "ids", lambda t: t[0, 0], "ids: expected 1 to 15 dimensions, got 0$"),
    ("embed", "weight", first, r"weight: expected the shape \(num_embeddings, dim\)"),
    ("embed", "weight", strided, "weight: .* with contiguous channels$"),
    (BACKWARD, "num_embeddings", -1, "num_embeddings: expected 0 or more, got -1$"),
    (BACKWARD, "grad", first, "grad: expected 3 dimensions, .* got 2$"),
    (BACKWARD, "grad", lambda t: t[:1], "grad: expected the shape .*, got 1 in dimension 0$"),
]


@pytest.mark.parametrize(("name", "argument", "value", "message"), ERRORS)
def test_invalid_arguments(name: str, argument: str, value: Any, message: str, device: torch.device) -> None:
    """Messages contain no function name and no source path."""
    with pytest.raises(RuntimeError, match=f"^{message}"):
        call(name, device, **dict.fromkeys(argument.split(), value))


@pytest.mark.parametrize("drop", [0, 65536])
@pytest.mark.parametrize("name", ["dropout", "add", "embed", "embed_backward", "row_dots"])
def test_seed_is_not_needed_without_randomness(name: str, drop: int, device: torch.device) -> None:
    result = call(name, device, seed=None, drop_threshold=drop)
    assert torch.equal(result, call(name, device, seed=torch.tensor(5, device=device), drop_threshold=drop))
    assert drop == 0 or not bool(result.any())


def no_plan(words: Tensor) -> Tensor:
    words = words.clone()
    words[0] = 0
    return words


NO_ROWS: dict[str, tuple[dict[str, Any], str]] = {  # the CPU raises, CUDA gives rows of NaN
    "no plan": ({"plan": no_plan}, "plan: not a frequency plan"),
    "another dim": ({"plan": lambda t: pack_plan(sinpe.convention("fairseq", 2 * D)).to(t.device)}, "plan"),
}


@pytest.mark.parametrize("case", NO_ROWS.values(), ids=NO_ROWS)
@pytest.mark.parametrize("name", ["table", "encode", "add"])
def test_invalid_plan(name: str, case: Any, device: torch.device) -> None:
    """The host cannot read a plan on the device, so CUDA cannot raise."""
    changed, message = case
    if device.type == "cpu" and not emulated():
        with pytest.raises(RuntimeError, match=message):
            call(name, device, **changed)
    else:
        assert call(name, device, **changed).isnan().all()


NO_GRID: dict[str, tuple[dict[str, Any], str]] = {  # the CPU raises, CUDA gives NaN
    "no grid": ({"plan": no_plan}, "plan: expected a packed grid tensor for 24 values of axis_rows, got another; pass"),
    "a plan": ({"plan": lambda t: pack_plan(sinpe.Encoding(D)).to(t.device)}, "plan: expected a packed grid tensor"),
    "fewer values": ({"axis_rows": lambda t: t[1:]}, "plan: expected a packed grid tensor for 23 values"),
    "more values": ({"axis_rows": twice}, "plan: expected a packed grid tensor for 48 values"),
    "other lengths": (
        {
            "plan": lambda t: grid_rows.pack_grid(GRID, (S + 1,), False, t.device),
            "axis_rows": lambda t: t.new_zeros((S + 1) * D),
        },
        "x: expected the points and channels of the grid",
    ),
}


@pytest.mark.parametrize("case", NO_GRID.values(), ids=NO_GRID)
def test_invalid_grid(case: Any, device: torch.device) -> None:
    changed, message = case
    out = torch.zeros(B, S, D, device=device)
    changed = changed | {"out": out, "padding_mask": None, "drop_threshold": 0}
    if device.type == "cpu" and not emulated():
        with pytest.raises(RuntimeError, match=f"^{message}"):
            call("add_out grid", device, **changed)
        assert not out.any()
    else:
        call("add_out grid", device, **changed)
        assert out.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_alpha_and_seed_on_cpu_or_device(dtype: torch.dtype, device: torch.device) -> None:
    alpha, seed = torch.tensor([0.25], dtype=dtype, device=device), torch.tensor([7], device=device)
    given = arguments("add", device) | {"alpha": alpha, "seed": seed, "drop_threshold": 30000}
    want = OPERATORS["add"].reference(*given.values())
    got = call("add", device, alpha=alpha, seed=seed, drop_threshold=30000)
    torch.testing.assert_close(got, want)
    numbers = {"alpha": torch.tensor(0.25, dtype=dtype), "seed": torch.tensor(7)}  # of shape (), on the CPU
    assert torch.equal(call("add", device, drop_threshold=30000, **numbers), got)
    alpha.fill_(0.5)
    assert not torch.equal(call("add", device, alpha=alpha, seed=seed, drop_threshold=30000), want)


IDS: dict[str, Callable[[Tensor], Tensor]] = {  # of shape (2, 6), values 0 to 4, with repetitions
    "contiguous": lambda t: t,
    "one row": lambda t: t[0],
    "transposed": lambda t: t.t(),
    "every second": lambda t: t[:, ::2],
    "expanded": lambda t: t[:1].expand(4, 6),
    "none": lambda t: t[:0],
}


@pytest.mark.parametrize("view", IDS.values(), ids=IDS)
def test_tokens_are_summed_in_order_for_any_strides_of_ids(view: Any, device: torch.device) -> None:
    """Equals a loop over the tokens bit by bit, which an unstable sort would change."""
    ids = view(torch.tensor([[4, 1, 4, 0, 1, 4], [1, 1, 4, 4, 0, 4]], device=device))
    grad = torch.randn(*ids.shape, D, generator=torch.Generator().manual_seed(0)).to(device) * 1e3
    seed = torch.tensor([3], device=device)
    got = call("embed_backward", device, grad=grad, ids=ids, seed=seed)
    want = OPERATORS["embed_backward"].reference(grad, ids, seed, ROWS, -1, 1.0, 100, [])
    assert got.shape == (ROWS, D) and got.is_contiguous() and torch.equal(got, want)


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1),
    "channels first": lambda t: t.transpose(1, 2),
    "expanded": lambda t: t[:1].expand(4, S, D),
    "empty": lambda t: t[:0],
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED)
def test_outputs_have_the_strides_of_empty_like(view: Any, device: torch.device) -> None:
    x = view(torch.zeros(B, S, S if view is STRIDED["channels first"] else D, device=device))
    plan = pack_plan(sinpe.convention("fairseq", x.shape[-1])).to(device)
    want = torch.empty_like(x).stride()
    assert call("add", device, x=x, plan=plan, positions=None, padding_mask=None).stride() == want
    assert call("dropout", device, x=x).stride() == want
