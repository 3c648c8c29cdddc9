"""Checks of a device, a dtype and a size, and of x and weight, whose memory the kernels' binding looks at itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..backend import loader
from ..encodings.values import described, in_memory, strided_tensor

if TYPE_CHECKING:
    import torch

INT64_MAX = 2**63 - 1


def float_dtype(name: str, value: Any) -> None:
    """A dtype that results can have."""
    import torch

    known = torch.float32, torch.float64, torch.bfloat16, torch.float16
    if not isinstance(value, torch.dtype) or value not in known:
        plain = isinstance(value, (torch.dtype, str, type)) or value is None
        raise TypeError(
            f"{name}: expected torch.float32, float64, bfloat16 or float16, got "
            f"{repr(value) if plain else described(value)}; pass "
            f"{_dtype_called(value) or 'one of these and convert the result'}"
        )


_DTYPE_NAMES = {
    "float32": ("fp32", "f32", "f4", "float", "single"),
    "float64": ("fp64", "f64", "f8", "double"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "f16", "f2", "half"),
}


def _dtype_called(value: Any) -> str:
    """torch's name of a dtype that a string or NumPy names; "" where it has none."""
    called: Any = value if isinstance(value, str) else getattr(value, "name", getattr(value, "__name__", ""))
    key = str(called).lower().removeprefix("torch.")
    return next((f"torch.{name}" for name, others in _DTYPE_NAMES.items() if key in (name, *others)), "")


def device(value: Any) -> torch.device:
    """A torch.device, or what torch.device() takes for one."""
    import torch

    if isinstance(value, torch.device):
        return value
    if isinstance(value, int) and not isinstance(value, bool):  # of an accelerator; without one torch says so
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
    """That `rows` rows of `width` elements of `size` bytes are no more bytes than int64 counts."""
    if rows > INT64_MAX // (max(width, 1) * size):
        raise ValueError(
            f"{name}: expected at most {INT64_MAX // (max(width, 1) * size)} rows of {width} channels, what memory can "
            f"address, got {rows}; ask for fewer"
        )


def operand(name: str, value: Any) -> None:
    """x of `add` or weight of `embed`: an ordinary strided tensor or a DTensor. That its elements are in memory is for
    the kernels' binding to see, csrc/torch/tensors.h, where there is one."""
    import torch

    strided_tensor(name, value, may_be_dtensor=True)
    if not torch.compiler.is_compiling() and not loader.compiled(value.device.type):
        in_memory(name, value)
