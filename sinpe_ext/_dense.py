"""Checks of one value by itself: flags, devices, dtypes, sizes, tensors as they lie in memory. Part of `_checks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._part import is_dtensor
from .backend import loader

if TYPE_CHECKING:
    import torch

INT64_MAX = 2**63 - 1
_SEEN_BY_KERNELS = ("x", "weight")  # as they were given: their binding makes the same check, csrc/torch/tensors.h


def array_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, array or NumPy scalar; None for anything else. A nested tensor raises RuntimeError."""
    shape = getattr(value, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and hasattr(value, "dtype") else None


def is_scalar_array(value: Any) -> bool:
    """Whether a value is a NumPy scalar or a tensor or array of no dimensions."""
    try:
        return array_shape(value) == ()
    except RuntimeError:
        return False


def described(value: Any) -> str:
    """Shape and dtype of a tensor or array, the type of anything else."""
    try:
        shape = array_shape(value)
    except RuntimeError:
        return "a nested tensor"
    return type(value).__name__ if shape is None else f"{value.dtype} of shape {shape}"


def shown(value: Any) -> str:
    """What to print of a value: a number or a name in full, of anything else the kind."""
    if isinstance(value, int) and value.bit_length() > 10000:  # Python refuses to print the longest
        return f"an int of {value.bit_length()} bits"
    plain = value is None or isinstance(value, (int, float, str, tuple))
    return repr(value) if plain else described(value)


def flag(name: str, value: Any) -> bool:
    """A yes or no: a bool, NumPy's, or the int 0 or 1."""
    if isinstance(value, bool):
        return value
    if (type(value) is int and value in (0, 1)) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}: expected bool, got {described(value)}; pass True or False")


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
    try:
        return torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        names = isinstance(value, (str, int))
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


def dense_tensor(name: str, value: Any, *, may_be_dtensor: bool = False) -> None:
    """An ordinary strided tensor, all of whose elements are in memory."""
    import torch

    if not isinstance(value, torch.Tensor):
        held = isinstance(value, torch.nn.Module) and isinstance(getattr(value, "weight", None), torch.Tensor)
        raise TypeError(
            f"{name}: expected a torch.Tensor, got {type(value).__name__}; pass "
            f"{'its .weight' if held else 'torch.as_tensor(...)'}"
        )
    if type(value) is not torch.Tensor:
        if not may_be_dtensor and is_dtensor(value):
            raise TypeError(
                f"{name}: expected an ordinary tensor, as the data is, got a DTensor; pass the data as a DTensor of "
                f"the same mesh, or {name}.full_tensor()"
            )
        if type(value).__name__ == "MaskedTensor":
            raise TypeError(
                f"{name}: expected a dense strided tensor, got a MaskedTensor; pass its get_data(), and its mask as "
                "padding_mask"
            )
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "a nested tensor" if value.is_nested else value.dtype if value.is_quantized else f"layout {value.layout}"
        raise TypeError(f"{name}: expected a dense strided tensor, got {kind}; convert it to a dense one first")
    if torch.compiler.is_compiling() or (name in _SEEN_BY_KERNELS and loader.compiled(value.device.type)):
        return
    in_memory(name, value)


def in_memory(name: str, value: torch.Tensor) -> None:
    """That a tensor's elements lie in its storage, which may have been resized under it: torch itself does not look."""
    import torch

    if torch.compiler.is_compiling() or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return
    if torch.jit.is_tracing() or torch._is_functional_tensor(value):  # type: ignore[attr-defined]
        return
    try:
        there = value.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):  # torch.func's and other tensors without a storage
        return
    reach: Any = value.numel()
    if type(reach) is not int or type(there) is not int or not reach:  # traced with symbols
        return
    if not value.is_contiguous():
        reach = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    needed = (value.storage_offset() + reach) * value.element_size()
    if needed > there:
        raise RuntimeError(
            f"{name}: expected a tensor whose memory holds its elements, got {there} bytes where {needed} are needed; "
            "it was freed or resized, use it where it is whole"
        )
