"""The whole test suite under several versions of torch, and the library of each in the others: make test-matrix.

    python tools/test_matrix.py                             # the oldest, the pinned and the newest, in build/matrix
    python tools/test_matrix.py --torch 2.14.0
    python tools/test_matrix.py --python env/bin/python     # environments that are there; once for each
    python tools/test_matrix.py --side-by-side              # the suites at once, where there are cores for them
    python tools/test_matrix.py --resume                    # where a suite has run before, only what failed then

Every environment gets a copy of the sources and builds the library with its own torch; then pytest runs there with the
kernels demanded, and tests/backend/test_stable_abi.py loads the libraries of the others. Standard library alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environments import OLDEST, PINNED, CannotRun, Environment, Outcome, commit, environ, newest, say

LIMIT = 7200  # seconds of a suite
ABI = "tests.test_stable_abi"


def failed_before(environment: Environment, report: Path) -> tuple[Outcome, list[str]]:
    """What a suite that has run before found, without what failed; and what of that is still there, to be run again."""
    before = Outcome()
    before.read(report)
    again = []
    for name in before.failed:
        module, _, test = name.partition("::")
        test_id = f"{module.replace('.', '/')}.py::{test}"
        listed = [str(environment.python), "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", test_id]
        settings = environ(environment.python, environment.folder)
        done = subprocess.run(listed, cwd=environment.folder / "source", env=settings, capture_output=True)
        again += [test_id] if done.returncode == 0 else []
    before.counts["failed"], before.failed = 0, []
    return before, again


def run(environment: Environment, others: list[Path], resume: bool) -> tuple[str, bool]:
    """The suite in an environment: a line, and whether it was clean."""
    if environment.problem:
        return f"torch {environment.torch or environment.folder.name}: not run, {environment.problem}", False
    title = f"torch {environment.torch}, Python {environment.version}"
    settings = environ(environment.python, environment.folder)
    settings["SINPE_EXT_OTHER_LIBRARIES"] = os.pathsep.join(map(str, others))
    report, log = environment.folder / "suite.xml", environment.folder / "suite.log"
    command = [str(environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--require-backend=compiled"]
    started, outcome, earlier = time.monotonic(), Outcome(), ""
    at = environment.folder / "suite.commit"
    if resume and report.is_file() and at.is_file():
        outcome, again = failed_before(environment, report)
        earlier = f"; all but {len(again)} in an earlier run, at {at.read_text()}"
        if not again:
            loaded = len(others) if ABI in outcome.passed else 0
            return f"{title}: {outcome}, {loaded} libraries of other torches loaded{earlier}", loaded == len(others)
        command, report, log = [*command, *again], report.with_name("again.xml"), log.with_name("again.log")
    else:
        at.write_text(commit())
    report.unlink(missing_ok=True)
    say(f"{title}: the suite; {log}")
    try:
        with log.open("w") as stream:
            done = subprocess.run(
                [*command, f"--junitxml={report}"],
                cwd=environment.folder / "source",
                env=settings,
                timeout=LIMIT,
                stdout=stream,
                stderr=stream,
            )
    except subprocess.TimeoutExpired:
        return f"{title}: more than {LIMIT} s", False
    if not report.is_file():
        return f"{title}: pytest ended with exit code {done.returncode} and no report, see {log.name}", False
    outcome.read(report)
    for name in outcome.failed:
        say(f"{title}: failed: {name}")
    loaded = len(others) if ABI in outcome.passed else 0
    minutes = (time.monotonic() - started) / 60
    line = f"{title}: {outcome}, {loaded} libraries of other torches loaded; {minutes:.1f} min{earlier}"
    return line, done.returncode == 0 and loaded == len(others)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", type=Path, metavar="PATH", help="an environment that is there")
    parser.add_argument("--torch", action="append", metavar="VERSION", help="make an environment with this release")
    parser.add_argument("--side-by-side", action="store_true", help="all suites at once")
    parser.add_argument("--resume", action="store_true", help="where a suite has run before, only what failed then")
    arguments = parser.parse_args()
    made = [Environment(python=path) for path in arguments.python or ()]
    try:
        versions = arguments.torch or ([] if made else list(dict.fromkeys([OLDEST, PINNED, newest()])))
    except CannotRun as problem:
        print(f"result: the newest torch is not known: {problem}")
        return 1
    made += [Environment(torch=version) for version in versions]
    usable = [environment for environment in made if not environment.problem]
    with ThreadPoolExecutor(len(made) if arguments.side_by_side else 1) as pool:
        packages = {each: [other.package for other in usable if other is not each] for each in made}
        found = list(pool.map(lambda each: run(each, packages[each], arguments.resume), made))
    for line, _ in found:
        print(f"result: {line}")
    return not all(clean for _, clean in found)


if __name__ == "__main__":
    sys.exit(main())
