"""docs/reliability.md shows the runs that are kept beside it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "records.py"

if not TOOL.is_file():
    pytest.skip("tools/ is part of the repository alone", allow_module_level=True)
spec = importlib.util.spec_from_file_location("records", TOOL)
assert spec is not None and spec.loader is not None
records = importlib.util.module_from_spec(spec)
sys.modules["records"] = records
spec.loader.exec_module(records)


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
