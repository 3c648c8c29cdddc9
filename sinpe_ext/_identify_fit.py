"""The sinusoids of a table's columns: their frequencies, the ladder that these form, the first position, the amplitude.

A column of an encoding is A sin or A cos of w_j (row + start), with w_j = rate * exp(-decay * index_j). Columns that
share a frequency turn as one complex number, which gives w_j modulo 2 pi at once; a column alone obeys
x[t + L] + x[t - L] = 2 cos(L w_j) x[t]. Both are measured at growing lags L, so that the error falls with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SINE, COSINE, ZERO = 0, 1, 2
TAU = 2 * math.pi
LOG2 = math.log(2)
PAIRS_DIFFER = 0.2  # relative spread of sin^2 + cos^2 that no rounding explains
FREQUENCY_ROUNDING = 3e-7  # relative, of the usual float32 formula
LEAST_AGREEMENT = 0.3  # of what a ladder foretells, weighed by how sharply
LARGEST_DECAY = 16.0  # logarithm of the base, where it is scanned
MAX_START = 2**20
SCANNED = 48
MEASURED, ENDS = 112, 8


class Channels(NamedTuple):
    """What an encoding says of its channels: SINE, COSINE or ZERO, and the place on the ladder."""

    kinds: Tensor  # (m,) int64
    index: Tensor  # (m,) float64

    def live(self) -> Tensor:
        return (self.kinds != ZERO).nonzero().flatten()


class Ladder(NamedTuple):
    """w = rate * exp(-decay * index), in radians a row."""

    rate: float
    decay: float

    def at(self, index: Tensor) -> Tensor:
        return self.rate * torch.exp2(-self.decay / LOG2 * index)  # exact for octaves


class Columns(NamedTuple):
    """Measured frequencies in radians a row, modulo 2 pi (and up to the sign, unless signed), with their errors."""

    index: Tensor
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
    kinds, index = channels.kinds.tolist(), channels.index.tolist()
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
        return Columns(channels.index[cosines], turned, error, True)
    live = channels.live()
    live = live[_some(len(live))]
    turned, error = _recurrence(rows[:, live], noise)
    return Columns(channels.index[live], turned, error, False)


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


def ladders(columns: Columns, rates: Sequence[float] = ()) -> list[Ladder]:
    """Ladders that pass through the measured frequencies, best first, at most three.

    Two columns that turn less than pi a row give a ladder; where there are none, `rates` are tried as its first rung.
    """
    found = _drawn(columns, rates)
    for rate in rates:
        if not found and abs(rate) > math.pi and columns.signed:
            found = _scanned(columns, rate)
    return found


def _scanned(columns: Columns, rate: float) -> list[Ladder]:
    """Ladders of a known rate, the decay tried in steps that no column turns far in."""
    reach = max(float(columns.index.max()), 1.0)
    some = torch.linspace(0, len(columns.index) - 1, min(len(columns.index), SCANNED)).round().long().unique()
    decay = torch.arange(0.5, LARGEST_DECAY, 0.6 / abs(rate), dtype=torch.float64) / reach
    frequency = rate * torch.exp(-decay[:, None] * columns.index[some])
    score = (columns.turned[some] - frequency).cos_().sum(1)
    found: list[Ladder] = []
    for k in score.argsort(descending=True)[:4].tolist():
        grown = _grow(columns, Ladder(rate, float(decay[k])), torch.full_like(columns.index, 0.25), (rate,))
        if grown:
            found.append(grown)
    return found[:3]


def _drawn(columns: Columns, rates: Sequence[float]) -> list[Ladder]:
    index, turned = columns.index, columns.turned
    relative = columns.error / turned.abs().clamp_min(1e-300)
    order = index.argsort()
    good = order[relative[order] < 0.2]
    if not len(good):
        return []
    if float(index.max() - index.min()) == 0:
        best = good[relative[good].argmin()]
        return [Ladder(float(turned[best]), 0.0)]
    first, second = _guesses(len(good))
    a, b = good[first], good[second]
    apart = index[b] - index[a]
    keep = (apart > 0) & (turned[a] * turned[b] > 0)
    a, b, apart = a[keep], b[keep], apart[keep]
    if not len(a):
        return []
    log_a, log_b = turned[a].abs().log(), turned[b].abs().log()
    decay = (log_a - log_b) / apart
    rate = turned[a].sign() * torch.exp(log_a + decay * index[a])
    frequency = (rate[:, None] * torch.exp(-decay[:, None] * index)).nan_to_num(0, 1e300, -1e300)
    weight_a, weight_b = (index[b][:, None] - index) / apart[:, None], (index - index[a][:, None]) / apart[:, None]
    drift = ((relative[a][:, None] * weight_a).square() + (relative[b][:, None] * weight_b).square()).sqrt()
    expected = columns.error + frequency.abs() * (drift + FREQUENCY_ROUNDING)
    told = expected < 0.3
    hit = _distance(columns, frequency) < 5 * expected + 1e-9
    worth = (math.pi / (5 * expected + 1e-5)).log().clamp_min(0) * told
    score = torch.where(hit, worth, -4.0 * told).sum(1)
    found: list[Ladder] = []
    for k in score.argsort(descending=True)[:8].tolist():
        if float(score[k]) < LEAST_AGREEMENT * float(worth[k].sum()):
            continue
        grown = _grow(columns, Ladder(float(rate[k]), float(decay[k])), expected[k], rates)
        if grown and not any(math.isclose(grown.decay, other.decay, rel_tol=1e-4) for other in found):
            found.append(grown)
        if len(found) == 3:
            break
    return found


def _guesses(number: int) -> tuple[Tensor, Tensor]:
    """Pairs of columns to draw a ladder through: spread over all of them, and all pairs near both ends."""
    some = torch.linspace(0, number - 1, min(number, 24)).round().long().unique()
    sets = [some, torch.arange(min(number, 8)), torch.arange(max(0, number - 8), number)]
    both = torch.cat([torch.combinations(part, 2) for part in sets if len(part) > 1] or [torch.zeros(0, 2).long()])
    both = both.unique(dim=0)
    return both[:, 0], both[:, 1]


def _distance(columns: Columns, frequency: Tensor) -> Tensor:
    """From the measured frequencies to given ones, modulo what cannot be seen."""
    away = _wrapped(columns.turned - frequency).abs()
    return away if columns.signed else torch.minimum(away, _wrapped(-columns.turned - frequency).abs())


def _wrapped(angle: Tensor) -> Tensor:
    return angle - TAU * torch.round(angle / TAU)


def _grow(columns: Columns, ladder: Ladder, expected: Tensor, rates: Sequence[float]) -> Ladder | None:
    """Fits the ladder to ever more columns: each fit says how many turns the next ones have lost."""
    index, used, doubt = columns.index, torch.zeros(0), 0.0
    for _ in range(16):
        frequency = ladder.at(index)
        away = _wrapped(columns.turned - frequency)
        if not columns.signed:
            other = _wrapped(-columns.turned - frequency)
            away = torch.where(other.abs() < away.abs(), other, away)
        inside = (expected < 0.5) & (away.abs() < 5 * expected + 1e-9) & (frequency != 0)
        resolved = frequency + away
        inside &= resolved * frequency > 0
        if int(inside.sum()) < min(2, len(index)):
            return None
        if len(used) and bool((inside == used).all()):
            break
        used = inside
        error = columns.error[inside] + FREQUENCY_ROUNDING * resolved[inside].abs()
        relative = (error / resolved[inside].abs()).clamp_min(1e-12)
        basis = torch.stack([torch.ones_like(index), -index], 1)
        scaled, target = basis[inside] / relative[:, None], resolved[inside].abs().log() / relative
        normal = scaled.T @ scaled
        if float(torch.linalg.cond(normal)) > 1e15:
            return None
        solution = torch.linalg.solve(normal, scaled.T @ target)
        covariance = torch.linalg.inv(normal)
        spread = torch.einsum("ij,jk,ik->i", basis, covariance, basis).clamp_min(0).sqrt()
        doubt = 3 * math.sqrt(max(float(covariance[0, 0]), 0.0)) + FREQUENCY_ROUNDING
        ladder = Ladder(math.copysign(math.exp(min(float(solution[0]), 690.0)), ladder.rate), float(solution[1]))
        expected = columns.error + ladder.at(index).abs() * (3 * spread + FREQUENCY_ROUNDING)
    share = float(used.float().sum()) / max(1, int((expected < 0.5).sum()))
    if share <= 0.5:
        return None
    # A ladder as it is usually written starts at 1: no need to measure what can be known.
    known = next((rate for rate in rates if abs(ladder.rate / rate - 1) < doubt), None)
    if known is not None and float(basis[:, 1].abs().max()) > 0:
        weight = (basis[inside, 1] / relative).square()
        slope = (math.log(abs(known)) - resolved[inside].abs().log()) / -basis[inside, 1].clamp_max(-1e-9)
        ladder = Ladder(known, float((slope * weight).sum() / weight.sum().clamp_min(1e-300)))
    return ladder


def first_positions(rows: Tensor, channels: Channels, ladder: Ladder, noise: float) -> Iterator[tuple[int, float]]:
    """The position of row 0, and the amplitude with its sign, from the phases of columns of known frequency.

    The best of few positions around 0, then of ever more, where that is better.
    """
    w, phase, variance = _phases(rows, channels, ladder)
    weight = 1 / (variance * noise**2 + 1e-2 * phase.abs().square().median() + 1e-30)
    target = weight * phase.conj()
    size = float((weight * phase.abs()).sum() / weight.sum())
    one = torch.ones(1, dtype=torch.float64)
    best = 0.0
    for reach in (64, 4096, 2**15, MAX_START):
        step = max(16, int(math.sqrt(2 * reach)))
        coarse = torch.arange(-reach, reach + 1, step, dtype=torch.float64)
        fine = torch.arange(step, dtype=torch.float64)
        score = ((torch.polar(one, coarse[:, None] * w) * target) @ torch.polar(one, fine[:, None] * w).T).real.flatten()
        k = int(score.abs().argmax())
        if abs(float(score[k])) > best * (1 + 1e-9):
            best = abs(float(score[k]))
            yield int(coarse[k // step]) + k % step, math.copysign(size, float(score[k]))


def _phases(rows: Tensor, channels: Channels, ladder: Ladder) -> tuple[Tensor, Tensor, Tensor]:
    """Frequencies of some columns, amplitude * exp(i w start) of each, and its variance for values of variance 1."""
    place = torch.arange(len(rows), dtype=torch.float64)[:, None]
    sines, cosines = pairs(channels)
    if len(sines):
        some = scattered(len(sines), SCANNED)
        w = ladder.at(channels.index[sines[some]])
        z = torch.complex(rows[:, cosines[some]], rows[:, sines[some]])
        back = torch.polar(torch.ones(1, dtype=torch.float64), -place * w)
        return w, (z * back).mean(0), torch.full_like(w, 1 / len(rows))
    live = channels.live()
    live = live[scattered(len(live), 2 * SCANNED)]
    w, x = ladder.at(channels.index[live]), rows[:, live]
    c, s = (place * w).cos(), (place * w).sin()
    cc, ss, cs = c.square().sum(0), s.square().sum(0), (c * s).sum(0)
    determinant = (cc * ss - cs * cs).clamp_min(1e-30)
    xc, xs = (x * c).sum(0), (x * s).sum(0)
    of_cos, of_sin = (ss * xc - cs * xs) / determinant, (cc * xs - cs * xc) / determinant
    cosine = channels.kinds[live] == COSINE
    phase = torch.where(cosine, torch.complex(of_cos, -of_sin), torch.complex(of_sin, of_cos))
    return w, phase, (cc + ss) / determinant
