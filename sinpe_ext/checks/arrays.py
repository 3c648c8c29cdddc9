"""Argument checks of `sinpe_ext.numpy`: dtypes, outputs and positions as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import INT64_MAX

DTYPES = ("float32", "float64", "float16")


def dtype(value: Any) -> str:
    """Checks that results can have this dtype; returns its name."""
    try:
        name = np.dtype(value).name
    except TypeError:
        name = str(value)
    if name in DTYPES:
        return name
    why = "; NumPy has no bfloat16 of its own, use sinpe_ext.table" if "bfloat16" in name else "; pass one of these"
    raise TypeError(f"dtype: expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {name}{why}")


def output(out: Any, shape: tuple[int, ...], name: str) -> None:
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


def positions(value: Any) -> NDArray[Any]:
    """Checks positions; returns them as int64 or as float32/float64 in native byte order."""
    found = np.asarray(value)
    kind = found.dtype.kind
    if not found.size and not hasattr(value, "dtype"):
        return found.astype(np.int64)  # NumPy makes [] float64
    if kind == "u" and found.dtype.itemsize == 8 and found.size and found.max() > INT64_MAX:
        raise ValueError(f"positions: expected values within int64, got {found.max()}; pass smaller positions")
    if kind in "iu":
        return found.astype(np.int64)
    if found.dtype == np.float16:
        raise TypeError(
            "positions: expected integers or float32/float64, got float16; "
            "float16 cannot hold integers above 2048 exactly, pass int64 positions"
        )
    if kind == "f" and found.dtype.itemsize in (4, 8):
        return found.astype(found.dtype.newbyteorder("="), copy=False)
    got = "object, as for integers beyond 64 bits" if kind == "O" else found.dtype
    raise TypeError(
        f"positions: expected integers or float32/float64, got {got}; pass int64, float32 or float64 positions"
    )
