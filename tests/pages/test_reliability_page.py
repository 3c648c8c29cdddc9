"""docs/reliability.md shows the recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import records


def test_page_is_current() -> None:
    text = records.PAGE.read_text(encoding="utf-8")
    assert records.page(text) == text, "run python tools/records.py"


def test_run_is_recorded_with_its_result() -> None:
    def run(code: str) -> dict[str, object]:
        return records.run(f'python -c "{code}"')

    good, bad = run("print('result: 3 cases')"), run("print('== 1 failed, 2 passed in 3.45s =='); exit(1)")
    assert (good["clean"], good["result"], good["command"]) == (
        True,
        ["3 cases"],
        "python -c \"print('result: 3 cases')\"",
    )
    assert (bad["clean"], bad["result"]) == (False, ["1 failed, 2 passed in 3.45s"])
    assert run("print('2 passed, 1 skipped in 3.45s')")["result"] == ["2 passed, 1 skipped in 3.45s"]  # pytest -q
    assert run("print('100% tests passed, 0 tests failed out of 3')")["clean"]
    assert run("pass")["clean"] is False  # a command without output has shown nothing


def test_table_has_a_line_for_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(
        '{"command": "make a", "date": "2026-01-02", "commit": "abc+", "minutes": 1.5, "clean": false, '
        '"result": ["x", "y"]}'
    )
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    made = records.page(f"head\n<!-- begin: {records.PART} -->\nold\n<!-- end -->\ntail\n")
    assert "| `make a` | 2026-01-02 | abc+ | 1.5 | **no** | x<br>y |" in made
    assert "old" not in made and made.startswith("head\n") and made.endswith("\ntail\n")


def test_commands_without_a_successful_run_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked by tools/lint.sh, not by a test: the first successful run of the whole suite could not include it."""
    monkeypatch.setattr(records, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    row = "| `nox -s asan`, `make b` | x |\n| `make test` | `make none` |\n"
    (tmp_path / "page.md").write_text(f"| `make before` |\n## Overview\n\n{row}\n## After\n| `make after` |\n")
    (tmp_path / "asan.json").write_text('{"command": "nox -s asan", "clean": true}')
    (tmp_path / "b.json").write_text('{"command": "make b", "clean": false}')
    assert records.not_shown() == ["make b"]
    (tmp_path / "asan.json").unlink()
    assert records.not_shown() == ["make b", "nox -s asan"]


def test_commands_of_records_are_known() -> None:
    """Each command with a record can be run again."""
    kept = {path.stem for path in records.RECORDS.glob("*.json")}
    assert kept <= set(records.COMMANDS)  # tools/lint.sh checks that no command lacks a record
