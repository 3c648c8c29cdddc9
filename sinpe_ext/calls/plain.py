"""The short way of calls whose arguments need nothing of the layers above a kernel: no data beside x, no gradient,
nobody who looks at operators.

One token at a time costs microseconds. `add` of a small tensor on the CPU, and `encode` of a few positions, go from
here straight into the kernel (`csrc/pybind/small_calls.h`, where the install has built `_core`); anything else to the
kernel of its operator, past what dispatches that. What a kernel refuses takes the long way, whose checkers have the
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from .. import checks
from ..backend import loader
from ..encodings.encoding import Encoding
from ..ops.embed import EMBED
from ..ops.packed_plan import pack_plan, pack_plan_cpu
from ..ops.rows import ADD, ADD_OUT, ENCODE, TABLE, TABLE_OUT
from ..runtime import observers
from ..runtime.observers import is_intercepted, of_values

FARTHEST = 2**62  # a start; a CUDA kernel has no way to refuse rows beyond int64
POSITION_DTYPES = torch.float32, torch.int64, torch.float64

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled


def _served(given: Any, dim: int) -> Encoding | None:
    """What was given for an encoding, an Encoding, a name or None, where kernels serve it for `dim` channels; None of
    anything else, and where the long way has to say what is wrong."""
    if given is None or type(given) is str:
        try:
            given = None if checks.is_grid(given) else checks.encoding(given, dim)
        except (TypeError, ValueError):  # which the long way raises again, in its order
            return None
    # A CUDA kernel could but answer other channels with NaN.
    return given if type(given) is Encoding and given.angle == "exact" and given.dim == dim else None


def _plan(given: Any, dim: int) -> tuple[Tensor, int, int, int] | None:
    """The plan of a `_served` encoding: the tensor that holds it, its address and length, and the encoding's start.
    `dim` 0 is that of the encoding."""
    encoding = _served(given, dim or given.dim)
    if encoding is None:
        return None
    packed_plan = pack_plan_cpu(encoding)
    return packed_plan, packed_plan.data_ptr(), packed_plan.numel(), encoding.start


def _set_up(module: Any) -> bool:
    """Gives `csrc/pybind/small_calls.h` what it asks; whether it serves."""
    of_torch = (
        torch.empty_like,
        torch._C._is_cow_tensor,  # type: ignore[attr-defined]
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._increment_version,  # type: ignore[attr-defined]
    )
    global _is_seen
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    asked = observers.CONDITIONS, observers.VARIABLES, is_intercepted
    serves: bool = exchange is not None and module.set_up(exchange, Tensor, *of_torch, *asked, _plan)
    if serves:
        _is_seen = module.is_intercepted
    return serves


def _is_seen_first() -> bool:
    """`is_intercepted`, at the first call: later ones ask C, in half the time, where the install has built it."""
    global _is_seen
    _is_seen = is_intercepted
    loader.small_calls(_set_up)
    return is_intercepted()


_is_seen: Callable[[], bool] = _is_seen_first


def added(given: tuple[Any, ...], out: Any = None) -> Tensor | None:
    """`add`, into `out` where that is given; None where the long way has to be taken.

    Args:
        given: the fields of AddArguments, of which a record is made only on the long way.
        out: None, or what the caller gave; x itself in `add_`.
    """
    if _is_compiling():
        return None
    try:
        small = loader.choices["small calls"]
    except KeyError:
        small = loader.small_calls(_set_up)
    result: Tensor | None = None if small is None else small.small_add(given, out)
    return _added_by_operator(given, out) if result is None else result


def _may_be_written(out: Any) -> bool:
    """Whether a kernel may write into `out`, but for where it lies."""
    return (
        type(out) is Tensor
        and not out.requires_grad
        and (not out.is_inference() or torch.is_inference_mode_enabled())
        and not out._is_zerotensor()
        and not out.is_neg()
    )


def _added_by_operator(given: tuple[Any, ...], out: Any) -> Tensor | None:
    x, encoding, positions, start, scale, alpha, mask, seq_dim, channel_dim, dropout, seed, grid_shape, extra = given
    if (
        type(x) is not Tensor
        or positions is not None
        or mask is not None
        or seed is not None
        or grid_shape is not None
        or type(start) is not int
        or abs(start) >= FARTHEST
        or type(scale) is not float
        or type(alpha) is not float
        or type(dropout) is not float
        or dropout != 0.0
        or type(seq_dim) is not int
        or seq_dim != -2
        or type(channel_dim) is not int
        or channel_dim != -1
        or type(extra) is not int
        or extra != 0
        or _is_seen()
        or (x.requires_grad and _grad_enabled())
        or x.is_neg()
        or x.is_nested  # which has no shape
        or x.dim() < 2
        or not (x.is_cpu or x.is_cuda)
        or not loader.compiled("cpu" if x.is_cpu else "cuda")
        or not (out is None or _may_be_written(out))
    ):
        return None
    encoding = _served(encoding, x.shape[-1])
    if encoding is None:
        return None
    try:
        if out is not None:
            if not _are_apart(x, out):
                return None
            ADD_OUT.direct(x, pack_plan_cpu(encoding), None, None, start, False, scale, alpha, out)
            increment_version(out)
            return out
        if alpha != 1.0:  # the operator that makes its own result has none
            return None
        if x.is_cpu:
            return ADD.direct(x, pack_plan_cpu(encoding), start, scale)
        return ADD.direct_cuda(x, pack_plan(encoding, x.device), start, scale)
    except (RuntimeError, OverflowError):
        return None


def _are_apart(x: Tensor, out: Tensor) -> bool:
    """Whether `out` is x, or like it in memory of its own; both contiguous, on the CPU."""
    return (
        x.is_cpu
        and out.is_cpu
        and not out.is_nested
        and out.layout is torch.strided
        and out.shape == x.shape
        and out.dtype == x.dtype
        and out.is_contiguous()
        and x.is_contiguous()
        and (out is x or abs(out.data_ptr() - x.data_ptr()) >= x.numel() * x.element_size())
    )


def encoded(positions: Any, encoding: Any, dtype: Any) -> Tensor | None:
    """`encode`; None where the long way has to be taken."""
    if type(encoding) is not Encoding or type(dtype) is not torch.dtype or _is_compiling():
        return None
    try:
        small = loader.choices["small calls"]
    except KeyError:
        small = loader.small_calls(_set_up)
    result: Tensor | None = None if small is None else small.small_encode(positions, encoding, dtype)
    return _encoded_by_operator(positions, encoding, dtype) if result is None else result


def _encoded_by_operator(positions: Any, encoding: Encoding, dtype: torch.dtype) -> Tensor | None:
    if (
        type(positions) is not Tensor
        or positions.dtype not in POSITION_DTYPES
        or positions.layout is not torch.strided
        or not (positions.is_cpu or positions.is_cuda)
        or positions.requires_grad
        or encoding.angle != "exact"
        or _is_seen()
        or positions.is_neg()
        or not loader.compiled("cpu" if positions.is_cpu else "cuda")
    ):
        return None
    try:
        if positions.is_cpu:
            return ENCODE.direct(positions, pack_plan_cpu(encoding), encoding.dim, dtype)
        return ENCODE.direct_cuda(positions, pack_plan(encoding, positions.device), encoding.dim, dtype)
    except (RuntimeError, TypeError):
        return None


def tabled(given: tuple[Any, ...]) -> Tensor | None:
    """`table` of a sequence on the CPU; None where the long way has to be taken. `given` are the fields of
    TableArguments."""
    length, encoding, start, dtype, device, out, flatten, extra_tokens, dim = given
    if (
        dim is not None
        or flatten is not False
        or type(extra_tokens) is not int
        or extra_tokens != 0
        or type(length) is not int
        or length < 0
        or type(encoding) is not Encoding
        or encoding.angle != "exact"
        or type(start) is not int
        or not (dtype is None or type(dtype) is torch.dtype)
        or _is_compiling()
        or _is_seen()
    ):
        return None
    if out is not None:
        return _tabled_into(out, length, encoding, start, dtype) if device is None else None
    where = torch.get_default_device() if device is None else device
    if type(where) is not torch.device or where.type != "cpu" or not loader.compiled("cpu"):
        return None
    try:
        return TABLE.direct(pack_plan_cpu(encoding), start, length, encoding.dim, dtype or torch.float32)
    except (RuntimeError, OverflowError, TypeError):
        return None


def _tabled_into(out: Any, length: int, encoding: Encoding, start: int, dtype: torch.dtype | None) -> Tensor | None:
    if (
        not _may_be_written(out)
        or not (dtype is None or dtype == out.dtype)
        or not out.is_cpu
        or out.is_nested
        or out.layout is not torch.strided
        or out.shape != (length, encoding.dim)
        or not out.is_contiguous()
        or not loader.compiled("cpu")
    ):
        return None
    try:
        TABLE_OUT.direct(pack_plan_cpu(encoding), start, out)
    except (RuntimeError, OverflowError):  # out of another dtype too
        return None
    increment_version(out)
    return out


def embedded(given: tuple[Any, ...]) -> Tensor | None:
    """`embed`; None where the long way has to be taken. `given` are the fields of EmbedArguments."""
    ids, weight, encoding, positions, start, scale, alpha, dropout, seed, padding_idx, mask, *rest = given
    sparse, encode_padding, seq_dim = rest
    if type(ids) is not Tensor or type(weight) not in (Tensor, nn.Parameter) or _is_compiling() or _is_seen():
        return None
    if (
        positions is not None
        or mask is not None
        or seed is not None
        or type(start) is not int
        or abs(start) >= FARTHEST
        or type(scale) is not float
        or type(alpha) is not float
        or alpha != 1.0
        or type(dropout) is not float
        or dropout != 0.0
        or type(sparse) is not bool
        or encode_padding is not True
        or type(seq_dim) is not int
        or seq_dim != -1
        or ids.dtype != torch.int64
        or not ids.numel()
        or ids.is_nested
        or weight.is_nested
        or weight.dim() != 2
        or (weight.requires_grad and _grad_enabled())
        or weight.is_neg()
        or weight.device != ids.device
        or not (ids.is_cpu or (ids.is_cuda and not of_values()))
        or not loader.compiled("cpu" if ids.is_cpu else "cuda")
    ):
        return None
    rows, channels = weight.shape
    if not (padding_idx is None or (type(padding_idx) is int and -rows <= padding_idx < rows)):
        return None
    encoding = _served(encoding, channels)
    if encoding is None:
        return None
    nothing = None, None, None, None  # positions, padding_mask, alpha, seed
    try:
        if ids.is_cpu:
            return EMBED.direct(ids, weight, pack_plan_cpu(encoding), *nothing, start, False, scale, -1, False, 0, [])
        packed_plan = pack_plan(encoding, ids.device)
        return EMBED.direct_cuda(ids, weight, packed_plan, *nothing, start, False, scale, -1, False, 0, [])
    except (RuntimeError, OverflowError):
        return None
