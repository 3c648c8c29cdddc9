"""Results against mpmath in ULP, compiled and eager, at critical positions."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import NamedTuple

import mpmath
import numpy as np
import pytest
import torch
import ulp

import sinpe_ext as sinpe
from sinpe_ext import Encoding

# ULP of the result's dtype. Correct rounding is 0.5; the excess is the effect of a frequency's 128 bits.
FLOAT32 = 0.5001
FLOAT64 = 1.0  # a double-double, rounded once and, with an amplitude, scaled once
NARROW = 0.501  # the float32 result rounded again: 0.5 plus 2**-13 float16 ULP or 2**-16 bfloat16 ULP
LIMITS = {torch.float32: FLOAT32, torch.float64: FLOAT64, torch.bfloat16: NARROW, torch.float16: NARROW}
ABSOLUTE = 2.0**-24  # float32 at any position: half an ULP of 1, times two
FREQUENCY = 2.0**-126  # 2 pi times half a unit of the 128 stored bits, per unit of position

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
SPECIAL = (0, 1, 2**24 + 1, 2**31 - 1, 2**31, 2**32 + 1, 2**40, -1, -(2**31), 3 * 10**9)
# Below 2**16, test_every_entry_of_a_long_table compares every position.
AROUND_POWERS_OF_TWO = [2**k + d for k in range(16, 32) for d in range(-64, 65)]
RANDOM = [int(s * 2**x) for s, x in zip(itertools.cycle((1, -1)), np.random.default_rng(1).uniform(3, 31, 400))]
NEARBY = [*range(-140, 0, 7), *range(140), *range(1000, 1300, 3), *RANDOM[::20]]


class Case(NamedTuple):
    encoding: Encoding
    positions: list[int]
    channels: np.ndarray | None = None  # (positions, n), the channels compared; None: all


def closest(dim: int, position: int, pair: int, lead: int) -> Case:
    """The rows before a position closest to a zero: `lead` rows, so that it is far from the rotation's start."""
    rows = list(range(position - lead, position + 1))
    return Case(Encoding(dim), rows, np.tile([2 * pair, 2 * pair + 1], (len(rows), 1)))


CASES = {
    "around powers of two": Case(
        Encoding(512), AROUND_POWERS_OF_TWO, ulp.some_channels(len(AROUND_POWERS_OF_TWO), 512, 12)
    ),
    "special": Case(Encoding(512), list(SPECIAL)),
    "special, 768": Case(Encoding(768), list(SPECIAL)),
    "random": Case(Encoding(1024), RANDOM, ulp.some_channels(len(RANDOM), 1024, 24)),
    **{
        f"closest {dim} {position} {pair} after {lead}": closest(dim, position, pair, lead)
        for dim, position, pair in ulp.CLOSEST
        for lead in (37, 150)
    },
    "sin_cos": Case(Encoding(32, layout="sin_cos"), NEARBY),
    "cos_sin": Case(Encoding(32, layout="cos_sin"), NEARBY),
    "odd truncate": Case(Encoding(21), NEARBY),
    "odd truncate, halves": Case(Encoding(21, layout="cos_sin"), NEARBY),
    "odd pad": Case(Encoding(21, layout="sin_cos", odd="pad"), NEARBY),
    "odd round": Case(Encoding(21, layout="cos_sin", odd="round"), NEARBY),
    "own": Case(Encoding(30, cos_frequency="own"), NEARBY),
    "own, odd halves": Case(Encoding(19, cos_frequency="own", layout="cos_sin"), NEARBY),
    "document 001a": Case(Encoding(20, cos_frequency="own", exponent_scale=2, exponent_dim=2), NEARBY),
    "t2t": Case(sinpe.convention("t2t", 33), NEARBY),
    "flux": Case(sinpe.convention("flux", 32), NEARBY),
    "unit": Case(sinpe.convention("unit", 48), NEARBY),
    "amplitude": Case(Encoding(32, amplitude=-0.3), NEARBY),
    "large amplitude": Case(Encoding(32, amplitude=1000 / 3), NEARBY),
    "half turns": Case(Encoding(20, base=0.5, exponent_scale=10, unit="half_turn"), NEARBY),  # nerf: exact zeros
    "turns and more": Case(Encoding(8, frequencies=(7.3, -2.5, 1 / 12, 2.0**40 + 0.1), unit="turn"), NEARBY),
    "radians beyond a turn": Case(Encoding(6, frequencies=(1e5 + 0.1, -33.3, 1e-20)), NEARBY),
}


