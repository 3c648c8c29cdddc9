"""Candidate encodings for a table: built from a convention and fields, ranked, and grouped if they are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding, Piece
from ..encodings.plan import plan
from ..reference import float32_angle
from ..reference import rows as reference
from .explain import channels_of, wave_of
from .fit import spread
from .stored_table import Part, Table, Verdict, angle_errors


class Template(NamedTuple):
    """A convention with a given dim; `build` creates it with some fields overridden."""

    name: str
    encoding: Encoding | GridEncoding
    build: Callable[[dict[str, Any]], Encoding | GridEncoding]
    rank: int = 0
    args: tuple[tuple[str, Any], ...] = ()  # further arguments that `convention` needs for this name (axes)


@dataclass
class Candidate:
    """A template with overridden fields, and the encoding that it gives.

    Attributes:
        sure: whether it is unlikely that its base is round by chance.
        uncertain: the relative uncertainty of its base if that is to be reported, otherwise 0.
    """

    template: Template
    fields: dict[str, Any]
    encoding: Encoding | GridEncoding
    cost: float
    sure: bool = True
    extra: int = 0
    uncertain: float = 0.0

    @property
    def code(self) -> str:
        """Code that creates the encoding."""
        if self.template.name == "custom":
            return code_of(self.encoding)
        settings = "".join(f", {name}={value!r}" for name, value in {**dict(self.template.args), **self.fields}.items())
        return f'sinpe.convention("{self.template.name}", {self.encoding.dim}{settings})'

    @property
    def borrowed(self) -> bool:
        """Whether the convention has a first position of its own that `start` overrides."""
        return "start" in self.fields and any(axis.start for axis in axes_of(self.template.encoding))


@dataclass
class Identified:
    """A candidate with the result of its comparison, and the candidates that give the same table."""

    candidate: Candidate
    verdict: Verdict
    table: Table
    shape: tuple[int, ...] | None = None
    aliases: list[Candidate] = field(default_factory=list)
    float32_angle: str = ""
    repeated: bool = False  # the formula of float32_angle reproduces the table to the last digits
    zero_rows: tuple[int, ...] = ()
    note: str = ""
    offset: int = 0  # number of ignored rows before the first
    zero_columns: tuple[int, ...] = ()
    rows: int = 0  # of the given table, if some rows were ignored
    transposed: bool = False  # the table was given channels first

    def facts(self) -> dict[str, Any]:
        """The fields of the corresponding Match."""
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
            "rows": self.rows or self.table.number,
            "shape": self.shape,
            "extra_tokens": self.candidate.extra + self.offset,
            "zero_rows": self.zero_rows,
            "zero_columns": self.zero_columns,
            "float32_angle": self.float32_angle,
            "alias_codes": tuple(alias.code for alias in self.aliases),
            "note": self.note,
            "transposed": self.transposed,
        }


@dataclass
class SearchResult:
    """The result of a search."""

    fitting: list[Identified] = field(default_factory=list)
    reason: str = ""
    closest: Identified | None = None


def axes_of(encoding: Encoding | GridEncoding) -> tuple[Encoding, ...]:
    """The encodings of the axes of a grid, or the encoding itself."""
    return encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)


def pieces_of(encoding: Encoding | GridEncoding) -> tuple[Piece, ...]:
    """The pieces of a grid; a one-dimensional encoding is one piece."""
    return encoding.pieces if isinstance(encoding, GridEncoding) else (Piece(0, encoding, 0, 1),)


def code_of(encoding: Encoding | GridEncoding) -> str:
    """Code that creates an encoding."""
    return (
        repr(encoding)
        .replace("GridEncoding(", "sinpe.Grid(")
        .replace("Encoding(", "sinpe.Encoding(")
        .replace("sinpe.Grid(", "sinpe.GridEncoding(")
    )


def parts_of(encoding: Encoding | GridEncoding) -> list[Part]:
    """The columns and the wave of each piece of an encoding."""
    parts = []
    for piece in pieces_of(encoding):
        columns = slice(piece.first, piece.first + (piece.encoding.dim - 1) * piece.step + 1, piece.step)
        parts.append(Part(columns, channels_of(piece.encoding), wave_of(piece.encoding), piece.axis))
    return parts


def values_of(candidate: Candidate, coordinates: list[Tensor], rows: Tensor) -> Tensor:
    """The values of a candidate's encoding in the given rows."""
    value = torch.zeros(len(rows), candidate.encoding.dim, dtype=torch.float64)
    for part in parts_of(candidate.encoding):
        value[:, part.columns] = part.wave.at(coordinates[part.axis][rows].double(), part.channels)
    return value


def exact_values(candidate: Candidate, coordinates: list[Tensor], rows: Tensor) -> Tensor:
    """`values_of` within 1 ULP of float64. The error of `values_of` grows with the angle: 1e-16 times the angle."""
    value = torch.zeros(len(rows), candidate.encoding.dim, dtype=torch.float64)
    for piece, part in zip(pieces_of(candidate.encoding), parts_of(candidate.encoding), strict=True):
        positions = coordinates[piece.axis][rows] + piece.encoding.start
        value[:, part.columns] = reference.encode(plan(piece.encoding), positions, torch.float64)
    return value


