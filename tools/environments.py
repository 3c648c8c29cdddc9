"""Environments with a torch of their own and copies of the sources, for compatibility.py, test_matrix.py and asan.py.

Standard library alone: these tools run before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "build" / "matrix"
OLDEST, PINNED = "2.11.0", "2.13.0"  # what the kernels promise; what the environment of `make test` has
LIMIT = 1800  # seconds of one command


def say(text: str) -> None:
    print(f"{Path(sys.argv[0]).stem}: {text}", file=sys.stderr, flush=True)


class CannotRun(RuntimeError):
    """An environment that cannot be used, and why."""


def output(command: list[str], **options: Any) -> str:
    """What a command prints; a failure is one line, the last that says error."""
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
    """A reason as another machine would give it: files by their names alone."""
    return re.sub(r"(?<![\w./:])/(?:[^\s/]+/)+", "", text)


def newest() -> str:
    """The newest release of torch that pip finds."""
    index = ["--index-url", os.environ["TORCH_INDEX_URL"]] if os.environ.get("TORCH_INDEX_URL") else []
    python = os.environ.get("PYTHON") or sys.executable
    listed = output([python, "-m", "pip", "index", "versions", "torch", *index])
    match = re.search(r"^torch \((\d+\.\d+\.\d+)", listed, re.MULTILINE)
    if match is None:
        raise CannotRun(f"pip names no release of torch: {listed[:80]!r}")
    return match[1]


def sources(folder: Path) -> Path:
    """A copy of what git knows and does not ignore; an unchanged file keeps its time: nothing is built twice."""
    listed = output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT).split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        there = folder / name
        if not there.is_file() or there.read_bytes() != (ROOT / name).read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, there)
            shutil.copymode(ROOT / name, there)
    for area in ("tests", "sinpe_ext", "csrc", "docs", "tools", "examples"):
        for path in (folder / area).rglob("*"):
            if (
                path.suffix in (".py", ".h", ".inc", ".cpp", ".cu", ".md", ".json")
                and path.name != "_build.json"
                and path.relative_to(folder).as_posix() not in wanted
            ):
                path.unlink()
    return folder


def environ(python: Path, folder: Path) -> dict[str, str]:
    """The environment of a command there: nothing that the caller's settings or folders could change."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SINPE_EXT_") and k != "VIRTUAL_ENV"}
    return kept | {
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(folder / "source"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SINPE_EXT_CACHE_DIR": str(folder / "cache"),
    }


class Environment:
    """A Python with a torch, a copy of the sources, and the library that was built there."""

    def __init__(self, torch: str = "", python: Path | None = None):
        self.torch, self.version, self.cuda = torch, "", False
        self.problem = ""
        try:
            if python is None:
                self.folder = MATRIX / f"torch-{torch}"
                self.python = self._make(torch)
            else:
                self.python = Path(os.path.abspath(python))  # not resolved: a link is what names an environment
                self._look()
                self.folder = MATRIX / f"torch-{self.torch}-python-{self.version}"
                sources(self.folder / "source")
                self._build()
            self._look()
        except CannotRun as error:
            self.problem = str(error)
            say(f"torch {self.torch or python}: {self.problem}")

    def _look(self) -> None:
        ask = "import platform, torch; print(torch.__version__, platform.python_version(), torch.cuda.is_available())"
        torch, self.version, cuda = output([str(self.python), "-W", "ignore", "-c", ask]).split()[-3:]
        self.torch, self.cuda = torch.split("+")[0], cuda == "True"

    def _make(self, torch: str) -> Path:
        source = sources(self.folder / "source")
        say(f"torch {torch}: environment and library")
        settings = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
        settings |= {"TORCH": torch, "VENV": str(self.folder / "environment")}
        for kind in ("cpu", "none"):  # where it cannot be compiled the eager column is left; CUDA compiles on first use
            settings["SINPE_EXT_BUILD"] = kind
            try:
                return Path(output(["tools/setup_env.sh", "test"], cwd=source, env=settings).strip())
            except CannotRun as error:
                if kind == "none":
                    raise
                say(f"torch {torch}: {error}")
        raise AssertionError

    def _build(self) -> None:
        say(f"torch {self.torch}: library")
        settings = environ(self.python, self.folder) | {"SINPE_EXT_BUILD": "cpu"}
        try:
            output([str(self.python), "setup.py", "build_ext", "--inplace"], cwd=self.folder / "source", env=settings)
        except CannotRun as error:
            say(f"torch {self.torch}: {error}")

    @property
    def package(self) -> Path:
        return self.folder / "source" / "sinpe_ext"


def commit() -> str:
    """What was run; with a + where files were changed since."""
    try:
        head = output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip()
        changed = output(["git", "status", "--porcelain", "--", ".", ":!docs"], cwd=ROOT).strip()
    except CannotRun:
        return ""
    return head + ("+" if changed else "")


@dataclass
class Outcome:
    """What came of runs of pytest."""

    counts: Counter[str] = field(default_factory=Counter)  # passed, skipped, failed
    failed: list[str] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)  # the files of which a test passed, as modules

    def read(self, report: Path) -> None:
        """Adds a run, from its --junitxml."""
        for case in ET.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            self.counts[kind] += 1
            if kind == "failed":
                self.failed.append(f"{case.get('classname')}::{case.get('name')}")
            elif kind == "passed":
                self.passed.add(str(case.get("classname")))

    def __str__(self) -> str:
        return f"{self.counts['passed']} passed, {self.counts['skipped']} skipped, {self.counts['failed']} failed"
