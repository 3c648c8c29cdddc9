"""Plots of positional encodings with matplotlib, an optional dependency (``pip install matplotlib``).

Every function draws into an ``Axes`` (default: the current one) and returns it, so that plots can be combined and
styled as usual. Tables may be torch tensors, NumPy arrays or nested lists; an ``Encoding`` is evaluated by
``sinpe_ext.numpy``, without torch. What these functions pass on to matplotlib, matplotlib checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import numpy as arrays
from .encodings import values
from .encodings.encoding import Encoding
from .encodings.grid import GridEncoding

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

__all__ = ["curves", "error", "heatmap", "similarity"]


def __dir__() -> list[str]:
    return list(__all__)


MAX_VALUES = 2**26  # half a GiB of float64, far more than any picture has pixels
AXIS_LIMIT = 2**52  # below it float64, and so an axis, distinguishes half positions
HALF_ULP_AT_ONE = 2.0**-25  # largest error of one rounding to float32 of a value of magnitude below 1
# Rows that `similarity` compares with all others: enough to see whether the product depends on the position.
MAX_ANCHORS = 64


def heatmap(
    table: Encoding | Any,
    *,
    length: int | None = None,
    start: int = 0,
    transpose: bool = False,
    cmap: str = "coolwarm",
    colorbar: bool = True,
    ax: Axes | None = None,
    **imshow: Any,
) -> Axes:
    """Draws a table as a heat map, one row per position and one column per channel.

    Equivalent to, without the labels and the colour bar::

        ax.imshow(table, cmap="coolwarm", aspect="auto")

    Args:
        table: (length, dim) tensor or array, or an ``Encoding``, whose table is computed.
        length: number of rows; required for an ``Encoding``. Of a table, the first `length` rows are drawn.
        start: position of the first row; the ``start`` of an ``Encoding`` is added.
        transpose: draw positions along the x axis and channels along the y axis.
        cmap: matplotlib colour map.
        colorbar: draw a colour bar beside the Axes.
        ax: Axes to draw into; default ``plt.gca()``.
        **imshow: passed to ``Axes.imshow``.
    Returns:
        The Axes.
    """
    import numpy as np

    values, first = _rows("table", table, length, start)
    rows, channels = values.shape
    extent = (-0.5, channels - 0.5, first + rows - 0.5, first - 0.5)
    if transpose:
        values, extent = values.T, (first - 0.5, first + rows - 0.5, channels - 0.5, -0.5)
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "extent": extent, "cmap": cmap, **imshow}
    if "norm" not in options:  # a symmetric colour scale
        peak = float(np.max(abs(values), where=np.isfinite(values), initial=0.0)) or 1.0
        options = {"vmin": -peak, "vmax": peak, **options}
    ax = ax or _current_axes()
    image = ax.imshow(values, **options)
    ax.set_xlabel("position" if transpose else "channel")
    ax.set_ylabel("channel" if transpose else "position")
    if colorbar:
        ax.figure.colorbar(image, ax=ax, label="value")
    return ax


def curves(
    table: Encoding | Any,
    positions: Sequence[float] = (5, 6, 50),
    *,
    start: int = 0,
    ax: Axes | None = None,
    **plot: Any,
) -> Axes:
    """Draws the encodings of a few positions, value against channel.

    Args:
        table: an ``Encoding``, for any positions, also fractional ones, or a (length, dim) table with their rows.
        positions: positions to draw, one line each.
        start: position of the first row of a table.
        ax: Axes to draw into; default ``plt.gca()``.
        **plot: passed to ``Axes.plot``.
    Returns:
        The Axes.
    Raises:
        IndexError: a position outside of the table.
    """
    _refuse_grid("table", table)
    wanted = _positions(positions)
    if isinstance(table, Encoding):
        values = arrays.encode(wanted, table, dtype="float64")
    else:
        rows, first = _rows("table", table, None, start)
        for position in wanted.tolist():
            if position != int(position) or not first <= position < first + len(rows):
                raise IndexError(
                    f"positions: expected whole numbers from {first} to {first + len(rows) - 1}, the table's rows, "
                    f"got {position!r}; pass a longer table, or the Encoding itself"
                )
        values = rows[[int(position) - first for position in wanted.tolist()]]
    ax = ax or _current_axes()
    for position, row in zip(wanted.tolist(), values, strict=True):
        ax.plot(row, **{"label": f"{position:g}" if isinstance(position, float) else str(position), **plot})
    ax.set_xlabel("channel")
    ax.set_ylabel("value")
    ax.margins(x=0.01)
    ax.legend(title="position")
    return ax


def similarity(
    encoding: Encoding | Any, length: int | None = None, *, normalize: bool = False, ax: Axes | None = None, **plot: Any
) -> Axes:
    """Draws the dot product of the encodings of two positions against their distance.

    If sin and cos share their frequencies, the product depends on the distance only and is one line. Otherwise
    (``cos_frequency="own"``) it also depends on the position: the line is the mean, and the band spans the smallest to
    the largest product.

    Args:
        encoding: an ``Encoding``, or a (length, dim) tensor or array.
        length: number of positions; required for an ``Encoding``.
        normalize: divide by the norms of both rows (cosine similarity).
        ax: Axes to draw into; default ``plt.gca()``.
        **plot: passed to ``Axes.plot``.
    Returns:
        The Axes.
    """
    import numpy as np

    values, _ = _rows("encoding", encoding, length, 0)
    if normalize:
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        values = values / np.where(norms == 0, 1.0, norms)
    rows = len(values)
    anchors = np.unique(np.linspace(0, rows - 1, min(rows, MAX_ANCHORS)).astype(np.int64))
    total, count = np.zeros(rows), np.zeros(rows)
    lowest, highest = np.full(rows, np.inf), np.full(rows, -np.inf)
    for anchor in anchors:
        products = values[anchor:] @ values[anchor]
        reach = slice(0, rows - anchor)
        total[reach] += products
        count[reach] += 1
        lowest[reach] = np.minimum(lowest[reach], products)
        highest[reach] = np.maximum(highest[reach], products)
    distance = np.arange(rows)
    ax = ax or _current_axes()
    (line,) = ax.plot(distance, total / count, **plot)
    ax.fill_between(distance, lowest, highest, color=line.get_color(), alpha=0.25, linewidth=0)
    ax.set_xlabel("distance between positions")
    ax.set_ylabel("cosine similarity" if normalize else "dot product")
    ax.margins(x=0.01)
    return ax


def error(encoding: Encoding, positions: Sequence[int] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draws the largest error over the channels against the position, for the naive float32 formula and this library.

    The naive formula multiplies a float32 frequency by a float32 position, as `angle="float32_exp"` does. Both float32
    results are compared with the float64 result of this library, whose error (below 2e-16) is negligible here. Needs
    torch.

    Args:
        encoding: an ``Encoding``.
        positions: integer positions from 1 on. None: 128 positions from 1 to 10 million, logarithmically spaced.
        ax: Axes to draw into; default ``plt.gca()``.
    Returns:
        The Axes, with logarithmic scales.
    """
    import numpy as np
    import torch

    from .functional import encode

    if not isinstance(encoding, Encoding):
        raise TypeError(
            f"encoding: expected an Encoding, got {values.described(encoding)}; pass sinpe_ext.Encoding(dim)"
        )
    where = (
        np.unique(np.round(np.geomspace(1, 1e7, 128)).astype(np.int64)) if positions is None else _positions(positions)
    )
    wrong = where[(where < 1) | (where != np.floor(where)) | (where >= 2.0**63)]
    if wrong.size:
        raise ValueError(
            f"positions: expected whole numbers of 1 or more on a logarithmic axis, got {wrong[0]}; leave it out"
        )
    given = torch.from_numpy(where.astype(np.int64))
    exact = encode(given, encoding.replace(angle="exact"), dtype=torch.float64)
    naive = encode(given, encoding.replace(angle="float32_exp"))
    ax = ax or _current_axes()
    ax.loglog(where, (naive - exact).abs().amax(1), label="naive float32 formula")
    ax.loglog(where, (encode(given, encoding) - exact).abs().amax(1), label="sinpe_ext, float32")
    ax.axhline(HALF_ULP_AT_ONE * abs(encoding.amplitude), color="0.5", linestyle=":", label="rounding once: $2^{-25}$")
    ax.set_xlabel("position")
    ax.set_ylabel("largest error over the channels")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend()
    return ax


