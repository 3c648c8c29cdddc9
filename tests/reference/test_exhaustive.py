"""The reference values of the exhaustive scan (tests/cpp/truth.h) against mpmath; tables of docs/accuracy.md."""

from __future__ import annotations

import random
import re
from pathlib import Path

import exhaustive as tool
import pytest
import truth_file
from children import execute
from closest import CLOSEST

from sinpe_ext import Encoding, convention
from sinpe_ext.backend import sources

HERE = Path(__file__).resolve().parent.parent
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

JUDGED = {
    "paper 512": Encoding(512),
    "t2t": convention("t2t", 64),
    "own, padded": Encoding(21, cos_frequency="own", odd="pad"),
    "turns": Encoding(8, frequencies=(7.3, -2.5, 1 / 12, 2.0**40 + 0.1), unit="turn"),
}


def test_stored_formula_is_current() -> None:
    assert truth_file.PAPER512.read_text() == truth_file.text(Encoding(512)), "run python tests/support/truth_file.py"


def test_reference_values_equal_mpmath(tmp_path: Path) -> None:
    try:
        compiler, _ = sources.find_compiler()
    except sources.BuildUnavailable as error:
        pytest.skip(f"no compiler: {error.reason}")
    program = tmp_path / "reference_program"
    execute([compiler, "-std=c++17", "-O1", "-ffp-contract=off", str(HERE / "cpp" / "judge.cpp"), "-o", str(program)])
    for name, encoding in JUDGED.items():
        draw, truth = random.Random(name), tmp_path / "scan.truth"
        truth.write_text(truth_file.text(encoding))
        ends = (0, 1, -1, 2**31 - 1, 2**53 + 1, -(2**62), INT64_MIN, INT64_MAX)
        entries = [(at, channel) for at in ends for channel in range(0, encoding.dim, 7)]
        sizes = [draw.randrange(64) for _ in range(300)]
        entries += [(draw.choice((1, -1)) * draw.randrange(2**size), draw.randrange(encoding.dim)) for size in sizes]
        entries += [(at, 2 * pair + k) for dim, at, pair in CLOSEST if encoding == Encoding(dim) for k in (0, 1)]
        assert truth_file.judge_error(program, truth, encoding, entries) <= truth_file.JUDGE


def test_page_lists_every_scan() -> None:
    """The committed table contains all scans of the tool, all without errors, with date and commit."""
    part = tool.page_parts.parts(tool.PAGE.read_text(encoding="utf-8"))[tool.PART]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| ")][1:]
    assert [(row[0], row[1]) for row in rows] == [(scan.name, scan.what) for scan in tool.scans(20)]
    for row in rows:
        assert row[3:6] == ["0.5000", "0", "0"], row
    entries = [sum(count for _, count, _ in scan.runs) * scan.encoding.dim for scan in tool.scans(20)]
    assert [int(row[2].replace(",", "")) for row in rows] == entries
    head = part.strip().splitlines()[0]
    assert f"{sum(entries):,} entries, all correctly rounded" in head
    assert "the same bits from table and encode on default" in head
    for command in ("make check-exhaustive", "python tools/accuracy_table.py"):
        said = rf"^Produced by `{command}` on \d{{4}}-\d\d-\d\d, commit [0-9a-f]{{10}}\+?[,:] "
        assert re.search(said, tool.PAGE.read_text(encoding="utf-8"), re.M), f"run {command}, which writes it"
    for scan in tool.scans(20):
        for first, count, step in scan.runs:
            assert INT64_MIN <= first and first + (count - 1) * step <= INT64_MAX and count > 0, scan
