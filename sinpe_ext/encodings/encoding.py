"""`Encoding`: an immutable description of a one-dimensional sinusoidal positional encoding.

It holds the parameters of the formula only: no table, no tensor, no device. `encodings/frequency.py` computes the exact
frequencies from it, and `encodings/plan.py` packs them for the kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from fractions import Fraction
from operator import index
from typing import Any, TypeAlias

from . import frequency
from .tracing import refuse_in_graph
from .values import MAX_DIM, choice, integer, real, real_tuple
from .values import start as checked_start

# Floats are used at their exact value; Fraction and Decimal express values that a float cannot hold.
Number: TypeAlias = float | Fraction | Decimal

LAYOUTS = ("interleaved", "sin_cos", "cos_sin", "sin", "cos")
HALVES = ("sin", "cos")  # layouts that have only sines or only cosines
ODD_POLICIES = ("truncate", "pad", "round", "raise")
COS_FREQUENCIES = ("shared", "own")
UNITS = ("radian", "half_turn", "turn")
ANGLES = ("exact", "float32_exp", "float32_pow")


@dataclass(frozen=True)
class Encoding:
    """A one-dimensional sinusoidal positional encoding: its frequencies and the order of its channels.

    Instances are immutable, hashable and compare by value.

    Equivalent to (layout="interleaved", even dim), in real arithmetic instead of float32::

        w = position_scale * base ** (-exponent_scale * torch.arange(dim // 2) / (exponent_dim / 2 - shift))
        pe[:, 0::2] = amplitude * torch.sin(positions[:, None] * w)
        pe[:, 1::2] = amplitude * torch.cos(positions[:, None] * w)

    Args:
        dim: number of channels, 1 to 2**24.
        base: base of the geometric sequence of frequencies, above 0. Other libraries call it theta, temperature or
            max_period.
        layout: order of the channels. "interleaved": sin, cos, sin, cos, ...; "sin_cos": all sin, then all cos;
            "cos_sin": all cos, then all sin; "sin" or "cos": only sines or only cosines, dim frequencies.
        shift: subtracted from exponent_dim / 2 in the exponent; 1 gives the frequencies of Tensor2Tensor.
        odd: how an odd dim is handled. "truncate": the last channel is a sin without its cos; "pad": the encoding of
            dim - 1 channels, then a channel of zeros; "round": the first dim channels of the encoding of dim + 1;
            "raise": ValueError. Without effect for layout "sin" and "cos".
        cos_frequency: "shared": cos has the frequency of the sin of its pair; "own": the exponent of the cos of pair i
            has i + 1/2 in place of i.
        exponent_scale: factor on the exponent.
        exponent_dim: the dim in the exponent. None: dim (dim - 1 for odd="pad", dim + 1 for odd="round", if dim is odd;
            2 * dim for layout "sin" and "cos").
        frequencies: explicit frequencies in `unit`, rounded to float64: one per pair, or for cos_frequency="own" one
            per channel (sin 0, cos 0, sin 1, cos 1, ...). base, shift, exponent_scale and exponent_dim are then unused.
        unit: unit of the frequencies: "radian", "half_turn" (pi radians) or "turn" (2 pi radians) per position.
        position_scale: factor on every position.
        start: position of the first row where positions are not given explicitly; an int. For rows at fractional
            positions: `sinpe.encode(torch.arange(n) + 0.5, encoding)`.
        amplitude: factor on every value.
        angle: "exact", or "float32_exp" or "float32_pow" to reproduce the float32 rounding errors of the naive
            formulas, for models that were trained with them.

    Raises:
        TypeError: a field of the wrong type, or an unknown field.
        ValueError: a field out of range, or an invalid combination of fields.

    Source:
        Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
    """

    dim: int
    _: KW_ONLY
    base: Number = 10000.0
    layout: str = "interleaved"
    shift: Number = 0.0
    odd: str = "truncate"
    cos_frequency: str = "shared"
    exponent_scale: Number = 1.0
    exponent_dim: Number | None = None
    frequencies: tuple[float, ...] | None = None
    unit: str = "radian"
    position_scale: Number = 1.0
    start: int = 0
    amplitude: float = 1.0
    angle: str = "exact"

    def __new__(cls, *args: Any, **fields: Any) -> Encoding:
        refuse_in_graph("Encoding")
        check_fields(fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if type(self.start).__name__ == "SymInt":  # in an export that is not strict
            raise TypeError(
                "start: expected an int, got a symbolic size of a graph, which an encoding would keep as a constant; "
                "pass it as start= of the call"
            )
        # operator.index makes an int of a SymInt.
        put(self, "dim", index(integer("dim", self.dim, 1, MAX_DIM, "pass the number of channels")))
        put(self, "start", index(checked_start(self.start)))
        for name in ("base", "shift", "exponent_scale", "position_scale"):
            put(self, name, real(name, getattr(self, name)))
        put(self, "amplitude", float(real("amplitude", self.amplitude)))
        choice("layout", self.layout, LAYOUTS)
        choice("odd", self.odd, ODD_POLICIES)
        choice("cos_frequency", self.cos_frequency, COS_FREQUENCIES)
        choice("unit", self.unit, UNITS)
        choice("angle", self.angle, ANGLES)
        if self.base <= 0:
            raise ValueError(f"base: expected a number above 0, got {self.base!r}; most models have 10000")
        if self.odd == "raise" and self.dim % 2 and self.layout not in HALVES:
            raise ValueError(
                f'dim: expected an even number with odd="raise", got {self.dim}; '
                'pass an even dim, or odd="truncate", "pad" or "round"'
            )
        if self.exponent_dim is not None:
            put(self, "exponent_dim", real("exponent_dim", self.exponent_dim))
            if self.exponent_dim <= 0:
                raise ValueError(f"exponent_dim: expected a number above 0, got {self.exponent_dim!r}; usually dim")
        if self.frequencies is not None:
            put(self, "frequencies", real_tuple("frequencies", self.frequencies))
        frequency.check(self)

    def __hash__(self) -> int:
        # Cached: the encoding is the key of the plan cache, and `frequencies` may be long.
        value: int | None = self.__dict__.get("_hash")
        if value is None:
            value = hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))
            object.__setattr__(self, "_hash", value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        # String hashes differ between processes, so the cached hash must not be pickled.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    def __repr__(self) -> str:
        shown = [repr(self.dim)]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={_short(value)}")
        return f"Encoding({', '.join(shown)})"

    def replace(self, **fields: Any) -> Encoding:
        """Returns a copy with some fields changed, as dataclasses.replace does.

        Example:
            >>> sinpe.Encoding(512).replace(base=500000, start=1)
            Encoding(512, base=500000.0, start=1)

        Args:
            fields: fields of `Encoding` with their new values, dim included.
        Returns:
            a new Encoding; all fields are checked again.
        Raises:
            TypeError, ValueError as the constructor.
        """
        current = {name: getattr(self, name) for name in FIELDS}
        current.update(fields)
        return type(self)(current.pop("dim"), **current)

    def frequencies_radians(self) -> tuple[float, ...]:
        """Returns the angular frequencies in radians per position, position_scale included, as float64.

        Returns:
            one per pair; for cos_frequency="own" one per channel in pair order (sin 0, cos 0, sin 1, ...).
        Accuracy:
            correctly rounded.
        """
        return frequency.radians(self)

    def timescales(self) -> tuple[float, ...]:
        """Returns the timescales, 1 / frequencies_radians, as float64; infinite where a frequency is 0.

        Equivalent to (default fields)::

            torch.pow(base, torch.arange(0, dim, 2) / dim)

        Returns:
            one per pair; for cos_frequency="own" one per channel in pair order (sin 0, cos 0, sin 1, ...).
        Accuracy:
            correctly rounded.
        """
        return frequency.timescales(self)


FIELDS = tuple(field.name for field in dataclasses.fields(Encoding))


def check_fields(names: Iterable[str]) -> None:
    """Raises TypeError for a name that is not a field of Encoding, listing those that are."""
    for name in names:
        if name not in FIELDS:
            raise TypeError(f"{name}: expected a field of Encoding, which are {', '.join(FIELDS)}; pass one of these")


def _short(value: Any) -> str:
    """The repr of a field; of a long tuple only its first items and its length."""
    if isinstance(value, tuple) and len(value) > 8:
        return f"({', '.join(map(repr, value[:4]))}, ... {len(value)} in all)"
    return repr(value)
