"""Runs the tests of features under several versions of torch, and writes the tables of docs/compatibility.md:

    python tools/compatibility.py                       # environments of its own, build/matrix/torch-<version>
    python tools/compatibility.py --python env/bin/python   # this one, which has what pyproject's [test] lists
    python tools/compatibility.py --page                # runs nothing: the tables from docs/compatibility/*.json

Every environment gets a copy of the sources and builds the library there, with its own torch; then pytest runs the
tests marked feature(name), once a backend. What cannot be run says why. --torch names other versions than the oldest,
the pinned and the newest; PYTHON makes their environments, TORCH_INDEX_URL is where torch comes from. The tables are
compatibility_page.py's. Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import compatibility_page  # noqa: E402
from compatibility_page import BACKENDS, PAGE, RESULTS  # noqa: E402

MATRIX = ROOT / "build" / "matrix"
OLDEST, PINNED = "2.11.0", "2.13.0"  # what the kernels promise; what the environment of `make test` has
LIMIT = 1800  # seconds of one run of pytest


def say(text: str) -> None:
    print(f"compatibility: {text}", file=sys.stderr, flush=True)


class CannotRun(RuntimeError):
    """An environment that cannot be used, and why: a column of the table."""


# ---------------------------------------------------------------------------------------------------- environments


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
    for area in ("tests", "sinpe_ext", "csrc"):
        for path in (folder / area).rglob("*"):
            if path.suffix in (".py", ".h", ".cpp", ".cu") and path.relative_to(folder).as_posix() not in wanted:
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

    def run(self, backend: str, others: list[Path], commit: str) -> dict[str, Any]:
        """The tests of features with a backend, as tests/feature_report.py writes them, or why not."""
        if self.problem:
            return {"not_run": self.problem}
        if backend == "cuda" and not self.cuda:
            return {"not_run": "no CUDA device"}
        report = self.folder / f"{backend}.json"
        report.unlink(missing_ok=True)
        say(f"torch {self.torch}, {backend}")
        settings = environ(self.python, self.folder) | {
            "SINPE_EXT_COMMIT": commit,
            "SINPE_EXT_OTHER_LIBRARIES": os.pathsep.join(map(str, others)),
        }
        source = self.folder / "source"
        files = [path.relative_to(source).as_posix() for path in compatibility_page.marked(source)]
        command = [str(self.python), "-m", "pytest", "-q", "-m", "feature", "--continue-on-collection-errors"]
        command += ["-p", "no:cacheprovider", f"--require-backend={backend}", f"--feature-report={report}", *files]
        log = self.folder / f"{backend}.log"
        try:
            with log.open("w") as stream:
                done = subprocess.run(command, cwd=source, env=settings, timeout=LIMIT, stdout=stream, stderr=stream)
        except subprocess.TimeoutExpired:
            return {"not_run": f"pytest took more than {LIMIT} s"}
        if not report.is_file():
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            first = next((line for line in said if f"--require-backend={backend}:" in line), "")
            why = first.split(f"--require-backend={backend}: ")[-1].strip(" !") or (said or ["nothing said"])[-1]
            return {"not_run": without_paths(why) + f" (pytest: exit code {done.returncode})"}
        found: dict[str, Any] = json.loads(report.read_text())
        passed = sum(feature["passed"] for feature in found["features"].values())
        failed = sum(len(feature["failed"]) for feature in found["features"].values())
        say(f"torch {self.torch}, {backend}: {passed} passed, {failed} failed, {found['seconds']} s; {log}")
        return found


def commit() -> str:
    """What was run; with a + where files were changed since."""
    try:
        head = output(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip()
        changed = output(["git", "status", "--porcelain", "--", ".", ":!docs"], cwd=ROOT).strip()
    except CannotRun:
        return ""
    return head + ("+" if changed else "")


# ------------------------------------------------------------------------------------------------------------ main


def run_all(made: list[Environment], what: str) -> list[Path]:
    """Every backend in every environment; the libraries are all there before the first run, which loads the others'."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    written = []
    for environment in made:
        others = [other.package for other in made if other is not environment and not other.problem]
        runs = {backend: environment.run(backend, others, what) for backend in BACKENDS}
        result = {"torch": environment.torch or "unknown", "python": environment.version, "runs": runs}
        minor = ".".join(environment.version.split(".")[:2])
        unknown = RESULTS / f"torch-{result['torch']}.json"  # of an environment that could not say its Python
        path = unknown.with_name(f"{unknown.stem}-python-{minor}.json") if minor else unknown
        unknown.unlink(missing_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        written.append(path)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", type=Path, metavar="PATH", help="an environment that is there")
    parser.add_argument("--torch", action="append", metavar="VERSION", help="make an environment with this release")
    parser.add_argument("--page", action="store_true", help="run nothing; write the tables of the committed results")
    parser.add_argument(
        "--check", action="store_true", help="run nothing, write nothing; say whether the page is current"
    )
    arguments = parser.parse_args()
    if not (arguments.page or arguments.check):
        what = commit()  # before the copies are made
        if arguments.python:
            run_all([Environment(python=path) for path in arguments.python], what)
        else:
            versions = arguments.torch or list(dict.fromkeys([OLDEST, PINNED, newest()]))
            written = run_all([Environment(torch=version) for version in versions], what)
            for old in set(RESULTS.glob("*.json")) - set(written) if not arguments.torch else ():
                old.unlink()
    text = PAGE.read_text(encoding="utf-8")
    made = compatibility_page.page(text)
    if arguments.check:
        print("current" if made == text else f"{PAGE.name}: not current, run python tools/compatibility.py --page")
        return made != text
    PAGE.write_text(made, encoding="utf-8")
    failed = sum(
        len(f["failed"])
        for r in compatibility_page.results()
        for run in r["runs"].values()
        for f in run.get("features", {}).values()
    )
    print(f"{PAGE.relative_to(ROOT)}: {failed} failed" if failed else f"{PAGE.relative_to(ROOT)}: nothing failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
