"""The two tiers of the suite: `-m "not long"`, which `make test` runs, and all tests, `make test-all`.

What is long is said by a marker with the reason: `builds` (compiles or installs), `processes` (starts processes that
take seconds), `thorough` (shows at more places what a shorter test shows too). A test marked `sampled` is a product of
parameters of which the short tier runs a part: with `sampled("values")` every value of every parameter once, with
`sampled("pairs")` every pair of values of two parameters, with `sampled(4)` each fourth case. The choice depends on
nothing but the parameters.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

REASONS = ("builds", "processes", "thorough")
STRENGTH = {"values": 1, "pairs": 2}


def _covers(item: Any, strength: int) -> frozenset[Any]:
    """The values, or pairs of values, that a case of a product has."""
    # The object itself: values need not have a hash, and pytest's own indices count cases.
    chosen = [(name, id(value)) for name, value in item.callspec.params.items()]
    return frozenset(combinations(chosen, min(strength, len(chosen))))


def sample(items: list[Any], how: str | int) -> set[int]:
    """Places of few cases that together have what all have: at each step the one with the most that is missing."""
    if isinstance(how, int):
        return set(range(0, len(items), how))
    has = [_covers(item, STRENGTH[how]) for item in items]
    missing, chosen = frozenset().union(*has), set()
    while missing:
        # A step through the list that meets every place, so that the first of equals are not neighbours.
        order = sorted(range(len(has)), key=lambda at: (at * 7919 + len(chosen) * 31) % len(has))
        best = max(order, key=lambda at: len(has[at] & missing))
        chosen.add(best)
        missing -= has[best]
    return chosen


def _products(items: list[Any]) -> Iterator[tuple[str | int, list[Any]]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            found[item.path, item.cls, item.originalname].append(item)
    for cases in found.values():
        first = cases[0]
        (how,) = first.get_closest_marker("sampled").args
        if not hasattr(first, "callspec") or not (how in STRENGTH or (type(how) is int and how > 0)):
            raise pytest.UsageError(
                f'{first.nodeid}: expected sampled("values"), sampled("pairs") or sampled(a number) of a test with '
                f"parameters, got {how!r}"
            )
        yield how, cases


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if item.get_closest_marker("long"):
            raise pytest.UsageError(f"{item.nodeid}: expected a marker that says why it is long, {REASONS}, got long")
    for how, cases in _products(items):
        chosen = sample(cases, how)
        for at, item in enumerate(cases):
            if at not in chosen:
                item.add_marker("long")
    for item in items:
        if any(item.get_closest_marker(reason) for reason in REASONS):
            item.add_marker("long")


# What several workers of pytest-xdist share.


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One for each core; each of them takes some of a card's memory, and the largest tests most of it."""
    return min(cores(), 2 if os.path.exists("/dev/nvidia0") else 16)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Workers inherit this process's environment: threads for each, and no pool of compilers in each."""
    workers = getattr(config.option, "numprocesses", None)
    if not workers or hasattr(config, "workerinput"):
        return
    count = pytest_xdist_auto_num_workers() if isinstance(workers, str) else workers
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
