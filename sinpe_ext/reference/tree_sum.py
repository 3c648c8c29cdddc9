"""The order of a sum of many terms, a tree: defined in csrc/core/tree_sum.h, with its error bound."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

TERMS = 64  # of a node


def levels(ids: Tensor, rows: int) -> Iterator[tuple[Tensor, int]]:
    """The levels of the trees, one for each row, that sum the terms of equal ids in their order.

    Args:
        ids: (n,) int64, the row that each term goes to, n > 0.
        rows: the trees; ids from 0 to rows - 1.
    Yields: (node that each term, or node of the level below, goes to; nodes of the level); the last are the rows.
        The parts of a node are to be added one after the other. What goes to the node after the last counts for none:
        nodes are counted on the CPU alone, other devices would wait for that.
    """
    on_cpu = ids.device.type == "cpu"
    most = int(ids.bincount().max()) if on_cpu else len(ids)
    while most > TERMS:
        ids_in_order, order = ids.sort(stable=True)
        rank = torch.arange(len(ids), device=ids.device) - torch.searchsorted(ids_in_order, ids_in_order)
        nodes_in_order = (rank % TERMS == 0).cumsum(0) - 1
        count = int(nodes_in_order[-1]) + 1 if on_cpu else len(ids) // TERMS + min(rows + 1, len(ids))
        yield torch.empty_like(order).scatter_(0, order, nodes_in_order), count
        ids = torch.full((count,), rows, device=ids.device).scatter_(0, nodes_in_order, ids_in_order)
        most = -(-most // TERMS)
    yield ids, rows
