"""Errors in units of the last place (ULP), against mpmath; used by the tests and tools/accuracy_table.py.

The true value is the formula of an Encoding, implemented from its fields without arithmetic of sinpe_ext. One ULP is
the distance between neighbouring floats of the dtype in the binade of the true value (of subnormals below the normal
range), so a correctly rounded result is at most half an ULP off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from closest import CLOSEST as CLOSEST

from sinpe_ext.encodings.encoding import Encoding

# Significant bits and exponent of the smallest subnormal.
TYPES = {"float32": (24, -149), "float64": (53, -1074), "bfloat16": (8, -133), "float16": (11, -24)}
# Precision in bits: 64 of the position, 40 of whole turns, 70 of a near-zero, 106 of the result; the rest is margin.
PRECISION = 320


class Report(NamedTuple):
    """The result of a comparison."""

    entries: int
    worst: float  # ULP
    where: tuple[float, int]  # position and channel of the worst entry
    correct: float  # share of entries at most half an ULP off
    absolute: float  # largest absolute error

    def __str__(self) -> str:
        return (
            f"{self.entries} entries, up to {self.worst:.5g} ULP (position {self.where[0]!r}, channel {self.where[1]})"
            f", {self.absolute:.3g} absolute, {100 * self.correct:.4f} % correctly rounded"
        )


class Truth:
    """The values of an encoding, exact to about 2**-106 relative, cached per entry."""

    def __init__(self, encoding: Encoding):
        with mpmath.workprec(PRECISION):
            self._formula = list(_formula(encoding))
            self._amplitude = _mpf(encoding.amplitude)
            self._radian = encoding.unit == "radian"
        self._known: dict[tuple[float, int], tuple[float, float]] = {}

    def entry(self, position: float, channel: int) -> mpmath.mpf:
        """amplitude * sin or cos of position * frequency; position is the exact value of an int or float."""
        kind, frequency = self._formula[channel]
        with mpmath.workprec(PRECISION):
            angle = _mpf(position) * frequency
            if self._radian:
                value = mpmath.cos(angle) if kind else mpmath.sin(angle)
            else:  # in half turns, so that zeros are exact
                value = mpmath.cospi(angle) if kind else mpmath.sinpi(angle)
            return self._amplitude * value

    def frequency(self, channel: int) -> mpmath.mpf:
        """Radians per position, or half turns if the unit is a fraction of a turn."""
        return self._formula[channel][1]

    def rows(self, positions: Sequence[float], channels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The entries at `channels`, (rows, any number), as an unevaluated sum of two float64 arrays."""
        high, low = np.empty(channels.shape), np.empty(channels.shape)
        for row, position in enumerate(positions):
            for column, channel in enumerate(channels[row].tolist()):
                pair = self._known.get((position, channel))
                if pair is None:
                    value = self.entry(position, channel)
                    nearest = float(value)
                    with mpmath.workprec(PRECISION):
                        pair = self._known[position, channel] = nearest, float(value - nearest)
                high[row, column], low[row, column] = pair
        return high, low


@lru_cache(maxsize=64)
def truth(encoding: Encoding) -> Truth:
    return Truth(encoding)


def _mpf(value: Any) -> mpmath.mpf:
    exact = Fraction(value)
    return mpmath.mpf(exact.numerator) / exact.denominator


