"""`cli/timing.py`: subjects are called until their time stops falling, and one that never does is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sinpe_ext.cli import timing


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float]) -> Callable[[], None]:
    """A subject whose calls take the given times by a simulated clock."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += next(seconds)

    return call


def test_compilation_in_the_first_calls_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = timed(monkeypatch, iter([4.0, 2.0, 0.5, 0.5, 99.0]))
    assert timing._warmed(call) == (0.5, True)


def test_slower_second_call_ends_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing._warmed(timed(monkeypatch, iter([0.5, 0.75, 99.0]))) == (0.75, True)


def test_falling_times_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is passed on, and the samples of the subject are there nevertheless."""
    call = timed(monkeypatch, (2.0 ** (20 - k) for k in range(timing.MOST_CALLS)))
    never: list[str] = []
    samples = timing.interleaved({"falling": call}, rounds=3, unsteady=never.append)
    assert never == ["falling"] and samples == {"falling": [2.0 ** (21 - timing.MOST_CALLS)]}
