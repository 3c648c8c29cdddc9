"""`Encoding`: one sinusoidal positional encoding, written down as a small value.

It holds the formula only: no table, no tensor, no device. Everything numeric is derived from it, exactly, in
`encodings/frequency.py` and packed for the kernels in `encodings/plan.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

from .._dense import dense_tensor, described, is_scalar_array, shown
from ..runtime.handle import with_handle
from ..runtime.tracing import is_size
from . import frequency

# A float is taken at its exact value; Fraction and Decimal state values a float cannot.
Number: TypeAlias = float | Fraction | Decimal

LAYOUTS = ("interleaved", "sin_cos", "cos_sin", "sin", "cos")
HALVES = ("sin", "cos")  # layouts of one stream
ODD_POLICIES = ("truncate", "pad", "round", "raise")
COS_FREQUENCIES = ("shared", "own")
UNITS = ("radian", "half_turn", "turn")
ANGLES = ("exact", "float32_exp", "float32_pow")
MAX_DIM = 2**24  # far above any model; stops a sequence length or a vocabulary size passed as dim
MAX_BITS = 2**13  # of a Fraction or Decimal: 2,466 digits

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
        known = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in known:
                raise TypeError(unknown_field(name, known))
        return with_handle(super().__new__(cls))

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "dim", integer("dim", self.dim, 1, MAX_DIM, "pass the number of channels"))
        put(self, "start", integer("start", self.start, -(2**63), 2**63 - 1, "pass an int64 position"))
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
        return {name: value for name, value in self.__dict__.items() if name not in ("_hash", "_handle")}

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
        current = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        current.update(fields)
        return type(self)(current.pop("dim"), **current)

    def frequencies_radians(self) -> tuple[float, ...]:
        """Angular frequencies in radians per position, as float64.

        Returns: one per pair; for cos_frequency="own" one per channel in pair order (sin 0, cos 0, sin 1, ...).
        Accuracy: correctly rounded.
        """
        return frequency.radians(self)

    def timescales(self) -> tuple[float, ...]:
        """The denominators of the formula, 1 / frequencies_radians, as float64; inf where a frequency is 0.

        Equivalent to:
            torch.pow(base, torch.arange(0, dim, 2) / dim)
        Accuracy: correctly rounded.
        """
        return frequency.timescales(self)


def unknown_field(name: str, known: Iterable[str]) -> str:
    """The message for a field that Encoding lacks, with what to write instead."""
    if name in _HINTS:
        return f"{name}: expected a field of Encoding, got a name it lacks; use {_HINTS[name]}"
    close = difflib.get_close_matches(name, list(known), n=1)
    advice = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(known)}"
    return f"{name}: expected a field of Encoding, got a name it lacks; {advice}"


def needs_nothing(name: str) -> str:
    """What to write for an argument of other libraries that has no use here; "" for any other."""
    hint = _HINTS.get(name, "")
    return hint if hint.startswith("nothing:") else ""


def field_called(name: str) -> str:
    """The field of Encoding that other libraries call `name`; "" where there is none."""
    hint = _HINTS.get(name, "")
    return next((field.name for field in dataclasses.fields(Encoding) if hint.startswith(f"{field.name}=")), "")


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Checks that `value` is one of `allowed`."""
    listed = ", ".join(f'"{item}"' for item in allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected one of {listed}, got {type(value).__name__}; pass the name as a string")
    if value not in allowed:
        close = difflib.get_close_matches(value, allowed, n=1, cutoff=0.5)
        advice = f'did you mean "{close[0]}"?' if close else "pass one of these"
        raise ValueError(f'{name}: expected one of {listed}, got "{value}"; {advice}')


def integer(name: str, value: Any, low: int, high: int, advice: str) -> int:
    """`value` as an int in low..high."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected int, got {type(value).__name__}; {advice}")
    if is_size(value) and name not in ("dim", "d_model", "embedding_dim"):  # widths do not change
        raise TypeError(
            f"{name}: expected an int, got a tensor, say a size of another one, which torch.jit.trace would keep as it "
            f"is now; pass int({name}) if that is meant"
        )
    try:
        number = int(value.__index__())
    except (TypeError, RuntimeError) as error:  # tensors and arrays have it too, but only integer scalars answer
        kind, what = type(value).__name__, described(value)
        got = kind if kind == what else f"{kind}, {what}"
        raise TypeError(f"{name}: expected int, got {got}; {advice}") from error
    if not low <= number <= high:
        raise ValueError(f"{name}: expected an int in {low}..{high}, got {shown(number)}; {advice}")
    return number


def real(name: str, value: Any) -> float | Fraction:
    """`value` as a float where a float holds it exactly, otherwise as a Fraction."""
    if type(value) is float and math.isfinite(value):  # nearly every call
        return value + 0.0
    if hasattr(value, "item") and is_scalar_array(value):  # a NumPy scalar or a 0-d tensor
        if hasattr(value, "untyped_storage"):
            dense_tensor(name, value)
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, Decimal)):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__}; pass an int or a float")
    try:
        nearest = float(value)
    except (OverflowError, ValueError):  # ValueError: a signaling NaN
        nearest = math.inf
    if not math.isfinite(nearest):
        raise ValueError(f"{name}: expected a finite number, got {_number(value)}; pass one that float64 can hold")
    if not nearest:
        if value:  # seen before a Fraction is made of it: 1e-9999999 is one of ten million digits
            got = _number(value)
            raise ValueError(f"{name}: expected 0 or a number that float64 can hold, got {got}; pass 0 or a larger one")
        return 0.0
    if not isinstance(value, (numbers.Rational, Decimal)):
        return nearest
    if _bits(value) > MAX_BITS:
        raise ValueError(
            f"{name}: expected a number of at most {MAX_BITS} bits, got {_number(value)}; pass it with fewer digits"
        )
    exact = Fraction(value)
    return nearest if exact == Fraction(nearest) else exact


def _bits(value: numbers.Rational | Decimal) -> int:
    """About how many bits the numerator or the denominator of a finite number has, without a fraction of it."""
    if isinstance(value, Decimal):
        _, digits, exponent = value.as_tuple()
        return int(max(len(digits) + int(exponent), len(digits), -int(exponent)) * math.log2(10))
    return max(int(value.numerator).bit_length(), int(value.denominator).bit_length())


def _number(value: Any) -> str:
    """What to print of a number, however long it is."""
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        return f"a Fraction of {_bits(value)} bits"
    if isinstance(value, Decimal) and value.is_finite() and len(value.as_tuple().digits) > 100:
        return f"a Decimal of {len(value.as_tuple().digits)} digits"
    return shown(value) if isinstance(value, int) else repr(value)


def real_tuple(name: str, values: Any) -> tuple[float, ...]:
    """A one-dimensional sequence, array or tensor as a tuple of float."""
    if hasattr(values, "tolist") and hasattr(values, "dtype"):
        if hasattr(values, "untyped_storage"):
            dense_tensor(name, values)
        if len(values.shape) != 1 or values.shape[0] > MAX_DIM:
            raise TypeError(f"{name}: expected a sequence of numbers, got {described(values)}; pass one dimension")
        try:
            values = values.tolist()
        except RuntimeError as error:
            raise TypeError(f"{name}: expected a sequence of numbers, got {described(values)}; pass floats") from error
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected a sequence of numbers, got {type(values).__name__}; pass a tuple of float")
    return tuple(float(real(f"{name}[{index}]", value)) for index, value in enumerate(values))


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 8:
        return f"({', '.join(map(repr, value[:4]))}, ... {len(value)} in all)"
    return repr(value)
