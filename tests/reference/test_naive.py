"""`naive_table`: the tutorial's table, bit by bit that of angle="float32_exp"; in float64 close to the exact one."""

from __future__ import annotations

import torch

import sinpe_ext as sinpe
from sinpe_ext.reference.naive import naive_table


def test_naive_table() -> None:
    positions = torch.arange(3000.0)
    for dim in (1, 2, 7, 64):
        assert torch.equal(naive_table(positions, dim), sinpe.table(3000, sinpe.Encoding(dim, angle="float32_exp")))
        exact = sinpe.table(3000, dim, dtype=torch.float64)
        assert torch.allclose(naive_table(positions.double(), dim), exact, rtol=0, atol=1e-11)
