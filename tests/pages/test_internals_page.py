"""docs/internals.md: its pictures are current, and show what the page says; the code has the structure it describes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pages
import pytest

TOOLS = pages.ROOT / "tools"
LARGEST = 50_000  # bytes of the picture
SAME = 0.02  # of 1, mean difference of two drawings: text rendering differs between matplotlib versions

np = pytest.importorskip("numpy")
import phase_picture as tool  # noqa: E402

PAGE = pages.text_of("docs/internals.md")


@pytest.mark.thorough("pictures change only if their tool is run")
@pytest.mark.parametrize("name", ["phase", "front"])
def test_picture_is_current(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    path, committed = tmp_path / f"{name}.png", pages.ROOT / "docs" / "images" / f"{name}.png"
    monkeypatch.setattr(sys, "argv", [f"{name}_picture.py", "-o", str(path)])
    program = {"__name__": "__main__", "__file__": str(TOOLS / f"{name}_picture.py")}
    with pytest.raises(SystemExit, match="^0?$"):
        exec(compile((TOOLS / f"{name}_picture.py").read_text(encoding="utf-8"), f"{name}_picture.py", "exec"), program)
    assert path.stat().st_size < LARGEST and committed.stat().st_size < LARGEST
    drawn, kept = (np.asarray(image.open(p).convert("RGBA"), dtype=float) / 255 for p in (path, committed))
    assert drawn.shape == kept.shape and np.abs(drawn - kept).mean() < SAME, f"run python tools/{name}_picture.py"


def test_product_wraps() -> None:
    product = tool.FAR * tool.plan(tool.sinpe.Encoding(tool.DIM)).fractions[tool.PAIR]
    assert f"{product // tool.TURN:,} whole ones" in PAGE and f"{tool.FAR:,}" in PAGE and f"{tool.FARTHER:,}" in PAGE
    assert abs(tool.phase(tool.FAR) / tool.TURN - 0.25) < 1e-9
    row = tool.sinpe.table(1, tool.DIM, start=tool.FARTHER, dtype=np.float64)[0, 2 * tool.PAIR :][:2]
    angle = 2 * np.pi * (tool.phase(tool.FARTHER) / tool.TURN)
    assert np.allclose([np.sin(angle), np.cos(angle)], row, rtol=0, atol=1e-14)
    assert abs(np.sin(float(tool.float32_angle(tool.FARTHER))) - row[0]) > 0.1  # the red mark is elsewhere


def test_rotated_rows_and_undecided_roundings() -> None:
    facts = tool.rotation()
    errors = tool.rotation_errors(facts.rows)
    assert f"every {facts.rows} rows" in PAGE and 0 < errors.max() < facts.bound < 1e-12
    assert errors[-1] > 10 * errors[1]  # it grows: anchors are needed
    distance, bound = tool.rounding_distances(facts.bound)
    left = int((distance <= bound).sum())
    assert 0 < left < distance.size / 10_000 and 2e6 < distance.size < 2.2e6
    assert f"{left} of two million values" in PAGE


def test_diffs_fit_the_code() -> None:
    """Each line that a diff keeps or removes is a line of the file that the diff names."""
    lines: list[str] = []
    kept = 0
    for line in "".join(block.code for block in pages.blocks(PAGE, "diff")).splitlines():
        if line.startswith("--- "):
            lines = pages.text_of(line.split()[1].rstrip(":")).splitlines()
        elif not line.startswith("+"):
            kept += 1
            assert line[1:] in lines, line
    assert kept > 5


@pytest.mark.parametrize("folder", ["pybind", "torch", "core", "include/sinpe", "cpu", "cuda"])
def test_list_names_every_source(folder: str) -> None:
    """By its name without the suffix; and every name with a suffix is that of a file."""
    (listed,) = re.findall(rf"(?m)^  {folder}/ +(.*\n(?: {{8,}}.*\n)*)", PAGE)
    there = [path.name for path in (pages.ROOT / "csrc" / folder).iterdir()]
    assert {name.partition(".")[0] for name in there} - set(re.findall(r"\w+", listed)) == set()
    assert set(re.findall(r"(?<![\w/])\w+\.(?:h|inc|cpp|cu)\b", listed)) - set(there) == set()


MAY_INCLUDE = {  # csrc/README.md
    "core": {"core", "sinpe"},
    "include": set(),
    "cpu": {"cpu", "core", "sinpe"},
    "cuda": {"cuda", "core", "sinpe"},
    "torch": {"torch", "core", "sinpe", "cuda/launchers.h", "cpu/own_threads.h"},
    "pybind": {"pybind", "core", "sinpe"},
}


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_source_folder_includes_only_allowed_folders(folder: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (pages.ROOT / "csrc" / folder).rglob("*") if path.is_file()]
    names = set(re.findall(r'(?m)^\s*#\s*include\s*"((?:\.\./)*[^/"]+/[^"]*)"', "\n".join(texts)))
    assert texts and {n for n in names if not {n, n.partition("/")[0]} & MAY_INCLUDE[folder]} == set()
