"""tests/support/tiers.py: which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
import tiers

pytest_plugins = ["pytester"]
VALUES = {"form": ["a", "b", "c", "d", "e"], "dtype": [1, 2, 3], "backend": ["compiled", "eager"], "size": [{}, {}]}


def cases(**values: list[Any]) -> list[Any]:
    chosen = [dict(zip(values, row, strict=True)) for row in product(*values.values())]
    return [SimpleNamespace(callspec=SimpleNamespace(params=params)) for params in chosen]


def parts(params: dict[str, Any], strength: int) -> set[Any]:
    return set(combinations([(name, id(value)) for name, value in params.items()], strength))


@pytest.mark.parametrize(("how", "strength", "most"), [("values", 1, 5), ("pairs", 2, 20)])
def test_sample_contains_every_value_or_pair(how: str, strength: int, most: int) -> None:
    items = cases(**VALUES)
    chosen = tiers.sample(items, how)
    assert len(items) == 60 and len(chosen) <= most
    everything = set().union(*(parts(item.callspec.params, strength) for item in items))
    assert everything == set().union(*(parts(items[at].callspec.params, strength) for at in chosen))
    assert chosen == tiers.sample(cases(**VALUES), how)  # the same in each worker and on each machine


def test_sample_without_excluded_cases(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest, tiers\npytest_collection_modifyitems = tiers.pytest_collection_modifyitems")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.sampled("values", where=lambda a, b: a == b)
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        def test_product(a, b):
            if a != b: pytest.skip("none of these")
        """
    )
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
    pytester.runpytest_inprocess(*options, "-m", "not long").assert_outcomes(passed=3, deselected=6)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=3, skipped=6)


def test_threads_are_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(tiers, "cores", lambda: 8)
    for workers, threads in ((2, "4"), (3, "2"), (16, "1"), ("auto", "1")):
        tiers.pytest_configure(SimpleNamespace(option=SimpleNamespace(numprocesses=workers)))
        assert tiers.os.environ.pop("OMP_NUM_THREADS") == threads
        assert tiers.os.environ.pop("TORCHINDUCTOR_COMPILE_THREADS") == "1"
    tiers.pytest_configure(SimpleNamespace(option=SimpleNamespace(numprocesses=None)))
    tiers.pytest_configure(SimpleNamespace(option=SimpleNamespace(numprocesses=2), workerinput={}))
    assert "OMP_NUM_THREADS" not in tiers.os.environ
    assert tiers.pytest_xdist_auto_num_workers() in (2, 8)


def test_sample_of_a_list() -> None:
    assert tiers.sample(cases(name=list("abcdefghi")), 4) == {0, 4, 8}
    assert tiers.sample(cases(name=list("abc")), "values") == {0, 1, 2}
    assert tiers.sample(cases(name=["a"]), "pairs") == {0}


def test_markers_deselect_tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest, tiers\npytest_collection_modifyitems = tiers.pytest_collection_modifyitems")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.sampled("values")
        @pytest.mark.parametrize("a", [1, 2, 3])
        @pytest.mark.parametrize("b", [1, 2, 3])
        def test_product(a, b): pass

        @pytest.mark.builds
        def test_build(): pass

        @pytest.mark.sampled(2, "test_promise has all of them")
        @pytest.mark.parametrize("a", [1, 2, 3])
        def test_list(a): pass

        @pytest.mark.thorough("test_promise")
        def test_more(): pass

        def test_promise(): pass
        """
    )
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
    pytester.runpytest_inprocess(*options, "-m", "not long").assert_outcomes(passed=6, deselected=9)
    pytester.runpytest_inprocess(*options, "-m", "long").assert_outcomes(passed=9, deselected=6)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=15)
