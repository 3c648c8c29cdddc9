"""Single entries in integer arithmetic: correctly rounded against mpmath, and examples from the literature."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import mpmath
import pytest
from closest import CLOSEST

from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import Plan, plan
from sinpe_ext.reference import exact

PRECISION = 1500  # bits: the smallest phases here are 2**-1100 turns, and 1 - cos of 2**-300 needs 600
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def rational(value: float | Fraction) -> mpmath.mpf:
    fraction = Fraction(value)
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def true_value(p: Plan, position: float, channel: int) -> mpmath.mpf:
    """amplitude * sin(2 pi (position f + q / 4)) for the plan's frequency."""
    entry = p.channel(channel)
    if entry is None:
        return mpmath.mpf(0)
    oscillator, q = entry
    turns = Fraction(position) * (Fraction(p.turns_hi[oscillator]) + Fraction(p.turns_lo[oscillator]))
    if abs(turns) >= Fraction(1, 8):
        turns = Fraction(position) * (p.whole[oscillator] + Fraction(p.fractions[oscillator], 2**128)) % 1
    if 4 * turns == int(4 * turns):
        return rational(p.amplitude) * (0, 1, 0, -1)[int(4 * turns) + q & 3]
    return rational(p.amplitude) * (mpmath.cos if q else mpmath.sin)(2 * mpmath.pi * rational(turns))


def rounded(value: mpmath.mpf, bits: int, smallest_exponent: int) -> float:
    """To nearest even with `bits` significant bits, or to a multiple of 2**smallest_exponent."""
    if value == 0:
        return 0.0
    exponent = max(mpmath.frexp(value)[1] - bits, smallest_exponent)
    nearest = math.ldexp(int(mpmath.nint(mpmath.ldexp(value, -exponent))), exponent)
    return nearest if bits > 24 or abs(nearest) < 2.0**128 else math.copysign(math.inf, nearest)


def assert_entry(p: Plan, position: float, channel: int) -> None:
    value = true_value(p, position, channel)
    got = exact.float32(p, position, channel), exact.float64(p, position, channel)
    assert got == (rounded(value, 24, -149), rounded(value, 53, -1074)), (p.dim, position, channel)


