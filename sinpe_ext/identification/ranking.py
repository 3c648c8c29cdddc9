"""From candidate encodings to matches: their order, the comparison with every row, aliases and notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import functional
from ..agreement import CHUNK, Comparison, compare, positions_of
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import float32_holds
from .explain import FEW_DIGITS, digits_of
from .fit import scattered
from .match import Match, Matches
from .stored_table import UNITS, StoredTable

SAMPLED, ANGLE_ROWS = 48, 1024
MOST_COMPARED = 40
NEAR = 0.3  # largest mean error of a row, relative to its largest value, of an encoding that is reported as closest
DIGITS = 4.0  # by which an encoding with ten times the error must be simpler than another
SIMPLE = 6.0  # cost below which the numbers of a match are simple
AS_ARBITRARY = 3.0  # digits by which the numbers of another name may be longer if neither are simple
PLAIN_BASES = (10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0)
CHANGES = (0.03, 0.01, 0.003, 0.001)  # of a base, that are tried
EXACT = 2.0**-22  # relative to the amplitude: with a smaller error a table has no angle errors
ANGLES = ("float32_exp", "float32_pow")
FEWER = 0.5  # largest ratio of the differing values, or of the errors, of a formula that is better than another


class Candidate(NamedTuple):
    """A convention with some fields overridden, and the encoding that it gives.

    Attributes:
        name: the convention; "custom" for an encoding without a name.
        fields: the arguments of `convention` other than name and dim.
        cost: about the number of digits in `fields`.
        rank: the place of the convention in the catalogue.
        extra: rows of zeros before the first position.
        borrowed: whether it has another start than the convention, whose name stands for one.
        starts: the first position of each axis if one is a fraction, which an encoding's own start cannot be; else ().
    """

    name: str
    fields: dict[str, Any]
    encoding: Encoding | GridEncoding
    cost: float
    rank: int
    extra: int = 0
    borrowed: bool = False
    starts: tuple[float, ...] = ()

    @property
    def axes(self) -> tuple[Encoding, ...]:
        """The encodings of the axes of a grid, or the encoding itself."""
        return self.encoding.axes if isinstance(self.encoding, GridEncoding) else (self.encoding,)

    def changed(self, fields: dict[str, Any], cost: float, extra: int = 0) -> Candidate | None:
        """The candidate with some fields changed; None if their combination is invalid."""
        starts, borrowed = self.starts, self.borrowed
        if "start" in fields:
            start, borrowed = fields["start"], any(axis.start for axis in self.axes)
            each = start if isinstance(start, tuple) else (start,) * len(self.axes)
            starts = each if any(isinstance(first, float) for first in each) else ()
            if starts:
                fields = {name: value for name, value in fields.items() if name != "start"}
        change = self.encoding.with_axes if isinstance(self.encoding, GridEncoding) else self.encoding.replace
        try:
            encoding = change(**fields)
        except (ValueError, OverflowError):
            return None
        fields, cost = {**self.fields, **fields}, self.cost + cost
        return Candidate(self.name, fields, encoding, cost, self.rank, extra, borrowed, starts)

    def code(self, rows: int, lengths: Sequence[int] | None) -> str:
        """A line of Python that creates the encoding, or the rows if the first position is a fraction."""
        encoding = self._encoding_code()
        return f"sinpe.encode({self.positions_code(rows, lengths)}, {encoding})" if self.starts else encoding

    def positions_code(self, rows: int, lengths: Sequence[int] | None) -> str:
        """An expression for the positions of the rows; "" if they are those of the encoding."""
        if not self.starts:
            return ""
        longest = max(lengths) if lengths else rows
        is_exact = all(float32_holds(first, longest) for first in map(float, self.starts))
        offsets, index = self.starts, f"torch.arange({rows})"
        if lengths is not None:  # counted from the starts of the encoding
            encoding = self._encoding_code() if "axes" in self.fields else f'"{self.name}"'
            index = f"sinpe.positions.grid({tuple(lengths)}, {encoding})"
            offsets = tuple(first - axis.start for first, axis in zip(self.starts, self.axes, strict=True))
        if len(set(offsets)) > 1:
            return f"{index} + torch.tensor({list(offsets)}{'' if is_exact else ', dtype=torch.float64'})"
        sign = "-" if offsets[0] < 0 else "+"
        return f"{index}{'' if is_exact else '.double()'} {sign} {abs(offsets[0])!r}"

    def _encoding_code(self) -> str:
        if self.name != "custom":
            settings = "".join(f", {field}={value!r}" for field, value in self.fields.items())
            return f'sinpe.convention("{self.name}", {self.encoding.dim}{settings})'
        return repr(self.encoding).replace("Encoding(", "sinpe.Encoding(")

    def values(self, rows: Tensor, lengths: Sequence[int] | None, **fields: Any) -> Tensor:
        """The values in rows of the table in float64; with some fields of the encoding changed, in float32."""
        candidate = self.changed(fields, 0.0) if fields else self
        assert candidate is not None
        dtype = torch.float32 if fields else torch.float64
        positions = positions_of(rows - self.extra, self.encoding, lengths, self.starts)
        return functional.encode(positions, candidate.encoding, dtype=dtype)

    def compare(self, table: StoredTable, rows: Tensor, lengths: Sequence[int] | None) -> Comparison:
        """Compares some rows of the table with the encoding."""
        shifted = table.rows[self.extra :]
        return compare(shifted, self.encoding, lengths, which=rows - self.extra, starts=self.starts)


def rank(table: StoredTable, candidates: Sequence[Candidate], lengths: tuple[int, ...] | None = None) -> Matches:
    """The candidates that reproduce every row, best first; candidates that give the same table become one match."""
    if not candidates:
        return Matches()
    live = table.live()
    some = live[scattered(len(live), SAMPLED)]
    values = [candidate.values(some, lengths) for candidate in candidates]
    errors = [float((value - table.rows[some].double()).square().mean()) ** 0.5 for value in values]
    differing = [float(c.compare(table, some, lengths).differs.double().mean()) for c in candidates]
    least = max(min(errors), table.size * 1e-9)
    costs = [c.cost + DIGITS * math.log10(max(error / least, 1.0)) for c, error in zip(candidates, errors, strict=True)]
    order = sorted(range(len(candidates)), key=lambda k: (costs[k], candidates[k].rank))
    found: list[tuple[int, Comparison, list[Candidate]]] = []
    for k in [k for k in order if not differing[k]][:MOST_COMPARED]:
        same = table.size * max(1e-6, 4 * UNITS[table.rows.dtype])
        home = next((item for item in found if float((values[item[0]] - values[k]).abs().max()) <= same), None)
        if home is None:
            compared = candidates[k].compare(table, live, lengths)
            if not bool(compared.differs.any()):
                found.append((k, compared, []))
        elif _is_alias(candidates[k], [candidates[home[0]], *home[2]]):
            home[2].append(candidates[k])
    if found:  # other encodings only if they are as likely: simple numbers as near the values
        found = [item for item in found if item is found[0] or costs[item[0]] < SIMPLE]
        return Matches(_match(table, candidates[k], aliases, compared, lengths) for k, compared, aliases in found)
    candidate = candidates[order[0]]
    compared = candidate.compare(table, live, lengths)
    if float(compared.error.mean()) > NEAR * table.size:
        return Matches()
    closest = _match(table, candidate, [], compared, lengths)
    return Matches((), _near_miss(closest.code, compared, live) + table.caveat, closest)


def _is_alias(candidate: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether a candidate that gives the same table as the others is reported: it must be about as simple as the first,
    or have a common base."""
    first = others[0]
    if candidate.borrowed or candidate.extra != first.extra or candidate.name in [other.name for other in others]:
        return False
    if candidate.cost <= first.cost + 1:
        return True
    alike = set(candidate.fields) <= {*first.fields, "start", "base", "shift", "exponent_dim"}
    return alike and (
        first.cost >= max(SIMPLE, candidate.cost - AS_ARBITRARY) or candidate.fields.get("base") in PLAIN_BASES
    )


