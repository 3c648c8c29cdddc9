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
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import compatibility_page  # noqa: E402
from compatibility_page import BACKENDS, PAGE, RESULTS  # noqa: E402
from environments import LIMIT, OLDEST, PINNED, Environment, commit, environ, newest, say, without_paths  # noqa: E402


def run(environment: Environment, backend: str, others: list[Path], commit: str) -> dict[str, Any]:
    """The tests of features with a backend, as tests/support/feature_report.py writes them, or why not."""
    if environment.problem:
        return {"not_run": environment.problem}
    if backend == "cuda" and not environment.cuda:
        return {"not_run": "no CUDA device"}
    report = environment.folder / f"{backend}.json"
    report.unlink(missing_ok=True)
    say(f"torch {environment.torch}, {backend}")
    settings = environ(environment.python, environment.folder) | {
        "SINPE_EXT_COMMIT": commit,
        "SINPE_EXT_OTHER_LIBRARIES": os.pathsep.join(map(str, others)),
    }
    source = environment.folder / "source"
    files = [path.relative_to(source).as_posix() for path in compatibility_page.marked(source)]
    command = [str(environment.python), "-m", "pytest", "-q", "-m", "feature", "--continue-on-collection-errors"]
    command += ["-p", "no:cacheprovider", f"--require-backend={backend}", f"--feature-report={report}", *files]
    log = environment.folder / f"{backend}.log"
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
    say(f"torch {environment.torch}, {backend}: {passed} passed, {failed} failed, {found['seconds']} s; {log}")
    return found


def run_all(made: list[Environment], what: str) -> list[Path]:
    """Every backend in every environment; the libraries are all there before the first run, which loads the others'."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    written = []
    for environment in made:
        others = [other.package for other in made if other is not environment and not other.problem]
        runs = {backend: run(environment, backend, others, what) for backend in BACKENDS}
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
