"""Argument checks for numbers, names and tensors. Imports torch only when a tensor is checked."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .tracing import refuse_jit_trace

if TYPE_CHECKING:
    import torch

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
DROP_UNIT = 65536  # dropout probabilities are multiples of 1 / DROP_UNIT
MAX_DIM = 2**24  # far above any model; catches a sequence length or a vocabulary size passed as dim
MAX_BITS = 2**11  # of the numerator and denominator of a Fraction: any float64 times a ratio of small integers


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Checks that `value` is one of the strings `allowed`. Raises TypeError, ValueError."""
    listed = ", ".join(f'"{item}"' for item in allowed)
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected one of {listed}, got {type(value).__name__}; pass the name as a string")
    if value not in allowed:
        raise ValueError(f'{name}: expected one of {listed}, got "{value}"; pass one of these')


def integer(name: str, value: Any, low: int, high: int, advice: str) -> int:
    """Checks that `value` is an integer in low..high and returns it as an int. Raises TypeError, ValueError."""
    if type(value) is int and low <= value <= high:  # the fast path, also taken by a SymInt under torch.compile
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected int, got {type(value).__name__}; {advice}")
    if hasattr(value, "untyped_storage"):  # the size of a tensor, under torch.jit.trace
        refuse_jit_trace()
    try:
        number = int(value.__index__())
    except (TypeError, RuntimeError) as error:  # tensors and arrays have __index__, but only integer scalars support it
        kind, what = type(value).__name__, described(value)
        got = kind if kind == what else f"{kind}, {what}"
        raise TypeError(f"{name}: expected int, got {got}; {advice}") from error
    if not low <= number <= high:
        raise ValueError(f"{name}: expected an int in {low}..{high}, got {shown(number)}; {advice}")
    return number


def real(name: str, value: Any) -> float | Fraction:
    """Checks that `value` is a finite real number; returns a float if that is exact, otherwise a Fraction."""
    if type(value) is float and math.isfinite(value):  # the fast path
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
    if not math.isfinite(nearest) or (value and not nearest):
        raise ValueError(f"{name}: expected a finite number that float64 can hold, got {shown(value)}; pass another")
    if not nearest or not isinstance(value, (numbers.Rational, Decimal)):
        return nearest + 0.0
    exact = Fraction(value)
    if exact == nearest:
        return nearest
    bits = max(exact.numerator.bit_length(), exact.denominator.bit_length())
    if bits > MAX_BITS:
        raise ValueError(f"{name}: expected a number of at most {MAX_BITS} bits, got one of {bits}; round it")
    return exact


def real_tuple(name: str, values: Any) -> tuple[float, ...]:
    """Checks a one-dimensional sequence, array or tensor of real numbers and returns a tuple of float."""
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


def array_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, array or NumPy scalar; None for anything else. A nested tensor raises RuntimeError."""
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and hasattr(value, "dtype") else None


def is_scalar_array(value: Any) -> bool:
    """Whether a value is a NumPy scalar or a tensor or array of no dimensions."""
    try:
        return array_shape(value) == ()
    except RuntimeError:
        return False


def described(value: Any) -> str:
    """Shape and dtype of a tensor or array, the type of anything else."""
    try:
        shape = array_shape(value)
    except RuntimeError:
        return "a nested tensor"
    return type(value).__name__ if shape is None else f"{value.dtype} of shape {shape}"


def shown(value: Any) -> str:
    """A value as text for an error message: numbers, strings and tuples by their repr, anything else by its type."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    plain = value is None or isinstance(value, (int, float, str, tuple))
    return repr(value) if plain else described(value)


def flag(name: str, value: Any) -> bool:
    """Checks that `value` is a bool, a NumPy bool, or the int 0 or 1, and returns a bool. Raises TypeError."""
    if isinstance(value, bool):
        return value
    if (type(value) is int and value in (0, 1)) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}: expected bool, got {described(value)}; pass True or False")


def dense_tensor(name: str, value: Any, *, may_be_dtensor: bool = False) -> None:
    """Checks that `value` is an ordinary strided tensor whose storage holds all its elements. Raises TypeError."""
    strided_tensor(name, value, may_be_dtensor=may_be_dtensor)
    check_storage_bounds(name, value)


def strided_tensor(name: str, value: Any, *, may_be_dtensor: bool = False) -> None:
    """Checks that `value` is an ordinary strided tensor, without a check of its storage. Raises TypeError."""
    import torch

    if not isinstance(value, torch.Tensor):
        held = isinstance(value, torch.nn.Module) and isinstance(getattr(value, "weight", None), torch.Tensor)
        advice = "pass its .weight" if held else "pass torch.as_tensor(...)"
        if isinstance(value, torch.fx.Proxy):
            advice = "torch.fx.symbolic_trace records layers, not functions: use a layer, or torch.export"
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}; {advice}")
    if type(value) is not torch.Tensor:
        if not may_be_dtensor and is_dtensor(value):
            raise TypeError(
                f"{name}: expected an ordinary tensor, as the data is, got a DTensor; pass the data as a DTensor of "
                f"the same mesh, or {name}.full_tensor()"
            )
        if type(value).__name__ == "MaskedTensor":
            raise TypeError(
                f"{name}: expected a dense strided tensor, got a MaskedTensor; pass its get_data(), and its mask as "
                "padding_mask"
            )
        if type(value).__name__ == "LocalTensor":
            raise TypeError(
                f"{name}: expected a tensor of one process, got a LocalTensor, torch's simulation of many ranks in "
                "one; run the ranks as processes, or leave its mode"
            )
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "a nested tensor" if value.is_nested else value.dtype if value.is_quantized else f"layout {value.layout}"
        jagged = value.is_nested and value.layout == torch.strided and name in ("x", "ids", "positions")
        raise TypeError(
            f"{name}: expected a dense strided tensor, got {kind}; convert it to a dense one first"
            f"{', or make it with layout=torch.jagged' if jagged else ''}"
        )


