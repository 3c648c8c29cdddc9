"""The encoding in standard operations, for ONNX and other runtimes without the operators of this package.

The reference implementation recomputes single entries whose rounding is undecided, which a graph cannot do. This is its
arithmetic without that step: phases by exact products of limbs, each a floating-point number of few bits. Columns of
products are sums of at most eleven, which the type holds exactly; ONNX does not define the overflow of int64 products.
There are two arithmetics (`Limbs`):

- float64: limbs of 26 bits and frequencies of 130, then one sine and one cosine in float64;
- float32, for runtimes without float64: limbs of 11 bits and frequencies of 99, a remainder in two float32, and short
  polynomials. A program in it holds only integers, bools and float32.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..encodings.plan import Plan
from ..torch_state import outside_modes
from .phase import TURN


class Limbs(NamedTuple):
    """An arithmetic of limbs.

    Attributes:
        dtype: type of the limbs and of the results before they are rounded.
        bits: number of bits of a limb, in balanced representation: -2**(bits-1) to 2**(bits-1).
        of_frequency, of_fraction: number of limbs of a frequency's fraction of a turn, and of a position's fraction.
            Positions have three whole limbs.
        small: below this frequency, in turns, the limbs have fewer significant bits than the type, and a product is
            more accurate.
    """

    dtype: torch.dtype
    bits: int
    of_frequency: int
    of_fraction: int
    small: float

    @property
    def base(self) -> float:
        return 2.0**self.bits

    @property
    def largest(self) -> float:
        """Positions of this size and above give NaN, unless `small` applies."""
        return 2.0 ** (3 * self.bits - 1)


DOUBLE = Limbs(torch.float64, 26, 5, 3, 2.0**-70)
SINGLE = Limbs(torch.float32, 11, 9, 4, 2.0**-60)
WHOLE = 3  # limbs of the whole part of a position


@outside_modes
def _constant(values: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A constant of the graph: a tensor whose creation is not traced. A Python number would be exported as float32."""
    return torch.tensor(values, dtype=dtype, device=device)


def table(
    plan: Plan, length: Any, start: Any, dtype: torch.dtype, device: torch.device, limbs: Limbs = DOUBLE
) -> Tensor:
    """Rows at positions plan.start + start, ..., plan.start + start + length - 1; length and start may be symbolic."""
    if limbs is SINGLE and isinstance(start, int) and not -limbs.largest < plan.start + start < limbs.largest:
        raise ValueError(
            f"start: expected less than 2**32 in size in a program without float64, got {plan.start + start}; export "
            "under standard_operators(float64=True)"
        )
    return encode(plan, torch.arange(length, device=device) + (plan.start + start), dtype, limbs)


def encode(plan: Plan, positions: Tensor, dtype: torch.dtype, limbs: Limbs = DOUBLE) -> Tensor:
    """The encoding of integer or floating-point positions, (*positions.shape, dim).

    Accuracy:
        float64 arithmetic: float32 within 1 ULP (0.5 + 2**-20) for every int64 and every float32 position below 2**76
        in size, NaN from 2**77 on; float64 within 4 ULP for int64 positions. float32 arithmetic: float32 within 1 ULP
        (measured: 0.86) for positions below 2**32 in size, NaN beyond; of results below 2**-120 in size, within 2**-145
        absolute. 16-bit: the float32 value, rounded.
    Raises:
        ValueError for float positions with frequencies of 2**9 turns or more in float32 arithmetic.
    """
    if limbs is SINGLE and positions.is_floating_point() and any(abs(f) >= 2.0**9 for f in plan.turns_hi):
        raise ValueError(
            "encoding: expected frequencies below 2**9 turns for fractional positions in a program without float64, "
            f"got {max(map(abs, plan.turns_hi)):g}; export under standard_operators(float64=True)"
        )
    if not plan.n_osc:
        return torch.zeros((*positions.shape, plan.dim), dtype=dtype, device=positions.device)
    quadrant, high, low = _turns(plan, positions.unsqueeze(-1), limbs)
    sine, cosine = _waves_in_double(plan.amplitude, high) if limbs is DOUBLE else _waves(plan.amplitude, high, low)
    quadrant = quadrant - 4.0 * torch.floor(quadrant * 0.25)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    sines, cosines = torch.where(odd, cosine, sine), torch.where(odd, sine, cosine)
    # 0 - x, not -x: an exact zero is +0 in every quadrant.
    sines = torch.where(quadrant >= 2.0, 0.0 - sines, sines)
    cosines = torch.where((quadrant == 1.0) | (quadrant == 2.0), 0.0 - cosines, cosines)
    rows = _channels(plan, cosines, sines) if plan.q0 else _channels(plan, sines, cosines)
    return rows if dtype == torch.float64 else rows.to(torch.float32).to(dtype)


