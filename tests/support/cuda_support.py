"""Shared by the tests of the CUDA kernels: the device to test, the expected result, and tolerances.

`device` is the CPU (kernels against eager PyTorch) and each available kind of device with kernels. `cuda` is a CUDA
device, or skips; `--require-backend=cuda` turns the skip into a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sinpe_ext.backend import loader

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Single arithmetic guarantees 1 ULP of the dtype, double arithmetic the CPU's bits, except for float64, which is within
# 1 ULP on both devices. x + PE adds at most half an ULP of the sum.
SINGLE_ULP, FLOAT64_ULP = 1, 2


def why_no_cuda() -> str:
    """The reason why CUDA kernels cannot be tested, or an empty string."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    backend = loader.resolve("cuda")
    return "" if backend.backend == "compiled" else f"no CUDA kernels: {backend.reason}"


@pytest.fixture
def cuda(request: pytest.FixtureRequest) -> torch.device:
    """The current CUDA device."""
    if reason := why_no_cuda():
        if request.config.getoption("--require-backend") == "cuda":
            pytest.fail(f"--require-backend=cuda: {reason}")
        pytest.skip(reason)
    return torch.device("cuda", torch.cuda.current_device())


CPU = torch.device("cpu", 0)  # the CPU in place of a device; torch.device("cpu") is the CPU that it is compared with


def moved_as_to_a_device(self: Tensor, *to: Any, **named: Any) -> Tensor:
    """Tensor.to, except that a tensor moved to `CPU` is a copy, as on a device, and not the tensor itself."""
    got: Tensor = TO(self, *to, **named)
    return got.clone() if got is self and to[:1] == (CPU,) else got


TO = Tensor.to


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device whose kernels are tested."""
    if request.param == "cuda":
        yield request.getfixturevalue("cuda")
        return
    if request.config.getoption("--require-backend") == "eager" or loader.resolve("cpu").backend != "compiled":
        pytest.skip("no compiled backend on the CPU")
    monkeypatch.setattr(Tensor, "to", moved_as_to_a_device)
    with loader.use_backend("auto"):
        yield CPU


def arithmetic() -> str:
    """How the current CUDA device computes float32 rows: double or single; "" if the library does not report it."""
    chosen = os.environ.get("SINPE_EXT_CUDA_ARITHMETIC", "")
    if chosen in ("double", "single"):
        return chosen
    major, minor = torch.cuda.get_device_capability()
    return "double" if (major, minor) in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0)) else "single"


def is_exact(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether rows must be bitwise equal to the CPU's."""
    if dtype == torch.float64:
        return False
    return device.type == "cpu" or arithmetic() == "double"


def expected(device: torch.device, run: Callable[[torch.device], Tensor]) -> Tensor:
    """The same call on the CPU: with its kernels for another device, in eager PyTorch for the CPU itself."""
    with loader.use_backend("eager" if device.type == "cpu" else "auto"):
        return run(torch.device("cpu"))


def ordered(t: Tensor) -> Tensor:
    """Maps floats to integers in order: adjacent floats differ by one, -0 and +0 are equal."""
    kinds: dict[int, torch.dtype] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    words = t.contiguous().view(kinds[t.element_size()]).long()
    lowest = {2: -(2**15), 4: -(2**31), 8: -(2**63)}[t.element_size()]
    return torch.where(words < 0, lowest - words, words)


def ulps(got: Tensor, want: Tensor) -> int:
    """Largest distance in ULP between two tensors of one dtype. NaN must be at the same places."""
    got, want = got.detach().cpu(), want.detach().cpu()
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.equal(got.isnan(), want.isnan())
    apart = (ordered(got.nan_to_num(0.0)) - ordered(want.nan_to_num(0.0))).abs()
    return int(apart.max()) if apart.numel() else 0


def assert_rows(device: torch.device, got: Tensor, want: Tensor) -> None:
    """Rows of an encoding, within the guarantee of the arithmetic."""
    if is_exact(device, got.dtype):
        assert torch.equal(got.cpu().nan_to_num(7.0), want.nan_to_num(7.0)), f"{ulps(got, want)} ULP"
    else:
        assert ulps(got, want) <= (FLOAT64_ULP if got.dtype == torch.float64 else SINGLE_ULP)


def assert_sums(device: torch.device, got: Tensor, want: Tensor, largest: float) -> None:
    """scale * x + alpha * PE: the same bits, or within the rows' ULP at the size of PE plus one rounding.

    largest: of abs(scale * x) + abs(alpha * PE), times 1 / (1 - dropout).
    """
    assert got.device.type == device.type and got.dtype == want.dtype and got.shape == want.shape
    if is_exact(device, got.dtype):
        assert torch.equal(got.cpu().nan_to_num(7.0), want.nan_to_num(7.0))
        return
    assert torch.equal(got.cpu() == 0, want == 0)  # the mask
    unit = torch.finfo(got.dtype).eps * largest
    difference = (got.cpu().double() - want.double()).abs().nan_to_num(0.0)
    assert float(difference.max() if difference.numel() else 0.0) <= 2 * unit


def moved(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Arguments with their tensors moved to a device."""
    return {name: a.to(device) if isinstance(a, Tensor) else a for name, a in arguments.items()}


def leaf(tensor: Tensor, device: torch.device, requires_grad: bool = True) -> Tensor:
    """A new leaf on a device with the tensor's values: on the CPU, `tensor.to` would be the tensor itself."""
    return tensor.detach().to(device, copy=True).requires_grad_(requires_grad)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 2) -> Tensor:
    """The same random numbers on each device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
