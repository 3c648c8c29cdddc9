"""Argument checks shared by the functions, the layers and NumPy. Imports neither torch nor NumPy until one is used."""

from __future__ import annotations

import numbers
import operator
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..encodings import in_graph
from ..encodings.catalogue import convention
from ..encodings.catalogue import is_grid as grid_name
from ..encodings.columns import columns
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import (
    MAX_DIM,
    check_storage_bounds,
    dense_tensor,
    described,
    flag,
    integer,
    is_scalar_array,
    shown,
)
from ..runtime.tracing import constant_in_graph
from . import tensors
from .tensors import INT64_MAX, addressable, device, float_dtype, operand

if TYPE_CHECKING:
    import torch

__all__ = ["INT64_MAX", "addressable", "check_storage_bounds", "dense_tensor", "described", "device", "flag"]
__all__ += ["float_dtype", "shown"]

DROP_UNIT = 65536  # dropout probabilities are multiples of 1 / DROP_UNIT
INT64_MIN = -(2**63)
MAX_RANK = 16  # the kernels' maximum number of dimensions, csrc/include/sinpe/sinpe.h


class Target(NamedTuple):
    """The argument that the others must match in shape and device: x of `add`, ids of `embed`."""

    name: str
    shape: tuple[int, ...]
    device: torch.device
    batch: int
    rows: int


_encoding_of_dim = lru_cache(maxsize=64)(Encoding)
_convention: Callable[[str, int], Any] = lru_cache(maxsize=64)(convention)


NO_SCRIPT = (
    "torch.jit.script cannot read sinpe_ext's functions and layers, whose arguments are keywords with defaults; use "
    "torch.compile or torch.export"
)


def length(value: Any, name: str = "length") -> int:
    """Checks a number of rows; returns an int."""
    return integer(name, value, 0, INT64_MAX, "pass the number of rows")


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


def start(value: Any) -> int:
    """Checks `start`; returns an int."""
    return integer("start", value, INT64_MIN, INT64_MAX, "pass the int64 position of the first row")


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


@constant_in_graph
def encoding(value: Any, dim: int | None = None, piece: int | tuple[int, int] | None = None) -> Encoding:
    """An Encoding from an `encoding` argument: an Encoding or a dim; if `dim` is given also a name or None.

    Args:
        piece: if `value` is a grid, the index of one of its pieces, or -1 for the encoding that all its axes share. If
            it is not a grid, (first channel, number of channels) of a shard of the data, `dim` being the number of
            channels of the whole.
    """
    if isinstance(value, tuple):
        value = in_graph.from_constant(value)
    if isinstance(piece, tuple):
        return columns(encoding(value, dim), *piece)
    if isinstance(value, Encoding):
        return value
    if piece is not None:
        found = grid(value, dim)
        return found.axes[0] if piece < 0 else found.pieces[piece].encoding
    if is_grid(value):
        name = f'the grid "{value}"' if isinstance(value, str) else f"a GridEncoding of {value.ndim} axes"
        raise TypeError(
            f"encoding: expected an Encoding, a convention's name or an int (the dim), got {name}; here only "
            "one-dimensional encodings are taken, use table, encode or add for grids"
        )
    if value is None and dim is not None:
        return _encoding_of_dim(max(dim, 1))
    if isinstance(value, str):
        if dim is None:
            raise TypeError(
                f'encoding: expected an Encoding or an int (the dim), got the name "{value}" and no dim to go with it; '
                f'pass dim=, or convention("{value}", dim)'
            )
        return _convention(value, max(dim, 1))
    if isinstance(value, int) and not isinstance(value, bool):
        return _encoding_of_dim(value)
    scalar = is_scalar_array(value) or not hasattr(type(value), "shape")
    if hasattr(value, "__index__") and not isinstance(value, bool) and scalar:
        return Encoding(value)
    named = "a name with dim=" if dim is None else "a convention's name"
    raise TypeError(
        f"encoding: expected an Encoding, {named} or an int (the dim), got {type(value).__name__}; pass Encoding(dim) "
        'or convention("paper", dim)'
    )


