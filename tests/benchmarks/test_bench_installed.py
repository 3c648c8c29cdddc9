"""The benchmark's rows for other libraries: checked if the library is installed, else skipped."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import installed, run, timing
from benchmarks.cases import Row
from benchmarks.installed import INSTALLED_ROWS, LIBRARIES
from benchmarks.process import Skipped

MODULES = {name: name.replace("-", "_") for name in LIBRARIES}
SMALL = {"LONG": (50, 64), "PICTURE": (6, 6, 64), "WIDE": (2, 50, 64)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-5)
    for name, shape in SMALL.items():
        monkeypatch.setattr(installed, name, shape)


@pytest.mark.parametrize("row", INSTALLED_ROWS, ids=[row.name for row in INSTALLED_ROWS])
def test_row_is_checked_before_it_is_timed(row: Row) -> None:
    (library,) = row.peers
    result = run.measure(row, 1)
    assert "error" not in result, result["error"]
    if importlib.util.find_spec(MODULES[library]) is None:
        assert result["skipped"] == f"{library} is not installed: pip install {library}"
        pytest.skip(result["skipped"])
    if "skipped" in result:
        pytest.skip(result["skipped"])
    assert [peer["name"] for peer in result["peers"]] == [library] and result["ratio"] > 0


def test_another_convention_is_detected() -> None:
    wrong = lambda: torch.zeros(5, 8)  # noqa: E731
    subjects = installed.table("someone", lambda: wrong, "t2t", 5, 8)
    with pytest.raises(AssertionError, match="someone: expected values within"):
        subjects.check()


def test_library_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_a_library.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Skipped, match="half cannot be imported: No module named 'no_such_module_at_all'"):
        installed.load("half", "half_a_library")
    with pytest.raises(Skipped, match="none is not installed: pip install none"):
        installed.load("none", "no_such_module_at_all.inner")


def test_timm_function_is_loaded_without_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is loaded from its file; sys.modules is unchanged afterwards."""
    layers = tmp_path / "timm" / "layers"
    layers.mkdir(parents=True)
    for package in (tmp_path / "timm", layers):
        (package / "__init__.py").write_text("raise ImportError('torchvision')\n")
    (layers / "other.py").write_text("value = 7\n")
    (layers / "pos_embed_sincos.py").write_text(
        "from .other import value\n\ndef build_sincos2d_pos_embed():\n    return value\n"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.timm_sincos2d()() == 7
    assert not [name for name in sys.modules if name.partition(".")[0] == "timm"]
