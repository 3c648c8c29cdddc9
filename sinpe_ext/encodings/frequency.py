"""Exact frequencies of an `Encoding` as fixed-point integers, with the standard library only.

The frequencies are a geometric sequence: each is the previous one times a ratio. The integers are wide enough that the
smallest frequency has `GUARD` bits. Results are pairs of float64, or numbers with 62 integer and 128 fractional bits. A
float `pow` would be wrong in the last digits, and the phase multiplies that error by the position.
"""

from __future__ import annotations

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .tracing import constant_in_graph

if TYPE_CHECKING:
    from .encoding import Encoding

FRACTION_BITS = 128
MAX_TURNS_LOG2 = 62  # whole turns must fit into int64
GUARD = 384  # bits of the smallest frequency: 192 for the result, 26 of rounding errors, the others are margin
TINY = 1200  # frequencies below 2^-1200 are 0 in float64, so their bits are not needed
MAX_STEP = 2**30  # exponent of base from one frequency to the next; above it, only base 1 stays within float64
_SNAP_BITS = 200  # see _snap
_SNAP_MARGIN = 64


class Shape(NamedTuple):
    """The numbers of sin and cos channels of an encoding, and the dim in its exponent."""

    sin: int
    cos: int
    exponent_dim: Fraction


class Frequencies(NamedTuple):
    """Frequencies as fixed-point integers, values[k] / 2**bits, in the order of `indices`."""

    bits: int
    values: list[int]


def shape(encoding: Encoding) -> Shape:
    """The `Shape` of an encoding, with `layout`, `odd` and `exponent_dim` taken into account."""
    dim = encoding.dim
    sin, cos, default_dim = (dim + 1) // 2, dim // 2, dim
    if encoding.layout in ("sin", "cos"):
        sin, cos, default_dim = (dim, 0, 2 * dim) if encoding.layout == "sin" else (0, dim, 2 * dim)
    elif dim % 2 and encoding.odd == "pad":
        sin, default_dim = dim // 2, dim - 1
    elif dim % 2 and encoding.odd == "round":
        default_dim = dim + 1
        if encoding.layout == "cos_sin":  # the channel that is cut off is the last one, here a sin
            sin, cos = cos, sin
    exponent_dim = Fraction(default_dim if encoding.exponent_dim is None else encoding.exponent_dim)
    return Shape(sin, cos, exponent_dim)


def count(encoding: Encoding) -> int:
    """The number of frequencies of an encoding."""
    sin, cos, _ = shape(encoding)
    return sin + cos if encoding.cos_frequency == "own" else max(sin, cos)


def indices(encoding: Encoding) -> list[int]:
    """Index of each frequency: i for pair i; for cos_frequency="own" 2 i for its sin and 2 i + 1 for its cos."""
    sin, cos, _ = shape(encoding)
    if encoding.cos_frequency == "shared":
        return list(range(max(sin, cos)))
    return [2 * pair + cosine for pair in range(max(sin, cos)) for cosine in (0, 1) if pair < (cos if cosine else sin)]


def last_index(encoding: Encoding) -> int:
    """The largest of `indices`, -1 if there are none."""
    sin, cos, _ = shape(encoding)
    if encoding.cos_frequency == "shared":
        return max(sin, cos) - 1
    return max(2 * sin - 2, 2 * cos - 1) if sin or cos else -1


