"""`make help` lists every target; the environment is the checkout's own, and one that cannot be made is reported in a
line."""

from __future__ import annotations

import os
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


def test_active_environment_is_left_alone(tmp_path: Path) -> None:
    """Everything is installed in .venv and run by its Python, whatever the active environment has."""
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    for name in ("csrc", "sinpe_ext/backend"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("setup.py", "sinpe_ext/backend/sources.py", "sinpe_ext/_version.py"):
        (tmp_path / name).touch()
    record = f'[ "$2" = venv ] && mkdir -p $3/bin && cp "$0" $3/bin/python; echo "$0 $VIRTUAL_ENV $*" >>{tmp_path}/ran'
    fake = write_script(tmp_path / "python3", record)
    active = write_script(tmp_path / "active/bin/python", record).parent
    env = {**os.environ, "PATH": f"{active}:{os.environ['PATH']}", "VIRTUAL_ENV": str(active.parent)}
    execute(["make", "build", f"PYTHON={fake}"], cwd=tmp_path, env={**env, "VENV": ""})
    ran = [line.split(" ", 2) for line in (tmp_path / "ran").read_text().splitlines()]
    ours = [(command, by) for by, environment, command in ran if environment == str(tmp_path / ".venv")]
    assert len(ours) == len(ran) and [command for command, by in ours if by == str(fake)][1:] == ["-m venv .venv"]
    by_ours = [command for command, by in ours if by.endswith(".venv/bin/python")]
    assert len(by_ours) == len(ran) - 2 and by_ours[-1] == "-m sinpe_ext info" and " -e ." in by_ours[-2]
