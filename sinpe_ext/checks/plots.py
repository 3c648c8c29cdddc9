"""Argument checks of `plot`, made before a figure is opened. Imports torch only for tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import checks
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import integer

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

MAX_VALUES = 2**26  # of length * dim, half a GiB of float64: far more than any picture has pixels
AXIS_LIMIT = 2**52  # below it float64, and so an axis, distinguishes half positions
MAX_DPI = 2400  # 8 x 5 inches at this resolution take 1 GiB


def matplotlib_installed() -> None:
    """Raises ImportError, with advice, if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"matplotlib: expected it to be installed, got {error}; run `pip install matplotlib`"
        ) from error


def drawn_into(ax: Axes | None) -> Axes:
    """The given Axes, or pyplot's current Axes for None, which opens a figure: after all checks."""
    if ax is not None:
        return ax
    matplotlib_installed()
    import matplotlib.pyplot as plt

    return plt.gca()


def dpi(value: int) -> int:
    """Checks the resolution of an image file in dots per inch."""
    return integer("dpi", value, 1, MAX_DPI, "pass 300, say, or write a .pdf or .svg, which have none")


def one_axis(name: str, value: Any) -> None:
    """Raises TypeError for a grid or a name, which do not determine rows by themselves."""
    if isinstance(value, (str, GridEncoding)):
        got = f'the name "{value}"' if isinstance(value, str) else f"a GridEncoding of {value.ndim} axes"
        raise TypeError(
            f"{name}: expected an Encoding, a tensor or an array of rows, got {got}; pass convention(name, dim), "
            "and for a grid sinpe_ext.table((H, W), grid, flatten=True)"
        )


def encoding_alone(value: Any) -> None:
    """Raises TypeError unless a value is an Encoding."""
    if not isinstance(value, Encoding):
        raise TypeError(f"encoding: expected an Encoding, got {checks.described(value)}; pass sinpe_ext.Encoding(dim)")


def drawable(name: str, rows: int, dim: int) -> None:
    """Raises ValueError if rows * dim is more than a picture can show."""
    if rows * dim > MAX_VALUES:
        raise ValueError(
            f"{name}: expected at most {MAX_VALUES} values (rows * dim) in a picture, got {rows} * {dim}; "
            f"{'pass a smaller length' if name == 'length' else 'pass fewer'} or a smaller dim"
        )


def rows_asked(length: Any, encoding: Encoding | None) -> int | None:
    """Checks `length`, which is required with an Encoding; returns an int or None."""
    if length is None:
        if encoding is not None:
            raise TypeError("length: expected a number of rows with an Encoding, got None; pass length=200, say")
        return None
    number = integer("length", length, 1, checks.INT64_MAX, "pass the number of rows to draw")
    if encoding is not None:
        drawable("length", number, encoding.dim)
    return number


def first_position(start: Any, own: int, rows: int) -> int:
    """The position of the first row, after checking that an axis can distinguish the positions of all rows."""
    first = own + checks.start(start)
    checks.position_range(first, rows)
    if first < -AXIS_LIMIT or first + rows > AXIS_LIMIT:
        raise ValueError(
            f"start: expected positions within 2**52, which an axis tells apart, got {first} to {first + rows - 1}; "
            "lower start, or draw some of them with plot.curves"
        )
    return first


def table(name: str, value: Any) -> np.ndarray:
    """A table as a 2-D float64 array."""
    import numpy as np

    one_axis(name, value)
    try:
        if hasattr(value, "detach"):  # a torch tensor, recognised without importing torch
            checks.dense_tensor(name, value)
            value = value.detach().cpu()
            value = value if value.is_complex() else value.double()  # NumPy has no bfloat16
        found = np.asarray(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise TypeError(
            f"{name}: expected real numbers in rows of one length, got {checks.described(value)}; "
            "pass a tensor, an array or equally long lists of numbers"
        ) from error
    if found.ndim == 3 and 1 in (found.shape[0], found.shape[1]):
        found = found.reshape(-1, found.shape[-1])  # a `pe` buffer: (1, length, dim) or (length, 1, dim)
    if found.ndim != 2 or not found.size:
        got = f"shape {tuple(found.shape)}" if found.ndim else checks.described(value)
        raise ValueError(
            f"{name}: expected an Encoding or a table of shape (length, dim), got {got}; select one table first"
        )
    return found


def positions(value: Any) -> np.ndarray:
    """Checks a non-empty sequence of finite positions; returns an int64 or float64 array."""
    import numpy as np

    from . import arrays

    if hasattr(value, "detach"):
        found = checks.positions(value).detach().cpu().numpy()
    else:
        found = arrays.positions(list(value) if isinstance(value, Iterable) else value)
    if found.ndim != 1 or not found.size:
        raise ValueError(
            f"positions: expected a sequence of numbers, one or more, got shape {tuple(found.shape)}; "
            "pass [5, 6, 50], say"
        )
    if not np.isfinite(found).all():
        raise ValueError(f"positions: expected finite numbers, got {found[~np.isfinite(found)][0]}; leave it out")
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def whole_positions(value: Any) -> np.ndarray:
    """Checks positions for a logarithmic axis, integers of 1 or more; returns an int64 array."""
    import numpy as np

    found = positions(value)
    wrong = found < 1
    if found.dtype.kind == "f":
        wrong |= (found != np.floor(found)) | (found >= 2.0**63)
    if wrong.any():
        raise ValueError(
            f"positions: expected whole numbers from 1 to 2**63 - 1 on a logarithmic axis, got {found[wrong][0]}; "
            "leave it out"
        )
    return found.astype(np.int64)


def finite_peak(values: np.ndarray) -> float:
    """The largest finite magnitude, or 1 if that is 0: the limit of a heat map's symmetric colour scale."""
    import numpy as np

    peak = float(np.max(abs(values), where=np.isfinite(values), initial=0.0))
    return peak if peak > 0 and math.isfinite(peak) else 1.0
