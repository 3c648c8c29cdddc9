"""The ladder that measured frequencies form, and the position at which its columns begin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .fit import COSINE, TAU, Channels, Columns, pairs, scattered

LOG2 = math.log(2)
FREQUENCY_ROUNDING = 3e-7  # relative, of the usual float32 formula
LEAST_AGREEMENT = 0.3  # of what a ladder foretells, weighed by how sharply
LARGEST_DECAY = 16.0  # logarithm of the base, where it is scanned
MAX_START = 2**20
SHARP = 0.01  # radians a row: to tell a first frequency of many by its turns
FEW = 4  # columns that many ladders pass near to
SCANNED = 48  # columns compared for each ladder or position tried


class Ladder(NamedTuple):
    """w = rate * exp(-decay * rung), in radians a row."""

    rate: float
    decay: float

    def at(self, rungs: Tensor) -> Tensor:
        return self.rate * torch.exp2(-self.decay / LOG2 * rungs)  # exact for octaves


def ladders(columns: Columns, rates: Sequence[float] = ()) -> list[Ladder]:
    """Ladders that pass through the measured frequencies, best first, at most three.

    Two columns that turn less than pi a row give a ladder; `rates` above that are tried as its first rung.
    """
    found = _drawn(columns, rates)
    for rate in rates:
        if abs(rate) > math.pi and columns.signed and _may_start(columns, rate):
            scanned = _scanned(columns, rate)
            if scanned:
                return [*scanned, *found]
    return found


def _may_start(columns: Columns, rate: float) -> bool:
    """Whether the first frequency may be a rate, by what is seen of its turns."""
    first = (columns.rungs == 0).nonzero().flatten()
    if len(first) != 1:
        return False
    expected = 5 * float(columns.error[first]) + 2 * FREQUENCY_ROUNDING * abs(rate)
    return abs(float(_wrapped(columns.turned[first] - rate))) <= min(expected, SHARP)


def _scanned(columns: Columns, rate: float) -> list[Ladder]:
    """Ladders of a known rate, the decay tried in steps that no column turns far in."""
    reach = max(float(columns.rungs.max()), 1.0)
    some = torch.linspace(0, len(columns.rungs) - 1, min(len(columns.rungs), SCANNED)).round().long().unique()
    few = len(some) <= FEW
    decay = torch.arange(0.5, LARGEST_DECAY, (0.06 if few else 0.6) / abs(rate), dtype=torch.float64) / reach
    frequency = rate * torch.exp(-decay[:, None] * columns.rungs[some])
    score = (columns.turned[some] - frequency).cos_().sum(1)
    found: list[Ladder] = []
    for k in score.argsort(descending=True)[: 16 if few else 4].tolist():
        grown = _grow(columns, Ladder(rate, float(decay[k])), torch.full_like(columns.rungs, 0.25), (rate,))
        if grown and grown not in found:
            found.append(grown)
    return found[:3]


def _drawn(columns: Columns, rates: Sequence[float]) -> list[Ladder]:
    index, turned = columns.rungs, columns.turned
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
    index, used, doubt = columns.rungs, torch.zeros(0), 0.0
    for _ in range(16):
        frequency = ladder.at(index)
        away = _wrapped(columns.turned - frequency)
        if not columns.signed:
            other = _wrapped(-columns.turned - frequency)
            away = torch.where(other.abs() < away.abs(), other, away)
        told = expected < 0.5
        agree = told & (away.abs() < 5 * expected + 1e-9)
        resolved = frequency + away
        inside = agree & (resolved * frequency > 0)
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
        covariance, singular = torch.linalg.inv_ex(normal)
        if int(singular) or not float(torch.linalg.cond(normal)) <= 1e15:
            return None
        solution = torch.linalg.solve_ex(normal, scaled.T @ target)[0]
        spread = torch.einsum("ij,jk,ik->i", basis, covariance, basis).clamp_min(0).sqrt()
        doubt = 3 * math.sqrt(max(float(covariance[0, 0]), 0.0)) + FREQUENCY_ROUNDING
        ladder = Ladder(math.copysign(math.exp(min(float(solution[0]), 690.0)), ladder.rate), float(solution[1]))
        expected = columns.error + ladder.at(index).abs() * (3 * spread + FREQUENCY_ROUNDING)
    if int(agree.sum()) <= int(told.sum()) / 2:
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
        score = (
            (torch.polar(one, coarse[:, None] * w) * target) @ torch.polar(one, fine[:, None] * w).T
        ).real.flatten()
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
        w = ladder.at(channels.rungs[sines[some]])
        z = torch.complex(rows[:, cosines[some]], rows[:, sines[some]])
        back = torch.polar(torch.ones(1, dtype=torch.float64), -place * w)
        return w, (z * back).mean(0), torch.full_like(w, 1 / len(rows))
    live = channels.live()
    live = live[scattered(len(live), 2 * SCANNED)]
    w, x = ladder.at(channels.rungs[live]), rows[:, live]
    c, s = (place * w).cos(), (place * w).sin()
    cc, ss, cs = c.square().sum(0), s.square().sum(0), (c * s).sum(0)
    determinant = (cc * ss - cs * cs).clamp_min(1e-30)
    xc, xs = (x * c).sum(0), (x * s).sum(0)
    of_cos, of_sin = (ss * xc - cs * xs) / determinant, (cc * xs - cs * xc) / determinant
    cosine = channels.kinds[live] == COSINE
    phase = torch.where(cosine, torch.complex(of_cos, -of_sin), torch.complex(of_sin, of_cos))
    return w, phase, (cc + ss) / determinant
