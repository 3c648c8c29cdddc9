"""Search for grid encodings: each channel depends on one axis, so each axis is fitted to the rows along it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from ..encodings import catalogue
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.grid_catalogue import GRIDS
from .explain import Explainer, Explanation, channels_of, wave_of
from .fit import Channels, Samples, fit
from .ranking import Candidate
from .sequence import STARTS, WELL
from .stored_table import UNITS, StoredTable

EXPLANATIONS = 3  # explanations of one axis that are combined with those of the others
SHORTEST = 3  # shortest axis that unknown numbers are fitted to
MOST_SEPARABLE = 0.75  # fraction of the channels that must depend on one axis only


def candidates_of(table: StoredTable, lengths: tuple[int, ...]) -> list[Candidate]:
    """The grid conventions that are near a flattened table of these lengths, with any numbers for each axis."""
    dim = table.rows.shape[1]
    lines = [_line(table, lengths, axis) for axis in range(len(lengths))]
    explainers: dict[Any, Explainer | None] = {}
    candidates = []
    for template in conventions_of(dim, len(lengths)):
        options = [_explanations(template.encoding, axis, line, explainers) for axis, line in enumerate(lines)]
        for chosen in itertools.product(*options):
            candidates += [template.changed(*joined) for joined in _joined(template.axes, chosen, lengths)]
    return [candidate for candidate in candidates if candidate]


def conventions_of(dim: int, number: int) -> list[Candidate]:
    """Every convention for grids with this dim and number of axes."""
    names: dict[str, dict[str, Any]] = {name: {} for name in GRIDS}
    names |= {name: {"axes": number} for name, entry in catalogue.CATALOGUE.items() if entry.arrangement}
    found = []
    for rank, (name, fields) in enumerate(names.items()):
        try:
            found.append(Candidate(name, fields, catalogue.convention(name, dim, **fields), 0.0, rank))
        except ValueError:
            continue
    return [candidate for candidate in found if len(candidate.axes) == number]


def _line(table: StoredTable, lengths: tuple[int, ...], axis: int) -> Samples:
    """The rows along an axis, at index 0 of the other axes, or at the last if that has a row of zeros."""
    stride = math.prod(lengths[axis + 1 :])
    line = torch.arange(lengths[axis]) * stride
    if bool(table.zero[line].any()):
        line = line + (len(table.rows) - 1 - int(line[-1]))
    kept = (~table.zero[line]).nonzero().flatten()
    return table.samples(line[kept])._replace(t=kept)


def is_separable(table: StoredTable, lengths: tuple[int, ...]) -> bool:
    """Whether most channels can be sums of functions of one axis each: lines along an axis differ by a constant."""
    last = len(table.rows) - 1
    separable = torch.ones(table.rows.shape[1], dtype=torch.bool)
    for axis in range(len(lengths)):
        line = torch.arange(lengths[axis]) * math.prod(lengths[axis + 1 :])
        far = line + (last - int(line[-1]))
        kept = ~(table.zero[line] | table.zero[far])
        if bool(kept.any()):
            apart = table.rows[line[kept]].double() - table.rows[far[kept]].double()
            allowed = table.size * (1e-6 + 4 * UNITS[table.rows.dtype])
            separable &= apart.amax(0) - apart.amin(0) <= allowed
    return float(separable.double().mean()) >= MOST_SEPARABLE


def _explanations(grid: Any, axis: int, line: Samples, explainers: dict[Any, Explainer | None]) -> list[Explanation]:
    """The encoding of one axis: as it is, with another start, or with fields fitted to its line; simplest first."""
    template = grid.axes[axis]
    columns, channels = _channels_along(grid, axis)
    if not len(columns):
        return []
    line = line.some(columns=columns)
    for start in dict.fromkeys((template.start, *STARTS)):
        if bool(line.agree(wave_of(template)._replace(start=float(start)), channels).all()):
            fields = {} if start == template.start else {"start": start}
            return [Explanation(fields, float(len(fields)))]
    key = axis, channels.key(), tuple(columns.tolist())
    if key not in explainers:
        found = fit(line, channels) if len(line.t) >= SHORTEST else None
        near = found is not None and found[1] < WELL * abs(found[0].amplitude)
        explainers[key] = Explainer(line, channels, found[0]) if found and near else None
    explainer = explainers[key]
    if explainer is None or wave_of(template).decay * explainer.wave.decay < 0:
        return []
    return sorted(explainer.explain(template), key=lambda explanation: explanation.cost)[:EXPLANATIONS]


def _channels_along(grid: GridEncoding, axis: int) -> tuple[Tensor, Channels]:
    """The columns of a grid that depend on an axis, and their channels."""
    groups = [group for group in grid.channel_groups if group.axis == axis]
    columns = [group.first + torch.arange(group.encoding.dim) * group.step for group in groups]
    parts = [channels_of(group.encoding) for group in groups]
    if not groups:
        return torch.zeros(0, dtype=torch.int64), channels_of(Encoding(1))
    return torch.cat(columns), Channels(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _joined(
    axes: tuple[Encoding, ...], chosen: tuple[Explanation, ...], lengths: tuple[int, ...]
) -> list[tuple[dict[str, Any], float]]:
    """The fields of the axes as fields of the grid: one value if they agree, or nearly so, else one for each axis."""
    longest = lengths.index(max(lengths))
    cost = max(explanation.cost for explanation in chosen)
    apart: dict[str, Any] = {}
    together: dict[str, Any] = {}
    for name in dict.fromkeys(name for explanation in chosen for name in explanation.fields):
        values = [e.fields.get(name, getattr(axis, name)) for e, axis in zip(chosen, axes, strict=True)]
        apart[name] = values[0] if len(set(values)) == 1 else tuple(values)
        near = None not in values and all(math.isclose(value, values[longest], rel_tol=0.05) for value in values)
        together[name] = values[longest] if near else apart[name]
    differing = sum(isinstance(value, tuple) for value in apart.values())
    return [(apart, cost + differing), *([(together, cost)] if together != apart else [])]
