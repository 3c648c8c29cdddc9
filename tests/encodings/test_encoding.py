"""Encoding and its plan: fields and errors, exact frequencies against mpmath, the packed plan."""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
import random
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
import ulp

import sinpe_ext
from sinpe_ext.encodings import frequency
from sinpe_ext.encodings.columns import columns
from sinpe_ext.encodings.encoding import COS_FREQUENCIES, LAYOUTS, UNITS, Encoding
from sinpe_ext.encodings.plan import ARRAYS, HEADER_WORDS, MAGIC, plan

PAIR_ERROR = mpmath.mpf(2) ** -106  # of turns_hi + turns_lo: two roundings to 53 bits, half a unit each
PAIR_RANGE = mpmath.mpf(2) ** -900  # below it, the low part is subnormal and loses bits


def true_turns(e: Encoding) -> list[tuple[int, int, mpmath.mpf]]:
    """(0 for a sin or 1 for a cos, its number among these, exact frequency in turns) of every channel, in mpmath."""
    number, turns = [0, 0], []
    for kind, f in ulp._formula(e):
        turns.append((kind, number[kind], f / (2 * mpmath.pi if e.unit == "radian" else 2)))
        number[kind] += 1
    return turns


def random_encoding(rng: random.Random, dims: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 33, 64)) -> Encoding:
    while True:
        fields: dict[str, Any] = {
            "base": rng.choice(
                [10000, 2, 100, 10, 1e-4, 1, Fraction(1, 3), rng.uniform(0.01, 5), 10 ** rng.uniform(-6, 6)]
            ),
            "layout": rng.choice(LAYOUTS),
            "odd": rng.choice(["truncate", "pad", "round"]),
            "cos_frequency": rng.choice(COS_FREQUENCIES),
            "exponent_scale": rng.choice([1, 2, -1, 0.5, 0, rng.uniform(-3, 3)]),
            "exponent_dim": rng.choice([None, None, 2, 70, rng.uniform(65, 200)]),
            "unit": rng.choice(UNITS),
            "position_scale": rng.choice([1, 1, 1000, -3.5, 0.1, 1e-60, Decimal("0.1")]),
            "shift": rng.choice([0, 0, 0, 1, 0.5, -1]),
        }
        dim = rng.choice(dims)
        if rng.random() < 0.2:
            number = frequency.count(Encoding(dim, **{k: fields[k] for k in ("layout", "odd", "cos_frequency")}))
            magnitudes = [0, -1, 1e-60, rng.uniform(-9, 9), rng.random() * 10 ** rng.uniform(-200, 12)]
            fields["frequencies"] = [rng.choice(magnitudes) for _ in range(number)]
        try:
            return Encoding(dim, **fields)
        except ValueError:  # a shift too large, or frequencies of 2**62 turns: see ERRORS
            continue


def assert_exact(e: Encoding) -> None:
    p, known, used = plan(e), {}, set()
    for (kind, pair, f), entry in zip(true_turns(e), p.channels(), strict=True):
        if entry is None:
            assert f == 0, e
            continue
        index, quarter = entry
        assert quarter == kind, e
        assert (p.whole[index] << 128) + p.fractions[index] == int(mpmath.nint(f * mpmath.mpf(2) ** 128)), (e, index)
        if abs(f) > PAIR_RANGE:
            both = mpmath.mpf(p.turns_hi[index]) + mpmath.mpf(p.turns_lo[index])
            assert abs(both - f) <= PAIR_ERROR * abs(f), (e, index)
        known[pair, kind] = f
        used.add(index)
    assert used == set(range(p.n_osc))
    if e.cos_frequency == "shared":  # one per pair
        known = {pair: f for (pair, _), f in known.items()}
    for (_, f), w, timescale in zip(sorted(known.items()), e.frequencies_radians(), e.timescales(), strict=True):
        assert w == nearest(2 * mpmath.pi * f), e
        assert timescale == (nearest(1 / (2 * mpmath.pi * f)) if f else math.inf), e


