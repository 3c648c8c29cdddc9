"""What there is to say of a table beside the convention: zero rows, storage, the rounding of its angles."""

from __future__ import annotations

import torch
from torch import Tensor

from ..encodings.encoding import Encoding
from ..reference import float32_angle
from .candidates import Candidate, Identified, axes_of, parts_of, pieces_of, values_of
from .refine import spread
from .table import Table

ANGLES = ("float32_exp", "float32_pow")
EXACT = 2.0**-22  # relative to the amplitude: a table below this error has no error of its angles
ANGLE_ROWS = 1024


def near_miss(item: Identified) -> str:
    """How an encoding fails to be the table."""
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


def finish(item: Identified, places: list[Tensor]) -> None:
    """Notes on a match: the rounding of its angles, the rows of zeros, how it was stored."""
    table, candidate = item.table, item.candidate
    notes = []
    at_zero = _zero_by_itself(candidate, places, table.zero_rows)
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
        item.float32_angle, item.repeated = _angle(item, places)
    if item.float32_angle in ANGLES:
        notes.append(
            f"it has the float32 angle errors of the usual formula, up to {item.verdict.error:.2g}: the encoding "
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
    """Whether an encoding is all cos, then all sin of the angles that rotate dim channels."""
    plain = Encoding(encoding.dim, layout="cos_sin", base=encoding.base)
    return encoding.dim > 2 and encoding.dim % 2 == 0 and encoding.replace(odd=plain.odd) == plain


def _zero_by_itself(candidate: Candidate, places: list[Tensor], rows: tuple[int, ...]) -> set[int]:
    """Rows that are zero in the encoding as well (sin at position 0)."""
    if not rows:
        return set()
    at = torch.tensor(rows)
    return set(at[values_of(candidate, places, at).abs().amax(1) < 1e-12].tolist())


def _angle(item: Identified, places: list[Tensor]) -> tuple[str, bool]:
    """Whether a float32 formula's errors explain the table better than the exact values do, and whether all of it."""
    table, candidate = item.table, item.candidate
    rows = table.live[spread(len(table.live), ANGLE_ROWS)]
    sample = table.rows[rows].double()
    exact = values_of(candidate, places, rows)
    size = max(abs(axis.amplitude) for axis in axes_of(candidate.encoding))
    errors = {"": _badness(sample, exact, table)}
    if table.storage in (torch.float32, torch.float64) and errors[""] <= EXACT * size:
        return "", False
    for angle in ANGLES:
        value = torch.zeros_like(sample)
        for piece, part in zip(pieces_of(candidate.encoding), parts_of(candidate.encoding), strict=True):
            position = places[piece.axis][rows] + piece.encoding.start
            value[:, part.columns] = float32_angle.encode(
                piece.encoding.replace(angle=angle), position, torch.float32
            ).double()
        errors[angle] = _badness(sample, value, table)
    best = min(errors, key=lambda angle: errors[angle])
    single = table.storage in (torch.float32, torch.float64)
    if best and errors[best] <= 0.5 * errors[""]:
        return best, single and errors[best] <= EXACT * size
    return "other" if single else "", False


def _badness(sample: Tensor, value: Tensor, table: Table) -> float:
    """The largest error; of a table in 16 bits the share of values that round to others."""
    if table.storage in (torch.float32, torch.float64):
        return float((sample - value).abs().max())
    return float((sample != value.float().to(table.storage).double()).double().mean())
