"""The two tiers of the suite: `-m "not long"`, run by `make test`, and all tests, `make test-all`.

Long tests have a marker with the reason: `builds` (compiles or installs), `processes` (starts processes that take
seconds), `thorough("shorter test of the same")`. A test marked `sampled` is a product of parameters of which the short
tier runs a part: with `sampled("values")` each value of each parameter once, with `sampled("pairs")` each pair of
values of two parameters. `sampled(4, "why")` is for a list: each fourth case is run. `where=` excludes
cases that skip themselves. The choice depends on the parameters only.
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
    """The values, or pairs of values, of a case of a product."""
    # The object itself: values may be unhashable, and pytest's indices count cases.
    chosen = [(name, id(value)) for name, value in item.callspec.params.items()]
    return frozenset(combinations(chosen, min(strength, len(chosen))))


def sample(items: list[Any], how: str | int) -> set[int]:
    """Indices of few cases that together cover all: at each step the case that covers most missing values."""
    if isinstance(how, int):
        return set(range(0, len(items), how))
    has = [_covers(item, STRENGTH[how]) for item in items]
    missing, chosen = frozenset().union(*has), set()
    while missing:
        # A stride that reaches each index, so that the first among equal cases are not neighbours.
        order = sorted(range(len(has)), key=lambda at: (at * 7919 + len(chosen) * 31) % len(has))
        best = max(order, key=lambda at: len(has[at] & missing))
        chosen.add(best)
        missing -= has[best]
    return chosen


def _products(items: list[Any]) -> Iterator[tuple[str | int, list[Any]]]:
    """The sampled tests: how, and their cases that do not skip themselves."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            groups[item.path, item.cls, item.originalname].append(item)
    for cases in groups.values():
        marker = cases[0].get_closest_marker("sampled")
        where = marker.kwargs.get("where")
        worth = [item for item in cases if where is None or where(**item.callspec.params)]
        for item in cases:
            if item not in worth:
                item.add_marker("long")
        yield marker.args[0], worth


@pytest.hookimpl(tryfirst=True)  # before pytest evaluates -m
def pytest_collection_modifyitems(items: list[Any]) -> None:
    for how, cases in _products(items):
        chosen = sample(cases, how)
        for at, item in enumerate(cases):
            if at not in chosen:
                item.add_marker("long")
    for item in items:
        if any(item.get_closest_marker(reason) for reason in REASONS):
            item.add_marker("long")


# shared by the workers of pytest-xdist


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One per core; each needs some GPU memory, and the largest tests most of it."""
    return min(cores(), 2 if os.path.exists("/dev/nvidia0") else 16)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Workers inherit this process's environment: divides the threads among them, and disables compiler pools."""
    workers = getattr(config.option, "numprocesses", None)
    if not workers or hasattr(config, "workerinput"):
        return
    count = pytest_xdist_auto_num_workers() if isinstance(workers, str) else workers
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
