"""`identify`: finds the convention of a table of positional encodings from its values.

The story, in reading order: `stored_table.py` reads the table, `fit.py` finds the frequencies, first position and
amplitude of its columns, `explain.py` writes these numbers as fields of an encoding, `sequence.py` and `grid.py` do so
for every layout, and `ranking.py` compares the candidates with every row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encodings.tracing import run_uncompiled
from ..encodings.values import integer
from . import grid, sequence
from .match import Match, Matches
from .ranking import listed, rank
from .stored_table import (
    NO_SINUSOIDS,
    NoEncodingError,
    StoredTable,
    as_tensor,
    has_sinusoids,
    read,
)

__all__ = ["Match", "Matches", "identify", "lengths_of"]

MOST_EXTRA = 16  # rows of zeros at each end of a square grid


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
    ignored. The values may be rounded to 16 bits. The first match is the answer. If its first position is a fraction
    (0.5 for the centers of pixels), its `code` gives the rows; see `positions` of `Match`.

    Args:
        table: a tensor or NumPy array of dtype float16, bfloat16, float32 or float64: (N, d), (1, N, d) or (N, 1, d);
            a grid as (H, W, d), (T, H, W, d), (1, C, H, W), or flattened to (extra tokens + H * W, d). If nothing fits,
            the transpose of (d, N) or (1, d, N) is tried; see `transposed` of `Match`.
        shape: lengths of the axes of a flattened grid, (H, W) or (T, H, W). None: the table has rows of one coordinate,
            or is a square grid.
        top: largest number of matches to return.
    Returns:
        a `Matches`, a list of `Match`, best first, usually one. It is empty if no encoding fits (a learned table, a
        cache of rotary embeddings, noise); its `reason` and `closest` then say what was found.
    Raises:
        TypeError: a table that is neither a tensor nor an array, or a shape that is not a sequence of integers.
        ValueError: a shape that the table cannot have.
    """
    top = integer("top", top, 1, 2**31, "pass the most matches that you want")
    lengths = lengths_of(shape)
    with torch.no_grad(), _plain_cpu():
        try:
            tensor = as_tensor(table)
        except NoEncodingError as error:
            return Matches(reason=str(error))
        if tensor.dim() < 2 or not tensor.numel():
            return Matches(reason=f"its shape {tuple(tensor.shape)} is not that of rows of channels")
        result = _search(tensor, lengths)
    return Matches(result[:top], result.reason, result.closest)


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


class _View(NamedTuple):
    """Rows (n, d) as which a tensor may be read: of a sequence, or of a grid of these lengths."""

    rows: Tensor
    lengths: tuple[int, ...] | None = None
    transposed: bool = False


def _search(tensor: Tensor, lengths: tuple[int, ...] | None) -> Matches:
    """Tries each reading of the tensor until one matches; else returns the most informative failure."""
    best: Matches | None = None
    for rows, grid_lengths, transposed in _views(tensor, lengths):
        result = _without_zero_columns(rows, grid_lengths)
        if result and transposed:
            first = f"({rows.shape[1]}, {rows.shape[0]})"
            note = f"given with the channels first, {first}: its transpose is what the encoding gives"
            return _changed(result, note, transposed=True)
        if result or best is None or (result.closest and not best.closest and not transposed):
            best = result
        if result:
            break
    return Matches(reason=f"its shape {tuple(tensor.shape)} is not that of rows of channels") if best is None else best


