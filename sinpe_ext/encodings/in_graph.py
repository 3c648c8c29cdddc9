"""Encodings that are created inside a function traced by torch.compile or torch.export.

An Encoding that is created outside the function is a constant of the graph. For one that is created inside, only its
fields are constants: they are passed instead, and functions that run at trace time create the Encoding from them.
"""

from __future__ import annotations

from operator import index
from typing import Any, TypeAlias

from .encoding import Encoding, from_fields, to_fields
from .grid import GridEncoding

Fields: TypeAlias = tuple[Any, ...]  # the name of the class, then its fields


def constant(encoding: Any) -> Any:
    """The fields of an encoding that was created inside the graph; any other argument unchanged."""
    if not isinstance(encoding, (Encoding, GridEncoding)) or not getattr(encoding, "_in_graph", False):
        return encoding
    if not isinstance(encoding, GridEncoding):
        return to_fields(encoding)
    axes = tuple([to_fields(axis) for axis in encoding.axes])
    return "GridEncoding", axes, encoding.order, encoding.arrangement, index(encoding.dim)


def is_grid(value: Fields) -> bool:
    """Whether these are the fields of a GridEncoding."""
    return bool(value[:1] == ("GridEncoding",))


def from_constant(value: Fields) -> Any:
    """The inverse of `constant`: the Encoding or GridEncoding with these fields; any other tuple unchanged."""
    if is_grid(value):
        _, axes, order, arrangement, dim = value
        return GridEncoding([from_constant(axis) for axis in axes], order=order, arrangement=arrangement, dim=dim)
    if value[:1] == ("Encoding",):
        return from_fields(value)
    return value