def dim_beside(encoding: Any, dim: Any) -> int | None:
    """Checks `dim`, which may be given with the name of a convention or alone; None stays None."""
    if dim is None:
        return None
    if encoding is not None and not isinstance(encoding, str):
        raise TypeError(
            f"dim: expected None beside {described(encoding)}, which has its own, got {shown(dim)}; leave it out, or "
            'pass a name for encoding, as in table(4096, "t2t", dim=512)'
        )
    # operator.index turns a symbolic int of a graph into a number.
    return operator.index(integer("dim", dim, 1, MAX_DIM, "pass the number of channels"))


_is_grid_name = constant_in_graph(lambda name: grid_name(name))


def is_grid(value: Any) -> bool:
    """Whether an `encoding` argument is a GridEncoding or the name of a grid convention."""
    if isinstance(value, tuple):
        return in_graph.is_grid(value)
    return isinstance(value, GridEncoding) or (isinstance(value, str) and _is_grid_name(value))


@constant_in_graph
def grid(value: Any, dim: int | None) -> GridEncoding:
    """A GridEncoding from an `encoding` argument; a one-dimensional encoding becomes a grid of one axis."""
    if isinstance(value, tuple):
        value = in_graph.from_constant(value)
    if isinstance(value, GridEncoding):
        return value
    if not is_grid(value):
        return GridEncoding((encoding(value, dim),))
    if dim is None:
        raise TypeError(
            f'encoding: expected a GridEncoding, got the name "{value}" and no dim to go with it; pass dim=, '
            f'or convention("{value}", dim)'
        )
    return _convention(value, max(dim, 1))


@constant_in_graph
def grid_dim_and_starts(value: Any, dim: int | None) -> tuple[int, tuple[int, ...]]:
    """The number of channels of a grid and the start of each axis, as plain ints that a graph can hold."""
    found = grid(value, dim)
    return found.dim, tuple(axis.start for axis in found.axes)


def table_dtype(dtype: Any, device: Any, out: Any) -> torch.dtype:
    """The dtype of the result of `table`; checks that `out`, if given, agrees with dtype and device."""
    import torch

    if dtype is not None:
        float_dtype("dtype", dtype)
    if out is None:
        return torch.float32 if dtype is None else dtype
    dense_tensor("out", out)
    float_dtype("out", out.dtype)
    if dtype is not None and dtype != out.dtype:
        raise RuntimeError(
            f"dtype: expected {out.dtype}, that of out, got {dtype}; leave dtype out, or pass an out of that dtype"
        )
    if device is not None:
        wanted = tensors.device(device)
        same = wanted.type == "cpu" or wanted.index in (None, out.device.index)
        if wanted.type != out.device.type or not same:
            raise RuntimeError(
                f"device: expected {out.device}, that of out, got {wanted}; leave device out, or pass an out on that "
                "device"
            )
    return out.dtype


def positions(value: Any, *, allow_16bit: bool | None = None) -> torch.Tensor:
    """Checks positions and returns them as int64, float32 or float64; narrower integers are widened first.

    Args:
        allow_16bit: whether to accept 16-bit floats; None if the calling function has no such argument.
    """
    import torch

    dense_tensor("positions", value)
    dtype = value.dtype
    if dtype in (torch.int64, torch.float32, torch.float64):
        return value
    if dtype in (torch.float16, torch.bfloat16):
        if allow_16bit is not None and flag("allow_16bit", allow_16bit):
            return value.float()
        largest = 256 if dtype == torch.bfloat16 else 2048
        other = "" if allow_16bit is None else ", or allow_16bit=True to take the stored values as they are"
        if "torch.distributed.fsdp" in sys.modules:
            other += "; fully_shard casts float inputs so, unless MixedPrecisionPolicy has cast_forward_inputs=False"
        raise TypeError(
            f"positions: expected an integer dtype, float32 or float64, got {dtype}; {str(dtype)[6:]} cannot hold "
            f"integers above {largest} exactly, pass int64 positions{other}"
        )
    if dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32):
        return value.long()
    if dtype == torch.uint64:
        wide = value.view(torch.int64)
        from ..runtime.observers import should_check_values

        if should_check_values(value) and bool((wide < 0).any()):
            raise ValueError("positions: expected values up to 2**63 - 1, got larger uint64 ones; pass int64 positions")
        return wide
    raise TypeError(f"positions: expected an integer dtype or float32/float64, got {dtype}; pass int64 positions")


