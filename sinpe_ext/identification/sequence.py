"""Search for one-dimensional encodings: the named conventions, then any base, start, amplitude and scale."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

from ..encodings import catalogue
from ..encodings.encoding import COS_FREQUENCIES, LAYOUTS, Encoding
from .explain import Explainer, channels_of, wave_of
from .fit import Channels, Samples, Wave, fit, refine, scattered
from .match import Match
from .ranking import Candidate
from .stored_table import StoredTable

STARTS = (0, 1, 2)  # usual first positions
FEWEST_ROWS, FEWEST_VALUES = 6, 24  # for a fit of four numbers; with pairs of sin and cos two rows are enough
FEWEST_PAIRS = 4  # pairs of columns needed with fewer rows than FEWEST_ROWS
WELL = 0.1  # largest error of a fit, relative to its amplitude, for which it is compared with the table
FEW_CHANNELS = 8  # with this many channels or fewer, other layouts may fit as well
LEAST_SWEEP = 3.0  # radians that the fastest column must cover if there are only sines or only cosines
FEW_LIVE, FAR = 4, 64  # see `_credible`
RISING = 3.0  # cost of increasing frequencies for a convention with decreasing ones
PADDING = 1.5  # bonus for fairseq over t2t if there is a padding row: fairseq's tables have it, t2t's do not


@lru_cache(maxsize=16)
def conventions_of(dim: int) -> tuple[Candidate, ...]:
    """Every convention with this dim, then the layouts that have no name."""
    templates: list[Candidate] = []
    for rank, name in enumerate(catalogue.CATALOGUE):
        for fields in ({}, {"exponent_dim": 2}) if name == "doubled_index" and dim != 2 else ({},):
            try:
                encoding = catalogue.convention(name, dim, **fields)
            except ValueError:
                continue
            templates.append(Candidate(name, fields, encoding, float(len(fields)), rank))
    known = {channels_of(template.axes[0]).key() for template in templates}
    odd = ("truncate", "pad", "round") if dim % 2 else ("truncate",)
    for layout, cos_frequency, policy in itertools.product(LAYOUTS, COS_FREQUENCIES, odd):
        other = Encoding(dim, layout=layout, cos_frequency=cos_frequency, odd=policy)
        key = channels_of(other).key()
        if key not in known:
            known.add(key)
            templates.append(Candidate("custom", {}, other, 0.0, 100))
    return tuple(templates)


def named(table: StoredTable, samples: Samples) -> list[Candidate]:
    """The conventions, at one of the usual first positions, that give most rows, up to rounding errors."""
    dim = samples.x.shape[1]
    columns = scattered(dim, 128)
    samples = samples.some(scattered(len(samples.t), 64), columns)
    tried: dict[Any, bool] = {}
    candidates = []
    for template in conventions_of(dim):
        encoding = template.axes[0]
        channels = channels_of(encoding).columns(columns)
        key = channels.key()
        starts = dict.fromkeys((encoding.start, *STARTS)) if template.name != "custom" else {}
        for start, extra in itertools.product(starts, dict.fromkeys((0, table.leading))):
            wave = wave_of(encoding)._replace(start=float(start - extra))
            if extra and start == extra + encoding.start:
                continue
            if (wave, key) not in tried:
                tried[wave, key] = float(samples.agree(wave, channels).all(1).double().mean()) > 0.5
            if tried[wave, key]:
                padded = template.name == "fairseq" and start == 0 and int(table.zero.sum()) == 1 and not extra
                fields = {} if start == encoding.start else {"start": start}
                candidates.append(template.changed(fields, len(fields) - PADDING * padded, extra))
    return [candidate for candidate in candidates if candidate]


def is_nearest(samples: Samples, match: Match) -> bool:
    """Whether no other numbers reproduce digits of the table that this encoding does not: the values differ from it by
    rounding or by float32 angle errors."""
    assert isinstance(match.encoding, Encoding)
    if match.max_error <= samples.noise:
        return True
    channels = channels_of(match.encoding)
    samples = samples._replace(t=samples.t - match.extra_tokens)
    wave = wave_of(match.encoding)
    first = Explainer(samples, channels, wave)
    better = refine(first.samples, first.channels, wave, (0, 1, 3))[0]
    explainer = Explainer(samples, channels, better)
    return not explainer.exact or explainer.agrees(wave)


def fitted(table: StoredTable, samples: Samples) -> list[Candidate]:
    """Encodings of any base, start, amplitude and scale that are near the rows, for each layout of sin and cos."""
    if len(samples.t) < 2 or samples.x.numel() < FEWEST_VALUES:
        return []
    groups: dict[Any, list[Candidate]] = {}
    for template in conventions_of(samples.x.shape[1]):
        groups.setdefault(channels_of(template.axes[0]).key(), []).append(template)
    zero = (samples.x == 0).all(0)
    fits: list[tuple[float, Wave, list[Candidate]]] = []
    for group in groups.values():
        channels = channels_of(group[0].axes[0])
        if bool((channels.zero & ~zero).any()):
            continue
        if len(samples.t) < FEWEST_ROWS and len(channels.pairs()[0]) < FEWEST_PAIRS:
            continue
        found = fit(samples, channels)
        if found and found[1] < WELL * abs(found[0].amplitude) and _credible(samples, channels, *found):
            fits.append((found[1], found[0], group))
            if found[1] < 2 * samples.noise and len(channels.zero) > FEW_CHANNELS:
                break
    candidates = []
    for error, wave, group in fits:
        if error > 3 * min(fits, key=lambda item: item[0])[0] + samples.noise:
            continue
        extra = table.leading if wave.start < 0 else 0
        moved = samples._replace(t=samples.t - extra)
        explainer = Explainer(moved, channels_of(group[0].axes[0]), wave._replace(start=wave.start + extra))
        for template in group:
            decay = wave_of(template.axes[0]).decay
            if decay < 0 < wave.decay:
                continue  # the convention has increasing frequencies
            for fields, cost in explainer.explain(template.axes[0]):
                candidates.append(template.changed(fields, cost + RISING * (decay * wave.decay < 0), extra))
    return [candidate for candidate in candidates if candidate]


def _credible(samples: Samples, channels: Channels, wave: Wave, error: float) -> bool:
    """Whether a fit is significant; a few columns, or a short range of angles, can be fitted by chance."""
    live = int((~channels.zero).sum())
    if live <= FEW_LIVE and abs(wave.start) > FAR:  # one frequency has any phase at some position, two almost any
        is_rounded = samples.noise > 1e-4 * abs(wave.amplitude)  # to 16 bits, in which some position fits by chance
        if live <= 2 or is_rounded or error > max(3 * samples.noise, 1e-6 * abs(wave.amplitude)):
            return False
    sweep = len(samples.t) * float(wave.frequency(channels.exponent).abs().max())
    both = bool(channels.cosine.any()) and bool((~channels.cosine & ~channels.zero).any())
    return sweep >= (0.02 if both else LEAST_SWEEP)
