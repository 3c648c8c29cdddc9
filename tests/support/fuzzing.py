"""Property-based tests that are counted: `@fuzz(examples)` above `@given`, and `machine(rules, examples)`.

Each draws the same examples for everyone. SINPE_EXT_FUZZ=50 draws 50 times as many, new ones at each run or those of
`--hypothesis-seed`; tools/fuzz.py does that for hours. As a plugin of pytest this file counts what really ran: a test
that drew fewer examples than it says fails. SINPE_EXT_FUZZ_LOG names a file that gets a line for each test.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

MORE = int(os.environ.get("SINPE_EXT_FUZZ", "1"))
LOG = os.environ.get("SINPE_EXT_FUZZ_LOG")

PROMISED: dict[str, int] = {}  # examples by test, as declared
_ran: Counter[str] = Counter()


def _settings(examples: int, **more: Any) -> settings:
    slow = [HealthCheck.too_slow]  # a first use may compile, and machines differ
    if MORE == 1:
        return settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=slow, **more)
    chance = [*slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]  # it happens, in so many
    return settings(
        max_examples=examples * MORE,
        derandomize=False,
        database=None,
        print_blob=True,
        deadline=None,
        suppress_health_check=chance,
        **more,
    )


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Settings of a test made by `given`, and its promise to pass that many examples."""

    def decorate(test: Any) -> Any:
        name, inner = f"{test.__module__}::{test.__name__}", test.hypothesis.inner_test

        @wraps(inner)
        def counted(*arguments: Any, **named: Any) -> None:
            inner(*arguments, **named)
            _ran[name] += 1  # an example that was rejected or failed is none

        test.hypothesis.inner_test = counted
        test.promised = name
        PROMISED[name] = examples
        return _settings(examples)(test)

    return decorate


def machine(rules: type[RuleBasedStateMachine], examples: int, steps: int) -> Callable[[], None]:
    """The test of a state machine: each example runs up to `steps` rules."""
    name = f"{rules.__module__}::{rules.__name__}"

    class Counted(rules):  # type: ignore[misc, valid-type]
        def teardown(self) -> None:
            super().teardown()
            _ran[name] += 1

    def test() -> None:
        run_state_machine_as_test(Counted, settings=_settings(examples, stateful_step_count=steps))

    Counted.__name__ = Counted.__qualname__ = rules.__name__
    test.promised = name  # type: ignore[attr-defined]
    PROMISED[name] = examples
    return test


# What pytest calls.


def _promised(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "obj", None), "promised", None)


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    name = _promised(pyfuncitem)
    if name is None:
        yield
        return
    before = _ran[name]
    _log(test=pyfuncitem.nodeid, began=True)
    outcome: Any = yield
    ran, error = _ran[name] - before, outcome.excinfo
    _log(test=pyfuncitem.nodeid, cases=ran, outcome="passed" if error is None else error[0].__name__)
    if error is None and ran < PROMISED[name] * MORE:
        wanted = f"{name}: expected {PROMISED[name] * MORE} examples, got {ran}"
        outcome.force_exception(pytest.fail.Exception(wanted, pytrace=False))


def _log(**line: Any) -> None:
    if LOG:
        with open(LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: its count is added here."""
    _ran.update(getattr(node, "workeroutput", {}).get("fuzz", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = dict(_ran)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _ran:
        terminalreporter.write_line(f"fuzz: {sum(_ran.values())} examples in {len(_ran)} tests")