# ------------------------------------------------------------------------------------------- further notes on a table

ANGLES = ("float32_exp", "float32_pow")
EXACT = 2.0**-22  # relative to the amplitude: with an error below this a table has no angle errors
ANGLE_ROWS = 1024


def near_miss(item: Identified) -> str:
    """Describes how an encoding differs from the table."""
    verdict, total = item.verdict, len(item.table.live)
    if verdict.wrong == total:
        return (
            f"the nearest encoding, {item.candidate.code}, differs in every row, by up to {verdict.error:.2g} (a table "
            "trained further, or of other frequencies)"
        )
    rows = ", ".join(str(row + item.table.offset) for row in verdict.where) + (
        ", ..." if verdict.wrong > len(verdict.where) else ""
    )
    return (
        f"{item.candidate.code} differs in {verdict.wrong} of {total} rows ({rows}), by up to {verdict.error:.2g}; the "
        f"others agree within {verdict.error_elsewhere:.2g}"
    )


def finish(item: Identified, coordinates: list[Tensor]) -> None:
    """Adds the notes on a match: angle errors, rows of zeros, and how the values were stored."""
    table, candidate = item.table, item.candidate
    notes = []
    at_zero = _zero_by_itself(candidate, coordinates, table.zero_rows)
    item.zero_rows = tuple(row for row in table.zero_rows if row >= candidate.extra and row not in at_zero)
    if candidate.extra:
        first = "row is" if candidate.extra == 1 else f"{candidate.extra} rows are"
        notes.append(f"the first {first} zero, as for class tokens: extra_tokens={candidate.extra}")
    if item.zero_rows:
        padded = len(item.zero_rows) == 1 and item.shape is None
        shown = ", ".join(str(row + table.offset) for row in item.zero_rows[:6]) + (
            ", ..." if len(item.zero_rows) > 6 else ""
        )
        notes.append(f"zero where the encoding is not: row {shown}" + (" (the padding row)" if padded else ""))
        if candidate.template.name == "fairseq" and item.zero_rows == table.zero_rows and len(item.zero_rows) == 1:
            begin = item.zero_rows[0] + 1
            notes.append(
                f"the model's tokens start at padding_idx + 1: encode them with start={begin}, not with the table's 0"
            )
    dtype = table.rows.dtype
    if table.storage not in (dtype, torch.float32) or dtype in (torch.bfloat16, torch.float16):
        notes.append(f"rounded to {str(table.storage).removeprefix('torch.')}")
    if table.printed:
        notes.append(f"rounded to {table.printed}")
    if not table.printed:
        item.float32_angle, item.repeated = _angle(item, coordinates)
    if item.float32_angle in ANGLES:
        notes.append(
            f"it has the angle errors of the naive float32 formula, up to {item.verdict.error:.2g}: the encoding "
            f'above is exact; angle="{item.float32_angle}" repeats them'
        )
    elif item.float32_angle:
        notes.append(f"it has angle errors of up to {item.verdict.error:.2g}, as float32 arithmetic makes them")
    if candidate.uncertain:
        notes.append(f"the table gives its base to {candidate.uncertain:.1%} only: the simplest that fits is shown")
    if isinstance(candidate.encoding, Encoding) and _rotary(candidate.encoding):
        notes.append(f"equals a rotary cache cos|sin (cos_sin_cache) of base {candidate.encoding.base:g}")
    if {axis.layout for axis in axes_of(candidate.encoding)} <= {"sin", "cos"}:
        notes.append("every channel is of one kind: one half of a rotary cache looks like this, too")
    item.note = "; ".join([item.note, *notes] if item.note else notes)


def _rotary(encoding: Encoding) -> bool:
    """Whether an encoding equals the cache of a rotary embedding of dim channels: all cos, then all sin."""
    plain = Encoding(encoding.dim, layout="cos_sin", base=encoding.base)
    return encoding.dim > 2 and encoding.dim % 2 == 0 and encoding.replace(odd=plain.odd) == plain


def _zero_by_itself(candidate: Candidate, coordinates: list[Tensor], rows: tuple[int, ...]) -> set[int]:
    """The rows that are zero in the encoding, too (sin at position 0)."""
    if not rows:
        return set()
    at = torch.tensor(rows)
    return set(at[values_of(candidate, coordinates, at).abs().amax(1) < 1e-12].tolist())


