"""The layer of PyTorch's tutorial."""

from __future__ import annotations

import math
from importlib.metadata import version

import pytest
import torch
from agreement import LENGTH, compare

import sinpe_ext as sinpe


@pytest.mark.parametrize("dim", [2, 6, 64, 512])
def test_tutorial(dim: int) -> None:
    position = torch.arange(LENGTH).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    pe = torch.zeros(LENGTH, dim)
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    encoding = sinpe.Encoding(dim)
    compare(
        f"torch {version('torch')}",
        "the tutorial's PositionalEncoding",
        pe,
        convention="paper",
        exact=sinpe.table(LENGTH, encoding, dtype=torch.float64),
        positions=position,
        compatible=sinpe.table(LENGTH, encoding.replace(angle="float32_exp")),
        mode="float32_exp",
    )
