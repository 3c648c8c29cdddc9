"""Tables and encodings as NumPy arrays; torch is not imported.

A compiled module is used if it was built, otherwise NumPy. float32 and float16 results have the same bits either way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import reference
from .backend import loader
from .encodings import resolve, values
from .encodings.catalogue import convention, conventions
from .encodings.encoding import Encoding
from .encodings.grid import ChannelGroup, GridEncoding, lengths_of
from .encodings.plan import Plan
from .encodings.plan import plan as _plan

__all__ = ["table", "encode", "Encoding", "GridEncoding", "convention", "conventions"]

Rows = Callable[..., NDArray[Any]]


def __dir__() -> list[str]:
    return list(__all__)


def table(
    length: int | Sequence[int],
    encoding: Encoding | GridEncoding | str | int | None = None,
    dim: int | None = None,
    *,
    start: int | Sequence[int] = 0,
    dtype: DTypeLike = np.float32,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Returns the encodings of `length` consecutive positions, the first of which is encoding.start + start.

    Equivalent to, in real arithmetic and rounded once (default encoding)::

        angles = np.arange(start, start + length)[:, None] * 10000 ** (-np.arange(0, dim, 2) / dim)
        out[:, 0::2], out[:, 1::2] = np.sin(angles), np.cos(angles)

    Args:
        length: number of rows, 0 or more; for a grid the lengths of its axes, such as (H, W).
        encoding: an Encoding, a GridEncoding, the name of a convention, or an int as short form of Encoding(int). None:
            Encoding(dim).
        dim: number of channels, for encoding=None and for the name of a convention. Must be None for any other
            encoding.
        start: added to encoding.start; every position must fit into int64. For a grid an int, or one int per axis.
        dtype: float32, float64 or float16.
        out: output array of the shape of the result and of `dtype`, with any strides.
    Returns:
        (length, dim), for a grid `(*length, dim)`, of `dtype`. `out` if given.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value, and for positions beyond int64.
    Accuracy:
        as `sinpe_ext.table`; float16 is the float32 value, rounded.
    Source:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """
    dim = resolve.dim_beside(encoding, dim)
    if resolve.is_grid(encoding):
        made = _grid_table(table, length, resolve.grid(encoding, dim), start, dtype_name(dtype))
        if out is None:
            return made
        check_out(out, made.shape, dtype_name(dtype))
        out[...] = made
        return out
    plan, name = _constants(encoding, dim), dtype_name(dtype)
    rows = values.length(length)
    first = plan.start + values.start(start)
    values.position_range(first, rows)
    values.addressable("length", rows, plan.dim, np.dtype(name).itemsize)
    if out is not None:
        check_out(out, (rows, plan.dim), name)
    core = _core()
    if core is not None:
        made = core.table(_packed_plan(plan), first - plan.start, rows, name)  # the plan adds its own start
    else:
        made = reference.table(plan, rows, first, np.dtype(name), xp=np)
    if out is None:
        return made
    out[...] = made
    return out


def encode(
    positions: ArrayLike,
    encoding: Encoding | GridEncoding | str | int | None = None,
    dim: int | None = None,
    *,
    dtype: DTypeLike = np.float32,
) -> NDArray[Any]:
    """Returns the encodings of the given positions, which may be integers or fractional.

    Equivalent to, in real arithmetic and rounded once (default encoding)::

        angles = positions[..., None] * 10000 ** (-np.arange(0, dim, 2) / dim)
        out[..., 0::2], out[..., 1::2] = np.sin(angles), np.cos(angles)

    Args:
        positions: any shape; integers of any width, float32 or float64, used at their exact value. encoding.start is
            not added. For a grid the last dimension holds the coordinates, one per axis.
        encoding: an Encoding, a GridEncoding, the name of a convention, or an int as short form of Encoding(int). None:
            Encoding(dim).
        dim: number of channels, for encoding=None and for the name of a convention. Must be None for any other
            encoding.
        dtype: float32, float64 or float16.
    Returns:
        `(*positions.shape, dim)`, for a grid `(*positions.shape[:-1], dim)`, of `dtype`; NaN where a position is NaN or
        infinite.
    Raises:
        TypeError, ValueError for arguments of the wrong type or value.
    Accuracy:
        as `sinpe_ext.encode`; float16 is the float32 value, rounded.
    """
    dim = resolve.dim_beside(encoding, dim)
    if resolve.is_grid(encoding):
        return _grid_encode(encode, position_array(positions), resolve.grid(encoding, dim), dtype_name(dtype))
    plan, name = _constants(encoding, dim), dtype_name(dtype)
    checked = position_array(positions)
    values.addressable("positions", checked.size, plan.dim, np.dtype(name).itemsize)
    core = _core()
    if core is not None:
        return core.encode(
            _packed_plan(plan), np.require(checked, requirements=["C", "A"]).reshape(checked.shape), name
        )
    return reference.encode(plan, checked, np.dtype(name), xp=np)


def _constants(encoding: Any, dim: int | None) -> Plan:
    """Checks the argument `encoding` and returns its plan."""
    checked = resolve.encoding(encoding, dim)
    if checked.angle != "exact":
        raise ValueError(
            f'encoding: expected angle="exact", got "{checked.angle}"; '
            "the float32 angles of trained checkpoints come from sinpe_ext.table and sinpe_ext.encode"
        )
    return _plan(checked)


