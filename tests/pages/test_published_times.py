"""The times in README.md and docs/performance.md are those of the results in benchmarks/results that the pages name.

A table follows <!-- measured: FILE... -->. A column names the rows of the benchmark; the results are those of the
largest number of threads.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pages
import pytest

PAGES = ("README.md", "docs/performance.md")
TABLE = re.compile(r"<!-- measured: ([^>]*?) -->\n\n((?:\|.*\n)+)")
EAGER = ("eager", "naive float32 formula", "x + pe")  # the first of these in a row is its "eager PyTorch"


def results(files: str) -> dict[str, dict[str, Any]]:
    """Name of a row -> its results."""
    rows = [row for file in files.split() for row in json.loads(pages.text_of(file))["rows"]]
    return {row["name"]: row for row in sorted(rows, key=lambda row: row.get("threads") or 0)}


def expected(column: str, row: dict[str, Any]) -> list[float]:
    """The numbers of a cell, unrounded."""
    peers = {peer["name"]: peer for peer in row["peers"]}
    eager = next((peers[name]["ms"] for name in EAGER if name in peers), row.get("floor_ms"))
    compiled = peers.get("torch.compile", {}).get("ms")
    values = {
        "sinpe_ext, ms": row["ours_ms"],
        "ours, ms": row["ours_ms"],
        "eager PyTorch, ms": eager,
        "torch.compile, ms": compiled,
        "floor, ms": row.get("floor_ms"),
        "ours / floor": row.get("ratio"),
    }
    if column == "peers / ours":
        return [peer["ratio"] for peer in row["peers"]]
    return [] if (value := values.get(column)) is None else [value]


def rounded(shown: str, value: float) -> bool:
    """Whether a number in a page is the value, rounded to its digits."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def faults(text: str) -> list[str]:
    """The rows of a page that differ from the results."""
    wrong = []
    for files, table in TABLE.findall(text):
        by_name = results(files)
        head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        for cells in lines:
            name = next(cell.strip("`") for column, cell in zip(head, cells, strict=True) if column.startswith("row"))
            row = by_name[name]
            for column, cell in zip(head, cells, strict=True):
                if column.endswith(", ms") or " / " in column:
                    numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", cell)
                    want = expected(column, row)
                    if len(numbers) != len(want) or not all(map(rounded, numbers, want)):
                        wrong.append(f"{name}, {column}: {cell} is not {want}")
                    names = [peer["name"] for peer in row["peers"]] if column == "peers / ours" else []
                    wrong += [f"{name}: no {peer}" for peer in names if peer not in cell]
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_times_are_those_of_the_results(page: str) -> None:
    text = pages.text_of(page)
    assert TABLE.search(text) and faults(text) == []


def test_wrong_time_is_detected() -> None:
    text = pages.text_of("README.md")
    assert "| 24.0 |" in text and faults(text.replace("| 24.0 |", "| 24.1 |")) == [
        "dropout, sinpe_ext, ms: 24.1 is not [24.0046]"
    ]
