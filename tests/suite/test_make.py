"""`make help` fits on a screen and lists every target."""

from __future__ import annotations

import re
import shutil

import pytest
from children import REPOSITORY, execute

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def test_help_fits_on_a_screen() -> None:
    lines = execute(["make", "help"], cwd=REPOSITORY).stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 120
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name in targets if f"make {name}" not in "\n".join(lines)} == {"help", "distclean"}


def test_extra_that_there_is_not_is_refused() -> None:
    done = execute(["tools/setup_env.sh", "nonsense"], cwd=REPOSITORY, status=1, merged=True)
    assert "expected extras of pyproject.toml, got nonsense" in done.stdout
