"""The array operations of the reference implementation, with the same names for torch and NumPy.

The reference implementation is written once. Operations that have the same name in both libraries (`sin`, `where`,
operators, slices) are called on `xp` directly; the others are defined here. Importing this module imports neither
library.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Array = Any  # a torch.Tensor or a numpy.ndarray


class TorchArrays:
    """torch on one device. Every tensor is created with a device: `torch.set_default_device` must not affect them."""

    def __init__(self, xp: ModuleType, device: Any) -> None:
        from .mkl import warm_up

        warm_up()
        self.xp = xp
        self.device = xp.device("cpu" if device is None else device)
        # Elements of one work buffer. CPU: half a megabyte of float64 per thread, so that passes over it stay in the
        # second-level cache and are few enough that the cost of waking the threads is negligible.
        self.block = 2**16 * min(xp.get_num_threads(), 64) if self.device.type == "cpu" else 2**22

    def quiet(self, function: Callable[..., Array]) -> Callable[..., Array]:
        """Decorator: run the function without autograd."""
        import torch

        return torch.no_grad()(function)

    def int64_array(self, words: array[int]) -> Array:
        """An int64 array with these values."""
        return self.xp.frombuffer(words, dtype=self.xp.int64).to(self.device)

    def array_of(self, items: list[Any], dtype: Any) -> Array:
        """An array with these items."""
        return self.xp.tensor(items, dtype=dtype, device=self.device)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.zeros(shape, dtype=dtype, device=self.device)

    def arange(self, start: int, stop: int, step: int = 1) -> Array:
        return self.xp.arange(start, stop, step, dtype=self.xp.int64, device=self.device)

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.to(dtype)

    def copy(self, target: Array, source: Array) -> None:
        """Copies `source` into `target`."""
        target.copy_(source)

    def split(self, x: Array, rows: int) -> Sequence[Array]:
        """Views of consecutive rows; the last may have fewer."""
        return x.split(rows)

    def multiply_add(self, x: Array, y: Array, z: Array, out: Array) -> None:
        """out = x * y + z."""
        self.xp.addcmul(z, x, y, out=out)

    def same_bits(self, x: Array, y: Array) -> bool:
        """Whether two contiguous float32 arrays are bitwise equal."""
        words = self.xp.int32 if x.numel() % 2 else self.xp.int64  # 64 bits at a time take half as long
        return self.xp.equal(x.reshape(-1).view(words), y.reshape(-1).view(words))

    def nonzero(self, mask: Array) -> tuple[Array, ...]:
        return self.xp.nonzero(mask, as_tuple=True)

    def is_float(self, x: Array) -> bool:
        return x.is_floating_point()


class NumpyArrays:
    """NumPy; same methods as TorchArrays."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp
        self.device = None
        self.block = 2**16

    def quiet(self, function: Callable[..., Array]) -> Callable[..., Array]:
        """Decorator: run the function without NumPy's floating-point warnings. Overflow to inf in a narrow dtype and
        the wrapping of an integer phase are intended."""
        return self.xp.errstate(all="ignore")(function)

    def int64_array(self, words: array[int]) -> Array:
        return self.xp.frombuffer(words, dtype=self.xp.int64)

    def array_of(self, items: list[Any], dtype: Any) -> Array:
        return self.xp.array(items, dtype=dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.empty(shape, dtype=dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.xp.zeros(shape, dtype=dtype)

    def arange(self, start: int, stop: int, step: int = 1) -> Array:
        return self.xp.arange(start, stop, step, dtype=self.xp.int64)

    def cast(self, x: Array, dtype: Any) -> Array:
        return x.astype(dtype)

    def copy(self, target: Array, source: Array) -> None:
        self.xp.copyto(target, source, casting="unsafe")

    def split(self, x: Array, rows: int) -> Sequence[Array]:
        return [x[first : first + rows] for first in range(0, len(x), rows)]

    def multiply_add(self, x: Array, y: Array, z: Array, out: Array) -> None:
        self.xp.add(x * y, z, out=out)

    def same_bits(self, x: Array, y: Array) -> bool:
        return self.xp.array_equal(x.view(self.xp.int32), y.view(self.xp.int32))

    def nonzero(self, mask: Array) -> tuple[Array, ...]:
        return self.xp.nonzero(mask)

    def is_float(self, x: Array) -> bool:
        return x.dtype.kind == "f"


Arrays = TorchArrays | NumpyArrays


def arrays(xp: ModuleType | None, device: Any = None) -> Arrays:
    """The operations of `xp` (torch when None) on `device` (the CPU when None)."""
    if xp is not None and xp.__name__ == "numpy":
        return NumpyArrays(xp)
    import torch

    return TorchArrays(torch, device)
