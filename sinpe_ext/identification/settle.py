"""Candidates against the whole table: those that fit, best first, with those that give the same table beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from .candidates import Candidate, Found, Identified, parts_of, values_of
from .notes import finish, near_miss
from .refine import spread
from .table import Table, angle_errors

PLAIN_BASES = (10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0)
LADDER_FIELDS = ("base", "shift", "exponent_dim", "exponent_scale")
MOST_COMPARED = 4
BOUND = 4.0  # angle_errors bounds them; they are smaller by this
NEAR = 0.3  # rms error, relative to the size of the values, of an encoding worth naming


def settle(
    table: Table, candidates: Sequence[Candidate], places: Callable[[int], list[Tensor]], shape: tuple[int, ...] | None
) -> Found:
    """Compares candidates with every row; those that give one table become one result."""
    rows = table.live[spread(len(table.live), 48)]
    values = [(values_of(candidate, places(candidate.extra), rows), candidate) for candidate in candidates]
    sample = table.rows[rows].double()
    errors = [float((value - sample).square().mean().sqrt()) for value, _ in values]
    if not errors:
        return Found()
    likely = candidates[min(range(len(errors)), key=lambda k: errors[k])]
    limit = 1.5 * min(errors) + table.noise().size + _angle_error(likely, places(likely.extra), rows)
    order = sorted(
        range(len(values)),
        key=lambda k: (errors[k] > limit, candidates[k].cost, candidates[k].template.rank, errors[k]),
    )
    same = table.size * max(1e-6, 2 * table.relative)
    groups: list[list[int]] = []
    for k in order:
        home = next((g for g in groups if float((values[g[0]][0] - values[k][0]).abs().max()) <= same), None)
        if home is None:
            groups.append([k])
        elif candidates[k].template.name not in [candidates[j].template.name for j in home]:
            home.append(k)
    found = Found()
    for group in groups[:MOST_COMPARED]:
        first = candidates[group[0]]
        verdict = table.compare(parts_of(first.encoding), places(first.extra))
        item = Identified(first, verdict, table, shape)
        item.aliases = [candidates[k] for k in group[1:] if _also(candidates[k], first)]
        if verdict.fits:
            finish(item, places(first.extra))
            found.fitting.append(item)
        elif verdict.rms < NEAR * table.size and (
            found.closest is None
            or (verdict.wrong, verdict.rms) < (found.closest.verdict.wrong, found.closest.verdict.rms)
        ):
            found.closest = item
    if found.fitting:
        found.closest = None
    elif found.closest is not None:
        found.reason = near_miss(found.closest)
    return found


def _angle_error(candidate: Candidate, places: list[Tensor], rows: Tensor) -> float:
    """The rms error that float32 angles may have added to the values of a candidate."""
    parts = parts_of(candidate.encoding)
    squares = sum(
        float(angle_errors(part.wave, places[part.axis][rows].double(), part.channels).square().sum()) for part in parts
    )
    return math.sqrt(squares / (len(rows) * candidate.encoding.dim)) / BOUND


def _also(candidate: Candidate, first: Candidate) -> bool:
    """Whether a candidate of the same table is worth naming: no less simple, or just as likely, or of a plain base."""
    if candidate.borrowed or candidate.extra != first.extra:
        return False
    if candidate.cost <= first.cost + 1:
        return True
    alike = set(candidate.fields) <= {*first.fields, *LADDER_FIELDS, "start"}
    return alike and (not first.sure or candidate.fields.get("base", 0) in PLAIN_BASES)
