"""Encodings that may be a table: built from a convention and fields, ranked, equal ones put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _float32_angle
from ._identify_explain import channels_of, wave_of
from ._identify_refine import spread
from ._identify_table import Part, Table, Verdict
from .encoding import Encoding
from .grid import GridEncoding, Piece

ANGLES = ("float32_exp", "float32_pow")
EXACT = 2.0**-22  # relative to the amplitude: a table below this error has no error of its angles
ANGLE_ROWS = 1024
PLAIN_BASES = (10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0)
MOST_COMPARED = 4
NEAR = 0.3  # rms error, relative to the size of the values, of an encoding worth naming


class Template(NamedTuple):
    """A convention at some dim; `build` overrides fields."""

    name: str
    encoding: Encoding | GridEncoding
    build: Callable[[dict[str, Any]], Encoding | GridEncoding]
    rank: int = 0


@dataclass
class Candidate:
    """A template with fields, as an encoding; `sure` where its ladder is no chance agreement of round numbers."""

    template: Template
    fields: dict[str, Any]
    encoding: Encoding | GridEncoding
    cost: float
    sure: bool = True
    extra: int = 0

    @property
    def code(self) -> str:
        if self.template.name == "custom":
            return code_of(self.encoding)
        settings = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f'sinpe.convention("{self.template.name}", {self.encoding.dim}{settings})'

    @property
    def borrowed(self) -> bool:
        """A name that stands for a first position, used with another one."""
        return "start" in self.fields and any(axis.start for axis in axes_of(self.template.encoding))


@dataclass
class Identified:
    """A candidate with its verdict, and those that give the same table."""

    candidate: Candidate
    verdict: Verdict
    table: Table
    shape: tuple[int, ...] | None = None
    aliases: list[Candidate] = field(default_factory=list)
    float32_angle: str = ""
    zero_rows: tuple[int, ...] = ()
    note: str = ""

    def facts(self) -> dict[str, Any]:
        """The fields of a Match."""
        axes = axes_of(self.candidate.encoding)
        starts = tuple(axis.start for axis in axes)
        return {
            "name": self.candidate.template.name,
            "aliases": tuple(alias.template.name for alias in self.aliases),
            "encoding": self.candidate.encoding,
            "start": starts[0] if len(set(starts)) == 1 else starts,
            "amplitude": axes[0].amplitude,
            "max_error": self.verdict.error,
            "code": self.candidate.code,
            "rows": self.table.number,
            "shape": self.shape,
            "extra_tokens": self.candidate.extra,
            "zero_rows": self.zero_rows,
            "float32_angle": self.float32_angle,
            "alias_codes": tuple(alias.code for alias in self.aliases),
            "note": self.note,
        }


@dataclass
class Found:
    """What a search came to."""

    fitting: list[Identified] = field(default_factory=list)
    reason: str = ""
    closest: Identified | None = None


def axes_of(encoding: Encoding | GridEncoding) -> tuple[Encoding, ...]:
    return encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)


def pieces_of(encoding: Encoding | GridEncoding) -> tuple[Piece, ...]:
    return encoding.pieces if isinstance(encoding, GridEncoding) else (Piece(0, encoding, 0, 1),)


def code_of(encoding: Encoding | GridEncoding) -> str:
    return repr(encoding).replace("GridEncoding(", "sinpe.Grid(").replace("Encoding(", "sinpe.Encoding(").replace(
        "sinpe.Grid(", "sinpe.GridEncoding("
    )


def parts_of(encoding: Encoding | GridEncoding) -> list[Part]:
    """Where an encoding's waves stand in a row."""
    parts = []
    for piece in pieces_of(encoding):
        columns = slice(piece.first, piece.first + (piece.encoding.dim - 1) * piece.step + 1, piece.step)
        parts.append(Part(columns, channels_of(piece.encoding), wave_of(piece.encoding), piece.axis))
    return parts


def settle(
    table: Table, candidates: Sequence[Candidate], places: Callable[[int], list[Tensor]], shape: tuple[int, ...] | None
) -> Found:
    """Compares candidates with every row; those that give one table become one result."""
    rows = table.live[spread(len(table.live), 48)]
    values = [(_values(candidate, places(candidate.extra), rows), candidate) for candidate in candidates]
    sample = table.rows[rows].double()
    errors = [float((value - sample).square().mean().sqrt()) for value, _ in values]
    if not errors:
        return Found()
    limit = 1.5 * min(errors) + table.noise().size
    order = sorted(
        range(len(values)),
        key=lambda k: (errors[k] > limit, candidates[k].cost, candidates[k].template.rank, errors[k]),
    )
    same = table.size * max(1e-6, 2 * table.precision)
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
        item.aliases = [
            candidates[k]
            for k in group[1:]
            if not candidates[k].borrowed and (candidates[k].cost <= first.cost + 1 or not first.sure or _plain(candidates[k]))
        ]
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


