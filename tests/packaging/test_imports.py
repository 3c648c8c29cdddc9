"""`dir`, `help` and star imports show public names only; imports in the package obey the order of its layers."""

from __future__ import annotations

import ast
import importlib
import pydoc
import re
from pathlib import Path

import pytest
from children import REPOSITORY

import sinpe_ext as sinpe

SUBMODULES = "distributed functional integrations modules numpy plot positions reference".split()
OF_OTHERS = {"_freeze", "_weight", "_wrapped_call_impl", "_DataclassParams"}  # names of torch and of dataclasses


def test_names_of_the_package() -> None:
    for name in sinpe.__all__:
        getattr(sinpe, name)
    assert dir(sinpe) == sorted([*sinpe.__all__, *SUBMODULES])


@pytest.mark.parametrize("name", ["sinpe_ext", *(f"sinpe_ext.{name}" for name in SUBMODULES)])
def test_names_of_a_module(name: str) -> None:
    """Exception: PACKAGE CONTENTS of `help`, where pydoc lists all files of a package's folder."""
    module = importlib.import_module(name)
    if module is not sinpe:
        assert dir(module) == sorted(module.__all__) and not any(public.startswith("_") for public in dir(module))
        namespace: dict[str, object] = {}
        exec(f"from {name} import *", namespace)
        assert sorted(namespace.keys() - {"__builtins__"}) == dir(module)
        assert all(getattr(module, public).__doc__ for public in dir(module))
    parts = re.split(r"^([A-Z][A-Z ]+)\n", pydoc.plain(pydoc.render_doc(module)), flags=re.MULTILINE)[1:]
    bodies = dict(zip(parts[::2], parts[1::2], strict=True))
    bodies.pop("PACKAGE CONTENTS", None)
    listed = bodies.get("CLASSES", "") + bodies.get("FUNCTIONS", "") + bodies.get("DATA", "")
    names = re.findall(r"^    (?:class )?(\w+)(?:\(| =)", listed, re.MULTILINE)
    assert sorted(names) == [public for public in dir(module) if public not in (*SUBMODULES, "__version__")]
    assert set(re.findall(r"(?<!\w)_[A-Za-z]\w*", "".join(bodies.values()))) <= OF_OTHERS


def root_imports(path: Path) -> set[str]:
    """Names that a file imports from the package's root, or with importlib, which import-linter does not see."""
    depth = len(path.relative_to(REPOSITORY / "sinpe_ext").parts)
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names if name.name.split(".")[0] in ("sinpe_ext", "importlib")}
        elif isinstance(node, ast.ImportFrom) and node.module == "importlib":
            imported.add("importlib")
        elif isinstance(node, ast.ImportFrom) and (node.level, node.module) in ((depth, None), (0, "sinpe_ext")):
            imported |= {name.name for name in node.names}
    return imported


def test_no_import_bypasses_the_layers() -> None:
    """Of import-linter (`make lint`): names of the root come from any folder; importlib takes a string."""
    root = REPOSITORY / "sinpe_ext"
    folders = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"} | {"_core"}  # compiled
    above = {root / "__init__.py", root / "__main__.py", *(root / "cli").iterdir()}
    paths = [path for path in root.rglob("*.py") if path not in above]
    wrong = {path: names for path in paths if (names := root_imports(path) - folders)}
    assert len(paths) > 40 and not wrong, wrong