def check(encoding: Encoding) -> None:
    """Raises ValueError for an invalid combination of fields."""
    number = count(encoding)
    if encoding.frequencies is not None:
        if len(encoding.frequencies) != number:
            per = "channel" if encoding.cos_frequency == "own" else "pair"
            raise ValueError(
                f'frequencies: expected {number} (one per {per} of dim={encoding.dim}, odd="{encoding.odd}"), '
                f"got {len(encoding.frequencies)}; pass {number} of them or change dim"
            )
    elif number > 1 and 2 * Fraction(encoding.shift) >= shape(encoding).exponent_dim:
        raise ValueError(
            f"shift: expected less than exponent_dim / 2 = {float(shape(encoding).exponent_dim) / 2:g}, got "
            f"{float(encoding.shift):g}, where pair i has the frequency base ** (-exponent_scale * i / "
            "(exponent_dim / 2 - shift)); lower shift or raise exponent_dim"
        )
    elif number > 1 and abs(_step(encoding)) > MAX_STEP:
        raise ValueError(
            "exponent_scale: expected at most 2**30 as the exponent of base from one frequency to the next, got "
            f"2**{_log2(_step(encoding)):.1f}; lower exponent_scale or raise exponent_dim"
        )
    largest = _extremes_log2(encoding)[1]
    if largest >= MAX_TURNS_LOG2:
        given = encoding.frequencies is not None
        name = "frequencies" if given else "dim, position_scale, base, exponent_scale"
        raise ValueError(
            f"{name}: expected frequencies below 2**{MAX_TURNS_LOG2} turns per position, got 2**{largest:.1f}; "
            + ("lower the largest" if given or encoding.base >= 1 else "pass a smaller dim or position_scale")
        )


def _unit(encoding: Encoding) -> Fraction:
    """Turns per unit of frequency, without the factor 1/pi of "radian"."""
    return Fraction(1) if encoding.unit == "turn" else Fraction(1, 2)


def _step(encoding: Encoding) -> Fraction:
    """The exponent of base from one index of the sequence to the next."""
    half = shape(encoding).exponent_dim / 2 - Fraction(encoding.shift)
    if not half:  # a single frequency: exponent 0, not 0/0
        return Fraction(0)
    step = -Fraction(encoding.exponent_scale) / half
    return step / 2 if encoding.cos_frequency == "own" else step


def _log2(value: Fraction) -> float:
    """log2(abs(value)) to float64 accuracy, also for a Fraction beyond the range of float64; -inf for 0."""
    return math.log2(abs(value.numerator)) - math.log2(value.denominator) if value else -math.inf


def _extremes_log2(encoding: Encoding) -> tuple[float, float]:
    """Base-2 logarithms of the smallest non-zero and of the largest frequency in turns, to float64 accuracy."""
    factor = _log2(Fraction(encoding.position_scale) * _unit(encoding))
    factor -= math.log2(math.pi) if encoding.unit == "radian" else 0.0
    if encoding.frequencies is not None:
        logs = [math.log2(abs(w)) for w in encoding.frequencies if w] or [0.0]
        return min(logs) + factor, max(logs) + factor
    last = last_index(encoding)
    end = factor + (last * float(_step(encoding)) * _log2(Fraction(encoding.base)) if last > 0 else 0.0)
    return min(factor, end), max(factor, end)


