"""`make docs`: the site builds without warnings, and contains all public names."""

from __future__ import annotations

import json
import os
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pytest
from children import execute

import sinpe_ext as sinpe

for package in ("furo", "myst_parser", "sphinx"):
    pytest.importorskip(package, reason=f"{package} is not installed: `make docs` installs it")
pytestmark = pytest.mark.builds

ROOT = Path(__file__).resolve().parent.parent.parent
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
