"""What `make test` leaves to `make test-all`: tests/support/tiers.py."""

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
def test_a_sample_has_every_value_or_pair(how: str, strength: int, most: int) -> None:
    items = cases(**VALUES)
    chosen = tiers.sample(items, how)
    assert len(items) == 60 and len(chosen) <= most
    everything = set().union(*(parts(item.callspec.params, strength) for item in items))
    assert everything == set().union(*(parts(items[at].callspec.params, strength) for at in chosen))
    assert chosen == tiers.sample(cases(**VALUES), how)  # the same in every worker and for everyone


def test_a_sample_of_a_list() -> None:
    assert tiers.sample(cases(name=list("abcdefghi")), 4) == {0, 4, 8}
    assert tiers.sample(cases(name=list("abc")), "values") == {0, 1, 2}
    assert tiers.sample(cases(name=["a"]), "pairs") == {0}


def test_markers_and_what_they_leave_out(pytester: pytest.Pytester) -> None:
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

        def test_promise(): pass
        """
    )
    options = ("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
    pytester.runpytest_inprocess(*options, "-m", "not long").assert_outcomes(passed=4, deselected=7)
    pytester.runpytest_inprocess(*options, "-m", "long").assert_outcomes(passed=7, deselected=4)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=11)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("sampled('everything')", "test_it.*: expected sampled.*got 'everything'"),
        ("sampled(0)", "test_it.*: expected sampled.*got 0"),
        ("sampled('values')", "test_it: expected sampled.* of a test with parameters"),
        ("long", "test_it.*: expected a marker that says why it is long"),
    ],
)
def test_markers_that_are_refused(marker: str, message: str, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest, tiers\npytest_collection_modifyitems = tiers.pytest_collection_modifyitems")
    cases = "" if "with parameters" in message else "@pytest.mark.parametrize('a', [1, 2])\n"
    pytester.makepyfile(f"import pytest\n{cases}@pytest.mark.{marker}\ndef test_it({'a' if cases else ''}): pass\n")
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.re_match_lines([f".*{message}.*"])
