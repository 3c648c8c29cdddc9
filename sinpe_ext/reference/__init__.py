"""The mathematics of every operator in plain array operations, with the bits of the kernels, for where none runs."""

from .rows import encode as encode
from .rows import table as table

__all__ = ["encode", "table"]


def __dir__() -> list[str]:
    return list(__all__)
