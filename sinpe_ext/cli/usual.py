"""The formula that most code has for the encoding, which the demo times ours against.

Our own short transcription with the same operations in the same precision, so that its time and its error are theirs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BASE = 10000.0


def usual_parts(length: int, dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """What the usual code keeps ready: positions as a column, and the even channel indices."""
    return torch.arange(length, dtype=dtype).unsqueeze(1), torch.arange(0, dim, 2, dtype=dtype)


def usual_table(position: Tensor, index: Tensor) -> Tensor:
    """The table of the PyTorch tutorial and most research code: frequencies by exp, all in the dtype of `position`."""
    dim = 2 * index.numel()
    frequency = torch.exp(index * (-math.log(BASE) / dim))
    pe = torch.zeros(position.numel(), dim, dtype=position.dtype)
    angle = position * frequency
    pe[:, 0::2] = torch.sin(angle)
    pe[:, 1::2] = torch.cos(angle)
    return pe
