"""Plots of positional encodings with matplotlib, an optional dependency (``pip install matplotlib``).

Every function draws into an ``Axes`` (default: the current one) and returns it, so that plots can be combined and
styled as usual. Tables may be torch tensors, NumPy arrays or nested lists; an ``Encoding`` is evaluated by
``sinpe_ext.numpy``, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import numpy as arrays
from .encodings import values
from .encodings.encoding import Encoding
from .encodings.grid import GridEncoding
from .encodings.values import flag, integer

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

__all__ = ["curves", "error", "heatmap", "similarity"]


def __dir__() -> list[str]:
    return list(__all__)


MAX_VALUES = 2**26  # of length * dim, half a GiB of float64: far more than any picture has pixels
AXIS_LIMIT = 2**52  # below it float64, and so an axis, distinguishes half positions
MAX_DPI = 2400  # 8 x 5 inches at this resolution take 1 GiB
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
    transpose, colorbar = flag("transpose", transpose), flag("colorbar", colorbar)
    values, first = _rows("table", table, length, start)
    rows, channels = values.shape
    extent = (-0.5, channels - 0.5, first + rows - 0.5, first - 0.5)
    if transpose:
        values, extent = values.T, (first - 0.5, first + rows - 0.5, channels - 0.5, -0.5)
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "extent": extent, "cmap": cmap, **imshow}
    if "norm" not in options:
        peak = finite_peak(values)
        options.setdefault("vmin", -peak)
        options.setdefault("vmax", peak)
    ax = drawn_into(ax)
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
    one_axis("table", table)
    wanted = position_array(positions)
    if isinstance(table, Encoding):
        drawable("positions", len(wanted), table.dim)
        values = _evaluate(wanted, table)
    else:
        rows, first = _rows("table", table, None, start)
        for position in wanted.tolist():
            if position != int(position) or not first <= position < first + len(rows):
                raise IndexError(
                    f"positions: expected whole numbers from {first} to {first + len(rows) - 1}, the table's rows, "
                    f"got {position!r}; pass a longer table, or the Encoding itself"
                )
        values = rows[[int(position) - first for position in wanted.tolist()]]
    ax = drawn_into(ax)
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
    if flag("normalize", normalize):
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
    ax = drawn_into(ax)
    (line,) = ax.plot(distance, total / count, **plot)
    ax.fill_between(distance, lowest, highest, color=line.get_color(), alpha=0.25, linewidth=0)
    ax.set_xlabel("distance between positions")
    ax.set_ylabel("cosine similarity" if normalize else "dot product")
    ax.margins(x=0.01)
    return ax


def error(encoding: Encoding, positions: Sequence[int] | None = None, *, ax: Axes | None = None) -> Axes:
    """Draws the largest error over the channels against the position, for the naive float32 formula and this library.

    The naive formula multiplies a float32 frequency by a float32 position. Both float32 results are compared with the
    float64 result of this library, whose error (below 2e-16) is negligible here.

    Args:
        encoding: an ``Encoding``.
        positions: integer positions from 1 on. None: 128 positions from 1 to 10 million, logarithmically spaced.
        ax: Axes to draw into; default ``plt.gca()``.
    Returns:
        The Axes, with logarithmic scales.
    """
    import numpy as np

    encoding_alone(encoding)
    where = whole_positions(np.round(np.geomspace(1, 1e7, 128)) if positions is None else positions)
    where = np.unique(where) if positions is None else where
    drawable("positions", len(where), encoding.dim)
    exact = _evaluate(where, encoding.replace(angle="exact"))
    ours = _evaluate(where, encoding, np.float32)
    usual = usual_float32(where, encoding)
    ax = drawn_into(ax)
    ax.loglog(where, abs(usual - exact).max(axis=1), label="usual float32 formula")
    ax.loglog(where, abs(ours - exact).max(axis=1), label="sinpe_ext, float32")
    ax.axhline(HALF_ULP_AT_ONE * abs(encoding.amplitude), color="0.5", linestyle=":", label="rounding once: $2^{-25}$")
    ax.set_xlabel("position")
    ax.set_ylabel("largest error over the channels")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend()
    return ax


def usual_float32(positions: np.ndarray, encoding: Encoding) -> np.ndarray:
    """Returns the result of the usual float32 code, ``sin(float32(position) * exp(float32(log(frequency))))``.

    Args:
        positions: (P,) int64.
        encoding: any ``Encoding``; its float64 frequencies are rounded where the usual code rounds them.
    Returns:
        (P, dim) float32.
    """
    import numpy as np

    from .encodings.plan import plan

    decoded = plan(encoding)
    radians = 2 * np.pi * np.asarray(decoded.channel_turns())
    with np.errstate(divide="ignore"):
        frequency = np.sign(radians).astype(np.float32) * np.exp(np.log(np.abs(radians)).astype(np.float32))
    angle = positions.astype(np.float32)[:, None] * frequency[None, :]
    values = np.zeros(angle.shape, np.float32)
    for channel, entry in enumerate(decoded.channels()):
        if entry is not None:
            function = np.cos if entry[1] else np.sin
            values[:, channel] = np.float32(encoding.amplitude) * function(angle[:, channel])
    return values


def _evaluate(positions: np.ndarray, encoding: Encoding, dtype: Any = "float64") -> np.ndarray:
    """The encodings (P, dim) of positions, to which encoding.start is not added."""
    import numpy as np

    from . import numpy as front

    return front.encode(positions, encoding, dtype=np.dtype(dtype))


def _rows(name: str, table: Any, length: int | None, start: int) -> tuple[np.ndarray, int]:
    """The table as a 2-D float64 array, computed if it is given as an Encoding, and the position of its first row."""
    import numpy as np

    if isinstance(table, Encoding):
        rows = rows_asked(length, table) or 0
        first = first_position(start, table.start, rows)
        return _evaluate(np.arange(first, first + rows), table), first
    values = table_array(name, table)[: rows_asked(length, None)]
    return values, first_position(start, 0, len(values))


def matplotlib_installed() -> None:
    """Raises ImportError, with advice, if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"plotting requires matplotlib ({error}); run `pip install matplotlib`") from error


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
        raise TypeError(f"encoding: expected an Encoding, got {values.described(value)}; pass sinpe_ext.Encoding(dim)")


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
    number = integer("length", length, 1, values.INT64_MAX, "pass the number of rows to draw")
    if encoding is not None:
        drawable("length", number, encoding.dim)
    return number


