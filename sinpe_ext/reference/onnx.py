"""The encoding in standard operations, for ONNX and other runtimes without the operators of this package.

The reference implementation recomputes single entries whose rounding is undecided, which a graph cannot do. This is its
arithmetic without that step: exact phases of 130 bits, then one sine and one cosine in float64. So a float32 entry is
correctly rounded at every int64 position, except for about one in 2**24 that lies next to a tie.

All arithmetic is float64 in limbs of 26 bits: ONNX does not define the overflow of int64 products and has no shift of
signed integers, and runtimes divide integers slowly; a float64 product of limbs is exact everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..encodings.plan import Plan
from ..torch_state import outside_modes
from .phase import TURN

BITS = 26
BASE = 2.0**BITS
LIMBS = 5  # of a frequency in turns: 130 bits
LARGEST = 2.0**76  # float positions of this size and above give NaN: three limbs hold no more
# Below this frequency the 130 bits have fewer significant bits than float64, and a float64 product is more accurate.
SMALL_FREQUENCY = 2.0**-70


@outside_modes
def _constant(values: Any, device: torch.device, dtype: torch.dtype = torch.float64) -> Tensor:
    """A constant of the graph: a tensor whose creation is not traced."""
    return torch.tensor(values, dtype=dtype, device=device)


def table(plan: Plan, length: Any, start: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows at positions plan.start + start, ..., plan.start + start + length - 1; length and start may be symbolic."""
    return encode(plan, torch.arange(length, device=device) + (plan.start + start), dtype)


def encode(plan: Plan, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """The encoding of int64, float32 or float64 positions, (*positions.shape, dim).

    Accuracy:
        float32 within 1 ULP (0.5 + 2**-20) for every int64 and every float32 position below 2**76 in size, NaN beyond;
        float64 within 4 ULP for int64 positions; 16-bit the float32 value, rounded.
    """
    if not plan.n_osc:
        return torch.zeros((*positions.shape, plan.dim), dtype=dtype, device=positions.device)
    quadrant, rest = _turns(plan, positions.unsqueeze(-1))
    # As tensors: the exporter would write a Python number as float32.
    turn, amplitude = (_constant(value, rest.device) for value in (TURN, plan.amplitude))
    angle = rest * turn
    sine, cosine = angle.sin(), angle.cos()
    quadrant = quadrant - 4.0 * torch.floor(quadrant * 0.25)
    odd = (quadrant == 1.0) | (quadrant == 3.0)
    sines, cosines = torch.where(odd, cosine, sine), torch.where(odd, sine, cosine)
    # 0 - x, not -x: an exact zero is +0 in every quadrant.
    sines = torch.where(quadrant >= 2.0, 0.0 - sines, sines) * amplitude
    cosines = torch.where((quadrant == 1.0) | (quadrant == 2.0), 0.0 - cosines, cosines) * amplitude
    rows = _channels(plan, cosines, sines) if plan.q0 else _channels(plan, sines, cosines)
    return rows if dtype == torch.float64 else rows.to(torch.float32).to(dtype)


def _turns(plan: Plan, p: Tensor) -> tuple[Tensor, Tensor]:
    """p * f in turns for p of shape (..., 1): (number of quarter turns, to be taken mod 4; remainder, at most
    1/8 + 2**-50)."""
    fraction, constant = None, partial(_constant, device=p.device)
    real = p.to(torch.float64)
    if p.is_floating_point():
        real = torch.where(real.abs() < LARGEST, real, math.nan)
        third = torch.round(real * BASE**-2)
        left = real - third * BASE**2
        second = torch.round(left / BASE)
        left = left - second * BASE
        first = torch.round(left)
        fraction = left - first
    else:
        # The bits shifted out are 0, so that a runtime may divide instead, which rounds toward zero.
        mask, limbs = 2**BITS - 1, []
        for _ in range(2):
            limbs.append(p & mask)
            p = (p - limbs[-1]) >> BITS
        first, second, third = (limb.to(torch.float64) for limb in (*limbs, p))

    # The columns of the product that matter modulo one turn; each stays below 2**53, so every operation is exact.
    frequency = [constant(limb) for limb in zip(*map(_limbs, plan.fractions), strict=True)]
    digits, carry = [], None
    for k in range(LIMBS):
        pairs = zip(frequency[max(0, k - 2) : k + 1], (first, second, third)[min(k, 2) :: -1], strict=True)
        products = [f * limb for f, limb in pairs]
        column = sum(products[1:], products[0]) if carry is None else sum(products, carry)
        carry = torch.round(column / BASE)
        digits.append(column - carry * BASE)
    quadrant = torch.round(digits[4] * (4 / BASE))
    top = (digits[4] - quadrant * (BASE / 4)) * BASE**-1 + digits[3] * BASE**-2
    low = (digits[2] * BASE**-3 + digits[1] * BASE**-4) + digits[0] * BASE**-5
    if fraction is not None:
        more, top, low = _with_fraction(plan, fraction, top, low, constant)
        quadrant = quadrant + more
    rest = top + low
    # A remainder within the rounding error of the frequency is 0, as in reference/phase.py.
    rest = torch.where(rest.abs() <= real.abs() * constant(2.0**-128), 0.0, rest)
    if any(0.0 < abs(turns) < SMALL_FREQUENCY for turns in plan.turns_hi):
        product = real * constant(plan.turns_hi)
        few = product.abs() < 0.125
        quadrant, rest = torch.where(few, 0.0, quadrant), torch.where(few, product, rest)
    return quadrant, rest


def _limbs(fraction: int) -> list[float]:
    """fraction / 2**128 mod 1 in limbs in [-2**25, 2**25], least significant first."""
    value, limbs = fraction << (LIMBS * BITS - 128), []
    for _ in range(LIMBS):
        limb = (value + 2 ** (BITS - 1)) % 2**BITS - 2 ** (BITS - 1)
        limbs.append(float(limb))
        value = (value - limb) >> BITS
    return limbs


def _with_fraction(
    plan: Plan, r: Tensor, top: Tensor, low: Tensor, constant: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """top + low + r * f for |r| <= 1/2: (quarter turns to add, new top, new low). Error: 2**-79 max(f, 1) turns."""
    splitter = 2.0**27 + 1
    high = [f * splitter - (f * splitter - f) for f in plan.turns_hi]  # Dekker: 26 bits
    turns_1 = constant(high)
    turns_0 = constant([f - h for f, h in zip(plan.turns_hi, high, strict=True)])
    turns_low = constant(plan.turns_lo)
    r_1 = torch.round(r * BASE) / BASE
    r_0 = r - r_1
    product = r_1 * turns_1
    low = low + (r_1 * turns_0 + (r_0 * (turns_1 + turns_0) + r * turns_low))
    quarters = torch.round(product * 4.0)
    product = product - quarters * 0.25
    total = top + product
    of_product = total - top
    low = low + ((top - (total - of_product)) + (product - of_product))
    more = torch.round(total * 4.0)
    return quarters + more, total - more * 0.25, low


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
