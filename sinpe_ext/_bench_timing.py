"""Interleaved timing: A B A B ..., so that a slow minute of the machine falls on every subject alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

SLOW_SECONDS = 0.7  # a subject slower than this is timed by its one warm-up run: its ratio is never a close call
SAMPLE_SECONDS = 0.02  # one sample repeats a fast subject for about this long


def interleaved(
    subjects: Mapping[str, Callable[[], object]], rounds: int, threads: int | None = None
) -> dict[str, list[float]]:
    """Time every subject once a round.

    Args:
        subjects: name -> call without arguments.
        rounds: samples per subject.
        threads: torch threads during the measurement, default the current number.
    Returns:
        name -> seconds per call, one entry a round (a single entry for a slow subject).
    """
    import torch
    from torch.utils.benchmark import Timer

    before = torch.get_num_threads()
    count = threads or before
    torch.set_num_threads(count)
    try:
        first = {name: _once(call) for name, call in subjects.items()}
        samples: dict[str, list[float]] = {name: [seconds] for name, seconds in first.items() if seconds > SLOW_SECONDS}
        timers = {
            name: Timer("call()", globals={"call": call}, num_threads=count)
            for name, call in subjects.items()
            if name not in samples
        }
        numbers = {name: max(1, round(SAMPLE_SECONDS / max(_once(subjects[name]), 1e-7))) for name in timers}
        samples.update({name: [] for name in timers})
        for _ in range(rounds):
            for name, timer in timers.items():
                samples[name].append(timer.timeit(numbers[name]).median)
    finally:
        torch.set_num_threads(before)
    return samples


def medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """name -> median seconds per call."""
    return {name: median(values) for name, values in samples.items()}


def _once(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
