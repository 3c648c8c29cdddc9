"""Handles of encodings, which torch 2.11's compiler needs: the way that they go, under any torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import checks
from sinpe_ext.runtime import handle

GRID = sinpe.convention("mae2d", 8)


@pytest.mark.parametrize("encoding", [sinpe.Encoding(8), GRID, "t2t", 8, None])
def test_a_function_by_handle_is_the_function(encoding: object) -> None:
    assert handle.by_handle(checks.grid_dim_and_starts)(encoding, 8) == checks.grid_dim_and_starts(encoding, 8)
    assert handle.by_handle(checks.encoding)(value=encoding, dim=8, piece=-1) == checks.encoding(encoding, 8, -1)


def test_equal_encodings_share_a_graph_and_others_do_not() -> None:
    """By the guards of torch: 2.11 compares handles by ==, later ones compare encodings by identity."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    add = torch.compile(lambda x, encoding: sinpe.add(x, encoding), backend=keep, fullgraph=True)
    x = torch.zeros(1, 4, 8)
    first, other = sinpe.Encoding(8), sinpe.Encoding(8, base=500.0)
    for encoding in (first, other, first, other):
        assert torch.equal(add(x, encoding), sinpe.add(x, encoding))
    assert len(graphs) == 2
