"""Runs in an environment that check_wheels.py made: each operation once, as JSON. Needs torch and sinpe_ext alone.

The results of `calls` have the same bits on every backend and under every torch, so their SHA-256 is the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402

import sinpe_ext as sinpe  # noqa: E402


def digest(*tensors: torch.Tensor) -> str:
    """SHA-256 of the tensors' bytes, one after the other; no NumPy."""
    whole = hashlib.sha256()
    for tensor in tensors:
        tensor = tensor.detach().contiguous()
        whole.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return whole.hexdigest()


def calls() -> dict[str, list[torch.Tensor]]:
    """Every operation and layer, from numbers that no generator draws."""
    x = (torch.arange(2 * 9 * 12).reshape(2, 9, 12) % 17 - 8).float() / 8
    given, weight = x.clone().requires_grad_(), torch.arange(84.0).reshape(7, 12).requires_grad_()
    ids = torch.arange(18).reshape(2, 9) % 7
    positions = torch.tensor([0.5, -3.25, 1e6, 2.0**40])
    grid = sinpe.convention("mae2d", 12)
    layer = sinpe.SinusoidalPositionalEncoding(12, encoding=sinpe.convention("t2t", 12), scale=2.0)
    embedding = sinpe.SinusoidalEmbedding(7, 12, padding_idx=3)
    with torch.no_grad():
        embedding.weight.copy_(weight)
    added = sinpe.add(given, "fairseq", start=5, scale=2.0, dropout=0.3, seed=5)
    embedded = sinpe.embed(ids, weight, scale=0.5, dropout=0.1, seed=6, padding_idx=3)
    gradients = torch.autograd.grad(added.sum() + embedded.sum(), (given, weight))
    return {
        "table": [sinpe.table(300, 12, start=-100, dtype=d) for d in (torch.float32, torch.bfloat16, torch.float16)],
        "encode": [sinpe.encode(positions, sinpe.convention("ddpm", 12)), sinpe.encode(torch.arange(9), 12)],
        "add": [sinpe.add(x), added],
        "add_": [sinpe.add_(x.clone(), positions=torch.arange(9) * 3)],
        "embed": [embedded],
        "gradients": list(gradients),
        "grid": [sinpe.table((4, 5), grid), sinpe.add(x[:, :8].reshape(2, 2, 4, 12), grid)],
        "SinusoidalPositionalEncoding": [layer.eval()(x)],
        "SinusoidalEmbedding": [embedding.eval()(ids)],
        "TimestepEncoding": [sinpe.TimestepEncoding(12)(positions)],
    }


def main() -> None:
    found = calls()
    info = sinpe.backend_info()
    cpu = info.device("cpu")
    recognised = sinpe.identify(sinpe.table(64, sinpe.convention("fairseq", 64)))[0].name
    account = {
        "version": sinpe.__version__,
        "file": sinpe.__file__,
        "torch": str(torch.__version__),
        "python": info.python,
        "backend": cpu.backend,
        "how": cpu.how,
        "reason": cpu.reason,
        "isa": info.instruction_set,
        "core": info.core,
        "table": digest(sinpe.table(65536, 512)),
        "calls": digest(*(tensor for tensors in found.values() for tensor in tensors)),
        "names": list(found),
        "identified": recognised,
    }
    try:
        import numpy

        from sinpe_ext import numpy as in_numpy

        account["numpy"] = hashlib.sha256(numpy.ascontiguousarray(in_numpy.table(65536, 512))).hexdigest()
    except ImportError:
        account["numpy"] = None
    json.dump(account, sys.stdout)


if __name__ == "__main__":
    main()
