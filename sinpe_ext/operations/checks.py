"""Checks of tensor arguments of the operations and layers, with their error messages. Numbers are checked in
`encodings/values.py`, the encoding in `encodings/resolve.py`, outputs in `memory.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..encodings import values
from ..encodings.grid import lengths_of
from ..encodings.values import (
    INT64_MAX,
    INT64_MIN,
    check_storage_bounds,
    dense_tensor,
    described,
    factor,
    flag,
    integer,
    one_per_axis,
    position_range,
    shown,
    start,
    strided_tensor,
)
from ..torch_state import in_context_parallel, should_check_values

_is_compiling = torch.compiler.is_compiling

FLOATS = torch.float32, torch.bfloat16, torch.float16, torch.float64
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8,
            torch.uint8, torch.uint16, torch.uint32, torch.uint64)  # fmt: skip
POSITIONS = torch.int64, torch.float32, torch.float64
MAX_RANK = 16  # the kernels' maximum number of dimensions, csrc/include/sinpe/sinpe.h


class Target(NamedTuple):
    """The argument that the others must match in shape and device: x of `add`, ids of `embed`.

    Attributes:
        batch: number of samples.
        row_shapes: the shapes, without the batch, of a tensor with one value for each row: (S,), and for a grid (H, W).
    """

    name: str
    shape: Sequence[int]
    device: torch.device
    batch: int
    row_shapes: Sequence[tuple[int, ...]]


NO_SCRIPT = (
    "torch.jit.script cannot read sinpe_ext's functions and layers, whose arguments are keywords with defaults; use "
    "torch.compile or torch.export"
)


def table_dtype(dtype: Any, device: Any, out: Any) -> torch.dtype:
    """The dtype of the result of `table`; checks that `out`, if given, agrees with dtype and device."""
    if dtype is not None:
        float_dtype("dtype", dtype)
    if out is None:
        return torch.float32 if dtype is None else dtype
    dense_tensor("out", out)
    float_dtype("out", out.dtype, "an out of one of these")
    if dtype is not None and dtype != out.dtype:
        raise RuntimeError(
            f"dtype: expected {out.dtype}, that of out, got {dtype}; leave dtype out, or pass an out of that dtype"
        )
    if device is not None:
        wanted = torch_device(device)
        same = wanted.type == "cpu" or wanted.index in (None, out.device.index)
        if wanted.type != out.device.type or not same:
            raise RuntimeError(
                f"device: expected {out.device}, that of out, got {wanted}; leave device out, or pass an out on that "
                "device"
            )
    return out.dtype


def positions(value: Any, *, allow_16bit: bool | None = None) -> Tensor:
    """Checks positions and returns them as int64, float32 or float64; narrower integers are widened first.

    Args:
        allow_16bit: whether to accept 16-bit floats; None if the calling function has no such argument.
    """
    if not is_ordinary(value, POSITIONS):
        strided_tensor("positions", value)
    check_storage_bounds("positions", value)
    dtype = value.dtype
    if dtype in POSITIONS:
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
            f"integers above {largest} exactly, pass int64 positions, or float32 for fractional ones{other}"
        )
    if dtype == torch.uint64:
        wide = value.view(torch.int64)
        if should_check_values(value) and bool((wide < 0).any()):
            raise ValueError("positions: expected values up to 2**63 - 1, got larger uint64 ones; pass int64 positions")
        return wide
    if dtype in INTEGERS:
        return value.long()
    raise TypeError(f"positions: expected an integer dtype or float32/float64, got {dtype}; pass int64 positions")


def same_device(name: str, value: Tensor, of: Target | Tensor) -> None:
    """Raises RuntimeError if a tensor is not on the device of the target."""
    if value.device != of.device:
        other = of.name if isinstance(of, Target) else "x"
        raise RuntimeError(
            f"{name}: expected the device of {other}, {of.device}, got {value.device}; move it with "
            f"{name}.to({other}.device)"
        )


def axis(name: str, value: Any, rank: int, of: str = "x") -> int:
    """Checks the index of a dimension; returns it as a non-negative int."""
    if type(value) is int and -rank <= value < rank:
        return value % rank
    index = integer(name, value, INT64_MIN, INT64_MAX, f"pass the index of a dimension of {of}")
    if not -rank <= index < rank:
        raise IndexError(
            f"{name}: expected {-rank} to {rank - 1} for {of} of {rank} dimensions, got {index}; pass the index of one"
        )
    return index % rank


def refuse_same_dimensions(seq_dim: Any, channel_dim: Any) -> None:
    """Raises ValueError for the same dimension of x as sequence and channels."""
    raise ValueError(
        f"seq_dim, channel_dim: expected two dimensions of x, got {seq_dim} and {channel_dim}, which are the same; "
        "pass different ones, such as seq_dim=-1, channel_dim=-2 for (batch, channels, sequence)"
    )


def is_ordinary(value: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether a value passes `strided_tensor` and has one of these dtypes, decided quickly: False for subclasses of
    tensors, some of which pass too."""
    if type(value) is not Tensor and type(value) is not nn.Parameter:
        return False
    return value.layout is torch.strided and not value.is_nested and value.dtype in dtypes


