"""`make docs`: the site contains all public names. Sphinx itself checks links and reports broken ones as errors."""

from __future__ import annotations

import json
import os
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pages
import pytest
from children import execute

import sinpe_ext as sinpe

for package in ("furo", "myst_parser", "sphinx"):
    pytest.importorskip(package, reason=f"{package} is not installed: `make docs` installs it")

SUBMODULES = ("distributed", "integrations", "plot", "positions", "reference")


@pytest.mark.builds
def test_every_public_name_is_indexed(tmp_path: Path) -> None:
    """In the site of the folder DOCS_SITE; otherwise it is built."""
    site = pages.ROOT / os.environ.get("DOCS_SITE", str(tmp_path / "site"))
    if "DOCS_SITE" not in os.environ:
        options = ["-q", "-W", "--keep-going", "-d", tmp_path / "doctrees", "-c", "docs"]
        execute([sys.executable, "-m", "sphinx", *options, ".", site], cwd=pages.ROOT)
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    public = {f"sinpe_ext.{name}" for name in sinpe.__all__}
    for module in SUBMODULES:
        public |= {f"sinpe_ext.{module}.{name}" for name in import_module(f"sinpe_ext.{module}").__all__}
    assert public - entries == set()
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    search = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    assert search["docnames"][search["titleterms"]["fairseq"]] == "docs/migrating"
