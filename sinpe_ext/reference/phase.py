"""Phases, sines and cosines evaluated directly, on arrays: the part of the reference implementation without rotation.

All functions broadcast: oscillators along the last axis, positions along the first, or one of each per element.
Unsigned 64-bit words are held in int64, so right shifts are masked and products wrap. u below is 2**-53.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..encodings.plan import HEADER_WORDS, Plan
from .arrays import Array, Arrays

LOW32 = 0xFFFFFFFF
TURN = 2.0 * math.pi
TURN_LOW = 2.4492935982947064e-16  # 2 pi - TURN
SPLITTER = 134217729.0  # 2**27 + 1, Dekker
# Error of a sine or cosine from `angles`, or of the product of two, for angles of a radian or more: 9.5u from the
# conversion of an angle (12.6u for a fractional position, 4.7u more if |p| approaches 2**63), at most 8u from the
# library's sin or cos (4 ULP; measured 1 for torch, documented 4 for NumPy), twice that with a rotation, and 6u from
# the product, the amplitude and the addition of the bound itself.
ANGLE_ERROR = 48 * 2.0**-53
# Relative error of a sine or cosine from `sin_cos`, times the amplitude: 2u, measured below 0.8 ULP.
DIRECT_ERROR = 8 * 2.0**-53
# If the largest angle of a call is below this, the phase word's error of 2**-63 turn is not negligible beside
# ANGLE_ERROR.
SMALL_ANGLE = 1 / 64
# `angles` supports |p| < 2**62 (the integer part must fit) and f below 2**30; beyond, `sin_cos` is used.
MAX_POSITION = 2.0**62
MAX_TURNS = 2.0**30


class Oscillators(NamedTuple):
    """Frequencies in turns per position, as in `Plan`: whole + (high * 2**64 + low) / 2**128, and turns + turns_low."""

    high: Array  # int64 (unsigned word)
    low: Array  # int64 (unsigned word)
    whole: Array  # int64
    turns: Array  # float64
    turns_low: Array  # float64

    def at(self, index: Array) -> Oscillators:
        """The oscillators at these indices."""
        return Oscillators._make(field[index] for field in self)


def oscillators(a: Arrays, plan: Plan) -> Oscillators:
    """The constants of a plan as arrays of shape (n_osc,)."""
    words, n = a.int64_array(plan.packed), plan.n_osc
    fields = [words[HEADER_WORDS + k * n : HEADER_WORDS + (k + 1) * n] for k in range(5)]
    return Oscillators._make([*fields[:3], *(field.view(a.xp.float64) for field in fields[3:])])


def integer_phase(p: Array, high: Array, low: Array) -> tuple[Array, Array]:
    """p * (high * 2**64 + low) mod 2**128 as (high, low) words, for every int64 p. Error: 0."""
    p1, p0 = p >> 32, p & LOW32
    b1, b0 = (low >> 32) & LOW32, low & LOW32
    middle = p1 * b0 + ((p0 * b0 >> 32) & LOW32)
    cross = p0 * b1 + (middle & LOW32)
    return p * high + p1 * b1 + (middle >> 32) + ((cross >> 32) & LOW32), p * low


def float_phase(a: Arrays, p: Array, osc: Oscillators) -> tuple[Array, Array]:
    """p * f mod 1 as (high, low) words of a turn, for finite float64 p. Error: below 2**-128 turns (truncation).

    p is m * 2**-s with s = 32 k - t, 0 <= t < 32, so the product is (m << t) * f shifted by whole limbs of 32 bits.
    """
    xp = a.xp
    mantissa, exponent = xp.frexp(p)
    m = a.cast(xp.abs(mantissa) * 2.0**53, xp.int64)
    s = 53 - a.cast(exponent, xp.int64)
    k = (s + 31) >> 5
    t = 32 * k - s
    low_part, high_part = (m & LOW32) << t, (m >> 32) << t  # below 2**63 and 2**52
    middle = (low_part >> 32) + high_part
    left = [low_part & LOW32, middle & LOW32, middle >> 32]

    # |f| in limbs: two's complement over 192 bits where the whole part is negative.
    down = osc.whole < 0
    low = xp.where(down, -osc.low, osc.low)
    carry = a.cast(osc.low == 0, xp.int64)
    high = xp.where(down, ~osc.high + carry, osc.high)
    whole = xp.where(down, ~osc.whole + (carry & a.cast(osc.high == 0, xp.int64)), osc.whole)
    right = [limb for word in (low, high, whole) for limb in (word & LOW32, (word >> 32) & LOW32)]
    if not bool((whole != 0).any()):
        right = right[:4]

    zero = (left[0] & 0) + (right[0] & 0)  # broadcast shape
    columns = [zero] * 10
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            product = x * y
            columns[i + j] = columns[i + j] + (product & LOW32)
            columns[i + j + 1] = columns[i + j + 1] + ((product >> 32) & LOW32)
    limbs, carry = [], zero
    for column in columns:
        carry = carry + column
        limbs.append(carry & LOW32)
        carry = carry >> 32

    def word(first: int) -> Array:
        pair = [limbs[i] if 0 <= i < len(limbs) else zero for i in (first, first + 1)]
        return (pair[1] << 32) | pair[0]

    high, low = zero, zero
    for shift in xp.unique(k).tolist():  # few: positions of one call differ little in exponent
        if -4 < shift < len(limbs):
            here = k == shift
            low = xp.where(here, word(shift), low)
            high = xp.where(here, word(shift + 2), high)
    negative = (mantissa < 0) != down
    low_negated, carry = -low, a.cast(low == 0, xp.int64)
    return xp.where(negative, ~high + carry, high), xp.where(negative, low_negated, low)


def split(x: Array) -> tuple[Array, Array]:
    """x as the sum of two float64 of 26 bits. Valid range: |x| < 2**996."""
    scaled = x * SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x * y as the sum of two float64. Error: 0. Valid range: no overflow, product above 2**-969."""
    product = x * y
    x1, x0 = split(x)
    y1, y0 = split(y)
    return product, ((x1 * y1 - product) + x1 * y0 + x0 * y1) + x0 * y0


