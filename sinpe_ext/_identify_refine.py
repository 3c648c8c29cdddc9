"""Least squares for the four numbers of a sinusoidal table: rate, decay, start and amplitude."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._identify_fit import COSINE, TAU, ZERO, Channels, measure, scattered
from ._identify_ladder import Ladder, first_positions, ladders

ROWS, COLUMNS = 256, 112  # looked at in one step: few enough for one thread
WELL = 0.1  # error of a fit, relative to its amplitude, that is worth comparing
EXACTLY = 1e-4  # as WELL, of a fit that needs no other
LARGEST_LOG = 300.0  # between the first frequency and the last
SPOILT = 1.5
WINDOW = 256  # consecutive rows that frequencies are first measured on
FINEST = 1 / 16  # relative to the largest value: below it nothing is gained
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
    """Rounding of stored values: the error of a large one, and whether it is relative to each (16-bit types)."""

    size: float
    relative: bool


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
    if length < 3:
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


def solve(samples: Samples, channels: Channels, wave: Wave, free: Sequence[str], noise: Noise, steps: int = 8) -> Fit:
    """Gauss-Newton steps in the free numbers; rows that do not fit at all weigh little."""
    live = channels.live()
    columns, rows = live[scattered(len(live), COLUMNS)], spread(len(samples.rows), ROWS)
    t, x = samples.rows[rows].double()[:, None], samples.values[rows][:, columns]
    index, cosine = channels.rungs[columns], channels.kinds[columns] == COSINE
    reach = max(1.0, float(index.max()))
    # A small value in 16 bits is known better than a large one.
    fine = 1 / (x.abs() / x.abs().max().clamp_min(1e-300) + FINEST).square() if noise.relative else torch.ones_like(x)
    fine /= fine.mean()
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
    sigma = max(rms, noise.size * (FINEST if noise.relative else 1.0)) * math.sqrt(len(rows))
    slack = dict.fromkeys(NAMES, 0.0)
    for place, k in enumerate(chosen):
        slack[NAMES[k]] = 4 * sigma * math.sqrt(max(float(inverse[place, place]), 0.0))
    slack["decay"] /= reach
    return Fit(wave, Wave(**slack), rms)
