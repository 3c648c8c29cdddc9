"""pre-commit, `make lint` and the lint extra run the same versions of the same tools on the same files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from children import execute

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIG = ROOT / ".pre-commit-config.yaml"

if not CONFIG.is_file():
    pytest.skip("the configuration is part of the repository alone", allow_module_level=True)
CONFIG_TEXT = CONFIG.read_text()
LINT = (ROOT / "tools" / "lint.sh").read_text()


def pinned() -> dict[str, str]:
    """The tools of the lint extra with their versions, empty if not pinned."""
    extra = re.search(r"^lint = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert extra is not None
    found = re.findall(r'"([\w-]+)(?:==([\d.]+))?[^"]*"', extra[1])
    return dict(found)


def test_versions_agree() -> None:
    named = dict(re.findall(r"additional_dependencies: \[([\w-]+)==([\d.]+)\]", CONFIG_TEXT))
    extra = pinned()
    assert named == {name: extra[name] for name in ("ruff", "clang-format")}
    assert set(extra) == {"ruff", "clang-format", "import-linter", "mypy"}


def test_pre_commit_and_make_lint_run_the_same_tools() -> None:
    hooks = re.findall(r"- id: ([\w-]+)", CONFIG_TEXT)
    assert hooks == ["ruff", "ruff-format", "clang-format", "mypy", "lint-imports"]
    for command in ("ruff check", "ruff format --check", "clang-format --dry-run", "mypy", "lint-imports"):
        assert command in LINT, command


def test_cpp_files_are_the_same() -> None:
    files, exclude = (re.search(rf"^ +{key}: (.*)$", CONFIG_TEXT, re.M) for key in ("files", "exclude"))
    assert files is not None and exclude is not None
    places = (ROOT / area for area in ("csrc", "tests", "examples"))
    paths = [path.relative_to(ROOT).as_posix() for place in places for path in place.rglob("*") if path.is_file()]
    hooked = {p for p in paths if re.search(files[1], p) and not re.search(exclude[1], p)}
    script = LINT[LINT.index("mapfile") : LINT.index("if [")]
    listed = execute(["bash", "-c", f"{script}\nprintf '%s\\n' \"${{cpp[@]}}\""], cwd=ROOT)
    assert hooked == set(listed.stdout.split()) and len(hooked) > 60


def root_imports(path: Path) -> set[str]:
    """Names that a file imports from the package's root, or with importlib, which import-linter does not see."""
    depth = len(path.relative_to(ROOT / "sinpe_ext").parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] in ("sinpe_ext", "importlib")}
        elif isinstance(node, ast.ImportFrom) and node.module == "importlib":
            found.add("importlib")
        elif isinstance(node, ast.ImportFrom):
            at_root = node.level == depth and node.module is None
            if at_root or (node.level == 0 and node.module == "sinpe_ext"):
                found |= {name.name for name in node.names}
    return found


def test_no_import_bypasses_the_layers() -> None:
    """Names of the root come from any folder; importlib takes a string."""
    root = ROOT / "sinpe_ext"
    folders = {path.stem for path in root.iterdir() if path.is_dir() or path.suffix == ".py"} | {"_core"}  # compiled
    above = {root / "__init__.py", root / "__main__.py", *(root / "cli").iterdir(), *(root / "earlier_names").iterdir()}
    paths = [path for path in root.rglob("*.py") if path not in above]
    wrong = {path: names for path in paths if (names := root_imports(path) - folders)}
    assert len(paths) > 80 and not wrong, wrong
