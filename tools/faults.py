"""Applies each deliberate fault of tests/faults to a copy of the sources, and reports which tests find it.

    python tools/faults.py                  # all faults; with --write also the table of docs/reliability.md
    python tools/faults.py 07 tail          # faults whose names contain one of these strings;  --list: all names
    python tools/faults.py --quick          # runs only the tests that a fault names

A fault file has a description (what is wrong, and who is affected), a line `Tests:` with the test files that should
find the fault, and ctest:NAME for programs of tests/cpp, and a patch. The tests of `make test` run first, beginning
with the named ones, then those that `make test-all` adds. The named tests must pass without a fault; other tests that
fail without a fault are skipped. Results are cached in build/faults until the sources or the named tests change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import page_parts
from environments import ROOT, sources

FAULTS, PAGE = ROOT / "tests" / "faults", ROOT / "docs" / "reliability.md"
PART = "python tools/faults.py --write"
HERE = ROOT / "build" / "faults"
# The copy to which faults are applied, a built copy without faults, and the cached results.
SOURCE, CLEAN, RESULTS = HERE / "source", HERE / "clean", HERE / "results.json"
CPP = SOURCE / "build" / "cmake"
SHORT, LONG = "not long", "long"  # -m of the tests of `make test`, and of those that `make test-all` adds
NAMED, WIDE = 900, 7200  # time limits in seconds of the named tests and of all tests; a longer run counts as a hang
PYTEST = [sys.executable, *"-m pytest -x -q -p no:cacheprovider -rfE --require-backend=compiled".split()]
PARALLEL = "--numprocesses=2"
SHOWN = 400  # characters of the output of a command that failed


class Fault(NamedTuple):
    """A fault. files, programs: the tests that should find it; compiled: whether a library has to be built for it."""

    name: str
    what: str
    files: tuple[str, ...]
    programs: tuple[str, ...]
    compiled: bool


class Result(NamedTuple):
    """The first failing test of `make test`, otherwise of those that `make test-all` adds; "" if none fails."""

    short: str
    long: str = ""


def fault(path: Path) -> Fault:
    text, diff = re.split(r"^(?=--- a/)", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    what, _, tests = text.partition("\nTests:")
    programs = tuple(name[6:] for name in tests.split() if name.startswith("ctest:"))
    files = tuple(name for name in tests.split() if not name.startswith("ctest:"))
    if not programs + files or not what.strip() or any(not (ROOT / name).is_file() for name in files):
        raise SystemExit(f"{path.name}: expected a text, a line `Tests:` with files that there are, and a diff")
    return Fault(path.stem, " ".join(what.split()), files, programs, "--- a/csrc/" in diff)


class CannotRun(Exception):
    """Raised if a fault cannot be applied or compiled; the message is the end of the output."""


def say(text: str) -> None:
    print(f"faults: {text}", file=sys.stderr, flush=True)


def settings() -> dict[str, str]:
    """The environment variables of a command in the copy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SINPE_EXT_")}
    return (
        {"CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 2)}
        | kept
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(SOURCE),
            "SINPE_EXT_BUILD": "cpu",
            "SINPE_EXT_CACHE_DIR": str(HERE / "cache"),
            "GIT_CEILING_DIRECTORIES": str(HERE),
        }
    )


def make(*command: str) -> None:
    """Runs a command in the copy. Raises CannotRun if it fails."""
    status, text = run(command, WIDE)
    if status != 0:
        raise CannotRun(f"{command[0]} {command[1]}: {text[-SHOWN:]}")


def run(command: Sequence[str], limit: float) -> tuple[int | None, str]:
    """(exit status, output) of a command in the copy. At the time limit the command and its child processes are killed,
    and the status is None."""
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, cwd=SOURCE, env=settings(), start_new_session=True, **streams)
    try:
        text, _ = process.communicate(timeout=limit)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def build_library() -> None:
    make(sys.executable, "setup.py", "build_ext", "--inplace")


def failing_program(names: Sequence[str]) -> list[str]:
    """The first test of tests/cpp that fails, of these programs or of all if there are none."""
    make("cmake", "--build", str(CPP), *(["--target", *names] if names else []))
    chosen = f"^({'|'.join(names)})" if names else "."
    command = ["ctest", "--test-dir", str(CPP), "--no-tests=error", "--stop-on-failure", "-R", chosen]
    status, text = run(command, NAMED)
    failed = re.search(r"^\s*\d+ - (\S+) \(", text, re.MULTILINE)
    return [] if status == 0 else [f"ctest: {failed[1] if failed else 'a hang' if status is None else 'no test'}"]


def failing_tests(tier: str, options: Iterable[str], limit: float) -> list[str]:
    """The first test that fails, or all without its -x."""
    status, text = run([*PYTEST, "-m", tier, *options], limit)
    if status in (0, 5):  # 5: no test of these files belongs to the tier
        return []
    if status is None:
        return ["a hang"]
    if status == 4:
        raise CannotRun(f"pytest cannot be called so: {text.strip()[-200:]}")
    named = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", text, re.MULTILINE)
    last = [line for line in text.splitlines() if line.strip()][-1:]
    return named or [f"pytest ends with status {status}: {''.join(last)[:80]}"]


