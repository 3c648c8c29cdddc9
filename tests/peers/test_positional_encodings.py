"""positional-encodings: 1-D, 2-D and 3-D, all numbers of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import LENGTH, compare

import sinpe_ext as sinpe

SHAPES = {1: [(LENGTH,)], 2: [(6, 11), (LENGTH, 2), (2, LENGTH)], 3: [(3, 5, 4), (LENGTH, 1, 2), (1, 2, LENGTH)]}
DIMS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 64, 125, 169]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("dim", DIMS)
def test_tables(number: int, dim: int, peer: Any, release: Callable) -> None:
    module = peer("positional_encodings.torch_encodings")
    layer = getattr(module, f"PositionalEncoding{number}D")(dim)
    encoding = sinpe.convention(f"multidim{number}d", dim)
    angle = {"angle": "float32_pow"}
    compatible = encoding.replace(**angle) if number == 1 else encoding.with_axes(**angle)
    for shape in SHAPES[number][: 3 if dim < 12 else 1]:
        theirs = layer(torch.empty(1, *shape, dim))[0]
        where = shape[0] if number == 1 else shape
        compare(
            release("positional-encodings"),
            f"PositionalEncoding{number}D",
            theirs.contiguous(),
            convention=f"multidim{number}d",
            exact=sinpe.table(where, encoding, dtype=torch.float64),
            positions=float(max(shape)),
            compatible=sinpe.table(where, compatible),
            mode="float32_pow",
        )


def test_summer_and_channels_first(peer: Any) -> None:
    module = peer("positional_encodings.torch_encodings")
    encoding = sinpe.convention("multidim2d", 12, angle="float32_pow")
    x = torch.randn(3, 5, 7, 12)
    assert torch.equal(sinpe.add(x, encoding), module.Summer(module.PositionalEncoding2D(12))(x))
    y = x.movedim(-1, 1).contiguous()
    theirs = module.PositionalEncodingPermute2D(12)(y)
    assert torch.equal(sinpe.add(y, encoding, channel_dim=1), y + theirs)


def test_another_number_of_channels(peer: Any) -> None:
    """Ours rejects what the library silently cuts or pads."""
    module = peer("positional_encodings.torch_encodings")
    x = torch.randn(1, 4, 10)
    assert module.PositionalEncoding1D(5)(x).shape == (1, 4, 6)
    with pytest.raises(ValueError, match="5.*10|10.*5"):
        sinpe.add(x, sinpe.convention("multidim1d", 5))