def nearest(value: mpmath.mpf) -> float:
    """Rounds to float64 once, ties to even; removes mpmath's error first (values may be exact ties)."""
    with mpmath.workprec(400):
        return float(+value)


@pytest.mark.parametrize("seed", range(6))
def test_frequencies_are_exact(seed: int) -> None:
    rng = random.Random(seed)
    with mpmath.workprec(900):
        for _ in range(40):
            assert_exact(random_encoding(rng))
        # 3 * 2**(-i / 2) * 2**-100 turns, of which 3 * 2**-129 is a tie of the 128-bit rounding.
        assert_exact(Encoding(128, base=2, exponent_dim=4, unit="turn", position_scale=3 * 2.0**-100))


def test_frequencies_are_exact_at_dim_20000() -> None:
    """Every 997th pair and the last."""
    e = Encoding(20000)
    p = plan(e)
    with mpmath.workprec(500):
        for pair in [*range(0, 10000, 997), 9999]:
            f = mpmath.power(10000, mpmath.mpf(-2 * pair) / 20000) / (2 * mpmath.pi)
            assert p.fractions[pair] == int(mpmath.nint(f * mpmath.mpf(2) ** 128))
            assert abs(mpmath.mpf(p.turns_hi[pair]) + mpmath.mpf(p.turns_lo[pair]) - f) <= PAIR_ERROR * f
            assert e.frequencies_radians()[pair] == nearest(2 * mpmath.pi * f)


TIMESCALES = [  # denominators of common examples
    ("000", Encoding(6), (1.0, 21.5443, 464.1590), 2e-4),  # a float32 pow has an error of 1e-4 in the last one
    ("001a", Encoding(6, cos_frequency="own", exponent_scale=2, exponent_dim=2), (1, 1e4, 1e8, 1e12, 1e16, 1e20), 0),
    ("001b", Encoding(4), (1.0, 100.0), 0),
    ("002", Encoding(4, cos_frequency="own"), (1.0, 10.0, 100.0, 1000.0), 0),
    ("tie", Encoding(48, base=10, cos_frequency="own", exponent_dim=1), tuple(float(10**j) for j in range(48)), 0),
    ("octaves", Encoding(8, base=2, exponent_scale=-1, exponent_dim=2), (1, 0.5, 0.25, 0.125), 0),
    ("one pair", Encoding(2, shift=1), (1.0,), 0),
    ("zero", Encoding(4, frequencies=(0, -2)), (math.inf, -0.5), 0),
]


@pytest.mark.parametrize(("name", "encoding", "expected", "tolerance"), TIMESCALES, ids=[t[0] for t in TIMESCALES])
def test_timescales(name: str, encoding: Encoding, expected: tuple[float, ...], tolerance: float) -> None:
    assert encoding.timescales() == pytest.approx(expected, rel=0, abs=tolerance)
    products = [w * t for w, t in zip(encoding.frequencies_radians(), encoding.timescales(), strict=True) if w]
    assert products == pytest.approx([1.0] * len(products))


LAYOUT_TABLE = [  # dim, layout, odd -> channels as s0 c0 s1 ..., "-" for a zero channel
    (6, "interleaved", "truncate", "s0 c0 s1 c1 s2 c2"),
    (6, "sin_cos", "pad", "s0 s1 s2 c0 c1 c2"),
    (6, "cos_sin", "round", "c0 c1 c2 s0 s1 s2"),
    (5, "interleaved", "truncate", "s0 c0 s1 c1 s2"),
    (5, "sin_cos", "truncate", "s0 s1 s2 c0 c1"),
    (5, "cos_sin", "truncate", "c0 c1 s0 s1 s2"),
    (5, "interleaved", "pad", "s0 c0 s1 c1 -"),
    (5, "sin_cos", "pad", "s0 s1 c0 c1 -"),
    (5, "cos_sin", "pad", "c0 c1 s0 s1 -"),
    (5, "interleaved", "round", "s0 c0 s1 c1 s2"),
    (5, "sin_cos", "round", "s0 s1 s2 c0 c1"),
    (5, "cos_sin", "round", "c0 c1 c2 s0 s1"),
    (1, "interleaved", "truncate", "s0"),
    (1, "cos_sin", "truncate", "s0"),
    (1, "cos_sin", "round", "c0"),
    (1, "sin_cos", "pad", "-"),
]