def _turns(plan: Plan, p: Tensor, limbs: Limbs) -> tuple[Tensor, Tensor, Tensor]:
    """p * f in turns for p of shape (..., 1): the number of quarter turns, to be taken mod 4, and the remainder, an
    eighth of a turn at most, as a sum of two numbers, of which the second is 0 in float64."""
    device, dtype, count = p.device, limbs.dtype, limbs.of_frequency
    real = p.to(dtype)
    if p.is_floating_point():
        real = torch.where(real.abs() < limbs.largest, real, math.nan)
        position = _limbs_of_float(real, limbs)
    else:
        position = _limbs_of_integer(p, limbs)
    lowest = WHOLE - len(position)  # place of the first limb: 0, or minus the number of limbs of the fraction
    # Whole turns of a frequency matter for the fraction of a position.
    frequency = list(
        zip(*(_limbs_of_frequency(plan, k, count - lowest, limbs) for k in range(plan.n_osc)), strict=True)
    )
    constants = [_constant(limb, device, dtype) if k < count or any(limb) else None for k, limb in enumerate(frequency)]

    # The columns of the product that matter modulo one turn; every operation is exact.
    digits: list[Tensor] = []
    column = torch.zeros_like(real)
    for k in range(count):
        for place, limb in enumerate(position, lowest):
            of_frequency = constants[k - place] if 0 <= k - place < len(constants) else None
            column = column if of_frequency is None else column + of_frequency * limb
        carry = torch.round(column / limbs.base)
        digits.append(column - carry * limbs.base)
        column = carry
    quadrant = torch.round(digits[-1] * (4 / limbs.base))
    digits[-1] = digits[-1] - quadrant * (limbs.base / 4)
    high, low = _remainder(digits, limbs)
    # A remainder within the rounding error of the frequency is 0, as in reference/phase.py.
    is_zero = high.abs() <= real.abs() * _constant(2.0 ** -min(128, limbs.bits * count), device, dtype)
    high, low = torch.where(is_zero, 0.0, high), torch.where(is_zero, 0.0, low)
    if p.is_floating_point() or any(0.0 < abs(turns) < limbs.small for turns in plan.turns_hi):
        if limbs is DOUBLE:
            product, rest = real * _constant(plan.turns_hi, device, dtype), low
        else:
            product, rest = _times(_split(plan.turns_hi, plan.turns_lo, device), real, None)
        few = product.abs() < 0.125
        quadrant, high, low = (
            torch.where(few, 0.0, quadrant),
            torch.where(few, product, high),
            torch.where(few, rest, low),
        )
    return quadrant, high, low


def _limbs_of_integer(p: Tensor, limbs: Limbs) -> list[Tensor]:
    """The three limbs of an integer, least significant first; the last one is NaN if it is too large."""
    # The bits that are shifted out are 0, so that a runtime may divide instead, which rounds toward zero.
    made = []
    for _ in range(WHOLE - 1):
        low = p & (2**limbs.bits - 1)
        made.append(low.to(limbs.dtype))
        p = (p - low) >> limbs.bits
    third = p.to(limbs.dtype)
    if limbs is not DOUBLE:  # which holds every int64
        third = torch.where(third.abs() <= limbs.largest / limbs.base**2, third, math.nan)
    return [*made, third]


def _limbs_of_float(left: Tensor, limbs: Limbs) -> list[Tensor]:
    """The limbs of the fraction and of the whole part of a number, least significant first."""
    made: list[Tensor] = []
    for k in range(WHOLE - 1, -1 - limbs.of_fraction, -1):
        limb = torch.round(left * limbs.base**-k)
        left = left - limb * limbs.base**k
        made.insert(0, limb)
    return made


def _limbs_of_frequency(plan: Plan, oscillator: int, count: int, limbs: Limbs) -> list[float]:
    """A frequency in limbs in [-base / 2, base / 2], least significant first; those after `of_frequency` are whole
    turns."""
    shift = limbs.of_frequency * limbs.bits - 128
    fixed = (plan.whole[oscillator] << 128) + plan.fractions[oscillator]
    value = fixed << shift if shift >= 0 else (fixed + (1 << (-shift - 1))) >> -shift
    made = []
    for _ in range(count):
        limb = (value + 2 ** (limbs.bits - 1)) % 2**limbs.bits - 2 ** (limbs.bits - 1)
        made.append(float(limb))
        value = (value - limb) >> limbs.bits
    return made


