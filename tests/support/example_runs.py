"""Runs examples/ as processes and compares with the output in examples/README.md."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from children import DEADLINE, REPOSITORY, execute, library_environment
from pages import blocks, text_of

EXAMPLES = REPOSITORY / "examples"
NUMBER = r"\d+(?:\.\d+)*(?:\+\w+)?(?:e[-+]\d+)?"  # also versions and builds


def run(name: str, *arguments: str, status: int = 0, first: Path | None = None, cwd: Path | None = None) -> str:
    """Output of an example; `first` is prepended to its import path."""
    return "".join(_streams(name, *arguments, status=status, first=first, cwd=cwd))


def run_as_documented(name: str, cwd: Path) -> str:
    """The same for an example that checks itself: its lines equal those of the page, except for numbers."""
    out, _ = _streams(name, cwd=cwd)
    shown = [block.code for block in blocks(_section(name), "")]
    assert any(_without_numbers(out) == _without_numbers(code) for code in shown), f"examples/README.md, {name}: {out}"
    return out


def _streams(
    name: str, *arguments: str, status: int = 0, first: Path | None = None, cwd: Path | None = None
) -> tuple[str, str]:
    env = library_environment()
    if first is not None:
        env["PYTHONPATH"] = os.pathsep.join([str(first), env["PYTHONPATH"]])
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    # Threads that share cores train much slower.
    done = execute(command, env=env, status=status, limit=2 * DEADLINE, cwd=cwd)
    return done.stdout, done.stderr


def _section(name: str) -> str:
    _, _, rest = text_of("examples/README.md").partition(f"\n## {name}\n")
    assert rest, f"examples/README.md has no section {name}"
    return rest.partition("\n## ")[0]


def _without_numbers(text: str) -> list[str]:
    lines = [line for line in text.strip().splitlines() if not line.startswith("$ ")]
    return [" ".join(re.sub(NUMBER, "#", line).split()) for line in lines]
