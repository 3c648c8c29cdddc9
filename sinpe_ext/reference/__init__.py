"""Reference implementation of every operator in plain array operations, bitwise equal to the kernels; used where no
kernel is available."""

from .rows import encode as encode
from .rows import table as table

__all__ = ["encode", "table"]


def __dir__() -> list[str]:
    return list(__all__)
