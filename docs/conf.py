"""Sphinx configuration of `make docs`: the site is built by MyST from the repository's pages at their own paths."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


import sinpe_ext  # noqa: E402

project, author, release = "sinpe_ext", "the authors of sinpe_ext", sinpe_ext.__version__
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
exclude_patterns = [".*", "build", "demo_output", "dist"]
include_patterns = ["*.md", "docs/*", "examples/README.md", "benchmarks/README.md", "csrc/README.md"]
MENU = {
    "Use": "docs/guide docs/conventions docs/migrating docs/integrations docs/training docs/graphs "
    "docs/distributed docs/cuda docs/api docs/limits examples/README",
    "Results": "docs/accuracy docs/performance benchmarks/README docs/reliability",
    "Inside": "docs/internals csrc/README CONTRIBUTING CHANGELOG docs/README",
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


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Copies the first page to index.html."""
    if not exception and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_menu)
    app.connect("doctree-read", link_folders)
    app.connect("build-finished", add_index)
