"""A call does what it does in a new process, whatever calls were made before it, and keeps none of its tensors alive.

What repeats a call that was checked before must notice everything in which two calls can differ:
tests/support/repeated_calls.py has the ordinary calls and the changes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext as nothing
from functools import cache
from typing import Any

import pytest
import repeated_calls as calls
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from repeated_calls import CALLS, Arguments, Case, FreshProcesses, Sizes, outcome, outcome_of, warm_up
from torch import Tensor

import sinpe_ext as sinpe

EAGER_BITS = torch.float32, torch.bfloat16, torch.float16  # of which both backends have the same bits on the CPU


@pytest.fixture(scope="module")
def fresh() -> Iterator[Callable[[Case], Any]]:
    """The outcome of a case in a process in which no call was made before it."""
    processes = FreshProcesses()
    yield cache(processes.outcome)
    processes.close()


@pytest.mark.sampled(12, "each change with some of the ordinary calls")
@pytest.mark.parametrize("case", calls.cases(), ids=lambda case: "-".join(case))
def test_changed_call(case: Case, fresh: Callable[[Case], Any]) -> None:
    """After the ordinary call, and the ordinary call after it."""
    changed = json.loads(json.dumps(outcome(case, is_warm=True)))
    assert changed == fresh(case)
    unchanged: Case = case[0], "around", "nothing"
    assert json.loads(json.dumps(outcome(unchanged))) == fresh(unchanged)


# ------------------------------------------------------------------------------------ many kinds of calls in turn

sizes = st.builds(Sizes, *(st.sampled_from(given) for given in ((1, 2, 3), (1, 2, 3, 5), (8, 16), EAGER_BITS)))


@st.composite
def changed_arguments(draw: st.DrawFn) -> tuple[str, Sizes, list[tuple[str, str]]]:
    """An ordinary call of any size, and up to two arguments with other values."""
    call = draw(st.sampled_from(sorted(CALLS)))
    changes = [case[1:] for case in calls.cases() if case[0] == call and case[1] in calls.VALUES]
    return call, draw(sizes), draw(st.lists(st.sampled_from(changes), max_size=2))


def run(call: str, of: Sizes, changes: list[tuple[str, str]]) -> Any:
    """What both backends have in common."""
    function, make = CALLS[call]
    arguments = make(of)
    for name, text in changes:
        with contextlib.suppress(Exception):  # there is no such value
            arguments[name] = calls.change(arguments, name, text)
    found = outcome_of(function, arguments)
    found["written"] = {name for name, versions in found["written"].items() if versions}
    return found


@settings(max_examples=15)
@given(st.lists(changed_arguments(), min_size=1, max_size=40), st.integers(1, 3))
def test_calls_of_many_kinds(kinds: list[tuple[str, Sizes, list[tuple[str, str]]]], times: int) -> None:
    """Equal to those of the eager backend, which repeats nothing."""
    found = [run(*kind) for kind in kinds * times]
    with sinpe.use_backend("eager"):
        want = [run(*kind) for kind in kinds]
    for kind, one, other in zip(kinds * times, found, want * times, strict=True):
        assert one == other, kind


def test_more_kinds_than_are_kept() -> None:
    """In rotation, and in random order."""
    several = Sizes(), Sizes(batch=1), Sizes(3, 2), Sizes(dtype=torch.float16)
    kinds = [(call, of) for of in several for call in CALLS]
    order = [*range(len(kinds))] * 2
    order += random.Random(0).choices(range(len(kinds)), k=len(kinds))
    found = [(at, run(*kinds[at], [])) for at in order]
    with sinpe.use_backend("eager"):
        want = [run(*kind, []) for kind in kinds]
    for at, one in found:
        assert one == want[at], kinds[at]


def with_seed(call: str) -> Arguments:
    """The arguments of an ordinary call, which draws no seed from torch's generator."""
    arguments = calls.ordinary(call)
    return {**arguments, "seed": 3} if arguments.get("dropout") else arguments


def test_threads() -> None:
    """Each makes all calls, in an order of its own."""
    names = sorted(CALLS)
    want = {name: calls.bits(CALLS[name][0](**with_seed(name))) for name in names}
    wrong: list[str] = []

    def work(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(20):
            for name in order.sample(names, len(names)):
                if calls.bits(CALLS[name][0](**with_seed(name))) != want[name]:
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -------------------------------------------------------------------------------------------- lifetime of tensors


@pytest.mark.parametrize("call", CALLS)
def test_no_tensor_is_kept(call: str) -> None:
    """Nor the result, also of a call that is differentiated."""
    function, make = CALLS[call]
    for differentiates in (False, True):
        gone = []
        for _ in range(4):
            arguments = make(Sizes())
            result = function(**arguments)
            if differentiates and result.requires_grad:
                result.sum().backward()
            tensors = [result, *(t for t in arguments.values() if isinstance(t, Tensor))]
            gone += [weakref.ref(t) for t in tensors]
            del arguments, result, tensors
        assert [alive for alive in (ref() for ref in gone) if alive is not None] == []


class Finalized:
    """A cycle of references, whose finalizer any garbage collection may run."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run, self.cycle = run, self

    def __del__(self) -> None:
        self.run()


@contextlib.contextmanager
def collecting(allocations: int, finalizer: Callable[[], object]) -> Iterator[None]:
    """The finalizer is run after this number of allocations."""
    thresholds = gc.get_threshold()
    gc.disable()
    gc.collect()
    try:
        Finalized(finalizer)
        gc.set_threshold(allocations)
        gc.enable()
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """Collections look only at the objects that these tests make, so that they are fast."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("call", CALLS)
def test_calls_during_a_call(call: str) -> None:
    """A finalizer that makes the same call and others."""
    function, make = CALLS[call]
    want, ran = outcome_of(function, make(Sizes())), 0

    def make_calls() -> None:
        nonlocal ran
        ran += during
        state = torch.get_rng_state()
        for other in (call, "add", "add, grid", "add, starts", "embed", "encode", "table"):
            warm_up(other, calls.ordinary(other))
        torch.set_rng_state(state)

    for allocations in range(1, 30):
        arguments, during = make(Sizes()), False
        torch.manual_seed(11)
        with collecting(allocations, make_calls):
            during = True
            result = function(**arguments)
            during = False
        assert calls.described(result) == want["result"]
    assert ran


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "smaller": lambda t: t.data.resize_(1),
    "other memory": lambda t: t.set_(torch.zeros(2, 2, dtype=t.dtype)),
    "transposed": lambda t: t.transpose_(0, -1),
}


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("call", "name"), [(call, name) for call in CALLS for name in calls.tensors_of(call)])
def test_tensor_that_changes_during_a_call(call: str, name: str, change: str) -> None:
    """The result is that of the tensor before or after, or there is an error."""
    function, errors = CALLS[call][0], (ValueError, RuntimeError, IndexError, TypeError)

    def attempt(allocations: int = 0, is_changed: bool = False) -> Any:
        arguments = with_seed(call)
        tensor = arguments[name]
        try:
            with torch.no_grad():
                if is_changed:
                    CHANGES[change](tensor)
            with (
                collecting(allocations, lambda: torch.no_grad()(CHANGES[change])(tensor)) if allocations else nothing()
            ):
                return calls.bits(function(**arguments))
        except errors as error:
            return type(error).__name__

    allowed = {attempt(), attempt(is_changed=True), *(error.__name__ for error in errors)}
    is_written = name == "out" or call.startswith("add_")
    for allocations in range(1, 30, 2):
        got = attempt(allocations)
        assert is_written or got in allowed, allocations
