"""The mathematics of every operator in plain array operations, with the bits of the kernels, for where none runs."""

from .rows import encode as encode
from .rows import table as table
