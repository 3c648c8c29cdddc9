"""The faults of tests/faults: each patch applies, names existing tests, and has a row in docs/reliability.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import faults
import page_parts
import pytest
from children import execute

PATCHES = sorted(faults.FAULTS.glob("*.patch"))
if not PATCHES:
    pytest.skip("the copy that a fault is applied to contains no patches", allow_module_level=True)


def test_faults_are_numbered_and_named() -> None:
    assert [int(path.name[:2]) for path in PATCHES] == list(range(1, 41))
    found = [faults.fault(path) for path in PATCHES]
    assert 16 <= sum(fault.compiled for fault in found) <= 24  # about half
    programs = {path.stem for path in (faults.ROOT / "tests" / "cpp").glob("*.cpp")}
    assert {program for fault in found for program in fault.programs} <= programs


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_fault_applies(patch: Path) -> None:
    done = execute(["git", "apply", "--check", str(patch)], cwd=faults.ROOT, status=None)
    assert done.returncode == 0, f"{done.stderr}\nadapt the patch to the changed source"


def test_page_has_a_row_for_each_fault() -> None:
    text = faults.PAGE.read_text(encoding="utf-8")
    table = page_parts.parts(text)[faults.PART]
    for fault in map(faults.fault, PATCHES):
        assert f"| {fault.name} | {fault.what} |" in table, "run python tools/faults.py --write"
    for found in re.findall(r"`([\w/]+\.py)::", table):
        assert (faults.ROOT / "tests" / found).is_file(), f"{found} is gone: run python tools/faults.py --write"


def test_table_counts_detected_faults() -> None:
    one, other, third = (faults.fault(path) for path in PATCHES[:3])
    R = faults.Result
    rows = [(one, R("test_a.py::test_b")), (other, R("", "test_c.py::test_d")), (third, R(""))]
    made = faults.page(f"head\n<!-- begin: {faults.PART} -->\nearlier rows\n<!-- end -->\ntail\n", rows)
    assert "`make test` finds 1 of 3, `make test-all` 2." in made
    assert (
        "| `test_a.py::test_b` | yes |" in made and "| no | `test_c.py::test_d` |" in made and "| no | **no** |" in made
    )
    assert "earlier rows" not in made and made.startswith("head\n") and made.endswith("\ntail\n")
