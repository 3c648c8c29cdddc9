"""Bad arguments of table, encode, add and add_: exception type and message, equal on all backends.

Each case runs with the compiled kernels, in eager PyTorch and on the meta device. Messages have the form `argument:
expected X, got Y; do Z`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import MESSAGE_FORM

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

B, S, D = 2, 5, 8
MAX = 2**63 - 1
EVERYWHERE = ("compiled", "eager", "meta")
WITH_DATA = ("compiled", "eager")  # the check needs data, or the tensor cannot exist on the meta device

Device = str
Call = Callable[[Device], Any]
Case = tuple[Call, type[Exception], str]


def x(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (B, S, D), dtype=dtype, device=device)


def whole(device: Device, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def add(**arguments: Any) -> Call:
    """add(x, ...); an argument that is a function is called with the device."""
    return lambda d: sinpe.add(x(d), **{k: v(d) if callable(v) else v for k, v in arguments.items()})


def add_to(make: Callable[[Device], Any]) -> Call:
    return lambda d: sinpe.add(make(d))


def table(*arguments: Any, **named: Any) -> Call:
    return lambda d: sinpe.table(
        *arguments, **{"device": d, **{k: v(d) if callable(v) else v for k, v in named.items()}}
    )


def encode(make: Callable[[Device], Any], encoding: Any = D, **named: Any) -> Call:
    return lambda d: sinpe.encode(make(d), encoding, **named)


SHAPES = r"expected shape \(5,\) or \(2, 5\), .* got \(4,\) for x of shape \(2, 5, 8\)"
DENSE = "expected a dense strided tensor, got"
FLOATS = "expected torch.float32, float64, bfloat16 or float16, got"

ADD: dict[str, Case] = {
    "x list": (add_to(lambda d: [[1.0]]), TypeError, r"x: expected a torch.Tensor, got list; pass torch.as_tensor"),
    "x array": (add_to(lambda d: np.ones((S, D), np.float32)), TypeError, "x: expected a torch.Tensor, got ndarray"),
    "x None": (add_to(lambda d: None), TypeError, "x: expected a torch.Tensor, got NoneType"),
    "x int32": (add_to(lambda d: x(d, dtype=torch.int32)), TypeError, f"x: {FLOATS} torch.int32; convert it"),
    "x bool": (add_to(lambda d: x(d, dtype=torch.bool)), TypeError, f"x: {FLOATS} torch.bool"),
    "x complex": (add_to(lambda d: x(d, dtype=torch.complex64)), TypeError, f"x: {FLOATS} torch.complex64"),
    "x fp8": (add_to(lambda d: x(d).to(torch.float8_e4m3fn)), TypeError, f"x: {FLOATS} torch.float8_e4m3fn"),
    "x 0-D": (add_to(lambda d: x(d)[0, 0, 0]), ValueError, r"x: expected 2 to 16 dimensions, .* got shape \(\)"),
    "x 1-D": (add_to(lambda d: x(d, 7)), ValueError, r"x: expected 2 to 16 dimensions, .* got shape \(7,\)"),
    "x 17-D": (add_to(lambda d: x(d, *[1] * 17)), ValueError, "x: expected 2 to 16 dimensions"),
    "encoding float": (add(encoding=8.0), TypeError, "encoding: expected an Encoding, a convention's name or an int"),
    "encoding bool": (add(encoding=True), TypeError, "encoding: expected .* got bool"),
    "encoding list": (add(encoding=[8]), TypeError, "encoding: expected .* got list"),
    "encoding array": (add(encoding=np.array([8])), TypeError, "encoding: expected .* got ndarray"),
    "encoding class": (add(encoding=object()), TypeError, "encoding: expected .* got object"),
    "encoding zero": (add(encoding=0), ValueError, "dim: expected an int in 1.."),
    "encoding width": (add(encoding=6), ValueError, r"x: expected 6 channels, .* got 8 in shape \(2, 5, 8\)"),
    "encoding name": (
        add(encoding="papper"),
        ValueError,
        'encoding: expected the name of a convention, got "papper"; pass one',
    ),
    "positions list": (add(positions=[0, 1]), TypeError, "positions: expected a torch.Tensor, got list; pass torch.as"),
    "positions array": (add(positions=np.arange(S)), TypeError, "positions: expected a torch.Tensor, got ndarray"),
    "positions bool": (
        add(positions=lambda d: whole(d, S, dtype=torch.bool)),
        TypeError,
        "positions: expected an integer dtype or float32/float64, got torch.bool; pass int64 positions",
    ),
    "positions complex": (
        add(positions=lambda d: whole(d, S, dtype=torch.complex64)),
        TypeError,
        "positions: .* got torch.complex64",
    ),
    "positions bfloat16": (
        add(positions=lambda d: whole(d, S, dtype=torch.bfloat16)),
        TypeError,
        "positions: expected an integer dtype, float32 or float64, got torch.bfloat16; bfloat16 cannot hold integers",
    ),
    "positions float16": (
        add(positions=lambda d: whole(d, S, dtype=torch.float16)),
        TypeError,
        "got torch.float16; float16 cannot hold integers above 2048",
    ),
    "positions length": (add(positions=lambda d: whole(d, 4)), ValueError, f"positions: {SHAPES}"),
    "positions batch": (add(positions=lambda d: whole(d, 3, S)), ValueError, r"positions: .* got \(3, 5\) for x of"),
    "positions rank": (add(positions=lambda d: whole(d, 1, 1, S)), ValueError, r"positions: .* got \(1, 1, 5\)"),
    "positions 0-D": (add(positions=lambda d: whole(d)), ValueError, r"positions: .* got \(\) for x of shape"),
    "positions, start": (
        add(positions=lambda d: whole(d, S), start=3),
        ValueError,
        "start: expected 0 together with positions, which are absolute, got 3; add it to positions",
    ),
    "positions, starts": (
        add(positions=lambda d: whole(d, S), start=lambda d: whole(d, B)),
        ValueError,
        "start: expected 0 together with positions, which are absolute, got Tensor; add it",
    ),
    "start float": (add(start=1.0), TypeError, "start: expected int, got float; pass the int64 position of the first"),
    "start bool": (add(start=True), TypeError, "start: expected int, got bool"),
    "start str": (add(start="3"), TypeError, "start: expected int, got str"),
    "start None": (add(start=None), TypeError, "start: expected int, got NoneType"),
    "start list": (add(start=[1, 2]), TypeError, "start: expected an int or an integer tensor, got list"),
    "start array": (add(start=np.array([1, 2])), TypeError, "start: expected int, got ndarray"),
    "start 2**63": (add(start=2**63), ValueError, r"start: expected an int in -\d+..\d+, got 9223372036854775808"),
    "start + S": (
        add(start=MAX - S + 2),
        ValueError,
        r"start: expected every position .* within int64, got \d+ to 9223372036854775808; lower start or length",
    ),
    "encoding.start": (
        add(start=-1, encoding=sinpe.Encoding(D, start=-(2**63))),
        ValueError,
        "start: expected every position .* got -9223372036854775809 to",
    ),
    "starts float": (
        add(start=lambda d: whole(d, B, dtype=torch.float32)),
        TypeError,
        "start: expected an int or an integer tensor, got torch.float32; pass int64 starts",
    ),
    "starts bool": (add(start=lambda d: whole(d, dtype=torch.bool)), TypeError, "start: .* got torch.bool"),
    "starts bool t2t": (
        add(start=lambda d: whole(d, dtype=torch.bool), encoding="fairseq"),
        TypeError,
        "start: .* got torch.bool",
    ),
    "starts batch": (
        add(start=lambda d: whole(d, 3)),
        ValueError,
        r"start: expected shape \(\) or \(2,\), one for each sample, got \(3,\) for x of shape \(2, 5, 8\); pass pos",
    ),
    "starts rank": (add(start=lambda d: whole(d, B, 1)), ValueError, r"start: expected shape .* got \(2, 1\)"),
    "scale None": (add(scale=None), TypeError, "scale: expected a float, got NoneType; pass a number"),
    "scale str": (add(scale="2"), TypeError, "scale: expected a float, got str"),
    "scale bool": (add(scale=True), TypeError, "scale: expected a float, got bool"),
    "scale complex": (add(scale=1j), TypeError, "scale: expected a float, got complex"),
    "scale tensor": (add(scale=x), TypeError, r"scale: expected a float, got torch.float32 of shape \(2, 5, 8\)"),
    "scale huge": (add(scale=10**400), ValueError, "scale: expected a number that float64 can hold, got an int"),
    "alpha str": (add(alpha="2"), TypeError, "alpha: expected a float, got str"),
    "alpha array": (add(alpha=np.ones(1)), TypeError, r"alpha: expected a float, got float64 of shape \(1,\)"),
    "alpha int": (add(alpha=lambda d: whole(d)), TypeError, "alpha: expected a float .* got torch.int64; pass a float"),
    "alpha wide": (add(alpha=lambda d: x(d, D)), ValueError, r"alpha: .* of shape \(\) or \(1,\), got shape \(8,\)"),
    "mask list": (add(padding_mask=[True]), TypeError, "padding_mask: expected a torch.Tensor, got list"),
    "mask int": (
        add(padding_mask=lambda d: whole(d, B, S)),
        TypeError,
        "padding_mask: expected bool, True = padding, got torch.int64; pass attention_mask == 0",
    ),
    "mask shape": (add(padding_mask=lambda d: whole(d, 4).bool()), ValueError, f"padding_mask: {SHAPES}"),
    "seq_dim 3": (add(seq_dim=3), IndexError, "seq_dim: expected -3 to 2 for x of 3 dimensions, got 3; pass the index"),
    "seq_dim float": (add(seq_dim=1.0), TypeError, "seq_dim: expected int, got float"),
    "channel_dim": (add(channel_dim=-4), IndexError, "channel_dim: expected -3 to 2 for x of 3 dimensions, got -4"),
    "dims": (add(seq_dim=-1), ValueError, "seq_dim, channel_dim: expected two dimensions of x, got -1 and -1, which"),
    "out list": (add(out=[]), TypeError, "out: expected a torch.Tensor, got list"),
    "out shape": (
        add(out=lambda d: x(d, B, S, 9)),
        ValueError,
        r"out: expected shape \(2, 5, 8\) and dtype torch.float32, those of x, got \(2, 5, 9\) and torch.float32; pass",
    ),
    "out dtype": (add(out=lambda d: x(d, dtype=torch.float64)), ValueError, "out: expected .* and torch.float64"),
    "out expanded": (
        add(out=lambda d: x(d, 1, S, D).expand(B, S, D)),
        RuntimeError,
        "out: expected one memory location .* more than one element of the written-to tensor refers to a single memory",
    ),
    "out grad": (
        add(out=lambda d: x(d).requires_grad_()),
        RuntimeError,
        "out: expected no gradient to be needed, got an argument that requires it; leave out unset",
    ),
    "alpha grad, out": (
        add(out=x, alpha=lambda d: x(d, 1).requires_grad_()),
        RuntimeError,
        "out: expected no gradient to be needed, got an argument that requires it",
    ),
}

TABLE: dict[str, Case] = {
    "length -1": (table(-1, D), ValueError, r"length: expected an int in 0..\d+, got -1; pass the number of rows"),
    "length float": (table(4.0, D), TypeError, "length: expected int, got float"),
    "length bool": (table(True, D), TypeError, "length: expected int, got bool"),
    "length 2**63": (table(2**63, D), ValueError, r"length: expected an int in 0..\d+, got 9223372036854775808"),
    "encoding None": (
        table(4, None),
        TypeError,
        "dim: expected the number of channels with encoding=None, got None; pass it, as in table",
    ),
    "encoding name": (
        table(4, "t2t"),
        TypeError,
        'encoding: expected .* the name "t2t" and no dim .*; pass dim=, or conv',
    ),
    "start float": (table(4, D, start=0.5), TypeError, "start: expected int, got float"),
    "start + length": (table(2, D, start=MAX), ValueError, "start: expected every position .* within int64"),
    "dtype int": (table(4, D, dtype=torch.int32), TypeError, f"dtype: {FLOATS} torch.int32; pass one of these"),
    "dtype str": (table(4, D, dtype="float32"), TypeError, f"dtype: {FLOATS} 'float32'; pass torch.float32$"),
    "out array": (table(4, D, out=np.ones((4, D))), TypeError, "out: expected a torch.Tensor, got ndarray"),
    "out shape": (table(4, D, out=lambda d: x(d, D, 4)), ValueError, r"out: expected shape \(4, 8\), .* got \(8, 4\)"),
    "out int": (table(4, D, out=lambda d: whole(d, 4, D)), TypeError, f"out: {FLOATS} torch.int64"),
    "out expanded": (table(4, D, out=lambda d: x(d, 1, D).expand(4, D)), RuntimeError, "out: expected one memory loc"),
    "out grad": (table(4, D, out=lambda d: x(d, 4, D).requires_grad_()), RuntimeError, "out: .* without gradient"),
}

ENCODE: dict[str, Case] = {
    "positions list": (encode(lambda d: [1, 2]), TypeError, "positions: expected a torch.Tensor, got list"),
    "positions int": (encode(lambda d: 3), TypeError, "positions: expected a torch.Tensor, got int"),
    "positions bool": (encode(lambda d: whole(d, 3).bool()), TypeError, "positions: .* got torch.bool; pass int64"),
    "positions fp8": (encode(lambda d: x(d).to(torch.float8_e5m2)), TypeError, "positions: .* got torch.float8_e5m2"),
    "positions half": (
        encode(lambda d: x(d).half()),
        TypeError,
        "positions: .* pass int64 positions, or float32 for fractional ones, or allow_16bit=True to take",
    ),
    "encoding bool": (encode(lambda d: whole(d, 3), True), TypeError, "encoding: expected .* got bool"),
    "encoding name": (encode(lambda d: whole(d, 3), "paper"), TypeError, "encoding: .* no dim to go with it"),
    "dtype": (encode(lambda d: whole(d, 3), dtype=torch.int8), TypeError, f"dtype: {FLOATS} torch.int8"),
}

# Errors that need data, or tensors that the meta device does not support.
NUMBERS: dict[str, Case] = {
    "x sparse": (add_to(lambda d: torch.eye(4).to_sparse()), TypeError, f"x: {DENSE} layout torch.sparse_coo; convert"),
    "positions sparse": (encode(lambda d: torch.eye(3).to_sparse()), TypeError, f"positions: {DENSE} layout"),
    "x quantized": (
        lambda d: sinpe.add(torch.quantize_per_tensor(x(d), 0.1, 0, torch.quint8)),
        TypeError,
        f"x: {DENSE} torch.quint8; convert",
    ),
    "x nested": (
        lambda d: sinpe.add(torch.nested.nested_tensor([x(d, 2, D), x(d, 3, D)])),
        TypeError,
        f"x: {DENSE} a nested tensor; convert it to a dense one first, or make it with layout=torch.jagged",
    ),
    "x mkldnn": (lambda d: sinpe.add(x(d).to_mkldnn()), TypeError, f"x: {DENSE} layout torch._mkldnn"),
    "starts overflow": (
        add(start=torch.tensor([0, MAX - S + 2])),
        ValueError,
        "start: expected every position .* got 9223372036854775804 to 9223372036854775808",
    ),
    "starts overflow fairseq": (
        add(start=torch.tensor(MAX - S), encoding="fairseq"),
        ValueError,
        "start: expected every position .* within int64",
    ),
    "positions uint64": (
        encode(lambda d: torch.tensor([1, 2**63], dtype=torch.uint64)),
        ValueError,
        "positions: expected values up to 2\\*\\*63 - 1, got larger uint64 ones; pass int64 positions",
    ),
}


def error_message(call: Call, kind: str, error: type[Exception]) -> str:
    device = "meta" if kind == "meta" else "cpu"
    with loader.use_backend("auto" if kind == "meta" else kind), pytest.raises(error) as caught:
        call(device)
    assert type(caught.value) is error
    return str(caught.value)


def available_backends(wanted: tuple[str, ...]) -> list[str]:
    has_kernels = loader.setting() != "eager" and loader.resolve("cpu").backend == "compiled"
    return [kind for kind in wanted if kind != "compiled" or has_kernels]


def check(case: Case, wanted: tuple[str, ...]) -> None:
    call, error, pattern = case
    messages = {kind: error_message(call, kind, error) for kind in available_backends(wanted)}
    for message in messages.values():
        assert re.search(pattern, message, re.DOTALL), message
        assert MESSAGE_FORM.match(message), message
    assert len(set(messages.values())) == 1, messages


@pytest.mark.parametrize("case", ADD.values(), ids=ADD)
def test_add(case: Case) -> None:
    check(case, EVERYWHERE)


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_table(case: Case) -> None:
    check(case, EVERYWHERE)


@pytest.mark.parametrize("case", ENCODE.values(), ids=ENCODE)
def test_encode(case: Case) -> None:
    check(case, EVERYWHERE)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("case", NUMBERS.values(), ids=NUMBERS)
def test_checks_that_need_data(case: Case) -> None:
    check(case, WITH_DATA)
