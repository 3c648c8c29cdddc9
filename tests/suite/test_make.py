"""`make help` lists every target; an environment that cannot be made is reported in a line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from build_support import write_script
from children import REPOSITORY, execute

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_help_lists_every_target() -> None:
    listed = execute(["make", "help"], cwd=REPOSITORY).stdout
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name in targets if f"make {name}" not in listed} == {"help"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PYTHON": "/nonexistent/python3"}, "setup: /nonexistent/python3: expected Python 3.10 or newer"),
        ({"PYTHON": "{fake}"}, "apt install python3-venv): no module named venv (network? all of it: build/setup.log)"),
    ],
)
def test_environment_that_cannot_be_made_is_one_line(settings: dict, words: str, tmp_path: Path) -> None:
    fake = write_script(tmp_path / "python3", 'case "$*" in *venv*) echo "no module named venv"; exit 1;; esac')
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    given = [f"{name}={value.format(fake=fake)}" for name, value in settings.items()]
    done = execute(["make", "build", f"VENV={tmp_path / 'env'}", *given], cwd=tmp_path, status=2, merged=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("setup: ")]
    assert words in lines[-1] and len(lines) <= 2, done.stdout