def check_x(x: Any) -> None:
    """Checks x of `add`: a dense floating-point tensor with at least two dimensions."""
    # is_ordinary(x, FLOATS), without a call
    is_plain = (type(x) is Tensor or type(x) is nn.Parameter) and x.layout is torch.strided and not x.is_nested
    if not (is_plain and x.dtype in FLOATS):
        strided_tensor("x", x, may_be_dtensor=True)
        if x.dtype not in FLOATS:
            raise TypeError(
                f"x: expected torch.float32, float64, bfloat16 or float16, got {x.dtype}; convert it, say with "
                "x.float(), or pass token ids to embed or SinusoidalEmbedding"
            )
    if not 2 <= x.dim() <= MAX_RANK:
        raise ValueError(
            f"x: expected 2 to {MAX_RANK} dimensions, (sequence, channels) or (batch, ..., sequence, channels), got "
            f"shape {tuple(x.shape)}; unsqueeze or flatten it"
        )
    check_storage_bounds("x", x)


def refuse_channels(name: str, shape: Sequence[int], width: int, dim: int) -> None:
    """Raises ValueError for x or weight, of this shape, or the whole of which it is a shard, with another number of
    channels, `width`, than the encoding, `dim`."""
    advice = f"pass an encoding of dim {width}, to a layer d_model={width}" if width else f"pass a {name} with channels"
    raise ValueError(
        f"{name}: expected {dim} channels, those of the encoding, got {width} in shape {tuple(shape)}; {advice}"
        + (", or the channel_dim of x" if name == "x" else "")
    )


def of_rows(name: str, value: Tensor, of: Target, axes: int | None = None) -> Tensor:
    """Checks that a tensor has one value for each row, of each sample or for all: one of `row_shapes`, with or without
    the batch in front, and the device of the target.

    Args:
        axes: number of coordinates in one more dimension behind, for positions of a grid.
    Returns:
        a view of shape (1 or B, S), or (1 or B, S, axes).
    """
    if value.device != of.device:
        same_device(name, value, of)
    given, last = value.shape, () if axes is None else (axes,)
    for rows in of.row_shapes:
        own = (*rows, *last)
        if _equal(given, own):
            return (value if len(rows) == 1 else value.flatten(0, len(rows) - 1)).unsqueeze(0)
        if len(given) == len(own) + 1 and is_size(given[0], of.batch) and _equal(given[1:], own):
            return value if len(rows) == 1 else value.flatten(1, len(rows))
    allowed = [shape for rows in of.row_shapes for shape in ((*rows, *last), (of.batch, *rows, *last))]
    meaning, advice = f"(sequence) or (batch, sequence) of {of.name}", "pass one element for each row"
    if len(of.row_shapes[-1]) > 1:
        meaning, advice = "for the points of the grid", "pass one element for each, without extra tokens"
    if axes is not None:
        meaning, advice = "coordinates in the last dimension", "stack the coordinates of the axes there"
    elif len(given) == 2 and tuple(given) == (*of.row_shapes[0], of.batch):
        advice = f"pass {name}.T: it is batch first, whatever seq_dim is"
    raise ValueError(
        f"{name}: expected shape {_either(allowed)}, {meaning}, got {tuple(given)} for {of.name} of shape "
        f"{tuple(of.shape)}; {advice}"
    )


