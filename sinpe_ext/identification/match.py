"""`Match` and `Matches`, the results of `identify`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding


@dataclass(frozen=True)
class Match:
    """An encoding that reproduces a table, with the name of its convention.

    Attributes:
        name: name of the convention; "custom" if the encoding has no name.
        aliases: names of other conventions that give the same table.
        encoding: the encoding; `sinpe.table(rows - extra_tokens, encoding)`, or `sinpe.table(shape, encoding)` for a
            grid, is the table after its first `extra_tokens` rows, unless `positions` is given.
        start: position of the first row after the extra tokens; for a grid a tuple with one per axis if they differ. It
            is a float only if it is a fraction, as for the centers of pixels.
        amplitude: factor on every value.
        max_error: largest difference of the table from the exact encoding.
        code: a line of Python that creates `encoding`, or the rows of the table if `positions` is given.
        rows: number of rows of the table.
        shape: lengths of the axes of a grid; None if the table is not a grid.
        extra_tokens: number of rows of zeros before the first position (class tokens).
        zero_rows: other rows that are zero although the encoding is not, such as a padding row.
        float32_angle: "" if the table has no float32 rounding errors in its angles; "float32_exp" or "float32_pow" if
            `encoding` with this `angle` gives every value of it; "other" if it has larger errors than rounding, as of
            another formula, and `note` then says whether one of these two is nearer.
        alias_codes: for each alias, a line of Python that creates its encoding.
        note: further remarks, in a sentence or two.
        zero_columns: columns of zeros; `encoding` and `max_error` refer to the other columns.
        transposed: whether the table was given with the channels first, (d, N); `encoding`, `rows` and the other fields
            then refer to its transpose, (N, d).
        positions: "" if the rows are at the positions that `encoding` counts itself. For a fractional first position,
            which no encoding can have as its `start`, an expression such as "torch.arange(300) + 0.5"; the rows are
            `sinpe.encode(positions, encoding)`, which is `code`, and not `sinpe.table`.
    """

    name: str
    aliases: tuple[str, ...]
    encoding: Encoding | GridEncoding
    start: float | tuple[float, ...]
    amplitude: float
    max_error: float
    code: str
    rows: int = 0
    shape: tuple[int, ...] | None = None
    extra_tokens: int = 0
    zero_rows: tuple[int, ...] = ()
    float32_angle: str = ""
    alias_codes: tuple[str, ...] = ()
    note: str = ""
    zero_columns: tuple[int, ...] = ()
    transposed: bool = False
    positions: str = ""

    def __str__(self) -> str:
        lines = list(zip(self.aliases, self.alias_codes, strict=True))
        alike = [name for name, code in lines if _fields(code) == _fields(self.code)]
        others = "".join(f"\n    also {code}" for name, code in lines if name not in alike)
        also = f" (also {', '.join(alike)})" if alike else ""
        of = f", grid {' x '.join(map(str, self.shape))}" if self.shape else f", {self.rows} rows"
        note = f"\n    {self.note}" if self.note else ""
        return (
            f"{self.name}{also}{of}, start {self.start}, max error {self.max_error:.2g}\n    {self.code}{others}{note}"
        )


def _fields(code: str) -> set[str]:
    """The arguments of a line of code, without the convention, dim, start and axes."""
    parts = code.rpartition("convention(")[2].split(", ")[2:]
    return {part.rstrip(")") for part in parts if not part.startswith(("start=", "axes="))}


class Matches(list[Match]):
    """The result of `identify`: a list of `Match`; empty if no encoding fits.

    The first is the answer. Others are in the list only if they are as likely: different encodings with simple numbers
    that the values do not distinguish.

    Attributes:
        reason: why no encoding fits, for people; "" if there are matches.
        closest: if no encoding fits, the nearest `Match`, or None if none is near.
    """

    def __init__(self, matches: Iterable[Match] = (), reason: str = "", closest: Match | None = None) -> None:
        super().__init__(matches)
        self.reason = reason
        self.closest = closest

    def __str__(self) -> str:
        return "\nor, as likely:\n".join(map(str, self)) if self else f"no convention: {self.reason}"

    def __repr__(self) -> str:
        return f"Matches({super().__repr__()})" if self else f"Matches([], reason={self.reason!r})"
