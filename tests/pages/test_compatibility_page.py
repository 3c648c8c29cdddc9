"""docs/compatibility.md: its tables equal the committed runs, and its rows are the marked features of tests."""

from __future__ import annotations

import re
from typing import Any

import compatibility_page as tool
import pytest


def test_tables_equal_the_committed_runs() -> None:
    text = tool.PAGE.read_text(encoding="utf-8")
    assert tool.page_parts.parts(text).keys() == tool.PARTS.keys()
    assert tool.page(text) == text, "run python tools/compatibility_page.py"


def test_every_feature_has_a_row_and_every_row_a_test() -> None:
    rows = tool.rows(tool.PAGE.read_text(encoding="utf-8"))
    named = set().union(*map(tool.features_of, (tool.ROOT / "tests").rglob("test_*.py")))
    assert len(rows) == len(set(rows))
    assert set(rows) == named, sorted(set(rows) ^ named)


def test_oldest_pinned_and_newer_torch_were_run() -> None:
    versions = [result["torch"] for result in tool.results()]
    assert {"2.11.0", "2.13.0"} <= set(versions) and len(set(versions)) >= 3
    for result in tool.results():
        assert set(result["runs"]) == set(tool.BACKENDS)


def run(passed: int = 0, failed: int = 0, skipped: dict[str, int] | None = None) -> dict[str, Any]:
    feature = {"passed": passed, "failed": ["test"] * failed, "skipped": skipped or {}}
    return {"features": {"add": feature}}


CELLS: dict[str, tuple[dict[str, Any], str]] = {
    "green": (run(12), "12"),
    "red": (run(12, 2), "12, **failed: 2**"),
    "red alone": (run(0, 1), "**failed: 1**"),
    "partly skipped": (run(3, 0, {"no b": 2, "no a": 1}), "3, skipped: 3 [2] [1]"),
    "skipped": (run(0, 0, {"no b": 2}), "skipped [2]"),
    "not run": ({"not_run": "no CUDA device"}, "not run [2]"),
    "added since": ({"features": {}}, "not run [2]"),
    "no case": (run(), "not run [2]"),
}


@pytest.mark.parametrize("found, cell", CELLS.values(), ids=CELLS)
def test_cell_is_green_or_has_a_reason(found: dict[str, Any], cell: str) -> None:
    note = tool.Notes()
    assert note("no a") == "[1]"
    assert tool.cell(found, "add", note) == cell
    assert all(f"[{line.split('.')[0]}]" in cell for line in list(note)[1:])


def test_reasons_contain_no_path() -> None:
    for result in tool.results():
        for one in result["runs"].values():
            reasons = [one.get("not_run", "")]
            reasons += [why for feature in one.get("features", {}).values() for why in feature["skipped"]]
            assert not [why for why in reasons if re.search(r"(^|\s)/\w+/", why)]
