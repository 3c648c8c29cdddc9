"""The device to test: a CUDA device, or the CPU in its place, which checks these tests without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sinpe_ext.backend import loader

CPU = torch.device("cpu", 0)  # the CPU in place of a device; torch.device("cpu") is the CPU that it is compared with
TO = Tensor.to


def _why_no_cuda() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    backend = loader.resolve("cuda")
    return "" if backend.backend == "compiled" else f"no CUDA kernels: {backend.reason}"


def _to(self: Tensor, *to: Any, **named: Any) -> Tensor:
    """Tensor.to, except that a tensor moved to `CPU` is a copy, as on a device, and not the tensor itself."""
    got: Tensor = TO(self, *to, **named)
    return got.clone() if got is self and to[:1] == (CPU,) else got


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> torch.device:
    """The current CUDA device; or a skip, which `--require-backend=cuda` turns into a failure."""
    if reason := _why_no_cuda():
        if request.config.getoption("--require-backend") == "cuda":
            pytest.fail(f"--require-backend=cuda: {reason}")
        pytest.skip(reason)
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device whose kernels are tested."""
    if request.param == "cuda":
        yield request.getfixturevalue("cuda")
        return
    if request.config.getoption("--require-backend") == "eager" or loader.resolve("cpu").backend != "compiled":
        pytest.skip("no compiled backend on the CPU")
    monkeypatch.setattr(Tensor, "to", _to)
    with loader.use_backend("auto"):
        yield CPU