def _near_miss(code: str, compared: Comparison, live: Tensor) -> str:
    """Describes how an encoding differs from the table."""
    where = live[compared.differs].tolist()
    largest = float(compared.error.max())
    if len(where) == len(live):
        return (
            f"the nearest encoding, {code}, differs in every row, by up to {largest:.2g} (a table trained "
            "further, or of other frequencies)"
        )
    return (
        f"{code} differs in {len(where)} of {len(live)} rows ({listed(where)}), by up to {largest:.2g}; the "
        f"others agree within {float(compared.error[~compared.differs].max()):.2g}"
    )


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """The first numbers of a sequence, separated by commas."""
    return ", ".join(map(str, numbers[:most])) + (", ..." if len(numbers) > most else "")


# --------------------------------------------------------------------------------------------------------- the notes


def _match(
    table: StoredTable,
    candidate: Candidate,
    aliases: Sequence[Candidate],
    compared: Comparison,
    lengths: tuple[int, ...] | None,
) -> Match:
    """The match of a candidate, with its notes."""
    encoding, extra, axes = candidate.encoding, candidate.extra, candidate.axes
    starts = candidate.starts or tuple(axis.start for axis in axes)
    size = math.prod(lengths) if lengths else len(table.rows) - extra
    notes = []
    scales = [float(axis.position_scale) for axis in axes]
    centers = [math.isclose(at, 0.5 - 0.5 / scale, abs_tol=1e-9) for at, scale in zip(starts, scales, strict=True)]
    if candidate.starts and any(scale != 1 for scale in scales) and all(centers):
        notes.append("the positions of interpolation, (row + 0.5) * position_scale - 0.5")
    if extra:
        first = "row is" if extra == 1 else f"{extra} rows are"
        notes.append(f"the first {first} zero, as for class tokens: extra_tokens={extra}")
    zero = table.zero.nonzero().flatten()[extra:]
    after = zero[zero >= extra + size]
    zero = zero[zero < extra + size]
    if len(zero):  # sin at position 0 is zero in the encoding, too
        zero = zero[candidate.values(zero, lengths).abs().amax(1) > 1e-12]
    if len(after):
        notes.append(f"zero after the end of the grid: row {listed(after.tolist(), 6)}")
    if len(zero):
        padding = " (the padding row)" if len(zero) == 1 and lengths is None else ""
        notes.append(f"zero where the encoding is not: row {listed(zero.tolist(), 6)}{padding}")
        if candidate.name == "fairseq" and len(zero) == 1:
            notes.append(
                f"the model's tokens start at padding_idx + 1: encode them with start={int(zero) + 1}, not with the "
                "table's 0"
            )
    dtype = table.rows.dtype
    if dtype in (torch.bfloat16, torch.float16):
        notes.append(f"rounded to {str(dtype).removeprefix('torch.')}")
        uncertain = _base_uncertainty(table, candidate)
        if uncertain:
            notes.append(f"the table gives its base to {uncertain:.1%} only: the simplest that fits is shown")
    angle, remark = ("", "") if bool(compared.differs.any()) else _float32_angle(table, candidate, lengths)
    if angle:
        most = "" if dtype in (torch.bfloat16, torch.float16) else f", up to {float(compared.error.max()):.2g}"
        errors = "the angle errors of float32 arithmetic" if remark else "errors that float32 arithmetic may have"
        known = remark or "; neither float32_exp nor float32_pow is nearer"
        notes.append(f"it has {errors}{most}: the encoding above is exact{known}")
    if isinstance(encoding, Encoding) and encoding.dim > 2 and encoding.dim % 2 == 0:
        rotary = Encoding(encoding.dim, layout="cos_sin", base=encoding.base, odd=encoding.odd)
        if encoding == rotary:
            notes.append(f"equals a rotary cache cos|sin (cos_sin_cache) of base {encoding.base:g}")
    if {axis.layout for axis in axes} <= {"sin", "cos"}:
        notes.append("every channel is of one kind: one half of a rotary cache looks like this, too")
    return Match(
        name=candidate.name,
        aliases=tuple(alias.name for alias in aliases),
        encoding=encoding,
        start=starts[0] if len(set(starts)) == 1 else starts,
        amplitude=axes[0].amplitude,
        max_error=float(compared.error.max()),
        code=candidate.code(size, lengths),
        rows=len(table.rows),
        shape=lengths,
        extra_tokens=extra,
        zero_rows=(*zero.tolist(), *after.tolist()),
        float32_angle=angle,
        alias_codes=tuple(alias.code(size, lengths) for alias in aliases),
        note="; ".join(notes),
        positions=candidate.positions_code(size, lengths),
    )