def first_position(start: Any, encoding_start: int, rows: int) -> int:
    """The position of the first row, after checking that an axis can distinguish the positions of all rows."""
    first = encoding_start + values.start(start)
    values.position_range(first, rows)
    if first < -AXIS_LIMIT or first + rows > AXIS_LIMIT:
        raise ValueError(
            f"start: expected positions within 2**52, which an axis tells apart, got {first} to {first + rows - 1}; "
            "lower start, or draw some of them with plot.curves"
        )
    return first


def table_array(name: str, value: Any) -> np.ndarray:
    """A table as a 2-D float64 array."""
    import numpy as np

    one_axis(name, value)
    try:
        if hasattr(value, "detach"):  # a torch tensor, recognized without importing torch
            values.dense_tensor(name, value)
            value = value.detach().cpu()
            value = value if value.is_complex() else value.double()  # NumPy has no bfloat16
        array = np.asarray(value).astype(np.float64, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise TypeError(
            f"{name}: expected real numbers in rows of one length, got {values.described(value)}; "
            "pass a tensor, an array or equally long lists of numbers"
        ) from error
    if array.ndim == 3 and 1 in (array.shape[0], array.shape[1]):
        array = array.reshape(-1, array.shape[-1])  # a `pe` buffer: (1, length, dim) or (length, 1, dim)
    if array.ndim != 2 or not array.size:
        got = f"shape {tuple(array.shape)}" if array.ndim else values.described(value)
        raise ValueError(
            f"{name}: expected an Encoding or a table of shape (length, dim), got {got}; select one table first"
        )
    return array


def position_array(value: Any) -> np.ndarray:
    """Checks a non-empty sequence of finite positions; returns an int64 or float64 array."""
    import numpy as np

    if hasattr(value, "detach"):
        from .operations import checks

        array = checks.positions(value).detach().cpu().numpy()
    else:
        array = arrays.position_array(list(value) if isinstance(value, Iterable) else value)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"positions: expected a sequence of numbers, one or more, got shape {tuple(array.shape)}; "
            "pass [5, 6, 50], say"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"positions: expected finite numbers, got {array[~np.isfinite(array)][0]}; leave it out")
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def whole_positions(value: Any) -> np.ndarray:
    """Checks positions for a logarithmic axis, integers of 1 or more; returns an int64 array."""
    import numpy as np

    array = position_array(value)
    wrong = array < 1
    if array.dtype.kind == "f":
        wrong |= (array != np.floor(array)) | (array >= 2.0**63)
    if wrong.any():
        raise ValueError(
            f"positions: expected whole numbers from 1 to 2**63 - 1 on a logarithmic axis, got {array[wrong][0]}; "
            "leave it out"
        )
    return array.astype(np.int64)


def finite_peak(table: np.ndarray) -> float:
    """The largest finite magnitude, or 1 if that is 0: the limit of a heat map's symmetric colour scale."""
    import numpy as np

    peak = float(np.max(abs(table), where=np.isfinite(table), initial=0.0))
    return peak if peak > 0 and math.isfinite(peak) else 1.0
