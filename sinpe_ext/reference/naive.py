"""The naive float32 formula of the encoding, with which the demo, the benchmarks and the tests compare.

It has the same operations in the same precision as most existing code, so that its time and its error are the same.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BASE = 10000.0


def naive_table(positions: Tensor, dim: int, base: float = BASE) -> Tensor:
    """The table of the PyTorch tutorial and of most research code.

    Args:
        positions: (P,), float32 or float64, in which everything is computed.
        dim: number of channels.
        base: base of the frequencies.
    Returns:
        (P, dim), in the dtype and on the device of positions.
    """
    index = torch.arange(0, dim, 2, dtype=positions.dtype, device=positions.device)
    angle = positions.unsqueeze(1) * torch.exp(index * (-math.log(base) / dim))
    pe = torch.zeros(len(positions), dim, dtype=positions.dtype, device=positions.device)
    pe[:, 0::2] = torch.sin(angle)
    pe[:, 1::2] = torch.cos(angle[:, : dim // 2])
    return pe
