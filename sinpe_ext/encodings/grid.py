"""`GridEncoding`: the positional encoding of images, videos and volumes, composed of one `Encoding` per axis.

Every channel depends on one coordinate only: `channel_groups` gives the equivalent one-dimensional encodings, each with
its axis and its channels. The rows of an axis are computed once for all grid points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from . import frequency
from .encoding import HALVES, LAYOUTS, Encoding, check_fields
from .tracing import constant_in_graph, refuse_in_graph
from .values import MAX_DIM, choice, integer, real

ARRANGEMENTS = ("blocks", "grouped", "interleaved", "pairs")
MAX_AXES = 8


class ChannelGroup(NamedTuple):
    """Channels of a grid that encode one coordinate: channel c of `encoding` is channel first + c * step."""

    axis: int
    encoding: Encoding
    first: int
    step: int


@dataclass(frozen=True)
class GridEncoding:
    """An n-dimensional sinusoidal positional encoding: one `Encoding` per axis, and the arrangement of their channels.

    Instances are immutable, hashable and compare by value.

    Equivalent to, for two axes and arrangement="blocks"::

        rows, columns = sinpe.table(H, axes[0]), sinpe.table(W, axes[1])
        torch.cat([rows[:, None].expand(H, W, -1), columns[None].expand(H, W, -1)], -1)

    Args:
        axes: one Encoding per axis of the grid, 1 to 8: rows (H), then columns (W) of an image; time first for a video.
            start and position_scale of each apply to its own coordinate.
        order: indices of the axes in the order of their channels, for example (1, 0) if the channels of the columns
            come first. None: the order of `axes`.
        arrangement: "blocks": all channels of one axis, then all of the next; "grouped": the first half of every axis
            (sin for layout "sin_cos"), then the second half of every axis; "interleaved": channel 0 of every axis, then
            channel 1 of every axis, ...; "pairs": the first sin and cos of every axis, then the second sin and cos of
            every axis, ... (LoFTR), for axes of layout "interleaved".
        dim: total number of channels. If the axes have fewer, the remaining channels are zero; if they have more, the
            last ones are cut off. None: the sum over the axes.
    Raises:
        TypeError: a field of the wrong type, or an unknown field.
        ValueError: a field out of range, or an invalid combination of fields.
    """

    axes: tuple[Encoding, ...]
    _: KW_ONLY
    order: tuple[int, ...] | None = None
    arrangement: str = "blocks"
    dim: int = 0  # __init__ sets it

    def __new__(cls, *args: Any, **fields: Any) -> GridEncoding:
        refuse_in_graph("GridEncoding")
        return super().__new__(cls)

    def __init__(
        self,
        axes: Iterable[Encoding],
        *,
        order: Iterable[int] | None = None,
        arrangement: str = "blocks",
        dim: int | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "axes", _axes(axes))
        number = len(self.axes)
        given = None if order is None else _order(order, number)
        put(self, "order", None if given == tuple(range(number)) else given)
        choice("arrangement", arrangement, ARRANGEMENTS)
        put(self, "arrangement", arrangement)
        total = sum(axis.dim for axis in self.axes)
        put(self, "dim", total if dim is None else integer("dim", dim, 1, MAX_DIM, "pass the number of channels"))
        layouts = {"grouped": ("sin_cos", "cos_sin"), "pairs": ("interleaved",)}.get(arrangement, LAYOUTS)
        if layouts != LAYOUTS and any(axis.layout not in layouts or axis.dim % 2 for axis in self.axes):
            raise ValueError(
                f"arrangement: expected axes of an even dim and layout {' or '.join(layouts)} for "
                f'"{arrangement}", got {", ".join(f"{axis.dim} {axis.layout}" for axis in self.axes)}; pass others'
            )
        if arrangement in ("interleaved", "pairs") and len({axis.dim for axis in self.axes}) > 1:
            raise ValueError(
                f'arrangement: expected axes of one dim for "{arrangement}", got '
                f'{", ".join(str(axis.dim) for axis in self.axes)}; use "blocks" or equal dims'
            )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @cached_property
    def channel_groups(self) -> tuple[ChannelGroup, ...]:
        """The one-dimensional encodings that make up the grid, with their channels; all other channels are zero."""
        order = range(self.ndim) if self.order is None else self.order
        if self.arrangement == "grouped":
            parts = [(axis, half(self.axes[axis], second)) for second in (False, True) for axis in order]
        elif self.arrangement == "pairs":
            parts = [(axis, half(self.axes[axis], second)) for axis in order for second in (False, True)]
        else:
            parts = [(axis, self.axes[axis]) for axis in order]
        alternates = self.arrangement in ("interleaved", "pairs")  # a channel of each part in turn
        step, at = len(parts) if alternates else 1, 0
        groups = []
        for axis, encoding in parts:
            first = at
            for part in _first_channels(encoding, len(range(at, self.dim, step))):
                groups.append(ChannelGroup(axis, part, first, step))
                first += part.dim * step
            at += 1 if alternates else encoding.dim
        return tuple(groups)

    def replace(self, **fields: Any) -> GridEncoding:
        """Returns a copy with some fields changed, as dataclasses.replace does.

        Args:
            fields: axes, order, arrangement or dim, with their new values. If dim is the sum over the axes, it
                changes with new axes. Fields of the axes are changed by `with_axes`.
        Returns:
            a new GridEncoding; all fields are checked again.
        Raises:
            TypeError, ValueError as the constructor.
        """
        current = self.__getstate__()
        if self.dim == sum(axis.dim for axis in self.axes):
            current["dim"] = None
        for name in fields:
            if name not in current:
                raise TypeError(
                    f"{name}: not a field of GridEncoding, whose fields are {', '.join(current)}; with_axes changes "
                    "the fields of its axes"
                )
        return GridEncoding(**{**current, **fields})

    def with_axes(self, **fields: Any) -> GridEncoding:
        """Returns a copy with fields of the Encoding of every axis changed.

        Equivalent to, for base=(10000, 100)::

            grid.replace(axes=(grid.axes[0].replace(base=10000), grid.axes[1].replace(base=100)))

        Args:
            fields: fields of `Encoding` with their new values; a tuple has one value per axis, any other value applies
                to all axes. `frequencies`, which is itself a tuple, also applies to all axes.
        Returns:
            a new GridEncoding.
        Raises:
            TypeError, ValueError as the constructors, and for a tuple of another length.
        """
        return self.replace(
            axes=tuple(axis.replace(**of_axis(fields, k, self.ndim)) for k, axis in enumerate(self.axes))
        )

    def interpolated(
        self, lengths: Sequence[int], base_size: int | Sequence[int] | None = None, scale: Any = 1.0
    ) -> GridEncoding:
        """Returns a copy whose coordinates are interpolated, for images of another size than the model was trained on.

        The position_scale of each axis is multiplied by base_size / length / scale.

        Equivalent to, for each axis (diffusers)::

            coordinate = torch.arange(length) / (length / base_size) / scale

        Args:
            lengths: lengths of the axes of the new grid, such as (H, W).
            base_size: length of the axes that the model was trained with, one for each axis or one for all, above 0.
                None: `lengths`.
            scale: interpolation_scale of diffusers, one for each axis or one for all, above 0.
        Returns:
            a new GridEncoding.
        Raises:
            TypeError, ValueError for arguments of the wrong type, value or length.
        Accuracy:
            the new position_scale is the exact fraction.
        """
        factors = []
        for k, length in enumerate(lengths_of("lengths", lengths, self.ndim)):
            size = length if base_size is None else _one("base_size", base_size, k, self.ndim)
            given = {"lengths": length, "base_size": size, "scale": _one("scale", scale, k, self.ndim)}
            numbers = {name: Fraction(real(name, value)) for name, value in given.items()}
            for name, number in numbers.items():
                if number <= 0:
                    raise ValueError(f"{name}: expected numbers above 0, got {given[name]}; pass larger ones")
            factors.append(numbers["base_size"] / numbers["lengths"] / numbers["scale"])
        return self.with_axes(
            position_scale=tuple(Fraction(a.position_scale) * f for a, f in zip(self.axes, factors, strict=True))
        )

    def __repr__(self) -> str:
        return _shown(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("axes", "order", "arrangement", "dim")}


def lengths_of(name: str, value: Any, axes: int) -> tuple[int, ...]:
    """Checks the lengths of the axes of a grid and returns them as a tuple."""
    if not isinstance(value, (tuple, list)):
        expected = "1 int, the grid's length" if axes == 1 else f"{axes} ints, the grid's lengths"
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}; pass a tuple such as {(14,) * axes}")
    if len(value) != axes:
        raise ValueError(
            f"{name}: expected {axes} lengths, one per axis of the grid, got {tuple(value)}; pass one each"
        )
    return tuple(integer(name, item, 0, 2**63 - 1, "pass the number of grid points along each axis") for item in value)


def of_axis(fields: dict[str, Any], axis: int, number: int) -> dict[str, Any]:
    """The fields of the Encoding of one axis; in `fields` a tuple has one value per axis."""
    check_fields(fields)
    return {name: value if name == "frequencies" else _one(name, value, axis, number) for name, value in fields.items()}


def half(encoding: Encoding, second: bool) -> Encoding:
    """The sines or cosines of an encoding, in the order of its layout, as an encoding of layout "sin" or "cos"."""
    sines, cosines, exponent_dim = frequency.shape(encoding)
    cosine = second == (encoding.layout != "cos_sin")
    count, given = cosines if cosine else sines, encoding.frequencies
    if given is not None:
        if encoding.cos_frequency == "own":  # sin 0, cos 0, sin 1, ...; without channels that `odd` cuts off
            given = tuple(w for w, k in zip(given, frequency.indices(encoding), strict=True) if k % 2 == cosine)
        given = given[:count]
    layout = "cos" if cosine else "sin"
    return encoding.replace(dim=count, layout=layout, exponent_dim=exponent_dim, frequencies=given, odd="truncate")


def _first_channels(encoding: Encoding, count: int) -> tuple[Encoding, ...]:
    """Encodings whose concatenated channels are the first `count` channels of an encoding."""
    if count >= encoding.dim:
        return (encoding,)
    if count <= 0:
        return ()
    if encoding.layout in HALVES or encoding.layout == "interleaved":
        one_each = encoding.layout in HALVES or encoding.cos_frequency == "own"  # one frequency per channel
        exponent_dim, given = frequency.shape(encoding).exponent_dim, encoding.frequencies
        given = None if given is None else given[: count if one_each else (count + 1) // 2]
        odd = "round" if encoding.odd == "round" and given is None else "truncate"
        return (encoding.replace(dim=count, exponent_dim=exponent_dim, frequencies=given, odd=odd),)
    first, second = half(encoding, False), half(encoding, True)
    kept = min(count - first.dim, second.dim)
    return (*_first_channels(first, count), *(_first_channels(second, kept) if kept > 0 else ()))


def _axes(values: Any) -> tuple[Encoding, ...]:
    """Checks the argument `axes` and returns it as a tuple. Raises TypeError, ValueError."""
    if isinstance(values, Encoding) or not isinstance(values, Iterable) or hasattr(type(values), "dtype"):
        raise TypeError(
            f"axes: expected a sequence of Encoding, one per axis, got {type(values).__name__}; pass a tuple"
        )
    axes = tuple(values)
    for axis in axes:
        if not isinstance(axis, Encoding):
            raise TypeError(
                f"axes: expected a sequence of Encoding, got {type(axis).__name__} among them; pass Encoding(...)"
            )
    if not 1 <= len(axes) <= MAX_AXES:
        raise ValueError(f"axes: expected 1 to {MAX_AXES}, got {len(axes)}; pass one Encoding per axis")
    return axes


def _order(values: Iterable[int], number: int) -> tuple[int, ...]:
    """Checks that `order` is a permutation of the axes and returns it as a tuple. Raises TypeError, ValueError."""
    order = tuple(integer("order", value, 0, number - 1, "pass the indices of the axes") for value in values)
    if sorted(order) != list(range(number)):
        raise ValueError(f"order: expected each of 0 to {number - 1} once, got {order}; name every axis once")
    return order


def _one(name: str, value: Any, axis: int, number: int) -> Any:
    """The value of one axis: the entry of a tuple or list that has one value per axis; any other value unchanged."""
    if not isinstance(value, (tuple, list)):
        return value
    if len(value) != number:
        raise ValueError(
            f"{name}: expected one value, or {number}, one per axis, got {len(value)}; pass {number} of them"
        )
    return value[axis]


@constant_in_graph
def _shown(grid: GridEncoding) -> str:
    """`GridEncoding.__repr__`, which torch.vmap calls for the name of a layer."""
    axes = ", ".join(map(repr, grid.axes)) + ("," if grid.ndim == 1 else "")
    shown = [f"({axes})"]
    shown += [f"order={grid.order}"] if grid.order is not None else []
    shown += [f"arrangement={grid.arrangement!r}"] if grid.arrangement != "blocks" else []
    shown += [f"dim={grid.dim}"] if grid.dim != sum(axis.dim for axis in grid.axes) else []
    return f"GridEncoding({', '.join(shown)})"
