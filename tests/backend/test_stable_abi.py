"""One compiled library works with every torch from 2.11 on: libraries of other versions load and give the same bits."""

from __future__ import annotations

import hashlib
import os
import sys

import pytest
import torch
from children import REPOSITORY, execute
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

# Packages with a library built with another torch; named by noxfile.py.
FOLDERS = [folder for folder in os.environ.get("SINPE_EXT_OTHER_LIBRARIES", "").split(os.pathsep) if folder]

LOAD = """
import sys
from pathlib import Path
from sinpe_ext.backend import loader
backend = loader._backends["cpu"] = loader._load_prebuilt("cpu", Path(sys.argv[1]))
import test_stable_abi
print(backend.build["torch"], test_stable_abi.digest())
"""


def results() -> list[Tensor]:
    """A result of each operator and each backward pass."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 9, 12, generator=generator).requires_grad_()
    weight = torch.randn(7, 12, generator=generator).requires_grad_()
    alpha = torch.tensor([0.7], requires_grad=True)
    positions = torch.linspace(0, 1e6, 9).requires_grad_()
    ids = torch.arange(18).reshape(2, 9) % 7
    grid = sinpe.convention("mae2d", 12)
    values = [sinpe.table(300, 12, start=-100, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    values += [
        sinpe.encode(positions, 12),
        sinpe.add(x, positions=positions, scale=1.3, alpha=alpha, dropout=0.3, seed=5),
        sinpe.add_(x.detach().clone(), "t2t", start=2**40),
        sinpe.embed(ids, weight, scale=2.0, alpha=alpha, dropout=0.1, seed=6, padding_idx=3),
        sinpe.table((4, 5), grid),
        sinpe.add(x.detach()[:, :8].reshape(2, 2, 4, 12), grid, dropout=0.5, seed=7),
    ]
    total = sum((part.float() * torch.cos(part.detach().float())).sum() for part in values if part.requires_grad)
    return [*values, *torch.autograd.grad(total, (x, weight, alpha, positions))]


def digest() -> str:
    whole = hashlib.sha256()
    for part in results():
        whole.update(part.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


@pytest.mark.skipif(not FOLDERS, reason="no library built with another torch was given; make check-matrix builds them")
@pytest.mark.parametrize("number", range(max(len(FOLDERS), 1)))
def test_libraries_give_the_same_bits(number: int, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--require-backend") == "eager" or not loader.compiled("cpu"):
        pytest.skip("eager PyTorch has no library")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])}
    done = execute([sys.executable, "-W", "ignore", "-c", LOAD, FOLDERS[number]], env=environment)
    assert done.stdout.split()[-1] == digest(), f"the library of torch {done.stdout.split()[0]}"
