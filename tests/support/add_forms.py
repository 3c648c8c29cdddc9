"""One call of `add` in each form and way (ways.py), compared with the expected result and for unintended writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from oracles import same
from strategies import sprinkle, views
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe

FORMS = ("add", "out", "out is x", "add_")


def copy_of_view(memory: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of all the memory, and the same view of it."""
    kept = memory.clone()
    return kept, torch.as_strided(kept, x.size(), x.stride(), x.storage_offset())


def check_form(
    draw: Callable[..., Any],
    form: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    encoding: Any,
    arguments: Callable[[], dict[str, Any]],
    want: Callable[[Tensor], Tensor],
) -> None:
    """Draws x and the output; `arguments` are constructed anew for each call, `want` is the expected result for x."""
    memory, x = draw(views(shape, dtype, expanded=form in ("add", "out")))
    if x.numel() and 0 not in x.stride():
        sprinkle(x, draw(st.integers(0, 2**20)))
    inference, results = draw(st.booleans()), {}
    for way in WAYS:
        with use(way), torch.inference_mode(inference):
            kept, given = copy_of_view(memory, x)
            into_memory, into = kept, given
            if form == "out":
                into_memory, into = copy_of_view(*draw(views(shape, dtype, expanded=False)))
                into.fill_(math.nan)
            before, wanted = into_memory.clone(), want(given)
            if form == "add":
                got = sinpe.add(given, encoding, **arguments())
                assert got.stride() == torch.empty_like(given).stride()
            elif form == "add_":
                got = sinpe.add_(given, encoding, **arguments())
                assert got is given
            else:
                got = sinpe.add(given, encoding, out=into, **arguments())
                assert got is into
            assert same(got, wanted), way
            results[way] = got.clone()
            if form != "add":
                into.fill_(0)
                torch.as_strided(before, into.size(), into.stride(), into.storage_offset()).fill_(0)
                assert same(into_memory, before), "an element outside the result was modified"
            if form in ("add", "out"):
                assert same(kept, memory), "x was modified"
    if dtype != torch.float64:
        assert same(results["checked"], results["eager"])
    assert same(results["checked"], results["repeated"])