@pytest.mark.parametrize(("dim", "layout", "odd", "expected"), LAYOUT_TABLE)
def test_layout(dim: int, layout: str, odd: str, expected: str) -> None:
    for cos_frequency in COS_FREQUENCIES:
        check_layout(Encoding(dim, layout=layout, odd=odd, cos_frequency=cos_frequency), expected)


def check_layout(e: Encoding, expected: str) -> None:
    p, labels, count = plan(e), [], [0, 0]
    for entry in p.channels():
        labels.append("-" if entry is None else f"{'sc'[entry[1]]}{count[entry[1]]}")
        count[entry[1] if entry else 0] += 1
    assert " ".join(labels) == expected
    with mpmath.workprec(500):
        assert_exact(e)
        assert p.channel_turns() == tuple(float(f) for _, _, f in true_turns(e))
    flipped = p.partner()
    assert flipped.channel_turns() == p.channel_turns() and flipped.partner().packed == p.packed
    assert [c and (c[0], 1 - c[1]) for c in flipped.channels()] == p.channels()


def test_words() -> None:
    rng = random.Random(100)
    for _ in range(40):
        e = random_encoding(rng).replace(start=rng.randrange(-(2**63), 2**63), amplitude=rng.uniform(-2, 2))
        p = plan(e)
        words, n = p.packed.tolist(), p.n_osc
        unsigned = [word % 2**64 for word in words]
        doubles = struct.unpack(f"{len(words)}d", p.packed.tobytes())
        flags = p.interleaved | p.shared << 1 | p.q0 << 2 | p.q1 << 3
        assert p.packed.typecode == "q" and len(words) == HEADER_WORDS + ARRAYS * n
        assert words[:6] == [MAGIC, len(words), e.dim, p.n0, p.n1, flags] and MAGIC.to_bytes(6, "big") == b"SINPE1"
        assert doubles[6] == e.amplitude and words[7:9] == [n, e.start]
        assert doubles[10] == max(map(abs, p.turns_hi), default=0.0) and not words[9] and not words[15]
        assert p.packed[11:15].tobytes() == hashlib.sha256(p.packed[16:].tobytes()).digest()
        high, low, whole, turns_hi, turns_lo = (slice(16 + k * n, 16 + (k + 1) * n) for k in range(5))
        assert [(a << 64) + b for a, b in zip(unsigned[high], unsigned[low], strict=True)] == list(p.fractions)
        assert tuple(words[whole]) == p.whole
        assert doubles[turns_hi] == p.turns_hi and doubles[turns_lo] == p.turns_lo
        partner = p.partner().packed.tolist()
        assert partner[5] == flags ^ 12 and partner[:5] + partner[6:] == words[:5] + words[6:]