def same_device(name: str, value: torch.Tensor, of: Target | torch.Tensor) -> None:
    """Raises RuntimeError if a tensor is not on the device of the target."""
    if value.device != of.device:
        other = of.name if isinstance(of, Target) else "x"
        raise RuntimeError(
            f"{name}: expected the device of {other}, {of.device}, got {value.device}; move it with "
            f"{name}.to({other}.device)"
        )


def axis(name: str, value: Any, rank: int, of: str = "x") -> int:
    """Checks the index of a dimension; returns it as a non-negative int."""
    index = integer(name, value, INT64_MIN, INT64_MAX, f"pass the index of a dimension of {of}")
    if not -rank <= index < rank:
        raise IndexError(
            f"{name}: expected {-rank} to {rank - 1} for {of} of {rank} dimensions, got {index}; pass the index of one"
        )
    return index % rank


def two_dimensions(rows_at: int, channels_at: int, seq_dim: Any, channel_dim: Any) -> None:
    """Raises ValueError if the sequence and the channels are the same dimension of x."""
    if rows_at == channels_at:
        raise ValueError(
            f"seq_dim, channel_dim: expected two dimensions of x, got {seq_dim} and {channel_dim}, which are one; "
            "pass different ones"
        )


def check_x(x: Any) -> None:
    """Checks x of `add`: a dense floating-point tensor with at least two dimensions."""
    import torch

    operand("x", x)
    if x.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raise TypeError(
            f"x: expected torch.float32, float64, bfloat16 or float16, got {x.dtype}; convert it, say with x.float()"
        )
    if not 2 <= x.dim() <= MAX_RANK:
        raise ValueError(
            f"x: expected 2 to {MAX_RANK} dimensions, (sequence, channels) or (batch, ..., sequence, channels), got "
            f"shape {tuple(x.shape)}; unsqueeze or flatten it"
        )


def channels(x: torch.Tensor, width: int, dim: int) -> None:
    """Raises ValueError if x has another number of channels, `width`, than the encoding, `dim`."""
    if width != dim:
        raise ValueError(
            f"x: expected {dim} channels, those of the encoding, got {width} in shape {tuple(x.shape)}; "
            "pass an encoding of that dim, or channel_dim"
        )


def row_tensor(name: str, value: torch.Tensor, of: Target) -> torch.Tensor:
    """Checks that a tensor has shape (S,) or (B, S); returns it as a view of shape (1 or B, S)."""
    view = value.unsqueeze(0) if value.dim() == 1 else value
    shape = value.shape
    if view.dim() != 2 or shape[-1] != of.rows or (len(shape) == 2 and shape[0] not in (1, of.batch)):
        raise ValueError(
            f"{name}: expected shape ({of.rows},) or ({of.batch}, {of.rows}), (sequence) or (batch, sequence) of "
            f"{of.name}, got {tuple(shape)} for {of.name} of shape {tuple(of.shape)}; it is batch-first whatever "
            "seq_dim is"
        )
    return view


