"""From the four numbers of a wave to the fields of an `Encoding`, with the roundest numbers that the table allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from . import _frequency
from ._identify_fit import COSINE, SINE, ZERO, Channels
from ._identify_refine import FINEST, Fit, Noise, Samples, Wave, solve
from .encoding import Encoding

UNITS = {"radian": 1.0, "half_turn": math.pi, "turn": 2 * math.pi}
FEW_DIGITS = 3
MOST_DIGITS = 8  # of a number that nobody chose
WORSE = 0.03  # by which a rounder number may raise the error
SHIFTS = (0.0, 0.5, 1.0)
LARGEST_PART = 256  # of a fraction such as 14 / 24
BY_CHANCE = 0.1  # of the fractions up to this one, so many come as near
LENIENCE = 3e-7  # relative: what the usual float32 formula does to a round number


class Reading(NamedTuple):
    """Fields to override in a template so that it gives the wave, and how far-fetched that is (0: none needed)."""

    fields: dict[str, Any]
    cost: float


@lru_cache(maxsize=512)
def channels_of(encoding: Encoding) -> Channels:
    """The kinds of an encoding's channels and their places on the ladder."""
    sines, cosines, _ = _frequency.shape(encoding)
    later = 0.5 if encoding.cos_frequency == "own" else 0.0
    of_sin = [(SINE, float(k)) for k in range(sines)]
    of_cos = [(COSINE, k + later) for k in range(cosines)]
    if encoding.layout == "interleaved":
        laid = [(of_cos if channel % 2 else of_sin)[channel // 2] for channel in range(sines + cosines)]
    else:
        laid = of_cos + of_sin if encoding.layout in ("cos_sin", "cos") else of_sin + of_cos
    laid += [(ZERO, 0.0)] * (encoding.dim - len(laid))
    return Channels(
        torch.tensor([kind for kind, _ in laid]), torch.tensor([index for _, index in laid], dtype=torch.float64)
    )


def exponent(encoding: Encoding) -> float:
    """Power of 1 / base from one ladder index to the next."""
    half = _frequency.shape(encoding).exponent_dim / 2 - Fraction(encoding.shift)
    return float(Fraction(encoding.exponent_scale) / half) if half else 0.0


def wave_of(encoding: Encoding) -> Wave:
    """The wave of an encoding without frequencies of its own."""
    rate = float(encoding.position_scale) * UNITS[encoding.unit]
    return Wave(rate, exponent(encoding) * math.log(encoding.base), float(encoding.start), encoding.amplitude)


def readings(
    template: Encoding, fit: Fit, samples: Samples, noise: Noise, channels: Channels | None = None
) -> Iterator[Reading]:
    """Ways to write the wave of a fit as fields of a template; channels of the samples where they are not its own."""
    channels = channels or channels_of(template)
    own = wave_of(template)
    fields: dict[str, Any] = {}
    cost = 0.0
    start = round(fit.wave.start)
    if start != template.start:
        fields["start"], cost = start, 1.0
    limit = fit.error * (1 + WORSE) + noise.size * WORSE * (FINEST if noise.relative else 1.0)

    def with_rate(rate: float) -> Fit:
        return solve(samples, channels, fit.wave._replace(rate=rate), ("decay", "amplitude"), noise, 3)

    unit = UNITS[template.unit]
    if _near(fit.wave.rate, own.rate, fit.slack.rate):
        rate = own.rate
    else:
        value, digits = _scale(
            fit.wave.rate / unit, fit.slack.rate, lambda scale: with_rate(scale * unit).error <= limit
        )
        fields["position_scale"], rate = value, value * unit
        cost += 2 + digits
    fit = with_rate(rate)

    def with_decay(decay: float) -> Fit:
        return solve(samples, channels, fit.wave._replace(decay=decay), ("amplitude",), noise, 2)

    def decay_of(changed: dict[str, Any]) -> float:
        return wave_of(template.replace(**changed)).decay

    def as_well(**changed: Any) -> bool:
        try:
            return with_decay(decay_of(changed)).error <= limit
        except (ValueError, OverflowError):
            return False

    for of_ladder, price in _ladder_fields(
        template, fit.wave.decay, fit.slack.decay, float(channels.rungs.max()), as_well
    ):
        last = with_decay(decay_of(of_ladder))

        def as_large(amplitude: float, wave: Wave = last.wave) -> bool:
            return solve(samples, channels, wave._replace(amplitude=amplitude), (), noise, 0).error <= limit

        of_size, worth = _amplitude(template, last.wave.amplitude, last.slack.amplitude, as_large)
        yield Reading({**fields, **of_ladder, **of_size}, cost + price + worth)


def _near(value: float, other: float, slack: float) -> bool:
    return abs(value - other) <= abs(other) * max(slack, LENIENCE)


def _ladder_fields(
    template: Encoding, decay: float, slack: float, reach: float, as_well: Callable[..., bool]
) -> Iterator[tuple[dict[str, Any], float]]:
    """base, shift, exponent_dim or exponent_scale, whichever is read as changed."""
    step, log_base = exponent(template), math.log(template.base)
    if not reach or not step or abs(decay - step * log_base) <= max(slack, LENIENCE * abs(decay)):
        yield {}, 0.0
        return
    log = decay / step
    if abs(log) < 600:
        value, digits = rounded(math.exp(log), abs(slack / step), lambda base: as_well(base=base))
        yield {"base": value}, 2 + digits
    if not log_base or not decay or decay * log_base < 0:
        return
    half = float(_frequency.shape(template).exponent_dim) / 2
    wanted = float(template.exponent_scale) * log_base / decay  # half - shift
    off = wanted * max(slack / abs(decay), LENIENCE)
    shift = round(2 * (half - wanted)) / 2
    near = abs(half - wanted - shift) <= off and shift < half and abs(shift) < 100
    if near and shift != template.shift and as_well(shift=shift):
        yield {"shift": shift}, 3 + _digits(shift)
    dim = round(2 * (wanted + float(template.shift)))
    if dim > 0 and abs(2 * (wanted + float(template.shift)) - dim) <= 2 * off and as_well(exponent_dim=dim):
        yield {"exponent_dim": dim}, 4.0 if off < BY_CHANCE / 10 and dim % 8 == 0 else 8.0
    yield from _base_and_shift(template, decay, slack, as_well)
    scale = decay * (half - float(template.shift)) / log_base
    value, digits = rounded(scale, slack / abs(decay), lambda by: as_well(exponent_scale=by))
    if digits <= FEW_DIGITS:
        yield {"exponent_scale": value}, 4 + digits


def _base_and_shift(
    template: Encoding, decay: float, slack: float, as_well: Callable[..., bool]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Both of them changed, where that makes the base round and no chance does."""
    for shift in SHIFTS:
        if shift == template.shift or 2 * shift >= _frequency.shape(template).exponent_dim:
            continue
        step = exponent(template.replace(shift=shift))
        relative = abs(slack / step)
        if abs(decay / step) > 300 or max(relative, LENIENCE) * 10**FEW_DIGITS > BY_CHANCE:
            continue
        value, digits = rounded(math.exp(decay / step), relative)
        if digits < FEW_DIGITS and value != template.base and as_well(shift=shift, base=value):
            yield {"shift": shift, "base": value}, 3 + _digits(shift) + digits


def _amplitude(
    template: Encoding, amplitude: float, slack: float, as_well: Callable[[float], bool]
) -> tuple[dict[str, Any], float]:
    own, relative = template.amplitude, slack / max(abs(amplitude), 1e-300)
    if _near(amplitude, own, relative):
        return {}, 0.0
    value, digits = rounded(amplitude, relative, as_well)
    if digits > FEW_DIGITS - 1:
        root = math.sqrt(template.dim)
        for size in (root, 1 / root, math.sqrt(2) / root, 1 / template.dim, math.sqrt(0.5)):
            known = math.copysign(size, amplitude)
            if _near(amplitude, known, relative):
                return {"amplitude": known}, 4.0
    return {"amplitude": value}, 2.0 + digits


def _scale(value: float, slack: float, as_well: Callable[[float], bool]) -> tuple[float, float]:
    """A position_scale: a short decimal, a small fraction, or either times pi."""
    best, digits = rounded(value, slack, as_well)
    if digits <= FEW_DIGITS:
        return best, digits
    for factor, price in ((1.0, 3.0), (2 * math.pi, 3.5), (math.pi, 3.5)):
        close = Fraction(value / factor).limit_denominator(LARGEST_PART)
        known = factor * close.numerator / close.denominator
        telling = max(slack, LENIENCE) * max(close.denominator, abs(close.numerator)) ** 2 < BY_CHANCE
        if telling and _near(known, value, slack) and as_well(known):
            return known, price
    return best, digits


def rounded(value: float, slack: float, as_well: Callable[[float], bool] | None = None) -> tuple[float, int]:
    """The decimal of fewest digits within a relative slack that fits as well, and the number of its digits."""
    for digits in range(1, 16):
        close = float(f"{value:.{digits - 1}e}")
        if abs(close - value) > abs(value) * (max(slack, LENIENCE) if digits <= FEW_DIGITS else slack):
            continue
        if as_well is None or as_well(close):
            return close, min(_digits(close), MOST_DIGITS)
    return value, MOST_DIGITS


def _digits(value: float) -> int:
    """Significant decimal digits of a number as Python writes it."""
    return len(Decimal(repr(float(value))).normalize().as_tuple().digits)
