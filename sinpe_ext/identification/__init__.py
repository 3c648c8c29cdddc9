"""`identify`: finds the convention of a table of positional encodings from its values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import integer
from .candidates import SearchResult
from .grid import shapes_of
from .partial import View, search
from .stored_table import Refused, as_rows, has_sinusoids


@dataclass(frozen=True)
class Match:
    """An encoding that reproduces a table, with the name of its convention.

    Attributes:
        name: name of the convention; "custom" if the encoding has no name.
        aliases: names of other conventions that give the same table.
        encoding: the encoding; `sinpe.table(rows - extra_tokens, encoding)`, or `sinpe.table(shape, encoding)` for a
            grid, is the table after its first `extra_tokens` rows.
        start: position of the first row after the extra tokens; for a grid a tuple with one per axis if they differ.
        amplitude: factor on every value.
        max_error: largest difference of the table from the exact encoding. If angles exceed 2^27 radians, it is that
            of at most 1024 rows.
        code: a line of Python that creates `encoding`.
        rows: number of rows of the table.
        shape: lengths of the axes of a grid; None if the table is not a grid.
        extra_tokens: number of rows before the first position. They are zeros, or, before a grid, learned rows (class
            tokens).
        zero_rows: other rows that are zero although the encoding is not, such as a padding row.
        float32_angle: "" if the table has no float32 rounding errors in its angles; "float32_exp" or "float32_pow" if
            it has those of one of these formulas; "other" if it has those of another formula.
        alias_codes: for each alias, a line of Python that creates its encoding.
        note: further remarks, in a sentence or two.
        zero_columns: columns of zeros; `encoding` and `max_error` refer to the other columns.
        transposed: whether the table was given with the channels first, (d, N); `encoding`, `rows` and the other fields
            then refer to its transpose, (N, d).
    """

    name: str
    aliases: tuple[str, ...]
    encoding: Encoding | GridEncoding
    start: int | tuple[int, ...]
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
    return {part.rstrip(")") for part in code.split(", ")[2:] if not part.startswith(("start=", "axes="))}


class Matches(list[Match]):
    """The result of `identify`: a list of `Match`, best first; empty if no encoding fits.

    Attributes:
        reason: why no encoding fits; "" if there are matches.
        closest: if no encoding fits, the `Match` with the smallest max_error, or None if none is close.
    """

    def __init__(self, matches: Iterable[Match] = (), reason: str = "", closest: Match | None = None) -> None:
        super().__init__(matches)
        self.reason = reason
        self.closest = closest

    def __str__(self) -> str:
        return "\n".join(map(str, self)) if self else f"no convention: {self.reason}"

    def __repr__(self) -> str:
        return f"Matches({super().__repr__()})" if self else f"Matches([], reason={self.reason!r})"


def identify(table: Any, *, shape: Sequence[int] | None = None, top: int = 5) -> Matches:
    """Finds the conventions that reproduce a table of positional encodings.

    Example:
        >>> import torch
        >>> import sinpe_ext as sinpe
        >>> angle = torch.arange(2, 66)[:, None] / 10000 ** (torch.arange(32, dtype=torch.float64) / 31)
        >>> print(sinpe.identify(torch.cat([angle.sin(), angle.cos()], 1).float()))
        fairseq (also t2t, ddpm), 64 rows, start 2, max error 3e-08
            sinpe.convention("fairseq", 64)

    Only the values are used: layout, base, first position, amplitude and position_scale are derived from them, and
    every row is compared with the exact encoding. Rows of zeros (padding, class tokens) and columns of zeros are
    ignored. The values may be rounded to 16 bits, or to the decimals of a printed table.

    Args:
        table: a tensor or NumPy array of dtype float16, bfloat16, float32 or float64: (N, d), (1, N, d) or (N, 1, d);
            a grid as (H, W, d), (T, H, W, d), (1, C, H, W), or flattened to (extra tokens + H * W, d). If nothing fits,
            the transpose of (d, N) or (1, d, N) is tried; see `transposed` of `Match`.
        shape: lengths of the axes of a flattened grid, (H, W) or (T, H, W). None: the table has rows of one coordinate,
            or its shape is found from the values.
        top: largest number of matches to return.
    Returns:
        a `Matches`, a list of `Match`, best first. It is empty if no encoding fits (a learned table, a cache of rotary
        embeddings, noise); its `reason` and `closest` then say what was found.
    Raises:
        TypeError: a table that is neither a tensor nor an array, or a shape that is not a sequence of integers.
        ValueError: a shape that the table cannot have.
    """
    top = integer("top", top, 1, 2**31, "pass the most matches that you want")
    lengths = lengths_of(shape)
    with torch.no_grad(), _plain_cpu():
        try:
            rows = as_rows(table)
            if rows.dim() < 2 or not rows.numel():
                raise Refused(f"its shape {tuple(rows.shape)} is not that of rows of channels")
            result = _search_both(rows, lengths)
        except Refused as refusal:
            return Matches(reason=str(refusal))
    matches = [Match(**item.facts()) for item in result.fitting[:top]]
    closest = Match(**result.closest.facts()) if result.closest else None
    return Matches(matches, "" if matches else result.reason, closest)


@contextlib.contextmanager
def _plain_cpu() -> Iterator[None]:
    """Context manager: one CPU thread, and the CPU as the default device.

    A search consists of thousands of small operations, for which threads cost more than they save; on a busy machine, a
    search with several threads takes ten times as long. PyTorch stores the number of threads per calling thread.
    """
    threads = torch.get_num_threads()
    elsewhere = torch.get_default_device().type != "cpu"
    try:
        torch.set_num_threads(1)
        with torch.device("cpu") if elsewhere else contextlib.nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)


def _search_both(rows: Tensor, lengths: tuple[int, ...] | None) -> SearchResult:
    """Searches the table as it is given and, if nothing matches, its transpose."""
    turned = _transpose(rows)
    size = math.prod(lengths) if lengths else 0
    if turned is not None and turned.shape[1] < size <= len(turned):  # has too few rows for the shape as it is given
        result = SearchResult(reason=f"it has {turned.shape[1]} rows, too few for the shape")
    else:
        result = _search(rows, lengths)
    if result.fitting or turned is None:
        return result
    try:
        other = _search(turned.contiguous(), lengths)
    except Refused:
        return result
    if not other.fitting:
        return result
    number, dim = turned.shape
    for item in other.fitting:
        item.transposed = True
        note = f"given with the channels first, ({dim}, {number}): its transpose is what the encoding gives"
        item.note = "; ".join(filter(None, [note, item.note]))
    return other


def _transpose(rows: Tensor) -> Tensor | None:
    """The transpose (N, d) of a table (d, N), (1, d, N) or one of these per sample; None if its columns cannot be
    sinusoids."""
    if sum(length != 1 for length in rows.shape) == 2:
        flat = rows.squeeze()
    elif rows.dim() == 3 and _repeated(rows):
        flat = rows[0]
    else:
        return None
    return flat.T if has_sinusoids(flat.T) else None


def _search(rows: Tensor, lengths: tuple[int, ...] | None) -> SearchResult:
    """Tries each interpretation of the shape until one matches; else returns the most informative failure."""
    best: SearchResult | None = None
    for view in _views(rows, lengths):
        result = search(view)
        if result.fitting:
            return result
        if not view.known and (best is None or (result.closest and not best.closest)):
            best = result
    return best or SearchResult(reason=f"its shape {tuple(rows.shape)} is not that of rows of channels")


def _views(rows: Tensor, lengths: tuple[int, ...] | None) -> Iterable[View]:
    """The interpretations of a tensor: as rows (N, d) of a sequence, or of a grid with certain lengths."""
    kept = [length for length in rows.shape[:-1] if length != 1]
    dim = rows.shape[-1]
    flat = rows.reshape(-1, dim)
    if lengths is not None:
        size = math.prod(lengths)
        channel_first = tuple(rows.shape[-len(lengths) :]) == lengths and len(kept) >= len(lengths)
        last = tuple(rows.shape[-len(lengths) - 1 : -1]) == lengths
        if channel_first and not last:
            yield View(rows.reshape(-1, size).T, lengths)
            return
        if len(flat) < size:
            raise ValueError(
                f"shape: expected one of at most {len(flat)} grid points (the rows of the table), got "
                f"{' * '.join(map(str, lengths))} = {size}; pass the table's own (H, W) or (T, H, W)"
            )
        yield View(flat, lengths if len(lengths) > 1 else None)
        return
    if len(kept) <= 1:
        yield View(flat, None, known=True)
        shapes, sure = shapes_of(flat)
        lines = [grid for grid in shapes if max(grid) == math.prod(grid)]  # a sequence is more likely than these
        for grid in shapes:
            if grid not in lines:
                yield View(flat, grid)
        if not sure:
            yield View(flat, None)
        for grid in lines:
            yield View(flat, grid)
    elif len(kept) == 2 and _repeated(rows):
        yield View(flat[: kept[1]], None)
    elif len(kept) <= 3:
        yield View(flat, tuple(kept))
        *_, first, second = rows.shape
        yield View(rows.reshape(-1, first * second).T, (first, second))
        if len(kept) == 3:
            inner = tuple(rows.shape[-3:])
            yield View(rows.reshape(-1, math.prod(inner)).T, inner)


def _repeated(rows: Tensor) -> bool:
    """Whether a three-dimensional tensor is the same table repeated for each sample of a batch."""
    samples = rows.reshape(-1, *[length for length in rows.shape[:-1] if length != 1][1:], rows.shape[-1])
    return bool((samples == samples[:1]).all()) if torch.equal(samples[0], samples[-1]) else False


def lengths_of(shape: Any) -> tuple[int, ...] | None:
    """Checks `shape`; returns a tuple of lengths. Raises TypeError, ValueError."""
    if shape is None:
        return None
    try:
        values = tuple(shape)
    except TypeError:
        raise TypeError(f"shape: expected a sequence of ints, got {type(shape).__name__}; pass (H, W)") from None
    if not 1 <= len(values) <= 4:
        raise ValueError(f"shape: expected 1 to 4 lengths, got {len(values)}; pass (H, W) or (T, H, W)")
    return tuple(integer("shape", value, 1, 2**31, "pass the lengths of the grid's axes") for value in values)
