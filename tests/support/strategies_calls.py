"""Hypothesis strategies for arguments of add and embed: masks, factors, dropout and its seeds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

FACTORS = (1.0, 1.0, 1.0, 0.5, -1.7, 512**0.5, 0.1, 0.0, -0.0, 1e-30, 3e30)
RATES = (0.0, 0.0, 0.1, 0.5, 1 / 3, 0.9, 1e-9, 1 - 1e-9, 1.0)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """bool of any layout."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.4, 0.4, 0.0, 1.1)))
    return mask.mT.contiguous().mT if mask.dim() == 2 and draw(st.booleans()) else mask


@st.composite
def alphas(draw: st.DrawFn) -> float | Tensor:
    alpha = draw(st.sampled_from(FACTORS))
    as_tensor = draw(st.sampled_from((None, None, torch.float32, torch.float64)))
    if as_tensor is None:
        return alpha
    return torch.tensor(alpha, dtype=as_tensor).reshape(draw(st.sampled_from(((), (1,)))))


class Dropout(NamedTuple):
    """The arguments of dropout; `arguments()` are new ones, since a generator changes."""

    rate: float
    seed: int  # the seed of the mask
    kind: str

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {"dropout": self.rate}
        if self.kind == "tensor":
            given["seed"] = torch.tensor([self.seed])
        elif self.kind == "generator":
            given["seed"] = torch.Generator().manual_seed(7)
        elif self.kind == "torch's":
            torch.manual_seed(7)
        else:
            given["seed"] = self.seed
        return given


# Equal to these seeds: test_dropout.py shows that both are randint below 2**63 - 1.
DRAWN = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(7), dtype=torch.int64))


@st.composite
def dropouts(draw: st.DrawFn) -> Dropout:
    kind = draw(st.sampled_from(("int", "int", "tensor", "generator", "torch's")))
    seed = DRAWN if kind in ("generator", "torch's") else draw(st.integers(-(2**63), 2**63 - 1))
    return Dropout(draw(st.sampled_from(RATES)), seed, kind)
