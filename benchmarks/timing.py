"""Interleaved timing, A B A B ..., so that temporary slowness of the machine affects all subjects alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median

SLOW_SECONDS = 1.0  # a subject slower than this is timed once only, because its ratio does not need more precision
SAMPLE_SECONDS = 0.02  # one sample repeats a fast subject for about this long
MOST_CALLS = 8  # warm-up calls, within which the time of a call has to stop falling
DRIFT = 0.15  # of the time of a subject, from one half of the rounds to the other
BUSY = 0.5  # load per core before timing above which other programs disturb the measurement


def load() -> float | None:
    """The load average of the last minute; None on systems that do not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def warning(average: float | None) -> str | None:
    """A warning if the load before timing was too high for timing several threads, otherwise None."""
    if average is None or average <= BUSY * (os.cpu_count() or 1):
        return None
    return f"The machine was busy when this began (load {average}): times on several threads mean little."


def interleaved(
    subjects: Mapping[str, Callable[[], object]],
    rounds: int,
    threads: int | None = None,
    unsteady: Callable[[str], object] = lambda name: None,
) -> dict[str, list[float]]:
    """Times every subject once per round.

    Each is first called until its time stops falling, since the first calls may compile or fill a cache.

    Args:
        subjects: name -> function without arguments.
        rounds: number of samples per subject.
        threads: number of torch threads during the measurement. None: the current number.
        unsteady: called with the name of a subject whose time was still falling after `MOST_CALLS` calls.
    Returns:
        name -> seconds per call, one entry per round (a single entry for a slow subject).
    """
    from torch.utils.benchmark import Timer

    with on_threads(threads) as count:
        estimate = {}
        for name, call in subjects.items():
            estimate[name], is_steady = _warmed(call)
            if not is_steady:
                unsteady(name)
        samples: dict[str, list[float]] = {name: [t] for name, t in estimate.items() if t > SLOW_SECONDS}
        timers = {
            name: Timer("call()", globals={"call": call}, num_threads=count)
            for name, call in subjects.items()
            if name not in samples
        }
        numbers = {name: max(1, round(SAMPLE_SECONDS / max(estimate[name], 1e-7))) for name in timers}
        samples.update({name: [] for name in timers})
        for _ in range(rounds):
            for name, timer in timers.items():
                samples[name].append(timer.timeit(numbers[name]).median)
    return samples


def summary(samples: Mapping[str, list[float]], *, best: bool = False) -> dict[str, float]:
    """name -> median seconds per call, or with `best` the minimum."""
    return {name: min(values) if best else median(values) for name, values in samples.items()}


def ratio(samples: Mapping[str, list[float]], name: str, to: str, *, best: bool = False) -> float:
    """The median of the rounds' ratios of two subjects, so that a drift that both share cancels.

    The ratio of medians if one of them was timed once only; with `best` that of minima.
    """
    a, b = samples[name], samples[to]
    if best or len(a) != len(b):
        seconds = summary(samples, best=best)
        return seconds[name] / seconds[to]
    return median(x / y for x, y in zip(a, b, strict=True))


def drifting(samples: Mapping[str, list[float]]) -> list[str]:
    """The subjects whose median over the first half of the rounds differs from the second half's by more than DRIFT."""
    halves = {name: (s[: len(s) // 2], s[len(s) // 2 :]) for name, s in samples.items() if len(s) >= 8}
    return [name for name, (a, b) in halves.items() if abs(median(a) / median(b) - 1) > DRIFT]


@contextmanager
def on_threads(count: int | None) -> Iterator[int]:
    """Sets the number of torch threads inside a with block (None: does not change it), and yields it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _warmed(call: Callable[[], object]) -> tuple[float, bool]:
    """Calls repeatedly until two calls in a row take at least two thirds of the time of the fastest one before them.

    Returns the seconds of the last call, and whether the time stopped falling within `MOST_CALLS` calls.
    """
    fastest, steady = _once(call), 0
    for _ in range(MOST_CALLS - 1):
        last = _once(call)
        steady = steady + 1 if last > fastest / 1.5 else 0
        if steady == 2:
            return last, True
        fastest = min(fastest, last)
    return fastest, False


def _once(call: Callable[[], object]) -> float:
    """Seconds of one call, until a CUDA device has finished as well."""
    _finish()
    begin = time.perf_counter()
    call()
    _finish()
    return time.perf_counter() - begin


def _finish() -> None:
    """Waits for the CUDA device, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
