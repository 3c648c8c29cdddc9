"""The reference implementation: accuracy against mpmath, integer fallback, results independent of blocking."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ulp import CLOSEST, compare, same_bits, some_channels

from sinpe_ext import reference
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import Plan, plan
from sinpe_ext.reference import arrays, exact

CORRECTLY_ROUNDED = 0.5001  # ULP; the excess over 0.5 is the effect of a 128-bit frequency
FLOAT64_ULP = 1.0
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

ENCODINGS = {
    "paper": Encoding(64),
    "t2t": Encoding(64, layout="sin_cos", shift=1),
    "cos_sin": Encoding(66, layout="cos_sin"),
    "odd": Encoding(33),
    "odd_halves": Encoding(33, layout="sin_cos"),
    "odd_pad": Encoding(33, layout="cos_sin", odd="pad"),
    "odd_round": Encoding(33, layout="cos_sin", odd="round"),
    "own": Encoding(64, cos_frequency="own"),
    "own_odd_halves": Encoding(31, cos_frequency="own", layout="cos_sin"),
    "own_tiny": Encoding(64, cos_frequency="own", exponent_scale=2, exponent_dim=16),  # example 001a, and smaller
    "flux": Encoding(32, layout="cos_sin", position_scale=1000),
    "nerf": Encoding(20, base=0.5, exponent_scale=10, unit="half_turn"),  # sines of whole turns: exact zeros
    "turns": Encoding(10, frequencies=(0.25, -2.5, 0.0, 2.0**40, 1 / 12), unit="turn"),
    "extreme": Encoding(8, frequencies=(1e-60, -1e-20, 3.0**30, -0.3)),
    "amplitude": Encoding(64, amplitude=-0.125 / 3),
    "amplitude_tie": Encoding(64, amplitude=1 + 2.0**-24),  # halfway between two float32
    "amplitude_small": Encoding(8, amplitude=1e-40),
    "amplitude_large": Encoding(8, amplitude=1e300),
    "dim_1": Encoding(1),
    "dim_1_pad": Encoding(1, odd="pad"),
}
INTEGERS = [
    *range(-5, 70),
    *(sign * (2**k + d) for k in range(7, 63, 3) for d in (-1, 0, 1) for sign in (-1, 1)),
    *(2**24 + 1, 2**31 - 1, 2**40, INT64_MIN, INT64_MIN + 1, INT64_MAX),
]
FLOATS = [
    *(0.0, -0.0, 0.5, -0.1, 1 / 3, 0.9999, 1.5, 499.25, -1234.56789, 1e-3, 1e-30, -1e-200, 1e6 + 0.1, 2.0**31 - 0.5),
    *(2.0**53 - 1, 2.0**62, -(2.0**63), 2.0**64, 1e300),
]


def check_entries(p: Plan, positions: list, values: torch.Tensor) -> None:
    """Each float32 entry is bitwise equal to the integer evaluation."""
    for position, row in zip(positions, values.tolist(), strict=True):
        for channel, got in enumerate(row):
            want = exact.float32(p, position, channel)
            assert struct.pack("f", got) == struct.pack("f", want), (position, channel, got, want)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Many small operations on few cores: waiting for a busy core takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def exact_calls(monkeypatch: pytest.MonkeyPatch) -> list:
    """The entries that were computed in integers."""
    calls = []
    decide = exact.float32

    def counted(*args):
        calls.append(args)
        return decide(*args)

    monkeypatch.setattr(exact, "float32", counted)
    return calls


@pytest.fixture(params=[2**6, 2**16], ids=["small_blocks", "large_blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Work buffers of this many elements, filled with NaN so that an element that is not written shows."""
    plain = arrays.TorchArrays.__init__
    empty = arrays.TorchArrays.empty

    def init(self, xp, device):
        plain(self, xp, device)
        self.block = request.param

    def nan_filled(self, shape, dtype):
        return empty(self, shape, dtype).fill_(math.nan if dtype.is_floating_point else -1)

    monkeypatch.setattr(arrays.TorchArrays, "__init__", init)
    monkeypatch.setattr(arrays.TorchArrays, "empty", nan_filled)
    yield request.param


