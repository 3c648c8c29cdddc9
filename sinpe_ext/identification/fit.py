"""Fits a sinusoidal encoding to the columns of a table: four numbers, given only which channels are sines and cosines.

Every channel of a one-dimensional encoding is amplitude * sin or cos of rate * exp(-decay * exponent) * (row + start).
The layout gives the exponent of each channel's frequency. `start` is an integer unless a fraction fits much better.
The four numbers are fitted in this order:

1. `measure`: the frequency of each column from its rows alone;
2. `line`: rate and decay, a line through the logarithms of the frequencies;
3. `first_positions`: start and amplitude, from the phases of the columns;
4. `refine`: all four by least squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agreement import sine_errors

TAU = 2 * math.pi
WINDOW, ROWS, COLUMNS = 256, 256, 96  # consecutive rows measured first; rows and columns in a least-squares step
MOST_SPREAD = 0.2  # relative spread of sin^2 + cos^2 over the rows that rounding cannot explain
IRREGULAR = 2.0  # ratio of the distance of two neighbouring rows to the median above which one of them was changed
FREQUENCY_ROUNDING = 3e-7  # relative, of the naive float32 formula
FINEST = 1 / 16  # relative to the largest value: smaller values get no more weight
CLOSE = 0.3  # largest rms error of a first fit, relative to its amplitude
FRACTION = 2.0  # ratio of rms errors by which a fractional first position must fit better than an integer
FEWEST_FREQUENCIES = 3  # one or two frequencies have any phases at some fractional position
# Ranges of first positions that are tried, and the steps of the coarse part of a search.
REACHES = ((256, 16), (2**14, 128), (2**17, 512), (2**20, 1448))


class Channels(NamedTuple):
    """The channels of an encoding, (d,): which are cosines, which are zero, and the exponent of each frequency."""

    cosine: Tensor
    zero: Tensor
    exponent: Tensor

    def columns(self, which: Tensor) -> Channels:
        return Channels(*(part[which] for part in self))

    def key(self) -> Any:
        """A hashable key, equal for equal channels."""
        return tuple(tuple(part.tolist()) for part in self)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """The sine and cosine columns that share a frequency."""
        cosine, exponent = self.cosine.tolist(), self.exponent.tolist()
        sines = {exponent[column]: column for column in (~self.cosine & ~self.zero).nonzero().flatten().tolist()}
        both = [(sines[exponent[k]], k) for k in range(len(cosine)) if cosine[k] and exponent[k] in sines]
        first, second = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).unbind(1)
        return first, second


class Wave(NamedTuple):
    """amplitude * sin or cos of rate * exp(-decay * exponent) * (row + start)."""

    rate: float
    decay: float
    start: float
    amplitude: float

    def frequency(self, exponent: Tensor) -> Tensor:
        return self.rate * torch.exp2(-self.decay / math.log(2) * exponent)  # exact for octaves

    def at(self, rows: Tensor, channels: Channels) -> Tensor:
        """The values at some rows (n,): (n, d)."""
        turns = (rows[:, None] + self.start) * (self.frequency(channels.exponent) / TAU)
        angle = turns.sub_(turns.round()).mul_(TAU)
        value = torch.where(channels.cosine, angle.cos(), angle.sin()).masked_fill_(channels.zero, 0.0)
        return value.mul_(self.amplitude)

    def errors(self, rows: Tensor, channels: Channels) -> Tensor:
        """The largest errors of the naive float32 formula, (n, d)."""
        return abs(self.amplitude) * sine_errors(rows + self.start, self.frequency(channels.exponent))


class Samples(NamedTuple):
    """Rows of a table that are not zero.

    Attributes:
        t: their indices (n,), ascending.
        x: their values (n, d) in float64.
        unit: largest relative rounding error of a stored value.
        size: a typical value.
        subnormal: largest absolute rounding error of the smallest values.
    """

    t: Tensor
    x: Tensor
    unit: float
    size: float
    subnormal: float = 0.0

    def some(self, rows: Any = slice(None), columns: Any = slice(None)) -> Samples:
        return self._replace(t=self.t[rows], x=self.x[rows][:, columns])

    @property
    def noise(self) -> float:
        return self.unit * self.size + 1e-300

    def agree(self, wave: Wave, channels: Channels) -> Tensor:
        """Which values differ from a wave by no more than rounding errors and float32 angles explain, (n, d) bool."""
        t = self.t.double()
        return (self.x - wave.at(t, channels)).abs() <= self.rounding() + wave.errors(t, channels)

    def rounding(self) -> Tensor:
        """The largest rounding errors of the values, (n, d): half a unit in the last place."""
        return torch.exp2(self.x.frexp().exponent - 1.0) * self.unit + (self.noise / 64 + self.subnormal)


def scattered(number: int, most: int) -> Tensor:
    """At most `most` of 0..number-1, irregularly spaced, so that no kind of channel is left out; with both ends."""
    if number <= most:
        return torch.arange(number)
    golden = (torch.arange(number, dtype=torch.float64) * 0.6180339887498949).frac()
    golden[:8] = golden[-8:] = -1.0
    return golden.argsort()[:most].sort().values


def fit(samples: Samples, channels: Channels) -> tuple[Wave, float] | None:
    """The wave that fits the rows best and its rms error; None if none is close."""
    sines, cosines = channels.pairs()
    if len(sines):
        some = scattered(len(sines), COLUMNS // 2)
        columns = torch.cat([sines[some], cosines[some]])
    else:
        live = (~channels.zero).nonzero().flatten()
        columns = live[scattered(len(live), COLUMNS)]
    samples, channels = samples.some(columns=columns), channels.columns(columns)
    begin, end = longest_run(samples)
    window = samples.some(slice(begin, end))
    best: tuple[Wave, float] | None = None
    measured, signed = measure(window, channels)
    for order in (measured[::-1], measured):  # slowest first; the second for frequencies that increase
        found = line(order, signed)
        for wave in first_positions(window, channels, *found) if found else ():
            fitted = grown(samples, channels, wave, begin, end)
            if fitted and (best is None or fitted[1] < best[1]):
                best = fitted
            if best and best[1] < max(3 * samples.noise, 1e-4 * abs(best[0].amplitude)):
                return best
    return best


def longest_run(samples: Samples) -> tuple[int, int]:
    """The longest range of consecutive rows of which none is far from its neighbours, as changed rows are."""
    steps = (samples.x[1:] - samples.x[:-1]).norm(dim=1)
    breaks = (samples.t[1:] - samples.t[:-1] != 1) | (steps > IRREGULAR * steps.median())
    edges = [0, *breaks.nonzero().flatten().add(1).tolist(), len(samples.t)]
    begin, end = max(itertools.pairwise(edges), key=lambda run: run[1] - run[0])
    return begin, min(end, begin + WINDOW)


def grown(samples: Samples, channels: Channels, wave: Wave, begin: int, end: int) -> tuple[Wave, float] | None:
    """The wave fitted to a window, then to more and more rows around it; None if it does not fit the window."""
    now = samples.some(slice(begin, min(end, begin + 64)))
    wave, error = with_integer_start(now, channels, *refine(now, channels, wave))
    if not error <= CLOSE * abs(wave.amplitude):
        return None
    free: tuple[int, ...] = (0, 1, 3) if wave.start.is_integer() else (0, 1, 2, 3)
    end = begin + len(now.t)
    while end - begin < len(samples.t):  # the wave is precise enough for four times as many rows
        length = end - begin
        begin, end = max(0, begin - 2 * length), min(len(samples.t), end + 2 * length)
        now = samples.some(begin + scattered(end - begin, ROWS))
        wave, error = refine(now, channels, wave, free)
    return with_integer_start(now, channels, wave, error)


def few_frequencies(channels: Channels) -> bool:
    """Whether a fractional first position would mean nothing."""
    return len(channels.exponent.unique()) < FEWEST_FREQUENCIES


def with_integer_start(samples: Samples, channels: Channels, wave: Wave, error: float) -> tuple[Wave, float]:
    """The fit with the nearest integer as first position, unless the fraction is much better."""
    if wave.start.is_integer():
        return wave, error
    whole = refine(samples, channels, wave._replace(start=float(round(wave.start))), (0, 1, 3))
    return whole if few_frequencies(channels) or whole[1] <= FRACTION * max(error, samples.noise / 8) else (wave, error)


def measure(window: Samples, channels: Channels) -> tuple[list[tuple[float, float, float]], bool]:
    """The (exponent, frequency, error) of each column of consecutive rows, fastest first, and whether they have a sign.

    A frequency is in radians per row, modulo 2 pi. There are none if sin^2 + cos^2 is not constant, as it must be for
    these channels.

    A sine and a cosine column of the same frequency are a rotating complex number. A single column satisfies
    x[t + L] + x[t - L] = 2 cos(L w) x[t]. With each lag L = 1, 2, 4, ... the error of w decreases.
    """
    x, noise = window.x, window.noise
    sines, cosines = channels.pairs()
    signed = len(sines) > 0
    if len(x) < (2 if signed else 3):
        return [], signed
    z = torch.complex(x[:, cosines], x[:, sines])
    mean = z.abs().square().mean(0).sqrt().clamp_min(1e-300)
    deviation = (z.abs() - mean).square().mean(0).sqrt().clamp_min(noise) / mean
    if signed and float(deviation.median()) > MOST_SPREAD:
        return [], signed

    def at(lag: int) -> tuple[Tensor, Tensor]:
        """L w modulo 2 pi and its error."""
        if signed:
            return (z[lag:] * z[:-lag].conj()).sum(0).angle(), 2 * deviation / math.sqrt(len(z) - lag)
        middle, outer = x[lag:-lag], x[2 * lag :] + x[: -2 * lag]
        energy = middle.square().sum(0).clamp_min(1e-300)
        of_cosine = 1.2 * noise / energy.sqrt()
        angle = ((middle * outer).sum(0) / (2 * energy)).clamp(-1, 1).acos()
        return angle, of_cosine / torch.maximum(angle.sin(), of_cosine.sqrt())

    lag = 1
    best, error = at(1)
    while 2 * lag <= len(x) // 3:
        lag *= 2
        angle, doubt = at(lag)
        near = angle + TAU * ((lag * best - angle) / TAU).round()
        if not signed:
            other = TAU * ((lag * best + angle) / TAU).round() - angle
            near = torch.where((other - lag * best).abs() < (near - lag * best).abs(), other, near)
        better = (doubt / lag < error) & (lag * error < 0.4)
        best, error = torch.where(better, near / lag, best), torch.where(better, doubt / lag, error)
    exponent = channels.exponent[sines] if signed else channels.exponent
    return sorted(zip(exponent.tolist(), best.tolist(), error.tolist(), strict=True)), signed


def line(measured: list[tuple[float, float, float]], signed: bool) -> tuple[float, float] | None:
    """(rate, decay) of frequencies rate * exp(-decay * exponent): a weighted line through their logarithms.

    The slowest columns come first, whose frequencies are unambiguous; of a faster one, which is known modulo 2 pi, the
    value nearest to the line through the columns before it is taken. None if there is no line.
    """
    n = sx = sxx = sy = sxy = sign = 0.0  # weighted sums over the columns used; x is the exponent, y the logarithm
    used = missed = 0

    def coefficients() -> tuple[float, float, float]:
        """(value at the mean exponent, decay, sum of squared distances from the mean exponent)."""
        squares = sxx - sx * sx / n
        return sy / n, -(sxy - sx * sy / n) / squares if squares > 1e-9 * sxx else 0.0, squares

    for x, value, doubt in measured:
        sign = sign or (math.copysign(1.0, value) if signed else 1.0)
        value *= sign
        middle, decay, squares = coefficients() if used else (0.0, 0.0, 0.0)
        if squares > 1e-9 * sxx:
            predicted = math.exp(min(middle - decay * (x - sx / n), 300.0))
            expected = predicted * math.sqrt(1 / n + (x - sx / n) ** 2 / squares)
            if expected > 1.0:
                break
            values = [value] if signed else [value, -value]
            near = [TAU * round((predicted - v) / TAU) + v for v in values]
            value = min(near, key=lambda v: abs(v - predicted))
            if abs(value - predicted) > 6 * (expected + doubt) + 1e-5 * predicted:
                missed += 1
                continue
        if doubt > 0.1 * value or value <= 0:
            sign = sign if used else 0.0
            continue
        weight = 1 / (doubt / value + FREQUENCY_ROUNDING) ** 2
        used += 1
        n, sx, sxx = n + weight, sx + weight * x, sxx + weight * x * x
        sy, sxy = sy + weight * math.log(value), sxy + weight * x * math.log(value)
    if not used or missed > used / 4:
        return None
    middle, decay, _ = coefficients()
    return sign * math.exp(min(middle + decay * sx / n, 300.0)), decay


def first_positions(window: Samples, channels: Channels, rate: float, decay: float) -> Iterator[Wave]:
    """Waves with the first position and the amplitude that the phases of the columns give; nearby positions first."""
    w = Wave(rate, decay, 0, 1).frequency(channels.exponent)
    angle = window.t.double()[:, None] * w
    c, s = angle.cos(), angle.sin()
    cc, ss, cs = c.square().sum(0), s.square().sum(0), (c * s).sum(0)
    determinant = (cc * ss - cs * cs).clamp_min(1e-30)
    xc, xs = (window.x * c).sum(0), (window.x * s).sum(0)
    of_cos, of_sin = (ss * xc - cs * xs) / determinant, (cc * xs - cs * xc) / determinant
    # amplitude * exp(i w start)
    phase = torch.where(channels.cosine, torch.complex(of_cos, -of_sin), torch.complex(of_sin, of_cos))
    variance = window.noise**2 * (cc + ss) / determinant
    weight = 1 / (variance + 1e-2 * phase.abs().square().median() + 1e-30)
    size = float((weight * phase.abs()).sum() / weight.sum())
    best = 0.0
    one = torch.ones(1, dtype=torch.float64)
    for reach, step in REACHES:
        coarse = torch.arange(-reach, reach, step, dtype=torch.float64)
        near = reach == REACHES[0][0] and not few_frequencies(channels)  # halves as well
        fine = torch.arange(0, step, 0.5 if near else 1.0, dtype=torch.float64)
        target = weight * phase.conj()
        score = (torch.polar(one, coarse[:, None] * w) * target) @ torch.polar(one, fine[:, None] * w).T
        k = int(score.real.abs().argmax())
        reached = float(score.real.flatten()[k])
        if abs(reached) > best * (1 + 1e-9):
            best = abs(reached)
            start = float(coarse[k // len(fine)] + fine[k % len(fine)])
            yield Wave(rate, decay, start, math.copysign(size, reached))


def refine(
    samples: Samples, channels: Channels, wave: Wave, free: tuple[int, ...] = (0, 1, 2, 3), steps: int = 6
) -> tuple[Wave, float]:
    """The wave after Gauss-Newton steps for the numbers in `free`, and its rms error.

    Rows with large residuals get little weight.
    """
    if float(channels.exponent.max() - channels.exponent.min()) == 0:
        free = tuple(k for k in free if k != 1)
    t, x = samples.t.double()[:, None], samples.x
    # In 16 bits a small value has a smaller error than a large one.
    size = x.abs() / x.abs().max().clamp_min(1e-300)
    fine = 1 / (size + FINEST).square() if samples.unit > 2.0**-20 else torch.ones_like(x)
    error = math.inf
    for step in range(steps + 1):
        w = wave.frequency(channels.exponent)
        angle = (t + wave.start) * w
        sine, cosine = angle.sin(), angle.cos()
        value = torch.where(channels.cosine, cosine, sine)
        left = x - wave.amplitude * value
        by_row = left.abs().mean(1, keepdim=True)
        weight = fine / (1 + (by_row / (4 * by_row.median().clamp_min(samples.noise))).square())
        error = float((left.square() * weight).mean() / weight.mean()) ** 0.5
        if not math.isfinite(error) or step == steps or not free:
            break
        slope = wave.amplitude * torch.where(channels.cosine, -sine, cosine)
        parts = (slope * angle, -slope * angle * channels.exponent, slope * w, value)
        basis = torch.stack([(parts[k] * weight).flatten() for k in free], 1)
        normal = basis.T @ torch.stack([parts[k].flatten() for k in free], 1)
        if not bool(torch.isfinite(normal).all()):
            return wave, math.inf
        scale = normal.diagonal().clamp_min(1e-300).sqrt()
        inverse = torch.linalg.pinv(normal / scale / scale[:, None], rtol=1e-13)
        change = (inverse @ (basis.T @ left.flatten() / scale) / scale).tolist()
        move = dict(zip(free, change, strict=True))
        before = wave
        wave = Wave(
            wave.rate * math.exp(max(-1.0, min(1.0, move.get(0, 0.0)))),
            max(-300.0, min(300.0, wave.decay + move.get(1, 0.0))),
            wave.start + move.get(2, 0.0),
            wave.amplitude + move.get(3, 0.0),
        )
        if all(abs(a - b) <= 1e-15 * max(1.0, abs(a)) for a, b in zip(wave, before, strict=True)):
            break
    return wave, error
