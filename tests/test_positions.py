"""`sinpe_ext.positions`: positions for the layouts of real batches."""

from __future__ import annotations

import pytest
import torch

import sinpe_ext as sinpe

D = 10


def test_packed_and_relative_positions(backend: str) -> None:
    lengths = [4, 0, 1, 7]
    packed = sinpe.positions.packed(torch.tensor([0, *lengths]).cumsum(0))
    assert torch.equal(packed, torch.cat([torch.arange(n) for n in lengths]))
    assert torch.equal(
        sinpe.positions.packed(torch.tensor([0, 3], dtype=torch.int32), 5), torch.tensor([0, 1, 2, 0, 1])
    )
    weight, ids = torch.randn(9, D), torch.randint(9, (12,))
    each = torch.cat([sinpe.embed(part, weight) for part in ids.split(lengths)])
    assert torch.equal(sinpe.embed(ids, weight, positions=packed), each)
    assert torch.equal(sinpe.add(weight[ids][None], positions=packed)[0], each)
    for length in (1, 5):
        relative = sinpe.positions.relative(length)
        assert torch.equal(relative, torch.arange(length - 1, -length, -1))
        rows = sinpe.encode(relative, D)
        assert torch.equal(rows.flip(0), sinpe.table(2 * length - 1, D, start=1 - length))
        assert torch.equal(rows[:length].flip(0), sinpe.table(length, D))
    ends = torch.tensor([0, 3, 5])
    compiled = torch.compile(lambda c: sinpe.positions.packed(c, 5), fullgraph=True, backend="eager")
    assert torch.equal(compiled(ends), torch.tensor([0, 1, 2, 0, 1]))
    for bad in ([], [1, 2], [0, 3, 2]):
        with pytest.raises((TypeError, ValueError), match="cu_seqlens: expected"):
            sinpe.positions.packed(torch.tensor(bad, dtype=torch.int64))
    with pytest.raises(ValueError, match="total: expected 3 or more"):
        sinpe.positions.packed(torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="length: expected an int in 1"):
        sinpe.positions.relative(0)
