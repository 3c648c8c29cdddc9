"""Search for one-dimensional encodings: first the named conventions, then any base, start, amplitude and scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..encodings import catalogue, frequency
from ..encodings.encoding import COS_FREQUENCIES, LAYOUTS, Encoding
from .candidates import LADDER_FIELDS, Candidate, Identified, SearchResult, Template, rank_candidates
from .explain import LENIENCE, MISROUNDED, channels_of, readings, wave_of
from .fit import (
    COSINE,
    SINE,
    WELL,
    ZERO,
    Channels,
    Fit,
    Noise,
    Samples,
    find,
    misrounded,
    pairs,
    scattered,
    solve,
    spread,
    tolerance_of,
    windows,
)
from .stored_table import NO_SINUSOIDS, Refused, Table, angle_errors, has_sinusoids

STARTS = (0, 1, 2)
FEWEST_ROWS, FEWEST_VALUES = 6, 24  # for a fit of four parameters; with pairs of sin and cos two rows are enough
FEWEST_PAIRS = 4  # pairs of columns needed with fewer rows than FEWEST_ROWS
UNCERTAIN = 5e-4  # relative uncertainty of a base above which it is reported
LEAST_SWEEP = 3.0  # radians that the fastest column must cover if there are only sines or only cosines
FEW_CHANNELS = 8  # with this many channels or fewer, other layouts may fit as well
RATES = (1.0, math.pi)  # usual first frequencies, in radians per row
# First frequencies to try if every frequency exceeds pi radians per row.
SCANNED_RATES = tuple(
    [
        1000.0,
        100.0,
        10.0,
        *(step * ten for ten in (1.0, 10.0, 100.0, 1000.0) for step in (2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)),
    ]
    + [2.0**k for k in range(4, 13)]
    + [math.pi * k for k in (2, 4, 8, 10, 20, 100)]
)
RISING = 3.0  # cost of increasing frequencies for a convention with decreasing ones
FEW_LIVE, FAR = 4, 64  # see _credible
VARIANTS: dict[str, list[dict[str, Any]]] = {"doubled_index": [{"exponent_dim": 2}]}  # variants with the same name
PADDING = 1.5  # bonus for fairseq over t2t if there is a padding row: fairseq's tables have it, t2t's do not


def search(table: Table, *, known: bool = False, strict: bool = False, exchanged: bool = False) -> SearchResult:
    """The one-dimensional encodings that give these rows. Raises Refused for a table that cannot be one.

    Args:
        known: try only named conventions without changes.
        strict: columns of zeros must be zero channels of the layout.
        exchanged: whether sin and cos have been exchanged already.
    """
    refuse_early(table)
    table.look()
    if table.number < 2:
        raise Refused("one row does not tell which encoding it is")
    samples = table.samples()
    _refuse_constant(samples)
    templates = templates_of(table.dim)
    coordinates = coordinates_of(table)
    result = rank_candidates(table, named(table, samples, templates), coordinates, None)
    doubtful = bool(result.fitting) and not _fits_best(table, samples, result.fitting[0])
    if known and not doubtful:
        return result
    if doubtful or not result.fitting:
        blind = rank_candidates(table, fitted(table, samples, templates, strict), coordinates, None)
        if blind.fitting or not (doubtful or result.closest) or (blind.closest and _is_closer(blind, result)):
            result = blind
    if not result.fitting and not result.closest:
        result.reason = (not exchanged and not strict and _exchanged(table, samples)) or (
            f"{len(samples.rows)} rows are too few to fit one, and none of the conventions gives them"
            if len(samples.rows) < FEWEST_ROWS
            else "its columns are smooth, but no ladder of frequencies gives them (learned values, perhaps, or a "
            "flattened grid: pass shape=(H, W) or (T, H, W))"
        )
    return result


def _fits_best(table: Table, samples: Samples, item: Identified) -> bool:
    """Whether a named convention fits as well as the best parameters, up to differences that rounding explains."""
    if item.verdict.error <= (2.0**-40 if table.storage is torch.float64 else table.precision) * table.size:
        return True
    if item.repeated:
        return True
    encoding, extra = item.candidate.encoding, item.candidate.extra
    assert isinstance(encoding, Encoding)
    moved, noise, channels = Samples(samples.rows - extra, samples.values), table.noise(), channels_of(encoding)
    wave = wave_of(encoding)
    best = solve(moved, channels, wave, ("rate", "decay", "amplitude"), noise)
    allowed = tolerance_of(moved, channels, best, noise)
    if solve(moved, channels, wave, (), noise, 0).error <= allowed.limit + allowed.of_amplitude:
        return True
    return noise.relative and misrounded(moved, channels, wave, noise, allowed.relative) <= MISROUNDED


def _exchanged(table: Table, samples: Samples) -> str:
    """The reason to report for the order cos, sin, cos, sin, ..., which no encoding has; "" for other tables."""
    if table.dim % 2 or table.dim < 4 or len(samples.rows) < FEWEST_ROWS:
        return ""
    exchange = torch.arange(table.dim) ^ 1
    channels, noise = channels_of(Encoding(table.dim)), table.noise()
    exchanged = Samples(samples.rows, samples.values[:, exchange])
    for window in windows(exchanged)[:1]:
        fit = find(exchanged, channels, noise, window, RATES)
        if fit and fit.error < WELL * abs(fit.wave.amplitude):
            result = search(Table(table.rows[:, exchange]), exchanged=True)
            if result.fitting:
                return (
                    "cos stands before sin in each pair of channels, an order that no Encoding has; with the channels "
                    f"of each pair exchanged it is {result.fitting[0].candidate.code}"
                )
    return ""


def refuse_early(table: Table) -> None:
    """Raises Refused for a table that is not an encoding, in milliseconds, from its first rows."""
    sample = table.rows[: min(table.number, 64)]
    half = table.dim // 2
    if table.dim >= 4 and table.dim % 2 == 0:
        halves = torch.equal(sample[:, :half], sample[:, half:])
        pairs = torch.equal(sample[:, 0::2], sample[:, 1::2])
        if (halves or pairs) and bool((sample != sample[0]).any()):
            raise Refused(
                "every frequency stands twice with the same function: the cos or sin cache of a rotary encoding, which "
                "multiplies queries and keys and is not added"
            )
    if not has_sinusoids(table.rows):
        raise Refused(NO_SINUSOIDS)


def _refuse_constant(samples: Samples) -> None:
    """Raises Refused if all rows are equal."""
    if bool((samples.values == samples.values[0]).all()):
        raise Refused("all of its rows are equal")


def _is_closer(one: SearchResult, other: SearchResult) -> bool:
    """Whether the closest encoding of one search is much nearer than that of another."""
    return bool(one.closest and other.closest and one.closest.verdict.rms < 0.5 * other.closest.verdict.rms)


def coordinates_of(table: Table) -> Callable[[int], list[Tensor]]:
    """A function that gives the positions of the rows, without start, after a number of extra rows."""
    return lambda extra: [torch.arange(table.number) - extra]


def templates_of(dim: int) -> list[Template]:
    """Every convention with this dim, then the other layouts of the family as "custom"."""
    templates = []
    for rank, name in enumerate(catalogue.CATALOGUE):
        try:
            encoding = catalogue.convention(name, dim)
        except ValueError:
            continue
        templates.append(Template(name, encoding, _builder(name, dim), rank))
        for given in VARIANTS.get(name, ()):
            build = _builder(name, dim, given)
            if build({}) != encoding:
                templates.append(Template(name, build({}), build, rank, tuple(given.items())))
    known = {_key(axis_of(template)) for template in templates}
    odd = ("truncate", "pad", "round") if dim % 2 else ("truncate",)
    for layout in LAYOUTS:
        for cos_frequency in COS_FREQUENCIES:
            for policy in odd:
                encoding = Encoding(dim, layout=layout, cos_frequency=cos_frequency, odd=policy)
                if _key(encoding) not in known:
                    known.add(_key(encoding))
                    templates.append(Template("custom", encoding, encoding_builder(encoding), 100))
    return templates


def axis_of(template: Template) -> Encoding:
    """The encoding of a one-dimensional template."""
    assert isinstance(template.encoding, Encoding)
    return template.encoding


def _builder(name: str, dim: int, args: dict[str, Any] | None = None) -> Callable[[dict[str, Any]], Any]:
    """The `build` of a template: creates the convention with some fields overridden."""
    return lambda fields: catalogue.convention(name, dim, **{**(args or {}), **fields})


def encoding_builder(encoding: Encoding) -> Callable[[dict[str, Any]], Any]:
    """The `build` of a template for an encoding without a name."""
    return lambda fields: encoding.replace(**fields)


def _key(encoding: Encoding) -> tuple[Any, ...]:
    """A key that is equal for encodings with the same kinds and ladder indices of channels."""
    return key_of(channels_of(encoding.replace(start=0, position_scale=1.0, amplitude=1.0)))


def key_of(channels: Channels) -> tuple[Any, ...]:
    """The kinds and ladder indices of channels as a hashable key."""
    return tuple(channels.kinds.tolist()), tuple(channels.rungs.tolist())


def named(table: Table, samples: Samples, templates: list[Template]) -> list[Candidate]:
    """The named conventions without changes, at one of the usual first positions."""
    rows = spread(len(samples.rows), 64)
    t, values = samples.rows[rows].double(), samples.values[rows]
    columns = scattered(table.dim, 256)
    values = values[:, columns]
    tried: dict[tuple[Any, ...], bool] = {}
    candidates = []
    for template in templates:
        if template.name == "custom":
            continue
        encoding = axis_of(template)
        channels = channels_of(encoding)
        channels = Channels(channels.kinds[columns], channels.rungs[columns])
        wave = wave_of(encoding)
        for start in dict.fromkeys((encoding.start, *STARTS)):
            for extra in dict.fromkeys((0, table.leading)):
                if extra and start == extra + (encoding.start or 0):
                    continue
                here = wave._replace(start=float(start - extra))
                key = (here, _ends(channels))
                if key not in tried:
                    value = here.at(t, channels)
                    allowed = angle_errors(here, t, channels) + table.tolerance()
                    tried[key] = bool((((values - value).abs() <= allowed).all(1)).double().mean() > 0.5)
                if tried[key]:
                    fields = {} if start == encoding.start else {"start": start}
                    cost = 1.0 * (len(fields) + len(template.args))
                    candidates.append(_candidate(table, template, fields, cost, True, extra))
    return [candidate for candidate in candidates if candidate is not None]


def _ends(channels: Channels) -> tuple[Any, ...]:
    """A short hashable key of channels."""
    return hash(tuple(channels.kinds.tolist())), hash(tuple(channels.rungs.tolist()))


def _candidate(
    table: Table, template: Template, fields: dict[str, Any], cost: float, sure: bool, extra: int
) -> Candidate | None:
    """The candidate with these fields; None if the template does not accept them."""
    try:
        encoding = template.build(fields)
    except (ValueError, OverflowError):
        return None
    padded = (
        template.name == "fairseq"
        and "start" in fields
        and fields["start"] == 0
        and len(table.zero_rows) == 1
        and not extra
    )
    return Candidate(template, fields, encoding, cost - PADDING * padded, sure, extra)


def fitted(table: Table, samples: Samples, templates: list[Template], strict: bool = False) -> list[Candidate]:
    """Candidates with any base, start, amplitude and scale, for each layout of sin and cos."""
    if len(samples.rows) < 2 or samples.values.numel() < FEWEST_VALUES:
        return []
    noise = table.noise()
    structures: dict[tuple[Any, ...], list[Template]] = {}
    for template in templates:
        structures.setdefault(_key(axis_of(template)), []).append(template)
    groups = [(channels_of(axis_of(group[0])), group) for group in structures.values()]
    if len(samples.rows) < FEWEST_ROWS:
        groups = [item for item in groups if len(pairs(item[0])[0]) >= FEWEST_PAIRS]
    zero = (samples.values == 0).all(0)
    exact = [item for item in groups if bool((zero == (item[0].kinds == ZERO)).all())]
    if strict and not exact:
        return []
    groups = exact or [item for item in groups if bool((zero | (item[0].kinds != ZERO)).all())]
    results: list[tuple[float, list[Template], Fit]] = []
    tries = [(window, RATES) for window in windows(samples)]
    for window, rates in [*tries, *((window, SCANNED_RATES) for window, _ in tries[:1])]:
        for channels, group in groups:
            fit = find(samples, channels, noise, window, rates)
            if (
                fit
                and fit.error < WELL * abs(fit.wave.amplitude)
                and _credible(fit, channels, len(samples.rows), noise)
            ):
                results.append((fit.error, group, fit))
                if fit.error < 2 * noise.size and table.dim > FEW_CHANNELS:
                    break
        if results:
            break
    results.sort(key=lambda result: result[0])
    candidates = []
    for error, group, fit in results:
        if error > 3 * results[0][0] + noise.size:
            break
        for template in group:
            candidates += _candidates_of_fit(table, samples, template, fit, noise)
    return candidates


def _credible(fit: Fit, channels: Channels, rows: int, noise: Noise) -> bool:
    """Whether a fit is significant; a few columns, or a short range of angles, can be fitted by chance."""
    live = len(channels.live())
    if live <= FEW_LIVE and abs(fit.wave.start) > FAR:  # one frequency has any phase at some position, two almost any
        if live <= 2 or fit.error > max(3 * noise.size, 1e-6 * abs(fit.wave.amplitude)):
            return False
    sweep = rows * float(fit.wave.ladder().at(channels.rungs).abs().max())
    single = len({int(kind) for kind in channels.kinds.unique()} & {SINE, COSINE}) == 1
    return sweep >= LEAST_SWEEP if single else sweep >= 0.02


def _candidates_of_fit(table: Table, samples: Samples, template: Template, fit: Fit, noise: Noise) -> list[Candidate]:
    """The fit expressed as fields of a template."""
    encoding = axis_of(template)
    wave = wave_of(encoding)
    if wave.decay < 0 < fit.wave.decay:
        return []  # the convention has increasing frequencies
    extra = table.leading if fit.wave.start < 0 else 0
    moved = Samples(samples.rows - extra, samples.values)
    shifted = Fit(fit.wave._replace(start=fit.wave.start + extra), fit.slack, fit.error)
    candidates = []
    uncertain = base_uncertainty(encoding, fit)
    for reading in readings(encoding, shifted, moved, noise):
        sure = certain(encoding, reading.fields, fit)
        if len(samples.rows) < FEWEST_ROWS and not certain(encoding, reading.fields, fit, 1.0):
            continue
        cost = reading.cost + RISING * (wave.decay * fit.wave.decay < 0)
        candidate = _candidate(table, template, reading.fields, cost, sure, extra)
        if candidate and not sure and uncertain > UNCERTAIN:
            candidate.uncertain = uncertain
        candidates.append(candidate)
    return [candidate for candidate in candidates if candidate is not None]


def certain(template: Encoding, fields: dict[str, Any], fit: Fit, least: float = 0.05) -> bool:
    """Whether it is unlikely that a round base is so near by chance."""
    if not any(name in fields for name in LADDER_FIELDS):
        return True
    digits = len(f"{fields['base']:.15g}".replace(".", "").strip("0").split("e")[0]) if "base" in fields else 3
    return max(base_uncertainty(template, fit), LENIENCE) * 10.0 ** min(digits, 12) < least


def base_uncertainty(template: Encoding, fit: Fit) -> float:
    """The relative uncertainty of the base of a fit."""
    _, _, exponent_dim = frequency.shape(template)
    relative = max(float(exponent_dim) / 2, 1.0) * fit.slack.decay
    return relative if math.isfinite(relative) else 1.0