def _angle(item: Identified, coordinates: list[Tensor]) -> tuple[str, bool]:
    """(name, exactly): the float32 formula that reproduces the table better than the exact values do, and whether it
    reproduces the last digits.

    The name is "" if the exact values are closer, and "other" if the table has the errors of another formula.
    """
    table, candidate = item.table, item.candidate
    rows = table.live[spread(len(table.live), ANGLE_ROWS)]
    sample = table.rows[rows].double()
    exact = values_of(candidate, coordinates, rows)
    size = max(abs(axis.amplitude) for axis in axes_of(candidate.encoding))
    errors = {"": _largest_error(sample, exact, table)}
    if _has_large_angles(candidate, coordinates, rows):
        exact = exact_values(candidate, coordinates, rows)
        errors[""] = _largest_error(sample, exact, table)
        item.verdict = item.verdict._replace(error=float((sample - exact).abs().max()))
    if table.storage in (torch.float32, torch.float64) and errors[""] <= EXACT * size:
        return "", False
    for angle in ANGLES:
        value = torch.zeros_like(sample)
        for piece, part in zip(pieces_of(candidate.encoding), parts_of(candidate.encoding), strict=True):
            position = coordinates[piece.axis][rows] + piece.encoding.start
            value[:, part.columns] = float32_angle.encode(
                piece.encoding.replace(angle=angle), position, torch.float32
            ).double()
        errors[angle] = _largest_error(sample, value, table)
    best = min(errors, key=lambda angle: errors[angle])
    single = table.storage in (torch.float32, torch.float64)
    if best and errors[best] <= 0.5 * errors[""]:
        return best, single and errors[best] <= EXACT * size
    return "other" if single else "", False


def _has_large_angles(candidate: Candidate, coordinates: list[Tensor], rows: Tensor) -> bool:
    """Whether angles are so large that `values_of` may be off by more than EXACT / 8."""
    largest = 0.0
    for part in parts_of(candidate.encoding):
        farthest = float((coordinates[part.axis][rows] + part.wave.start).abs().max())
        largest = max(largest, farthest * float(part.wave.ladder().at(part.channels.rungs).abs().max()))
    return largest * 2.0**-52 > EXACT / 8


def _largest_error(sample: Tensor, value: Tensor, table: Table) -> float:
    """The largest error; for a table stored in 16 bits the fraction of values that are rounded differently."""
    if table.storage in (torch.float32, torch.float64):
        return float((sample - value).abs().max())
    return float((sample != value.float().to(table.storage).double()).double().mean())


# -------------------------------------------------------------------------------- comparison with the whole table

PLAIN_BASES = (10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0)
LADDER_FIELDS = ("base", "shift", "exponent_dim", "exponent_scale")
MOST_COMPARED = 4
BOUND = 4.0  # how much smaller rms angle errors are than the bound of angle_errors
NEAR = 0.3  # largest rms error, relative to the size of the values, of an encoding that is reported as closest


def rank_candidates(
    table: Table,
    candidates: Sequence[Candidate],
    coordinates: Callable[[int], list[Tensor]],
    shape: tuple[int, ...] | None,
) -> SearchResult:
    """Ranks the candidates and compares the best with every row; candidates that give the same table become one
    result."""
    rows = table.live[spread(len(table.live), 48)]
    values = [(values_of(candidate, coordinates(candidate.extra), rows), candidate) for candidate in candidates]
    sample = table.rows[rows].double()
    errors = [float((value - sample).square().mean().sqrt()) for value, _ in values]
    if not errors:
        return SearchResult()
    likely = candidates[min(range(len(errors)), key=lambda k: errors[k])]
    limit = 1.5 * min(errors) + table.noise().size + _angle_error(likely, coordinates(likely.extra), rows)
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
    result = SearchResult()
    for group in groups[:MOST_COMPARED]:
        first = candidates[group[0]]
        verdict = table.compare(parts_of(first.encoding), coordinates(first.extra))
        item = Identified(first, verdict, table, shape)
        item.aliases = [candidates[k] for k in group[1:] if _is_alias(candidates[k], first)]
        if verdict.fits:
            finish(item, coordinates(first.extra))
            result.fitting.append(item)
        elif verdict.rms < NEAR * table.size and (
            result.closest is None
            or (verdict.wrong, verdict.rms) < (result.closest.verdict.wrong, result.closest.verdict.rms)
        ):
            result.closest = item
    if result.fitting:
        result.closest = None
    elif result.closest is not None:
        result.reason = near_miss(result.closest)
    return result


def _angle_error(candidate: Candidate, coordinates: list[Tensor], rows: Tensor) -> float:
    """The rms error that float32 angles may have caused in the values of a candidate."""
    parts = parts_of(candidate.encoding)
    squares = sum(
        float(angle_errors(part.wave, coordinates[part.axis][rows].double(), part.channels).square().sum())
        for part in parts
    )
    return math.sqrt(squares / (len(rows) * candidate.encoding.dim)) / BOUND


def _is_alias(candidate: Candidate, first: Candidate) -> bool:
    """Whether a candidate that gives the same table as `first` is reported as an alias.

    It must be as simple or as likely as `first`, or have a common base.
    """
    if candidate.borrowed or candidate.extra != first.extra:
        return False
    if candidate.cost <= first.cost + 1:
        return True
    alike = set(candidate.fields) <= {*first.fields, *LADDER_FIELDS, "start"}
    return alike and (not first.sure or candidate.fields.get("base", 0) in PLAIN_BASES)
