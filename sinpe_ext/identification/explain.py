"""From the four parameters of a wave to the fields of an `Encoding`, as the roundest numbers that fit the table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch

from ..encodings import frequency
from ..encodings.encoding import Encoding
from .fit import (
    COSINE,
    FLOAT32_UNIT,
    SINE,
    ZERO,
    Channels,
    Fit,
    Noise,
    Samples,
    Tolerance,
    Wave,
    misrounded,
    solve,
    tolerance_of,
)

UNITS = {"radian": 1.0, "half_turn": math.pi, "turn": 2 * math.pi}
FEW_DIGITS = 3
MOST_DIGITS = 8  # cost of an arbitrary number
ALL_DIGITS = 17  # enough for any float64
SHIFTS = (0.0, 0.5, 1.0)
LARGEST_PART = 256  # largest denominator of a fraction such as 14 / 24
POWER_OF_TWO = 1.9  # cost of a power of two, in digits
MOST_TURNS = 200  # whole turns per row that a single frequency may have
MOST_OPTIONS = 4  # simpler numbers that are tried for each field
MISROUNDED = 0.01  # fraction of 16-bit values that another way to compute the encoding may round differently
BY_CHANCE = 0.5  # largest expected number of fractions, as simple or simpler, that are as near by chance
LARGEST_DIM = 2**20
LENIENCE = 3e-7  # relative error of a round number in the usual float32 formula


class Reading(NamedTuple):
    """The fields to override in a template so that it gives the wave, and their cost; 0 if there are none."""

    fields: dict[str, Any]
    cost: float


@lru_cache(maxsize=512)
def channels_of(encoding: Encoding) -> Channels:
    """The kinds and ladder indices of an encoding's channels."""
    sines, cosines, _ = frequency.shape(encoding)
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
    """The power of 1 / base by which neighbouring frequencies of the ladder differ."""
    half = frequency.shape(encoding).exponent_dim / 2 - Fraction(encoding.shift)
    return float(Fraction(encoding.exponent_scale) / half) if half else 0.0


def wave_of(encoding: Encoding) -> Wave:
    """The wave of an encoding without explicit `frequencies`."""
    rate = float(encoding.position_scale) * UNITS[encoding.unit]
    return Wave(rate, exponent(encoding) * math.log(encoding.base), float(encoding.start), encoding.amplitude)


