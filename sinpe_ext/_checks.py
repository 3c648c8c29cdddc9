"""Argument checks that every front shares: one place for each message. No torch, no NumPy."""

from __future__ import annotations

from typing import Any

from ._catalogue import convention
from .encoding import Encoding, integer

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


def length(value: Any) -> int:
    """`length` as an int."""
    return integer("length", value, 0, INT64_MAX, "pass the number of rows")


def start(value: Any) -> int:
    """`start` as an int."""
    return integer("start", value, INT64_MIN, INT64_MAX, "pass the int64 position of the first row")


def position_range(first: int, rows: int) -> None:
    """Checks that the positions first .. first + rows - 1 fit int64; `first` is encoding.start + start."""
    last = first + max(rows, 1) - 1
    if first < INT64_MIN or last > INT64_MAX:
        raise ValueError(
            f"start: expected every position (encoding.start + start + row) within int64, got {first} to {last}; "
            "lower start or length"
        )


def encoding(value: Any, dim: int | None = None) -> Encoding:
    """An Encoding from what callers may pass for one: an Encoding, a convention's name (with `dim`) or a dim."""
    if isinstance(value, Encoding):
        return value
    if isinstance(value, str):
        if dim is None:
            raise TypeError(
                f'encoding: expected an Encoding or an int (the dim), got the name "{value}" and no dim to go with it; '
                f'pass convention("{value}", dim)'
            )
        return convention(value, dim)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return Encoding(value)
    raise TypeError(
        f"encoding: expected an Encoding, a convention's name or an int (the dim), got {type(value).__name__}; "
        'pass Encoding(dim) or convention("paper", dim)'
    )
