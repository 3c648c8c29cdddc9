"""Mutation testing: applies each small wrong change of tools/mutants.txt to a copy of the sources, and runs its tests.

    python tools/mutation_test.py             # all mutants; names those that no test detects, with exit status 1
    python tools/mutation_test.py memory.py   # those whose file, change or tests contain the text
    python tools/mutation_test.py --all-tests # with all tests of `make test` instead of those named; hours

Needs an environment in which the compiled library is built (`make build`); the copy is build/mutants. A change of csrc
is built there, in one to three minutes, or only its C++ program ("ctest NAME").
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from environments import ROOT, sources

COPY = ROOT / "build" / "mutants"
MANY = 20  # failing tests for one change; more are named, because they hide which test is about it
TIMEOUT = 1800  # seconds; a change may cause an endless loop
BUILT = ("_build.json", "*.so")


class Mutant(NamedTuple):
    """A wrong change.

    Attributes:
        file: relative to the repository.
        tests: arguments of pytest, or "ctest NAME" for a program of tests/cpp.
        old, new: text that occurs once in the file, and what replaces it.
    """

    file: str
    tests: str
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}: {(self.new.strip() or 'without ' + self.old.strip()).splitlines()[0]}"


def read_mutants() -> list[Mutant]:
    """Of tools/mutants.txt, whose head describes the format."""
    made = []
    for entry in Path(__file__).with_name("mutants.txt").read_text(encoding="utf-8").split("\n\n")[1:]:
        head, *lines = entry.strip("\n").splitlines()
        file, tests = head.split(": ", 1)
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        made.append(Mutant(file, tests, old, new))
    return made


def run(*command: str) -> tuple[int, str]:
    """Exit status and output; the status of a process that was stopped is that of `timeout`."""
    own = {"PYTHONPATH": str(COPY), "SINPE_EXT_BUILD": "cpu", "SINPE_EXT_CACHE_DIR": str(COPY / "build" / "cache")}
    try:
        done = subprocess.run(
            command,
            cwd=COPY,
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        return 124, str(error.stdout)
    return done.returncode, done.stdout


def build_library() -> None:
    status, output = run(sys.executable, "setup.py", "-q", "build_ext", "--inplace")
    if status:
        raise ValueError(f"does not build:\n{output[-2000:]}")


def run_ctest(name: str) -> tuple[int, str]:
    for command in (["cmake", "--preset", "test"], ["cmake", "--build", "--preset", "test", "--target", name]):
        status, output = run(*command)
        if status:
            raise ValueError(f"does not build:\n{output[-2000:]}")
    return run("ctest", "--preset", "test", "-R", f"^{name}$")


def run_tests(mutant: Mutant, all_tests: bool) -> int:
    """The number of failing tests. Raises ValueError if they could not be run."""
    program = mutant.tests.startswith("ctest ") and not all_tests
    if program:
        status, output = run_ctest(mutant.tests.split()[1])
    else:
        if mutant.file.startswith("csrc/"):
            build_library()
        which = ["-n", "auto", "tests"] if all_tests else shlex.split(mutant.tests)
        require = [] if "--require-backend" in mutant.tests else ["--require-backend=compiled"]
        options = ["-q", "-p", "no:cacheprovider", "-m", "not long", "--tb=no", *require]
        status, output = run(sys.executable, "-m", "pytest", *options, *which)
    if status == 0:
        return 0
    failed = re.search(r"(\d+) failed", output)
    if program or status == 124:
        return 1
    if status != 1 or not failed:
        raise ValueError(f"pytest ended with status {status}:\n{output[-2000:]}")
    return int(failed[1])


def test(mutant: Mutant, all_tests: bool) -> int:
    file = COPY / mutant.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: expected the text once, got {text.count(mutant.old)} times: {mutant.old!r}")
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return run_tests(mutant, all_tests)
    finally:
        file.write_text(text, encoding="utf-8")


def restore_libraries() -> None:
    for pattern in BUILT:
        for path in (ROOT / "sinpe_ext").glob(pattern):
            shutil.copy2(path, COPY / "sinpe_ext")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="only mutants whose file, change or tests contain one of these")
    parser.add_argument("--all-tests", action="store_true", help="all tests of `make test` for each mutant")
    arguments = parser.parse_args()
    chosen = [m for m in read_mutants() if not arguments.texts or any(t in "\n".join(m) for t in arguments.texts)]
    sources(COPY)
    survived, many, invalid = [], [], []
    for number, mutant in enumerate(chosen, 1):
        restore_libraries()
        begin, name = time.monotonic(), mutant.name
        try:
            failed = test(mutant, arguments.all_tests)
            result = f"{failed} failed" if failed else "NOT DETECTED"
            if not failed:
                survived.append(name)
            elif failed > MANY:
                many.append(name)
        except ValueError as error:
            result = f"INVALID, {error}"
            invalid.append(name)
        print(f"{number}/{len(chosen)} {name}: {result}, {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{len(chosen)} mutants: {len(survived)} not detected, {len(invalid)} invalid, {len(many)} by over {MANY}")
    for name in [*survived, *invalid, *many]:
        print(f"  {name}")
    return 1 if survived or invalid else 0


if __name__ == "__main__":
    sys.exit(main())
