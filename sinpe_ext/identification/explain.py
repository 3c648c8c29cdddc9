"""From the four numbers of a wave to the fields of an `Encoding`: the shortest numbers that reproduce the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ..agreement import VALUE_ERROR
from ..encodings import frequency
from ..encodings.encoding import Encoding
from .fit import COLUMNS, ROWS, Channels, Samples, Wave, refine, scattered

RADIANS = {"radian": 1.0, "half_turn": math.pi, "turn": 2 * math.pi}
MISROUNDED = 0.01  # fraction of the values that another way to compute the encoding may round differently
NEAR_MISS = 0.25  # fraction of the values that a fit of the table's own encoding does not misround
TELLING, FEWEST_TELLING = 32.0, 32  # see `is_exact`
DOUBLE = 2.0**-29  # errors of float64 formulas, relative to those of float32
NEAR = 0.02  # largest relative difference of a simpler number from a fitted one
FEW_DIGITS = 4.0  # of a number that is unlikely to be chance
SOME_DIGITS = 5.0  # a longer number may be chance
# Largest ratio of the errors of a number to those of the fitted one, which absorbs some of the errors of a float32
# formula: half of them, with a few rows two thirds.
NEARLY, AS_NEAR = 4.0, 1.1  # AS_NEAR: of a number that may be chance
SINE_ERROR = 2.0**-22  # relative, of a sine or cosine in float32
MOST_DIGITS = 8.0  # cost of an arbitrary number
LARGEST_DIM = 2**20
MOST_LOG_BASE = 600.0


class Expression(float):
    """A float whose repr is the expression that it is computed from, such as 10000**(-62/64)."""

    text: str

    def __new__(cls, value: float, text: str) -> Expression:
        self = super().__new__(cls, value)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text

    def __getnewargs__(self) -> tuple[float, str]:  # type: ignore[override]
        return float(self), self.text  # for copy and pickle


class Explanation(NamedTuple):
    """Fields that differ from a template's, and their cost: about the number of digits."""

    fields: dict[str, Any]
    cost: float


