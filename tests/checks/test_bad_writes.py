"""Rejected writes leave the target unchanged; errors for mixed devices, of the layer and of sinpe_ext.numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import MESSAGE_FORM

import sinpe_ext as sinpe
from sinpe_ext import numpy as sinpe_numpy
from sinpe_ext.backend import loader

B, S, D = 2, 5, 8
MAX = 2**63 - 1


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (B, S, D), generator=torch.Generator().manual_seed(0))


def leaf() -> torch.Tensor:
    return x().requires_grad_()


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return x()


IN_PLACE: dict[str, tuple[Callable[[], torch.Tensor], dict[str, Any], type[Exception], str]] = {
    "leaf": (leaf, {}, RuntimeError, "x: .* got a leaf Variable that requires grad, .*; call add, or detach"),
    "view of leaf": (lambda: leaf()[:1], {}, RuntimeError, "x: .* got a view of a leaf Variable that requires grad"),
    "expanded": (lambda: x(1, S, D).expand(B, S, D), {}, RuntimeError, "x: .* more than one element of the written-to"),
    "unfolded": (lambda: x(12).unfold(0, D, 1), {}, RuntimeError, "x: .* got strides .1, 1. for shape .5, 8."),
    "inference": (inference, {}, RuntimeError, "x: .* got an inference tensor outside of inference mode"),
    "integers": (lambda: torch.ones(S, D, dtype=torch.int32), {}, TypeError, "x: .* got torch.int32"),
    "channels": (x, {"encoding": 6}, ValueError, "x: expected 6 channels"),
    "start": (x, {"start": MAX}, ValueError, "start: expected every position"),
    "starts": (x, {"start": torch.tensor([0, MAX])}, ValueError, "start: expected every position"),
    "positions": (
        x,
        {"positions": torch.zeros(S, dtype=torch.bfloat16)},
        TypeError,
        "positions: .* got torch.bfloat16",
    ),
    "mask": (x, {"padding_mask": torch.zeros(B, S)}, TypeError, "padding_mask: expected bool"),
    "alpha": (x, {"alpha": torch.ones(D)}, ValueError, "alpha: "),
    "dims": (x, {"seq_dim": 7}, IndexError, "seq_dim: expected -3 to 2"),
}


@pytest.mark.bad_input(12, "compiled", "eager")
@pytest.mark.parametrize("case", IN_PLACE.values(), ids=IN_PLACE)
def test_add_in_place_checks_before_it_writes(case: Any, backend: str) -> None:
    make, arguments, error, pattern = case
    target = make()
    before = target.detach().clone()
    with pytest.raises(error, match=pattern) as caught:
        sinpe.add_(target, **arguments)
    assert MESSAGE_FORM.match(str(caught.value)), str(caught.value)
    assert torch.equal(target, before)
    assert target.is_inference() or target._version == 0


BUFFER = (4 * S, 2 * D)
OVERLAPS: dict[str, tuple[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], bool]] = {  # (x, out), rejected
    "itself": (lambda b: (b, b), False),
    "same elements": (lambda b: (b[:S], b[:S]), False),
    "next rows": (lambda b: (b[:S], b[S : 2 * S]), False),
    "other half of each row": (lambda b: (b[:, :D], b[:, D:]), False),
    "odd columns": (lambda b: (b[:, ::2], b[:, 1::2]), False),
    "odd rows": (lambda b: (b[::2], b[1::2]), False),
    "shifted by one row": (lambda b: (b[:S], b[1 : S + 1]), True),
    "shifted by one column": (lambda b: (b[:, :D], b[:, 1 : D + 1]), True),
    "last element": (
        lambda b: (b.view(-1)[: S * D].view(S, D), b.view(-1)[S * D - 1 : 2 * S * D - 1].view(S, D)),
        True,
    ),
    "backwards": (lambda b: (b[S : 2 * S], b[S - 1 : 2 * S - 1]), True),
    "transposed": (lambda b: (b[:D, :D], b[:D, :D].t()), True),
    "in front": (lambda b: (b[S:], b[:-S]), True),
}


@pytest.mark.bad_input(12, "compiled", "eager")
@pytest.mark.parametrize("case", OVERLAPS.values(), ids=OVERLAPS)
def test_out_may_be_x_or_not_overlap_it(case: Any, backend: str) -> None:
    views, refused = case
    buffer = x(*BUFFER)
    source, out = views(buffer)
    before, want = buffer.clone(), sinpe.add(source.clone())
    if refused:
        with pytest.raises(RuntimeError, match="out: .* range of memory overlaps with that of x; clone") as caught:
            sinpe.add(source, out=out)
        assert MESSAGE_FORM.match(str(caught.value)) and torch.equal(buffer, before)
    else:
        assert sinpe.add(source, out=out) is out and torch.equal(out, want)


@pytest.mark.parametrize("case", ["positions", "start", "padding_mask", "alpha", "out"])
@pytest.mark.parametrize("x_on, other_on", [("cpu", "meta"), ("meta", "cpu")])
def test_mixed_devices(case: str, x_on: str, other_on: str, backend: str) -> None:
    other = {
        "positions": torch.arange(S),
        "start": torch.tensor(3),
        "padding_mask": torch.zeros(S, dtype=torch.bool),
        "alpha": torch.ones(1),
        "out": x(),
    }[case]
    message = f"{case}: expected the device of x, {x_on}, got {other_on}; move it with {case}.to(x.device)"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        sinpe.add(x().to(x_on), **{case: other.to(other_on)})


@pytest.mark.bad_input(17, "compiled", "eager")
@pytest.mark.parametrize("length", [2**62, 2**45])
def test_impossible_sizes(length: int, backend: str) -> None:
    """More bytes than int64 holds, or an allocation failure; later calls still work."""
    error, message = (ValueError, "what memory can address") if length > 2**60 else (RuntimeError, "allocate|memory")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        with pytest.raises(error, match=message):
            sinpe.table(length, 512, device="cpu", dtype=dtype)
    assert torch.equal(sinpe.table(3, 4)[0], torch.tensor([0.0, 1.0, 0.0, 1.0]))


LAYER: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dropout 5000": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 5000),
        ValueError,
        "dropout: expected 0 to 1, got 5000; pass a probability; if this is max_len, that is the third argument, pass",
    ),
    "dropout -0.1": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, -0.1),
        ValueError,
        "dropout: .* got -0.1; pass a pro",
    ),
    "dropout nan": (lambda: sinpe.SinusoidalPositionalEncoding(D, float("nan")), ValueError, "dropout: .* got nan"),
    "dropout str": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, "0.1"),
        TypeError,
        "dropout: expected a float, got str",
    ),
    "dropout bool": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, True),
        TypeError,
        "dropout: expected a float, got bo",
    ),
    "max_len -1": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1, -1),
        ValueError,
        "max_len: expected an int in 0..",
    ),
    "max_len float": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, 0.1, 9.5),
        TypeError,
        "max_len: expected int, got fl",
    ),
    "d_model 0": (lambda: sinpe.SinusoidalPositionalEncoding(0), ValueError, "d_model: expected an int in 1.."),
    "d_model str": (lambda: sinpe.SinusoidalPositionalEncoding("8"), TypeError, "d_model: expected int, got str"),
    "d_model encoding": (
        lambda: sinpe.SinusoidalPositionalEncoding(sinpe.Encoding(D)),
        TypeError,
        "d_model: expected int, got Encoding; pass the number of channels",
    ),
    "encoding dim": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, encoding=sinpe.Encoding(6)),
        ValueError,
        "encoding: expected dim 8, that of d_model, got 6; make them agree",
    ),
    "encoding type": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, encoding=1.5),
        TypeError,
        "encoding: expected an Enco",
    ),
    "alpha tensor": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, alpha=torch.ones(1)),
        TypeError,
        "alpha: expected a float, got torch.float32 of shape .1,.; pass a number",
    ),
    "table": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, persistent_table=True),
        ValueError,
        "persistent_table: expected max_len with it, the table's length, got None; pass max_len",
    ),
}


@pytest.mark.parametrize("case", LAYER.values(), ids=LAYER)
def test_layer_arguments(case: Any) -> None:
    make, error, pattern = case
    with pytest.raises(error, match=pattern) as caught:
        make()
    assert type(caught.value) is error and MESSAGE_FORM.match(str(caught.value))


INPUTS: dict[str, tuple[Any, dict[str, Any]]] = {  # cases in which the layer's fast path must use the general checks
    "list": ([[1.0]], {}),
    "array": (np.ones((S, D), np.float32), {}),
    "integers": (torch.ones(S, D, dtype=torch.int64), {}),
    "complex": (torch.ones(S, D, dtype=torch.complex64), {}),
    "fp8": (torch.ones(S, D).to(torch.float8_e4m3fn), {}),
    "sparse": (torch.ones(S, D).to_sparse(), {}),
    "mkldnn": (torch.ones(S, D).to_mkldnn(), {}),
    "1-D": (torch.ones(D), {}),
    "17-D": (torch.ones(*[1] * 16, D), {}),
    "channels": (torch.ones(S, 6), {}),
    "start": (torch.ones(S, D), {"start": MAX}),
    "start beyond int64": (torch.ones(S, D), {"start": 2**70}),
    "start bool": (torch.ones(S, D), {"start": True}),
    "start float": (torch.ones(S, D), {"start": 1.5}),
    "mask": (torch.ones(S, D), {"padding_mask": torch.ones(S)}),
}


@pytest.mark.parametrize("case", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("max_len", [None, 100])
def test_layer_raises_the_errors_of_add(case: Any, max_len: int | None, backend: str) -> None:
    given, arguments = case
    layer = sinpe.SinusoidalPositionalEncoding(D, 0.1, max_len).eval()
    with pytest.raises(Exception) as expected:
        sinpe.add(given, D, **arguments)
    with pytest.raises(type(expected.value)) as caught:
        layer(given, **arguments)
    assert str(caught.value) == str(expected.value)


# Arguments of the rows that share memory with the written tensor, float32 of shape (4, S, D).
ROW_ARGUMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "positions": lambda b: b.view(-1)[:S],
    "start": lambda b: b.view(-1).view(torch.int64)[:4],
    "padding_mask": lambda b: b.view(-1).view(torch.bool)[5 : 5 + S].expand(1, S),
    "alpha": lambda b: b.view(-1)[S * D],
    "seed": lambda b: b.view(-1).view(torch.int64)[-1:],
}


@pytest.mark.bad_input(12, "compiled", "eager", "grid")
@pytest.mark.parametrize("name", ROW_ARGUMENTS)
def test_row_arguments_overlapping_the_output_are_rejected(name: str, backend: str) -> None:
    """Otherwise a row would be computed from values that another row has overwritten."""
    buffer = torch.zeros(4, S, D)
    argument = ROW_ARGUMENTS[name](buffer)
    arguments: dict[str, Any] = {name: argument, "dropout": 0.5 if name == "seed" else 0.0}
    calls = {
        "add_": lambda: sinpe.add_(buffer, **arguments),
        "out": lambda: sinpe.add(torch.ones(4, S, D), out=buffer, **arguments),
    }
    if name in ("padding_mask", "alpha", "seed"):
        grid = buffer.view(4, 1, S, D)  # one grid row
        calls["grid"] = lambda: sinpe.add_(grid, "mae2d", **arguments)
    for where, call in calls.items():
        with pytest.raises(RuntimeError, match=f"^{name}: expected memory apart from .* clone") as caught:
            call()
        assert MESSAGE_FORM.match(str(caught.value)) and not buffer.any(), where
    arguments[name] = argument.clone()
    for call in calls.values():
        call()  # a copy in separate memory is accepted


NUMPY: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "length": (lambda: sinpe_numpy.table(-1, D), ValueError, "length: expected an int in 0.."),
    "start": (lambda: sinpe_numpy.table(2, D, start=MAX), ValueError, "start: expected every position .* within int64"),
    "start float": (lambda: sinpe_numpy.table(2, D, start=1.0), TypeError, "start: expected int, got float"),
    "encoding": (lambda: sinpe_numpy.table(2, 1.5), TypeError, "encoding: expected an Encoding"),
    "name": (lambda: sinpe_numpy.table(2, "t2t"), TypeError, 'the name "t2t" and no dim'),
    "dtype": (lambda: sinpe_numpy.table(2, D, dtype="bfloat16"), TypeError, "dtype: .* NumPy has no bfloat16"),
    "float16": (lambda: sinpe_numpy.encode(np.ones(2, np.float16), D), TypeError, "positions: .* above 2048"),
    "bool": (lambda: sinpe_numpy.encode(np.ones(2, bool), D), TypeError, "positions: .* got bool"),
    "complex": (lambda: sinpe_numpy.encode(np.ones(2, complex), D), TypeError, "positions: .* got complex128"),
    "text": (lambda: sinpe_numpy.encode(["a"], D), TypeError, "positions: .* got <U1"),
    "uint64": (lambda: sinpe_numpy.encode(np.array([2**63], np.uint64), D), ValueError, "positions: .* within int64"),
    "out shares": (
        lambda: sinpe_numpy.table(3, D, out=np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (3, D), (4, 4))),
        ValueError,
        "out: expected one memory location for each element, got strides .4, 4.",
    ),
    "out": (lambda: sinpe_numpy.table(2, D, out=np.ones((3, D), np.float32)), ValueError, "out: expected shape .2, 8."),
}


@pytest.mark.bad_input(12, "NumPy")
def test_numpy_out_of_any_layout_without_overlap() -> None:
    want, memory = sinpe_numpy.table(5, D), np.zeros((9, 3 * D), np.float32)
    for out in (memory[5:0:-1, ::2][:, :D], memory[::2, D : 2 * D], memory.T[:5, :D], memory[4:9, ::-1][:, :D]):
        assert np.array_equal(sinpe_numpy.table(5, D, out=out), want)


@pytest.mark.parametrize("case", NUMPY.values(), ids=NUMPY)
def test_numpy(case: Any, backend: str) -> None:
    call, error, pattern = case
    if backend == "compiled" and loader.core_module()[0] is None:
        pytest.skip("no _core: plain NumPy is tested as eager")
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert type(caught.value) is error and MESSAGE_FORM.match(str(caught.value)), str(caught.value)