class Copy:
    """A built copy of the working tree, with the cached results for these sources."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        if CLEAN.is_dir():
            self.restore()
        sources(SOURCE)
        shutil.rmtree(SOURCE / "tests" / "faults")
        say("building the copy")
        build_library()
        if any(item.compiled for item in faults):
            make("cmake", "-S", str(SOURCE), "-B", str(CPP), "-DSINPE_BUILD_EXAMPLES=OFF")
            make("cmake", "--build", str(CPP))
        shutil.rmtree(CLEAN, ignore_errors=True)
        shutil.copytree(SOURCE, CLEAN, symlinks=True)
        shared = (path for area in ("csrc", "sinpe_ext", "tests") for path in (CLEAN / area).rglob("*"))
        left_out = re.compile(r".*\.(so|pyc)|.*_build\.json|.*/tests/\w+/test_\w+\.py")
        self.shared = sorted(path for path in shared if path.is_file() and not left_out.fullmatch(str(path)))
        self.results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}

    def restore(self) -> None:
        shutil.rmtree(SOURCE, ignore_errors=True)
        shutil.copytree(CLEAN, SOURCE, symlinks=True)

    def cached(self, name: str, files: Iterable[Path], find: Callable[[], Any]) -> Any:
        """The result of `find`, cached until the sources, the shared test code or `files` change."""
        content = hashlib.sha256()
        for path in (*self.shared, *files):
            content.update(path.read_bytes())
        if self.results.get(name, {}).get("digest") != content.hexdigest():
            self.results[name] = {"digest": content.hexdigest(), "found": find()}
            self.save()
        return self.results[name]["found"]

    def save(self) -> None:
        RESULTS.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def check(self, faults: Sequence[Fault]) -> None:
        """Exits with an error unless the tests that the faults name pass without a fault."""
        programs = sorted({name for item in faults for name in item.programs})
        files = sorted({name for item in faults for name in item.files})
        say(f"without a fault: {len(programs)} programs, {len(files)} files")
        failed = [self.cached(f"ctest:{name}", (), partial(failing_program, [name])) for name in programs]
        for name in files:
            failed.append(self.cached(name, [CLEAN / name], partial(failing_tests, "", [name], WIDE)))
        if named := [name for names in failed for name in names]:
            raise SystemExit(f"{', '.join(named)}: fails without a fault, so that it could find none")

    def others(self, tier: str) -> list[str]:
        """The pytest options for running a whole tier, without the tests that fail even without a fault."""

        def failing() -> list[str]:
            say(f'all tests "{tier}" without a fault')
            shutil.rmtree(HERE / "patched", ignore_errors=True)
            patched = SOURCE.rename(HERE / "patched")
            self.restore()
            found = failing_tests(tier, [PARALLEL, "--maxfail=1000000"], WIDE)
            shutil.rmtree(SOURCE)
            patched.rename(SOURCE)
            return found

        left_out = self.cached(tier, sorted((CLEAN / "tests").glob("*/test_*.py")), failing)
        return [PARALLEL, *(f"--deselect=tests/{test}" for test in left_out)]

    def result(self, item: Fault, quick: bool) -> Result:
        """Applies a fault and returns the tests that find it."""
        self.restore()
        make("git", "apply", str(FAULTS / f"{item.name}.patch"))
        failed = failing_program(item.programs) if item.programs else []
        if item.compiled and not failed:
            build_library()
        if item.files:
            failed = failed or failing_tests(SHORT, item.files, NAMED)
        if not quick:
            failed = failed or (failing_program([]) if item.compiled else [])
            failed = failed or failing_tests(SHORT, self.others(SHORT), WIDE)
        if failed:
            return Result(failed[0])
        failed = failing_tests(LONG, item.files, NAMED) if item.files else []
        failed = failed or ([] if quick else failing_tests(LONG, self.others(LONG), WIDE))
        return Result("", failed[0] if failed else "")


def table(rows: Sequence[tuple[Fault, Result]]) -> str:
    found = [sum(bool(r.short) for _, r in rows), sum(bool(r.short or r.long) for _, r in rows)]
    lines = [f"`make test` finds {found[0]} of {len(rows)}, `make test-all` {found[1]}.", ""]
    lines += ["| fault | what is wrong, and who would suffer | `make test` | `make test-all` |", "|---|---|---|---|"]
    for item, (short, long) in rows:
        cells = (f"`{short}`" if short else "no", "yes" if short else f"`{long}`" if long else "**no**")
        lines.append(f"| {item.name} | {item.what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str, rows: Sequence[tuple[Fault, Result]]) -> str:
    return page_parts.replace(text, {PART: table(rows)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of faults' names")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    parser.add_argument("--quick", action="store_true", help="run only the tests that a fault names")
    parser.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    given = parser.parse_args()
    if given.write and given.names:
        parser.error("--write: expected all faults; leave the names out")
    every = [fault(path) for path in sorted(FAULTS.glob("*.patch"))]
    faults = [item for item in every if not given.names or any(name in item.name for name in given.names)]
    if not faults:
        parser.error(f"names: expected parts of faults' names (--list), got {' '.join(given.names)}")
    if given.list:
        print("\n".join(f"{item.name}: {item.what}" for item in faults))
        return 0
    copy = Copy(faults)
    copy.check(faults)
    rows: list[tuple[Fault, Result]] = []
    wrong = []
    for item in faults:
        files = [FAULTS / f"{item.name}.patch", *(CLEAN / name for name in item.files)]
        try:
            found = Result(*copy.cached(item.name, files, partial(copy.result, item, given.quick)))
        except CannotRun as error:  # it does not apply, or not compile
            wrong.append(f"{item.name}: {error}")
            continue
        if not found.short and (given.quick or not found.long):
            del copy.results[item.name]  # other tests may find it, now or later
        rows.append((item, found))
        print(f"{item.name:32} {found.short or found.long or 'NOT FOUND'}", flush=True)
    copy.restore()
    copy.save()
    print(f"result: {sum(any(found) for _, found in rows)} of {len(faults)} faults found", *wrong, sep="\n")
    if given.write and not wrong:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 1 if len(rows) < len(faults) or not all(any(found) for _, found in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
