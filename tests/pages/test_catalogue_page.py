"""Each class of the bad-input catalogue has tests, and docs/reliability.md lists them."""

from __future__ import annotations

from pathlib import Path

import bad_input


def test_every_class_has_tests_and_all_marks_are_valid() -> None:
    assert list(bad_input.CLASSES) == list(range(1, 28))
    assert bad_input.faults(bad_input.marks()) == []


def test_page_is_current() -> None:
    text = bad_input.PAGE.read_text(encoding="utf-8")
    assert bad_input.page(text, bad_input.marks()) == text, "run python tools/bad_input.py"


def test_class_without_tests_is_detected(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_some.py").write_text(
        'import pytest\nON = "eager", "meta"\n\n@pytest.mark.bad_input(1, *ON)\ndef test_one(): pass\n\n'
        '@pytest.mark.bad_input(28, "moon")\ndef test_two(): pass\n\n'
        "@pytest.mark.bad_input(2)\ndef test_three(): pass\n"
    )
    marks = bad_input.marks(tmp_path)
    assert marks[0] == (1, ("eager", "meta"), "test_some.py::test_one")
    wrong = bad_input.faults(marks)
    assert "class 27 has no test" in wrong and "class 1 has no test" not in wrong
    assert "test_some.py::test_two: no class 28" in wrong and "test_some.py::test_two: no interface moon" in wrong
    assert "test_some.py::test_three: on no interface" in wrong


def test_class_is_tested_on_five_interfaces() -> None:
    """Functions, meta, NumPy and a layer."""
    marks = bad_input.marks()
    for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17):
        shown = {name for s in marks if s.number == number for name in s.interfaces}
        assert {"compiled", "eager", "meta", "NumPy", "layer"} <= shown, number
