"""Least squares for the four numbers of a sinusoidal table: rate, decay, start and amplitude."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fit import COSINE, TAU, ZERO, Channels, measure, scattered
from .ladder import Ladder, first_positions, ladders

ROWS, COLUMNS = 256, 112  # looked at in one step: few enough for one thread
WELL = 0.1  # error of a fit, relative to its amplitude, that is worth comparing
EXACTLY = 1e-4  # as WELL, of a fit that needs no other
LARGEST_LOG = 300.0  # between the first frequency and the last
SPOILT = 1.5
WINDOW = 256  # consecutive rows that frequencies are first measured on
FINEST = 1 / 16  # relative to the largest value: below it nothing is gained
FLOAT32_UNIT, DOUBLE_UNIT = 2.0**-24, 2.0**-51  # relative rounding of an angle's factors, as usual and in float64
SIGNIFICANT = 25.0  # squared errors, in units of the noise, by which the right wave may fit worse than the best
LEAST_VALUE = 2.0**-6  # relative to the amplitude: smaller ones are taken to be as exact as this one
MOST_EXPLAINED = 0.1  # share of values that say nothing of the numbers: too many
FEWEST_TELLING = 32  # values that tell exact angles from float32 ones
NAMES = ("rate", "decay", "start", "amplitude")


class Wave(NamedTuple):
    """amplitude * sin or cos of rate * exp(-decay * index) * (row + start)."""

    rate: float
    decay: float
    start: float
    amplitude: float

    def ladder(self) -> Ladder:
        return Ladder(self.rate, self.decay)

    def at(self, rows: Tensor, channels: Channels) -> Tensor:
        """The values of some rows (n,), (n, m); 0 in zero channels."""
        turns = (rows[:, None] + self.start) * (self.ladder().at(channels.rungs) / TAU)
        angle = turns.sub_(turns.round()).mul_(TAU)
        value = torch.where(channels.kinds == COSINE, angle.cos(), angle.sin())
        return self.amplitude * value * (channels.kinds != ZERO)


class Fit(NamedTuple):
    """A wave, how far its rate (relative), decay, start and amplitude may be off, and the rms error."""

    wave: Wave
    slack: Wave
    error: float


class Noise(NamedTuple):
    """Rounding of stored values.

    Fields:
        size: error of a large value.
        relative: whether the error is relative to each value (16-bit types).
        unit: largest relative error of storing a value.
        absolute: largest absolute error of storing a value, where that is larger (printed decimals, subnormals).
    """

    size: float
    relative: bool
    unit: float
    absolute: float = 0.0


class Samples(NamedTuple):
    """Rows of a table by their number, ascending: (n,), (n, m)."""

    rows: Tensor
    values: Tensor


def spread(number: int, most: int) -> Tensor:
    """At most `most` of 0..number-1, evenly spaced, with both ends."""
    return torch.linspace(0, number - 1, min(number, most), dtype=torch.float64).round().long().unique()


def find(
    samples: Samples, channels: Channels, noise: Noise, window: tuple[int, int], rates: Sequence[float] = ()
) -> Fit | None:
    """The wave that these samples may be, from nothing but the channels' kinds; measured first on a window of rows."""
    begin, end = window
    best: Fit | None = None
    columns = measure(samples.values[begin:end], channels, noise.size)
    for ladder in ladders(columns, rates) if columns else ():
        for start, amplitude in first_positions(samples.values[begin:end], channels, ladder, noise.size):
            wave = Wave(*ladder, start - int(samples.rows[begin]), amplitude)
            fit = _grown(samples, channels, wave, begin, end, noise)
            if fit is not None and (best is None or fit.error < best.error):
                best = fit
            if best is not None and best.error < max(3 * noise.size, EXACTLY * abs(best.wave.amplitude)):
                return best
    return best


