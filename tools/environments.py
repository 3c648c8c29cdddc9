"""Copies of the sources, and commands that run in them, for noxfile.py and the tools. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 1800  # seconds of one command


def say(text: str) -> None:
    print(f"{Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


class CannotRun(RuntimeError):
    """Raised if a command cannot be run or fails; the message is the reason."""


def output(command: list[str], **options: Any) -> str:
    """The output of a command. Raises CannotRun with the last line of the output that mentions an error."""
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT, errors="replace", **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{Path(command[0]).name}: {type(error).__name__}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"error|cannot|not found", line, re.IGNORECASE)]
        raise CannotRun(without_paths((telling or lines or [f"exit code {done.returncode}"])[-1]))
    return done.stdout


def without_paths(text: str) -> str:
    """An error message with paths reduced to file names, so that it is the same on every machine."""
    return re.sub(r"(?<![\w./:])/(?:[^\s/]+/)+", "", text)


def sources(folder: Path) -> Path:
    """Copies the files that git does not ignore. Unchanged files keep their modification time, so that they are not
    built again."""
    listed = output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        there = folder / name
        if not there.is_file() or there.read_bytes() != (ROOT / name).read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, there)
            shutil.copymode(ROOT / name, there)
    for area in ("tests", "sinpe_ext", "csrc", "docs", "tools", "examples", "benchmarks", "cmake"):
        for path in (folder / area).rglob("*"):
            if (
                path.suffix in (".py", ".h", ".inc", ".cpp", ".cu", ".md", ".json", ".txt", ".patch", ".sh", ".cmake")
                and path.name != "_build.json"
                and path.relative_to(folder).as_posix() not in wanted
            ):
                path.unlink()
    return folder


def environ(python: Path, folder: Path) -> dict[str, str]:
    """The environment variables of a command in a copy, independent of the caller's settings and folders."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("SINPE_EXT_") and k != "VIRTUAL_ENV"}
    return variables | {
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(folder / "source"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SINPE_EXT_CACHE_DIR": str(folder / "cache"),
    }


def commit() -> str:
    """The abbreviated commit of the checkout, with a + if files differ from it."""
    try:
        head = output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip()
        changed = output(["git", "status", "--porcelain", "--", ".", ":!docs"], cwd=ROOT).strip()
    except CannotRun:
        return ""
    return head + ("+" if changed else "")