def _current_axes() -> Axes:
    """pyplot's current Axes, which may open a figure. Raises ImportError, with advice, without matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(f"plotting requires matplotlib ({error}); run `pip install matplotlib`") from error
    return plt.gca()


def _rows(name: str, table: Any, length: int | None, start: int) -> tuple[np.ndarray, int]:
    """The table as a 2-D float64 array, computed if it is given as an Encoding, and the position of its first row."""

    first, length = values.start(start), None if length is None else values.length(length)
    if isinstance(table, Encoding):
        if length is None:
            raise TypeError("length: expected a number of rows with an Encoding, got None; pass length=200")
        if length * table.dim > MAX_VALUES:
            raise ValueError(
                f"length: expected at most {MAX_VALUES} values (length * dim) in a picture, got {length} * "
                f"{table.dim}; pass a smaller length"
            )
        rows = arrays.table(length, table, start=first, dtype="float64")
        first += table.start
    else:
        rows = _table(name, table)[:length]
    if not len(rows):
        raise ValueError("length: expected 1 or more, got 0; pass the number of rows to draw")
    if first < -AXIS_LIMIT or first + len(rows) > AXIS_LIMIT:
        raise ValueError(
            f"start: expected positions within 2**52, which an axis tells apart, got {first} to "
            f"{first + len(rows) - 1}; lower start, or draw some of them with plot.curves"
        )
    return rows, first


def _table(name: str, value: Any) -> np.ndarray:
    """A table as a 2-D float64 array."""
    import numpy as np

    _refuse_grid(name, value)
    try:
        if hasattr(value, "detach"):  # a torch tensor, recognized without importing torch
            value = value.detach().cpu()
            value = value if value.is_complex() else value.double()  # NumPy has no bfloat16
        array = np.asarray(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected real numbers in rows of one length, got {values.described(value)}; "
            "pass a tensor, an array or equally long lists of numbers"
        ) from error
    if array.ndim == 3 and 1 in array.shape[:2]:
        array = array.reshape(-1, array.shape[-1])  # a `pe` buffer: (1, length, dim) or (length, 1, dim)
    if array.ndim != 2 or not array.size:
        raise ValueError(
            f"{name}: expected an Encoding or a table of shape (length, dim), got shape {array.shape}; select one table"
        )
    return array


def _refuse_grid(name: str, value: Any) -> None:
    """Raises TypeError for a grid or a name, which do not determine rows by themselves."""
    if isinstance(value, (str, GridEncoding)):
        got = f'the name "{value}"' if isinstance(value, str) else f"a GridEncoding of {value.ndim} axes"
        raise TypeError(
            f"{name}: expected an Encoding, a tensor or an array of rows, got {got}; pass convention(name, dim), "
            "and for a grid sinpe_ext.table((H, W), grid, flatten=True)"
        )


def _positions(value: Any) -> np.ndarray:
    """Checks a non-empty sequence of finite positions; returns an int64, float32 or float64 array."""
    import numpy as np

    if hasattr(value, "detach"):
        from .operations import checks

        value = checks.positions(value).detach().cpu().numpy()
    array = arrays.position_array(list(value) if isinstance(value, Iterable) else value)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(
            f"positions: expected a sequence of finite numbers, one or more, got {values.shown(value)}; pass [5, 6, 50]"
        )
    return array
