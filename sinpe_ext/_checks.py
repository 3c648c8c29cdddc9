"""Argument checks that every front shares: one place for each message. Imports neither torch nor NumPy by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._catalogue import convention
from .encoding import Encoding, integer

if TYPE_CHECKING:
    import torch

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


def length(value: Any, name: str = "length") -> int:
    """A number of rows as an int."""
    return integer(name, value, 0, INT64_MAX, "pass the number of rows")


def probability(name: str, value: Any) -> float:
    """A dropout probability."""
    number = factor(name, value)
    if not 0.0 <= number <= 1.0:
        hint = "; max_len is the third argument, pass max_len=... by name" if number > 1.0 else "; pass a probability"
        raise ValueError(f"{name}: expected 0 to 1, got {value}{hint}")
    return number


def start(value: Any) -> int:
    """`start` as an int."""
    return integer("start", value, INT64_MIN, INT64_MAX, "pass the int64 position of the first row")


def position_range(first: int, rows: int) -> None:
    """Checks that the positions first .. first + rows - 1 fit int64; `first` is encoding.start + start."""
    last = first + max(rows, 1) - 1
    if first < INT64_MIN or last > INT64_MAX:
        raise ValueError(
            f"start: expected every position (encoding.start + start + row) within int64, got {first} to {last}; "
            "lower start or length"
        )


def encoding(value: Any, dim: int | None = None) -> Encoding:
    """An Encoding from what callers may pass for one: an Encoding, a convention's name (with `dim`) or a dim."""
    if isinstance(value, Encoding):
        return value
    if isinstance(value, str):
        if dim is None:
            raise TypeError(
                f'encoding: expected an Encoding or an int (the dim), got the name "{value}" and no dim to go with it; '
                f'pass convention("{value}", dim)'
            )
        return convention(value, dim)
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return Encoding(value)
    raise TypeError(
        f"encoding: expected an Encoding, a convention's name or an int (the dim), got {type(value).__name__}; "
        'pass Encoding(dim) or convention("paper", dim)'
    )


def _described(value: Any) -> str:
    """Shape and dtype of a tensor, the type of anything else."""
    shape = getattr(value, "shape", None)
    return f"{tuple(shape)} {value.dtype}" if shape is not None else type(value).__name__


def float_dtype(name: str, value: Any) -> None:
    """A dtype that results can have."""
    import torch

    if value not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raise TypeError(f"{name}: expected torch.float32, float64, bfloat16 or float16, got {value}")


def dense_tensor(name: str, value: Any) -> None:
    """An ordinary strided tensor."""
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(value).__name__}; pass torch.as_tensor(...)")
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        raise TypeError(f"{name}: expected a dense strided tensor, got layout {value.layout}; pass a dense tensor")


def positions(value: Any, *, allow_16bit: bool = False) -> torch.Tensor:
    """Positions as int64, float32 or float64; narrower integers are widened before any arithmetic."""
    import torch

    dense_tensor("positions", value)
    dtype = value.dtype
    if dtype in (torch.int64, torch.float32, torch.float64):
        return value
    if dtype in (torch.float16, torch.bfloat16):
        if allow_16bit:
            return value.float()
        largest = 256 if dtype == torch.bfloat16 else 2048
        raise TypeError(
            f"positions: expected int64, int32 or float32/float64, got {dtype}; {str(dtype)[6:]} cannot hold integers "
            f"above {largest} exactly, pass int64 positions (allow_16bit=True takes the stored values as they are)"
        )
    if dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32):
        return value.long()
    if dtype == torch.uint64:
        wide = value.view(torch.int64)
        if value.device.type != "meta" and bool((wide < 0).any()):
            raise ValueError("positions: expected values up to 2**63 - 1, got larger uint64 ones; pass int64 positions")
        return wide
    raise TypeError(f"positions: expected an integer dtype or float32/float64, got {dtype}; pass int64 positions")