def by_table(case: Case, dtype: torch.dtype) -> torch.Tensor:
    """One table per run of consecutive positions."""
    runs, first = [], 0
    for row in range(1, len(case.positions) + 1):
        if row == len(case.positions) or case.positions[row] != case.positions[row - 1] + 1:
            runs.append(sinpe.table(row - first, case.encoding, start=case.positions[first], dtype=dtype))
            first = row
    return torch.cat(runs)


def by_encode(case: Case, dtype: torch.dtype) -> torch.Tensor:
    return sinpe.encode(torch.tensor(case.positions), case.encoding, dtype=dtype)


def by_encode_of_floats(case: Case, dtype: torch.dtype) -> torch.Tensor:
    return sinpe.encode(torch.tensor(case.positions, dtype=torch.float64), case.encoding, dtype=dtype)


def by_add(case: Case, dtype: torch.dtype) -> torch.Tensor:
    x = torch.zeros(len(case.positions), case.encoding.dim, dtype=dtype)
    return sinpe.add(x, case.encoding, positions=torch.tensor(case.positions))


MADE = {"table": by_table, "encode": by_encode, "encode floats": by_encode_of_floats, "add": by_add}


def check(report: ulp.Report, limit: float) -> None:
    assert report.entries and report.worst <= limit, report


@pytest.mark.sampled("values")
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", CASES)
def test_integer_positions(backend: str, name: str, made: str) -> None:
    case = CASES[name]
    for dtype, limit in LIMITS.items():
        check(ulp.compare(MADE[made](case, dtype), case.encoding, case.positions, case.channels), limit)


def test_every_position_below_65536(backend: str) -> None:
    """All entries of 64 channels by `encode`, which computes each row separately."""
    truth, positions = ulp.PaperTruth(64), torch.arange(2**16)
    got = sinpe.encode(positions, 64).double().numpy()
    channels = np.broadcast_to(np.arange(64), got.shape)
    report = ulp.report(got, truth.rows(0, 2**16), 0.0, "float32", range(2**16), channels)
    check(report, FLOAT32)


def test_every_entry_of_a_long_table() -> None:
    """All of table(65536, 512); its published SHA-256 is checked for each backend in test_parity.py."""
    truth, rows = ulp.PaperTruth(512), 4096
    for start in range(0, 2**16, rows):
        got = sinpe.table(rows, 512, start=start).double().numpy()
        channels = np.broadcast_to(np.arange(512), got.shape)
        report = ulp.report(got, truth.rows(start, rows), 0.0, "float32", range(start, start + rows), channels)
        check(report, FLOAT32)


def test_double_double_reference_equals_mpmath() -> None:
    for dim, start in ((64, 0), (512, 2**16 - 300), (512, 7199 - 150)):
        rows = ulp.PaperTruth(dim).rows(start, 300)
        report = ulp.compare(rows, Encoding(dim), range(start, start + 300), ulp.some_channels(300, dim, 16))
        assert report.worst <= 8, report  # float64 ULP: 2**-50 relative


@pytest.mark.parametrize("made", MADE)
def test_ends_of_int64(backend: str, made: str) -> None:
    """There the 128 bits of the frequency leave an error of 2**-66 turn."""
    positions = [INT64_MIN, INT64_MIN + 1, -(2**62) - 12345, 2**62 + 12345, INT64_MAX - 1, INT64_MAX]
    if made == "encode floats":
        positions = [int(float(p)) for p in positions]
    for encoding in (Encoding(512), sinpe.convention("t2t", 128)):
        case = Case(encoding, positions)
        for dtype in (torch.float32, torch.float64):
            report = ulp.compare(MADE[made](case, dtype), encoding, positions)
            assert report.absolute <= ABSOLUTE, report


def convergents(x: Fraction, largest: int) -> list[int]:
    """Denominators m up to `largest` of the continued fraction of x: m * x is closest to an integer."""
    denominators, before, m = [], 0, 1
    while m <= largest:
        denominators.append(m)
        if not x % 1:
            break
        x = 1 / (x % 1)
        before, m = m, int(x) * m + before
    return denominators


