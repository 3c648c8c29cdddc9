"""Fast path for calls with plain arguments: no gradient, and no mode or transform that intercepts operators.

A call with one token takes microseconds, so its overhead matters. `add` of a small CPU tensor and `encode` of a few
positions call the kernel directly (`csrc/pybind/small_calls.h`, if the installation has built `_core`). All other calls
run the kernel of their operator without torch's dispatcher. Each function returns None for a call that it does not
support, or that a kernel refuses. The caller then takes the general path, which raises the error messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from .. import torch_state
from ..backend import loader
from ..encodings import resolve
from ..encodings.encoding import Encoding
from ..torch_state import device_checks_requested, is_intercepted
from . import grid_rows
from .add import ADD, ADD_OUT
from .embed import EMBED
from .encoded_rows import ENCODE, TABLE, TABLE_OUT
from .grid_add import GridAdd
from .plans import pack_plan, pack_plan_cpu
from .records import AddArguments

MAX_START = 2**62  # a CUDA kernel cannot raise an error for positions beyond int64
POSITION_DTYPES = torch.float32, torch.int64, torch.float64

# True only where the call is being compiled; torch.export without dynamo is a mode, which `is_intercepted` reports.
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled


def _supported_encoding(given: Any, dim: int) -> Encoding | None:
    """The Encoding of an `encoding` argument (an Encoding, a name or None), or None if the kernels do not support it
    for `dim` channels."""
    if given is None or type(given) is str:
        try:
            given = None if resolve.is_grid(given) else resolve.encoding(given, dim)
        except (TypeError, ValueError):  # the general path raises the error of the first invalid argument
            return None
    # dim is compared here because a CUDA kernel cannot raise for another number of channels.
    return given if type(given) is Encoding and given.angle == "exact" and given.dim == dim else None


def _plan(given: Any, dim: int) -> tuple[Tensor, int, int, int] | None:
    """The packed plan of a `_supported_encoding`: (tensor, address, number of elements, start of the encoding).

    dim = 0 stands for the dim of the encoding.
    """
    encoding = _supported_encoding(given, dim or given.dim)
    if encoding is None:
        return None
    packed_plan = pack_plan_cpu(encoding)
    return packed_plan, packed_plan.data_ptr(), packed_plan.numel(), encoding.start


def _grid(given: Any, x: Tensor) -> tuple[Any, int, int, int, int, int] | None:
    """The operands of a grid whose axes are dimensions of x, all from 0 on: (the tensors, address and number of
    elements of the packed grid, the same of the rows of its axes, number of samples)."""
    try:
        if not resolve.is_grid(given):
            return None
        call = GridAdd(AddArguments(x, given))
    except (TypeError, ValueError, RuntimeError):  # the general path raises it again
        return None
    if call.is_single_encoding or call.form.is_flat or call.is_empty or not call._is_exact():
        return None
    lengths = tuple(call.form.lengths)
    packed = grid_rows.pack_grid(call.grid, lengths, False, x.device)
    rows = grid_rows.values(call.grid, lengths, call.starts, call.acc, x.device, 1.0, False)
    return (packed, rows), packed.data_ptr(), packed.numel(), rows.data_ptr(), rows.numel(), call.form.batch


def _set_up(module: Any) -> bool:
    """Passes the Python objects that `csrc/pybind/small_calls.h` needs to the module `_core`; returns whether it can be
    used."""
    of_torch = (
        torch.empty_like,
        torch._C._is_cow_tensor,  # type: ignore[attr-defined]
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._increment_version,  # type: ignore[attr-defined]
    )
    global _is_intercepted
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    conditions = torch_state.CONDITIONS, torch_state.VARIABLES, is_intercepted
    is_usable: bool = exchange is not None and module.set_up(exchange, Tensor, *of_torch, *conditions, _plan, _grid)
    if is_usable:
        _is_intercepted = module.is_intercepted
    return is_usable


def _is_intercepted_at_first_call() -> bool:
    """`is_intercepted` for the first call. For later calls it replaces `_is_intercepted` by the C function of `_core`,
    which takes half the time, or by `is_intercepted` if `_core` was not built."""
    global _is_intercepted
    _is_intercepted = is_intercepted
    loader.small_call("small_add", _set_up)
    return is_intercepted()


_is_intercepted: Callable[[], bool] = _is_intercepted_at_first_call


def try_add(given: tuple[Any, ...], out: Any = None) -> Tensor | None:
    """`add`, or None for a call that the fast path does not support.

    Args:
        given: the fields of AddArguments; the record itself is created on the general path only.
        out: the argument `out`; x itself for `add_`.
    """
    if _is_dynamo_compiling():
        return None
    try:
        small_add = loader.choices["small_add"]
    except KeyError:
        small_add = loader.small_call("small_add", _set_up)
    result: Tensor | None = small_add(given, out)
    return _add_by_operator(given, out) if result is None else result


def _is_writable(out: Any) -> bool:
    """Whether a kernel may write to `out`; overlap with x is checked by `_is_same_or_disjoint`."""
    return (
        type(out) is Tensor
        and not out.requires_grad
        and (not out.is_inference() or torch.is_inference_mode_enabled())
        and not out._is_zerotensor()
        and not out.is_neg()
    )


def _add_by_operator(given: tuple[Any, ...], out: Any) -> Tensor | None:
    """`try_add` by the operator's kernel, without torch's dispatcher."""
    x, encoding, positions, start, scale, alpha, mask, seq_dim, channel_dim, dropout, seed, grid_shape, extra = given
    if (
        type(x) is not Tensor
        or positions is not None
        or mask is not None
        or seed is not None
        or grid_shape is not None
        or type(start) is not int
        or abs(start) >= MAX_START
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
        or _is_intercepted()
        or (x.requires_grad and _grad_enabled())
        or x.is_neg()
        or x.is_nested  # a nested tensor has no shape
        or x.dim() < 2
        or not (x.is_cpu or x.is_cuda)
        or not loader.compiled("cpu" if x.is_cpu else "cuda")
        or not (out is None or _is_writable(out))
    ):
        return None
    encoding = _supported_encoding(encoding, x.shape[-1])
    if encoding is None:
        return None
    try:
        factor = None if alpha == 1.0 else torch.full((), alpha, dtype=torch.float64, device="cpu")
        operands: Any = x, pack_plan(encoding, x.device), None, None, factor, None, start, False, scale, 0, []
        if out is None:
            return ADD.direct(*operands) if x.is_cpu else ADD.direct_cuda(*operands)
        if not _is_same_or_disjoint(x, out):
            return None
        if x.is_cpu:
            ADD_OUT.direct(*operands, out)
        else:
            ADD_OUT.direct_cuda(*operands, out)
        increment_version(out)
        return out
    except (RuntimeError, OverflowError):
        return None


def _is_contiguous(out: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether `out` is a contiguous strided tensor of this shape."""
    return not out.is_nested and out.layout is torch.strided and out.shape == shape and out.is_contiguous()