@pytest.mark.parametrize(
    "dim, start, length", [(512, 0, 4096), (768, 96_000, 2048), (512, 2**31 - 300, 300), (90, -500, 1000)]
)
def test_table_float32_is_correctly_rounded(dim: int, start: int, length: int) -> None:
    rows = reference.table(plan(Encoding(dim)), length, start, torch.float32)
    picked = [start, start + length - 1, *range(start, start + length, length // 23)]
    report = compare(
        rows[[p - start for p in picked]], Encoding(dim), picked, some_channels(len(picked), dim, dim // 16)
    )
    assert report.worst <= CORRECTLY_ROUNDED and report.correct == 1.0, report


@pytest.mark.parametrize("made", ["table", "encode"])
@pytest.mark.parametrize("dim, position, pair", [*CLOSEST, (512, 2**24 + 1, 0)])
def test_closest_approaches_to_zero(made: str, dim: int, position: int, pair: int) -> None:
    p = plan(Encoding(dim))
    if made == "table":
        row = reference.table(p, 40, position - 37, torch.float32)[37:38]
    else:
        row = reference.encode(p, torch.tensor([position]), torch.float32)
    report = compare(row, Encoding(dim), [position], np.array([[2 * pair, 2 * pair + 1]]))
    assert report.worst <= CORRECTLY_ROUNDED, report


@pytest.mark.parametrize("made", ["table", "encode", "encode_float"])
def test_float64_is_within_one_ulp(made: str) -> None:
    p = plan(Encoding(512))
    positions = [0, 1, 5, 7199, 81665, 3803902, 2**24 + 1, 2**31 - 1, -4095, *range(100, 4000, 211)]
    if made == "table":
        rows = torch.cat([reference.table(p, 1, n, torch.float64) for n in positions])
    else:
        wide = torch.float64 if made == "encode_float" else torch.int64
        rows = reference.encode(p, torch.tensor(positions, dtype=wide), torch.float64)
    report = compare(rows, Encoding(512), positions, some_channels(len(positions), 512, 40))
    assert report.worst <= FLOAT64_ULP, report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fractional_positions(dtype: torch.dtype) -> None:
    positions = torch.tensor(
        [0.1, 0.5, 1e-3, 1e-9, 3.25, 499.75, 1234.5678, 1e5 + 1 / 3, -77.7, 2.0**30 + 0.25], dtype=dtype
    )
    for width, limit in ((torch.float32, CORRECTLY_ROUNDED), (torch.float64, FLOAT64_ULP)):
        rows = reference.encode(plan(Encoding(128)), positions, width)
        report = compare(rows, Encoding(128), positions.tolist(), some_channels(len(positions), 128, 43))
        assert report.worst <= limit, report


def test_absolute_bound_at_every_int64_position() -> None:
    positions = [INT64_MIN, INT64_MAX, 2**62 + 12345]
    rows = reference.encode(plan(Encoding(64)), torch.tensor(positions), torch.float32)
    assert compare(rows, Encoding(64), positions).absolute <= 2.0**-24


@pytest.mark.parametrize("partner", [False, True])
@pytest.mark.parametrize("name", ENCODINGS)
def test_encode_equals_integer_evaluation(name: str, partner: bool, block: int) -> None:
    p = plan(ENCODINGS[name])
    p = p.partner() if partner else p
    integers = INTEGERS[:: 7 if p.dim > 20 else 2]
    check_entries(p, integers, reference.encode(p, torch.tensor(integers), torch.float32))
    check_entries(p, FLOATS, reference.encode(p, torch.tensor(FLOATS, dtype=torch.float64), torch.float32))
    narrow = torch.tensor(FLOATS[:-1], dtype=torch.float32)
    check_entries(p, narrow.tolist(), reference.encode(p, narrow, torch.float32))


@pytest.mark.parametrize("start, length", [(-3, 7), (0, 70), (-(2**40), 33), (INT64_MIN, 5), (INT64_MAX - 66, 67)])
@pytest.mark.parametrize("name", ENCODINGS)
def test_table_equals_integer_evaluation(name: str, start: int, length: int, block: int) -> None:
    p = plan(ENCODINGS[name])
    rows = reference.table(p, length, start, torch.float32)
    assert rows.shape == (length, p.dim)
    picked = [*range(0, length, 11), length - 1] if p.dim > 10 else range(length)
    check_entries(p, [start + row for row in picked], rows[list(picked)])


@pytest.mark.parametrize("name", ENCODINGS)
def test_bits_do_not_depend_on_blocks(name: str, block: int) -> None:
    p, start, length = plan(ENCODINGS[name]), -60, 131
    whole = reference.table(p, length, start, torch.float32)
    parts = [reference.table(p, n, start + first, torch.float32) for first, n in ((0, 1), (1, 63), (64, 60), (124, 7))]
    assert same_bits(whole, torch.cat(parts))
    positions = torch.arange(start, start + length)
    assert same_bits(whole, reference.encode(p, positions, torch.float32))
    assert same_bits(whole, reference.encode(p, positions.double(), torch.float32))
    order = torch.randperm(length, generator=torch.Generator().manual_seed(1))
    assert same_bits(whole[order], reference.encode(p, positions[order], torch.float32))


@pytest.mark.parametrize("name", ENCODINGS)
def test_numpy_and_torch_give_the_same_bits(name: str) -> None:
    p = plan(ENCODINGS[name])
    floats = np.array([*FLOATS, np.nan, np.inf])
    for t, n in ((torch.float32, np.float32), (torch.float64, np.float64)):
        assert same_bits(reference.table(p, 100, -9, t), reference.table(p, 100, -9, np.dtype(n), xp=np))
        for positions in (np.array(INTEGERS), floats):
            got = reference.encode(p, torch.from_numpy(positions), t)
            assert same_bits(got.nan_to_num(7), np.nan_to_num(reference.encode(p, positions, np.dtype(n), np), nan=7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_is_float32_rounded_again(dtype: torch.dtype, block: int) -> None:
    for name in ("paper", "odd_pad", "own_odd_halves"):
        p, positions = plan(ENCODINGS[name]), torch.arange(-20, 110)
        want = reference.table(p, 130, -20, torch.float32).to(dtype)
        assert torch.equal(reference.table(p, 130, -20, dtype), want)
        assert torch.equal(reference.encode(p, positions, dtype), want)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for encoding in (Encoding(6), Encoding(1, odd="pad")):
        got = reference.encode(plan(encoding), torch.full(shape, 3, dtype=dtype), torch.float32)
        assert got.shape == (*shape, encoding.dim)
        assert torch.equal(got, reference.table(plan(encoding), 1, 3, torch.float32)[0].expand(got.shape))
    assert reference.table(plan(Encoding(6)), 0, 3, torch.float64).shape == (0, 6)


@pytest.mark.parametrize("width", [torch.float32, torch.float64])
def test_non_finite_position_affects_only_its_row(width: torch.dtype) -> None:
    p = plan(Encoding(7, odd="pad"))
    got = reference.encode(p, torch.tensor([1.0, math.nan, math.inf, -math.inf, 2.0]), width)
    assert got[1:4, :6].isnan().all() and (got[:, 6] == 0).all()
    assert torch.equal(got[[0, 4]], reference.table(p, 2, 1, width))


@pytest.mark.parametrize("width", [torch.float32, torch.float64])
def test_zeros_have_the_sign_of_the_amplitude(width: torch.dtype) -> None:
    for amplitude, negative in ((1.0, False), (-2.0, True)):
        p = plan(Encoding(2, frequencies=(0.25,), unit="turn", amplitude=amplitude))  # 0, 1, 0, -1
        for rows in (reference.table(p, 9, -4, width), reference.encode(p, torch.arange(-4.0, 5.0), width)):
            assert (rows.signbit() == negative)[rows == 0].all() and (rows == 0).sum() == 9


@pytest.mark.parametrize(
    "encoding, limit",
    [
        (Encoding(512), 40),
        (Encoding(512, cos_frequency="own", exponent_scale=2, exponent_dim=256), 40),
        (Encoding(64, frequencies=(1e-60,) * 32), 0),
        (Encoding(64, frequencies=(0.25,) * 32, unit="turn"), 0),
    ],
)
def test_few_entries_need_integers(encoding: Encoding, limit: int, exact_calls: list) -> None:
    """An absolute instead of a relative bound would compute whole columns of small or zero values in integers."""
    reference.table(plan(encoding), 2048, 0, torch.float32)
    reference.encode(plan(encoding), torch.arange(2048) - 1024, torch.float32)
    reference.encode(plan(encoding), torch.arange(2048) / 7, torch.float32)
    assert len(exact_calls) <= limit


def test_repeated_position_is_computed_in_integers_once(exact_calls: list) -> None:
    # sin of a twelfth of a turn is 1/2: with this amplitude halfway between two float32, except for float64's 1/12.
    p = plan(Encoding(2, frequencies=(1 / 12,), unit="turn", amplitude=2 + 2.0**-23))
    positions = torch.tensor([1, 2, 5] * 2000)
    got = reference.encode(p, positions, torch.float32)
    assert 0 < len(exact_calls) <= 4
    check_entries(p, [1, 2, 5], got[:3])
    assert same_bits(got, got[:3].repeat(2000, 1))


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    p = plan(Encoding(96))
    one = reference.table(p, 3000, 7, torch.float32)
    torch.set_num_threads(2)
    assert same_bits(one, reference.table(p, 3000, 7, torch.float32))


def test_rows_for_a_device_without_float64_are_computed_on_the_cpu() -> None:
    assert reference.table(plan(Encoding(8)), 5, 0, torch.float32, "meta").shape == (5, 8)
    with torch.device("meta"):  # the default device must not affect the constants
        assert reference.table(plan(Encoding(8)), 5, 0, torch.float32).device.type == "cpu"
