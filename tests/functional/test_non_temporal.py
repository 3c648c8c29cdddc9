"""Outputs that are written around the cache (csrc/cpu/stores.h) have the same bits: each call, with the limit at 0, in
this process and in eager PyTorch. tests/cpp/test_stores.cpp has more layouts, and memory that does not begin a line.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch
from children import execute
from ulp import same_bits

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def results(dtype: torch.dtype) -> list[torch.Tensor]:
    x = (torch.arange(3 * 140 * 512) % 1001).reshape(3, 140, 512).div(250.0).sub(2.0).to(dtype)
    mask = torch.arange(3 * 140).reshape(3, 140) % 5 == 0
    points = x.reshape(-1)[: 3 * 12 * 10 * 256].reshape(3, 12, 10, 256)
    calls = [(points, "mae2d", {})]
    for name in ("paper", "paper_concat"):
        calls += [
            (x, name, {"start": 3, "scale": 0.5}),
            (x[:1], name, {"alpha": 0.3}),
            (x, name, {"padding_mask": mask}),
            (x[:1], name, {"dropout": 0.25, "seed": 5}),
        ]
    tables = [sinpe.table(140, name, dim=512, start=-7, out=nan_like(x[0])) for name in ("paper", "paper_concat")]
    return tables + [sinpe.add(given, name, out=nan_like(given), **arguments) for given, name, arguments in calls]


def nan_like(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float("nan"))


def check() -> None:
    """Run by the child."""
    assert loader.resolve("cpu").backend == "compiled"
    for dtype in DTYPES:
        compiled = results(dtype)
        with sinpe.use_backend("eager"):
            eager = results(dtype)
        for got, want in zip(compiled, eager, strict=True):
            # float64 rows of eager PyTorch may differ in the last bit.
            assert same_bits(got, want) or (dtype == torch.float64 and torch.allclose(got, want, rtol=0, atol=1e-15))


def test_results_do_not_depend_on_the_stores(request: pytest.FixtureRequest) -> None:
    if loader.resolve("cpu").backend != "compiled" or request.config.getoption("--require-backend") == "emulated":
        pytest.skip("the CPU kernels are not in use")
    env = {**os.environ, "SINPE_EXT_NON_TEMPORAL_BYTES": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_non_temporal; test_non_temporal.check()"
    execute([sys.executable, "-c", code, os.path.dirname(__file__)], env=env)
