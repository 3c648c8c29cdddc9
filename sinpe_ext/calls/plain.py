"""The short way of small calls: straight to a kernel, where no argument needs anything of the layers above it.

One token at a time costs microseconds. An operator checks what memory safety needs; what it refuses takes the long way,
whose checkers have the messages.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from .. import checks
from ..backend import loader
from ..encodings.encoding import Encoding
from ..ops.plan_words import host_words, plan_words
from ..ops.rows import ADD, ADD_OUT
from ..runtime.observers import is_traced
from ..runtime.parallel import in_context_parallel

_grad_enabled = torch.is_grad_enabled


def is_plain(t: Any, data: Tensor, encoding: Any, start: Any) -> bool:
    """Whether a kernel may take an ordinary tensor t (x of `add`, ids of `embed`) and `data` (x again, weight) as they
    are: no gradient, and the channels of the encoding. To be asked where `is_traced()` is false."""
    return (
        type(encoding) is Encoding
        and encoding.angle == "exact"
        and not data.is_nested  # which has no shape
        and data.dim() > 1
        and data.shape[-1] == encoding.dim  # a CUDA kernel could but answer NaN
        and (t.is_cpu or t.is_cuda)
        and type(start) is int
        and abs(start) < 4611686018427387904  # 2**62; a CUDA kernel has no way to refuse rows beyond int64
        and not (data.requires_grad and _grad_enabled())
        and forward_ad._current_level < 0
        and not in_context_parallel()
        and not t.is_neg()
        and not data.is_neg()
        and loader.compiled("cpu" if t.is_cpu else "cuda")
    )


def added(x: Any, encoding: Any, arguments: tuple[Any, ...], places: tuple[Any, Any], out: Any = None) -> Tensor | None:
    """`add`, into `out` where that is given, of arguments as the caller gave them; None where the long way has to be
    taken. `arguments` are those of AddCall from positions on, `places` grid_shape and extra_tokens.
    """
    if type(x) is not Tensor or is_traced():
        return None
    positions, start, scale, alpha, padding_mask, seq_dim, channel_dim, dropout, seed = arguments
    if (
        positions is not None
        or padding_mask is not None
        or seed is not None
        or type(scale) is not float
        or type(alpha) is not float
        or (alpha != 1.0 and out is None)  # the operator that makes its own result has none
        or type(dropout) is not float
        or dropout != 0.0
        or type(seq_dim) is not int
        or seq_dim != -2
        or type(channel_dim) is not int
        or channel_dim != -1
        or places[0] is not None
        or type(places[1]) is not int
        or places[1] != 0
        or not (encoding is None or type(encoding) in (Encoding, str))
        or x.is_nested
        or x.dim() < 2
    ):
        return None
    if type(encoding) is not Encoding:
        if checks.is_grid(encoding):
            return None
        encoding = checks.encoding(encoding, x.shape[-1])
    if not is_plain(x, x, encoding, start):
        return None
    try:
        if out is not None:
            return _into(out, x, encoding, start, scale, alpha)
        if x.is_cpu:
            return ADD.direct(x, host_words(encoding), start, scale)
        return ADD.direct_cuda(x, plan_words(encoding, x.device), start, scale)
    except (RuntimeError, OverflowError):
        return None


def _into(out: Any, x: Tensor, encoding: Encoding, start: int, scale: float, alpha: float) -> Tensor | None:
    """The same into x itself, or into a tensor that is apart from it; both contiguous, on the CPU."""
    if (
        type(out) is not Tensor
        or not x.is_cpu
        or not out.is_cpu
        or out.is_nested
        or out.layout is not torch.strided
        or out.requires_grad
        or out.is_inference()
        or out._is_zerotensor()
        or out.is_neg()
        or out.shape != x.shape
        or out.dtype != x.dtype
        or not out.is_contiguous()
        or not x.is_contiguous()
        or (out is not x and abs(out.data_ptr() - x.data_ptr()) < x.numel() * x.element_size())
    ):
        return None
    ADD_OUT.direct(x, host_words(encoding), None, None, start, False, scale, alpha, out)
    increment_version(out)
    return out