def near_quarter_turns(encoding: Encoding, channel: int, digits: int) -> list[float]:
    """Fractional positions below 2**31 with `digits` significant bits, where a channel is closest to 0 or 1."""
    with mpmath.workprec(ulp.PRECISION):
        frequency = ulp.truth(encoding).frequency(channel)
        quarters = frequency * 2 if encoding.unit != "radian" else frequency / (mpmath.pi / 2)
        mantissa, exponent = mpmath.frexp(abs(quarters))
        exact = Fraction(int(mpmath.ldexp(mantissa, ulp.PRECISION))) * Fraction(2) ** (int(exponent) - ulp.PRECISION)
    positions = []
    for shift in (1, 11, 29, 50):
        largest = min(2**digits, 2 ** (31 + shift)) - 1
        positions += [math.ldexp(m, -shift) for m in convergents(exact / 2**shift, largest)[-4:]]
    return positions


FRACTIONAL = {
    "paper": Encoding(64),
    "t2t": sinpe.convention("t2t", 21),
    "own": Encoding(24, cos_frequency="own"),
    "document 001a": Encoding(12, cos_frequency="own", exponent_scale=2, exponent_dim=2),
    "flux": sinpe.convention("flux", 32),
    "amplitude": Encoding(24, amplitude=-0.3),
    "turns and more": Encoding(8, frequencies=(7.3, -2.5, 1 / 12, 1e6 + 1 / 3), unit="turn"),
    "radians beyond a turn": Encoding(6, frequencies=(1e5 + 0.1, -33.3, 12345.678)),
    "half turns": Encoding(16, base=0.5, exponent_scale=8, unit="half_turn"),
}


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FRACTIONAL)
def test_fractional_positions(backend: str, name: str, wide: torch.dtype) -> None:
    encoding, draw = FRACTIONAL[name], random.Random(name)
    digits = 24 if wide == torch.float32 else 53
    hard = [p for channel in range(encoding.dim) for p in near_quarter_turns(encoding, channel, digits)]
    plain = [0.5, -0.1, 1 / 3, 0.9999, 499.75, 1e-3, 1e-9, -1e-30, 2.0**31 - 0.5]
    plain += [draw.choice((1, -1)) * math.exp(draw.uniform(-7, 21.4)) for _ in range(60)]
    positions = torch.tensor([*plain, *hard], dtype=wide)
    exact = positions.tolist()  # values representable in the dtype
    channels = ulp.some_channels(len(exact), encoding.dim, min(encoding.dim, 8))
    hard_channels = [c for c in range(encoding.dim) for _ in range(len(hard) // encoding.dim)]
    for row, channel in enumerate(hard_channels, len(plain)):  # the channel with that frequency, and its partner
        channels[row, :2] = channel, channel ^ 1 if channel ^ 1 < encoding.dim else channel
    for dtype in LIMITS:
        got = sinpe.encode(positions, encoding, dtype=dtype)
        if dtype != torch.float64:
            report = ulp.compare(got, encoding, exact, channels)
            check(report, LIMITS[dtype])
            continue
        # Fractional positions come closer to a zero than integers: the frequency's 128 bits end before float64's 53.
        high, low = ulp.truth(encoding).rows(exact, channels)
        error = np.abs((np.take_along_axis(got.numpy(), channels, 1) - high) - low)
        room = FREQUENCY * abs(encoding.amplitude) * np.abs(exact)[:, None]
        assert (error <= FLOAT64 * ulp.units(high, low, "float64") + room).all()


def test_fractional_positions_up_to_2_53(backend: str) -> None:
    """Fractions and integral floats up to 2**53, absolute bound."""
    draw = random.Random(5)
    positions = [math.ldexp(draw.uniform(-1, 1), draw.randrange(31, 54)) for _ in range(200)]
    channels = ulp.some_channels(len(positions), 128, 16)
    got = sinpe.encode(torch.tensor(positions, dtype=torch.float64), 128)
    report = ulp.compare(got, Encoding(128), positions, channels)
    assert report.entries and report.absolute <= ABSOLUTE, report
