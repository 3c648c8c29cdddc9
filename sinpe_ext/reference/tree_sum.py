"""Tree summation: the order in which many terms are added, defined in csrc/core/tree_sum.h with its error bound."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

TERMS = 64  # per node


@torch.no_grad()
def total(terms: Tensor) -> Tensor:
    """The sum of all elements in row-major order, of shape (); without gradient."""
    sums = terms.reshape(-1)
    while True:
        count = len(sums)
        nodes = max(1, -(-count // TERMS))
        of_nodes = functional.pad(sums, (0, nodes * TERMS - count)).view(nodes, TERMS)
        sums = torch.zeros_like(of_nodes[:, 0])
        for k in range(min(count, TERMS)):
            sums = sums + of_nodes[:, k]
        if nodes == 1:
            return sums.reshape(())


def levels(ids: Tensor, rows: int) -> Iterator[tuple[Tensor, int]]:
    """The levels of the trees, one tree per row, that sum the terms with equal ids in their order.

    Args:
        ids: (n,) int64, the row to which each term belongs, n > 0.
        rows: the number of trees; ids are in 0 .. rows - 1.
    Yields: (index of the node to which each term, or each node of the level below, is added; number of nodes in this
        level). The nodes of the last level are the rows. The terms of a node are to be added sequentially. Except on
        the CPU the number of nodes is an upper bound, since counting them would synchronize with the device; unused
        nodes belong to row `rows`, one past the last, which is to be ignored.
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
