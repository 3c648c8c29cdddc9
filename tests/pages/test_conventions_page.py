"""docs/conventions.md: its sessions run as printed, its generated parts are the catalogue's, its pictures are drawn."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch
from loading import module_at

import sinpe_ext as sinpe

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "conventions.md"
PICTURES = ROOT / "docs" / "images" / "conventions"
LARGEST = 15_000  # bytes of a picture
SAME = 0.02  # of 1, mean difference of two drawings: matplotlib's versions place letters differently


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return module_at(ROOT / "tools" / "conventions_page.py")


@pytest.fixture
def printing() -> Iterator[None]:
    """The page sets torch's print options; they are put back."""
    options = torch._tensor_str.PRINT_OPTS
    before = dict(vars(options))
    yield
    vars(options).update(before)


def sessions(page: str) -> str:
    """The page with its fences as empty lines, which end what an example prints."""
    return re.sub(r"^```.*$", "", page, flags=re.MULTILINE)


@pytest.mark.parametrize("kernels", ["as it is", "eager"])
def test_the_sessions(text: str, printing: None, kernels: str) -> None:
    test = doctest.DocTestParser().get_doctest(sessions(text), {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    with sinpe.use_backend("eager") if kernels == "eager" else nullcontext():
        failed, tried = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=said.append)
    assert not failed, "".join(said)
    assert tried == text.count("\n>>> ") > 100


def test_a_wrong_number_would_be_found(text: str, printing: None) -> None:
    wrong = sessions(text).replace(
        "tensor([0.6570, 0.7539, 0.0699, 0.9976])", "tensor([0.6570, 0.7539, 0.0698, 0.9976])"
    )
    assert wrong != sessions(text)
    test = doctest.DocTestParser().get_doctest(wrong, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(test, out=lambda _: None).failed == 1


def test_the_generated_parts_are_the_catalogues(text: str, tool: ModuleType) -> None:
    assert tool.page(text) == text, "run python tools/conventions_page.py"
    assert {part[2] for part in tool.PART.finditer(text)} == {"index", "sequences", "timesteps", "points", "grids"}


def test_every_name_has_an_entry(text: str) -> None:
    for name in sinpe.conventions():
        assert text.count(f"\n### {name}\n") == 1 and f"(#{name})" in text and f"conventions/{name}.png" in text


def test_every_link_leads_somewhere(text: str) -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-")
        for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (PAGE.parent / target).exists(), target


@pytest.mark.thorough("the page's numbers are tested above; pictures are drawn anew by their tool alone")
def test_the_pictures(tool: ModuleType, tmp_path: Path) -> None:
    assert {path.stem for path in PICTURES.iterdir()} == set(sinpe.conventions())
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < LARGEST
    image = pytest.importorskip("matplotlib.image")
    for drawn in tool.pictures(tmp_path):
        new, old = image.imread(drawn), image.imread(PICTURES / drawn.name)
        assert new.shape == old.shape and abs(new - old).mean() < SAME, drawn.name