def _is_same_or_disjoint(x: Tensor, out: Tensor) -> bool:
    """Whether x and `out` are contiguous tensors of one shape, dtype and device, and `out` is x or shares no memory
    with it."""
    return (
        out.device == x.device
        and _is_contiguous(out, x.shape)
        and out.dtype == x.dtype
        and x.is_contiguous()
        and (out is x or abs(out.data_ptr() - x.data_ptr()) >= x.numel() * x.element_size())
    )


def try_encode(positions: Any, encoding: Any, dtype: Any) -> Tensor | None:
    """`encode`, or None for a call that the fast path does not support."""
    if type(encoding) is not Encoding or type(dtype) is not torch.dtype or _is_dynamo_compiling():
        return None
    try:
        small_encode = loader.choices["small_encode"]
    except KeyError:
        small_encode = loader.small_call("small_encode", _set_up)
    result: Tensor | None = small_encode(positions, encoding, dtype)
    return _encode_by_operator(positions, encoding, dtype) if result is None else result


def _encode_by_operator(positions: Any, encoding: Encoding, dtype: torch.dtype) -> Tensor | None:
    """`try_encode` by the operator's kernel, without torch's dispatcher."""
    if (
        type(positions) is not Tensor
        or positions.dtype not in POSITION_DTYPES
        or positions.layout is not torch.strided
        or not (positions.is_cpu or positions.is_cuda)
        or positions.requires_grad
        or encoding.angle != "exact"
        or _is_intercepted()
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


def try_table(given: tuple[Any, ...]) -> Tensor | None:
    """`table` of a sequence on the CPU, or None for a call that the fast path does not support.

    Args:
        given: the fields of TableArguments.
    """
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
        or abs(start) >= MAX_START
        or not (dtype is None or type(dtype) is torch.dtype)
        or _is_dynamo_compiling()
        or _is_intercepted()
    ):
        return None
    if out is not None:
        return _try_table_into(out, length, encoding, start, dtype) if device is None else None
    where = torch.get_default_device() if device is None else device
    if type(where) is not torch.device or where.type != "cpu" or not loader.compiled("cpu"):
        return None
    try:
        return TABLE.direct(pack_plan_cpu(encoding), start, length, encoding.dim, dtype or torch.float32)
    except (RuntimeError, OverflowError, TypeError):
        return None


def _try_table_into(out: Any, length: int, encoding: Encoding, start: int, dtype: torch.dtype | None) -> Tensor | None:
    """`try_table` with `out`; the kernel refuses what is not checked here, such as an integer `out`."""
    if (
        not _is_writable(out)
        or not (dtype is None or dtype == out.dtype)
        or not out.is_cpu
        or not _is_contiguous(out, (length, encoding.dim))
        or not loader.compiled("cpu")
    ):
        return None
    try:
        TABLE_OUT.direct(pack_plan_cpu(encoding), start, out)
    except (RuntimeError, OverflowError):
        return None
    increment_version(out)
    return out


def try_embed(given: tuple[Any, ...]) -> Tensor | None:
    """`embed`, or None for a call that the fast path does not support; `given` has the fields of EmbedArguments."""
    ids, weight, encoding, positions, start, scale, alpha, dropout, seed, padding_idx, mask, *rest = given
    sparse, encode_padding, seq_dim = rest
    if (
        type(ids) is not Tensor
        or type(weight) not in (Tensor, nn.Parameter)
        or _is_dynamo_compiling()
        or _is_intercepted()
        or positions is not None
        or mask is not None
        or seed is not None
        or type(start) is not int
        or abs(start) >= MAX_START
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
        or not (ids.is_cpu or (ids.is_cuda and not device_checks_requested()))
        or not loader.compiled("cpu" if ids.is_cpu else "cuda")
    ):
        return None
    rows, channels = weight.shape
    if not (padding_idx is None or (type(padding_idx) is int and -rows <= padding_idx < rows)):
        return None
    encoding = _supported_encoding(encoding, channels)
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
