"""Position tensors for packed, padded, relative and two-dimensional inputs, for `positions=` and for `encode`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import torch_state
from .encodings import resolve, values
from .encodings.encoding import Encoding
from .encodings.grid import GridEncoding
from .encodings.tracing import refuse_jit_trace
from .encodings.values import INT64_MAX, INT64_MIN, addressable, dense_tensor, integer, one_per_axis, shown
from .encodings.values import length as _length
from .operations.checks import bool_mask, is_size, number
from .operations.nested import sequence_positions
from .reference.tiles import widest

__all__ = ["from_mask_2d", "from_padding_idx", "from_padding_mask", "grid", "packed", "relative"]


def __dir__() -> list[str]:
    return list(__all__)


# Sums convert to int64 first: some versions of torch.compile ignore the dtype argument of sum and cumsum.


def packed(cu_seqlens: Tensor, encoding: Encoding | str | None, *, total: int | None = None) -> Tensor:
    """Returns the positions of sequences that are packed into one dimension; each begins at the encoding's start.

    Equivalent to::

        torch.cat([torch.arange(n) for n in cu_seqlens.diff()]) + encoding.start

    Args:
        cu_seqlens: (number of sequences + 1,), int32 or int64, cumulative sequence lengths as in variable-length
            attention: 0, then the end of each sequence. The last one is the number of tokens.
        encoding: the encoding of the call that takes these positions, as in `add`; only its `start` is used. None: the
            paper's encoding, which starts at 0.
        total: number of tokens. If given, cu_seqlens is not read back from a device other than the CPU. Tokens after
            the last end form one more sequence. None: the last of cu_seqlens.
    Returns:
        (total,), int64, on the device of cu_seqlens; for x of shape (S, D) or (1, S, D).
    Raises:
        TypeError, ValueError for arguments of the wrong type, shape or value.
    """
    refuse_jit_trace()
    dense_tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise TypeError(
            f"cu_seqlens: expected int32 or int64 of shape (sequences + 1,), got {cu_seqlens.dtype} of shape "
            f"{tuple(cu_seqlens.shape)}; pass torch.tensor([0, *lengths]).cumsum(0)"
        )
    ends = cu_seqlens.long().contiguous()  # torch.searchsorted warns about tensors that are not contiguous
    if total is None or (ends.device.type == "cpu" and not torch_state.unreadable(ends)):
        if int(ends[0]) != 0 or bool((ends.diff() < 0).any()):
            raise ValueError(
                f"cu_seqlens: expected values that begin with 0 and do not decrease, got {ends.tolist()[:8]}; pass "
                "torch.tensor([0, *lengths]).cumsum(0)"
            )
        if total is None:
            total = int(ends[-1])
        elif _length(total, "total") < int(ends[-1]):
            raise ValueError(
                f"total: expected {int(ends[-1])} or more, the last of cu_seqlens, got {total}; leave it unset"
            )
    traced = torch.compiler.is_compiling()  # the checks would specialize a symbolic size
    rows = total if traced else _length(total, "total")
    if not traced:
        addressable("total", rows, 1, 8)
    (first,) = _firsts(encoding, (rows,))
    return sequence_positions(ends, rows) + first


def _size(name: str, value: Any, low: int, high: int, advice: str) -> Any:
    """`integer` for a number that may be a symbolic size of a graph, which stays symbolic."""
    if torch.compiler.is_compiling() and isinstance(value, torch.SymInt):
        return value
    return integer(name, value, low, high, advice)


def relative(length: int, *, device: torch.device | str | None = None) -> Tensor:
    """Returns the distances length - 1, ..., 1, 0, -1, ..., -(length - 1) for relative attention, as in Transformer-XL.

    Equivalent to::

        torch.arange(length - 1, -length, -1)

    Args:
        length: length of the sequence, 1 or more.
        device: device of the result. None: the default device.
    Returns:
        (2 * length - 1,), int64. `encode` of it is the table for relative attention (ESPnet, Conformer, NeMo); `table(2
        * length - 1, encoding, start=1 - length)` has the same rows in ascending order.
    Raises:
        TypeError, ValueError for a length that is not a positive int.
    Source:
        Dai et al. 2019, "Transformer-XL", section 3.3.
    """
    length = _size("length", length, 1, INT64_MAX // 2, "pass the number of tokens")
    return torch.arange(length - 1, -length, -1, device=device)


def from_padding_mask(mask: Tensor, encoding: Encoding | str | None) -> Tensor:
    """Returns positions that count the tokens of each sequence and skip padding, wherever the padding is.

    Equivalent to::

        positions = attention_mask.long().cumsum(-1) - 1                      # attention_mask = ~mask
        positions.masked_fill(attention_mask == 0, 0) + encoding.start

    A padded sequence then has the encodings that it has without padding::

        sinpe.add(x, "fairseq", positions=from_padding_mask(mask, "fairseq"), padding_mask=mask)

    Args:
        mask: (B, S) or (S,), bool; True marks padding, as in `padding_mask` of `add`.
        encoding: the encoding of the call that takes these positions, as in `add`; only its `start` is used. None: the
            paper's encoding, which starts at 0.
    Returns:
        a tensor of the shape of mask, int64; encoding.start at padding.
    Raises:
        TypeError, ValueError for arguments of the wrong type, shape or value.
    Source:
        the position_ids of Hugging Face transformers, which have other values at padding.
    """
    _mask("mask", mask, (1, 2), "(S,) or (B, S)")
    (first,) = _firsts(encoding, mask.shape[-1:])
    return ((~mask).long().cumsum(-1) - 1).masked_fill(mask, 0) + first


def from_padding_idx(ids: Tensor, padding_idx: int, *, past: int | Tensor = 0) -> tuple[Tensor, Tensor]:
    """Returns the positions of fairseq, which start at padding_idx + 1 in each sequence, and the padding mask.

    Equivalent to::

        tokens = (ids != padding_idx).long()
        positions = (tokens.cumsum(-1) + past) * tokens + padding_idx
        padding_mask = ids == padding_idx

    `embed(ids, weight, "fairseq", positions=positions, padding_mask=padding_mask)` adds the encoding of fairseq, except
    at padding. With padding_idx=1 these are the positions of `from_padding_mask(ids == 1, "fairseq")`.

    Args:
        ids: (B, S) or (S,), integers.
        padding_idx: the id of padding, 1 in fairseq.
        past: number of earlier tokens of the sequence, without padding: an int, or an integer tensor () or (B,).
    Returns:
        (positions, padding_mask), of the shape of ids, int64 and bool; at padding they are padding_idx and True.
    Raises:
        TypeError, ValueError for arguments of the wrong type, shape or value.
    Source:
        fairseq, make_positions; Hugging Face transformers, create_position_ids_from_input_ids.
    """
    dense_tensor("ids", ids)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex() or ids.dim() not in (1, 2):
        raise TypeError(
            f"ids: expected integers of shape (S,) or (B, S), got {ids.dtype} of shape {tuple(ids.shape)}; pass the "
            "token ids"
        )
    padding_idx = integer("padding_idx", padding_idx, 0, INT64_MAX, "pass the id of padding, 1 in fairseq")
    if isinstance(past, Tensor):
        earlier: int | Tensor = _past(past, ids)
    else:
        earlier = _size("past", past, 0, INT64_MAX, "pass the number of earlier tokens")
    mask = ids == padding_idx
    tokens = (~mask).long()
    return (tokens.cumsum(-1) + earlier) * tokens + padding_idx, mask


def grid(
    shape: Sequence[int],
    encoding: GridEncoding | Encoding | str | None,
    *,
    start: int | Sequence[int] = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns the coordinates of every grid point; those of the first are the starts of the encoding's axes.

    Equivalent to::

        firsts = [axis.start + s for axis, s in zip(encoding.axes, start)]
        torch.stack(torch.meshgrid(*(torch.arange(f, f + n) for f, n in zip(firsts, shape)), indexing="ij"), -1)

    Args:
        shape: length of each axis, such as (H, W) or (T, H, W).
        encoding: the encoding of the call that takes these positions, as in `add`; only the `start` of its axes is
            used.
        start: added to the starts of the axes, one for all or one for each, as in `table`.
        device: device of the result. None: the default device.
    Returns:
        `(*shape, number of axes)`, int64; the first coordinate is that of the first axis, the row of an image. `encode`
        of it with the same encoding, or of a part of it, gives the rows of `table(shape, encoding, start=start)`.
    Raises:
        TypeError, ValueError for invalid lengths and for coordinates beyond int64.
    """
    refuse_jit_trace()
    if isinstance(shape, (int, str)) or not isinstance(shape, Sequence) or not shape:
        raise TypeError(f"shape: expected a length for each axis, got {shown(shape)}; pass (H, W) or (T, H, W)")
    traced = torch.compiler.is_compiling()  # the checks would specialize symbolic sizes
    lengths = list(shape) if traced else [_length(length, "shape") for length in shape]
    firsts = _firsts(encoding, lengths, start)
    axes = [torch.arange(length, device=device) + first for first, length in zip(firsts, lengths, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


def from_mask_2d(
    mask: Tensor,
    encoding: GridEncoding | str,
    *,
    normalize: bool = False,
    scale: float = 2 * math.pi,
    eps: float = 1e-6,
    offset: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the (y, x) positions of the pixels of padded images, counted without padding, as in DETR.

    Equivalent to, for "detr2d", whose axes start at 1; for others start - 1 is added to y and x first::

        y, x = (~mask).long().cumsum(-2), (~mask).long().cumsum(-1)
        if normalize:
            y = (y.to(dtype) + offset) / (y[..., -1:, :].to(dtype) + eps) * scale
            x = (x.to(dtype) + offset) / (x[..., :, -1:].to(dtype) + eps) * scale
        torch.stack([y, x], -1)

    `encode(positions, "detr2d", dim=channels)` is DETR's encoding, channels last.

    Args:
        mask: (B, H, W) or (H, W), bool; True marks padding.
        encoding: the encoding of the call that takes these positions, a GridEncoding of two axes or the name of one;
            only the `start` of its axes is used.
        normalize: divide each position by the last one of its column or row, so that the unpadded size becomes `scale`.
        scale: largest position after normalization, 2 pi in DETR.
        eps: added to the divisor.
        offset: added to the count before normalization, -0.5 in some models of MMDetection.
        dtype: dtype of normalized positions and of the arithmetic: float64, or float32 to reproduce DETR's rounding.
            None: float64; on a device without it (MPS), float64 arithmetic on the CPU, rounded to float32.
    Returns:
        `(*mask.shape, 2)`, y first; int64, or `dtype` if normalized. Padding has the position of the pixel before it.
    Raises:
        TypeError, ValueError for arguments of the wrong type, shape or value.
    Source:
        Carion et al. 2020, "End-to-End Object Detection with Transformers"; MMDetection for offset.
    """
    _mask("mask", mask, (2, 3), "(H, W) or (B, H, W)")
    if dtype not in (None, torch.float32, torch.float64):
        raise TypeError(f"dtype: expected torch.float32 or torch.float64, got {dtype!r}; pass torch.float64")
    if normalize and dtype != torch.float32 and widest(mask.device) != torch.float64:
        if dtype is not None:
            raise TypeError(f"dtype: expected torch.float32 on {mask.device.type}, got {dtype!r}; leave dtype out")
        on_cpu = from_mask_2d(mask.cpu(), encoding, normalize=True, scale=scale, eps=eps, offset=offset)
        return on_cpu.float().to(mask.device)
    dtype = torch.float64 if dtype is None else dtype
    scale, eps, offset = number("scale", scale), number("eps", eps), number("offset", offset)
    if offset and not normalize:
        raise ValueError(f"offset: expected 0 without normalize=True, got {offset}; pass normalize=True")
    pixels = (~mask).long()
    axes = []
    for dim, first in zip((-2, -1), _firsts(encoding, mask.shape[-2:]), strict=True):
        count = pixels.cumsum(dim) + (first - 1)
        if normalize and mask.shape[dim]:
            last = count.narrow(dim, mask.shape[dim] - 1, 1).to(dtype)
            count = (count.to(dtype) + offset) / (last + eps) * scale
        axes.append(count)
    positions = torch.stack(axes, -1)
    return positions.to(dtype) if normalize else positions


_ANY_DIM = 96  # every convention has an encoding of 96 channels, and its starts do not depend on their number


def _firsts(encoding: Any, lengths: Sequence[Any], start: Any = 0) -> list[Any]:
    """The first position along each axis, encoding.start + start, of so many; the name of a convention needs no dim."""
    if encoding is not None and not isinstance(encoding, (Encoding, GridEncoding, str)):
        raise TypeError(
            f"encoding: expected an Encoding, a GridEncoding, the name of a convention or None, got {shown(encoding)}; "
            "pass the encoding of the call that takes these positions, of a layer layer.encoding"
        )
    _, starts = resolve.grid_dim_and_starts(encoding, _ANY_DIM)
    if len(starts) != len(lengths):
        raise ValueError(
            f"encoding: expected one with {len(lengths)} axes, got {len(starts)}; pass the encoding of the call that "
            "takes these positions; for padded images, see from_mask_2d"
        )
    firsts = []
    for own, more, length in zip(starts, one_per_axis(start, len(lengths)), lengths, strict=True):
        more = _size("start", more, INT64_MIN, INT64_MAX, "add others, as in grid(shape, encoding) + 0.5")
        if not torch_state.is_intercepted():  # the check would specialize symbolic sizes
            values.position_range(own + more, length)
        firsts.append(own + more)
    return firsts


def _mask(name: str, value: Any, ranks: tuple[int, ...], shapes: str) -> None:
    """Checks that `value` is a bool tensor whose number of dimensions is in `ranks`."""
    bool_mask(value, name)
    if value.dim() not in ranks:
        raise ValueError(f"{name}: expected shape {shapes}, got {tuple(value.shape)}; reshape it")


def _past(past: Tensor, ids: Tensor) -> Tensor:
    """Checks the tensor `past` and returns it as int64 that broadcasts over the last dimension of ids."""
    dense_tensor("past", past)
    if past.dtype == torch.bool or past.is_floating_point() or past.is_complex():
        raise TypeError(f"past: expected an int or an integer tensor, got {past.dtype}; pass int64 counts")
    if past.dim() and not (ids.dim() == 2 and past.dim() == 1 and is_size(past.shape[0], ids.shape[0])):
        each = f" or ({ids.shape[0]},)" if ids.dim() == 2 else ""
        raise ValueError(
            f"past: expected shape (){each}, one for each sequence, got {tuple(past.shape)} for ids of shape "
            f"{tuple(ids.shape)}; pass an int for all"
        )
    if past.device != ids.device:
        raise RuntimeError(
            f"past: expected the device of ids, {ids.device}, got {past.device}; move it with past.to(ids.device)"
        )
    return past.long().unsqueeze(-1) if past.dim() else past.long()
