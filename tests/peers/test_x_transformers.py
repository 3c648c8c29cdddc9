"""x-transformers: ScaledSinusoidalEmbedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import LENGTH, compare

import sinpe_ext as sinpe


@pytest.mark.parametrize("dim", [8, 64, 512])
def test_table(dim: int, peer: Any, release: Callable) -> None:
    module = peer("x_transformers.x_transformers")
    layer = module.ScaledSinusoidalEmbedding(dim)
    with torch.no_grad():
        theirs = layer(torch.empty(1, LENGTH, dim))
        scale = float(layer.scale)
        assert scale == pytest.approx(dim**-0.5)
        encoding = sinpe.convention("paper_concat", dim, amplitude=scale)
        compare(
            release("x-transformers"),
            "ScaledSinusoidalEmbedding",
            theirs,
            convention="paper_concat, amplitude d^-0.5",
            exact=sinpe.table(LENGTH, encoding, dtype=torch.float64),
            positions=torch.arange(LENGTH)[:, None],
            compatible=sinpe.table(LENGTH, encoding.replace(angle="float32_pow")),
            mode="float32_pow",
            same_bits=False,  # theta ** -x here, 1 / theta ** x in all other libraries with these fields
            factor=scale,
        )
        for offset in (0, 9):
            shifted = layer(torch.empty(1, 20, dim), offset=offset)
            got = sinpe.table(20, encoding, start=offset)
            assert torch.allclose(got, shifted, rtol=0, atol=30 * 2.0**-22)


def test_learned_factor(peer: Any) -> None:
    """x + scale * PE, scale learned: `alpha`."""
    module = peer("x_transformers.x_transformers")
    layer, x = module.ScaledSinusoidalEmbedding(32), torch.randn(2, 50, 32)
    got = sinpe.add(x, "paper_concat", alpha=layer.scale)
    assert torch.allclose(got, x + layer(x), rtol=0, atol=50 * 2.0**-22)
    got.sum().backward()
    mine, layer.scale.grad = layer.scale.grad.clone(), None
    (x + layer(x)).sum().backward()
    assert torch.allclose(mine, layer.scale.grad, rtol=1e-4)


def test_odd_dim_is_rejected_by_both(peer: Any) -> None:
    module = peer("x_transformers.x_transformers")
    with pytest.raises(AssertionError):
        module.ScaledSinusoidalEmbedding(7)
    with pytest.raises(ValueError, match="dim: expected an even number"):
        sinpe.convention("paper_concat", 7, odd="raise")