def readings(
    template: Encoding, fit: Fit, samples: Samples, noise: Noise, channels: Channels | None = None
) -> Iterator[Reading]:
    """Yields the ways to express the wave of a fit as fields of a template; `channels` are those of the samples, if
    they differ from the template's."""
    channels = channels or channels_of(template)
    template_wave = wave_of(template)
    fields: dict[str, Any] = {}
    cost = 0.0
    start = round(fit.wave.start)
    if start != template.start:
        fields["start"], cost = start, 1.0
    allowed = tolerance_of(samples, channels, fit, noise)

    def with_rate(rate: float) -> Fit:
        return solve(samples, channels, fit.wave._replace(rate=rate), ("decay", "amplitude"), noise, 3)

    def as_fast(rate: float) -> bool:
        return with_rate(rate).error <= allowed.limit

    unit, reach = UNITS[template.unit], float(channels.rungs.max())
    slack = max(fit.slack.rate, 2 * allowed.relative)
    if _near(fit.wave.rate, template_wave.rate, slack) and as_fast(template_wave.rate):
        rate = template_wave.rate
    else:
        value, digits = _scale(
            fit.wave.rate / unit, slack, lambda scale: as_fast(scale * unit), 0.0 if reach else 2 * math.pi / unit
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
            return with_decay(decay_of(changed)).error <= allowed.limit
        except (ValueError, OverflowError):
            return False

    decay = fit.wave.decay
    slack = max(fit.slack.decay, allowed.relative * (2 * abs(decay) + 4 / max(reach, 1.0)))
    for of_ladder, price in _ladder_fields(template, decay, slack, reach, as_well):
        last = with_decay(decay_of(of_ladder))

        def as_large(amplitude: float, last: Fit = last) -> bool:
            return allowed.as_large(
                solve(samples, channels, last.wave._replace(amplitude=amplitude), (), noise, 0), last
            )

        off = max(last.slack.amplitude / max(abs(last.wave.amplitude), 1e-300), 2 * FLOAT32_UNIT)
        of_size, worth = _amplitude(template, last.wave.amplitude, off, as_large)
        reading = Reading({**fields, **of_ladder, **of_size}, cost + price + worth)
        yield _as_stored(template, reading, samples, channels, noise, allowed) if noise.relative else reading


def _as_stored(
    template: Encoding, reading: Reading, samples: Samples, channels: Channels, noise: Noise, allowed: Tolerance
) -> Reading:
    """The simplest numbers near those of a reading that reproduce the 16-bit values.

    Values that hardly change from row to row have correlated rounding errors, which bias a least-squares fit.
    """
    names = [name for name in ("position_scale", "base", "amplitude") if name in reading.fields]
    options: list[list[tuple[float, float]]] = []
    now = 0.0
    for name in names:
        value = reading.fields[name]
        known = _fractions(value, noise.unit) if name == "position_scale" else []
        known += _roots(template, value, noise.unit) if name == "amplitude" else []
        worth = _worth(value, known)
        near = [option for option in _numbers(value, 4 * noise.unit, known) if option[0] <= worth][:MOST_OPTIONS]
        options.append(near or [(worth, value)])
        now += worth
    for chosen in sorted(itertools.product(*options), key=lambda chosen: sum(worth for worth, _ in chosen)):
        digits = sum(worth for worth, _ in chosen)
        if digits >= now:
            break
        fields = dict(reading.fields)
        fields.update(zip(names, [value for _, value in chosen], strict=True))
        try:
            wave = wave_of(template.replace(**fields))
        except (ValueError, OverflowError):
            continue
        if misrounded(samples, channels, wave, noise, allowed.relative) <= MISROUNDED:
            unchanged = {name for name in names if fields[name] == getattr(template, name)}
            kept = {name: value for name, value in fields.items() if name not in unchanged}
            return Reading(kept, reading.cost - (now - digits) - 2 * len(unchanged))
    return reading


def _near(value: float, other: float, slack: float) -> bool:
    """Whether two numbers agree within a relative slack."""
    return abs(value - other) <= abs(other) * slack


def _ladder_fields(
    template: Encoding, decay: float, slack: float, reach: float, as_well: Callable[..., bool]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Yields the changes of base, shift, exponent_dim or exponent_scale that give this decay, each with its cost."""
    step, log_base = exponent(template), math.log(template.base)
    if not reach or not step or (abs(decay - step * log_base) <= slack and as_well()):
        yield {}, 0.0
        return
    log = decay / step
    if abs(log) < 600:
        value, digits = rounded(math.exp(log), abs(slack / step), lambda base: as_well(base=base))
        yield {"base": value}, 2 + digits
    if not log_base or not decay or decay * log_base < 0:
        return
    half = float(frequency.shape(template).exponent_dim) / 2
    wanted = float(template.exponent_scale) * log_base / decay  # half - shift
    off = wanted * slack / abs(decay)
    shift = round(2 * (half - wanted)) / 2
    near = abs(half - wanted - shift) <= off and shift < half and abs(shift) < 100
    if near and shift != template.shift and as_well(shift=shift):
        yield {"shift": shift}, (3 if shift in SHIFTS else 6) + _digits(shift)
    dim = round(2 * (wanted + float(template.shift)))
    if (
        0 < dim < LARGEST_DIM
        and abs(2 * (wanted + float(template.shift)) - dim) <= 2 * off
        and as_well(exponent_dim=dim)
    ):
        yield {"exponent_dim": dim}, 4.0 if off < 0.01 and dim % 8 == 0 else 8.0
    yield from _base_and_shift(template, decay, slack, as_well)
    scale = decay * (half - float(template.shift)) / log_base
    value, digits = rounded(scale, slack / abs(decay), lambda by: as_well(exponent_scale=by))
    if digits <= FEW_DIGITS:
        yield {"exponent_scale": value}, 4 + digits


def _base_and_shift(
    template: Encoding, decay: float, slack: float, as_well: Callable[..., bool]
) -> Iterator[tuple[dict[str, Any], float]]:
    """Changes of both base and shift, if they make the base round and this is unlikely to be chance."""
    for shift in SHIFTS:
        if shift == template.shift or 2 * shift >= frequency.shape(template).exponent_dim:
            continue
        step = exponent(template.replace(shift=shift))
        relative = abs(slack / step)
        if abs(decay / step) > 300:
            continue
        value, digits = rounded(math.exp(decay / step), relative, partial(_base_fits, as_well, shift))
        if relative * 10**digits < 0.1 and value != template.base and _base_fits(as_well, shift, value):
            yield {"shift": shift, "base": value}, (3 if shift == 1 else 4) + digits


def _base_fits(as_well: Callable[..., bool], shift: float, base: float) -> bool:
    """Whether an encoding with this shift and base fits as well."""
    return as_well(shift=shift, base=base)


def _amplitude(
    template: Encoding, amplitude: float, slack: float, as_well: Callable[[float], bool]
) -> tuple[dict[str, Any], float]:
    """The amplitude of the template, or else the simplest: a short decimal, or one of the usual square roots."""
    if _near(amplitude, template.amplitude, slack) and as_well(template.amplitude):
        return {}, 0.0
    value, digits = simplest(amplitude, slack, _roots(template, amplitude, slack), as_well)
    return {"amplitude": value}, 2.0 + digits


def _roots(template: Encoding, amplitude: float, slack: float) -> list[tuple[float, float]]:
    """The usual amplitudes, such as sqrt(dim), within a relative slack, each with its cost."""
    root = math.sqrt(template.dim)
    of_dim = [(2.0, size) for size in (root, 1 / root, math.sqrt(2) / root, 1 / template.dim)]
    return [
        (worth, math.copysign(size, amplitude))
        for worth, size in [*of_dim, (FEW_DIGITS + 0.5, math.sqrt(0.5))]
        if _near(size, abs(amplitude), slack)
    ]


def _scale(value: float, slack: float, as_well: Callable[[float], bool], turn: float) -> tuple[float, float]:
    """A position_scale: the simplest of short decimals, small fractions, and either times pi.

    Args:
        turn: if there is a single frequency, the scale of a whole turn; adding whole turns then changes no value.
    """
    known = _fractions(value, slack)
    for turns in range(-MOST_TURNS, MOST_TURNS + 1) if turn else ():
        more = value + turns * turn
        short = float(f"{more:.1e}")
        if short and abs(short - more) <= abs(value) * slack + abs(more) * FLOAT32_UNIT:
            known.append((1.0 + _digits(short) + (short < 0), short))
    return simplest(value, slack, known, as_well)


def _fractions(value: float, slack: float) -> list[tuple[float, float]]:
    """Small fractions and their products with pi within a relative slack, each with its cost."""
    fractions = []
    for factor, price in ((1.0, 1.0), (math.pi, 1.7)):
        for numerator, denominator in _convergents(value / factor, LARGEST_PART):
            product = factor * numerator / denominator
            telling = slack * abs(numerator) * denominator < BY_CHANCE
            if telling and _near(value, product, slack):
                fractions.append((price + math.log10(abs(numerator) * denominator), product))
    return fractions


def _convergents(value: float, largest: int) -> Iterator[tuple[int, int]]:
    """The convergents of the continued fraction of a number, with denominators up to `largest`."""
    (p, before_p), (q, before_q) = (1, 0), (0, 1)
    left = Fraction(value)
    while True:
        whole = math.floor(left)
        p, before_p = whole * p + before_p, p
        q, before_q = whole * q + before_q, q
        if q > largest:
            return
        if p:
            yield p, q
        if left == whole:
            return
        left = 1 / (left - whole)


def rounded(value: float, slack: float, as_well: Callable[[float], bool]) -> tuple[float, float]:
    """The decimal with the fewest digits within a relative slack that fits as well, and its number of digits."""
    return simplest(value, slack, [], as_well)


def simplest(
    value: float, slack: float, known: list[tuple[float, float]], as_well: Callable[[float], bool]
) -> tuple[float, float]:
    """The simplest number within a relative slack that fits as well, and its cost in digits.

    Args:
        known: (cost, number) of further numbers, which are not short decimals.
    """
    for digits, close in _numbers(value, slack, known):
        if as_well(close):
            return close, min(digits, float(MOST_DIGITS))
    return value, float(MOST_DIGITS)


def _numbers(value: float, slack: float, known: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(cost, number) of the known numbers, the decimals and the power of two within a relative slack, simplest
    first."""
    near = {float(f"{value:.{digits - 1}e}") for digits in range(1, ALL_DIGITS + 1)}
    if value:
        near.add(math.copysign(2.0 ** round(math.log2(abs(value))), value))
    counted = [(_digits(number), number) for number in near if _near(value, number, slack)]
    return sorted({*known, *counted})


def _worth(value: float, known: list[tuple[float, float]]) -> float:
    """The cost of a number."""
    return min([digits for digits, number in known if number == value] + [_digits(value)])


def _digits(value: float) -> float:
    """The significant digits of a number in Python's repr; a power of two costs less than two digits."""
    digits = len(Decimal(repr(float(value))).normalize().as_tuple().digits)
    return min(digits, POWER_OF_TWO) if math.frexp(abs(value))[0] == 0.5 else float(digits)
