"""Estimation of the sinusoids in a table's columns.

A column of an encoding is A sin or A cos of w_j (row + start), with w_j = rate * exp(-decay * rung_j). A sine and a
cosine column with the same frequency form a rotating complex number, which gives w_j modulo 2 pi directly; a single
column satisfies x[t + L] + x[t - L] = 2 cos(L w_j) x[t]. Both are evaluated at increasing lags L, so that the error
decreases with the number of rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SINE, COSINE, ZERO = 0, 1, 2
TAU = 2 * math.pi
PAIRS_DIFFER = 0.2  # relative spread of sin^2 + cos^2 that rounding cannot explain
MEASURED, ENDS = 112, 8  # columns that are measured, and how many of them at each end


class Channels(NamedTuple):
    """The channels of an encoding: SINE, COSINE or ZERO, and the index of each frequency in the geometric ladder."""

    kinds: Tensor  # (m,) int64
    rungs: Tensor  # (m,) float64

    def live(self) -> Tensor:
        """The channels that are not zero."""
        return (self.kinds != ZERO).nonzero().flatten()


class Columns(NamedTuple):
    """Measured frequencies in radians per row, modulo 2 pi (and up to the sign, unless `signed`), with their errors."""

    rungs: Tensor
    turned: Tensor
    error: Tensor
    signed: bool


def scattered(number: int, most: int) -> Tensor:
    """At most `most` of 0..number-1, irregularly spaced, so that no kind of channel is left out; deterministic."""
    if number <= most:
        return torch.arange(number)
    golden = (torch.arange(number, dtype=torch.float64) * 0.6180339887498949).frac()
    return golden.argsort()[:most].sort().values


def pairs(channels: Channels) -> tuple[Tensor, Tensor]:
    """The sine and cosine columns that share a frequency, (sines, cosines)."""
    kinds, index = channels.kinds.tolist(), channels.rungs.tolist()
    sines = {at: column for column, (kind, at) in enumerate(zip(kinds, index, strict=True)) if kind == SINE}
    columns = [
        (sines[at], column)
        for column, (kind, at) in enumerate(zip(kinds, index, strict=True))
        if kind == COSINE and at in sines
    ]
    both = torch.tensor(columns, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def measure(rows: Tensor, channels: Channels, noise: float) -> Columns | None:
    """The frequencies of consecutive rows (n, m); None if sin^2 + cos^2 is not constant, as it must be for
    these channels."""
    sines, cosines = pairs(channels)
    if len(sines):
        some = _columns_to_measure(len(sines))
        sines, cosines = sines[some], cosines[some]
        z = torch.complex(rows[:, cosines], rows[:, sines])
        size = z.abs()
        mean = size.square().mean(0).sqrt().clamp_min(1e-300)
        spread = (size - mean).square().mean(0).sqrt()
        if float((spread / mean).median()) > PAIRS_DIFFER:
            return None
        turned, lag = _angle_per_row(z)
        error = 2 * spread.clamp_min(noise) / mean / (lag * math.sqrt(len(z) - lag))
        return Columns(channels.rungs[cosines], turned, error, True)
    live = channels.live()
    live = live[_columns_to_measure(len(live))]
    turned, error = _recurrence(rows[:, live], noise)
    return Columns(channels.rungs[live], turned, error, False)


def _columns_to_measure(number: int) -> Tensor:
    """The columns to measure, which include those at both ends, the fastest and the slowest."""
    if number <= MEASURED:
        return torch.arange(number)
    middle = ENDS + scattered(number - 2 * ENDS, MEASURED - 2 * ENDS)
    return torch.cat([torch.arange(ENDS), middle, torch.arange(number - ENDS, number)])


def _angle_per_row(z: Tensor) -> tuple[Tensor, int]:
    """The angle from one row to the next, and the largest lag used."""
    angle = (z[1:] * z[:-1].conj()).sum(0).angle()
    lag = last = 1
    while 2 * lag <= len(z) // 2:
        lag = last = 2 * lag
        product = (z[lag:] * z[:-lag].conj()).sum(0)
        angle = angle + (product * torch.polar(torch.ones_like(angle), -lag * angle)).angle() / lag
    return angle, last


def _recurrence(x: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """w in [0, pi] and its error, from x[t + L] + x[t - L] = 2 cos(L w) x[t]."""
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


# -------------------------------------------------------------------------------------- the ladder of the frequencies

LOG2 = math.log(2)
FREQUENCY_ROUNDING = 3e-7  # relative, of the usual float32 formula
LEAST_AGREEMENT = 0.3  # fraction of the frequencies predicted by a ladder that must agree, weighted by precision
LARGEST_DECAY = 16.0  # largest logarithm of the base that is scanned
MAX_START = 2**20
SHARP = 0.01  # radians per row: precision needed to recognize a fast first frequency from its value modulo 2 pi
FEW = 4  # with this many columns or fewer, many ladders come close to the measured frequencies
SCANNED = 48  # columns compared for each ladder or position that is tried


class Ladder(NamedTuple):
    """w = rate * exp(-decay * rung), in radians per row."""

    rate: float
    decay: float

    def at(self, rungs: Tensor) -> Tensor:
        return self.rate * torch.exp2(-self.decay / LOG2 * rungs)  # exact for octaves


def ladders(columns: Columns, rates: Sequence[float] = ()) -> list[Ladder]:
    """Ladders that agree with the measured frequencies, best first, at most three.

    Any two columns with frequencies below pi radians per row determine a ladder; `rates` above pi are tried as its
    first frequency.
    """
    through_pairs = _ladders_through_pairs(columns, rates)
    for rate in rates:
        if abs(rate) > math.pi and columns.signed and _may_start(columns, rate):
            scanned = _ladders_with_rate(columns, rate)
            if scanned:
                return [*scanned, *through_pairs]
    return through_pairs


def _may_start(columns: Columns, rate: float) -> bool:
    """Whether the first frequency may be `rate`, as far as its value modulo 2 pi shows."""
    first = (columns.rungs == 0).nonzero().flatten()
    if len(first) != 1:
        return False
    expected = 5 * float(columns.error[first]) + 2 * FREQUENCY_ROUNDING * abs(rate)
    return abs(float(_wrapped(columns.turned[first] - rate))) <= min(expected, SHARP)


def _ladders_with_rate(columns: Columns, rate: float) -> list[Ladder]:
    """Ladders with a known rate; decays are tried in steps so small that the angle of no column changes much."""
    reach = max(float(columns.rungs.max()), 1.0)
    some = torch.linspace(0, len(columns.rungs) - 1, min(len(columns.rungs), SCANNED)).round().long().unique()
    few = len(some) <= FEW
    decay = torch.arange(0.5, LARGEST_DECAY, (0.06 if few else 0.6) / abs(rate), dtype=torch.float64) / reach
    frequency = rate * torch.exp(-decay[:, None] * columns.rungs[some])
    score = (columns.turned[some] - frequency).cos_().sum(1)
    accepted: list[Ladder] = []
    for k in score.argsort(descending=True)[: 16 if few else 4].tolist():
        grown = _grow(columns, Ladder(rate, float(decay[k])), torch.full_like(columns.rungs, 0.25), (rate,))
        if grown and grown not in accepted:
            accepted.append(grown)
    return accepted[:3]


def _ladders_through_pairs(columns: Columns, rates: Sequence[float]) -> list[Ladder]:
    """Ladders through pairs of columns, scored by how many other columns agree."""
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
    accepted: list[Ladder] = []
    for k in score.argsort(descending=True)[:8].tolist():
        if float(score[k]) < LEAST_AGREEMENT * float(worth[k].sum()):
            continue
        grown = _grow(columns, Ladder(float(rate[k]), float(decay[k])), expected[k], rates)
        if grown and not any(math.isclose(grown.decay, other.decay, rel_tol=1e-4) for other in accepted):
            accepted.append(grown)
        if len(accepted) == 3:
            break
    return accepted


def _guesses(number: int) -> tuple[Tensor, Tensor]:
    """The pairs of columns that ladders are fitted to: spread over all columns, and all pairs near both ends."""
    some = torch.linspace(0, number - 1, min(number, 24)).round().long().unique()
    sets = [some, torch.arange(min(number, 8)), torch.arange(max(0, number - 8), number)]
    both = torch.cat([torch.combinations(part, 2) for part in sets if len(part) > 1] or [torch.zeros(0, 2).long()])
    both = both.unique(dim=0)
    return both[:, 0], both[:, 1]


def _distance(columns: Columns, frequency: Tensor) -> Tensor:
    """The distance of the measured frequencies from given ones, modulo 2 pi and, unless `signed`, up to the sign."""
    away = _wrapped(columns.turned - frequency).abs()
    return away if columns.signed else torch.minimum(away, _wrapped(-columns.turned - frequency).abs())


def _wrapped(angle: Tensor) -> Tensor:
    """The angle reduced to [-pi, pi]."""
    return angle - TAU * torch.round(angle / TAU)


def _grow(columns: Columns, ladder: Ladder, expected: Tensor, rates: Sequence[float]) -> Ladder | None:
    """Fits the ladder to more and more columns; each fit gives the whole turns that are missing in the next ones."""
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
    # Most ladders start at a usual rate, such as 1: then use the exact value instead of the measured one.
    known = next((rate for rate in rates if abs(ladder.rate / rate - 1) < doubt), None)
    if known is not None and float(basis[:, 1].abs().max()) > 0:
        weight = (basis[inside, 1] / relative).square()
        slope = (math.log(abs(known)) - resolved[inside].abs().log()) / -basis[inside, 1].clamp_max(-1e-9)
        ladder = Ladder(known, float((slope * weight).sum() / weight.sum().clamp_min(1e-300)))
    return ladder


def first_positions(rows: Tensor, channels: Channels, ladder: Ladder, noise: float) -> Iterator[tuple[int, float]]:
    """Yields the position of row 0 and the signed amplitude, from the phases of columns with known frequencies.

    The first is the best in a small range of positions around 0; the best in a larger range follows if it is better.
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
    """For some columns: their frequencies, amplitude * exp(i w start), and its variance for values of variance 1."""
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


