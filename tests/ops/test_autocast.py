"""Autocast does not change the dtype of positions, frequencies or x."""

from __future__ import annotations

import warnings

import torch

import sinpe_ext as sinpe

B, S, D = 3, 5, 11
P, SEED = 0.3, 1234567890123


def test_autocast_preserves_dtypes(backend: str) -> None:
    """Positions stay exact and x keeps its dtype; only the results of the model's other layers are narrow."""
    x = torch.ones(B, S, D, requires_grad=True)
    p = torch.tensor([998.3897, 65537.25, 2.0**20 + 0.5, 0.1, 7.0], dtype=torch.float64).requires_grad_()
    weight, ids = torch.randn(7, D).requires_grad_(), torch.arange(S)
    plain = (
        sinpe.add(x, positions=p, dropout=P, seed=SEED),
        sinpe.encode(p, D),
        sinpe.embed(ids, weight, positions=p, dropout=P, seed=SEED),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        cast = (
            sinpe.add(x, positions=p, dropout=P, seed=SEED),
            sinpe.encode(p, D),
            sinpe.embed(ids, weight, positions=p, dropout=P, seed=SEED),
        )
        narrow = sinpe.add(x @ torch.ones(D, D), dropout=P, seed=SEED)
    assert narrow.dtype == torch.bfloat16
    for mine, theirs in zip(cast, plain, strict=True):
        assert mine.dtype == torch.float32 and torch.equal(mine, theirs)
    grads = [torch.autograd.grad([t.sum() for t in many], (x, p, weight)) for many in (cast, plain)]
    for mine, theirs in zip(*grads, strict=True):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