def _base_uncertainty(table: StoredTable, candidate: Candidate) -> float:
    """The relative change of a base of many digits that 16-bit rows do not show; 0 if they do."""
    base = float(candidate.axes[0].base)
    if isinstance(candidate.encoding, GridEncoding) or digits_of(base) < FEW_DIGITS:
        return 0.0
    for change in CHANGES:
        other = candidate.changed({"base": base * (1 + change)}, 0.0, candidate.extra)
        if other and not bool(other.compare(table, table.live(), None).differs.any()):
            return change
    return 0.0


def _float32_angle(table: StoredTable, candidate: Candidate, lengths: Sequence[int] | None) -> tuple[str, str]:
    """`Match.float32_angle`, and what to say about a formula that is nearer than the exact encoding, or ""."""
    live, dtype = table.live(), table.rows.dtype
    some = live[scattered(len(live), ANGLE_ROWS)]
    single = dtype in (torch.float32, torch.float64)

    def apart(rows: Tensor, value: Tensor) -> tuple[float, float]:
        """The fraction of the values in rows of the table that differ from those of a formula, and their rms error."""
        held = table.rows[rows]
        return float((held != value.to(dtype)).double().mean()), float((held.double() - value).square().mean()) ** 0.5

    value = candidate.values(some, lengths)
    if single and float((table.rows[some] - value).abs().max()) <= EXACT * table.size:
        return "", ""
    exact, error = apart(some, value.float())
    shares = {angle: apart(some, candidate.values(some, lengths, angle=angle)) for angle in ANGLES}
    best = min(shares, key=lambda angle: shares[angle])
    share = shares[best][0]
    if not share and exact:
        chunks = live.split(max(1, CHUNK // candidate.encoding.dim))
        if not any(apart(rows, candidate.values(rows, lengths, angle=best))[0] for rows in chunks):
            return best, f'; angle="{best}" repeats every value'
    if not single:
        return "", ""
    if share > FEWER * exact:
        nearer = min(shares, key=lambda angle: shares[angle][1])
        return "other", f'; angle="{nearer}" is nearer' if shares[nearer][1] <= FEWER * error else ""
    percent = [min(99, math.floor(100 * (1 - part))) for part in (share, exact)]
    return "other", f'; angle="{best}" gives {percent[0]} % of its values bit for bit, the exact one {percent[1]} %'