def _plain(candidate: Candidate) -> bool:
    """Whether a base such as 1000 is all of the ladder that differs from the name."""
    return candidate.fields.get("base", 0) in PLAIN_BASES


def _values(candidate: Candidate, places: list[Tensor], rows: Tensor) -> Tensor:
    value = torch.zeros(len(rows), candidate.encoding.dim, dtype=torch.float64)
    for part in parts_of(candidate.encoding):
        value[:, part.columns] = part.wave.at(places[part.axis][rows].double(), part.channels)
    return value


def near_miss(item: Identified) -> str:
    """How an encoding fails to be the table."""
    verdict, total = item.verdict, len(item.table.live)
    if verdict.wrong == total:
        return (
            f"the nearest encoding, {item.candidate.code}, differs in every row, by up to {verdict.error:.2g} (a table "
            "trained further, or of other frequencies)"
        )
    rows = ", ".join(map(str, verdict.where)) + (", ..." if verdict.wrong > len(verdict.where) else "")
    return (
        f"{item.candidate.code} differs in {verdict.wrong} of {total} rows ({rows}), by up to {verdict.error:.2g}; the "
        f"others agree within {verdict.error_elsewhere:.2g}"
    )


def finish(item: Identified, places: list[Tensor]) -> None:
    """Notes on a match: the rounding of its angles, the rows of zeros, how it was stored."""
    table, candidate = item.table, item.candidate
    notes = []
    at_zero = _zero_by_itself(candidate, places, table.zero_rows)
    item.zero_rows = tuple(row for row in table.zero_rows if row >= candidate.extra and row not in at_zero)
    if candidate.extra:
        notes.append(f"the first {candidate.extra} rows are zero, as for class tokens: pass extra_tokens={candidate.extra}")
    if item.zero_rows:
        shown = ", ".join(map(str, item.zero_rows[:6])) + (", ..." if len(item.zero_rows) > 6 else "")
        notes.append(f"zero where the encoding is not: row {shown}" + (" (the padding row)" if len(item.zero_rows) == 1 else ""))
    dtype = table.rows.dtype
    if table.storage not in (dtype, torch.float32) or dtype in (torch.bfloat16, torch.float16):
        notes.append(f"rounded to {str(table.storage).removeprefix('torch.')}")
    item.float32_angle = _angle(item, places)
    if item.float32_angle in ANGLES:
        notes.append(
            f"it has the float32 angle errors of the usual formula, up to {item.verdict.error:.2g}: the encoding above is "
            f'exact; angle="{item.float32_angle}" repeats them'
        )
    elif item.float32_angle:
        notes.append(f"it has angle errors of up to {item.verdict.error:.2g}, as float32 arithmetic makes them")
    if {axis.layout for axis in axes_of(candidate.encoding)} <= {"sin", "cos"}:
        notes.append("every channel is of one kind: one half of a rotary cache looks like this, too")
    item.note = "; ".join([item.note, *notes] if item.note else notes)


def _zero_by_itself(candidate: Candidate, places: list[Tensor], rows: tuple[int, ...]) -> set[int]:
    """Rows that are zero in the encoding as well (sin at position 0)."""
    if not rows or {axis.layout for axis in axes_of(candidate.encoding)} != {"sin"}:
        return set()
    at = torch.tensor(rows)
    return set(at[_values(candidate, places, at).abs().amax(1) < 1e-12].tolist())


def _angle(item: Identified, places: list[Tensor]) -> str:
    """Whether a float32 formula's errors explain the table better than the exact values do."""
    table, candidate = item.table, item.candidate
    rows = table.live[spread(len(table.live), ANGLE_ROWS)]
    sample = table.rows[rows].double()
    exact = _values(candidate, places, rows)
    size = max(abs(axis.amplitude) for axis in axes_of(candidate.encoding))
    errors = {"": _badness(sample, exact, table)}
    if table.storage in (torch.float32, torch.float64) and errors[""] <= EXACT * size:
        return ""
    for angle in ANGLES:
        value = torch.zeros_like(sample)
        for piece, part in zip(pieces_of(candidate.encoding), parts_of(candidate.encoding), strict=True):
            position = places[piece.axis][rows] + piece.encoding.start
            value[:, part.columns] = _float32_angle.encode(
                piece.encoding.replace(angle=angle), position, torch.float32
            ).double()
        errors[angle] = _badness(sample, value, table)
    best = min(errors, key=lambda angle: errors[angle])
    if best and errors[best] <= 0.5 * errors[""]:
        return best
    return "other" if table.storage in (torch.float32, torch.float64) else ""


def _badness(sample: Tensor, value: Tensor, table: Table) -> float:
    """The largest error; of a table in 16 bits the share of values that round to others."""
    if table.storage in (torch.float32, torch.float64):
        return float((sample - value).abs().max())
    return float((sample != value.float().to(table.storage).double()).double().mean())
