"""Sphinx configuration of `make docs`: the site is built by MyST from the repository's pages at their own paths."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import conventions_page  # noqa: E402
import front_picture  # noqa: E402
import phase_picture  # noqa: E402
import rooms_picture  # noqa: E402

import sinpe_ext  # noqa: E402
from benchmarks import picture  # noqa: E402

project, author, release = "sinpe_ext", "the authors of sinpe_ext", sinpe_ext.__version__
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
exclude_patterns = [".*", "build", "demo_output", "dist"]
include_patterns = ["*.md", "docs/*", "examples/README.md", "benchmarks/README.md", "csrc/README.md"]
MENU = {
    "Use": "docs/guide docs/conventions docs/migrating docs/integrations docs/training docs/graphs "
    "docs/distributed docs/api docs/settings docs/limits examples/README",
    "Results": "docs/accuracy docs/performance benchmarks/README docs/compatibility docs/peers docs/reliability",
    "Inside": "docs/internals docs/decisions docs/cuda csrc/README docs/packaging CONTRIBUTING CHANGELOG docs/README",
}

html_theme = "furo"
html_title = f"sinpe_ext {release}"
html_copy_source = False
smartquotes = False  # docstrings quote code
myst_heading_anchors = 4
default_role = "py:obj"  # docstrings have single backticks: public names become links, others code
nitpicky = True
# Classes of torch, NumPy and matplotlib, whose inventories would have to be downloaded, and internal classes.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|matplotlib|collections|types|sinpe_ext\.encodings|sinpe_ext\.backend)\..*"),
    ("py:obj", "(?s).*"),
    ("py:class", "ArrayLike|Axes|DTypeLike|DeviceMesh|Placement|Tensor"),
]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "DTypeLike": "DTypeLike"}
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
napoleon_use_ivar = True
napoleon_use_param = False
napoleon_custom_sections = ["Returns", "Raises", "Accuracy", "Gradient", "Source"]  # of plain text


def add_menu(app: Sphinx, docname: str, source: list[str]) -> None:
    """Appends the menu to the first page; it is not in the source, because code hosts would show it as text."""
    if docname == root_doc:
        for caption, pages in MENU.items():
            entries = "\n".join(pages.split())
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def link_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Redirects links to folders, which code hosts can show, to the folder's README, or removes them without one."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        folder = Path(app.env.relfn2path(node["reftarget"])[1])
        if node["reftype"] != "myst" or node["refdomain"] or not folder.is_dir():
            continue
        name = (folder / "README").relative_to(ROOT).as_posix()
        if name in app.env.found_docs:
            node.attributes.update(refdomain="doc", reftarget=name, reftargetid=None)
        else:
            node.replace_self(node.children)


def draw(app: Sphinx, exception: Exception | None) -> None:
    """Draws the figures anew for the site; the copies in the repository are for code hosts."""
    if exception or app.builder.name != "html":
        return
    out = Path(app.outdir)
    with tempfile.TemporaryDirectory() as scratch:
        drawn = {path.name: path for path in conventions_page.pictures(Path(scratch))}
        for tool in (front_picture, phase_picture, rooms_picture):
            drawn[tool.PICTURE.name] = Path(scratch) / tool.PICTURE.name
            tool.draw(drawn[tool.PICTURE.name])
        for kept, name in app.builder.images.items():
            measured = (ROOT / kept).with_suffix(".json")
            if measured.is_file():
                picture.draw(json.loads(measured.read_text(encoding="utf-8")), out / "_images" / name)
            else:
                shutil.copyfile(drawn[Path(kept).name], out / "_images" / name)
    shutil.copyfile(out / "README.html", out / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_menu)
    app.connect("doctree-read", link_folders)
    app.connect("build-finished", draw)
