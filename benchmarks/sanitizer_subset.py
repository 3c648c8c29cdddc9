"""Runs each CUDA kernel a few times for compute-sanitizer, on shapes with heads, tails and misaligned rows.

`python benchmarks/sanitizer_subset.py [cpu] [--few | --count]`; small, because a sanitizer slows all of it ten to a
hundred times. --few: a sixth of it. --count: without a sanitizer, print how many of our kernels it launches; exit code
1 if none.
"""

from __future__ import annotations

import sys
import time

import torch

import sinpe_ext as sinpe

counting = "--count" in sys.argv
device = torch.device(next((name for name in sys.argv[1:] if not name.startswith("-")), "cuda"))
few = "--few" in sys.argv
ROUNDS = [(dtype, width) for dtype in (torch.float32, torch.bfloat16, torch.float64) for width in (1, 8, 33, 66)]


def run(dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    x = torch.randn(3, 5, width, device=device).to(dtype)
    misaligned = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    positions, mask = torch.arange(15, device=device).reshape(3, 5), torch.arange(5, device=device) > 3
    out = torch.empty(5, width + 3, device=device, dtype=dtype)[:, :width]
    results = [
        sinpe.table(7, width, dtype=dtype, device=device),
        sinpe.table(5, width, out=out),
        sinpe.encode(positions.double() / 3, width, dtype=dtype),
        sinpe.add(x),
        sinpe.add(misaligned, start=torch.tensor([1, 2, 3], device=device), dropout=0.3, seed=1),
        sinpe.add(x.mT.contiguous().mT, positions=positions, padding_mask=mask, scale=2.0, dropout=0.3, seed=1),
        sinpe.add_(x.clone(), alpha=torch.ones(1, device=device)),
    ]
    # Above 1024 elements for each multiprocessor, there are other kernels.
    samples = 2**18 // (5 * width)
    large = torch.randn(samples, 5, width, device=device).to(dtype)
    ids = torch.arange(samples * 5, device=device).reshape(samples, 5) % 7
    results += [
        sinpe.table(samples * 5, width, dtype=dtype, device=device),
        sinpe.encode(ids, width, dtype=dtype),
        sinpe.encode(ids.flatten() / 3, width, dtype=dtype),
        sinpe.add(large[:, 0], positions=ids[:, 0]),
        sinpe.add(large),
        sinpe.add(large, dropout=0.3, seed=1),
        sinpe.add(large, positions=ids),
        sinpe.add(large.flatten(0, 1)),
        sinpe.add(large.mT.contiguous().mT, scale=2.0, padding_mask=mask),
        sinpe.embed(ids, x[0].repeat(2, 1)[:7], dropout=0.3, seed=1),
    ]
    grid = sinpe.GridEncoding((sinpe.Encoding(width // 2 + 1), sinpe.Encoding(width)), dim=width)
    image, masked = torch.randn(3, 4, 5, width, device=device).to(dtype), torch.arange(20, device=device) > 17
    results += [
        sinpe.add(image, grid, start=(2, 3), padding_mask=masked.view(4, 5)),
        sinpe.add(image.movedim(-1, 1).contiguous(), grid, channel_dim=1, dropout=0.3, seed=1),
        sinpe.add(image.flatten(1, 2), grid, grid_shape=(2, 9), extra_tokens=2, dropout=0.3, seed=1),
    ]
    given, alpha = x.requires_grad_(), torch.ones(1, device=device, requires_grad=True)
    at = (positions / 3).requires_grad_()
    total = sinpe.add(given, alpha=alpha, positions=at, dropout=0.3, seed=2)
    results += torch.autograd.grad(total, (given, alpha, at), torch.ones_like(total))
    ids = torch.tensor([[0, 8, 3, 3, 3], [1, 9, -1, 3, 0], [2, 2, 2, 2, 2]], device=device)
    ids = ids.clamp(0, 8) if device.type == "cpu" else ids  # 9 and -1 are not rows of the weight
    weight = torch.randn(9, width, device=device).to(dtype).requires_grad_()
    for drop in (0.0, 0.3):
        rows = sinpe.embed(ids, weight, dropout=drop, seed=3, padding_idx=2)
        results += [rows, torch.autograd.grad(rows, weight, torch.ones_like(rows))[0]]
    return results


def run_all() -> None:
    backend = sinpe.backend_info().device(device.type)
    if backend.backend != "compiled":
        sys.exit(f"sanitizer subset: expected compiled kernels for {device}, got none: {backend.reason}")
    for dtype, width in [(torch.float32, 66), (torch.bfloat16, 33)] if few else ROUNDS:
        begin = time.perf_counter()
        for result in run(dtype, width):
            result.detach().cpu()
        print(f"sanitizer subset: {dtype}, {width} channels, {time.perf_counter() - begin:.1f} s", flush=True)


def count() -> int:
    """Print the number of launches and of distinct kernels of ours; return the exit code."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run_all()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]  # type: ignore[attr-defined]
    ours = [name for name in names if "sinpe" in name]
    if not names:
        print("sanitizer subset: the profiler sees no kernels on this machine, ours were not counted")
        return 0
    print(f"sanitizer subset: {len(ours)} launches of {len(set(ours))} kernels of ours, {len(names)} launches in all")
    return 0 if ours else 1


if counting:
    sys.exit(count())
run_all()
print(f"sanitizer subset: {2 if few else len(ROUNDS)} rounds done on {device}")