def check_storage_bounds(name: str, value: torch.Tensor) -> None:
    """Raises RuntimeError if the storage of a tensor was resized and no longer holds all its elements.

    torch does not check this itself.
    """
    import torch

    if torch.compiler.is_compiling() or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return
    try:
        there = value.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # tensors without a storage, such as those of torch.func
        return
    if type(there) is not int or torch._is_functional_tensor(value):  # type: ignore[attr-defined]
        return
    needed: Any = value.nbytes
    if type(needed) is int and value.is_contiguous() and not value.storage_offset() and needed <= there:
        return
    reach: Any = value.numel()
    if type(reach) is not int or not reach:  # symbolic sizes
        return
    if not value.is_contiguous():
        reach = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    needed = (value.storage_offset() + reach) * value.element_size()
    if needed > there:
        raise RuntimeError(
            f"{name}: expected a tensor whose memory holds its elements, got {there} bytes where {needed} are needed; "
            "it was freed or resized, use it where it is whole"
        )


def is_dtensor(value: Any) -> bool:
    """Whether a value is a DTensor; does not import torch.distributed."""
    # While another thread imports the module, it exists without DTensor; no DTensor can exist then either.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def length(value: Any, name: str = "length") -> int:
    """Checks a number of rows; returns an int."""
    is_shape = isinstance(value, (tuple, list)) and name == "length"
    advice = "pass the number of rows" + (", or a GridEncoding for a shape" if is_shape else "")
    return integer(name, value, 0, INT64_MAX, advice)


def probability(name: str, value: Any, hint: str = "pass a probability") -> float:
    """Checks a dropout probability; `hint` is the advice for a number above 1."""
    number = factor(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected 0 to 1, got {value}; {hint if number > 1.0 else 'pass a probability'}")
    return number


def drop_threshold(value: Any) -> int:
    """A dropout probability as drop_threshold, in units of 1 / 65536: 0 only for exactly 0, 65536 only for 1."""
    number = probability("dropout", value)
    return min(max(round(number * DROP_UNIT), 1), DROP_UNIT - 1) if 0.0 < number < 1.0 else int(number) * DROP_UNIT


def float32_holds(first: float, rows: int = 0) -> bool:
    """Whether torch.arange(rows) + first, whose sums are float32, is exact: at most 8 binary places below 2^15."""
    return abs(first) + rows < 2**15 and (first * 256).is_integer()


def start(value: Any) -> int:
    """Checks `start`; returns an int."""
    advice = "pass the int64 position of the first row"
    is_real = isinstance(value, numbers.Real)
    number = float(value) if is_real and abs(value) < 2**63 else 0.0  # 0 for NaN
    if not number.is_integer():
        more = f"{'' if float32_holds(number) else '.double()'} {'-' if number < 0 else '+'} {abs(number)}"
        advice = (
            f"for fractional positions, pass sinpe.encode(torch.arange(n){more}, encoding), or "
            f"positions=torch.arange(n){more} to add; for a grid, positions.grid(shape, encoding){more}"
        )
    return integer("start", value, INT64_MIN, INT64_MAX, advice)


def one_per_axis(value: Any, axes: int) -> list[Any]:
    """`start` of a grid as a list with one item per axis; a single value is used for every axis."""
    items = list(value) if isinstance(value, (tuple, list)) else [value] * axes
    if len(items) != axes:
        raise ValueError(
            f"start: expected an int or {axes} of them, one per axis of the grid, got {len(items)}; pass one each"
        )
    return items


def position_range(first: int, rows: int) -> None:
    """Checks that the positions first .. first + rows - 1 fit int64; `first` is encoding.start + start."""
    last = first + max(rows, 1) - 1
    if first < INT64_MIN or last > INT64_MAX:
        raise ValueError(
            f"start: expected every position (encoding.start + start + row) within int64, got {first} to {last}; "
            "lower start or length"
        )


def factor(name: str, value: Any) -> float:
    """Checks `scale` or `alpha`; returns a float, which may be inf or NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        advice = f"{name}.item()" if is_scalar_array(value) else "a number"
        raise TypeError(f"{name}: expected a float, got {described(value)}; pass {advice}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name}: expected a number that float64 can hold, got {shown(value)}; pass a smaller one"
        ) from None


def addressable(name: str, rows: int, width: int, size: int) -> None:
    """Raises ValueError if `rows` rows of `width` elements of `size` bytes exceed the int64 range in bytes."""
    if rows > INT64_MAX // (max(width, 1) * size):
        raise ValueError(
            f"{name}: expected at most {INT64_MAX // (max(width, 1) * size)} rows of {width} channels, what memory can "
            f"address, got {rows}; ask for fewer"
        )
