"""The usual float32 formula of the encoding, with which the demo compares time and accuracy.

It has the same operations in the same precision as most existing code, so that its time and its error are the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BASE = 10000.0


def usual_parts(length: int, dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The inputs of `usual_table`, which are computed once: a column of positions, and the even channel indices."""
    return torch.arange(length, dtype=dtype).unsqueeze(1), torch.arange(0, dim, 2, dtype=dtype)


def usual_table(position: Tensor, index: Tensor) -> Tensor:
    """The table of the PyTorch tutorial and most research code, computed with exp in the dtype of `position`."""
    dim = 2 * index.numel()
    frequency = torch.exp(index * (-math.log(BASE) / dim))
    pe = torch.zeros(position.numel(), dim, dtype=position.dtype)
    angle = position * frequency
    pe[:, 0::2] = torch.sin(angle)
    pe[:, 1::2] = torch.cos(angle)
    return pe
