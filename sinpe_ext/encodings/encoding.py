"""`Encoding`: one sinusoidal positional encoding, written down as a small value.

It holds the formula only: no table, no tensor, no device. Everything numeric is derived from it, exactly, in
`encodings/frequency.py` and packed for the kernels in `encodings/plan.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from fractions import Fraction
from operator import index
from typing import Any, TypeAlias

from ..runtime.handle import with_handle
from ..runtime.tracing import constant_in_graph, is_in_graph
from . import frequency
from .values import MAX_DIM, choice, integer, misspelled, real, real_tuple

# A float is taken at its exact value; Fraction and Decimal state values a float cannot.
Number: TypeAlias = float | Fraction | Decimal

LAYOUTS = ("interleaved", "sin_cos", "cos_sin", "sin", "cos")
HALVES = ("sin", "cos")  # layouts of one stream
ODD_POLICIES = ("truncate", "pad", "round", "raise")
COS_FREQUENCIES = ("shared", "own")
UNITS = ("radian", "half_turn", "turn")
ANGLES = ("exact", "float32_exp", "float32_pow")

# What other libraries call these fields.
_HINTS = {
    "temperature": "base=...",
    "theta": "base=...",
    "max_period": "base=...",
    "max_timescale": "base=...",
    "n": "base=...",
    "downscale_freq_shift": "shift=...",
    "scale": "position_scale=... (it multiplies the position); to scale the result, amplitude=...",
    **dict.fromkeys(
        ("max_len", "max_length", "max_seq_len", "max_position_embeddings"),
        "nothing: no table is stored, every position is valid",
    ),
    "flip_sin_to_cos": 'layout="cos_sin"',
    "d_model": "dim, the first argument",
    "embedding_dim": "dim, the first argument",
    "padding_idx": "start=padding_idx + 1 (fairseq's rule)",
    "offset": "start=...",
    "dropout": "the dropout of add, embed or the module; an encoding has none",
}


@dataclass(frozen=True)
class Encoding:
    """A one-dimensional sinusoidal positional encoding: which frequencies, in which channels.

    Equivalent to (interleaved, even dim):
        w = position_scale * base ** (-exponent_scale * torch.arange(dim // 2) / (exponent_dim / 2 - shift))
        pe[:, 0::2] = amplitude * torch.sin(positions[:, None] * w)
        pe[:, 1::2] = amplitude * torch.cos(positions[:, None] * w)
    with real arithmetic in place of float32.

    Args:
        dim: number of channels, 1 to 2**24.
        base: ratio between the longest and the shortest timescale, above 0.
        layout: "interleaved" (sin, cos, sin, cos), "sin_cos" (all sin, then all cos), "cos_sin"; or "sin" or "cos", the
            channels of that half alone, one frequency each, for which an odd dim is nothing special.
        shift: subtracted from exponent_dim / 2; 1 gives the tensor2tensor ladder.
        odd: what an odd dim does. "truncate": the last channel is a sin; "pad": the ladder of dim - 1, then a zero
            channel; "round": the ladder of dim + 1, last channel cut; "raise": ValueError.
        cos_frequency: "shared" with the sin of the pair, or "own": exponent index i + 1/2 in place of i.
        exponent_scale: factor on the exponent.
        exponent_dim: the dim in the exponent; default dim (dim - 1 for odd="pad", dim + 1 for odd="round"; 2 * dim for
            layout "sin" and "cos").
        frequencies: the frequencies outright, in `unit`, as float64: one per pair, or for cos_frequency="own" one per
            channel (sin 0, cos 0, sin 1, cos 1, ...). base, shift, exponent_scale and exponent_dim are then unused.
        unit: what a frequency of 1 means per position: "radian", "half_turn" (pi) or "turn" (2 pi).
        position_scale: factor on every position.
        start: position of the first row where positions are implicit.
        amplitude: factor on every value.
        angle: "exact", or "float32_exp" / "float32_pow": the usual float32 rounding, for trained checkpoints.

    Raises:
        TypeError: a field of the wrong type, or an unknown field.
        ValueError: a field out of range, or a combination without meaning.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.
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
        # dataclass's own message for an unknown field names neither the close match nor what peers call it.
        if len(args) > 1:
            raise TypeError(f"Encoding: expected one positional argument (dim), got {len(args)}; name the other fields")
        for name in fields:
            if name not in FIELDS:
                raise TypeError(unknown_field(name, FIELDS))
        made = with_handle(super().__new__(cls))
        if getattr(made, "_in_graph", False):
            _refuse_decimals(fields)
        return made

    def __post_init__(self) -> None:
        put = object.__setattr__
        # index: a symbol of a graph becomes a number.
        put(self, "dim", index(integer("dim", self.dim, 1, MAX_DIM, "pass the number of channels")))
        put(self, "start", index(integer("start", self.start, -(2**63), 2**63 - 1, "pass an int64 position")))
        for name in ("base", "shift", "exponent_scale", "position_scale"):
            put(self, name, real(name, getattr(self, name)))
        put(self, "amplitude", float(real("amplitude", self.amplitude)))
        choice("layout", self.layout, LAYOUTS)
        choice("odd", self.odd, ODD_POLICIES)
        choice("cos_frequency", self.cos_frequency, COS_FREQUENCIES)
        choice("unit", self.unit, UNITS)
        choice("angle", self.angle, ANGLES)
        if self.base <= 0:
            raise ValueError(f"base: expected a number above 0, got {self.base!r}; the usual one is 10000")
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
        if not getattr(self, "_in_graph", False):  # it is made again outside
            frequency.check(self)

    def __hash__(self) -> int:
        # Kept: the hash is the key of the plan cache, and `frequencies` may be long.
        value: int | None = self.__dict__.get("_hash")
        if value is None:
            value = hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))
            object.__setattr__(self, "_hash", value)
        return value

    def __getstate__(self) -> dict[str, Any]:
        # String hashes differ between processes, so the kept hash must not travel.
        return {name: value for name, value in self.__dict__.items() if name not in ("_hash", "_handle", "_in_graph")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        shown = [repr(self.dim)]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={_short(value)}")
        return f"Encoding({', '.join(shown)})"

    def replace(self, **fields: Any) -> Encoding:
        """The same encoding with some fields changed, validated again."""
        current = {name: getattr(self, name) for name in FIELDS}
        current.update(fields)
        return type(self)(current.pop("dim"), **current)

    def frequencies_radians(self) -> tuple[float, ...]:
        """Angular frequencies in radians per position, as float64.

        Returns: one per pair; for cos_frequency="own" one per channel in pair order (sin 0, cos 0, sin 1, ...).
        Accuracy: correctly rounded.
        """
        if is_in_graph():  # a compiler cannot trace the exact arithmetic
            return _radians(fields_of(self))
        return frequency.radians(self)

    def timescales(self) -> tuple[float, ...]:
        """The denominators of the formula, 1 / frequencies_radians, as float64; inf where a frequency is 0.

        Equivalent to:
            torch.pow(base, torch.arange(0, dim, 2) / dim)
        Accuracy: correctly rounded.
        """
        if is_in_graph():  # a compiler cannot trace the exact arithmetic
            return _timescales(fields_of(self))
        return frequency.timescales(self)


FIELDS = tuple(field.name for field in dataclasses.fields(Encoding))  # which a compiler cannot ask of a class


def fields_of(encoding: Encoding) -> tuple[Any, ...]:
    """An Encoding as a compiler can keep it: the class's name and the fields, of a Fraction its two integers."""
    values = [getattr(encoding, name) for name in FIELDS]
    return ("Encoding", *[("/", v.numerator, v.denominator) if isinstance(v, Fraction) else v for v in values])


def of_fields(given: tuple[Any, ...]) -> Encoding:
    """The Encoding that has these fields."""
    values: list[Any] = [Fraction(*v[1:]) if isinstance(v, tuple) and v[:1] == ("/",) else v for v in given[1:]]
    return Encoding(values[0], **dict(zip(FIELDS[1:], values[1:], strict=True)))


_radians = constant_in_graph(lambda given: frequency.radians(of_fields(given)))
_timescales = constant_in_graph(lambda given: frequency.timescales(of_fields(given)))


def _refuse_decimals(fields: dict[str, Any]) -> None:
    """Of an encoding that is made while a graph is traced, whose fields have to be constants of it."""
    for name, value in fields.items():
        if isinstance(value, Decimal):
            raise TypeError(
                f"{name}: expected a float, an int or a Fraction in an Encoding that is made inside of a graph, got "
                "Decimal; pass a Fraction, or make the Encoding outside of the compiled function"
            )


def unknown_field(name: str, known: Iterable[str]) -> str:
    """The message for a field that Encoding lacks, with what to write instead."""
    if name in _HINTS:
        return f"{name}: expected a field of Encoding, got a name it lacks; use {_HINTS[name]}"
    close = misspelled(name, tuple(known))
    advice = f"did you mean {close}?" if close else f"the fields are {', '.join(known)}"
    return f"{name}: expected a field of Encoding, got a name it lacks; {advice}"


def needs_nothing(name: str) -> str:
    """What to write for an argument of other libraries that has no use here; "" for any other."""
    hint = _HINTS.get(name, "")
    return hint if hint.startswith("nothing:") else ""


def field_called(name: str) -> str:
    """The field of Encoding that other libraries call `name`; "" where there is none."""
    hint = _HINTS.get(name, "")
    return next((field.name for field in dataclasses.fields(Encoding) if hint.startswith(f"{field.name}=")), "")


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 8:
        return f"({', '.join(map(repr, value[:4]))}, ... {len(value)} in all)"
    return repr(value)