# ------------------------------------------------------------------------------------------------------ least squares

ROWS, COLUMNS = 256, 112  # used in one step: few enough for one thread
WELL = 0.1  # largest error of a fit, relative to its amplitude, for which it is compared with the table
EXACTLY = 1e-4  # a fit with a smaller error, relative to its amplitude, is accepted without trying others
LARGEST_LOG = 300.0  # of the ratio of the first and the last frequency
SPOILT = 1.5  # ratio of the largest to the median distance of neighbouring rows above which some rows are not sinusoids
WINDOW = 256  # consecutive rows on which frequencies are measured first
FINEST = 1 / 16  # relative to the largest value: smaller values get no more weight
FLOAT32_UNIT, DOUBLE_UNIT = 2.0**-24, 2.0**-51  # relative rounding of an angle's factors in float32 and float64
SIGNIFICANT = 25.0  # by how much the squared errors, in units of the noise's variance, may sum to more than the least
LEAST_VALUE = 2.0**-6  # relative to the amplitude: smaller values are assumed to have the absolute error of this one
MOST_EXPLAINED = 0.1  # if float32 angles may round a larger fraction of the values differently, the test is void
FEWEST_TELLING = 32  # values needed to distinguish exact angles from float32 angles
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
        """The values at some rows (n,): (n, m); 0 in zero channels."""
        turns = (rows[:, None] + self.start) * (self.ladder().at(channels.rungs) / TAU)
        angle = turns.sub_(turns.round()).mul_(TAU)
        value = torch.where(channels.kinds == COSINE, angle.cos(), angle.sin())
        return self.amplitude * value * (channels.kinds != ZERO)


