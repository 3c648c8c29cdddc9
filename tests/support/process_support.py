"""Code that tests run in processes."""

from __future__ import annotations

import os

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

# One result of each operation, large enough for two threads. NumPy creates x and reads the bytes: torch would use its
# threads for that, and hang in a forked child.
RESULTS = """
import hashlib, os, signal, sys, threading, time, numpy, torch
x, weight = (torch.from_numpy(numpy.ones(shape, numpy.float32)) for shape in ((2, 1200, 64), (1200, 64)))
alpha, ids = torch.ones(1, requires_grad=True), torch.arange(2400).reshape(2, 1200) % 1200
weight.requires_grad_()
def ones_like(y):
    return torch.ones(()).expand_as(y)
def digest():
    import sinpe_ext as sinpe
    t2t = sinpe.convention("t2t", 64)
    scaled = sinpe.add(x, t2t, alpha=alpha, dropout=0.5, seed=1)
    embedded = sinpe.embed(ids, weight, t2t, dropout=0.5, seed=1)
    made = [sinpe.table(1200, t2t), sinpe.encode(torch.arange(1200), t2t), sinpe.add(x, start=3), scaled, embedded]
    made += torch.autograd.grad(scaled, alpha, ones_like(scaled))
    made += torch.autograd.grad(embedded, weight, ones_like(embedded))
    return hashlib.sha256(b"".join(y.detach().numpy().tobytes() for y in made)).hexdigest()
"""
