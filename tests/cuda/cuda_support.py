"""A call on a device against the same call on the CPU: the CPU's kernels, or for the CPU itself eager PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sinpe_ext.backend import loader

Run = Callable[[torch.device], Tensor]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Single arithmetic guarantees 1 ULP of the dtype, double arithmetic the CPU's bits, except for float64, which is within
# 1 ULP on both devices. x + PE adds at most half an ULP of the sum.
SINGLE_ULP, FLOAT64_ULP = 1, 2


def arithmetic() -> str:
    """How the current CUDA device computes float32 rows: double or single; "" if the library does not report it."""
    chosen = os.environ.get("SINPE_EXT_CUDA_ARITHMETIC", "")
    if chosen in ("double", "single"):
        return chosen
    major, minor = torch.cuda.get_device_capability()
    return "double" if (major, minor) in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0)) else "single"


def is_exact(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether rows must be bitwise equal to the CPU's."""
    return dtype != torch.float64 and (device.type == "cpu" or arithmetic() == "double")


def expected(device: torch.device, run: Callable[[torch.device], Any]) -> Any:
    """The same call on the CPU."""
    with loader.use_backend("eager" if device.type == "cpu" else "auto"):
        return run(torch.device("cpu"))


def _ordered(t: Tensor) -> Tensor:
    """Maps floats to integers in order: adjacent floats differ by one, -0 and +0 are equal."""
    kinds: dict[int, torch.dtype] = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    words = t.contiguous().view(kinds[t.element_size()]).long()
    lowest = {2: -(2**15), 4: -(2**31), 8: -(2**63)}[t.element_size()]
    return torch.where(words < 0, lowest - words, words)


def _ulps(got: Tensor, want: Tensor) -> int:
    """Largest distance in ULP between two tensors of one dtype. NaN must be at the same places."""
    got, want = got.detach().cpu(), want.detach().cpu()
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.equal(got.isnan(), want.isnan())
    apart = (_ordered(got.nan_to_num(0.0)) - _ordered(want.nan_to_num(0.0))).abs()
    return int(apart.max()) if apart.numel() else 0


def assert_rows(device: torch.device, got: Tensor, want: Tensor) -> None:
    """Rows of an encoding, within the guarantee of the arithmetic."""
    assert got.device.type == device.type and got.dtype == want.dtype and got.shape == want.shape
    if is_exact(device, got.dtype):
        assert torch.equal(got.cpu().nan_to_num(7.0), want.nan_to_num(7.0)), f"{_ulps(got, want)} ULP"
    else:
        assert _ulps(got, want) <= (FLOAT64_ULP if got.dtype == torch.float64 else SINGLE_ULP)


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


def same_rows(device: torch.device, run: Run) -> None:
    assert_rows(device, run(device), expected(device, run))


def same_sums(device: torch.device, run: Run, largest: float = 40.0) -> None:
    assert_sums(device, run(device), expected(device, run), largest)


def same_gradients(device: torch.device, run: Callable[[torch.device], tuple[Tensor, ...]]) -> None:
    """Exact for the first, of x; those of alpha and positions are float64 sums in another order."""
    got, want = run(device), expected(device, run)
    assert torch.equal(got[0].cpu(), want[0])
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        # float32 rows of 1 ULP, summed over fewer than 1024 products below 8 in size
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)


def dtypes(device: torch.device) -> list[torch.dtype]:
    """All on a device; on the CPU, whose dtypes other tests compare, one."""
    return FLOATS if device.type == "cuda" else [torch.bfloat16]


def moved(arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Arguments with their tensors moved to a device."""
    return {name: a.to(device) if isinstance(a, Tensor) else a for name, a in arguments.items()}


def leaf(tensor: Tensor, device: torch.device, requires_grad: bool = True) -> Tensor:
    """A new leaf on a device with the tensor's values: on the CPU, `tensor.to` would be the tensor itself."""
    return tensor.detach().to(device, copy=True).requires_grad_(requires_grad)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 2) -> Tensor:
    """The same random numbers on each device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