ENCODINGS = {
    "paper": Encoding(64),
    "t2t": Encoding(64, layout="sin_cos", shift=1),
    "cos_sin": Encoding(66, layout="cos_sin"),
    "odd": Encoding(33),
    "odd_halves": Encoding(33, layout="sin_cos"),
    "odd_pad": Encoding(33, layout="cos_sin", odd="pad", shift=1),
    "odd_round": Encoding(33, layout="cos_sin", odd="round"),
    "own": Encoding(64, cos_frequency="own"),
    "own_odd_halves": Encoding(31, cos_frequency="own", layout="cos_sin"),
    "own_tiny": Encoding(64, cos_frequency="own", exponent_scale=2, exponent_dim=16),  # example 001a, and smaller
    "flux": Encoding(32, layout="cos_sin", position_scale=1000),
    "whole_turns": Encoding(8, base=3, exponent_scale=-1, position_scale=1000),
    "nerf": Encoding(20, base=0.5, exponent_scale=10, unit="half_turn"),  # sines of whole turns: exact zeros
    "turns": Encoding(10, frequencies=(0.25, -2.5, 0.0, 2.0**40, 1 / 12), unit="turn"),
    "extreme": Encoding(8, frequencies=(1e-60, -1e-20, 3.0**30, -0.3)),
    "smallest": Encoding(4, frequencies=(1e-60, 1e-300)),
    "amplitude": Encoding(64, amplitude=-0.125 / 3),
    "amplitude_tie": Encoding(64, amplitude=1 + 2.0**-24),  # halfway between two float32
    "amplitude_small": Encoding(8, amplitude=1e-40),
    "amplitude_large": Encoding(8, amplitude=1e300),
    "dim_1": Encoding(1),
    "dim_1_pad": Encoding(1, odd="pad"),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_correctly_rounded(name: str) -> None:
    rng = random.Random(name)
    p = plan(ENCODINGS[name])
    positions = [0, 1, -1, 2, 3, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1, INT64_MAX, INT64_MIN, 10**30]
    positions += [rng.randrange(10**6) for _ in range(20)] + [rng.randrange(INT64_MIN, INT64_MAX) for _ in range(20)]
    positions += [0.5, -0.25, 0.125, 998.3897, 2.0**-1074, 1e-40, 1e-3, 1e15, 2.0**80, 1e300]
    positions += [math.ldexp(rng.uniform(-1, 1), rng.randrange(-60, 63)) for _ in range(30)]
    with mpmath.workprec(PRECISION):
        for position in positions:
            for channel in {rng.randrange(p.dim) for _ in range(4)}:
                assert_entry(p, position, channel)


def test_equals_the_formula() -> None:
    """Not the plan's 128 bits: the frequency's error is far below a float64 ULP, even where float64 alone is off by 3
    to 60 float32 ULP."""
    rng = random.Random(7)
    entries = [*CLOSEST, *((256, rng.randrange(2**31), rng.randrange(128)) for _ in range(100))]
    with mpmath.workprec(PRECISION):
        for dim, position, pair in entries:
            angle = position * mpmath.power(10000, mpmath.mpf(-2 * pair) / dim)
            for channel, value in ((2 * pair, mpmath.sin(angle)), (2 * pair + 1, mpmath.cos(angle))):
                assert exact.float32(plan(Encoding(dim)), position, channel) == rounded(value, 24, -149)
                assert exact.float64(plan(Encoding(dim)), position, channel) == rounded(value, 53, -1074)


SPECIAL = [  # encoding, position, row as float32; signs of zeros count
    (Encoding(4), 0, (0.0, 1.0, 0.0, 1.0)),
    (Encoding(4), -0.0, (0.0, 1.0, 0.0, 1.0)),
    (Encoding(4, amplitude=-2), 0, (-0.0, -2.0, -0.0, -2.0)),
    (Encoding(4, unit="turn", frequencies=(1, 0.25)), 1, (0.0, 1.0, 1.0, 0.0)),
    (Encoding(4, unit="turn", frequencies=(1, 0.25)), 2, (0.0, 1.0, 0.0, -1.0)),
    (Encoding(4, unit="turn", frequencies=(1, 0.25)), -3, (0.0, 1.0, 1.0, 0.0)),
    (Encoding(4, unit="turn", frequencies=(1, 0.25)), -1.5, (0.0, -1.0, -(0.5**0.5), -(0.5**0.5))),
    (Encoding(4, frequencies=(0, 0)), 5, (0.0, 1.0, 0.0, 1.0)),
    (Encoding(4, amplitude=1e300), 1, (math.inf,) * 4),
    (Encoding(4, amplitude=0), 4, (0.0, 0.0, 0.0, 0.0)),  # sin 4 and cos 4 are negative
    (Encoding(2, unit="turn", position_scale=Fraction(1, 24)), 24, (0.0, 1.0)),
    (Encoding(2, unit="turn", position_scale=Fraction(1, 24)), -18, (1.0, 0.0)),
    (Encoding(2, unit="turn", position_scale=Fraction(1, 24)), 2**62 - 16, (0.0, 1.0)),
    (Encoding(2, unit="turn", position_scale=Fraction(1, 24), amplitude=-2), 1.5 * 2**40, (-0.0, -2.0)),
    (Encoding(3, odd="pad"), math.nan, (math.nan, math.nan, 0.0)),
    (Encoding(3, odd="pad"), -math.inf, (math.nan, math.nan, 0.0)),
]


@pytest.mark.parametrize(("encoding", "position", "row"), SPECIAL)
def test_special_values(encoding: Encoding, position: float, row: tuple[float, ...]) -> None:
    values = [exact.float32(plan(encoding), position, channel) for channel in range(encoding.dim)]
    for value, expected in zip(values, row, strict=True):
        assert value == pytest.approx(expected, rel=2**-24, abs=0, nan_ok=True)
        assert math.isnan(expected) or math.copysign(1, value) == math.copysign(1, expected)


def test_float_and_numpy_positions() -> None:
    p, numpy = plan(Encoding(32)), pytest.importorskip("numpy")
    for position in (3, 4096, 2**24 + 1, 2**52 + 1):
        for channel in range(32):
            assert exact.float64(p, position, channel) == exact.float64(p, float(position), channel)
    assert exact.float32(p, numpy.int64(INT64_MAX), 2) == exact.float32(p, INT64_MAX, 2)
    assert exact.float32(p, numpy.float32(0.1), 2) == exact.float32(p, float(numpy.float32(0.1)), 2)
    assert math.isnan(exact.float64(p, numpy.float32("nan"), 2))


EXPONENT_2 = Encoding(6, cos_frequency="own", exponent_scale=2, exponent_dim=2)
EXAMPLES = [  # source, encoding, position, printed row, half a unit of the last printed digit
    ("000", Encoding(6), 1, (0.8415, 0.5403, 0.0464, 0.9989, 0.0022, 1.0000), 5e-5),
    ("000", Encoding(6), 9, (0.4121, -0.9111, 0.4057, 0.9140, 0.0194, 0.9998), 5e-5),
    ("001a", EXPONENT_2, 1, (8.4147e-01, 1.0, 1e-08, 1.0, 1e-16, 1.0), 5e-6),
    ("001b", Encoding(4), 7, (0.6570, 0.7539, 0.0699, 0.9976), 5e-5),
    (
        "003",  # NumPy float16, printed as float64
        Encoding(8, cos_frequency="own"),
        9,
        (0.41211849, -0.9566442, 0.78332691, 0.95977264, 0.08987855, 0.99959503, 0.00899988, 0.99999595),
        5e-9,
    ),
]


@pytest.mark.parametrize(("source", "encoding", "position", "row", "half_digit"), EXAMPLES)
def test_examples(source: str, encoding: Encoding, position: int, row: tuple[float, ...], half_digit: float) -> None:
    values = [exact.float64(plan(encoding), position, channel) for channel in range(encoding.dim)]
    assert values == pytest.approx(row, rel=0, abs=1.001 * half_digit)