def _equal(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two shapes are equal."""
    # Not `==` of the shapes: only a comparison of symbolic sizes guards the graph.
    return len(sizes) == len(others) and all([size == other for size, other in zip(sizes, others, strict=True)])


def _either(shapes: Sequence[Sequence[int]]) -> str:
    """The distinct shapes as text, joined by "or"."""
    return " or ".join(dict.fromkeys(f"({', '.join(map(str, s))}{',' if len(s) == 1 else ''})" for s in shapes))


def bool_mask(value: Any, name: str = "padding_mask") -> None:
    """Checks that a mask, of any shape, is a dense bool tensor."""
    dense_tensor(name, value)
    if value.dtype != torch.bool:
        additive = 'mask == float("-inf") for an additive mask (0 or -inf), or ' if value.is_floating_point() else ""
        raise TypeError(
            f"{name}: expected bool, True = padding, got {value.dtype}; pass {additive}attention_mask == 0 for a mask "
            "that is 1 on tokens"
        )


def padding_mask(value: Any, of: Target) -> Tensor:
    """Checks a bool mask, True = padding; returns it as a view of shape (1 or B, S)."""
    bool_mask(value)
    return of_rows("padding_mask", value, of)


def starts(
    value: Any, firsts: Sequence[int], lengths: Sequence[int], is_grid: bool, device: Any, of: Target | None = None
) -> tuple[Any, ...] | Tensor:
    """Checks `start` and the range of the positions that follow from it.

    Args:
        value: an int or an integer tensor of shape () or, of a sequence, (B,); for a grid also one int per axis, or a
            tensor of shape (axes,) or (B, axes).
        firsts: the starts of the axes' encodings.
        lengths: the lengths of the axes.
        of: x, or ids; None for a table, which has no batch.
    Returns:
        one int per axis, which may be symbolic; or an int64 tensor of shape (1 or B, axes), if a tensor was given whose
        values cannot be read or are one for each sample.
    """
    if isinstance(value, Tensor):
        value = start_tensor(value, len(firsts), is_grid, device, of)
        if not should_check_values(value):
            return value
        if value.shape[0] == 1 and value.is_cpu:
            value = value[0].tolist()
        else:
            if value.numel():
                for extremes in torch.stack(value.aminmax(dim=0)).tolist():
                    starts(extremes, firsts, lengths, True, device, of)
            return value
    elif isinstance(value, (list, tuple)):
        value = one_per_axis(value, len(firsts)) if is_grid else _refuse_list(value, of)
    else:
        value = (value,) * len(firsts)
    if _is_compiling() and all(map(_is_whole, value)):
        return tuple(value)
    value = tuple([v if type(v) is int and INT64_MIN <= v <= INT64_MAX else start(v) for v in value])
    for v, first, length in zip(value, firsts, lengths, strict=True):
        if not INT64_MIN <= first + v <= INT64_MAX - max(length, 1) + 1:
            position_range(first + v, length)
    return value


def start_tensor(value: Tensor, axes: int, is_grid: bool, device: Any, of: Target | None) -> Tensor:
    """Checks dtype, device and shape of `start` given as a tensor; returns int64 of shape (1 or B, axes)."""
    dense_tensor("start", value)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"start: expected an int or an integer tensor, got {value.dtype}; pass int64 starts")
    if value.device != device:
        raise RuntimeError(
            f"start: expected the device of {of.name if of else 'the result'}, {device}, got {value.device}; move it "
            f"with start.to({f'{of.name}.device' if of else 'device'})"
        )
    start_shape(value.shape, (axes,) if is_grid else (), of)
    value = positions(value)
    return value.reshape(-1, axes) if value.dim() else value.expand(axes).unsqueeze(0)


def start_shape(shape: Sequence[int], last: tuple[int, ...], of: Target | None) -> None:
    """Raises ValueError unless the shape of `start` is (), `last`, or that for each sample. `last` is () or (axes,)."""
    has_samples = of is not None and len(shape) == len(last) + 1 and is_size(shape[0], of.batch)
    if len(shape) and tuple(shape) != last and not (has_samples and tuple(shape[1:]) == last):
        allowed = "()" + (f" or {_either([last])}, one per axis" if last else "")
        allowed += f" or {_either([(of.batch, *last)])}, one for each sample" if of is not None else ""
        whose = "" if of is None else f" for {of.name} of shape {tuple(of.shape)}"
        raise ValueError(f"start: expected shape {allowed}, got {tuple(shape)}{whose}; pass positions for one per row")


def start_beside_positions(value: Any) -> None:
    """Raises ValueError unless `start` is 0, as it must be if positions are given."""
    if type(value) is bool or not isinstance(value, int) or value != 0:
        raise ValueError(
            "start: expected 0 together with positions, which are absolute, got "
            f"{value if isinstance(value, int) else type(value).__name__}; add it to positions"
        )


def _refuse_list(value: Any, of: Target | None) -> Any:
    """Raises TypeError for a list as `start` of a sequence: one start per sample is passed as a tensor."""
    batch, rank = (0, 0) if of is None else (of.batch, len(of.shape))
    fits = len(value) == batch and rank > 2
    tensor = f"torch.tensor({list(value)})" if fits and len(value) <= 8 else "an int64 tensor"
    raise TypeError(
        f"start: expected an int or an integer tensor, got {type(value).__name__}; pass an int, or {tensor} of "
        f"shape ({batch},) for one start per sample"
    )


def is_size(size: int, batch: int) -> bool:
    """Whether the first dimension of an argument is that of each sample, or of one for all."""
    # Not `in`: only a comparison of symbolic sizes guards the graph.
    return bool(size == batch or size == 1)


def number(name: str, value: Any) -> float:
    """Checks `scale` or `alpha`, given as a number; a graph may compute it from a size."""
    if _is_compiling() and isinstance(value, (torch.SymInt, torch.SymFloat)):
        return torch.sym_float(value)
    return factor(name, value)


def is_one(value: float) -> bool:
    """Whether a factor is 1, which a symbolic one never is: comparing it would fix the size of which it is computed."""
    if not _is_compiling():
        return value == 1.0
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes a quarter of a second to import

    return statically_known_true(value == 1.0)


def alpha(value: Any, of: Target) -> float | Tensor:
    """Checks `alpha`; returns a float, or a floating-point tensor of shape () or (1,)."""
    if not isinstance(value, Tensor):
        return number("alpha", value) if _is_compiling() else factor("alpha", value)
    dense_tensor("alpha", value)
    if value.dtype.is_complex or not value.dtype.is_floating_point:
        raise TypeError(f"alpha: expected a float or a floating-point tensor, got {value.dtype}; pass a float")
    if value.dim() > 1 or value.numel() != 1:
        raise ValueError(
            f"alpha: expected a float or a tensor of shape () or (1,), got shape {tuple(value.shape)}; for one factor "
            "per row or channel, add alpha * table(...) to x"
        )
    same_device("alpha", value, of)
    return value


def float_dtype(name: str, value: Any, advice: str = "one of these and convert the result") -> None:
    """Checks that a value is a dtype that results can have; `advice` says what to pass instead."""
    known = torch.float32, torch.float64, torch.bfloat16, torch.float16
    if not isinstance(value, torch.dtype) or value not in known:
        plain = isinstance(value, (torch.dtype, str, type)) or value is None
        raise TypeError(
            f"{name}: expected torch.float32, float64, bfloat16 or float16, got "
            f"{repr(value) if plain else described(value)}; pass "
            f"{_dtype_called(value) or advice}"
        )


_DTYPE_NAMES = {
    "float32": ("fp32", "f32", "f4", "float", "single"),
    "float64": ("fp64", "f64", "f8", "double"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "f16", "f2", "half"),
}


def _dtype_called(value: Any) -> str:
    """torch's name of a dtype given as a string or a NumPy dtype; "" if there is none."""
    called: Any = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", ""))
    key = str(called).lower().removeprefix("torch.")
    return next((f"torch.{name}" for name, others in _DTYPE_NAMES.items() if key in (name, *others)), "")


def addressable(name: str, count: int, channels: int, dtype: torch.dtype) -> None:
    """`values.addressable`, except in a graph, where sizes may be symbolic."""
    if not _is_compiling():
        values.addressable(name, count, channels, dtype.itemsize)


def torch_device(value: Any) -> torch.device:
    """A torch.device from a `device` argument, which may be anything that torch.device() accepts."""
    if isinstance(value, torch.device):
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # an accelerator index; torch raises if there is none
        return torch.device(value)
    try:
        return torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        names = isinstance(value, (str, bool))
        raise (ValueError if names else TypeError)(
            f"device: expected a torch.device or the name of one, got {repr(value) if names else described(value)}; "
            'pass "cpu", "cuda:0" or the like'
        ) from error


def seed(value: Any, device: torch.device) -> Any:
    """Checks the seed for a result on `device`; an int is checked for its range, anything else is returned as it is."""
    # Not for tensors: since torch 2.15 the compiler cannot trace this isinstance of a tensor.
    if value is None or (not isinstance(value, Tensor) and isinstance(value, torch.Generator)):
        return value
    if torch.compiler.is_compiling() and isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
        return value  # may be a symbolic int of the graph
    if isinstance(value, Tensor):
        dense_tensor("seed", value)
        if value.dtype != torch.int64 or value.numel() != 1:
            raise TypeError(
                f"seed: expected an int64 tensor of one element, got {value.dtype} of shape {tuple(value.shape)}; pass "
                "an int, or such a tensor"
            )
        if value.is_meta and device.type != "meta":
            raise RuntimeError(f"seed: expected a tensor with data, got one on meta; move it to {device} before")
        return value
    return integer("seed", value, INT64_MIN, INT64_MAX, "pass an int, an int64 tensor, a torch.Generator or None")


def weight(value: Any) -> Tensor:
    """Checks `weight` of `embed`: a dense floating-point tensor of shape (num_embeddings, channels)."""
    if not is_ordinary(value, FLOATS):
        strided_tensor("weight", value, may_be_dtensor=True)
        float_dtype("weight", value.dtype, "weight after ids, with one of these dtypes")
    if value.dim() != 2:
        raise ValueError(
            f"weight: expected shape (num_embeddings, channels), got {tuple(value.shape)}; pass the weight of an "
            "nn.Embedding"
        )
    check_storage_bounds("weight", value)
    return value


def ids(value: Any, weight: Tensor) -> Tensor:
    """Checks token ids, which have a sequence dimension; returns int64. `id_range` checks their values."""
    if not is_ordinary(value, (torch.int64,)):
        strided_tensor("ids", value, may_be_dtensor=True)
        if value.dtype not in INTEGERS:
            raise TypeError(f"ids: expected an integer tensor, got {value.dtype}; pass int64 ids")
    if not 1 <= value.dim() < MAX_RANK:
        raise ValueError(
            f"ids: expected 1 to {MAX_RANK - 1} dimensions, (sequence,) or (batch, ..., sequence), got shape "
            f"{tuple(value.shape)}; unsqueeze or flatten it"
        )
    if value.device != weight.device:
        raise RuntimeError(
            f"ids: expected the device of weight, {weight.device}, got {value.device}; move it with "
            "ids.to(weight.device)"
        )
    if value.dtype == torch.uint64:
        wide = value.view(torch.int64)
        if should_check_values(value) and bool((wide < 0).any()):
            raise IndexError("ids: expected rows of weight, got uint64 ids above 2**63 - 1; check the tokenizer")
        value = wide
    if _is_compiling():
        return value.long()
    if value._is_zerotensor():
        return value.clone().to(torch.int64)  # torch's embedding crashes on a zero tensor, which has no memory
    check_storage_bounds("ids", value)
    return value.long()


def has_padding(has_padding_idx: bool) -> None:
    """Raises ValueError for `encode_padding=False` without a padding_idx."""
    if not has_padding_idx:
        raise ValueError("encode_padding: expected a padding_idx with encode_padding=False, got None; pass one")


def masks_padding(padding_idx: int, ids: Tensor) -> None:
    """Checks for `encode_padding=False` that there is a padding_idx (-1: none) and that a mask can be made of ids."""
    has_padding(padding_idx >= 0)
    if ids.dim() > 2:
        raise ValueError(
            f"encode_padding: expected ids of shape (sequence,) or (batch, sequence) with encode_padding=False, "
            f"got {tuple(ids.shape)}; flatten the dimensions between them"
        )


def padding_idx(value: Any, num_embeddings: int) -> int:
    """Checks `padding_idx`; returns it as a non-negative int, or -1 for None."""
    if value is None:
        return -1
    index = integer("padding_idx", value, INT64_MIN, INT64_MAX, "pass the id of the padding token or None")
    if not -num_embeddings <= index < num_embeddings:
        rows = (
            f"{-num_embeddings} to {num_embeddings - 1}, a row of weight"
            if num_embeddings
            else "None for an empty weight"
        )
        raise ValueError(f"padding_idx: expected {rows}, got {index}; pass the id of the padding token")
    return index % num_embeddings


def grid_lengths(name: str, value: Any, axes: int) -> tuple[int, ...]:
    """Checks the lengths of a grid's axes."""
    if _is_compiling() and isinstance(value, (tuple, list)) and len(value) == axes and all(map(_is_whole, value)):
        return tuple(value)  # may be symbolic ints of the graph
    return lengths_of(name, value, axes)


def _is_whole(value: Any) -> bool:
    """Whether a value is an int or a symbolic int."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def refuse_grid_shape(value: Any, advice: str) -> None:
    """Raises ValueError for a `grid_shape` with a one-dimensional encoding."""
    if value is not None:
        raise ValueError(f"grid_shape: expected None for an encoding of one dimension, got {shown(value)}; {advice}")


def extra_tokens(value: Any) -> int:
    """Checks `extra_tokens`."""
    if _is_compiling() and _is_whole(value):
        return value
    return integer("extra_tokens", value, 0, INT64_MAX, "pass the number of tokens in front, 1 for a class token")


def refuse_in_context_parallel() -> None:
    """Raises ValueError for implicit positions inside `context_parallel`, which reorders the sequence."""
    if in_context_parallel():
        raise ValueError(
            "positions: expected the positions of these rows inside of context_parallel, which gives every rank other "
            "parts of the sequence, got none; shard torch.arange(length) as one more of its buffers and pass that, or "
            "sinpe_ext.distributed.context_parallel_positions(length, mesh)"
        )