class Fit(NamedTuple):
    """A wave, the uncertainties of its rate (relative), decay, start and amplitude, and the rms error."""

    wave: Wave
    slack: Wave
    error: float


class Noise(NamedTuple):
    """Rounding errors of the stored values.

    Attributes:
        size: error of a large value.
        relative: whether the error is relative to each value (16-bit types).
        unit: largest relative error of storing a value.
        absolute: largest absolute error of storing a value, if that is larger (printed decimals, subnormals).
    """

    size: float
    relative: bool
    unit: float
    absolute: float = 0.0


class Samples(NamedTuple):
    """Some rows of a table: their indices (n,), ascending, and their values (n, m)."""

    rows: Tensor
    values: Tensor


def spread(number: int, most: int) -> Tensor:
    """At most `most` of 0..number-1, evenly spaced, including both ends."""
    return torch.linspace(0, number - 1, min(number, most), dtype=torch.float64).round().long().unique()


def find(
    samples: Samples, channels: Channels, noise: Noise, window: tuple[int, int], rates: Sequence[float] = ()
) -> Fit | None:
    """The wave that fits the samples best, given only the kinds of the channels; measured on a window of rows first."""
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
    """Ranges of consecutive rows: the longest, and parts of it if some rows differ too much from their neighbours."""
    rows = samples.rows
    breaks = ((rows[1:] - rows[:-1]) != 1).nonzero().flatten().add(1).tolist()
    edges = [0, *breaks, len(rows)]
    begin, end = max(itertools.pairwise(edges), key=lambda run: run[1] - run[0])
    length = min(WINDOW, end - begin)
    if length < 2:
        return []
    ranges = [(begin, begin + length)]
    steps = (samples.values[begin + 1 : begin + length] - samples.values[begin : begin + length - 1]).norm(dim=1)
    if float(steps.max()) > SPOILT * float(steps.median()):  # neighbouring rows of an encoding have equal distances
        short = max(min(length // 2, 64), 8)
        middle = begin + (end - begin - short) // 2
        ranges += [(middle, middle + short), (end - short, end), (begin, begin + short)]
    return ranges


def _grown(samples: Samples, channels: Channels, wave: Wave, begin: int, end: int, noise: Noise) -> Fit | None:
    """Fits the wave on the window, then on more and more rows around it; None if it does not fit the window."""
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
    """The data of one step: rows (n, 1), values (n, m), ladder indices, whether each column is a cosine, and weights
    (n, m)."""

    t: Tensor
    x: Tensor
    rung: Tensor
    cosine: Tensor
    fine: Tensor


def _subset(samples: Samples, channels: Channels, noise: Noise) -> Subset:
    """The rows and columns that a step uses, with their weights."""
    live = channels.live()
    columns, rows = live[scattered(len(live), COLUMNS)], spread(len(samples.rows), ROWS)
    t, x = samples.rows[rows].double()[:, None], samples.values[rows][:, columns]
    # In 16 bits a small value has a smaller absolute error than a large one.
    fine = 1 / (x.abs() / x.abs().max().clamp_min(1e-300) + FINEST).square() if noise.relative else torch.ones_like(x)
    fine /= fine.mean()
    return Subset(t, x, channels.rungs[columns], channels.kinds[columns] == COSINE, fine)


class Tolerance(NamedTuple):
    """How much worse than the best fit a wave may be and still be the one that the table was computed from.

    Attributes:
        limit: largest rms error.
        factor: factor on the rms error of the best fit that its noise allows.
        of_amplitude: rms error caused by an amplitude that was rounded to float32.
        relative: relative error of a frequency divided by 1 + decay * rung; 0 for a table of exact angles.
    """

    limit: float
    factor: float
    of_amplitude: float
    relative: float

    def as_large(self, fit: Fit, best: Fit) -> bool:
        """Whether a fit that differs from the best only in its amplitude is as good; angle errors are irrelevant."""
        return fit.error <= best.error * self.factor + self.of_amplitude


def tolerance_of(samples: Samples, channels: Channels, fit: Fit, noise: Noise) -> Tolerance:
    """How far the best fit may be from the wave that the table was computed from.

    Two errors separate them. The rounding of the stored values averages out. In a table of the usual float32 formula,
    the rounding of frequencies and angles does not: exp, pow and their argument have an error of up to 1 + decay * rung
    units of 2^-24, the same in every row.
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
    stored = (stored * noise.unit).clamp_min(noise.absolute) / math.sqrt(3)  # rms of uniformly distributed errors
    stored += shifted(DOUBLE_UNIT)  # error of this computation
    later = index > 0  # the first frequency is often 1, and its angles are integers, hence exact
    exact = _is_exact((x - value)[:, later], stored[:, later], (slope * angle.abs())[:, later])
    least = max(fit.error, rms(stored) / 2)  # a few values can be fitted better than they are stored
    factor = math.sqrt(1 + SIGNIFICANT / x.numel())
    limit = least * factor + rms(shifted(DOUBLE_UNIT if exact else FLOAT32_UNIT))
    unit = max(noise.unit, 0.0 if exact else FLOAT32_UNIT)
    of_amplitude = rms(value) * min(unit, FLOAT32_UNIT) / 2 + (least - fit.error) * factor
    return Tolerance(limit, factor, of_amplitude, 0.0 if exact else FLOAT32_UNIT)


def _is_exact(left: Tensor, stored: Tensor, turning: Tensor) -> bool:
    """Whether the residuals are within the rounding of the stored values where float32 angles would cause larger ones.

    Args:
        left: the residuals.
        stored: rms error of storing a value.
        turning: change of a value per relative change of its angle.
    The last rounding of an angle, that of the product, differs from row to row, so that a fit cannot absorb it.
    """
    ratio = turning * (0.4 * FLOAT32_UNIT) / stored
    for least, ulps in ((4.0, 1.0), (0.5, 0.51)):  # values may be rounded twice: sin, then the product with amplitude
        telling = ratio >= least
        if int(telling.sum()) >= FEWEST_TELLING:
            within = left[telling].abs() <= stored[telling] * (2 * math.sqrt(3) * ulps)
            return float(within.double().mean()) > 0.97
    return False


def misrounded(samples: Samples, channels: Channels, wave: Wave, noise: Noise, relative: float) -> float:
    """The fraction of 16-bit values that differ from the rounded wave, minus the fraction that float32 angles explain;
    1 if they explain too many."""
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
    """Gauss-Newton iterations for the parameters in `free`; rows with large residuals get little weight."""
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
    # Rounding errors of neighbouring rows are not independent: count as many samples as there are columns.
    sigma = max(rms, noise.size * (FINEST if noise.relative else 1.0)) * math.sqrt(len(t))
    slack = dict.fromkeys(NAMES, 0.0)
    for place, k in enumerate(chosen):
        slack[NAMES[k]] = 4 * sigma * math.sqrt(max(float(inverse[place, place]), 0.0))
    slack["decay"] /= reach
    return Fit(wave, Wave(**slack), rms)