def _formula(e: Encoding) -> Iterable[tuple[int, mpmath.mpf]]:
    """(0 for a sin or 1 for a cos, frequency) per channel; radians, or half turns if the unit is in turns."""
    halves = e.layout in ("sin", "cos")
    width = 2 * e.dim if halves else e.dim + {"pad": -1, "round": 1}.get(e.odd, 0) * (e.dim % 2)
    sines, cosines = ([(kind, i) for i in range((width + 1 - kind) // 2)] for kind in (0, 1))
    alternating = [(c % 2, c // 2) for c in range(width)]
    orders = {"interleaved": alternating, "sin_cos": sines + cosines, "cos_sin": cosines + sines}
    order = {**orders, "sin": sines, "cos": cosines}[e.layout]
    steps = _mpf(width if e.exponent_dim is None else e.exponent_dim) / 2 - _mpf(e.shift)
    given = sorted(2 * i + kind for kind, i in order[: e.dim])  # one per channel, if each has its own
    scale = _mpf(e.position_scale) * {"radian": 1, "half_turn": 1, "turn": 2}[e.unit]
    for kind, i in order[: e.dim]:
        per_channel = e.cos_frequency == "own"
        if e.frequencies is not None:
            frequency = _mpf(e.frequencies[given.index(2 * i + kind) if per_channel and not halves else i])
        else:
            index = i + mpmath.mpf(kind) / 2 if per_channel else mpmath.mpf(i)
            frequency = _mpf(e.base) ** (-_mpf(e.exponent_scale) * index / steps) if steps else mpmath.mpf(1)
        yield kind, scale * frequency
    if len(order) < e.dim:
        yield 0, mpmath.mpf(0)  # the zero channel


def units(high: np.ndarray, low: np.ndarray | float, dtype: str) -> np.ndarray:
    """One ULP of `dtype` at the values high + low."""
    digits, smallest = TYPES[dtype]
    mantissa, exponent = np.frexp(high)
    exponent = exponent - ((np.abs(mantissa) == 0.5) & (np.sign(high) * np.sign(low) < 0))  # just below a power of two
    return np.ldexp(1.0, np.maximum(exponent - digits, smallest))


def report(
    got: np.ndarray,
    high: np.ndarray,
    low: np.ndarray | float,
    dtype: str,
    positions: Sequence[float],
    channels: np.ndarray,
) -> Report:
    """Errors of float64 copies of results of `dtype` against high + low; all arrays (rows, entries of a row)."""
    absolute = np.abs((got - high) - low)
    absolute = np.where(np.isnan(absolute), math.inf, absolute)
    # Where the true value is 0, only 0 is accepted.
    errors = np.where(high == 0, np.where(got == 0, 0.0, math.inf), absolute / units(high, low, dtype))
    if not errors.size:
        return Report(0, 0.0, (0, 0), 1.0, 0.0)
    row, column = np.unravel_index(int(errors.argmax()), errors.shape)
    where = (positions[int(row)], int(channels[row, column]))
    return Report(errors.size, float(errors.max()), where, float((errors <= 0.5).mean()), float(absolute.max()))


def compare(
    got: torch.Tensor | np.ndarray, encoding: Encoding, positions: Sequence[float], channels: np.ndarray | None = None
) -> Report:
    """Compares rows (len(positions), dim) with the true values, at some `channels` of each row, (rows, n), or all."""
    dtype = str(got.dtype).removeprefix("torch.")
    wide = got.double().numpy() if isinstance(got, torch.Tensor) else got.astype(np.float64)
    assert wide.shape == (len(positions), encoding.dim)
    if channels is None:
        channels = np.tile(np.arange(encoding.dim), (len(positions), 1))
    high, low = truth(encoding).rows(positions, channels)
    return report(np.take_along_axis(wide, channels, 1), high, low, dtype, positions, channels)


def some_channels(rows: int, dim: int, each: int) -> np.ndarray:
    """`each` channels for each row, in rotation over all channels."""
    step = np.arange(each) * (dim / each)
    return (np.arange(rows)[:, None] + step.astype(np.int64)) % dim


class PaperTruth:
    """The paper's formula in float64 for positions below 2**17, for millions of entries: within 2**-50 relative.

    Frequencies in turns are split into three pieces such that a position times either of the first two is exact.
    """

    def __init__(self, dim: int):
        with mpmath.workprec(PRECISION):
            turns = [_mpf(10000) ** (-_mpf(i) / (dim // 2)) / (2 * mpmath.pi) for i in range(dim // 2)]
            pieces = []
            for bits in (36, 72):
                pieces.append([mpmath.ldexp(mpmath.floor(mpmath.ldexp(f, bits)), -bits) for f in turns])
                turns = [f - piece for f, piece in zip(turns, pieces[-1], strict=True)]
        self._first, self._second, self._third = (np.array([float(f) for f in fs]) for fs in (*pieces, turns))

    def rows(self, start: int, length: int) -> np.ndarray:
        """Rows start .. start + length - 1, (length, dim), sin and cos alternating."""
        assert 0 <= start and start + length <= 2**17
        p = np.arange(start, start + length, dtype=np.float64)[:, None]
        coarse = p * self._first
        quarters = np.rint(4 * coarse)
        angle = (2 * math.pi) * (((coarse - quarters / 4) + p * self._second) + p * self._third)
        sine, cosine = np.sin(angle), np.cos(angle)
        quarters = quarters.astype(np.int64)
        odd = (quarters & 1).astype(bool)
        out = np.empty((length, 2 * len(self._first)))
        out[:, 0::2] = np.where(odd, cosine, sine) * (1 - (quarters & 2))
        out[:, 1::2] = np.where(odd, sine, cosine) * (1 - (quarters + 1 & 2))
        return out


def bits(x: torch.Tensor | np.ndarray) -> np.ndarray:
    """The bits as integers, which distinguish -0.0 from 0.0 and different NaN."""
    if isinstance(x, torch.Tensor):
        x = x.detach().contiguous()
        return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]).numpy()
    return np.ascontiguousarray(x).view({2: np.int16, 4: np.int32, 8: np.int64}[x.dtype.itemsize])


def same_bits(x: torch.Tensor | np.ndarray, y: torch.Tensor | np.ndarray) -> bool:
    return x.shape == y.shape and np.array_equal(bits(x), bits(y))
