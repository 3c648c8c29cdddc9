"""README and docs: all Python blocks and commands run, named files exist, times are those that were measured.

The Python blocks of a page run one after the other. A block that cannot run here is preceded by a comment in the page:
<!-- not run: reason -->. Links are checked by `make docs`.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pages
import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext import __main__ as cli

# Pages whose blocks are run by another test file.
ELSEWHERE = {
    "docs/conventions.md": "test_conventions_page.py",
    "docs/graphs.md": "test_graphs_page.py",
    "docs/integrations.md": "test_integrations_page.py",
}
TEXTS = {page: pages.text_of(page) for page in pages.PAGES}
PYTHON = [page for page in TEXTS if page not in ELSEWHERE and pages.blocks(TEXTS[page], "python")]
ON_RANKS = "runs on every rank in the tests"  # tests/distributed/test_dtensor.py
# Commands that take minutes: only their options are parsed; test_cli.py and tests/backend run them.
LONG = ("demo", "build")


@pytest.mark.parametrize("page", PYTHON)
def test_all_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printing = dict(vars(torch._tensor_str.PRINT_OPTS))
    with torch.random.fork_rng(devices=[]):
        for block in pages.blocks(TEXTS[page], "python"):
            allowed = block.mark == ON_RANKS and page == "docs/distributed.md"
            assert not block.mark or block.not_run or allowed, f"{page}:{block.line}: {block.mark}"
            code = compile("\n" * block.line + block.code, page, "exec")  # also blocks that do not run must parse
            if not block.mark:
                exec(code, names)
    vars(torch._tensor_str.PRINT_OPTS).update(printing)


def commands() -> set[str]:
    """Arguments of `python -m sinpe_ext` in shell blocks, without comments and redirections."""
    shell = [block.code for text in TEXTS.values() for block in pages.blocks(text, "", "sh", "console")]
    lines = re.sub(r"\\\n\s*", " ", "".join(shell)).splitlines()
    said = [re.match(r"(?:\$ )?(?:[A-Z_]+=\S* )*python -m sinpe_ext ([^#>|]*)", line) for line in lines]
    return {match[1].strip() for match in said if match}


@pytest.mark.parametrize("line", sorted(commands()))
def test_command_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line)
    cli.parser().parse_args(words)  # SystemExit for an unknown option
    if words[0] in LONG:
        return
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    torch.save({"pe": sinpe.table(64, 8)}, "checkpoint.pt")  # a file that the pages assume
    assert cli.main(words) == 0


@pytest.mark.parametrize("page", TEXTS)
def test_names_of_files_and_targets_are_valid(page: str) -> None:
    assert pages.missing(TEXTS[page]) == []


def test_index_names_every_page_and_the_guide_every_convention() -> None:
    links = set(re.findall(r"\]\(([^)\s#]+)", TEXTS["docs/README.md"]))
    assert {Path(page).name for page in TEXTS if re.fullmatch(r"docs/(?!README)[^/]*\.md", page)} - links == set()
    assert {f"../{page}" for page in TEXTS if "/" not in page} - links == set()
    section = TEXTS["docs/guide.md"].partition("## Conventions")[2]
    assert not [name for name in sinpe.conventions() if f"`{name}`" not in section]


# Times. A table follows <!-- measured: FILE... -->, with the names of rows of the benchmark; the results are those of
# the largest number of threads. A name with * stands for several rows, whose smallest and largest ratio it shows.
TABLE = re.compile(r"<!-- measured: ([^>]*?) -->\n\n((?:\|.*\n)+)")
EAGER = ("eager", "naive float32 formula", "x + pe")  # the first of these in a row is its "eager PyTorch"


def expected(column: str, rows: list[dict[str, Any]]) -> list[float]:
    """The numbers of a cell, unrounded."""
    if len(rows) > 1:
        ratios = [row["ratio"] for row in rows]
        return [min(ratios), max(ratios)] if column == "ours / floor" else []
    row = rows[0]
    peers = {peer["name"]: peer for peer in row["peers"]}
    if column == "peers / ours":
        return [peer["ratio"] for peer in row["peers"]]
    values = {
        "sinpe_ext, ms": row["ours_ms"],
        "ours, ms": row["ours_ms"],
        "eager PyTorch, ms": next((peers[name]["ms"] for name in EAGER if name in peers), row.get("floor_ms")),
        "torch.compile, ms": peers.get("torch.compile", {}).get("ms"),
        "floor, ms": row.get("floor_ms"),
        "ours / floor": row.get("ratio"),
    }
    return [] if (value := values.get(column)) is None else [value]


def faults(text: str) -> list[str]:
    """The cells of a page's tables that differ from the results; a number is rounded to the digits that are shown."""
    wrong = []
    for files, table in TABLE.findall(text):
        measured = [row for file in files.split() for row in json.loads(pages.text_of(file))["rows"]]
        by_name = {row["name"]: row for row in sorted(measured, key=lambda row: row.get("threads") or 0)}
        head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        for cells in (dict(zip(head, line, strict=True)) for line in lines):
            name = next(cell.strip("`") for column, cell in cells.items() if column.startswith("row"))
            for column, cell in cells.items():
                if column.endswith(", ms") or " / " in column:
                    shown = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", cell)
                    rows = [by_name[each] for each in fnmatch.filter(by_name, name)]
                    want = expected(column, rows)
                    digits = [len(number.partition(".")[2]) for number in shown]
                    gaps = [abs(float(a) - b) * 10**d for a, b, d in zip(shown, want, digits, strict=False)]
                    if len(shown) != len(want) or any(gap > 0.5 + 1e-8 for gap in gaps):
                        wrong.append(f"{name}, {column}: {cell} is not {want}")
                    names = [peer["name"] for row in rows for peer in row["peers"] if column == "peers / ours"]
                    wrong += [f"{name}: no {peer}" for peer in names if peer not in cell]
    return wrong


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_times_are_those_of_the_results(page: str) -> None:
    table = TABLE.search(TEXTS[page])
    assert table and faults(TEXTS[page]) == []
    assert faults(re.sub(r"\| \d+\.\d+ \|", "| 999 |", table[0], count=1)) != []
