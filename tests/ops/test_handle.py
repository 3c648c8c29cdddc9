"""Handles of encodings, as used by torch 2.11's compiler; tested under every torch version."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.encodings import handle, resolve

GRID = sinpe.convention("mae2d", 8)


@pytest.mark.parametrize("encoding", [sinpe.Encoding(8), GRID, "t2t", 8, None])
def test_function_by_handle_equals_function(encoding: object) -> None:
    assert handle.by_handle(resolve.grid_dim_and_starts)(encoding, 8) == resolve.grid_dim_and_starts(encoding, 8)
    assert handle.by_handle(resolve.encoding)(value=encoding, dim=8, piece=-1) == resolve.encoding(encoding, 8, -1)


def test_only_equal_encodings_share_a_graph() -> None:
    """Guards of torch 2.11 compare handles by ==, later versions compare encodings by identity."""
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
