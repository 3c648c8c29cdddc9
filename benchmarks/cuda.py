"""The CUDA rows of the benchmark on the current device; `run.py` measures them like the others.

A small call is bound by its launch on the CPU, which its floor includes too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from sinpe_ext.backend.loader import resolve

from .cases import Row
from .cuda_cases import ELEMENTS, Place
from .cuda_cases import ROWS as INFERENCE_ROWS
from .cuda_grid import GRID_ROWS
from .cuda_training import TRAINING_ROWS
from .host import CUDA_HOST_ROWS

ROWS = (*INFERENCE_ROWS, *GRID_ROWS, *TRAINING_ROWS, *CUDA_HOST_ROWS)
SMALL_MEMORY = 20 * 2**30  # with less memory the tensors have a quarter of the size; about eight exist at a time


def missing() -> str:
    """The reason why CUDA cannot be measured here; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    backend = resolve("cuda")
    return "" if backend.backend == "compiled" else backend.reason


def place() -> Place:
    """The current device, with the size of the tensors that its memory allows."""
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch.cuda.get_device_properties(device).total_memory
    return Place(device, ELEMENTS if memory >= SMALL_MEMORY else ELEMENTS // 4)


def chosen(asked: Sequence[str]) -> list[Row]:
    """The rows with the given names, or all rows if there are none, on the current device."""
    return [replace(row, build=partial(row.build, place())) for row in ROWS if not asked or row.name in asked]


def facts() -> dict[str, Any]:
    """The current device, and the library that computes on it."""
    backend, p = resolve("cuda"), torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_bytes": p.total_memory,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "how": backend.how,
        "elements": place().elements,
        "arithmetic": str(torch.ops.sinpe_ext.cuda_arithmetic.default()),
    }


def describe(facts: dict[str, Any]) -> str:
    """A line about the device for the head of the report."""
    return (
        f"{facts['device']} (capability {facts['capability']}), CUDA {facts['cuda']}, {facts['how']} kernels, "
        f"arithmetic: {facts['arithmetic']}, tensors of {facts['elements']} elements"
    )


# --------------------------------------------------------------------------------------------------------- device time

WORK_SECONDS = 2e-3  # of the device, for which a sample's calls are queued
MOST_CALLS = 50  # the queue of a device holds about a thousand kernels
CYCLES = 10**6  # of torch.cuda._sleep, to find how long one takes


@dataclass(frozen=True)
class Work:
    """Some calls of a subject, and the cycles that the device waits for, while the host queues the calls."""

    run: Callable[[], object]
    calls: int
    waits: int

    def seconds(self) -> float:
        """The device's time for one call: between two events, of which the first comes when all calls are queued."""
        torch.cuda.synchronize()
        torch.cuda._sleep(self.waits)  # type: ignore[no-untyped-call]
        return elapsed(self.run) / self.calls


def elapsed(run: Callable[[], object]) -> float:
    """Seconds of the device between the events before and after `run`."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()  # type: ignore[no-untyped-call]
    run()
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def device_samples(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Name -> seconds of the device per call, one entry per round, interleaved as in `timing.interleaved`.

    The calls wait in the device's queue behind a kernel that sleeps until the host has queued all of them, so that the
    host's time is not part of it. The subjects have been warmed up.
    """
    cycle = elapsed(lambda: torch.cuda._sleep(CYCLES)) / CYCLES  # type: ignore[no-untyped-call]
    works = {name: work_of(call, cycle) for name, call in subjects.items()}
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, work in works.items():
            samples[name].append(work.seconds())
    return samples


def work_of(call: Callable[[], object], cycle: float) -> Work:
    """As many calls as the device needs WORK_SECONDS for; `cycle`: seconds of a cycle of torch.cuda._sleep."""
    torch.cuda.synchronize()
    calls = max(1, min(MOST_CALLS, round(WORK_SECONDS / max(elapsed(call), 1e-6))))

    def several() -> None:
        for _ in range(calls):
            call()

    torch.cuda.synchronize()
    begin = time.perf_counter()
    several()
    queued = time.perf_counter() - begin
    return Work(several, calls, int(2 * queued / cycle))
