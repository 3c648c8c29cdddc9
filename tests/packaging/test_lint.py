"""pre-commit, `make lint` and the lint extra run the same tools, of the same versions, over the same files."""

from __future__ import annotations

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
    """The lint extra's tools with their versions, empty where none is pinned."""
    extra = re.search(r"^lint = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    assert extra is not None
    found = re.findall(r'"([\w-]+)(?:==([\d.]+))?[^"]*"', extra[1])
    return dict(found)


def test_versions_agree() -> None:
    named = dict(re.findall(r"additional_dependencies: \[([\w-]+)==([\d.]+)\]", CONFIG_TEXT))
    extra = pinned()
    assert named == {name: extra[name] for name in ("ruff", "clang-format")}
    assert set(extra) == {"ruff", "clang-format", "import-linter", "mypy"}


def test_each_runs_the_tools_of_the_other() -> None:
    hooks = re.findall(r"- id: ([\w-]+)", CONFIG_TEXT)
    assert hooks == ["ruff", "ruff-format", "clang-format", "mypy", "lint-imports"]
    for command in ("ruff check", "ruff format --check", "clang-format --dry-run", "mypy", "lint-imports"):
        assert command in LINT, command


def test_the_same_cpp_files() -> None:
    files, exclude = (re.search(rf"^ +{key}: (.*)$", CONFIG_TEXT, re.M) for key in ("files", "exclude"))
    assert files is not None and exclude is not None
    places = (ROOT / area for area in ("csrc", "tests", "examples"))
    paths = [path.relative_to(ROOT).as_posix() for place in places for path in place.rglob("*") if path.is_file()]
    hooked = {p for p in paths if re.search(files[1], p) and not re.search(exclude[1], p)}
    script = LINT[LINT.index("mapfile") : LINT.index("if [")]
    listed = execute(["bash", "-c", f"{script}\nprintf '%s\\n' \"${{cpp[@]}}\""], cwd=ROOT)
    assert hooked == set(listed.stdout.split()) and len(hooked) > 60
