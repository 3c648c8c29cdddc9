"""Which tensors of a model `integrations.swap` takes for the table of an encoding: a check of a few rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations.tables import may_be_table


def tables() -> list[tuple[str, Tensor]]:
    pairs = []
    for name in sinpe.conventions():
        for dim in (16, 17, 30, 64, 252):
            try:
                encoding = sinpe.convention(name, dim)
            except ValueError:
                continue
            if name == "tcnn":
                continue  # 0, 1 and -1 only at integer positions, as in a mask
            axes = encoding.ndim if isinstance(encoding, sinpe.GridEncoding) else 1
            shape = (64, (9, 14), (5, 6, 7))[axes - 1] if axes < 4 else None
            if shape is not None:
                pairs.append((f"{name} {dim}", sinpe.table(shape, encoding)))
                pairs.append((f"{name} {dim} flat", pairs[-1][1].reshape(1, -1, dim)))
    return pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_convention_passes_the_check_of_values(dtype: torch.dtype) -> None:
    """All tables that identify knows must reach it: with padding rows, a class token, a factor, in 16 bits."""
    for name, table in tables():
        rows = table.to(dtype)
        for form in (rows, 0.02 * rows, rows.repeat(2, *([1] * (rows.dim() - 1))) if rows.dim() == 3 else rows):
            assert may_be_table(form) or not sinpe.identify(form), name
        flat = rows.reshape(-1, rows.shape[-1])
        padded = torch.cat([torch.zeros_like(flat[:1]), flat])
        assert may_be_table(padded) or not sinpe.identify(padded), name
        assert may_be_table(nn.Parameter(flat[None])) or not sinpe.identify(flat), name


def test_learned_weights_fail_the_check_of_values() -> None:
    """Only few may pass, since identify takes milliseconds for each."""
    generator = torch.Generator().manual_seed(5)
    passed = 0
    for shape in [(16, 16), (64, 16), (64, 64), (256, 64), (768, 256), (256, 768), (30, 100), (3, 3), (64, 8, 3, 3)]:
        for _ in range(20):
            for weight in (torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) - 0.5):
                passed += may_be_table(nn.Parameter(weight)) + may_be_table(nn.Parameter(weight).mT)
    assert passed <= 7  # of 720
    ones = torch.ones(64, 64)
    for trivial in (torch.zeros(64, 32), ones, torch.eye(64), ones.tril(), -ones.triu() / 0):
        assert not may_be_table(trivial)
