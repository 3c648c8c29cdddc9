"""docs/internals.md: its pictures are current, and show what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pages
import pytest
from children import execute

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ROOT / "tools"
LARGEST = 50_000  # bytes of the picture
SAME = 0.02  # of 1, mean difference of two drawings: text rendering differs between matplotlib versions

np = pytest.importorskip("numpy")
import phase_picture as tool  # noqa: E402


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["phase", "front"])
def test_picture_is_current(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    program, path = TOOLS / f"{name}_picture.py", tmp_path / f"{name}.png"
    execute([sys.executable, program, "-o", path])
    committed = ROOT / "docs" / "images" / path.name
    assert path.stat().st_size < LARGEST and committed.stat().st_size < LARGEST
    drawn, kept = (np.asarray(image.open(p).convert("RGBA"), dtype=float) / 255 for p in (path, committed))
    assert drawn.shape == kept.shape, f"run python tools/{program.name}"
    assert np.abs(drawn - kept).mean() < SAME, f"run python tools/{program.name}"


def test_product_wraps(page: str) -> None:
    product = tool.FAR * tool.plan(tool.sinpe.Encoding(tool.DIM)).fractions[tool.PAIR]
    assert f"{product // tool.TURN:,} whole ones" in page and f"{tool.FAR:,}" in page and f"{tool.FARTHER:,}" in page
    assert abs(tool.phase(tool.FAR) / tool.TURN - 0.25) < 1e-9
    row = tool.sinpe.table(1, tool.DIM, start=tool.FARTHER, dtype=np.float64)[0, 2 * tool.PAIR :][:2]
    angle = 2 * np.pi * (tool.phase(tool.FARTHER) / tool.TURN)
    assert np.allclose([np.sin(angle), np.cos(angle)], row, rtol=0, atol=1e-14)
    naive = float(tool.float32_angle(tool.FARTHER))
    assert abs(np.sin(naive) - row[0]) > 0.1  # the red mark is elsewhere


def test_rotated_rows_stay_within_the_bound(page: str) -> None:
    facts = tool.rotation()
    assert f"every {facts.rows} rows" in page
    errors = tool.rotation_errors(facts.rows)
    assert 0 < errors.max() < facts.bound < 1e-12
    assert errors[-1] > 10 * errors[1]  # it grows: anchors are needed


def test_bound_leaves_few_roundings_undecided(page: str) -> None:
    distance, bound = tool.rounding_distances(tool.rotation().bound)
    left = int((distance <= bound).sum())
    assert 0 < left < distance.size / 10_000 and 2e6 < distance.size < 2.2e6
    assert f"{left} of two million values" in page


def test_diffs_fit_the_code(page: str) -> None:
    """Each line that a diff keeps or removes is a line of the file that the diff names."""
    lines: list[str] = []
    kept = []
    for line in "".join(block.code for block in pages.blocks(page, "diff")).splitlines():
        if line.startswith("--- "):
            lines = (ROOT / line.split()[1].rstrip(":")).read_text(encoding="utf-8").splitlines()
        elif not line.startswith("+"):
            kept.append(line)
            assert line[1:] in lines, line
    assert len(kept) > 5


INCLUDES = re.compile(r'^\s*#\s*include\s*"([^/"]+)/', re.M)
MAY_INCLUDE = {  # csrc/README.md
    "core": {"core", "sinpe"},
    "include": set(),
    "cpu": {"cpu", "core", "sinpe"},
    "cuda": {"cuda", "core", "sinpe"},
    "torch": {"torch", "core", "sinpe", "cuda", "cpu"},
    "pybind": {"pybind", "core", "sinpe"},
}


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_source_folder_includes_only_allowed_folders(folder: str) -> None:
    root = ROOT / "csrc" / folder
    includes = {
        path: set(INCLUDES.findall(path.read_text(encoding="utf-8"))) for path in root.rglob("*") if path.is_file()
    }
    assert len(includes) > 0
    assert not {path: names for path, names in includes.items() if not names <= MAY_INCLUDE[folder]}


def test_binding_includes_few_kernel_headers() -> None:
    """From cpu/ and cuda/, the binding includes only the launchers and the thread pool."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc" / "torch").iterdir())
    included = re.findall(r'#\s*include\s*"((?:\.\./)*(?:cpu|cuda)/.*)"', sources)
    assert set(included) == {"cuda/launchers.h", "cpu/own_threads.h"}
