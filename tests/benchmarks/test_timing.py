"""`benchmarks/timing.py`: subjects are called until their time stops falling, and one that never does is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks import timing


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[float]) -> Callable[[], None]:
    """A subject whose calls take the given times by a simulated clock."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call() -> None:
        now[0] += next(seconds)

    return call


def test_compilation_in_the_first_calls_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = timed(monkeypatch, iter([4.0, 2.0, 0.5, 0.5, 0.5, 99.0]))
    assert timing._warmed(call) == (0.5, True)


def test_two_compilations_of_equal_length_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    call = timed(monkeypatch, iter([4.0, 4.0, 0.5, 0.5, 0.5, 99.0]))
    assert timing._warmed(call) == (0.5, True)


def test_slower_calls_end_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing._warmed(timed(monkeypatch, iter([0.5, 0.75, 0.625, 99.0]))) == (0.625, True)


def test_falling_times_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is passed on, and the samples of the subject are there nevertheless."""
    call = timed(monkeypatch, (2.0 ** (20 - k) for k in range(timing.MOST_CALLS)))
    never: list[str] = []
    samples = timing.interleaved({"falling": call}, rounds=3, unsteady=never.append)
    assert never == ["falling"] and samples == {"falling": [2.0 ** (21 - timing.MOST_CALLS)]}


def test_ratio_is_that_of_the_rounds() -> None:
    """A drift that both subjects share cancels; a subject that was timed once only has one sample."""
    samples = {"ours": [1.0, 2.0, 4.0, 9.0], "floor": [1.0, 2.0, 2.0, 3.0], "slow": [30.0]}
    assert timing.ratio(samples, "ours", "floor") == 1.5
    assert timing.ratio(samples, "slow", "ours") == 10.0
    assert timing.ratio(samples, "ours", "floor", best=True) == 1.0


def test_drift_is_reported() -> None:
    steady, falling = [1.0, 1.1] * 8, [1.2] * 8 + [1.0] * 8
    assert timing.drifting({"steady": steady, "falling": falling, "small": [9.0, 1.0]}) == ["falling"]


@pytest.mark.parametrize(
    ("samples", "expected"), [([3.0], 0.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 0.6667), ([7.0] * 9, 0.0), ([1.0, 3.0], 0.5)]
)
def test_spread(samples: list[float], expected: float) -> None:
    assert timing.spread(samples) == pytest.approx(expected)
