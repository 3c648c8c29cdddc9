"""`make docs`: the site builds without warnings, offline, contains all public names, and works in a browser."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from children import execute

import sinpe_ext as sinpe

for package in ("furo", "matplotlib", "myst_parser", "sphinx"):
    pytest.importorskip(package, reason=f"{package} is not installed: `make docs` installs it")
pytestmark = pytest.mark.builds

ROOT = Path(__file__).resolve().parent.parent.parent
BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
NO_EXCERPT = "Failed to fetch"  # result excerpts need a server, with file: URLs they are missing
SUBMODULES = ("distributed", "integrations", "plot", "positions", "reference")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site in the folder DOCS_SITE; otherwise it is built."""
    if built := os.environ.get("DOCS_SITE"):
        return ROOT / built
    made = tmp_path_factory.mktemp("docs")
    options = ["-q", "-W", "--keep-going", "-d", str(made / "doctrees"), "-c", "docs"]
    execute([sys.executable, "-m", "sphinx", *options, ".", str(made / "site")], cwd=ROOT)
    return made / "site"


BROKEN = {"no_page.md": "[a](no_page.md)", "#no-anchor": "[b](#no-anchor)", "no_image.png": "![c](no_image.png)"}


def test_broken_links_are_reported(tmp_path: Path) -> None:
    """As errors by `make docs`, whose option is -W."""
    (tmp_path / "README.md").write_text("\n\n".join(["# Page", *BROKEN.values()]) + "\n")
    options = ["-q", "-b", "dummy", "-d", str(tmp_path / "doctrees"), "-c", "docs"]
    done = execute([sys.executable, "-m", "sphinx", *options, str(tmp_path), str(tmp_path / "site")], cwd=ROOT)
    for target in BROKEN:
        assert any("README.md:" in line and target.lstrip("#") in line for line in done.stderr.splitlines()), target
    assert "sphinx -q -W" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a headless browser, of the system or of playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make docs` installs it")
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with api.sync_playwright() as playwright:
        if browser_path is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(f"no browser: none of {', '.join(BROWSERS)}; `playwright install chromium` downloads one")
        browser = playwright.chromium.launch(executable_path=browser_path)
        try:
            yield browser.new_page()
        finally:
            browser.close()


def test_every_public_name_is_indexed(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"sinpe_ext.{name}" for name in sinpe.__all__}
    for module in SUBMODULES:
        public |= {f"sinpe_ext.{module}.{name}" for name in import_module(f"sinpe_ext.{module}").__all__}
    assert public - entries == set()

    index = (site / "searchindex.js").read_text(encoding="utf-8")
    search = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    assert search["docnames"][search["titleterms"]["fairseq"]] == "docs/migrating"


def test_pictures_are_drawn_by_the_build(site: Path) -> None:
    kept = {
        path.name: path for folder in ("docs/images", "benchmarks/results") for path in (ROOT / folder).rglob("*.png")
    }
    shown = list((site / "_images").iterdir())
    assert {path.name for path in shown} <= kept.keys() and len(shown) == 3
    for path in shown:  # Sphinx gives a copy the time of the original
        assert int(path.stat().st_mtime) != int(kept[path.name].stat().st_mtime), f"{path.name} was not drawn"


def test_search_finds_a_convention(site: Path, page: Any) -> None:
    asked: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))

    page.goto((site / "index.html").as_uri())
    menu = page.locator(".sidebar-tree a.reference")
    titles = menu.all_inner_texts()
    assert {"Conventions", "API reference", "Changelog"} <= set(titles)
    for title in titles:
        menu.get_by_text(title, exact=True).click()
        page.locator(".sidebar-tree li.current-page", has_text=title).wait_for()
        assert page.locator("h1").count() == 1, title

    page.locator(".sidebar-search").fill("musicgen")
    page.keyboard.press("Enter")
    page.locator("#search-results a[href*='docs/conventions.html']").first.click()
    assert "[i] = cos(p w_i), [h+i] = sin(p w_i)" in page.locator("tr", has_text="musicgen").first.inner_text()

    assert [url for url in asked if not url.startswith("file:")] == []
    assert set(faults) <= {NO_EXCERPT}