def test_channels_of_a_shard() -> None:
    """`columns`, any range of the channels, gives the bits of the whole."""
    for fields in ({}, {"cos_frequency": "own"}, {"layout": "cos_sin", "odd": "pad"}, {"layout": "sin_cos"}):
        whole = Encoding(11, amplitude=-0.3, start=5, **fields)
        rows = sinpe_ext.table(9, whole)
        for first, count in ((0, 11), (0, 4), (3, 1), (3, 5), (6, 5), (10, 1)):
            part = columns(whole, first, count)
            assert torch.equal(sinpe_ext.table(9, part), rows[:, first : first + count]), (fields, first, count)
            assert (part == whole) == (count == 11) and pickle.loads(pickle.dumps(part)) == part
            assert plan(part).largest == plan(whole).largest


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dim": 0}, ValueError, "dim: expected an int in 1..16777216, got 0"),
    ({"dim": 2**24 + 1}, ValueError, "dim: expected an int in"),
    ({"dim": 8.0}, TypeError, "dim: expected int, got float"),
    ({"dim": True}, TypeError, "dim: expected int, got bool"),
    ({"dim": 7, "odd": "raise"}, ValueError, "dim: expected an even number"),
    ({"base": 0}, ValueError, "base: expected a number above 0"),
    ({"base": math.inf}, ValueError, "base: expected a finite number"),
    ({"base": 10**400}, ValueError, "base: expected a finite number"),
    ({"base": Decimal("1e-400")}, ValueError, "base: expected a finite number that float64 can hold"),
    ({"base": "1e4"}, TypeError, "base: expected a real number, got str"),
    ({"base": True}, TypeError, "base: expected a real number, got bool"),
    ({"base": 1j}, TypeError, "base: expected a real number, got complex"),
    ({"layout": "interleave"}, ValueError, 'layout: expected one of "interleaved", '),
    ({"layout": 1}, TypeError, "layout: expected one of"),
    ({"odd": "crash"}, ValueError, "odd: expected one of"),
    ({"cos_frequency": "mine"}, ValueError, "cos_frequency: expected one of"),
    ({"unit": "radians"}, ValueError, 'unit: expected one of "radian", '),
    ({"angle": "float32"}, ValueError, "angle: expected one of"),
    ({"shift": 5}, ValueError, "shift: expected less than exponent_dim / 2 = 4, got 5"),
    ({"shift": 4}, ValueError, "frequency base ** (-exponent_scale * i / (exponent_dim / 2 - shift))"),
    ({"dim": 2, "shift": 1, "cos_frequency": "own"}, ValueError, "shift: expected less than exponent_dim / 2 = 1"),
    ({"dim": 2, "layout": "sin", "shift": 2}, ValueError, "shift: expected less than exponent_dim / 2 = 2"),
    ({"shift": None}, TypeError, "shift: expected a real number"),
    ({"exponent_dim": 0}, ValueError, "exponent_dim: expected a number above 0"),
    ({"exponent_scale": 1e300}, ValueError, "exponent_scale: expected at most 2**30"),
    ({"exponent_scale": 1e308, "exponent_dim": 1e-300}, ValueError, "exponent_scale: expected at most 2**30"),
    ({"exponent_scale": -100}, ValueError, "frequencies below 2**62 turns"),
    ({"position_scale": 1e20}, ValueError, "frequencies below 2**62 turns"),
    ({"position_scale": math.inf}, ValueError, "position_scale: expected a finite number"),
    ({"amplitude": math.nan}, ValueError, "amplitude: expected a finite number"),
    ({"start": 2**63}, ValueError, "start: expected an int in"),
    ({"start": 0.5}, TypeError, "start: expected int, got float"),
    ({"start": 0.5}, TypeError, "pass sinpe.encode(torch.arange(n) + 0.5, encoding)"),
    ({"start": 2.0**24 + 0.5}, TypeError, "pass sinpe.encode(torch.arange(n).double() + 16777216.5, encoding)"),
    ({"frequencies": (1, 2, 3)}, ValueError, "frequencies: expected 4 (one per pair of dim=8"),
    ({"frequencies": (1,) * 4, "cos_frequency": "own"}, ValueError, "frequencies: expected 8 (one per channel"),
    ({"frequencies": (1, 2, 3, math.inf)}, ValueError, "frequencies[3]: expected a finite number"),
    ({"frequencies": (1, 2, 3, 1e30)}, ValueError, "frequencies: expected frequencies below 2**62"),
    ({"frequencies": "1234"}, TypeError, "frequencies: expected a sequence of numbers"),
    ({"temperature": 1e4}, TypeError, "temperature: expected a field of Encoding, which are dim, base, layout, "),
]


