"""The sinusoids of a table's columns: how far each turns from one row to the next.

A column of an encoding is A sin or A cos of w_j (row + start), with w_j = rate * exp(-decay * rung_j). Columns that
share a frequency turn as one complex number, which gives w_j modulo 2 pi at once; a column alone obeys
x[t + L] + x[t - L] = 2 cos(L w_j) x[t]. Both are measured at growing lags L, so that the error falls with the rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SINE, COSINE, ZERO = 0, 1, 2
TAU = 2 * math.pi
PAIRS_DIFFER = 0.2  # relative spread of sin^2 + cos^2 that no rounding explains
MEASURED, ENDS = 112, 8  # columns looked at, and how many of them at each end


class Channels(NamedTuple):
    """What an encoding says of its channels: SINE, COSINE or ZERO, and the place on the ladder."""

    kinds: Tensor  # (m,) int64
    rungs: Tensor  # (m,) float64

    def live(self) -> Tensor:
        return (self.kinds != ZERO).nonzero().flatten()


class Columns(NamedTuple):
    """Measured frequencies in radians a row, modulo 2 pi (and up to the sign, unless signed), with their errors."""

    rungs: Tensor
    turned: Tensor
    error: Tensor
    signed: bool


def scattered(number: int, most: int) -> Tensor:
    """At most `most` of 0..number-1 with no pattern, so that no kind of channel is left out; always the same."""
    if number <= most:
        return torch.arange(number)
    golden = (torch.arange(number, dtype=torch.float64) * 0.6180339887498949).frac()
    return golden.argsort()[:most].sort().values


def pairs(channels: Channels) -> tuple[Tensor, Tensor]:
    """Columns of sin and of cos that share a frequency."""
    kinds, index = channels.kinds.tolist(), channels.rungs.tolist()
    sines = {at: column for column, (kind, at) in enumerate(zip(kinds, index, strict=True)) if kind == SINE}
    found = [
        (sines[at], column)
        for column, (kind, at) in enumerate(zip(kinds, index, strict=True))
        if kind == COSINE and at in sines
    ]
    both = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def measure(rows: Tensor, channels: Channels, noise: float) -> Columns | None:
    """Frequencies of consecutive rows (n, m), None where sin^2 + cos^2 is not constant as these channels say."""
    sines, cosines = pairs(channels)
    if len(sines):
        some = _some(len(sines))
        sines, cosines = sines[some], cosines[some]
        z = torch.complex(rows[:, cosines], rows[:, sines])
        size = z.abs()
        mean = size.square().mean(0).sqrt().clamp_min(1e-300)
        spread = (size - mean).square().mean(0).sqrt()
        if float((spread / mean).median()) > PAIRS_DIFFER:
            return None
        turned, lag = _turned(z)
        error = 2 * spread.clamp_min(noise) / mean / (lag * math.sqrt(len(z) - lag))
        return Columns(channels.rungs[cosines], turned, error, True)
    live = channels.live()
    live = live[_some(len(live))]
    turned, error = _recurrence(rows[:, live], noise)
    return Columns(channels.rungs[live], turned, error, False)


def _some(number: int) -> Tensor:
    """Enough columns to measure, those at both ends among them: the slowest turn least, the fastest tell most."""
    if number <= MEASURED:
        return torch.arange(number)
    middle = ENDS + scattered(number - 2 * ENDS, MEASURED - 2 * ENDS)
    return torch.cat([torch.arange(ENDS), middle, torch.arange(number - ENDS, number)])


def _turned(z: Tensor) -> tuple[Tensor, int]:
    """The angle from one row to the next."""
    angle = (z[1:] * z[:-1].conj()).sum(0).angle()
    lag = last = 1
    while 2 * lag <= len(z) // 2:
        lag = last = 2 * lag
        product = (z[lag:] * z[:-lag].conj()).sum(0)
        angle = angle + (product * torch.polar(torch.ones_like(angle), -lag * angle)).angle() / lag
    return angle, last


def _recurrence(x: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """w in 0..pi and its error, from x[t + L] + x[t - L] = 2 cos(L w) x[t]."""
    n = len(x)
    best = error = torch.empty(0)
    lag = 1
    while lag == 1 or lag <= n // 3:
        middle, outer = x[lag:-lag], x[2 * lag :] + x[: -2 * lag]
        energy = middle.square().sum(0).clamp_min(1e-300)
        cosine = ((middle * outer).sum(0) / (2 * energy)).clamp(-1, 1)
        of_cosine = 1.2 * noise / energy.sqrt()
        angle = cosine.acos()
        of_angle = of_cosine / torch.maximum(angle.sin(), of_cosine.sqrt())
        if lag == 1:
            best, error = angle, of_angle
        else:
            turns = torch.round(lag * best / TAU) * TAU
            up, down = turns + angle, turns - angle
            nearest = torch.where((up - lag * best).abs() < (down - lag * best).abs(), up, down) / lag
            better = (of_angle / lag < error) & (lag * error < 0.4)
            best, error = torch.where(better, nearest, best), torch.where(better, of_angle / lag, error)
        lag *= 2
    return best, error
