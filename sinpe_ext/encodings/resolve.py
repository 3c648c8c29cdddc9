"""Resolves an `encoding` argument (an Encoding, a GridEncoding, a name, an int or None); names an encoding."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .catalogue import CATALOGUE, NAMES, convention
from .catalogue import is_grid as grid_name
from .columns import columns
from .encoding import FIELDS, Encoding
from .grid import GridEncoding
from .tracing import constant_in_graph
from .values import MAX_DIM, integer, is_scalar_array, shown

_encoding_of_dim = lru_cache(maxsize=64)(Encoding)


_convention: Callable[[str, int], Any] = lru_cache(maxsize=64)(convention)


@constant_in_graph
def encoding(value: Any, dim: int | None = None, selection: int | tuple[int, int] | None = None) -> Encoding:
    """An Encoding from an `encoding` argument: an Encoding or a dim; if `dim` is given also a name or None.

    Args:
        selection: if `value` is a grid, the index of one of its channel groups, or -1 for the encoding that all its
            axes share. If it is not a grid, (first channel, number of channels) of a shard of the data, `dim` being the
            number of channels of the whole.
    """
    if isinstance(selection, tuple):
        return columns(encoding(value, dim), *selection)
    if isinstance(value, Encoding):
        return value
    if selection is not None:
        resolved = grid(value, dim)
        return resolved.axes[0] if selection < 0 else resolved.channel_groups[selection].encoding
    if is_grid(value):
        name = f'the grid "{value}"' if isinstance(value, str) else f"a GridEncoding of {value.ndim} axes"
        raise TypeError(
            f"encoding: expected an Encoding, a convention's name or an int (the dim), got {name}; here only "
            "one-dimensional encodings are taken, use table, encode or add for grids"
        )
    if value is None and dim is not None:
        return _encoding_of_dim(max(dim, 1))
    if isinstance(value, str):
        if dim is None:
            raise TypeError(
                f'encoding: expected an Encoding, or a name with dim=, got the name "{value}" and no dim to go '
                f'with it; pass dim=, or convention("{value}", dim)'
            )
        return _convention(value, max(dim, 1))
    if isinstance(value, int) and not isinstance(value, bool):
        return _encoding_of_dim(value)
    scalar = is_scalar_array(value) or not hasattr(type(value), "shape")
    if hasattr(value, "__index__") and not isinstance(value, bool) and scalar:
        return Encoding(value)
    if value is None:
        raise TypeError(
            "dim: expected the number of channels with encoding=None, got None; pass it, as in table(4096, 512), "
            "encode(positions, 512) or table(4096, dim=512)"
        )
    named = "a name with dim=" if dim is None else "a convention's name"
    raise TypeError(
        f"encoding: expected an Encoding, {named} or an int (the dim), got {type(value).__name__}; pass Encoding(dim) "
        'or convention("paper", dim)'
    )


def dim_beside(encoding: Any, dim: Any) -> int | None:
    """Checks `dim`, which may be given with the name of a convention or alone; None stays None."""
    if dim is None:
        return None
    if encoding is not None and not isinstance(encoding, str):
        raise TypeError(
            f"dim: expected None, because encoding ({shown(encoding)}) has its own channels, got {shown(dim)}; "
            'leave it out, or pass a name for encoding, as in table(4096, "t2t", 512)'
        )
    # operator.index turns a symbolic int of a graph into a number.
    return operator.index(integer("dim", dim, 1, MAX_DIM, "pass the number of channels"))


_is_grid_name = constant_in_graph(lambda name: grid_name(name))


def is_grid(value: Any) -> bool:
    """Whether an `encoding` argument is a GridEncoding or the name of a grid convention."""
    return isinstance(value, GridEncoding) or (isinstance(value, str) and _is_grid_name(value))


@constant_in_graph
def grid(value: Any, dim: int | None) -> GridEncoding:
    """A GridEncoding from an `encoding` argument; a one-dimensional encoding becomes a grid of one axis."""
    if isinstance(value, GridEncoding):
        return value
    if not is_grid(value):
        return GridEncoding((encoding(value, dim),))
    if dim is None:
        raise TypeError(
            f'encoding: expected a GridEncoding, or a name with dim=, got "{value}" and no dim to go with it; '
            f'pass dim=, or convention("{value}", dim)'
        )
    return _convention(value, max(dim, 1))


def uncached(resolved: Any, value: Any) -> Any:
    """What `encoding` or `grid` has made of a layer's argument, and not the object that is cached here: torch.compile
    fails if a constant of the graph, from a call of a function, is an attribute of a layer as well."""
    return resolved if resolved is value else copy.copy(resolved)


@constant_in_graph
def grid_dim_and_starts(value: Any, dim: int | None) -> tuple[int, tuple[int, ...]]:
    """The number of channels of a grid and the start of each axis, as plain ints that a graph can hold."""
    resolved = grid(value, dim)
    return resolved.dim, tuple(axis.start for axis in resolved.axes)


def name_of(encoding: Encoding | GridEncoding) -> str:
    """Code that makes an encoding of these values: the convention from which the fewest fields differ, with these
    fields, as `sinpe.convention("t2t", 512, start=2)`; without any, as `sinpe.Encoding(...)`."""
    calls: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES]
    if isinstance(encoding, GridEncoding):
        calls += [(name, {"axes": encoding.ndim}) for name, entry in CATALOGUE.items() if entry.arrangement]
    fitting = []
    for name, arguments in calls:
        try:
            fields = _different_fields(encoding, convention(name, encoding.dim, **arguments))
        except ValueError:  # a dim that the convention does not support
            continue
        if fields is not None:
            fitting.append((name, {**arguments, **fields}))
    if not fitting:
        return repr(encoding).replace("Encoding(", "sinpe.Encoding(").replace("Gridsinpe.", "sinpe.Grid")
    name, fields = min(fitting, key=lambda call: len(call[1]))
    return f'sinpe.convention("{name}", {encoding.dim}{"".join(f", {key}={fields[key]!r}" for key in fields)})'


def _different_fields(encoding: Any, known: Any) -> dict[str, Any] | None:
    """The arguments of `convention` that change the encoding `known` into another; None if there are none."""
    if type(known) is not type(encoding):
        return None
    is_grid = isinstance(encoding, GridEncoding)
    axes, others = (encoding.axes, known.axes) if is_grid else ((encoding,), (known,))
    if [axis.dim for axis in axes] != [other.dim for other in others] or len({a.frequencies for a in axes}) > 1:
        return None
    fields: dict[str, Any] = {}
    for name in FIELDS[1:]:
        given = tuple(getattr(axis, name) for axis in axes)
        has_effect = name != "odd" or any(axis.dim % 2 for axis in axes)
        if has_effect and given != tuple(getattr(other, name) for other in others):
            fields[name] = given if len(set(given)) > 1 else given[0]
    if is_grid:
        fields |= {
            name: getattr(encoding, name)
            for name in ("order", "arrangement")
            if getattr(encoding, name) != getattr(known, name)
        }
    return fields