@pytest.mark.parametrize(("fields", "error", "message"), ERRORS, ids=[str(e[0])[:40] for e in ERRORS])
def test_errors(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        Encoding(**{"dim": 8, **fields})
    assert type(caught.value) is error and message in str(caught.value)


# Numbers whose exact expansion would take minutes or gigabytes, and the fields that accept one.
LONG = {
    "Decimal, small": (Decimal("1e-9999999"), "expected a finite number that float64 can hold, got Decimal"),
    "Decimal, negative": (Decimal("-1e-99999999"), "expected a finite number that float64 can hold"),
    "Decimal, no more": (Decimal((0, (1,), -(10**17))), "expected a finite number that float64 can hold"),
    "Decimal, large": (Decimal((0, (1,), 10**17)), "expected a finite number that float64 can hold"),
    "Decimal, long": (Decimal("1." + 10**4 * "0" + "1"), "of at most 2048 bits, got one of 332"),
    "Decimal, sNaN": (Decimal("sNaN"), "expected a finite number that float64 can hold"),
    "Fraction, small": (Fraction(1, 2**40000), "expected a finite number that float64 can hold, got Fraction"),
    "Fraction, long": (Fraction(2**40000 + 1, 2**40000), "of at most 2048 bits, got one of 40001"),
    "int": (1 << 10**6, "expected a finite number that float64 can hold, got an int of 1000001 bits"),
}


@pytest.mark.parametrize("number", LONG)
def test_numbers_with_too_many_digits_are_rejected(number: str) -> None:
    value, message = LONG[number]
    for field in ("base", "shift", "exponent_scale", "exponent_dim", "position_scale", "amplitude"):
        with pytest.raises(ValueError) as caught:
            Encoding(8, **{field: value})
        assert str(caught.value).startswith(f"{field}: ") and message in str(caught.value)
        assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=r"^frequencies\[1\]: "):
        Encoding(4, frequencies=(1.0, value))


def test_long_numbers_within_the_limit() -> None:
    value = Decimal("1." + 600 * "3")
    assert Encoding(512, base=value).frequencies_radians()[1] == pytest.approx((4 / 3) ** (-1 / 256), rel=1e-15)
    assert Encoding(8, shift=Decimal("0e-99999999"), amplitude=Decimal("-0e99999999")) == Encoding(8, amplitude=0)


def test_equality_hash_and_copies() -> None:
    e = Encoding(8, base=Decimal("0.1"), frequencies=[1, 2, 3, 4], start=3)
    assert repr(e) == "Encoding(8, base=Fraction(1, 10), frequencies=(1.0, 2.0, 3.0, 4.0), start=3)"
    assert repr(Encoding(8, base=10000, amplitude=1)) == "Encoding(8)"
    assert "64 in all" in repr(Encoding(128, frequencies=range(64)))
    hash(e)
    for other in (copy.copy(e), copy.deepcopy(e), pickle.loads(pickle.dumps(e)), e.replace(), eval(repr(e))):
        assert other == e and hash(other) == hash(e)
    assert "_hash" not in pickle.loads(pickle.dumps(e)).__dict__  # string hashes differ between processes
    assert e.replace(start=0) != e and e.replace(dim=6, frequencies=None).dim == 6
    with pytest.raises(AttributeError):
        e.dim = 9  # type: ignore[misc]
    with pytest.raises(TypeError, match="strat: expected a field of Encoding"):
        e.replace(strat=1)


def test_fields_from_arrays_and_array_scalars() -> None:
    numpy = pytest.importorskip("numpy")
    e = Encoding(numpy.int64(4), base=numpy.float32(0.1), start=numpy.int8(3), frequencies=numpy.array([1.0, 2.0]))
    assert e == Encoding(4, base=float(numpy.float32(0.1)), start=3, frequencies=(1, 2))
    assert type(e.dim) is int and type(e.base) is float and type(e.frequencies) is tuple
    with pytest.raises(TypeError, match=r"frequencies: expected a sequence of numbers, got float64 of shape \(2, 1\)"):
        Encoding(4, frequencies=numpy.ones((2, 1)))


def test_odd_raise_and_plan_cache() -> None:
    assert Encoding(8, odd="raise").odd == "raise"
    assert Encoding(7, layout="sin", odd="raise").dim == 7  # no second half
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        Encoding(8, 10000.0)  # type: ignore[misc]
    assert plan(Encoding(8)) is plan(Encoding(8, base=10000, shift=0)) is not plan(Encoding(8, start=1))
    assert plan(Encoding(8, angle="float32_exp")).fractions == plan(Encoding(8)).fractions