def same_device(name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    if value.device != x.device:
        raise RuntimeError(
            f"{name}: expected the device of x, {x.device}, got {value.device}; move it with {name}.to(x.device)"
        )


def axis(name: str, value: Any, rank: int) -> int:
    """A dimension's index, counted from the front."""
    index = integer(name, value, -(2**31), 2**31 - 1, "pass the index of a dimension of x")
    if not -rank <= index < rank:
        raise IndexError(f"{name}: expected {-rank} to {rank - 1} for x of {rank} dimensions, got {index}")
    return index % rank


def summand(x: Any) -> None:
    """x of `add`: a dense floating-point tensor of two dimensions or more."""
    dense_tensor("x", x)
    if x.dtype.is_complex or not x.dtype.is_floating_point or x.element_size() < 2:
        raise TypeError(f"x: expected float32, float64, bfloat16 or float16, got {x.dtype}; convert it with x.float()")
    if not 2 <= x.dim() <= 16:
        raise ValueError(
            f"x: expected 2 to 16 dimensions, (sequence, channels) or (batch, ..., sequence, channels), "
            f"got shape {tuple(x.shape)}"
        )


def channels(x: torch.Tensor, width: int, dim: int) -> None:
    if width != dim:
        raise ValueError(
            f"x: expected {dim} channels, those of the encoding, got {width} in shape {tuple(x.shape)}; "
            "pass an encoding of that dim, or channel_dim"
        )


def companion(name: str, value: torch.Tensor, x: torch.Tensor, batch: int, rows: int) -> torch.Tensor:
    """(S,) or (B, S) as a view of shape (1 or B, S)."""
    view = value.unsqueeze(0) if value.dim() == 1 else value
    if view.dim() != 2 or view.shape[1] != rows or view.shape[0] not in (1, batch):
        raise ValueError(
            f"{name}: expected shape ({rows},) or ({batch}, {rows}), (sequence) or (batch, sequence) of x, got "
            f"{tuple(value.shape)} for x of shape {tuple(x.shape)}"
        )
    return view


def padding_mask(value: Any, x: torch.Tensor, batch: int, rows: int) -> torch.Tensor:
    """A bool mask, True = padding, as a view of shape (1 or B, S)."""
    import torch

    dense_tensor("padding_mask", value)
    if value.dtype != torch.bool:
        raise TypeError(
            f"padding_mask: expected bool, True = padding, got {value.dtype}; pass attention_mask == 0 for a mask that is "
            "1 on tokens"
        )
    same_device("padding_mask", value, x)
    return companion("padding_mask", value, x, batch, rows)


def start_tensor(value: torch.Tensor, x: torch.Tensor, batch: int, rows: int) -> torch.Tensor:
    """`start` as a tensor: () or (B,) integers, as an int64 view of shape (1 or B, 1)."""
    dense_tensor("start", value)
    if value.dtype.is_floating_point or value.dtype.is_complex or str(value.dtype) == "torch.bool":
        raise TypeError(f"start: expected an int or an integer tensor, got {value.dtype}; pass int64 starts")
    same_device("start", value, x)
    if value.dim() > 1 or (value.dim() == 1 and value.shape[0] not in (1, batch)):
        raise ValueError(f"start: expected shape () or ({batch},), one for each sample, got {tuple(value.shape)}")
    value = positions(value)
    if value.device.type == "cpu" and value.numel() and rows:
        position_range(int(value.min()), rows)
        position_range(int(value.max()), rows)
    return value.reshape(-1, 1)


def factor(name: str, value: Any) -> float:
    """`scale` or `alpha` as a float; inf and NaN are passed on."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if hasattr(value, "__float__") and not hasattr(value, "shape"):
            return float(value)
        raise TypeError(f"{name}: expected a float, got {_described(value)}")
    return float(value)


def alpha_tensor(value: torch.Tensor, x: torch.Tensor) -> None:
    """`alpha` as a tensor: floating point, of shape () or (1,)."""
    if value.dtype.is_complex or not value.dtype.is_floating_point or tuple(value.shape) not in ((), (1,)):
        raise ValueError(
            f"alpha: expected a float or a floating-point tensor of shape () or (1,), got {_described(value)}"
        )
    same_device("alpha", value, x)


def output(out: Any, x: torch.Tensor) -> None:
    """`out` of `add`: like x, and either x itself in memory or apart from it."""
    dense_tensor("out", out)
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(
            f"out: expected shape {tuple(x.shape)} and dtype {x.dtype}, those of x, got {tuple(out.shape)} {out.dtype}"
        )
    same_device("out", out, x)
    writable("out", out)
    identical = out.data_ptr() == x.data_ptr() and out.stride() == x.stride() if out.device.type != "meta" else out is x
    if not identical and overlaps(out, x):
        raise RuntimeError(
            "out: expected memory apart from x, or exactly x's, got a tensor that shares some elements with x; "
            "clone() one of them"
        )


def writable(name: str, out: torch.Tensor) -> None:
    """Every element of `out` has a place of its own in memory."""
    reach = 0
    for size, stride in sorted(zip(out.shape, out.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if stride <= reach:
                raise RuntimeError(
                    f"{name}: expected one memory location for each element, got strides {tuple(out.stride())} for shape "
                    f"{tuple(out.shape)}: more than one element of the written-to tensor refers to a single memory "
                    "location; clone() it first"
                )
            reach += (size - 1) * stride
        elif size == 0:
            return


def overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory ranges of two tensors meet."""
    if a.device.type == "meta" or not a.numel() or not b.numel():
        return False

    def span(t: torch.Tensor) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1
