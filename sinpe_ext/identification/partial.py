"""Search in tables that contain more than the encoding: columns of zeros, and rows around a grid."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import grid as grid_search
from . import sequence
from .candidates import SearchResult
from .stored_table import MOST_CHANNELS, Refused, Table

FIRST_ROWS = 64


class View(NamedTuple):
    """Rows (n, d), interpreted as a sequence or a grid.

    Attributes:
        grid: lengths of the grid; None: a sequence.
        known: try only named conventions without changes.
        offset: index of the first row in the given table.
    """

    rows: Tensor
    grid: tuple[int, ...] | None = None
    known: bool = False
    offset: int = 0


def search(view: View) -> SearchResult:
    """The encodings of a view, ignoring rows around a grid and columns of zeros that no encoding explains."""
    rows, grid = view.rows, view.grid
    extra = len(rows) - math.prod(grid) if grid else 0
    if not extra or not bool(rows[:extra].any()):
        return _columns(view)
    if not bool(rows[-extra:].any()):
        result = _columns(view._replace(rows=rows[:-extra]))
        which = _rows_named(extra, len(rows) - extra)
        if result.fitting:
            for item in result.fitting:
                item.zero_rows += tuple(range(len(rows) - extra, len(rows)))
            return _with_note(result, len(rows), f"the last {which} zero, no part of the grid")
    result = _columns(view._replace(rows=rows[extra:], offset=extra))
    for item in result.fitting:
        item.offset = extra
        item.zero_rows = tuple(row + extra for row in item.zero_rows)
    note = f"the first {_rows_named(extra, 0)} not zero and no part of the grid, as a learned class token"
    return _with_note(result, len(rows), note)


def _with_note(result: SearchResult, number: int, note: str) -> SearchResult:
    """The result of a search of some rows as one for the whole table of `number` rows."""
    for item in result.fitting:
        item.rows = number
        item.note = "; ".join(filter(None, [note, item.note]))
    if not result.fitting:
        result.reason = f"{note}; without that: {result.reason}"
    return result


def _rows_named(number: int, first: int) -> str:
    """ "row (5) is" or "3 rows (5 to 7) are"."""
    return f"row ({first}) is" if number == 1 else f"{number} rows ({first} to {first + number - 1}) are"


def _columns(view: View) -> SearchResult:
    """Searches all columns, or those that are not zero."""
    gone = zero_columns(view.rows)
    if not len(gone):
        return _whole(view)
    result = _whole(view, strict=True)
    if result.fitting and result.fitting[0].candidate.template.name != "custom":
        return result
    kept = torch.ones(view.rows.shape[1], dtype=torch.bool)
    kept[gone] = False
    rest = _whole(view._replace(rows=view.rows[:, kept]))
    note = f"{columns_named(gone.tolist())} zero: sinpe.table({{}}, encoding) gives the other {int(kept.sum())}"
    for item in (*rest.fitting, *([rest.closest] if rest.closest else [])):
        item.zero_columns = tuple(gone.tolist())
        of = view.grid or item.table.number - item.candidate.extra
        item.note = "; ".join(filter(None, [note.format(of), item.note]))
    if result.fitting and (not rest.fitting or rest.fitting[0].candidate.template.name == "custom"):
        return result
    if rest.fitting or view.known:
        return rest
    block = int(gone[-1] - gone[0]) + 1 == len(gone) and (not kept[0] or not kept[-1])
    if view.grid is None and not block:  # sines of whole turns are columns of zeros, too
        result = _whole(view)
    if result.fitting or result.closest or not rest.reason:
        return result
    rest.reason = f"{columns_named(gone.tolist())} zero; of the others: {rest.reason}"
    return rest


def _whole(view: View, *, strict: bool = False) -> SearchResult:
    """Searches a view as it is; a refusal becomes the reason."""
    channels = view.rows.shape[1]
    if channels > MOST_CHANNELS:
        reason = f"its {channels} channels are more than the {MOST_CHANNELS} that encodings are tried with"
        return SearchResult(reason=reason)
    try:
        table = Table(view.rows)
        table.offset = view.offset
        if view.grid is not None:
            return grid_search.search(table, view.grid)
        return sequence.search(table, known=view.known, strict=strict)
    except Refused as refusal:
        return SearchResult(reason=str(refusal))


def zero_columns(rows: Tensor) -> Tensor:
    """The columns that are zero in every row; empty if all are."""
    gone = (~rows[:FIRST_ROWS].any(0)).nonzero().flatten()
    if len(gone) and len(rows) > FIRST_ROWS:
        gone = gone[~rows[:, gone].any(0)]
    return gone if len(gone) < rows.shape[1] else gone[:0]


def columns_named(columns: list[int]) -> str:
    """ "column 5 is", "columns 2 to 9 are" or "columns 1, 3, 5 are"."""
    return f"column {columns[0]} is" if len(columns) == 1 else f"columns {_numbers(columns)} are"


def _numbers(numbers: range | list[int]) -> str:
    """ "2 to 9" for consecutive numbers, otherwise a list of the first eight."""
    listed = list(numbers)
    if len(listed) > 1 and listed[-1] - listed[0] + 1 == len(listed):
        return f"{listed[0]} to {listed[-1]}"
    return ", ".join(map(str, listed[:8])) + (", ..." if len(listed) > 8 else "")