def windows(samples: Samples) -> list[tuple[int, int]]:
    """Runs of consecutive rows: the longest; parts of it as well where some rows are far from their neighbours."""
    rows = samples.rows
    breaks = ((rows[1:] - rows[:-1]) != 1).nonzero().flatten().add(1).tolist()
    edges = [0, *breaks, len(rows)]
    begin, end = max(itertools.pairwise(edges), key=lambda run: run[1] - run[0])
    length = min(WINDOW, end - begin)
    if length < 2:
        return []
    found = [(begin, begin + length)]
    steps = (samples.values[begin + 1 : begin + length] - samples.values[begin : begin + length - 1]).norm(dim=1)
    if float(steps.max()) > SPOILT * float(steps.median()):  # the rows of an encoding are equally far apart
        short = max(min(length // 2, 64), 8)
        middle = begin + (end - begin - short) // 2
        found += [(middle, middle + short), (end - short, end), (begin, begin + short)]
    return found


def _grown(samples: Samples, channels: Channels, wave: Wave, begin: int, end: int, noise: Noise) -> Fit | None:
    """Fits on the window, then on ever more rows around it; None where the window itself does not fit."""
    inside = Samples(samples.rows[begin:end], samples.values[begin:end])
    fit = solve(inside, channels, wave, NAMES, noise)
    rounded = fit.wave._replace(start=float(round(fit.wave.start)))
    fit = solve(inside, channels, rounded, ("rate", "decay", "amplitude"), noise)
    if fit.error > 0.3 * abs(fit.wave.amplitude):
        return None
    while end - begin < len(samples.rows):
        begin, end = max(0, begin - 2 * (end - begin)), min(len(samples.rows), end + 2 * (end - begin))
        inside = Samples(samples.rows[begin:end], samples.values[begin:end])
        fit = solve(inside, channels, fit.wave, ("rate", "decay", "amplitude"), noise)
    return fit


class Subset(NamedTuple):
    """The rows (n, 1) and values (n, m) that a step looks at, with rungs, whether cosines, and weights (n, m)."""

    t: Tensor
    x: Tensor
    rung: Tensor
    cosine: Tensor
    fine: Tensor


def _subset(samples: Samples, channels: Channels, noise: Noise) -> Subset:
    live = channels.live()
    columns, rows = live[scattered(len(live), COLUMNS)], spread(len(samples.rows), ROWS)
    t, x = samples.rows[rows].double()[:, None], samples.values[rows][:, columns]
    # A small value in 16 bits is known better than a large one.
    fine = 1 / (x.abs() / x.abs().max().clamp_min(1e-300) + FINEST).square() if noise.relative else torch.ones_like(x)
    fine /= fine.mean()
    return Subset(t, x, channels.rungs[columns], channels.kinds[columns] == COSINE, fine)


class Tolerance(NamedTuple):
    """How much worse than the best fit a wave may fit and still have made the table.

    Fields:
        limit: largest rms error.
        factor: what the noise of a fit allows, on its rms error.
        of_amplitude: rms error of an amplitude that was rounded to float32.
        relative: error of a frequency, for each e-fold of the ladder and one more: 0 for a table of exact angles.
    """

    limit: float
    factor: float
    of_amplitude: float
    relative: float

    def as_large(self, fit: Fit, best: Fit) -> bool:
        """Whether a fit that differs from the best in its amplitude alone is as good: angles do not matter to that."""
        return fit.error <= best.error * self.factor + self.of_amplitude


def tolerance_of(samples: Samples, channels: Channels, fit: Fit, noise: Noise) -> Tolerance:
    """How far the best fit may be from the wave that made a table.

    Two things move the best fit away from it: the rounding of the stored values, which averages out, and, in a table
    of the usual float32 formula, the rounding of frequencies and angles, which does not: exp, pow and their argument
    are off by up to 1 + decay * rung units of 2^-24, the same way in every row.
    """
    t, x, index, cosine, fine = _subset(samples, channels, noise)
    wave = fit.wave
    angle = (t + wave.start) * wave.ladder().at(index)
    value = wave.amplitude * torch.where(cosine, angle.cos(), angle.sin())
    slope = abs(wave.amplitude) * torch.where(cosine, angle.sin(), angle.cos()).abs()
    efolds = 1 + (wave.decay * index).abs()

    def rms(error: Tensor) -> float:
        return math.sqrt(float((error.square() * fine).mean()))

    def shifted(unit: float) -> Tensor:
        off = (angle.abs() * (unit * efolds)).clamp_max(1.0)
        return (slope + abs(wave.amplitude) / 2 * off) * off

    stored = torch.exp2(value.abs().clamp_min(abs(wave.amplitude) * LEAST_VALUE).log2().floor())
    stored = (stored * noise.unit).clamp_min(noise.absolute) / math.sqrt(3)  # of errors that are evenly spread
    stored += shifted(DOUBLE_UNIT)  # of this computation
    later = index > 0  # the first frequency is often 1, and its angles are integers
    exact = _is_exact((x - value)[:, later], stored[:, later], (slope * angle.abs())[:, later])
    least = max(fit.error, rms(stored) / 2)  # few values are fitted better than they are stored
    factor = math.sqrt(1 + SIGNIFICANT / x.numel())
    limit = least * factor + rms(shifted(DOUBLE_UNIT if exact else FLOAT32_UNIT))
    unit = max(noise.unit, 0.0 if exact else FLOAT32_UNIT)
    of_amplitude = rms(value) * min(unit, FLOAT32_UNIT) / 2 + (least - fit.error) * factor
    return Tolerance(limit, factor, of_amplitude, 0.0 if exact else FLOAT32_UNIT)


def _is_exact(left: Tensor, stored: Tensor, turning: Tensor) -> bool:
    """Whether a fit leaves no more than the rounding of stored values where float32 angles would leave more.

    stored: rms error of storing a value. turning: change of a value per relative change of its angle. The last rounding
    of an angle, that of its product, differs from row to row, so that no fit can hide it.
    """
    ratio = turning * (0.4 * FLOAT32_UNIT) / stored
    for least, ulps in ((4.0, 1.0), (0.5, 0.51)):  # values may be rounded twice: sin, then times the amplitude
        telling = ratio >= least
        if int(telling.sum()) >= FEWEST_TELLING:
            within = left[telling].abs() <= stored[telling] * (2 * math.sqrt(3) * ulps)
            return float(within.double().mean()) > 0.97
    return False


def misrounded(samples: Samples, channels: Channels, wave: Wave, noise: Noise, relative: float) -> float:
    """The share of values that a wave rounds to other ones in 16 bits, less what float32 angles explain; 1: unknown."""
    t, x, index, cosine, _ = _subset(samples, channels, noise)
    angle = (t + wave.start) * wave.ladder().at(index)
    value = wave.amplitude * torch.where(cosine, angle.cos(), angle.sin())
    stored = torch.bfloat16 if noise.unit > 2.0**-10 else torch.float16
    wrong = float((value.float().to(stored).double() != x).double().mean())
    step = torch.exp2(value.abs().clamp_min(1e-30).log2().floor()) * 2 * noise.unit
    moved = abs(wave.amplitude) * angle.abs() * (relative * (1 + (wave.decay * index).abs()))
    explained = float((moved / step.clamp_min(2 * noise.absolute)).clamp_max(1.0).mean())
    return wrong - explained if explained <= MOST_EXPLAINED else 1.0


def solve(samples: Samples, channels: Channels, wave: Wave, free: Sequence[str], noise: Noise, steps: int = 8) -> Fit:
    """Gauss-Newton steps in the free numbers; rows that do not fit at all weigh little."""
    t, x, index, cosine, fine = _subset(samples, channels, noise)
    reach = max(1.0, float(index.max()))
    chosen = [NAMES.index(name) for name in free if name != "decay" or float(index.max() - index.min()) > 0]
    inverse = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
    for step in range(steps + 1):
        if abs(wave.decay) * reach > LARGEST_LOG:
            return Fit(wave, Wave(0.0, 0.0, 0.0, 0.0), math.inf)
        w = wave.ladder().at(index)
        angle = (t + wave.start) * w
        sine, cos = angle.sin(), angle.cos()
        value, slope = torch.where(cosine, cos, sine), wave.amplitude * torch.where(cosine, -sine, cos)
        left = x - wave.amplitude * value
        typical = max(float(left.abs().mean(1).median()), noise.size)
        weight = fine / (1 + (left.abs().mean(1, keepdim=True) / (4 * typical)).square())
        rms = math.sqrt(float((left.square() * weight).mean() / weight.mean()))
        if not math.isfinite(rms):
            return Fit(wave, Wave(0.0, 0.0, 0.0, 0.0), math.inf)
        if step == steps or not chosen:
            break
        parts = (slope * angle, -slope * angle * (index / reach), slope * w, value)
        basis = torch.stack([parts[k].flatten() for k in chosen], 1)
        weighed = basis * weight.reshape(-1, 1)
        normal = weighed.T @ basis
        if not bool(torch.isfinite(normal).all()):
            return Fit(wave, Wave(0.0, 0.0, 0.0, 0.0), math.inf)
        scale = normal.diagonal().clamp_min(1e-300).sqrt()
        inverse = torch.linalg.pinv(normal / scale / scale[:, None], rtol=1e-13) / scale / scale[:, None]
        change = (inverse @ (weighed.T @ left.flatten())).tolist()
        moved = dict(zip((NAMES[k] for k in chosen), change, strict=True))
        new = Wave(
            wave.rate * math.exp(max(-1.0, min(1.0, moved.get("rate", 0.0)))),
            wave.decay + moved.get("decay", 0.0) / reach,
            wave.start + moved.get("start", 0.0),
            wave.amplitude + moved.get("amplitude", 0.0),
        )
        done = all(abs(a - b) <= 1e-15 * max(1.0, abs(a)) for a, b in zip(new, wave, strict=True))
        wave = new
        if done:
            break
    # Rounding errors of neighbouring rows are not independent: as many samples as there are columns.
    sigma = max(rms, noise.size * (FINEST if noise.relative else 1.0)) * math.sqrt(len(t))
    slack = dict.fromkeys(NAMES, 0.0)
    for place, k in enumerate(chosen):
        slack[NAMES[k]] = 4 * sigma * math.sqrt(max(float(inverse[place, place]), 0.0))
    slack["decay"] /= reach
    return Fit(wave, Wave(**slack), rms)