def bool_mask(value: Any) -> None:
    """Checks that `padding_mask`, of any shape, is a dense bool tensor."""
    import torch

    dense_tensor("padding_mask", value)
    if value.dtype != torch.bool:
        raise TypeError(
            f"padding_mask: expected bool, True = padding, got {value.dtype}; pass attention_mask == 0 for a mask that "
            "is 1 on tokens"
        )


def refuse_gradient(out: torch.Tensor) -> None:
    """Raises RuntimeError if `out` of `table` requires grad."""
    import torch

    if out.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("out: expected a tensor without gradient, got one that requires it; pass out.detach()")


def padding_mask(value: Any, of: Target) -> torch.Tensor:
    """Checks a bool mask, True = padding; returns it as a view of shape (1 or B, S)."""
    bool_mask(value)
    same_device("padding_mask", value, of)
    return row_tensor("padding_mask", value, of)


def start_tensor(value: torch.Tensor, of: Target, first: int) -> torch.Tensor:
    """Checks `start` given as an integer tensor of shape () or (B,).

    Returns:
        the positions of the first rows, start + first, int64, shape (1 or B, 1).
    """
    import torch

    from ..runtime.observers import should_check_values

    dense_tensor("start", value)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"start: expected an int or an integer tensor, got {value.dtype}; pass int64 starts")
    same_device("start", value, of)
    start_shape(value, of)
    value = positions(value).reshape(-1, 1)
    if should_check_values(value) and value.numel() and of.rows:
        for extreme in torch.stack(value.aminmax()).tolist():
            position_range(first + extreme, of.rows)
    return value + first if first else value


def start_beside_positions(value: Any) -> None:
    """Raises ValueError unless `start` is 0, as it must be if positions are given."""
    if not isinstance(value, int) or value != 0:
        raise ValueError(
            "start: expected 0 together with positions, which are final, got "
            f"{value if isinstance(value, int) else type(value).__name__}; add it to positions"
        )


def refuse_list(value: Any, of: Target) -> None:
    """Raises TypeError for a list as `start` of `add` or `embed`: one start per sample is passed as a tensor."""
    if isinstance(value, (list, tuple)):
        fits = len(value) == of.batch and len(of.shape) > 2
        tensor = f"torch.tensor({list(value)})" if fits and len(value) <= 8 else "an int64 tensor"
        raise TypeError(
            f"start: expected an int or an integer tensor, got {type(value).__name__}; pass an int, or {tensor} of "
            f"shape ({of.batch},) for one start per sample"
        )


def start_shape(value: torch.Tensor, of: Target) -> None:
    """Raises ValueError unless the shape of `start` is () or (B,)."""
    shape = value.shape
    if len(shape) > 1 or (len(shape) == 1 and shape[0] not in (1, of.batch)):
        raise ValueError(
            f"start: expected shape () or ({of.batch},), one for each sample, got {tuple(shape)} for {of.name} "
            f"of shape {tuple(of.shape)}; pass positions for one per row"
        )


def factor(name: str, value: Any) -> float:
    """Checks `scale` or `alpha`; returns a float, which may be inf or NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{name}: expected a float, got {described(value)}; pass a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name}: expected a number that float64 can hold, got {shown(value)}; pass a smaller one"
        ) from None


def alpha(value: Any, of: Target) -> float | torch.Tensor:
    """Checks `alpha`; returns a float, or a floating-point tensor of shape () or (1,)."""
    import torch

    if not isinstance(value, torch.Tensor):
        return factor("alpha", value)
    dense_tensor("alpha", value)
    if value.dtype.is_complex or not value.dtype.is_floating_point:
        raise TypeError(f"alpha: expected a float or a floating-point tensor, got {value.dtype}; pass a float")
    if tuple(value.shape) not in ((), (1,)):
        raise ValueError(
            f"alpha: expected a float or a tensor of shape () or (1,), got shape {tuple(value.shape)}; multiply a "
            "table by one factor per row or channel"
        )
    same_device("alpha", value, of)
    return value