def _views(tensor: Tensor, lengths: tuple[int, ...] | None) -> Iterator[_View]:
    """The readings of a tensor, the most likely first."""
    kept = [length for length in tensor.shape[:-1] if length != 1]
    flat = tensor.reshape(-1, tensor.shape[-1])
    repeated = len(kept) == 2 and _is_repeated(tensor)
    two = sum(length != 1 for length in tensor.shape) == 2
    turned = tensor.squeeze().T if two else tensor[0].T if repeated and tensor.dim() == 3 else None
    turned = turned if turned is not None and has_sinusoids(turned) else None
    if lengths is None:
        if len(kept) <= 1 or repeated:
            yield _View(flat[: kept[-1]] if repeated else flat)
        elif len(kept) <= 3:
            yield _View(flat, tuple(kept))
            for inner in (tensor.shape[-2:], tensor.shape[-3:])[: len(kept) - 1]:  # channels first
                yield _View(tensor.reshape(-1, math.prod(inner)).T, tuple(inner))
    else:
        size, grid_lengths = math.prod(lengths), lengths if len(lengths) > 1 else None
        last = tuple(tensor.shape[-len(lengths) - 1 : -1]) == lengths
        if tuple(tensor.shape[-len(lengths) :]) == lengths and len(kept) >= len(lengths) and not last:
            yield _View(tensor.reshape(-1, size).T, lengths)  # channels first
            return
        if len(flat) >= size:
            yield _View(flat, grid_lengths)
        elif turned is None or len(turned) < size:
            raise ValueError(
                f"shape: expected one of at most {len(flat)} grid points (the rows of the table), got "
                f"{' * '.join(map(str, lengths))} = {size}; pass the table's own (H, W) or (T, H, W)"
            )
    if turned is not None and (lengths is None or len(turned) >= math.prod(lengths)):
        yield _View(turned.contiguous(), lengths and grid_lengths, transposed=True)


def _is_repeated(tensor: Tensor) -> bool:
    """Whether a three-dimensional tensor is the same table repeated for each sample of a batch."""
    samples = tensor.reshape(-1, *[length for length in tensor.shape[:-1] if length != 1][1:], tensor.shape[-1])
    return torch.equal(samples[0], samples[-1]) and bool((samples == samples[:1]).all())


def _changed(result: Matches, note: str, **fields: Any) -> Matches:
    """The matches with another note before theirs, and some fields changed."""

    def changed(match: Match) -> Match:
        return dataclasses.replace(match, note="; ".join(filter(None, [note, match.note])), **fields)

    return Matches(map(changed, result), result.reason, result.closest and changed(result.closest))


def _without_zero_columns(rows: Tensor, lengths: tuple[int, ...] | None) -> Matches:
    """Searches all columns, which may include zero channels of a convention, or those that are not zero."""
    kept = rows[:64].any(0)
    if not bool(kept.all()):
        kept = rows.any(0)
    whole = _search_rows(rows, lengths)
    if bool(kept.all()) or not bool(kept.any()) or (whole and whole[0].name != "custom"):
        return whole
    gone = (~kept).nonzero().flatten().tolist()
    rest = _search_rows(rows[:, kept], lengths)
    if whole and (not rest or rest[0].name == "custom"):
        return whole
    columns = f"{_range(gone)} zero"
    if not rest:
        return Matches((), f"{columns}; of the others: {rest.reason}", rest.closest)
    of = rest[0].shape or rest[0].rows - rest[0].extra_tokens
    made = "the line above" if rest[0].positions else f"sinpe.table({of}, encoding)"
    note = f"{columns}: {made} gives the other {int(kept.sum())}"
    return _changed(rest, note, zero_columns=tuple(gone))


def _range(columns: list[int]) -> str:
    """ "column 5 is", "columns 2 to 9 are" or "columns 1, 3, 5 are"."""
    if len(columns) == 1:
        return f"column {columns[0]} is"
    if columns[-1] - columns[0] + 1 == len(columns):
        return f"columns {columns[0]} to {columns[-1]} are"
    return f"columns {listed(columns)} are"


