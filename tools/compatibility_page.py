"""Writes the tables of docs/compatibility.md from the files of `pytest --feature-report`, docs/compatibility/*.json."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_parts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / "docs" / "compatibility"
MARK = re.compile(r"""\bfeature\(\s*["']([^"']+)["']""")
BACKENDS = ("compiled", "eager", "cuda")
NO_TEST = "this run had no test of it"
NOT_RUN = {"not_run": "not run"}


def features_of(path: Path) -> set[str]:
    """The features that a test file names."""
    return set(MARK.findall(path.read_text(encoding="utf-8")))


def results() -> list[dict[str, Any]]:
    """The results of all runs, the oldest torch first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    return sorted(
        found, key=lambda r: ([int(n) for n in re.findall(r"\d+", f"{r['torch']} {r['python']}")], r["torch"])
    )


def rows(text: str) -> list[str]:
    """The features, in the order of the page's table that describes their tests."""
    table = re.search(r"^\| feature \| what its tests show \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None, f"{PAGE}: no table of features"
    return [line.split(" | ")[0].removeprefix("| ") for line in table[1].splitlines()]


class Notes:
    """Collects distinct reasons and numbers them in the order of their first use."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, why: str) -> str:
        if why not in self.found:
            self.found.append(why)
        return f"[{self.found.index(why) + 1}]"

    def __iter__(self) -> Iterator[str]:
        return (f"{number}. {why}" for number, why in enumerate(self.found, 1))


def cell(run: dict[str, Any], feature: str, note: Notes) -> str:
    if "not_run" in run:
        return f"not run {note(run['not_run'])}"
    found = run["features"].get(feature)
    if found is None:
        return f"not run {note(NO_TEST)}"
    parts = [str(found["passed"])] if found["passed"] else []
    parts += [f"**failed: {len(found['failed'])}**"] if found["failed"] else []
    if found["skipped"]:
        number = sum(found["skipped"].values())
        parts.append(f"skipped{f': {number}' if parts else ''} {' '.join(map(note, found['skipped']))}")
    return ", ".join(parts) or f"not run {note(NO_TEST)}"


def name_of(result: dict[str, Any], every: list[dict[str, Any]]) -> str:
    alike = [other for other in every if other["torch"] == result["torch"]]
    return result["torch"] + (f", Python {result['python']}" if len(alike) > 1 else "")


def matrix(text: str, found: list[dict[str, Any]]) -> str:
    note = Notes()
    columns = [(backend, result) for backend in BACKENDS for result in found]
    titles = [f"{'CUDA' if backend == 'cuda' else backend} {name_of(result, found)}" for backend, result in columns]
    lines = [f"| feature | {' | '.join(titles)} |", "|---|" + "---|" * len(columns)]
    extra = sorted({f for r in found for run in r["runs"].values() for f in run.get("features", ())} - set(rows(text)))
    for feature in [*rows(text), *extra]:
        cells = [cell(result["runs"].get(backend, NOT_RUN), feature, note) for backend, result in columns]
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *note])


def environments(text: str, found: list[dict[str, Any]]) -> str:
    lines = [
        "| torch | Python | platform | backend | library | tests | seconds | run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in found:
        for backend in BACKENDS:
            run = result["runs"].get(backend, NOT_RUN)
            if "not_run" in run:
                continue
            passed = sum(feature["passed"] for feature in run["features"].values())
            facts = [run["torch"], run["python"], run["platform"], "CUDA" if backend == "cuda" else backend]
            facts += [
                ", ".join(filter(None, [run["library"], run["device"]])) or "none",
                f"{passed} passed",
                run["seconds"],
            ]
            lines.append("| " + " | ".join(map(str, [*facts, f"{run['commit']}, {run['date']}"])) + " |")
    return "\n".join(lines)


PARTS = {"matrix": matrix, "environments": environments}


def page(text: str) -> str:
    """The page with its generated parts renewed."""
    found = results()
    return page_parts.replace(text, {name: made(text, found) for name, made in PARTS.items()})


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
