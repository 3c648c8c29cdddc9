"""Imports that the contract of import-linter (`make lint`) does not see."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def root_imports(path: Path) -> set[str]:
    """Names that a file imports from the package's root, or with importlib, which import-linter does not see."""
    depth = len(path.relative_to(ROOT / "sinpe_ext").parts)
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names if name.name.split(".")[0] in ("sinpe_ext", "importlib")}
        elif isinstance(node, ast.ImportFrom) and node.module == "importlib":
            imported.add("importlib")
        elif isinstance(node, ast.ImportFrom):
            at_root = node.level == depth and node.module is None
            if at_root or (node.level == 0 and node.module == "sinpe_ext"):
                imported |= {name.name for name in node.names}
    return imported


def test_no_import_bypasses_the_layers() -> None:
    """Names of the root come from any folder; importlib takes a string."""
    root = ROOT / "sinpe_ext"
    folders = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"} | {"_core"}  # compiled
    above = {root / "__init__.py", root / "__main__.py", *(root / "cli").iterdir()}
    paths = [path for path in root.rglob("*.py") if path not in above]
    wrong = {path: names for path in paths if (names := root_imports(path) - folders)}
    assert len(paths) > 40 and not wrong, wrong