def _remainder(digits: list[Tensor], limbs: Limbs) -> tuple[Tensor, Tensor]:
    """The fraction of a turn with these digits, as a sum of two numbers."""
    placed = [digit * limbs.base ** (k - limbs.of_frequency) for k, digit in enumerate(digits)]
    if limbs is DOUBLE:
        rest = (placed[4] + placed[3]) + (placed[2] + placed[1] + placed[0])
        return rest, torch.zeros_like(rest)
    # Sums of two have 22 bits, so a, b and c are exact; a is 0 or larger than b. The digits below are less than 2**-66.
    a, b, c = placed[8] + placed[7], placed[6] + placed[5], placed[4] + placed[3]
    high = a + b
    low = (b - (high - a)) + c
    total = high + low
    return total, low - (total - high)


def _waves_in_double(amplitude: float, turns: Tensor) -> tuple[Tensor, Tensor]:
    """amplitude * (sin, cos) of a remainder in float64."""
    turn, factor = (_constant(value, turns.device, turns.dtype) for value in (TURN, amplitude))
    angle = turns * turn
    return angle.sin() * factor, angle.cos() * factor


def _waves(amplitude: float, high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """amplitude * (sin, cos) of the remainder high + low in float32.

    The first term of each series is a product of two float32 with its rounding error, so that only the last addition
    rounds by half an ULP; the other terms are at most a tenth of the result.
    """
    device = high.device
    series = [amplitude * TURN**k / math.factorial(k) for k in range(12)]
    square, square_low = _times(high, high, 2.0 * low)
    # The terms from h^3, h^4 on, whose errors are a tenth as large.
    cubes = (
        high
        * square
        * (-series[3] + square * (series[5] + square * (-series[7] + square * (series[9] - square * series[11]))))
    )
    fourths = square * square * (series[4] + square * (-series[6] + square * (series[8] - square * series[10])))
    line, line_low = _times(_split(series[1], 0.0, device), high, low)
    sine = line + (line_low + cubes)
    curve, curve_low = _times(_split(series[2], 0.0, device), square, square_low)
    first, _, _, rest = _split(amplitude, 0.0, device)
    total = first - curve
    cosine = total + (((first - total) - curve) + ((rest - curve_low) + fourths))
    return sine, cosine


class _Split(NamedTuple):
    """A float64 as float32: first + second; and first in halves of 12 bits, whose products are exact."""

    first: Tensor
    upper: Tensor
    lower: Tensor
    second: Tensor


@outside_modes
def _split(value: Any, low: Any, device: torch.device) -> _Split:
    """A constant, a number or a tuple of them, value + low."""
    exact, low = (torch.tensor(given, dtype=torch.float64, device="cpu") for given in (value, low))
    first = exact.float()
    upper = (first.view(torch.int32) & -4096).view(torch.float32)
    parts = first, upper, first - upper, (exact - first.double() + low).float()
    return _Split(*(part.to(device) for part in parts))


def _times(f: _Split | Tensor, r: Tensor, low: Tensor | None) -> tuple[Tensor, Tensor]:
    """f * (r + low) in float32 as a sum of two numbers, within 2**-46 relative."""
    scaled = r * 4097.0  # Veltkamp: the upper half of r
    upper = scaled - (scaled - r)
    lower = r - upper
    f = f if isinstance(f, _Split) else _Split(f, upper, lower, torch.zeros_like(f))  # f is r
    product = f.first * r
    error = ((f.upper * upper - product) + f.upper * lower + f.lower * upper) + f.lower * lower + f.second * r
    return product, error if low is None else error + f.first * low


def _channels(plan: Plan, first: Tensor, second: Tensor) -> Tensor:
    """(..., dim) from the values of the two streams, (..., n_osc); the remaining channels are 0."""
    n0, n1 = plan.n0, plan.n1
    second = second if plan.shared else second[..., n0:]
    first, second = first[..., :n0], second[..., :n1]
    if plan.interleaved and n0 == n1:
        rows = torch.stack([first, second], -1).flatten(-2)
    else:
        rows = torch.cat([first, second], -1)
        if plan.interleaved:
            order = [n0 * (channel & 1) + (channel >> 1) for channel in range(n0 + n1)]
            rows = rows.index_select(-1, _constant(order, rows.device, torch.int64))
    return functional.pad(rows, (0, plan.dim - n0 - n1)) if plan.dim > n0 + n1 else rows
