"""Property-based tests with counted examples: `@fuzz(examples)` above `@given`, and `machine(rules, examples)`.

The hypothesis profile determines number and choice: `ci` that many and the same ones on each run, `long` 20 times as
many and new ones (`pytest -m hypothesis --hypothesis-profile=long`). As a pytest plugin, this file counts the examples
that ran: a test with fewer than declared fails.
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

USUAL = 100  # max_examples of `ci`; other profiles scale fuzz and machine relative to it
# A first use may compile, and machines differ: no time limits.
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

PROMISED: dict[str, int] = {}  # declared examples per test
_ran: Counter[str] = Counter()


def _drawn(examples: int) -> int:
    """Number of examples in the current profile."""
    return examples * settings().max_examples // USUAL


def fuzz(examples: int) -> Callable[[Any], Any]:
    """Settings of a test made by `given`, which must pass that many examples."""

    def decorate(test: Any) -> Any:
        name, inner = f"{test.__module__}::{test.__name__}", test.hypothesis.inner_test

        @wraps(inner)
        def counted(*arguments: Any, **named: Any) -> None:
            inner(*arguments, **named)
            _ran[name] += 1  # examples that were rejected or failed do not count

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


# pytest hooks


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
    """Sets a seed for the examples of `long`, before hypothesis and the workers of pytest-xdist choose one."""
    if config.getoption("--hypothesis-profile", None) == "long" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**31))


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed", None)
    return f"hypothesis: --hypothesis-seed={seed} repeats these examples" if seed else ""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds the counts of a pytest-xdist worker that has finished."""
    _ran.update(getattr(node, "workeroutput", {}).get("fuzz", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["fuzz"] = dict(_ran)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _ran:
        seed = terminalreporter.config.getoption("--hypothesis-seed", None)
        drawn = f"{sum(_ran.values()):,} examples of {len(_ran)} tests"
        terminalreporter.write_line(f"hypothesis: {drawn}{f', seed {seed}' if seed else ''}")
