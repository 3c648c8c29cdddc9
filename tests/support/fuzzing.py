"""Property-based tests that are counted: `@fuzz(examples)` above `@given`, and `machine(rules, examples)`.

The profile of hypothesis says how many are drawn and which: `ci` that many and the same for everyone, `long` 20 times
as many and new ones (`pytest -m hypothesis --hypothesis-profile=long`). As a plugin of pytest this file counts what
really ran: a test that drew fewer examples than it says fails.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

USUAL = 100  # max_examples of `ci`; fuzz and machine take other profiles' as a multiple of it
# A first use may compile, and machines differ: time is no property of the code under test.
settings.register_profile(
    "ci", max_examples=USUAL, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long",
    max_examples=20 * USUAL,
    derandomize=False,
    database=None,
    deadline=None,
    print_blob=True,
    # In so many examples it happens.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)

PROMISED: dict[str, int] = {}  # examples by test, as declared
_ran: Counter[str] = Counter()


def _drawn(examples: int) -> int:
    """How many examples the profile draws in the place of these."""
    return examples * settings().max_examples // USUAL


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
        return settings(max_examples=_drawn(examples))(test)

    return decorate


def machine(rules: type[RuleBasedStateMachine], examples: int, steps: int) -> Callable[[], None]:
    """The test of a state machine: each example runs up to `steps` rules."""
    name = f"{rules.__module__}::{rules.__name__}"

    class Counted(rules):  # type: ignore[misc, valid-type]
        def teardown(self) -> None:
            super().teardown()
            _ran[name] += 1

    def test() -> None:
        drawn = settings(max_examples=_drawn(examples), stateful_step_count=steps)
        run_state_machine_as_test(Counted, settings=drawn)

    Counted.__name__ = Counted.__qualname__ = rules.__name__
    test.promised = name  # type: ignore[attr-defined]
    PROMISED[name] = examples
    return pytest.mark.hypothesis(test)


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
    outcome: Any = yield
    ran, wanted = _ran[name] - before, _drawn(PROMISED[name])
    if outcome.excinfo is None and ran < wanted:
        outcome.force_exception(pytest.fail.Exception(f"{name}: expected {wanted} examples, got {ran}", pytrace=False))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A seed for the examples of `long`, before hypothesis and the workers of pytest-xdist look for one."""
    if config.getoption("--hypothesis-profile", None) == "long" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**31))


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed", None)
    return f"hypothesis: --hypothesis-seed={seed} has these examples again" if seed else ""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: its count is added here."""
    _ran.update(getattr(node, "workeroutput", {}).get("fuzz", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = dict(_ran)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _ran:
        seed = terminalreporter.config.getoption("--hypothesis-seed", None)
        drawn = f"{sum(_ran.values()):,} examples of {len(_ran)} tests"
        terminalreporter.write_line(f"hypothesis: {drawn}{f', seed {seed}' if seed else ''}")
