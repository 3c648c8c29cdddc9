"""`Plan`: the constants of one encoding, as fields for Python and packed into an int64 array for the kernels.

The packed array, `packed`, is all that a kernel knows of an encoding: kernels have no code for any convention. Its
layout (int64 in host byte order; unsigned values in two's complement):

    0 magic "SINPE1"   1 number of words   2 dim   3 n0   4 n1   5 flags   6 amplitude (float64 bits)
    7 n_osc   8 start   9 zero   10 largest |turns_hi| (float64 bits)
    11..14 SHA-256 of the arrays: plans with the same header are equal   15 zero
    then five arrays of n_osc words: fraction high, fraction low, whole, turns_hi (float64 bits), turns_lo (the same)

The channels form two streams, one of sines and one of cosines, of n0 and n1 channels. Interleaved: stream 0 is channels
0, 2, 4, ... and stream 1 is channels 1, 3, 5, ...; otherwise stream 0 comes first, then stream 1. Remaining channels at
the end are zero. An oscillator is one frequency. If shared, oscillator i serves the i-th channel of both streams;
otherwise the first n0 oscillators belong to stream 0 and the others to stream 1.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from . import frequency
from .columns import Columns

if TYPE_CHECKING:
    from .encoding import Encoding

MAGIC = 0x53494E504531  # "SINPE1"
HEADER_WORDS = 16
ARRAYS = 5
FLAG_INTERLEAVED, FLAG_SHARED, FLAG_Q0, FLAG_Q1 = 1, 2, 4, 8
FLAGS_WORD = 5
DIGEST = slice(11, 15)
_MASK64 = 2**64 - 1
_MASK128 = 2**128 - 1


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: plan() caches one per encoding
class Plan:
    """The constants of one encoding. Channel value = amplitude * sin(2 pi (p f + q / 4)).

    f is the frequency in turns per position, and q is 0 (sin) or 1 (cos).

    f is stored in two forms: whole + fractions / 2**128 (rounded to nearest, for the exact phase modulo one turn) and
    turns_hi + turns_lo (relative error at most 2**-106 above 2**-900, for products far below one turn).
    """

    dim: int
    n0: int
    n1: int
    interleaved: bool
    shared: bool
    q0: int
    q1: int
    amplitude: float
    start: int
    fractions: tuple[int, ...]
    whole: tuple[int, ...]
    turns_hi: tuple[float, ...]
    turns_lo: tuple[float, ...]
    largest: float  # of abs(turns_hi); for some channels of an encoding, of all its channels

    @property
    def n_osc(self) -> int:
        """The number of oscillators."""
        return len(self.whole)

    @cached_property
    def packed(self) -> array[int]:
        """The array for the kernels, see the layout above."""
        flags = FLAG_INTERLEAVED * self.interleaved | FLAG_SHARED * self.shared | FLAG_Q0 * self.q0 | FLAG_Q1 * self.q1
        packed = array("q", [MAGIC, HEADER_WORDS + ARRAYS * self.n_osc, self.dim, self.n0, self.n1, flags])
        packed += _as_words(array("d", [self.amplitude]))
        packed += array("q", [self.n_osc, self.start, 0])
        packed += _as_words(array("d", [self.largest]))
        packed += array("q", [0] * (HEADER_WORDS - len(packed)))
        packed += _as_words(array("Q", [fraction >> 64 for fraction in self.fractions]))
        packed += _as_words(array("Q", [fraction & _MASK64 for fraction in self.fractions]))
        packed += array("q", self.whole)
        packed += _as_words(array("d", self.turns_hi))
        packed += _as_words(array("d", self.turns_lo))
        packed[DIGEST] = array("q", hashlib.sha256(packed[HEADER_WORDS:].tobytes()).digest())
        return packed

    @lru_cache(maxsize=256)  # noqa: B019  (one for each of the plans, which are kept anyway)
    def partner(self) -> Plan:
        """The plan with sin and cos exchanged: the derivative, up to the factor 2 pi f and the sign."""
        return replace(self, q0=1 - self.q0, q1=1 - self.q1)

    def channel(self, index: int) -> tuple[int, int] | None:
        """(oscillator, q) of a channel; None for a channel that is always zero."""
        if self.interleaved:
            pair, stream = divmod(index, 2)
        else:
            stream = int(index >= self.n0)
            pair = index - self.n0 if stream else index
        if not 0 <= pair < (self.n1 if stream else self.n0):
            return None
        oscillator = pair if self.shared or not stream else self.n0 + pair
        return oscillator, self.q1 if stream else self.q0

    def channels(self) -> list[tuple[int, int] | None]:
        """(oscillator, q) of every channel; None for a channel that is always zero."""
        return [self.channel(index) for index in range(self.dim)]

    def channel_turns(self) -> tuple[float, ...]:
        """The frequency of every channel in turns per position, as float64; 0 for a channel that is always zero."""
        return tuple(self.turns_hi[entry[0]] if entry else 0.0 for entry in self.channels())


@lru_cache(maxsize=256)
def plan(encoding: Encoding) -> Plan:
    """The plan of an encoding. It has the exact frequencies, whatever `encoding.angle` is."""
    if isinstance(encoding, Columns):
        return _columns(plan(encoding.whole), encoding.first, encoding.dim)
    sin, cos, _ = frequency.shape(encoding)
    shared = encoding.cos_frequency == "shared"
    cos_first = encoding.layout in ("cos_sin", "cos")
    n0, n1 = (cos, sin) if cos_first else (sin, cos)
    bits, values = frequency.turns(encoding)
    if not encoding.amplitude:  # frequency 0, so that no sine is negative: 0 times a negative one would be -0
        values = [0] * len(values)
    if not shared:  # reorder from sin 0, cos 0, sin 1, ... to all of stream 0, then all of stream 1
        pairs = min(sin, cos)
        sines = values[0 : 2 * pairs : 2] + (values[2 * pairs :] if sin > cos else [])
        cosines = values[1 : 2 * pairs : 2] + (values[2 * pairs :] if cos > sin else [])
        values = cosines + sines if cos_first else sines + cosines
    whole, fractions = _split(bits, values)
    turns_hi, turns_lo = _double_double(bits, values)
    return Plan(
        dim=encoding.dim, n0=n0, n1=n1, interleaved=encoding.layout == "interleaved", shared=shared,
        q0=int(cos_first), q1=int(not cos_first), amplitude=encoding.amplitude, start=encoding.start,
        fractions=tuple(fractions), whole=tuple(whole), turns_hi=tuple(turns_hi), turns_lo=tuple(turns_lo),
        largest=max(map(abs, turns_hi), default=0.0),
    )  # fmt: skip


def _columns(plan: Plan, first: int, count: int) -> Plan:
    """The plan of channels first .. first + count - 1; it has the same frequencies, so it gives the same bits.

    `largest` stays that of all channels: kernels use it to choose between algorithms whose float64 results may differ
    in the last bit.
    """
    entries = plan.channels()[first : first + count]
    if plan.interleaved:
        streams, swapped = (entries[0::2], entries[1::2]), bool(first % 2)
    else:
        streams, swapped = (entries[: max(plan.n0 - first, 0)], entries[max(plan.n0 - first, 0) :]), False
    oscillators = [[entry[0] for entry in stream if entry is not None] for stream in streams]
    longer, shorter = sorted(oscillators, key=len, reverse=True)
    shared = longer[: len(shorter)] == shorter
    order = longer if shared else oscillators[0] + oscillators[1]
    arrays = ("fractions", "whole", "turns_hi", "turns_lo")
    chosen: dict[str, Any] = {name: tuple(getattr(plan, name)[k] for k in order) for name in arrays}
    q0, q1 = (plan.q1, plan.q0) if swapped else (plan.q0, plan.q1)
    n0, n1 = map(len, oscillators)
    return replace(plan, dim=count, n0=n0, n1=n1, shared=shared, q0=q0, q1=q1, **chosen)


def _as_words(values: array[int] | array[float]) -> array[int]:
    """The bits of an array of 64-bit numbers as signed integers."""
    return array("q", values.tobytes())


def _split(bits: int, values: list[int]) -> tuple[list[int], list[int]]:
    """Splits fixed-point values into whole turns and 128 fractional bits, rounded to nearest even with carry."""
    shift = bits - frequency.FRACTION_BITS
    half = (1 << shift - 1) - 1
    rounded = [(value + half + (value >> shift & 1)) >> shift for value in values]
    return [value >> 128 for value in rounded], [value & _MASK128 for value in rounded]


def _double_double(bits: int, values: list[int]) -> tuple[list[float], list[float]]:
    """Each value as a sum of two float64, the second nearest to the error of the first (int / int rounds correctly)."""
    one = 1 << bits
    high = [value / one for value in values]
    low = []
    for value, nearest in zip(values, high, strict=True):
        mantissa, exponent = math.frexp(nearest)
        low.append((value - (int(mantissa * 2.0**53) << bits + exponent - 53)) / one)
    return high, low