def _search_rows(rows: Tensor, lengths: tuple[int, ...] | None) -> Matches:
    """The encodings that give rows (n, d) of a sequence, or of a grid, around which there may be rows of zeros."""
    sinusoids = has_sinusoids(rows)
    squares = [] if lengths else _squares(rows)
    if not sinusoids and not squares and lengths is None:
        return Matches(reason=NO_SINUSOIDS)  # in milliseconds, whatever the size
    try:
        table = read(rows)
        _refuse_rotary(table)
    except NoEncodingError as error:
        return Matches(reason=str(error))
    if lengths is not None:
        return _search_grid(table, lengths)
    samples = table.samples()
    named = rank(table, sequence.named(table, samples)) if sinusoids else Matches()
    if named and sequence.is_nearest(samples, named[0]):
        return named
    for square in () if named else squares:
        result = _search_grid(table, square)
        if result:
            return result
    if not sinusoids:
        return Matches(reason=NO_SINUSOIDS)
    fitted = rank(table, sequence.fitted(table, samples))
    if fitted or named:
        return fitted or named
    if len(samples.t) < sequence.FEWEST_ROWS:
        return Matches(reason=f"{len(samples.t)} rows are too few to fit one, and none of the conventions gives them")
    if fitted.closest or named.closest:
        return fitted if fitted.closest else named
    return Matches(
        reason="its columns are smooth, but no geometric sequence of frequencies gives them (learned values, perhaps, "
        f"or a flattened grid: pass shape=(H, W) or (T, H, W)){table.caveat}"
    )


def _search_grid(table: StoredTable, lengths: tuple[int, ...]) -> Matches:
    """The grid encodings that give these rows, without rows of zeros around the grid."""
    number, size, named = len(table.rows), math.prod(lengths), " x ".join(map(str, lengths))
    extra = min(table.leading, number - size)
    if not bool(table.zero[extra + size :].all()):
        first = "first row is" if number - size == 1 else f"first {number - size} rows are"
        return Matches(
            reason=f"its {first} not zero, but a grid of {named} leaves {number - size} of {number} rows for class "
            "tokens; pass the rows of the grid alone"
        )
    body = table._replace(rows=table.rows[extra : extra + size], zero=table.zero[extra : extra + size])
    if not grid.is_separable(body, lengths):
        return Matches(reason=f"its channels do not follow one axis each of a grid of {named}")
    result = rank(table, [candidate._replace(extra=extra) for candidate in grid.candidates_of(body, lengths)], lengths)
    if not result and not result.closest:
        reason = "but no geometric sequence of frequencies gives them"
        result.reason = f"each channel follows one axis of a grid of {named}, {reason}"
    return result


def _squares(rows: Tensor) -> list[tuple[int, int]]:
    """The square grids that rows may be, with or without a few rows of zeros at their ends."""
    number, zero = len(rows), ~torch.cat([rows[:MOST_EXTRA], rows[-MOST_EXTRA:].flip(0)]).any(1)
    leading, trailing = (int(part.int().cumprod(0).sum()) for part in zero.chunk(2))
    sizes = dict.fromkeys((number, number - leading, number - leading - trailing))
    return [(math.isqrt(size),) * 2 for size in sizes if size > 1 and math.isqrt(size) ** 2 == size]


def _refuse_rotary(table: StoredTable) -> None:
    """Raises NoEncodingError for columns that stand twice, as in a cache of cosines or sines of a rotary embedding."""
    sample, half = table.rows[:64], table.rows.shape[1] // 2
    if half < 2 or table.rows.shape[1] % 2 or bool((sample == sample[0]).all()):
        return
    if torch.equal(sample[:, :half], sample[:, half:]):
        part = f"table[:, :{half}]"
    elif torch.equal(sample[:, 0::2], sample[:, 1::2]):
        part = "table[:, ::2]"
    else:
        return
    if bool((sample[0] == sample[0, 0]).all()):  # position 0: all are cosines, or all are sines
        raise NoEncodingError(
            "every frequency stands twice with the same function: the cos or sin cache of a rotary encoding, which "
            "multiplies queries and keys and is not added"
        )
    raise NoEncodingError(f"its columns stand twice: identify one half, {part}")


run_uncompiled(__name__)  # imported after the others
