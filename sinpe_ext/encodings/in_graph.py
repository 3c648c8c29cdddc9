"""Encodings that are made while torch.compile or torch.export traces. Such an object is no constant of the graph, as
one from outside is. Its fields are; what runs while the compiler traces makes it again from them.
"""

from __future__ import annotations

from operator import index
from typing import Any, TypeAlias

from .encoding import Encoding, fields_of, of_fields
from .grid import GridEncoding

Fields: TypeAlias = tuple[Any, ...]  # the class's name, then what it is made of


def constant(encoding: Any) -> Any:
    """An encoding as the caller gave it, or its fields where it was made inside of the graph."""
    if not isinstance(encoding, (Encoding, GridEncoding)) or not getattr(encoding, "_in_graph", False):
        return encoding
    if not isinstance(encoding, GridEncoding):
        return fields_of(encoding)
    axes = tuple([fields_of(axis) for axis in encoding.axes])
    return "GridEncoding", axes, encoding.order, encoding.arrangement, index(encoding.dim)


def is_grid(value: Fields) -> bool:
    """Whether these are the fields of a GridEncoding."""
    return bool(value[:1] == ("GridEncoding",))


def made_again(value: Fields) -> Any:
    """The Encoding or GridEncoding that has these fields; any other tuple as it is."""
    if is_grid(value):
        _, axes, order, arrangement, dim = value
        return GridEncoding([made_again(axis) for axis in axes], order=order, arrangement=arrangement, dim=dim)
    if value[:1] == ("Encoding",):
        return of_fields(value)
    return value
