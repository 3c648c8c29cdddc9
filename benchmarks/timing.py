"""Interleaved timing, A B A B ..., so that temporary slowness of the machine affects all calls alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles

import torch
from torch.utils.benchmark import Timer

SLOW_SECONDS = 1.0  # a call slower than this is timed once only, because its ratio does not need more precision
SAMPLE_SECONDS = 0.02  # one sample repeats a fast call for about this long
MOST_CALLS = 8  # warm-up calls, within which the time of a call has to stop falling
DRIFT = 0.15  # of the time of a call, from one half of the rounds to the other

Samples = dict[str, list[float]]  # name -> seconds per call, one entry per round (a single entry for a slow call)


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    threads: int | None = None,
    unsteady: Callable[[str], object] = lambda name: None,
) -> Samples:
    """Times every call once per round.

    Each is first called until its time stops falling, since the first calls may compile or fill a cache.

    Args:
        calls: name -> function without arguments.
        rounds: number of samples per call.
        threads: number of torch threads during the measurement. None: the current number.
        unsteady: called with the name of a call whose time was still falling after `MOST_CALLS` calls.
    """
    with on_threads(threads) as count:
        samples: Samples = {}
        timers: dict[str, tuple[Timer, int]] = {}
        for name, call in calls.items():
            estimate, is_steady = _warmed(call)
            if not is_steady:
                unsteady(name)
            samples[name] = [estimate] if estimate > SLOW_SECONDS else []
            if not samples[name]:
                repeats = max(1, round(SAMPLE_SECONDS / max(estimate, 1e-7)))
                timers[name] = Timer("call()", globals={"call": call}, num_threads=count), repeats
        for _ in range(rounds):
            for name, (timer, repeats) in timers.items():
                samples[name].append(timer.timeit(repeats).median)
    return samples


def summary(samples: Samples, *, best: bool = False) -> dict[str, float]:
    """name -> median seconds per call, or with `best` the minimum."""
    return {name: min(values) if best else median(values) for name, values in samples.items()}


def ratio(samples: Samples, name: str, to: str, *, best: bool = False) -> float:
    """The median of the rounds' ratios of two calls, so that a drift that both share cancels.

    The ratio of medians if one of them was timed once only; with `best` that of minima.
    """
    a, b = samples[name], samples[to]
    if best or len(a) != len(b):
        seconds = summary(samples, best=best)
        return seconds[name] / seconds[to]
    return median(x / y for x, y in zip(a, b, strict=True))


def spread(samples: list[float]) -> float:
    """The distance between the first and the third quartile, as a part of the median; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    first, middle, third = quantiles(samples, n=4, method="inclusive")
    return round((third - first) / middle, 4) if middle else 0.0


def drifting(samples: Samples) -> list[str]:
    """The calls whose median over the first half of the rounds differs from the second half's by more than DRIFT."""
    halves = {name: (s[: len(s) // 2], s[len(s) // 2 :]) for name, s in samples.items() if len(s) >= 8}
    return [name for name, (a, b) in halves.items() if abs(median(a) / median(b) - 1) > DRIFT]


@contextmanager
def on_threads(count: int | None) -> Iterator[int]:
    """Sets the number of torch threads inside a with block (None: does not change it), and yields it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield count or before
    finally:
        torch.set_num_threads(before)


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
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --------------------------------------------------------------------------------------------------------- device time

WORK_SECONDS = 2e-3  # of the device, for which a sample's calls are queued
MOST_QUEUED = 50  # calls; the queue of a device holds about a thousand kernels
CYCLES = 10**6  # of torch.cuda._sleep, to find how long one takes


def device_samples(calls: Mapping[str, Callable[[], object]], rounds: int) -> Samples:
    """Seconds of the CUDA device per call, interleaved as in `interleaved`.

    The calls wait in the device's queue behind a kernel that sleeps until the host has queued all of them, so that the
    host's time is not part of it. The calls have been warmed up.
    """
    cycle = _elapsed(lambda: torch.cuda._sleep(CYCLES)) / CYCLES  # type: ignore[no-untyped-call]
    queues = {name: _queue(call, cycle) for name, call in calls.items()}
    samples: Samples = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (run, repeats, sleep) in queues.items():
            torch.cuda.synchronize()
            torch.cuda._sleep(sleep)  # type: ignore[no-untyped-call]
            samples[name].append(_elapsed(run) / repeats)
    return samples


def _elapsed(run: Callable[[], object]) -> float:
    """Seconds of the device between the events before and after `run`."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()  # type: ignore[no-untyped-call]
    run()
    end.record()  # type: ignore[no-untyped-call]
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _queue(call: Callable[[], object], cycle: float) -> tuple[Callable[[], None], int, int]:
    """As many calls as the device needs WORK_SECONDS for, their number, and the cycles of `_sleep` that the host needs
    to queue them; `cycle`: seconds of one."""
    torch.cuda.synchronize()
    repeats = max(1, min(MOST_QUEUED, round(WORK_SECONDS / max(_elapsed(call), 1e-6))))

    def several() -> None:
        for _ in range(repeats):
            call()

    torch.cuda.synchronize()
    begin = time.perf_counter()
    several()
    queued = time.perf_counter() - begin
    return several, repeats, int(2 * queued / cycle)
