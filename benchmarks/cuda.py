"""The CUDA rows of the benchmark on the current device; `run.py` measures them like the others.

A small call is bound by its launch on the CPU, which its floor includes too.
"""

from __future__ import annotations

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
    found = resolve("cuda")
    return "" if found.backend == "compiled" else found.reason


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
    found, p = resolve("cuda"), torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_bytes": p.total_memory,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "how": found.how,
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

REPLAY_SECONDS = 2e-3  # a graph holds so many calls that its replay takes about as long
MOST_CALLS = 50
CYCLES_PER_SECOND = 2e9  # of torch.cuda._sleep, at most


@dataclass(frozen=True)
class Work:
    """Some calls of a subject for the device; `queued_in`: seconds that the host needs to queue them, 0 for a graph."""

    run: Callable[[], object]
    calls: int = 1
    queued_in: float = 0.0

    def seconds(self) -> float:
        """The device's time for one call: between two events, of which the first comes when all is queued."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        if self.queued_in:
            torch.cuda._sleep(int(1.5 * self.queued_in * CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
        begin.record()  # type: ignore[no-untyped-call]
        self.run()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / self.calls


def device_samples(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Name -> seconds of the device per call, one entry per round, interleaved as in `timing.interleaved`.

    The device replays a graph of several calls, so that the host's time is not part of it. Calls that cannot be
    captured are queued behind a kernel that waits. The subjects have been warmed up.
    """
    works = {name: work_of(call) for name, call in subjects.items()}
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, work in works.items():
            samples[name].append(work.seconds())
    return samples


def work_of(call: Callable[[], object]) -> Work:
    """A graph of several calls, or the calls themselves."""
    seconds = max(Work(call).seconds(), 1e-6)  # of a small call, those of the host
    calls = max(1, min(MOST_CALLS, round(REPLAY_SECONDS / seconds)))

    def several() -> None:
        for _ in range(calls):
            call()

    try:
        return Work(captured(several), calls)
    except RuntimeError:  # it synchronizes, or copies from the host's memory
        torch.cuda.synchronize()
        return Work(several, calls, queued_in=calls * seconds)


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The replay of a CUDA graph of what `run` does."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a first call on another stream sets up is not part of the graph
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    return graph.replay
