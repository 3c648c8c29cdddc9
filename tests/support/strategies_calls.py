"""Hypothesis strategies for arguments of add and embed: rows, masks, factors, dropout, seeds, gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from strategies import positions, views
from torch import Tensor

from sinpe_ext import Encoding

FACTORS = (1.0, 1.0, 1.0, 0.5, -1.7, 512**0.5, 0.1, 0.0, -0.0, 1e-30, 3e30)
RATES = (0.0, 0.0, 0.1, 0.5, 1 / 3, 0.9, 1e-9, 1 - 1e-9, 1.0)
STARTS = st.integers(-(2**61), 2**61)


class Rows(NamedTuple):
    """The encoding's rows and where they are added."""

    arguments: dict[str, Any]  # positions or start, padding_mask
    at: Tensor  # the final positions, (1 or B, S)
    mask: Tensor | None  # (1 or B, S)


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """bool of any layout."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.4, 0.4, 0.0, 1.1)))
    if mask.dim() == 2 and draw(st.booleans()):
        return mask.t().contiguous().t()
    return mask


@st.composite
def rows(draw: st.DrawFn, encoding: Encoding, batch: int, length: int, real: bool = False) -> Rows:
    """Implicit positions, start of each kind or positions, and a mask or none. `real`: finite float positions."""
    arguments: dict[str, Any] = {}
    sizes = draw(st.sampled_from(((length,), (batch, length), (1, length))))
    kind = draw(st.sampled_from(("implicit", "start", "0-d", "per sample", "positions", "positions")))
    if real:
        values = st.floats(-5000, 5000, width=32)
        drawn = draw(st.lists(values, min_size=length * sizes[0], max_size=length * sizes[0]))
        drawn = drawn[: length if len(sizes) == 1 else None]
        at = torch.tensor(drawn, dtype=draw(st.sampled_from((torch.float32, torch.float64)))).reshape(sizes)
        arguments["positions"] = at
    elif kind == "positions":
        at = arguments["positions"] = draw(positions(sizes))
    else:
        if kind == "start":
            arguments["start"] = draw(STARTS)
        elif kind == "0-d":
            arguments["start"] = torch.tensor(draw(st.integers(-(2**31), 2**31 - 1)), dtype=torch.int32)
        elif kind == "per sample":
            drawn = draw(st.lists(STARTS, min_size=batch, max_size=batch))
            arguments["start"] = torch.tensor(drawn, dtype=torch.int64)
        first = torch.as_tensor(arguments.get("start", 0), dtype=torch.int64) + encoding.start
        at = first.reshape(-1, 1) + torch.arange(length)
    sizes = draw(st.sampled_from((None, None, (length,), (batch, length), (1, length))))
    mask = None
    if sizes is not None:
        mask = arguments["padding_mask"] = draw(masks(sizes))
        mask = mask.reshape(-1, length) if length else mask.reshape(1 if mask.dim() == 1 else mask.shape[0], 0)
    at = at.reshape(1, length) if at.dim() == 1 else at
    return Rows(arguments, at, mask)


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
def dropouts(draw: st.DrawFn, rates: tuple[float, ...] = RATES) -> Dropout:
    rate = draw(st.sampled_from(rates))
    kind = draw(st.sampled_from(("int", "int", "tensor", "generator", "torch's")))
    seed = DRAWN if kind in ("generator", "torch's") else draw(st.integers(-(2**63), 2**63 - 1))
    return Dropout(rate, seed, kind)


@st.composite
def gradients(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Incoming gradients of any layout, including expanded ones."""
    return draw(views(shape, dtype, expanded=True))[1]
