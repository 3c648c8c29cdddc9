"""Single entries by integer arithmetic, correctly rounded; the fast paths use it near a rounding boundary.

Standard library only; tens of microseconds per entry.

Phase: position times frequency as an exact rational, reduced to an eighth of a turn. The frequency is the 128-bit
fraction, or the float64 pair if the product is below 1/8 turn (the pair keeps its relative accuracy however small the
frequency is). Value: Taylor series in fixed point with `PRECISION` bits below the leading one. If the two ends of the
interval that contains the value round differently, the precision is doubled. This terminates, because the sine or
cosine of a dyadic fraction of a turn is irrational, 0 or 1, and 0 and 1 are handled exactly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from ..encodings.frequency import FRACTION_BITS, pi_bits
from ..encodings.plan import Plan

PRECISION = 208  # of the first attempt; about one float64 entry in 2**150 needs more


def float32(plan: Plan, position: int | float, channel: int) -> float:
    """One entry as float32, correctly rounded (ties to even), returned as the Python float of the same value.

    Args:
        plan: the constants of the encoding.
        position: any int, or a float taken at its exact value; NaN and inf give NaN, except in zero channels.
        channel: 0 to plan.dim - 1.
    """
    return _entry(plan, position, channel, _round_float32)


def float64(plan: Plan, position: int | float, channel: int) -> float:
    """One entry as float64, correctly rounded; arguments as in `float32`."""
    return _entry(plan, position, channel, _round_float64)


def _entry(plan: Plan, position: int | float, channel: int, rounded: Callable[[int, int], float]) -> float:
    """One entry, rounded by `rounded` (numerator, bits) -> float."""
    entry = plan.channel(channel)
    if entry is None:
        return 0.0
    if not isinstance(position, (int, float)):  # a NumPy scalar
        position = operator.index(position) if hasattr(position, "__index__") else float(position)
    if isinstance(position, float) and not math.isfinite(position):
        return math.nan
    oscillator, quarter = entry
    numerator, bits = _phase(plan, oscillator, position)
    # The nearest quarter turn, then the remainder, at most 1/8 turn.
    nearest = (4 * numerator + (1 << bits - 1)) >> bits
    rest = 4 * numerator - (nearest << bits)  # in quarter turns
    quadrant = nearest + quarter & 3
    use_cos, negative = quadrant & 1, quadrant >= 2
    amplitude, scale = plan.amplitude.as_integer_ratio()
    scale_bits = scale.bit_length() - 1
    if not rest:  # exactly a quarter turn; a zero is +0 times the amplitude in every quadrant (docs/accuracy.md)
        return rounded(-amplitude if negative else amplitude, scale_bits) if use_cos else 0.0 * plan.amplitude
    precision = PRECISION
    while True:
        value, error, value_bits = (_cos if use_cos else _sin)(rest, bits, precision)
        if negative:
            value = -value
        one = 1 << value_bits
        low = rounded(max(value - error, -one) * amplitude, value_bits + scale_bits)
        high = rounded(min(value + error, one) * amplitude, value_bits + scale_bits)
        if low == high:
            return low
        precision *= 2


def _phase(plan: Plan, oscillator: int, position: int | float) -> tuple[int, int]:
    """position * f modulo 1 as numerator / 2**bits, bits >= 1: exact for the frequency used, except that a phase within
    the rounding error of the frequency of a quarter turn is taken to be the quarter turn."""
    factor, denominator = position.as_integer_ratio()
    position_bits = denominator.bit_length() - 1
    high, high_one = plan.turns_hi[oscillator].as_integer_ratio()
    low, low_one = plan.turns_lo[oscillator].as_integer_ratio()
    one = max(high_one, low_one)
    pair = factor * (high * (one // high_one) + low * (one // low_one))
    if not pair:
        return 0, 1
    bits = position_bits + one.bit_length() - 1
    if abs(pair) << 3 < 1 << bits:
        return pair, bits
    whole = (plan.whole[oscillator] << FRACTION_BITS) + plan.fractions[oscillator]
    bits = position_bits + FRACTION_BITS
    numerator = factor * whole & (1 << bits) - 1
    # A phase within the rounding error of the 128 bits of a quarter turn is a quarter turn, as in csrc/core/phase.h.
    nearest = (4 * numerator + (1 << bits - 1)) >> bits << bits - 2
    reach = min(abs(factor) + (1 << position_bits), 1 << 64 + position_bits)
    return nearest if abs(numerator - nearest) <= reach else numerator, bits


def _angle(rest: int, bits: int, precision: int) -> tuple[int, int]:
    """(pi / 2) * rest / 2**bits in fixed point with `precision` bits below its leading one: (value, fractional
    bits)."""
    magnitude = abs(rest).bit_length()
    out_bits = precision + max(0, bits - magnitude)
    shift = bits + precision + 1  # pi_bits(precision) / 2 has precision + 1 bits below the point
    product = pi_bits(precision) * rest
    return (product << out_bits) >> shift if out_bits < shift else product << out_bits - shift, out_bits


def _sin(rest: int, bits: int, precision: int) -> tuple[int, int, int]:
    """sin of rest / 2**bits quarter turns, at most half a quarter turn in size: (value, error, fractional bits)."""
    theta, bits = _angle(rest, bits, precision)
    square = theta * theta >> bits
    term = total = theta
    index = 1
    while term:
        term = -(term * square >> bits) // ((index + 1) * (index + 2))
        total += term
        index += 2
    return total, _error(theta, precision, index), bits


def _cos(rest: int, bits: int, precision: int) -> tuple[int, int, int]:
    """cos of rest / 2**bits quarter turns, as `_sin`."""
    theta, bits = _angle(rest, bits, precision)
    square = theta * theta >> bits
    term = total = 1 << bits
    index = 0
    while term:
        term = -(term * square >> bits) // ((index + 1) * (index + 2))
        total += term
        index += 2
    return total, _error(theta, precision, index), bits


def _error(theta: int, precision: int, terms: int) -> int:
    """Error bound of a series: the error of pi scaled by theta, and a few units for each term."""
    return (abs(theta) >> precision - 4) + 8 * terms + 16


def _round_float64(numerator: int, bits: int) -> float:
    """numerator / 2**bits rounded to nearest even, subnormals included (int / int rounds correctly)."""
    return numerator / (1 << bits)


def _round_float32(numerator: int, bits: int) -> float:
    """numerator / 2**bits rounded to nearest even in float32: to 24 bits, or to multiples of 2**-149 if subnormal."""
    magnitude = abs(numerator)
    exponent = max(magnitude.bit_length() - bits - 24, -149)
    shift = exponent + bits
    if shift > 0:
        quotient = magnitude >> shift
        twice = (magnitude - (quotient << shift) << 1) - (1 << shift)
        quotient += twice > 0 or (twice == 0 and quotient & 1)
    else:
        quotient = magnitude << -shift
    value = math.inf if quotient.bit_length() + exponent > 128 else math.ldexp(quotient, exponent)
    return -value if numerator < 0 else value