def pi_bits(bits: int) -> int:
    """floor(pi * 2**bits)."""
    kept = -(-bits // 1024) * 1024  # rounded up to a few distinct widths, so that the cached series is reused
    return _machin(kept) >> kept - bits


@lru_cache(maxsize=16)
def _machin(bits: int) -> int:
    """floor(pi * 2**bits) = 16 atan(1/5) - 4 atan(1/239), summed with 64 guard bits."""

    def arctan_inverse(x: int) -> int:
        power = total = (1 << bits + 64) // x
        sign, odd = -1, 3
        while power:
            power //= x * x
            total += sign * (power // odd)
            sign, odd = -sign, odd + 2
        return total

    return (16 * arctan_inverse(5) - 4 * arctan_inverse(239)) >> 64


def turns(encoding: Encoding) -> Frequencies:
    """Frequencies in turns per position, with an error below 2**-(bits - 26)."""
    return _frequencies(encoding, _unit(encoding), -1 if encoding.unit == "radian" else 0)


def angular(encoding: Encoding) -> Frequencies:
    """Frequencies in radians per position, with the accuracy of `turns`."""
    return _frequencies(encoding, 2 * _unit(encoding), 0 if encoding.unit == "radian" else 1)


def _frequencies(encoding: Encoding, factor: Fraction, pi_power: int) -> Frequencies:
    """factor * pi**pi_power * position_scale * base**(step * index) for every index of `indices`."""
    if not count(encoding):
        return Frequencies(GUARD, [])
    factor *= Fraction(encoding.position_scale)
    smallest = _extremes_log2(encoding)[0]
    bits = GUARD + 8 + math.ceil(min(TINY, max(0.0, -smallest)))
    if encoding.frequencies is not None:
        values = [_fixed(factor * Fraction(w), pi_power, bits) for w in encoding.frequencies]
        return Frequencies(bits, values)
    value, last = _fixed(factor, pi_power, bits), last_index(encoding)
    ratio = _power(Fraction(encoding.base), _step(encoding), bits) if last else 0
    walk = [value]
    for _ in range(last):
        value = value * ratio >> bits
        walk.append(value)
    if pi_power == 0:
        walk = [_snap(value) for value in walk]
    wanted = indices(encoding)  # for cos_frequency="own" one index can be missing, that of a sin that is cut off
    return Frequencies(bits, walk if len(walk) == len(wanted) else [walk[index] for index in wanted])


def _fixed(value: Fraction, pi_power: int, bits: int) -> int:
    """round(value * pi**pi_power * 2**bits)."""
    if pi_power:
        wide = bits + 64 + max(0, math.ceil(_log2(value))) if value else bits
        pi = Fraction(pi_bits(wide), 1 << wide)
        value = value * pi if pi_power > 0 else value / pi
    return round(value * (1 << bits))


@lru_cache(maxsize=64)
def _power(base: Fraction, exponent: Fraction, bits: int) -> int:
    """base**exponent * 2**bits as an integer, relative error below 2**-bits / base**exponent."""
    if not exponent or base == 1:
        return 1 << bits
    log2 = float(exponent) * _log2(base)
    if log2 < -bits:
        return 0
    digits = math.ceil((bits + max(log2, 0.0)) * math.log10(2)) + 30
    context = Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)
    logarithm = context.ln(context.divide(Decimal(base.numerator), Decimal(base.denominator)))
    logarithm = context.divide(context.multiply(logarithm, Decimal(exponent.numerator)), Decimal(exponent.denominator))
    return int(context.multiply(context.exp(logarithm), Decimal(1 << bits)).to_integral_value(context=context))


def _snap(value: int) -> int:
    """Removes the rounding error from a value whose exact binary form is short, such as 2**-i.

    Such a value could otherwise be on the wrong side of a tie of a later rounding. Only numbers of at most 192
    significant bits can be ties. The relative error of a frequency is below 2**-290, so a value within 2**-264 of a
    number of 200 bits is replaced by that number.
    """
    low_bits = abs(value).bit_length() - _SNAP_BITS
    if low_bits <= _SNAP_MARGIN:
        return value
    short = (value + (1 << low_bits - 1)) >> low_bits << low_bits
    return value if abs(value - short) >> low_bits - _SNAP_MARGIN else short


@constant_in_graph  # torch.compile cannot trace the exact arithmetic
def radians(encoding: Encoding) -> tuple[float, ...]:
    """Angular frequencies in radians per position, correctly rounded to float64."""
    bits, values = angular(encoding)
    one = 1 << bits
    return tuple(value / one for value in values)


@constant_in_graph
def timescales(encoding: Encoding) -> tuple[float, ...]:
    """Reciprocals of the angular frequencies, correctly rounded to float64; infinite where they do not fit."""
    bits, values = angular(encoding)
    one = 1 << bits

    def reciprocal(value: int) -> float:
        try:
            return _snap((one << bits) // value) / one
        except (ZeroDivisionError, OverflowError):  # a frequency of 0, or so small that 1 / frequency overflows
            return -math.inf if value < 0 else math.inf

    return tuple(reciprocal(value) for value in values)
