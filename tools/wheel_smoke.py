"""Calls each operation of an installed wheel once; the exit status is 1 if a result is wrong: `nox -s wheels`.

The results of `calls` have the same bits on every backend and with every torch. A wheel with a CPU library must use it
with torch 2.11 and newer, and must run eager PyTorch and give the reason with older versions. A pure wheel runs eager
PyTorch. Needs only torch and sinpe_ext.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import torch  # noqa: E402

import sinpe_ext as sinpe  # noqa: E402

TABLE = "0bd6b4b1dfc59ae6ab06fb89d6ef7bf2be812b44837dee370b4231f20574f60f"  # docs/accuracy.md: table(65536, 512)
CALLS = "9680c1a7e8dfb258fa9f9c235756ff6ea189dcc75f743f290b1b225d31d48164"  # SHA-256 of the results of `calls`


def digest(*tensors: torch.Tensor) -> str:
    """SHA-256 of the bytes of all tensors, computed without NumPy."""
    whole = hashlib.sha256()
    for tensor in tensors:
        tensor = tensor.detach().contiguous()
        whole.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return whole.hexdigest()


def calls() -> dict[str, list[torch.Tensor]]:
    """The results of every operation and layer, for inputs without random numbers."""
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


def main() -> int:
    results = calls()
    info = sinpe.backend_info()
    cpu = info.device("cpu")
    package = Path(sinpe.__file__).parent
    manifest = json.loads((package / "_build.json").read_text(encoding="utf-8"))
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)
    built = "cpu" in manifest["libraries"] and not old
    reason = "is older than 2.11" if old else str(manifest.get("reason"))
    checks = {
        "an installed package": package.parent != Path(__file__).resolve().parent.parent,
        "the backend": (cpu.backend, cpu.how) == (("compiled", "prebuilt") if built else ("eager", "none")),
        "the reason": built or (reason in cpu.reason and bool(cpu.todo)),
        "the NumPy core": info.core == ("core" in manifest["libraries"]),
        "the table's SHA-256": digest(sinpe.table(65536, 512)) == TABLE,
        "NumPy's SHA-256": numpy_digest() in (None, TABLE),
        "the calls' SHA-256": digest(*(tensor for tensors in results.values() for tensor in tensors)) == CALLS,
        "identify": sinpe.identify(sinpe.table(64, sinpe.convention("fairseq", 64)))[0].name == "fairseq",
    }
    wrong = [name for name, good in checks.items() if not good]
    how = f"{cpu.backend}, {cpu.how}, {info.instruction_set}" if built else f"{cpu.backend}: {cpu.reason}"
    print(f"torch {torch.__version__}, {how}: {'wrong: ' + ', '.join(wrong) if wrong else 'as it should be'}")
    return bool(wrong)


def numpy_digest() -> str | None:
    try:
        import numpy

        from sinpe_ext import numpy as in_numpy
    except ImportError:
        return None
    return hashlib.sha256(numpy.ascontiguousarray(in_numpy.table(65536, 512))).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
