"""The bad-input catalogue, classes 1 to 7: positions. All interfaces raise the same message for the same input."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from interfaces import check_error, everywhere, interfaces, message_of, same_bits
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import numpy as sinpe_numpy
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

B, S, D = 2, 5, 8
MAX = 2**63 - 1
GRID = sinpe.convention("mae2d", D)
ALL = "compiled", "eager", "meta", "CUDA", "NumPy", "layer", "embedding", "grid"


def x(device: str, *shape: int) -> Tensor:
    return torch.zeros(shape or (B, S, D), device=device)


def whole(device: str, *values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def layer(device: str, **options: Any) -> sinpe.SinusoidalPositionalEncoding:
    return sinpe.SinusoidalPositionalEncoding(D, 0.0, **options).to(device)


def embedding(device: str, **options: Any) -> sinpe.SinusoidalEmbedding:
    made = sinpe.SinusoidalEmbedding(3, D, dropout=0.0, device=device, **options)
    torch.nn.init.zeros_(made.weight)
    return made


def ids(device: str) -> Tensor:
    return torch.zeros(B, S, dtype=torch.int64, device=device)


@pytest.mark.bad_input(1, *ALL, "timestep")
def test_position_past_any_table_is_computed() -> None:
    first = 10**12
    want = torch.tensor([[exact.float32(plan(sinpe.Encoding(D)), first + r, c) for c in range(D)] for r in range(S)])
    for call in (
        lambda d: sinpe.table(S, D, start=first, device=d),
        lambda d: sinpe.encode(first + torch.arange(S, device=d), D),
        lambda d: sinpe.add(x(d), start=first)[1],
        lambda d: layer(d)(x(d), start=first)[1],
        lambda d: embedding(d)(ids(d), start=first)[1].detach(),
        lambda d: sinpe.TimestepEncoding(D, encoding="paper")(first + torch.arange(S, device=d)),
        lambda d: sinpe.table((S, 1), sinpe.GridEncoding((sinpe.Encoding(D),) * 2), start=(first, 0), device=d)[
            :, 0, :D
        ],
    ):
        assert torch.equal(everywhere(call), want)
    assert np.array_equal(sinpe_numpy.table(S, D, start=first), want.numpy())


@pytest.mark.bad_input(1, "compiled", "eager", "meta", "CUDA", "layer", "embedding")
@pytest.mark.parametrize("training", [False, True])
def test_position_past_max_len_is_rejected(training: bool) -> None:
    """The same IndexError for implicit and explicit positions."""
    limit = "expected (.*0 to 3|at most 4 rows), .*max_len allows, got [45]; raise max_len"
    for made in (
        lambda d, **named: layer(d, max_len=4).train(training)(x(d), **named),
        lambda d, **named: embedding(d, max_len=4).train(training)(ids(d), **named),
    ):
        check_error(IndexError, limit, lambda d, made=made: made(d))
        check_error(
            IndexError, limit, lambda d, made=made: made(d, positions=torch.arange(S, device=d)), with_data=True
        )
        check_error(IndexError, "got 13", lambda d, made=made: made(d, start=whole(d, 0, 9)), with_data=True)


@pytest.mark.bad_input(2, *ALL, "timestep")
def test_negative_position_does_not_index_from_the_end() -> None:
    """sin(-p) = -sin(p), cos(-p) = cos(p); W[-1] would be the last row of a table."""
    ahead, back = (
        everywhere(lambda d, sign=sign: sinpe.encode(sign * torch.arange(1, S, device=d), D)) for sign in (1, -1)
    )
    assert torch.equal(back[:, ::2], -ahead[:, ::2]) and torch.equal(back[:, 1::2], ahead[:, 1::2])
    negative = -torch.arange(1, S)
    assert np.array_equal(sinpe_numpy.encode(negative.numpy(), D), back.numpy())
    pair = torch.stack([negative, negative], -1)
    want = everywhere(lambda d: sinpe.encode(pair.to(d), GRID))
    assert np.array_equal(sinpe_numpy.encode(pair.numpy(), GRID), want.numpy())
    for call in (
        lambda d: layer(d)(x(d, 1, S - 1, D), positions=negative.to(d))[0],
        lambda d: embedding(d)(ids(d)[:, 1:], positions=negative.to(d))[0].detach(),
        lambda d: sinpe.TimestepEncoding(D, encoding="paper")(negative.to(d)),
        lambda d: sinpe.add(x(d, S - 1, D), positions=negative.to(d)),
    ):
        assert torch.equal(everywhere(call), back)


@pytest.mark.bad_input(2, "compiled", "eager", "meta", "CUDA", "layer", "embedding")
def test_negative_position_with_max_len_is_rejected() -> None:
    below = "(start|positions): expected .*0 to 8, .*max_len allows, got -2; pass (a start of )?0 or more"
    for made in (
        lambda d, **named: layer(d, max_len=9)(x(d), **named),
        lambda d, **named: embedding(d, max_len=9)(ids(d), **named),
    ):
        check_error(IndexError, below, lambda d, made=made: made(d, start=-2))
        explicit = lambda d, made=made: made(d, positions=torch.arange(-2, 3, device=d))  # noqa: E731
        check_error(IndexError, below, explicit, with_data=True)


@pytest.mark.bad_input(3, *ALL)
def test_left_padding_starts_below_zero(nan_filled_empty: None) -> None:
    want = torch.tensor([[exact.float32(plan(sinpe.Encoding(D)), p, c) for c in range(D)] for p in range(-3, S - 3)])
    for call in (
        lambda d: sinpe.table(S, D, start=-3, device=d),
        lambda d: sinpe.add(x(d), start=-3)[1],
        lambda d: sinpe.add(x(d), start=whole(d, 0, -3))[1],
        lambda d: layer(d)(x(d), start=-3)[1],
        lambda d: embedding(d)(ids(d), start=whole(d, 7, -3))[1].detach(),
    ):
        assert torch.equal(everywhere(call), want)
    assert np.array_equal(sinpe_numpy.table(S, D, start=-3), want.numpy())
    grid = everywhere(lambda d: sinpe.add(x(d, 1, 3, 4, D), GRID, start=(-3, -1))[0])
    assert np.array_equal(sinpe_numpy.table((3, 4), GRID, start=(-3, -1)), grid.numpy()) and not grid.isnan().any()


@pytest.mark.bad_input(4, *ALL, "timestep")
def test_nan_and_inf_positions_affect_only_their_rows() -> None:
    positions = torch.tensor([1.5, math.nan, -2.0, math.inf, -math.inf])
    good = positions.isfinite()
    rows = everywhere(lambda d: sinpe.encode(positions.to(d), D))
    assert bool(rows[~good].isnan().all()) and bool(rows[good].isfinite().all())
    numpy_rows = sinpe_numpy.encode(positions.numpy(), D)
    assert np.array_equal(numpy_rows, rows.numpy(), equal_nan=True)
    for call in (
        lambda d: sinpe.add(x(d), positions=positions.to(d))[1],
        lambda d: layer(d)(x(d), positions=positions.to(d))[1],
        lambda d: embedding(d)(ids(d), positions=positions.to(d))[1].detach(),
        lambda d: sinpe.TimestepEncoding(D, encoding="paper")(positions.to(d)),
    ):
        same_bits([("encode", rows), ("other", everywhere(call))])
    pair = torch.stack([positions, torch.ones(S)], -1)
    grid = everywhere(lambda d: sinpe.encode(pair.to(d), GRID))
    assert grid[~good].isnan().sum() == int((~good).sum()) * D // 2 and bool(grid[good].isfinite().all())
    assert np.array_equal(sinpe_numpy.encode(pair.numpy(), GRID), grid.numpy(), equal_nan=True)
    zeros = torch.tensor([0.0, -0.0])
    assert everywhere(lambda d: sinpe.encode(zeros.to(d), D)).tolist() == [[0.0, 1.0] * (D // 2)] * 2


@pytest.mark.bad_input(5, *ALL)
@pytest.mark.parametrize("dtype, largest", [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_16_bit_positions_are_rejected(dtype: torch.dtype, largest: int) -> None:
    expected = rf"got {dtype}; {str(dtype)[6:]} cannot hold integers above {largest} exactly, pass int64 positions"
    p = torch.arange(S).to(dtype)
    check_error(
        TypeError,
        expected,
        lambda d: sinpe.add(x(d), positions=p.to(d)),
        lambda d: sinpe.add_(x(d), positions=p.to(d)),
        lambda d: layer(d)(x(d), positions=p.to(d)),
        lambda d: layer(d, max_len=9).eval()(x(d), positions=p.to(d)),
        lambda d: embedding(d)(ids(d), positions=p.to(d)),
        lambda d: sinpe.embed(ids(d), x(d, 3, D), positions=p.to(d)),
        lambda d: sinpe.add(x(d, 1, S, 1, D), GRID, positions=p.to(d).view(S, 1, 1).expand(S, 1, 2)),
    )
    check_error(
        TypeError,
        f"{expected}, or float32 for fractional ones, or allow_16bit=True to take the stored values",
        lambda d: sinpe.encode(p.to(d), D),
        lambda d: sinpe.encode(p.to(d).view(S, 1).expand(S, 2), GRID),
    )
    if dtype == torch.float16:
        message = message_of(TypeError, lambda: sinpe_numpy.encode(p.numpy(), D))
        assert "got float16; float16 cannot hold integers above 2048 exactly, pass int64 positions" in message
    taken = everywhere(lambda d: sinpe.encode(p.to(d), D, allow_16bit=True))
    assert torch.equal(taken, sinpe.encode(torch.arange(S), D))


@pytest.mark.bad_input(5, "compiled", "eager", "meta", "CUDA", "timestep")
def test_16_bit_timesteps_are_used_as_stored() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t = torch.tensor([998.39])
        got = everywhere(lambda d: sinpe.TimestepEncoding(D)(t.bfloat16().to(d)))
    assert torch.equal(got, sinpe.TimestepEncoding(D)(torch.tensor([1000.0])))


@pytest.mark.bad_input(6, *ALL, "timestep")
@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_positions_of_unsupported_dtypes_are_rejected(dtype: torch.dtype) -> None:
    p = torch.ones(S).to(dtype)
    check_error(
        TypeError,
        f"positions: expected an integer dtype or float32/float64, got {dtype}; pass int64 positions",
        lambda d: sinpe.add(x(d), positions=p.to(d)),
        lambda d: sinpe.encode(p.to(d), D),
        lambda d: layer(d)(x(d), positions=p.to(d)),
        lambda d: embedding(d)(ids(d), positions=p.to(d)),
        lambda d: sinpe.add(x(d, 1, S, 1, D), GRID, positions=p.to(d)),
        lambda d: sinpe.encode(p.to(d), GRID),
    )
    check_error(TypeError, f"t: .* got {dtype}; conv", lambda d: sinpe.TimestepEncoding(D)(p.to(d)))
    if dtype != torch.float8_e4m3fn:  # NumPy has none
        assert f"got {p.numpy().dtype}; pass int64" in message_of(TypeError, lambda: sinpe_numpy.encode(p.numpy(), D))


@pytest.mark.bad_input(6, "compiled", "eager", "NumPy", "layer", "embedding", "timestep")
def test_uint64_positions_beyond_int64_are_rejected() -> None:
    p = torch.tensor([1, 2**63], dtype=torch.uint64)
    check_error(
        ValueError,
        "positions: expected values up to 2\\*\\*63 - 1, got larger uint64 ones; pass int64 positions",
        *(
            lambda d: sinpe.add(x("cpu", 2, D), positions=p),
            lambda d: sinpe.encode(p, D),
            lambda d: layer("cpu")(x("cpu", 2, D), positions=p),
            lambda d: sinpe.embed(torch.zeros(2, dtype=torch.long), x("cpu", 3, D), positions=p),
            lambda d: sinpe.encode(p, GRID),
        ),
    )
    assert "within int64, got 9223372036854775808" in message_of(ValueError, lambda: sinpe_numpy.encode(p.numpy(), D))


@pytest.mark.bad_input(7, *ALL)
@pytest.mark.parametrize("start", [MAX, MAX - S + 2])
def test_rows_beyond_int64_are_rejected(start: int) -> None:
    """A wrapping sum would continue at -2**63."""
    beyond = rf"start: expected every position .* within int64, got {start} to {start + S - 1}; lower start or length"
    calls = (
        lambda d: sinpe.table(S, D, start=start, device=d),
        lambda d: sinpe.add(x(d), start=start),
        lambda d: sinpe.add_(x(d), start=start),
        lambda d: layer(d).eval()(x(d), start=start),
        lambda d: layer(d)(x(d), start=start),
        lambda d: embedding(d)(ids(d), start=start),
        lambda d: embedding(d).eval()(ids(d), start=start),
        lambda d: sinpe.embed(ids(d), x(d, 3, D), start=start),
        lambda d: sinpe.table((2, S), GRID, start=(0, start), device=d),
        lambda d: sinpe.add(x(d, 1, 2, S, D), GRID, start=(0, start)),
    )
    message = check_error(ValueError, beyond, *calls)
    for numpy_call in (
        lambda: sinpe_numpy.table(S, D, start=start),
        lambda: sinpe_numpy.table((2, S), GRID, start=(0, start)),
    ):
        assert message_of(ValueError, numpy_call) == message
    tensor = torch.tensor([0, start])
    check_error(
        ValueError,
        "start: expected every position .* within int64",
        lambda d: sinpe.add(x("cpu"), start=tensor),
        lambda d: layer("cpu")(x("cpu"), start=tensor),
        lambda d: embedding("cpu")(ids("cpu"), start=tensor),
    )


@pytest.mark.bad_input(7, *ALL)
@pytest.mark.parametrize("position", [2**24 + 1, 2**31 - 1, 2**31, 2**40, MAX, -MAX - 1])
def test_any_int64_position_is_exact(position: int) -> None:
    want = torch.tensor([exact.float32(plan(sinpe.Encoding(D)), position, c) for c in range(D)])
    p = torch.tensor([position])
    for call in (
        lambda d: sinpe.encode(p.to(d), D)[0],
        lambda d: sinpe.table(1, D, start=position, device=d)[0],
        lambda d: sinpe.add(x(d, 1, D), start=position)[0],
        lambda d: layer(d).eval()(x(d, 1, D), start=position)[0],
        lambda d: embedding(d)(ids(d)[:, :1], positions=p.to(d))[0, 0].detach(),
        lambda d: sinpe.encode(p.to(d).expand(1, 2), sinpe.GridEncoding((sinpe.Encoding(D),) * 2))[0, :D],
    ):
        assert torch.equal(everywhere(call), want)
    assert np.array_equal(sinpe_numpy.encode(p.numpy(), D)[0], want.numpy())


def test_available_interfaces(request: pytest.FixtureRequest) -> None:
    """Fails if the required backend is not among the tested interfaces."""
    names = {interface.name for interface in interfaces()}
    assert {"eager", "meta"} <= names
    required = request.config.getoption("--require-backend")
    assert required not in ("compiled", "cuda", "emulated") or ("cuda" if required == "cuda" else "compiled") in names