def _packed_plan(plan: Plan) -> NDArray[np.int64]:
    """The packed plan as an array, for the compiled module."""
    return np.frombuffer(plan.packed, dtype=np.int64)


def _core() -> Any:
    """The compiled module, or None if NumPy is to be used. Raises BackendUnavailableError."""
    wanted = loader.setting()
    if wanted == "eager":
        return None
    module, reason = _find_core()
    if module is None and wanted == "compiled":
        raise loader.BackendUnavailableError(
            f'the compiled backend is required, but there is none for NumPy: {reason}; use_backend("auto") runs NumPy'
        )
    return module


@lru_cache(maxsize=1)
def _find_core() -> tuple[Any, str]:
    """The compiled module or None, and the reason; looked up once."""
    return loader.core_module()


def _grid_table(rows: Rows, length: Any, grid: GridEncoding, start: Any, name: str) -> NDArray[Any]:
    """The table (*length, dim) of a grid, whose groups are computed by `rows(length, encoding, start=, dtype=)`."""
    lengths = lengths_of("length", length, grid.ndim)
    starts = values.one_per_axis(start, grid.ndim)
    values.addressable("length", math.prod(lengths), grid.dim, np.dtype(name).itemsize)
    out = np.zeros((*lengths, grid.dim), name)
    for group, channels in _places(grid, out):
        made = rows(lengths[group.axis], group.encoding, start=values.start(starts[group.axis]), dtype=name)
        shape = [1] * grid.ndim
        shape[group.axis] = lengths[group.axis]
        channels[...] = made.reshape(*shape, group.encoding.dim)
    return out


def _grid_encode(rows: Rows, positions: NDArray[Any], grid: GridEncoding, name: str) -> NDArray[Any]:
    """The encodings (*positions.shape[:-1], dim) of a grid; `rows(positions, encoding, dtype=)` computes its groups."""
    if positions.ndim < 1 or positions.shape[-1] != grid.ndim:
        raise ValueError(
            f"positions: expected {grid.ndim} coordinates, one per axis of the grid, in the last dimension, got shape "
            f"{positions.shape}; stack them with np.stack(coordinates, -1)"
        )
    out = np.zeros((*positions.shape[:-1], grid.dim), name)
    for group, channels in _places(grid, out):
        channels[...] = rows(positions[..., group.axis], group.encoding, dtype=name)
    return out


def _places(grid: GridEncoding, out: NDArray[Any]) -> Iterator[tuple[ChannelGroup, NDArray[Any]]]:
    """Every group of a grid with the view of its channels in `out`."""
    for group in grid.channel_groups:
        last = group.first + (group.encoding.dim - 1) * group.step + 1
        yield group, out[..., group.first : last : group.step]


DTYPES = ("float32", "float64", "float16")


def dtype_name(value: Any) -> str:
    """Checks that results can have this dtype; returns its name."""
    try:
        name = np.dtype(value).name
    except TypeError:
        name = str(value)
    if name in DTYPES:
        return name
    why = "NumPy has no bfloat16 of its own, use sinpe_ext.table" if "bfloat16" in name else "pass np.float32"
    raise TypeError(f"dtype: expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {name}; {why}")


def check_out(out: Any, shape: tuple[int, ...], name: str) -> None:
    """Checks `out`: its shape and dtype, that it is writeable, and that no two elements share memory."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected a numpy.ndarray, got {type(out).__name__}; pass np.empty({shape}, np.{name})")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}; pass np.empty({shape}, np.{name})")
    if out.dtype != np.dtype(name):
        raise TypeError(f"out: expected {name}, got {out.dtype}; pass np.empty({shape}, np.{name}) or dtype=")
    if not out.flags.writeable:
        raise ValueError("out: expected a writeable array, got a read-only one; pass a copy")
    reach = 0  # bytes spanned by the dimensions with smaller strides
    for stride, size in sorted(
        (abs(stride), size) for size, stride in zip(shape, out.strides, strict=True) if size > 1
    ):
        if stride < reach + out.itemsize and 0 not in shape:
            raise ValueError(
                f"out: expected one memory location for each element, got strides {out.strides} for shape {shape}; "
                "pass a copy"
            )
        reach += (size - 1) * stride


def position_array(value: Any) -> NDArray[Any]:
    """Checks positions; returns them as int64 or as float32/float64 in native byte order."""
    array = np.asarray(value)
    kind = array.dtype.kind
    if not array.size and not hasattr(value, "dtype"):
        return array.astype(np.int64)  # NumPy makes [] float64
    if kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > values.INT64_MAX:
        raise ValueError(f"positions: expected values within int64, got {array.max()}; pass smaller positions")
    if kind in "iu":
        return array.astype(np.int64)
    if array.dtype == np.float16:
        raise TypeError(
            "positions: expected integers or float32/float64, got float16; "
            "float16 cannot hold integers above 2048 exactly, pass int64 positions, or float32 for fractional ones"
        )
    if kind == "f" and array.dtype.itemsize in (4, 8):
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    got = "object, as for integers beyond 64 bits" if kind == "O" else array.dtype
    raise TypeError(
        f"positions: expected integers or float32/float64, got {got}; pass int64, float32 or float64 positions"
    )