@lru_cache(maxsize=512)
def channels_of(encoding: Encoding) -> Channels:
    """The channels of an encoding without explicit `frequencies`."""
    sines, cosines, _ = frequency.shape(encoding)
    later = 0.5 if encoding.cos_frequency == "own" else 0.0
    sin = [(False, float(k)) for k in range(sines)]
    cos = [(True, k + later) for k in range(cosines)]
    if encoding.layout == "interleaved":
        laid = [(cos if channel % 2 else sin)[channel // 2] for channel in range(sines + cosines)]
    else:
        laid = cos + sin if encoding.layout in ("cos_sin", "cos") else sin + cos
    zeros = encoding.dim - len(laid)
    return Channels(
        torch.tensor([cosine for cosine, _ in laid] + [False] * zeros),
        torch.tensor([False] * len(laid) + [True] * zeros),
        torch.tensor([index for _, index in laid] + [0.0] * zeros, dtype=torch.float64),
    )


def exponent_step(encoding: Encoding) -> float:
    """The power of 1 / base by which neighbouring frequencies differ."""
    half = frequency.shape(encoding).exponent_dim / 2 - Fraction(encoding.shift)
    return float(Fraction(encoding.exponent_scale) / half) if half else 0.0


def wave_of(encoding: Encoding) -> Wave:
    """The wave of an encoding without explicit `frequencies`."""
    rate = float(encoding.position_scale) * RADIANS[encoding.unit]
    return Wave(rate, exponent_step(encoding) * math.log(encoding.base), float(encoding.start), encoding.amplitude)


def is_exact(samples: Samples, channels: Channels, wave: Wave) -> bool:
    """Whether the values are those of a wave, rounded once, where float32 angles would have larger errors."""
    t = samples.t.double()
    rounding, errors = samples.rounding(), wave.errors(t, channels)
    telling = errors - abs(wave.amplitude) * VALUE_ERROR > TELLING * rounding
    telling &= channels.exponent > 0  # the first frequency is often 1, and its angles are integers, hence exact
    outside = (samples.x - wave.at(t, channels)).abs() > rounding + DOUBLE * errors
    return int(telling.sum()) >= FEWEST_TELLING and float(outside[telling].double().mean()) < 0.03


class Explainer:
    """Explains the wave that was fitted to some samples as fields of templates.

    Attributes:
        exact: whether the table has no float32 angle errors, so that its numbers must reproduce all of its digits.
    """

    def __init__(self, samples: Samples, channels: Channels, wave: Wave) -> None:
        live = (~channels.zero).nonzero().flatten()
        live = live[scattered(len(live), COLUMNS)]
        self.channels, self.wave = channels.columns(live), wave
        samples = samples.some(scattered(len(samples.t), 2 * ROWS), live)
        off = (samples.x - wave.at(samples.t.double(), self.channels)).abs().mean(1)
        like = off <= 4 * off.median().clamp_min(samples.noise)  # without rows that were changed
        self.samples = samples.some(like)
        self.samples = self.samples.some(scattered(len(self.samples.t), ROWS))
        self.exact = is_exact(self.samples, self.channels, wave)
        self.tried: dict[tuple[Wave, float], bool] = {}
        self.slack = 0.0
        if samples.unit > 2.0**-20:  # the rounding errors of many equal 16-bit values bias the amplitude
            changes = sorted(range(-16, 17), key=abs)
            near = [wave._replace(amplitude=wave.amplitude * (1 + k * samples.unit / 16)) for k in changes]
            self.wave = min(near, key=self.outside)
        if self.outside(self.wave) > NEAR_MISS:  # numbers within the errors of the fit are good enough
            self.slack = 4 * float(off[like].mean())
        self.most = max(MISROUNDED, 1.5 * self.outside(self.wave))
        self.least = self.errors(self.wave)

    def outside(self, wave: Wave) -> float:
        """The fraction of the values that differ from a wave by more than rounding errors."""
        t = self.samples.t.double()
        size = abs(wave.amplitude)
        errors = wave.errors(t, self.channels) - size * VALUE_ERROR + SINE_ERROR * (self.samples.x.abs() + size / 16)
        allowed = self.samples.rounding() + self.slack + errors * (DOUBLE if self.exact else 1.0)
        return float(((self.samples.x - wave.at(t, self.channels)).abs() > allowed).double().mean())

    def errors(self, wave: Wave) -> tuple[float, float]:
        """The rms and the largest difference of the values from a wave."""
        apart = self.samples.x - wave.at(self.samples.t.double(), self.channels)
        return float(apart.square().mean()) ** 0.5, float(apart.abs().max())

    def is_near(self, wave: Wave, ratio: float) -> bool:
        """Whether the errors of a wave are of the size of those of the fitted one."""
        rms, largest = self.errors(wave)
        noise = self.samples.noise
        return rms <= ratio * self.least[0] + noise / 64 and largest <= NEARLY * self.least[1] + noise / 4

    def agrees(self, wave: Wave, digits: float = 0.0) -> bool:
        """Whether a wave of a number of some digits reproduces about as many values as the fitted one, as nearly."""
        ratio = AS_NEAR if digits > SOME_DIGITS else NEARLY
        if (wave, ratio) not in self.tried:
            near = self.samples.unit > 2.0**-20 or self.is_near(wave, ratio)
            self.tried[wave, ratio] = near and self.outside(wave) <= self.most
        return self.tried[wave, ratio]

    def with_rate(self, rate: float, start: float | None = None, decay: float | None = None) -> Wave:
        """The wave with another rate, and the decay and fractional start that fit best, unless they are given."""
        fixed = start is not None or self.wave.start.is_integer()
        wave = self.wave._replace(rate=rate, start=self.wave.start if start is None else start)
        if decay is not None:
            wave = wave._replace(decay=decay)
        free = ((1,) if decay is None else ()) + (() if fixed else (2,))
        return refine(self.samples, self.channels, wave, free, 2 if fixed else 6)[0]

    def with_short_base(self, template: Encoding) -> Wave | None:
        """The wave with the decay of the template's base, or of another of few digits, and the rate that fits best."""
        step = exponent_step(template)
        if not step or abs(self.wave.decay / step) > MOST_LOG_BASE:
            return None
        others = numbers(math.exp(self.wave.decay / step))
        for base in (float(template.base), *(base for digits, base in others if digits <= FEW_DIGITS)):
            decay = step * math.log(base)
            if abs(decay - self.wave.decay) <= NEAR * abs(step):
                free = (0,) if self.wave.start.is_integer() else (0, 2)
                wave = refine(self.samples, self.channels, self.wave._replace(decay=decay), free)[0]
                if self.agrees(wave):
                    return wave
        return None

    def shortest(
        self, known: float, options: list[tuple[float, float]], near: float, wave: Callable[[float], Wave]
    ) -> tuple[float, float]:
        """The template's own number, or the first (cost, number) near a fitted one whose wave agrees; and its cost."""
        for cost, number in [(0.0, known), *((2 + cost, number) for cost, number in sorted(options))]:
            if abs(number - near) <= NEAR * abs(near) and self.agrees(wave(number), cost - 2):
                return number, min(cost, 2 + MOST_DIGITS)
        return near, 2 + MOST_DIGITS

    def explain(self, template: Encoding) -> Iterator[Explanation]:
        """Ways to write the wave as fields that differ from a template's."""
        unit = RADIANS[template.unit]
        known = float(template.position_scale)
        near, decay = self.wave.rate / unit, None
        options = numbers(near) + fractions(near) + self._other_ends(template, near)
        scale, cost = self.shortest(known, options, near, lambda s: self.with_rate(s * unit))
        short_base = self.with_short_base(template) if scale != known else None
        if short_base:
            near, decay = short_base.rate / unit, short_base.decay
            options = numbers(near) + fractions(near) + self._other_ends(template, near)
            scale, cost = self.shortest(known, options, near, lambda s: self.with_rate(s * unit, decay=decay))
        wave = self.with_rate(scale * unit, decay=decay)
        start: float = round(wave.start)
        if not wave.start.is_integer():
            options = numbers(wave.start) + fractions(wave.start)
            options += [(digits, first / scale) for digits, first in numbers(wave.start * scale)]
            options.append((3.0, 0.5 - 0.5 / scale))  # of interpolation: (row + 0.5) * scale - 0.5
            start, digits = self.shortest(
                start, options, wave.start, lambda s: self.with_rate(scale * unit, s, decay=decay)
            )
            wave = self.with_rate(scale * unit, start, decay)
            cost += digits
        fields: dict[str, Any] = {} if start == template.start else {"start": start}
        cost += len(fields)
        if scale != known:
            fields["position_scale"] = scale
        root = math.sqrt(template.dim)
        roots = (root, 1 / root, math.sqrt(2) / root, 1 / template.dim, math.sqrt(0.5))
        for explained in self._base(template, wave):
            decay = wave_of(template.replace(**explained.fields)).decay
            with_amplitude = partial(Wave, wave.rate, decay, wave.start)
            options = numbers(wave.amplitude, roots)
            size, digits = self.shortest(template.amplitude, options, wave.amplitude, with_amplitude)
            amplitude = {} if size == template.amplitude else {"amplitude": size}
            yield Explanation({**fields, **explained.fields, **amplitude}, cost + explained.cost + digits)

    def _other_ends(self, template: Encoding, rate: float) -> list[tuple[float, float]]:
        """(cost, position_scale) near a rate for which frequency 1 is at another index than 0: base ** (-index * step).

        That of ascending frequencies is the last one, as in 10000 ** (-i / 32) for i = 31, 30, ..., 0; and the index 0
        is missing if i is 1, 2, 3, ....
        """
        step = exponent_step(template)
        dim = frequency.shape(template).exponent_dim - 2 * Fraction(template.shift)
        if not step or not self.wave.decay or dim.denominator > 1 or abs(self.wave.decay / step) > MOST_LOG_BASE:
            return []
        found: list[tuple[float, float]] = []
        for digits, base in numbers(math.exp(abs(self.wave.decay / step))):
            if digits <= FEW_DIGITS and base > 1:
                index = round(-math.log(rate) / math.log(base) / step) if rate > 0 else 0
                power = -index * 2 * Fraction(template.exponent_scale)
                if power.denominator == 1 and 0 < abs(index) <= frequency.count(template):
                    text = f"{short(base)}**({power}/{dim})"
                    found.append((2 + digits, Expression(base ** (int(power) / int(dim)), text)))
        return found

    def _base(self, template: Encoding, wave: Wave) -> Iterator[Explanation]:
        """Changes of base, shift or exponent_dim that give the decay of a wave."""

        def fits(digits: float = 0.0, **fields: Any) -> bool:
            try:
                decay = wave_of(template.replace(**fields)).decay
            except (ValueError, OverflowError):
                return False
            return self.agrees(wave._replace(decay=decay), digits)

        if not exponent_step(template) or fits():
            yield Explanation({}, 0.0)
            return
        half = float(frequency.shape(template).exponent_dim) / 2
        for shift in dict.fromkeys((float(template.shift), 0.0, 1.0, 0.5)):
            if shift >= half:
                continue
            log = wave.decay * (half - shift) / float(template.exponent_scale)
            moved = {} if shift == template.shift else {"shift": shift}
            if moved and fits(**moved):
                yield Explanation(moved, 4.0)
                continue
            if abs(log) < MOST_LOG_BASE:
                options = numbers(math.exp(log))
                inverse = numbers(math.exp(-log)) if log < 0 else []
                options += [(n + 1, Expression(1 / b, f"1/{short(b)}")) for n, b in inverse if n <= FEW_DIGITS]
                found = (item for item in sorted(options) if fits(item[0], base=item[1], **moved))
                digits, base = next(found, (MOST_DIGITS, math.exp(log)))
                if not moved or digits <= FEW_DIGITS:
                    yield Explanation({"base": base, **moved}, 2 + min(digits, MOST_DIGITS) + 3 * len(moved))
        log_base = math.log(template.base)
        wanted = float(template.exponent_scale) * log_base / wave.decay if wave.decay * log_base > 0 else 0.0
        dim = round(min(2 * (wanted + float(template.shift)), LARGEST_DIM))
        if 0 < dim < LARGEST_DIM and fits(exponent_dim=dim):
            yield Explanation({"exponent_dim": dim}, 4.0 if dim % 8 == 0 else 8.0)


def numbers(value: float, likely: tuple[float, ...] = ()) -> list[tuple[float, float]]:
    """(cost, number) of decimals and likely numbers near a value, shortest first."""
    near = {float(f"{value:.{digits}e}") for digits in range(17)}
    return sorted(
        [(digits_of(number), number) for number in near] + [(2.0, math.copysign(number, value)) for number in likely]
    )


def fractions(value: float) -> list[tuple[float, float]]:
    """(cost, number) of small fractions, 1 / n for any n, and such fractions times pi, near a value."""
    found = []
    for factor, cost in ((1.0, 0.5), (math.pi, 1.2), (2 * math.pi, 1.2)):
        part = abs(value) / factor
        parts = {Fraction(part).limit_denominator(2**k) for k in range(9)}
        parts |= {Fraction(k, round(k / part)) for k in range(1, 10) if 0.5 < k / part < 1e5}
        for top, bottom in {(part.numerator, part.denominator) for part in parts if part}:
            number = math.copysign(factor * top / bottom, value)
            text = f"{short(math.copysign(factor * top, value))}/{bottom}"
            simple = digits_of(number) <= SOME_DIGITS or bottom == 1
            digits = cost + math.log10(top * bottom)
            if digits <= SOME_DIGITS:
                found.append((digits, number if simple else Expression(number, text)))
    return found


def short(value: float) -> str:
    """A number in Python, without ".0"."""
    return repr(int(value) if value.is_integer() else value)


def digits_of(value: float) -> float:
    """The significant digits of a number in Python's repr; a power of two counts less than two."""
    digits = len(Decimal(repr(float(value))).normalize().as_tuple().digits)
    return min(digits, 1.9) if math.frexp(abs(value))[0] == 0.5 else float(digits)
