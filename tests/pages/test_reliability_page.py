"""docs/reliability.md shows the runs that are kept beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"

if not (TOOLS / "records.py").is_file():
    pytest.skip("tools/ is part of the repository alone", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
import environments  # noqa: E402
import records  # noqa: E402


def test_the_page_is_current() -> None:
    text = records.PAGE.read_text(encoding="utf-8")
    assert records.page(text) == text, "run python tools/records.py --page"


def test_a_run_is_kept_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Makefile").write_text(
        "good:\n\t@echo 'result: 3 cases'\nbad:\n\t@echo 'result: 1 of 3'; exit 1\nmute:\n\t@true\n"
    )
    monkeypatch.setattr(records, "ROOT", tmp_path)
    good, bad, mute = (records.run(target) for target in ("good", "bad", "mute"))
    assert (good["clean"], good["result"], good["command"]) == (True, ["3 cases"], "make good")
    assert (bad["clean"], bad["result"]) == (False, ["1 of 3"])
    assert mute["clean"] is False  # a command that says nothing has shown nothing


def test_the_table_has_a_line_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(
        '{"command": "make a", "date": "2026-01-02", "commit": "abc+", "minutes": 1.5, "clean": false, '
        '"result": ["x", "y"]}'
    )
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    made = records.page(f"head\n{records.BEGIN}\nold\n{records.END}\ntail\n")
    assert "| `make a` | 2026-01-02 | abc+ | 1.5 | **no** | x<br>y |" in made
    assert "old" not in made and made.startswith("head\n") and made.endswith("\ntail\n")


def test_what_the_page_names_and_no_clean_run_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tools/lint.sh asks for it, no test: a run of the whole suite could not be the first clean one."""
    monkeypatch.setattr(records, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    row = "| `make asan`, `make tsan` | x |\n| `make test` | `make none` |\n"
    (tmp_path / "page.md").write_text(f"| `make before` |\n## Overview\n\n{row}\n## After\n| `make after` |\n")
    (tmp_path / "asan.json").write_text('{"clean": true}')
    (tmp_path / "tsan.json").write_text('{"clean": false}')
    assert records.not_shown() == ["tsan"]
    (tmp_path / "asan.json").unlink()
    assert records.not_shown() == ["asan", "tsan"]


def test_the_outcome_of_pytest_is_read(tmp_path: Path) -> None:
    cases = ("/>", "><failure/></testcase>", "><error/></testcase>", "><skipped/></testcase>", "/>")
    listed = "".join(f'<testcase classname="tests.test_{i}" name="n"{case}' for i, case in enumerate(cases))
    (tmp_path / "a.xml").write_text(f"<testsuites><testsuite>{listed}</testsuite></testsuites>")
    outcome = environments.Outcome()
    for _ in range(2):
        outcome.read(tmp_path / "a.xml")
    assert str(outcome) == "4 passed, 2 skipped, 4 failed"
    assert outcome.failed[:2] == ["tests.test_1::n", "tests.test_2::n"]
    assert outcome.passed == {"tests.test_0", "tests.test_4"}
