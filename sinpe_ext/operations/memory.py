"""Checks of tensors that are written to: no internal overlap, and no memory shared with tensors that are read."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from .. import torch_state
from ..encodings.values import check_storage_bounds, strided_tensor
from ..torch_state import PLAIN
from .checks import FLOATS, is_ordinary, same_device


def output(out: Any, x: torch.Tensor, has_no_data: bool) -> None:
    """Checks `out` of `add`: shape, dtype and device of x, and memory that is either exactly x's or disjoint from
    it."""
    if not is_ordinary(out, FLOATS):
        strided_tensor("out", out)
    check_storage_bounds("out", out)
    if out.shape != x.shape or out.dtype != x.dtype:
        raise ValueError(
            f"out: expected shape {tuple(x.shape)} and dtype {x.dtype}, those of x, got {tuple(out.shape)} and "
            f"{out.dtype}; pass torch.empty_like(x)"
        )
    if out.device != x.device:
        same_device("out", out, x)
    if torch.compiler.is_compiling():  # a graph writes to `out` by copy_, which has its own checks
        return
    writable("out", out)
    if out is not x and not has_no_data and overlaps_partly(out, x):
        raise RuntimeError(
            "out: expected memory apart from x, or exactly x's, got a tensor whose range of memory overlaps with that "
            "of x; clone() one of them"
        )


def check_disjoint(out: torch.Tensor, name: str, t: torch.Tensor) -> None:
    """Raises RuntimeError if an argument shares memory with `out`: rows would read what other rows have written."""
    if _may_share(_elements_of(out), _elements_of(t)):
        raise RuntimeError(
            f"{name}: expected memory apart from the tensor that is written to, got a tensor whose range of memory "
            f"overlaps with it; clone() {name} first"
        )


def _may_share(out: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether the ranges of memory of two tensors overlap."""
    if torch.compiler.is_compiling() or type(out) not in PLAIN or type(t) not in PLAIN or t.device != out.device:
        return False
    if torch_state.has_no_data(out.device) or not out.numel() or not t.numel():
        return False
    try:
        return _ranges_overlap(out, t)
    except RuntimeError:  # torch.func's tensors have no data pointer
        return False


def writable(name: str, out: torch.Tensor) -> None:
    """Checks that a tensor may be written to and that no two of its elements share memory (no internal overlap)."""
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{name}: expected a tensor that may be written to, got an inference tensor outside of inference mode, "
            "where an in-place update is not allowed; clone() it first"
        )
    if not torch.compiler.is_compiling() and out._is_zerotensor():
        raise RuntimeError(f"{name}: expected a tensor that may be written to, got an immutable zero; clone() it first")
    if 0 in out.shape or out.is_contiguous():
        return
    reach = 0
    for stride, size in _nested(out):
        if stride <= reach:
            raise RuntimeError(
                f"{name}: expected one memory location for each element, got strides {tuple(out.stride())} for shape "
                f"{tuple(out.shape)}, where more than one element of the written-to tensor refers to a single memory "
                "location; clone() it first"
            )
        reach += (size - 1) * stride


def refuse_transforms(state: torch_state.TorchState, *tensors: Any) -> None:
    """Raises RuntimeError if torch.func, or forward-mode differentiation of one of the tensors, intercepts a call with
    `out`."""
    is_dual = (
        state.transformed
        and not state.compiling
        and any(isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
    )
    if state.functorch or is_dual:
        raise RuntimeError(
            "out: expected no transform of torch.func and no forward-mode differentiation, which cannot see what is "
            "written, got one; leave out unset"
        )


def refuse_gradient() -> None:
    """Raises RuntimeError: autograd would have to record what is written to `out`."""
    raise RuntimeError(
        "out: expected no gradient to be needed, got an argument that requires it; leave out unset, or call under "
        "torch.no_grad()"
    )


def in_place(x: torch.Tensor) -> None:
    """Checks that x of `add_` may be modified in place."""
    if torch.compiler.is_compiling():
        return
    writable("x", _elements_of(x))
    if torch.is_grad_enabled() and x.requires_grad:
        base = x._base if x._is_view() else None
        if x.is_leaf or (base is not None and base.is_leaf and base.requires_grad):
            raise RuntimeError(
                f"x: expected a tensor that may be written to, got a {'' if base is None else 'view of a '}leaf "
                "Variable that requires grad, which cannot be used in an in-place operation; call add, or detach() it"
            )


def _elements_of(t: Any) -> Any:
    """A tensor, or the values of a jagged tensor: the tensor that has the memory."""
    return t.values() if isinstance(t, torch.Tensor) and t.layout == torch.jagged else t


def _nested(t: torch.Tensor) -> list[tuple[int, int]]:
    """(stride, size) of the dimensions with more than one element, smallest stride first."""
    return sorted((stride, size) for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1)


def overlaps_partly(out: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a `writable` out shares elements with x but is not exactly the same view of memory.

    Exact for equal strides; otherwise tensors whose memory ranges overlap count as sharing.
    """
    if not x.numel():
        return False
    size, distance = out.element_size(), x.data_ptr() - out.data_ptr()
    if out.is_contiguous() and x.is_contiguous():
        return 0 < abs(distance) < x.numel() * size
    if all(size == 1 or step == other for size, step, other in zip(x.shape, out.stride(), x.stride(), strict=True)):
        return distance != 0 and _reaches(distance, _nested(out), size)
    return _ranges_overlap(out, x)


def _ranges_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the ranges of memory, from the first to the last element, of two tensors with elements overlap."""
    first, end = _range(a)
    other_first, other_end = _range(b)
    return first < other_end and other_first < end


def _range(t: torch.Tensor) -> tuple[int, int]:
    """The address of the first element of a tensor, and of the byte after its last one."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()


def _reaches(distance: int, dimensions: list[tuple[int, int]], item: int) -> bool:
    """Whether the addresses of two elements of a tensor can differ by `distance` bytes, give or take less than the
    size of one element."""
    if not dimensions:
        return abs(distance) < item
    *rest, (stride, size) = dimensions
    step = stride * item
    reach = sum((n - 1) * s for s, n in rest) * item + item - 1  # what the dimensions with smaller strides can add
    first, last = max(1 - size, -((reach - distance) // step)), min(size - 1, (distance + reach) // step)
    return any(_reaches(distance - k * step, rest, item) for k in range(first, last + 1))
