"""Search for grid encodings: every channel depends on one axis, so each axis is identified from a line along it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings import catalogue
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.grid_catalogue import GRIDS
from . import sequence
from .candidates import Candidate, SearchResult, Template, rank_candidates
from .explain import channels_of, readings, wave_of
from .fit import WELL, Channels, Fit, Noise, Samples, find, scattered, windows
from .stored_table import Refused, Table, angle_errors, grid_coordinates

STARTS = (0, 1, 2)
NO_AXIS = -1
OPTIONS = 3  # readings of one axis that are combined with those of the others
MOST_CHANNELS = 0.75  # fraction of the changing channels that must depend on one axis only
QUICK_ROWS, QUICK_COLUMNS = 64, 256
MOST_FACTORS = 64
SHORTEST = 3  # shortest axis that unknown parameters are fitted to
COMMON = ("base", "position_scale", "amplitude", "start", "shift", "exponent_dim", "exponent_scale")


class Lines(NamedTuple):
    """The line along each axis at index 0 of the other axes, (L, d), and the axis on which each channel depends."""

    values: list[Tensor]
    axis: Tensor  # NO_AXIS if a channel hardly changes


class Option(NamedTuple):
    """The fields to override for one axis, with their cost."""

    fields: dict[str, Any]
    cost: float
    sure: bool


def search(table: Table, lengths: tuple[int, ...]) -> SearchResult:
    """The grid encodings that give a table of these lengths, after leading rows of zeros. Raises Refused for a table
    that cannot be one."""
    extra = table.number - math.prod(lengths)
    if extra and bool(table.rows[:extra].any()):
        first = "first row is" if extra == 1 else f"first {extra} rows are"
        raise Refused(
            f"its {first} not zero, but a grid of {' x '.join(map(str, lengths))} leaves {extra} of {table.number} "
            "rows for class tokens; pass the rows of the grid alone"
        )
    lines = lines_of(table.rows[extra:], lengths, table.relative)
    if lines is None:
        raise Refused(f"its channels do not follow one axis each of a grid of {' x '.join(map(str, lengths))}")
    table.look()
    coordinates = grid_coordinates(lengths, extra, table.number)
    templates = templates_of(table.dim, len(lengths))
    result = rank_candidates(table, list(_candidates(table, lines, templates, extra)), lambda _: coordinates, lengths)
    if not result.fitting:
        custom = _custom(table, lines, extra)
        other = rank_candidates(table, [custom] if custom else [], lambda _: coordinates, lengths)
        if other.fitting or not result.closest:
            result = other
    if not result.fitting and not result.closest:
        result.reason = (
            f"each channel follows one axis of a grid of {' x '.join(map(str, lengths))}, but no ladder of frequencies "
            "gives them"
        )
    return result


def templates_of(dim: int, number: int) -> list[Template]:
    """Every grid convention with this dim and number of axes."""
    templates = []
    names = [*GRIDS, *(name for name, entry in catalogue.CATALOGUE.items() if entry.arrangement)]
    for rank, name in enumerate(names):
        args = {} if name in GRIDS else {"axes": number}
        try:
            encoding = catalogue.convention(name, dim, **args)
        except ValueError:
            continue
        if isinstance(encoding, GridEncoding) and encoding.ndim == number:
            templates.append(Template(name, encoding, _builder(name, dim, args), rank, tuple(args.items())))
    return templates


def _builder(name: str, dim: int, args: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """The `build` of a template: creates the convention with some fields overridden."""
    return lambda fields: catalogue.convention(name, dim, **args, **fields)


def lines_of(body: Tensor, lengths: Sequence[int], precision: float) -> Lines | None:
    """The lines of a flattened grid, read from a few rows; None if most channels do not depend on a single axis."""
    strides = [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
    last = sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))
    near, ranges, moved = [], [], []
    for length, stride in zip(lengths, strides, strict=True):
        along = torch.arange(length) * stride
        line, far = body[along].double(), body[along + last - (length - 1) * stride].double()
        whole = line.any(1) & far.any(1)
        whole |= ~whole.any()
        ranges.append(line[whole].amax(0) - line[whole].amin(0))
        line = torch.where(line.any(1, keepdim=True), line, far)  # instead of rows that were set to zero
        near.append(line)
        moved.append(((line - far).abs() * whole[:, None]).amax(0))
    size = max(float(line.abs().max()) for line in near)
    still = size * max(1e-6, 2 * precision)
    spread = torch.stack(ranges)
    changes = spread > still
    axis = torch.where(changes.any(0), spread.argmax(0), NO_AXIS)
    one = changes.sum(0) == 1
    unmoved = torch.stack(moved).gather(0, axis.clamp_min(0)[None])[0] <= still
    follows = (one & unmoved)[axis != NO_AXIS]
    every = all(length == 1 or bool((axis == k).any()) for k, length in enumerate(lengths))
    if not every or float(follows.double().mean()) < MOST_CHANNELS:
        return None
    return Lines(near, axis)


def likely_shapes(flat: Tensor) -> list[tuple[int, int]]:
    """The shapes (H, W) that a flattened table may have after its leading rows of zeros, squarest first."""
    number = len(flat)
    extra = next((k for k in range(min(number, 16)) if bool(flat[k].any())), 0)
    body, left = flat[extra:], number - extra
    factors = [width for width in range(2, math.isqrt(left) + 1) if left % width == 0]
    shapes = [shape for width in factors[-MOST_FACTORS:] for shape in {(left // width, width), (width, left // width)}]
    shapes.sort(key=lambda shape: (abs(math.log(shape[0] / shape[1])), shape))
    likely = []
    columns = scattered(flat.shape[1], QUICK_COLUMNS)
    for height, width in shapes:
        # Two rows of the image nearly always decide: a column is equal in both, or constant along the first.
        begin = min(width, QUICK_ROWS)
        first, second = (body[at : at + begin][:, columns].float() for at in (0, width))
        size = float(first.abs().max())
        same = (first - second).abs().amax(0) <= 1e-2 * size
        level = (first[:1] - first).abs().amax(0) <= 1e-2 * size
        changing = ~(same & level)
        if (
            float((same | level)[changing].double().mean()) >= MOST_CHANNELS
            and lines_of(body, (height, width), 2.0**-8) is not None
        ):
            likely.append((height, width))
    return likely


def _candidates(table: Table, lines: Lines, templates: list[Template], extra: int) -> Iterator[Candidate]:
    """Each convention, with the axes as they are or with fitted fields."""
    noise = table.noise()
    fits: dict[Any, list[Fit]] = {}
    for template in templates:
        grid = template.encoding
        assert isinstance(grid, GridEncoding)
        if not _follows(grid, lines):
            continue
        options = []
        for axis in range(grid.ndim):
            columns, channels = _columns(grid, axis)
            samples = Samples(torch.arange(len(lines.values[axis])), lines.values[axis][:, columns])
            options.append(list(_options(table, grid.axes[axis], channels, samples, noise, fits, (axis, columns))))
        best = [sorted(of_axis, key=lambda option: option.cost)[:OPTIONS] for of_axis in options]
        for chosen in itertools.product(*best):
            for fields, cost in _joined(grid, chosen, lines):
                try:
                    encoding = template.build(fields)
                except (ValueError, OverflowError):
                    continue
                yield Candidate(template, fields, encoding, cost, all(option.sure for option in chosen), extra)


def _follows(grid: GridEncoding, lines: Lines) -> bool:
    """Whether the changing channels depend on the same axes as in the grid, and every axis has channels."""
    if {piece.axis for piece in grid.pieces} != set(range(grid.ndim)):
        return False
    axis = torch.full((grid.dim,), NO_AXIS)
    for piece in grid.pieces:
        axis[piece.first : piece.first + (piece.encoding.dim - 1) * piece.step + 1 : piece.step] = piece.axis
    return bool(((lines.axis == axis) | (lines.axis == NO_AXIS)).all())


def _columns(grid: GridEncoding, axis: int) -> tuple[tuple[int, ...], Channels]:
    """The columns that depend on an axis, and their channels."""
    columns: list[int] = []
    kinds, index = [], []
    for piece in grid.pieces:
        if piece.axis == axis:
            columns += [piece.first + channel * piece.step for channel in range(piece.encoding.dim)]
            channels = channels_of(piece.encoding)
            kinds.append(channels.kinds)
            index.append(channels.rungs)
    return tuple(columns), Channels(torch.cat(kinds), torch.cat(index))


def _options(
    table: Table,
    template: Encoding,
    channels: Channels,
    samples: Samples,
    noise: Noise,
    fits: dict[Any, list[Fit]],
    where: tuple[int, tuple[int, ...]],
) -> Iterator[Option]:
    """The options for the encoding of one axis: as it is, with another start, or with fields fitted to its line."""
    wave, t = wave_of(template), samples.rows.double()
    known = False
    for start in dict.fromkeys((template.start, *STARTS)):
        here = wave._replace(start=float(start))
        allowed = angle_errors(here, t, channels) + table.tolerance()
        if bool(((samples.values - here.at(t, channels)).abs() <= allowed).all()):
            known = True
            yield Option({} if start == template.start else {"start": start}, float(start != template.start), True)
    if known or len(samples.rows) < SHORTEST:
        return
    key = (where, sequence.key_of(channels))
    if key not in fits:
        attempts = (find(samples, channels, noise, window, sequence.RATES) for window in windows(samples)[:1])
        fits[key] = [fit for fit in attempts if fit and fit.error < WELL * abs(fit.wave.amplitude)]
    for fit in fits[key]:
        if wave.decay * fit.wave.decay >= 0:
            for reading in readings(template, fit, samples, noise, channels):
                yield Option(reading.fields, reading.cost, sequence.certain(template, reading.fields, fit))


def _joined(grid: GridEncoding, chosen: tuple[Option, ...], lines: Lines) -> Iterator[tuple[dict[str, Any], float]]:
    """The fields of the axes as fields of the grid: one value if they agree, or nearly so, else one per axis."""
    longest = max(range(grid.ndim), key=lambda axis: len(lines.values[axis]))
    names = [name for name in COMMON if any(name in option.fields for option in chosen)]
    apart: dict[str, Any] = {}
    together: dict[str, Any] = {}
    for name in names:
        values = tuple(
            option.fields.get(name, getattr(axis, name)) for option, axis in zip(chosen, grid.axes, strict=True)
        )
        apart[name] = values[0] if len(set(values)) == 1 else values
        near = None not in values and all(math.isclose(value, values[longest], rel_tol=0.05) for value in values)
        together[name] = values[longest] if near else apart[name]
    costs = [option.cost for option in chosen]
    yield apart, max(costs) + sum(isinstance(value, tuple) for value in apart.values())
    if together != apart:
        yield together, max(costs)


def _custom(table: Table, lines: Lines, extra: int) -> Candidate | None:
    """A grid that is no convention: axes in blocks, grouped or interleaved, each with its own encoding."""
    number = len(lines.values)
    if min(map(len, lines.values)) < 2:
        return None
    for arrangement, order, columns in _arrangements(table, lines.axis, number):
        axes: list[Encoding] = []
        for axis in range(number):
            line = lines.values[axis][:, columns[axis]]
            try:
                result = sequence.search(Table(line.to(table.storage)))
            except Refused:
                break
            if not result.fitting or not isinstance(result.fitting[0].candidate.encoding, Encoding):
                break
            axes.append(result.fitting[0].candidate.encoding)
        if len(axes) < number:
            continue
        try:
            grid = GridEncoding(axes, order=order, arrangement=arrangement, dim=table.dim)
        except ValueError:
            continue
        return Candidate(Template("custom", grid, partial(_with_axes, grid)), {}, grid, 0.0, True, extra)
    return None


def _with_axes(grid: GridEncoding, fields: dict[str, Any]) -> GridEncoding:
    return grid.with_axes(**fields)


def _arrangements(table: Table, axis: Tensor, number: int) -> Iterator[tuple[str, tuple[int, ...], list[list[int]]]]:
    """The possible arrangements of the channels, from the axis on which each depends: (arrangement, order, columns of
    each axis)."""
    used = table.dim
    sample = table.rows[table.live[:64]]
    while used and not bool(sample[:, used - 1].any()):
        used -= 1
    first = axis[:number].tolist()
    if used % number == 0 and sorted(first) == list(range(number)):
        yield "interleaved", tuple(first), [list(range(first.index(k), used, number)) for k in range(number)]
    runs: list[tuple[int, int]] = []  # (axis, first channel); a channel that hardly changes extends the previous run
    for channel, follows in enumerate(axis[:used].tolist()):
        if follows != NO_AXIS and (not runs or runs[-1][0] != follows):
            runs.append((follows, channel if runs else 0))
    ends = [begin for _, begin in runs[1:]] + [used]
    order = tuple(follows for follows, _ in runs[:number])
    if sorted(order) != list(range(number)):
        return
    columns: list[list[int]] = [[] for _ in range(number)]
    for (follows, begin), end in zip(runs, ends, strict=True):
        columns[follows] += range(begin, end)
    if len(runs) == number:
        yield "blocks", order, columns
    elif len(runs) == 2 * number:
        yield "grouped", order, columns


# -------------------------------------------------------------------------------------- the shape of a flattened grid

COLUMNS, VALUES = 256, 2**21  # read at most
MOST_PERIODS = 12
MOST_SHAPES = 4
MOST_EXTRA = 16  # rows of zeros around a grid
LEVEL = 0.2  # fraction of constant columns from which an axis of length 1 is assumed
FEWEST_LEVEL = 0.1
FEWEST_PLACES = 12  # with fewer rows, columns of a sequence may be constant by rounding


def inside(flat: Tensor) -> Tensor:
    """The rows between leading and trailing rows of zeros."""
    number = len(flat)
    first = next((k for k in range(min(number, MOST_EXTRA)) if bool(flat[k].any())), 0)
    last = next((k for k in range(min(number, MOST_EXTRA)) if bool(flat[number - 1 - k].any())), 0)
    return flat[first : number - last]


def shapes_of(flat: Tensor) -> tuple[list[tuple[int, ...]], bool]:
    """The shapes that a flattened grid may have, most likely first, and whether the table can only be a grid."""
    body = inside(flat)
    for rows in (body, flat, body[1:], flat[1:]):  # the last two: after a learned class token
        shapes = _shapes_from_constant_columns(rows)
        if shapes:
            sure = len(rows) >= FEWEST_PLACES and all(min(shape) > 1 for shape in shapes)
            return shapes, sure
    return [shape for shape in likely_shapes(body)[:MOST_SHAPES]], False


def _has_constant_columns(rows: Tensor) -> bool:
    """Whether some columns are equal in neighbouring rows, as they are for all axes except the last."""
    return float((rows[1:] == rows[:-1]).any(0).double().mean()) >= FEWEST_LEVEL


def _shapes_from_constant_columns(body: Tensor) -> list[tuple[int, ...]]:
    """The shapes that follow from the number of rows for which columns are constant: 1 for the last axis, W for the one
    before, then H * W."""
    number = len(body)
    if number < 2 or not (_has_constant_columns(body[:3]) or _has_constant_columns(body[-3:])):
        return []
    sample = body[:, scattered(body.shape[1], max(1, min(COLUMNS, VALUES // number)))]
    if not bool(sample[0].any()):
        sample = sample.flip(0)
    changed = (sample != sample[:1]) & sample.any(1)[:, None]
    first = torch.where(changed.any(0), changed.to(torch.uint8).argmax(0), number)
    counts = Counter(first.tolist())
    periods = [at for at in counts if 1 < at < number and number % at == 0]
    periods = sorted(sorted(periods, key=lambda at: -counts[at])[:MOST_PERIODS])
    chains = [(a, b) for a, b in itertools.combinations(periods, 2) if b % a == 0]
    shapes: list[tuple[int, ...]] = [(number // b, b // a, a) for a, b in chains]
    shapes += [(number // a, a) for a in periods]
    confirmed = [shape for shape in shapes if lines_of(body, shape, 2.0**-24) is not None]
    confirmed.sort(key=lambda shape: (-len(shape), abs(math.log(shape[-1] / shape[-2]))))
    if len(first) > counts[number] >= LEVEL * len(first):  # an axis of length 1
        flat = [shape for shape in confirmed if len(shape) == 2]
        videos = confirmed[: len(confirmed) - len(flat)][:MOST_SHAPES]
        confirmed = [*videos, *((*shape[:at], 1, *shape[at:]) for shape in flat for at in range(3)), *flat]
        confirmed = confirmed or [(1, number), (number, 1)]
    return confirmed[: 2 * MOST_SHAPES]