def fast_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y as the sum of two float64. Error: 0. Valid range: |x| >= |y| or x == 0."""
    total = x + y
    return total, y - (total - x)


def reduce(a: Arrays, p: Array, osc: Oscillators) -> tuple[Array, Array, Array]:
    """p * f as (quadrant, in the low two bits; remainder in turns, |remainder| <= 1/8, as high and low part).

    Error: 2**-102 relative to the remainder, plus 2**-128 turns for a float p. A remainder within the rounding error of
    the 128-bit frequency is 0: three positions of 1/3 turn are a whole turn.
    """
    xp = a.xp
    if a.is_float(p):
        high, low = float_phase(a, p, osc)
        p_high, p_low = p, 0.0
    else:
        high, low = integer_phase(p, osc.high, osc.low)
        p_high, p_low = fast_sum(a.cast(p >> 32, xp.float64) * 2.0**32, a.cast(p & LOW32, xp.float64))
    quadrant = ((high >> 60) + 2) >> 2
    high = high - (quadrant << 62)
    # Sign and magnitude, so that nothing cancels: in two's complement a remainder just below zero is all ones.
    negative = high < 0
    carry = a.cast(low == 0, xp.int64)
    high = xp.where(negative, ~high + carry, high)
    low = xp.where(negative, -low, low)
    parts = [(high >> 32) & LOW32, high & LOW32, (low >> 32) & LOW32, low & LOW32]
    limbs = [a.cast(part, xp.float64) * 2.0 ** (-32 * i) for i, part in enumerate(parts, 1)]
    top, top_low = fast_sum(limbs[0], limbs[1])
    tail, tail_low = fast_sum(limbs[2], limbs[3])
    rounding = (high == 0) & (tail <= (xp.abs(p_high) + 1.0) * 2.0**-128)
    rest, rest_low = fast_sum(top, tail)
    rest, rest_low = fast_sum(rest, rest_low + top_low + tail_low)
    sign = xp.where(rounding, 0.0, 1.0 - 2.0 * a.cast(negative, xp.float64))
    rest, rest_low = rest * sign, rest_low * sign

    # Far below one turn the 128 bits have few significant bits; the float64 pair keeps its precision. The scale keeps
    # `split` finite.
    scale = xp.where(xp.abs(p_high) > 2.0**500, 2.0**-500, xp.ones_like(p_high))
    turns, turns_low = osc.turns / scale, osc.turns_low / scale
    small, small_low = two_product(p_high * scale, turns)
    small, small_low = fast_sum(small, small_low + (p_high * scale * turns_low + p_low * turns))
    few = xp.abs(small) < 0.125
    return xp.where(few, 0, quadrant), xp.where(few, small, rest), xp.where(few, small_low, rest_low)


def sin_cos(a: Arrays, p: Array, osc: Oscillators) -> tuple[Array, Array, Array, Array, Array]:
    """sin and cos of 2 pi p f: (sin, its low part, cos, its low part, rest).

    Error: 0.3 ULP with the low part, 0.8 without. Valid range: every int64 and finite float64 p, results above 2**-960.
    Zeros are +0. `rest` is the reduced phase in turns; if it is 0, sin and cos are exact.
    """
    xp = a.xp
    quadrant, rest, rest_low = reduce(a, p, osc)
    x, error = two_product(rest, TURN)
    x, y = fast_sum(x, error + (rest * TURN_LOW + rest_low * TURN))
    # fdlibm's polynomials for |x| <= pi/4; the low part y enters to first order.
    z = x * x
    v = z * x
    r = 1.58969099521155010221e-10 * z - 2.50507602534068634195e-08
    for coefficient in (2.75573137070700676789e-06, -1.98412698298579493134e-04, 8.33333333332248946124e-03):
        r = r * z + coefficient
    sine, sine_low = fast_sum(x, y - z * (0.5 * y - v * r) - v * 1.66666666666666324348e-01)
    r = -1.13596475577881948265e-11 * z + 2.08757232129817482790e-09
    for coefficient in (
        -2.75573143513906633035e-07,
        2.48015872894767294178e-05,
        -1.38888888888741095749e-03,
        4.16666666666666019037e-02,
    ):
        r = r * z + coefficient
    half = 0.5 * z
    one = 1.0 - half
    cosine, cosine_low = fast_sum(one, ((1.0 - one) - half) + (z * (z * r) - x * y))

    odd = (quadrant & 1) != 0
    sign = 1.0 - a.cast(quadrant & 2, xp.float64)
    cos_sign = 1.0 - a.cast((quadrant + 1) & 2, xp.float64)
    return (
        xp.where(odd, cosine, sine) * sign + 0.0,
        xp.where(odd, cosine_low, sine_low) * sign,
        xp.where(odd, sine, cosine) * cos_sign + 0.0,
        xp.where(odd, sine_low, cosine_low) * cos_sign,
        rest,
    )


def scaled(a: Arrays, value: Array, low: Array, amplitude: float) -> Array:
    """amplitude * (value + low): one rounding in addition to the error of value + low; a zero keeps its sign."""
    if amplitude == 1.0:
        return value
    mantissa, exponent = math.frexp(amplitude)  # so that no partial product overflows
    product, error = two_product(value, mantissa)
    product = a.xp.where(product == 0, product, product + (error + low * mantissa))
    return product * 2.0 * math.ldexp(1.0, exponent - 1)


def angles(a: Arrays, p: Array, osc: Oscillators) -> tuple[Array, Array] | None:
    """2 pi p f reduced to [-pi, pi], fast: (angles, error bound of their sines, see `sine_bound`); None if out of
    range.

    Args:
        p of shape (rows, 1), not empty; oscillators of shape (n,).
    """
    xp = a.xp
    largest = float(xp.abs(a.cast(p, xp.float64)).max())
    reach = xp.abs(osc.turns) * (TURN * largest)
    if not a.is_float(p):
        return word_angles(a, phase_word(a, p, osc), a.cast(p, xp.float64), osc, reach), sine_bound(a, reach)
    if largest >= MAX_POSITION or float(xp.abs(osc.turns).max()) >= MAX_TURNS:
        return None
    nearest = xp.round(p)
    turns = a.cast(phase_word(a, a.cast(nearest, xp.int64), osc), xp.float64) * 2.0**-64
    turns = turns + (p - nearest) * osc.turns
    theta = (turns - xp.round(turns)) * TURN
    return small_angles(a, theta, p, osc, reach), sine_bound(a, reach, 1.0 + xp.abs(osc.turns))


def sine_bound(a: Arrays, reach: Array, factor: Array | float = 1.0) -> Array:
    """Error bound of sines whose angles are at most `reach`, relative for small angles; shape (n,)."""
    return ANGLE_ERROR * a.xp.minimum(reach, reach * 0.0 + factor)


def phase_word(a: Arrays, p: Array, osc: Oscillators) -> Array:
    """The high word of p * f mod 1, p int64. Error: 2 + |p| * 2**-52 units of 2**-64 turns."""
    # The low word is taken as signed and its carry added to the high word, so that the product stays within int64.
    high = osc.high + a.cast(osc.low < 0, a.xp.int64)
    low = a.cast(osc.low, a.xp.float64) * 2.0**-64
    return p * high + a.cast(a.cast(p, a.xp.float64) * low, a.xp.int64)


def word_angles(a: Arrays, words: Array, p: Array, osc: Oscillators, reach: Array) -> Array:
    """The angles of phase words; p is the positions in float64, of shape (rows, 1)."""
    return small_angles(a, a.cast(words, a.xp.float64) * (TURN * 2.0**-64), p, osc, reach)


def small_angles(a: Arrays, theta: Array, p: Array, osc: Oscillators, reach: Array) -> Array:
    """Replaces, in place, the angles of oscillators whose angles are all below SMALL_ANGLE by plain products."""
    (small,) = a.nonzero(reach < SMALL_ANGLE)
    if len(small):
        theta[:, small] = p * (osc.turns[small] * TURN) + 0.0  # -0.0 would look like an undecided rounding
    return theta
