"""Checks of devices, dtypes and sizes, and of x and weight, whose storage the kernels' binding checks itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..backend import loader
from ..encodings.values import check_storage_bounds, described, strided_tensor

if TYPE_CHECKING:
    import torch

INT64_MAX = 2**63 - 1


def float_dtype(name: str, value: Any, advice: str = "one of these and convert the result") -> None:
    """Checks that a value is a dtype that results can have; `advice` says what to pass instead."""
    import torch

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


def device(value: Any) -> torch.device:
    """A torch.device from a `device` argument, which may be anything that torch.device() accepts."""
    import torch

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


def addressable(name: str, rows: int, width: int, size: int) -> None:
    """Raises ValueError if `rows` rows of `width` elements of `size` bytes exceed the int64 range in bytes."""
    if rows > INT64_MAX // (max(width, 1) * size):
        raise ValueError(
            f"{name}: expected at most {INT64_MAX // (max(width, 1) * size)} rows of {width} channels, what memory can "
            f"address, got {rows}; ask for fewer"
        )


def operand(name: str, value: Any) -> None:
    """Checks x of `add` or weight of `embed`: an ordinary strided tensor or a DTensor. Where the kernels serve the
    device, their binding checks the bounds of the storage itself (csrc/torch/tensors.h)."""
    import torch

    strided_tensor(name, value, may_be_dtensor=True)
    if not torch.compiler.is_compiling() and not loader.compiled(value.device.type):
        check_storage_bounds(name, value)
