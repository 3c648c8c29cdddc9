"""Copies of the sources, for noxfile.py and the tools. Standard library only."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"expected git and a checkout of the repository, got: {error}")


def sources(folder: Path) -> Path:
    """Copies the files that git does not ignore, and removes those of an earlier copy that there are no longer.

    Unchanged files keep their modification time, so that they are not built again.
    """
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        there = folder / name
        if not there.is_file() or there.read_bytes() != (ROOT / name).read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, there)
            shutil.copymode(ROOT / name, there)
    copied = folder / ".copied"
    before = copied.read_text(encoding="utf-8").splitlines() if copied.is_file() else []
    for name in set(before) - wanted:
        (folder / name).unlink(missing_ok=True)
    copied.write_text("\n".join(sorted(wanted)), encoding="utf-8")
    return folder


def commit() -> str:
    """The abbreviated commit of the checkout, with a + if files outside docs differ from it."""
    changed = git("status", "--porcelain", "--", ".", ":!docs")
    return git("rev-parse", "--short=10", "HEAD").strip() + ("+" if changed else "")
