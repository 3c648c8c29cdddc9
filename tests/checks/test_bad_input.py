"""Wrong arguments: the error, and a message that names the argument, what is expected, what came, and what to do.

A table for each function. Arguments that several functions have are tested on all of these; each call with the compiled
kernels, in eager PyTorch and on the meta device, with the same message. A rejected call writes and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import MESSAGE_FORM, check_error
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, SinusoidalPositionalEncoding, TimestepEncoding
from sinpe_ext.backend import loader

B, S, D = 2, 5, 8
MAX = 2**63 - 1
GRID, LINE = sinpe.convention("mae2d", 8), sinpe.GridEncoding((sinpe.Encoding(6, layout="sin_cos", shift=1),), dim=8)
X, IDS, WEIGHT = torch.ones(B, S, D), torch.ones(B, S, dtype=torch.int64), torch.ones(7, D)
PIXELS, FLAT = torch.zeros(2, 3, 4, 8), torch.zeros(2, 12, 8)
MASK = torch.zeros(B, S, dtype=torch.bool)
BEFORE = sinpe.Encoding(D, start=-1)
T, V, N, R = TypeError, ValueError, IndexError, RuntimeError
FLOATS = "expected torch.float32, float64, bfloat16 or float16, got"

Call = Callable[[str], Any]
Case = tuple[Call, type[Exception], str]


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def on(device: str, given: Any) -> Any:
    if isinstance(given, dict):
        return {name: on(device, value) for name, value in given.items()}
    return given.to(device).clone() if isinstance(given, Tensor) and given.device.type == "cpu" else given


def of(function: Callable[..., Any], *first: Any, **named: Any) -> Call:
    """A call with its tensors on the device."""
    return lambda device: function(*[on(device, each) for each in first], **on(device, named))


def add(x: Any = X, *more: Any, **named: Any) -> Call:
    return of(sinpe.add, x, *more, **named)


def table(*given: Any, **named: Any) -> Call:
    return lambda device: sinpe.table(*given, **on(device, {"device": None if "out" in named else device, **named}))


def check(call: Call, error: type[Exception], pattern: str, has_data: bool = False) -> None:
    check_error(error, pattern, call, with_data=has_data)


# Arguments of `add`, `add_`, `embed` and, if they have them, of the layers.
COMMON: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"encoding": 8.0}, T, "encoding: expected an Encoding.* got float; pass Encoding"),
    ({"encoding": 0}, V, "dim: expected an int in 1.."),
    ({"encoding": 6}, V, "(x|weight): expected 6 channels, .* got 8 in shape"),
    ({"encoding": "papper"}, V, 'encoding: .* got "papper"; pass one'),
    ({"positions": [0, 1]}, T, "positions: expected a torch.Tensor, got list; pass torch.as"),
    ({"positions": MASK[0]}, T, "positions: expected an integer dtype or .* got torch.bool; pass int64"),
    ({"positions": whole(S, dtype=torch.bfloat16)}, T, "positions: .*; bfloat16 cannot hold integers above 256"),
    ({"positions": whole(S, dtype=torch.float16)}, T, "positions: .*; float16 cannot hold integers above 2048"),
    ({"positions": whole(S).to(torch.float8_e5m2)}, T, "positions: .* got torch.float8_e5m2"),
    ({"positions": whole(4)}, V, r"positions: expected shape \(5,\) or \(2, 5\), .* got \(4,\) for .* \(2, 5"),
    ({"positions": whole(3, S)}, V, r"positions: .* got \(3, 5\) for"),
    ({"positions": whole(S, B)}, V, r"pass positions.T"),
    ({"positions": whole(S), "start": 3}, V, "start: expected 0 together with positions, .* got 3; add it"),
    ({"start": 1.0}, T, "start: expected int, got float"),
    ({"start": True}, T, "start: expected int, got bool"),
    ({"start": [0, 7]}, T, r"start: .* got list; pass an int, or (torch.tensor\(\[0, 7\]\)|an int64 tensor)"),
    ({"start": 2**63}, V, "start: expected an int in .* got 9223372036854775808"),
    ({"start": MAX - S + 2}, V, "start: expected every position .* to 9223372036854775808; lower"),
    ({"start": -1, "encoding": sinpe.Encoding(D, start=-(2**63))}, V, "start: .* got -9223372036854775809 to"),
    ({"start": whole(B, dtype=torch.float32)}, T, "start: expected an int or an integer tensor, got torch.float32"),
    ({"start": whole(3)}, V, r"start: expected shape \(\) or \(2,\), one for each sample, got \(3,\)"),
    ({"start": whole(B, 1)}, V, r"start: expected shape .* got \(2, 1\)"),
    ({"scale": "2"}, T, "scale: expected a float, got str"),
    ({"scale": X}, T, r"scale: expected a float, got torch.float32 of shape \(2, 5, 8\)"),
    ({"scale": 10**400}, V, "scale: expected a number that float64 can hold"),
    ({"alpha": "2"}, T, "alpha: expected a float, got str"),
    ({"alpha": whole()}, T, "alpha: expected a float .* got torch.int64"),
    ({"alpha": torch.ones(D)}, V, r"alpha: .* got shape \(8,\)"),
    ({"padding_mask": [True]}, T, "padding_mask: expected a torch.Tensor, got list"),
    ({"padding_mask": whole(B, S)}, T, "padding_mask: expected bool, .* pass attention_mask == 0"),
    ({"padding_mask": MASK[0, :4]}, V, r"padding_mask: expected shape \(5,\) or .* got \(4,\)"),
    ({"dropout": 1.5}, V, "dropout: expected 0 to 1, got 1.5"),
    ({"dropout": float("nan")}, V, "dropout: expected 0 to 1, got nan"),
    ({"dropout": "0.1"}, T, "dropout: expected a float, got str"),
    ({"seed": 1.0}, T, "seed: expected int, got float; pass an int, an int64 tensor"),
    ({"seed": "x", "dropout": 0.0}, T, "seed: expected int, got str"),
    ({"seed": whole(dtype=torch.int32)}, T, "seed: expected an int64 tensor of one"),
    ({"seed": whole(2)}, T, r"seed: expected .* of shape \(2,\)"),
]
# These need data.
COMMON_DATA: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"start": torch.tensor([0, MAX - S + 2])}, V, "start: .* got 9223372036854775804 to 9223372036854775808"),
    ({"start": torch.tensor([3, -MAX - 1]), "encoding": BEFORE}, V, "start: .* -9223372036854775809"),
    ({"start": torch.tensor(MAX - S), "encoding": "fairseq"}, V, "start: expected every position"),
    ({"positions": torch.tensor([1, 2**63, 0, 0, 0], dtype=torch.uint64)}, V, r"positions: .* up to 2\*\*63 - 1"),
    ({"seed": torch.tensor(1, device="meta")}, R, "seed: expected a tensor with data"),
    ({"positions": X[..., 0].to("meta")}, R, "positions: expected the device of"),
    ({"start": torch.tensor(3, device="meta")}, R, r"start: expected the device of .*; move it with start.to\("),
    ({"padding_mask": MASK.to("meta")}, R, "padding_mask: expected the device of"),
    ({"alpha": torch.ones(1, device="meta")}, R, "alpha: expected the device of"),
]  # fmt: skip


def common_calls(given: dict[str, Any]) -> dict[str, Call]:
    def in_place(device: str) -> None:
        target = on(device, X)
        try:
            sinpe.add_(target, **on(device, {"dropout": 0.5, **given}))
        finally:
            assert target._version == 0 and (target.is_meta or torch.equal(target.cpu(), X))

    calls = {"add": add(**{"dropout": 0.5, **given}), "add_": in_place}
    calls["out"] = add(**{"dropout": 0.5, "out": X, **given})
    calls["embed"] = of(sinpe.embed, IDS, WEIGHT, **{"dropout": 0.5, **given})
    if given.keys() <= {"positions", "start", "padding_mask"}:
        for max_len in (None, 100):
            layer = SinusoidalPositionalEncoding(D, 0.1, max_len).eval()
            calls[f"layer, {max_len}"] = of(layer, X, **given)
        embedding = SinusoidalEmbedding(7, D, _weight=WEIGHT)
        calls["embedding"] = lambda device: embedding.to(device)(on(device, IDS), **on(device, given))
    return calls


@pytest.mark.bad_input(5, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.bad_input(6, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.bad_input(7, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.bad_input(14, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.bad_input(18, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.parametrize("case", [*COMMON, *COMMON_DATA], ids=lambda case: case[2])
def test_arguments_of_add_and_embed(case: Any) -> None:
    given, error, pattern = case
    before = torch.get_rng_state()
    for name, call in common_calls(given).items():
        if name == "layer, 100" and error is V and "start" in given and "positions" not in given:
            continue  # beyond max_len: an IndexError, tests/modules
        check(call, error, pattern, has_data=any(case is each for each in COMMON_DATA))
    assert torch.equal(torch.get_rng_state(), before)


FUNCTIONS: list[Case] = [
    # add
    (add([[1.0]]), T, "x: expected a torch.Tensor, got list; pass torch.as_tensor"),
    (add(np.ones((S, D), np.float32)), T, "x: expected a torch.Tensor, got ndarray"),
    *((add(X.to(d)), T, f"x: {FLOATS} {d}") for d in (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn)),
    (add(X[0, 0, 0]), V, r"x: expected 2 to 16 dimensions, .* got shape \(\)"),
    (add(torch.ones([1] * 17)), V, "x: expected 2 to 16 dimensions"),
    (add(seq_dim=3), N, "seq_dim: expected -3 to 2 for x of 3 dimensions, got 3"),
    (add(seq_dim=1.0), T, "seq_dim: expected int, got float"),
    (add(channel_dim=-4), N, "channel_dim: expected -3 to 2 for x of 3 dimensions, got -4"),
    (add(seq_dim=-1), V, "seq_dim, channel_dim: expected two dimensions of x, got -1 and -1, which"),
    (add(out=[]), T, "out: expected a torch.Tensor, got list"),
    (add(out=torch.ones(B, S, 9)), V, r"out: expected shape \(2, 5, 8\) .* got \(2, 5, 9\)"),
    (add(out=X.double()), V, "out: expected .* and torch.float64"),
    (lambda d: sinpe.add(on(d, X), out=on(d, X).requires_grad_()), R, "out: expected no gradient to be needed"),
    (lambda d: sinpe.add(on(d, X), out=on(d, X), alpha=on(d, X[0, 0, :1]).requires_grad_()), R, "out: .* no grad"),
    (add(extra_tokens=6), V, "extra_tokens: expected at most 5"),
    (add(extra_tokens=-1), V, "extra_tokens: expected an int in 0"),
    (add(grid_shape=(1, 5)), V, "grid_shape: expected None for an encoding of"),
    # add of a grid
    (add(FLAT, GRID), V, r"grid_shape: .* for x of 3 dimensions .*pass grid_shape=\(H, W\)"),
    (add(FLAT, GRID, grid_shape=(3, 5)), V, "grid_shape: expected a sequence of 15"),
    (add(FLAT, GRID, grid_shape=(3, 4), extra_tokens=1), V, "expected a sequence of 13"),
    (add(PIXELS, GRID, grid_shape=(4, 3)), V, r"or the dimensions \(4, 3\) in x"),
    (add(PIXELS, GRID, extra_tokens=1), V, "grid_shape: expected the lengths .* for extra_tokens=1"),
    (add(FLAT, GRID, grid_shape=(12,)), V, "grid_shape: expected 2 lengths, one per axis"),
    (add(FLAT, GRID, grid_shape=12), T, "grid_shape: expected 2 ints, the grid's lengths, got int"),
    (add(FLAT, GRID, grid_shape=(3, -4)), V, "grid_shape: expected an int in 0"),
    (add(FLAT, LINE, grid_shape=12), T, r"the grid's length, got int; pass a tuple such as \(14,\)"),
    (add(PIXELS[..., :7], GRID), V, "x: expected 8 channels, those of the encoding, got 7"),
    (add(PIXELS[..., :6], "mae2d"), V, "dim: expected a multiple of 4 .*channel_dim says where"),
    (add(PIXELS[0], GRID), V, "or which are dimensions of an x without batch"),
    (add(PIXELS, GRID, channel_dim=1), V, "x: expected 8 channels"),
    (add(PIXELS.movedim(-1, 2), GRID, channel_dim=2), V, "channel_dim: expected the channels before or"),
    (add(PIXELS, GRID, seq_dim=1), V, "seq_dim: expected -2, its default"),
    (add(PIXELS, GRID, start=(1, 2, 3)), V, "start: expected an int or 2 of them"),
    (add(PIXELS, GRID, start=MAX - 1), V, "start: expected every position"),
    (add(PIXELS, GRID, start=whole(3)), V, r"start: expected shape \(\) or \(2,\)"),
    (add(PIXELS, GRID, start=whole(3, 2)), V, r"or \(2, 2\), one for each sample"),
    (add(PIXELS, GRID, positions=torch.zeros(3, 4)), V, r"positions: expected shape \(3, 4, 2\) or \(2, 3, 4"),
    (add(PIXELS, GRID, positions=torch.zeros(3, 4, 3)), V, "coordinates in the last dimension"),
    (add(FLAT, GRID, positions=torch.zeros(11, 2)), V, r"positions: expected shape \(12, 2\)"),
    (add(PIXELS, GRID, padding_mask=torch.zeros(4, 3) > 0), V, r"padding_mask: expected shape \(3, 4\)"),
    (add(PIXELS, GRID, out=FLAT), V, r"out: expected shape \(2, 3, 4, 8\)"),
    # table
    (table(-1, D), V, r"length: expected an int in 0..\d+, got -1; pass the number of rows"),
    (table(4.0, D), T, "length: expected int, got float"),
    (table(2**62, D), V, "what memory can address"),
    (table(4), T, "dim: expected the number of channels with encoding=None, got None; pass it, as in table"),
    (table(4, "t2t"), T, 'encoding: expected .* the name "t2t" and no dim .*; pass dim=, or conv'),
    (table(4, 8, dim=8), T, r"dim: expected None, because encoding \(8\) has its own channels"),
    (table(4, "t2t", dim=0), V, "dim: expected an int in 1..16777216, got 0"),
    (table(4, "ddqm", dim=8), V, "expected the name of a convention, got"),
    (table(2, D, start=MAX), V, "start: expected every position .* within int64"),
    (table((4, 4), "mae2d", dim=16, start=0.5), T, r"start: expected int, .* positions.grid\(shape, encoding\) \+ 0.5"),
    (table(4, D, dtype=torch.int32), T, f"dtype: {FLOATS} torch.int32; pass one of these"),
    (table(4, D, dtype="float32"), T, f"dtype: {FLOATS} 'float32'; pass torch.float32$"),
    (table(4, D, out=np.ones((4, D))), T, "out: expected a torch.Tensor, got ndarray"),
    (table(4, D, out=torch.ones(D, 4)), V, r"out: expected shape \(4, 8\), .* got \(8, 4\)"),
    (table(4, D, out=whole(4, D)), T, f"out: {FLOATS} torch.int64"),
    (table(4, D, out=torch.ones(4, D), dtype=torch.float64), R, "dtype: expected torch.float32, that of out"),
    (lambda d: sinpe.table(4, D, out=on(d, WEIGHT[:4]).requires_grad_()), R, "out: .* without gradient"),
    (table(5, GRID), T, "length: expected 2 ints, the grid's lengths, got int"),
    (table(5, LINE), T, r"length: expected 1 int, .*; pass a tuple such as \(14,\)"),
    (table((5, 6), 8), T, "length: expected int, got tuple"),
    (table((2, 3), GRID, out=torch.zeros(6, 8)), V, r"out: expected shape \(2, 3, 8\)"),
    # encode
    (of(sinpe.encode, [1, 2], D), T, "positions: expected a torch.Tensor, got list"),
    (of(sinpe.encode, MASK, D), T, "positions: .* got torch.bool; pass int64"),
    (of(sinpe.encode, X.half(), D), T, "positions: .* or allow_16bit=True to take"),
    (of(sinpe.encode, X, "paper"), T, "encoding: .* no dim to go with it"),
    (of(sinpe.encode, X, D, dtype=torch.int8), T, f"dtype: {FLOATS} torch.int8"),
    (of(sinpe.encode, torch.zeros(3), GRID), V, "positions: expected 2 coordinates"),
    # embed
    (of(sinpe.embed, X[0], WEIGHT), T, "ids: expected an integer tensor, got torch"),
    (of(sinpe.embed, MASK, WEIGHT), T, "ids: expected an integer tensor, got torch.bool"),
    (of(sinpe.embed, IDS[0, 0], WEIGHT), V, "ids: expected 1 to 15 dimensions"),
    (of(sinpe.embed, IDS, WEIGHT[0]), V, r"weight: expected shape \(num_emb"),
    (of(sinpe.embed, IDS, WEIGHT.long()), T, "weight: expected torch.f"),
    (of(sinpe.embed, IDS, nn.Embedding(5, D)), T, "weight: expected a torch.Tensor, got Embedding; pass its .weight"),
    (of(sinpe.embed, IDS, WEIGHT, seq_dim=2), N, "seq_dim: expected -2 to 1 for ids"),
    (of(sinpe.embed, IDS, WEIGHT, padding_idx=7), V, "padding_idx: expected -7 to 6"),
    (of(sinpe.embed, IDS, WEIGHT, padding_idx=1.0), T, "padding_idx: expected int"),
    (of(sinpe.embed, IDS, WEIGHT, sparse=None), T, "sparse: expected"),
    (of(sinpe.embed, IDS, WEIGHT, encode_padding=False), V, "encode_padding: expected a padding_idx"),
    (of(sinpe.embed, IDS[None], WEIGHT, padding_idx=0, encode_padding=False), V, "encode_padding: expected ids"),
    (of(sinpe.embed, IDS, WEIGHT, "mae2d"), T, 'got the grid "mae2d"'),
]  # fmt: skip


@pytest.mark.bad_input(8, "compiled", "eager", "meta", "grid")
@pytest.mark.bad_input(14, "compiled", "eager", "meta", "grid")
@pytest.mark.bad_input(16, "compiled", "eager", "meta")
@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda case: case[2])
def test_functions(case: Case) -> None:
    check(*case)


def layer(*given: Any, **named: Any) -> Call:
    return lambda device: SinusoidalPositionalEncoding(*given, **named)


def embedding(*given: Any, **named: Any) -> Call:
    return lambda device: SinusoidalEmbedding(7, D, *given, **named)


LAYERS: list[Case] = [
    (layer(D, float("nan")), V, "dropout: .* got nan"),
    (layer(D, True), T, "dropout: expected a float, got bool"),
    (layer(D, 0.1, -1), V, "max_len: expected an int in 0.."),
    (layer(D, 0.1, 9.5), T, "max_len: expected int, got float"),
    (layer(0), V, "d_model: expected an int in 1.."),
    (layer(sinpe.Encoding(D)), T, "d_model: expected int, got Encoding; pass the number of channels"),
    (layer(D, alpha=torch.ones(1)), T, "alpha: expected a float, got torch.float32 of shape"),
    (of(SinusoidalPositionalEncoding(D), X.long()), T, f"x: {FLOATS} torch.int64"),
    (of(SinusoidalPositionalEncoding(6), X), V, "x: expected 6 channels, .* got 8"),
    (of(SinusoidalPositionalEncoding(D, 0.0, 4), X), N, "x: expected at most 4 rows, which max_len allows, got 5"),
    (embedding(encoding="mae2d"), T, "one-dimensional encodings"),
    (embedding(dropout=2.0), V, "dropout: expected 0 to 1, got 2.0"),
    (lambda d: SinusoidalEmbedding(0, D), V, "num_embeddings: expected an int in 1"),
    (lambda d: SinusoidalEmbedding(7, D, max_len=3, device=d)(on(d, IDS)), N, "ids: expected at most 3 rows"),
    (lambda d: TimestepEncoding(8, encoding="mae2d"), T, "encoding"),
]
NEED_DATA: list[Case] = [
    (lambda d: sinpe.embed(IDS.to("meta"), WEIGHT), R, "ids: expected the device of weight"),
    (lambda d: sinpe.add(X, out=X.to("meta")), R, "out: expected the device of x, cpu, got meta; move it"),
    (lambda d: sinpe.add(X.to("meta"), positions=whole(S)), R, "positions: expected the device of x, meta, got cpu"),
]  # fmt: skip


@pytest.mark.bad_input(1, "compiled", "eager", "meta", "layer", "embedding")
@pytest.mark.bad_input(8, "compiled", "eager", "layer", "embedding", "timestep")
@pytest.mark.bad_input(16, "compiled", "eager", "layer")
@pytest.mark.parametrize("case", [*LAYERS, *NEED_DATA], ids=lambda case: case[2])
def test_layers_and_checks_that_need_data(case: Case) -> None:
    check(*case, has_data=any(case is each for each in NEED_DATA))


@pytest.mark.bad_input(1, "compiled", "eager", "embedding")
@pytest.mark.parametrize("value", [7, -1, 2**40, -(2**63)])
def test_id_out_of_range(value: int, request: pytest.FixtureRequest) -> None:
    """Nothing is drawn."""
    if request.config.getoption("--require-backend") == "emulated":
        pytest.skip("CUDA kernels do not check ids: such a row is NaN (docs/cuda.md)")
    ids, weight, before = IDS.clone(), WEIGHT.clone().requires_grad_(), torch.get_rng_state()
    ids[1, 2] = value
    pattern = rf"ids: expected 0 to 6, rows of weight, got {value} \(weight has 7 rows\)"
    for given in ({}, {"dropout": 0.5}, {"encoding": sinpe.Encoding(D, angle="float32_exp")}):
        check(lambda device, given=given: sinpe.embed(ids, weight, **given), N, pattern, has_data=True)
    check(lambda device: SinusoidalEmbedding(7, D, dropout=0.5, _weight=WEIGHT)(ids), N, pattern, has_data=True)
    assert torch.equal(torch.get_rng_state(), before)


numpy = sinpe.numpy
NUMPY: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: numpy.table(2, D, start=MAX), V, "start: expected every position .* within int64"),
    (lambda: numpy.table(2, D, dtype="bfloat16"), T, "dtype: .* NumPy has no bfloat16"),
    (lambda: numpy.encode(np.ones(2, np.float16), D), T, "positions: .* above 2048"),
    (lambda: numpy.encode(np.ones(2, bool), D), T, "positions: .* got bool"),
    (lambda: numpy.encode(np.array([2**63], np.uint64), D), V, "positions: .* within int64"),
    (lambda: numpy.table(2**62, D), V, "what memory can address"),
    (lambda: numpy.table((5, 6), GRID, start=(1,)), V, "start: expected an int or 2 of them"),
]


@pytest.mark.bad_input(5, "NumPy")
@pytest.mark.bad_input(6, "NumPy")
@pytest.mark.bad_input(7, "NumPy")
@pytest.mark.bad_input(16, "NumPy")
@pytest.mark.bad_input(17, "NumPy")
@pytest.mark.parametrize("case", NUMPY, ids=lambda case: case[2])
def test_numpy(case: Any, backend: str) -> None:
    call, error, pattern = case
    if backend == "compiled" and loader.core_module()[0] is None:
        pytest.skip("no _core: plain NumPy is tested as eager")
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert type(caught.value) is error and MESSAGE_FORM.match(str(caught.value)), str(caught.value)


def caller(x: Tensor) -> Tensor:
    return sinpe.add(x, None)


# With messages of Python or torch.
OTHERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: sinpe.add(X, offset=3), T, "unexpected keyword argument 'offset'"),
    (lambda: SinusoidalPositionalEncoding(D, p=0.1), T, "unexpected keyword argument 'p'"),
    (lambda: SinusoidalPositionalEncoding(D)(X, 3), T, "takes 2 positional arguments but 3 were given"),
    (lambda: SinusoidalPositionalEncoding(D).pe, AttributeError, "no attribute 'pe'; it stores no table: pass"),
    (lambda: TimestepEncoding(8, scale=9), T, "scale: expected a field of Encoding"),
    (lambda: sinpe.Encoding(16, phase=1), T, "phase: expected a field of Encoding, which are dim, "),
    (lambda: sinpe.table(2**45, 512), R, "allocate|memory"),
    *((lambda m=m: torch.jit.script(m), NotImplementedError, "torch.jit.script cannot read sinpe_ext")
      for m in (SinusoidalPositionalEncoding(D), TimestepEncoding(D), nn.Sequential(SinusoidalEmbedding(5, D)))),
    (lambda: torch.jit.script(sinpe.add), R, "torch.jit.script cannot read .* use torch.compile or torch.export"),
    (lambda: torch.jit.script(caller), R, "torch.jit.script cannot read sinpe_ext"),
]  # fmt: skip


@pytest.mark.bad_input(17, "compiled", "eager", "meta", "layer")
@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:You are using the legacy TorchScript-based")
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case[2])
def test_messages_of_python_and_torch(case: Any, backend: str) -> None:
    call, error, pattern = case
    with pytest.raises(error, match=pattern):
        call()
