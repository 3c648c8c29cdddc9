"""Applies the hand-made faults of tests/faults one by one to a copy of the sources, and says which tests find each.

    python tools/faults.py                  # all, and the table of docs/reliability.md with --write
    python tools/faults.py 07 tail          # those whose names contain one of these;  --list: what there is
    python tools/faults.py --quick          # with the tests alone that a fault names

A fault is a patch below a text: what is wrong and who would suffer, then a line `Tests:` with the files, and programs
of tests/cpp as ctest:NAME, that should find it. What `make test` runs is tried first, the named tests before all
others, then what `make test-all` adds. The named tests must pass without a fault; others that fail then are left out.
What was found is kept in build/faults until a source changes.
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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from environments import ROOT, CannotRun, environ, output, say, sources

FAULTS, PAGE = ROOT / "tests" / "faults", ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- begin: python tools/faults.py --write -->", "<!-- end of the faults -->"
HERE = ROOT / "build" / "faults"
SOURCE, CLEAN, KEPT = HERE / "source", HERE / "clean", HERE / "kept.json"  # the copy; the same, built and without fault
CPP = SOURCE / "build" / "cmake"
SHORT, LONG = "not long", "long"  # tiers: what `make test` runs, and what `make test-all` adds
JOBS = os.cpu_count() or 2
NAMED, WIDE = 900, 7200  # seconds that a run of named tests, or of all, may take: more is a hang
PYTEST = "-m pytest -x -q -p no:cacheprovider -rfE --require-backend=compiled".split()


class Fault(NamedTuple):
    """files, programs: the tests that should find it.   compiled: whether a library has to be built for it."""

    name: str
    what: str
    files: tuple[str, ...]
    programs: tuple[str, ...]
    compiled: bool


class Result(NamedTuple):
    """The first failing test of `make test`, else of what `make test-all` adds; "" where none fails."""

    short: str
    long: str = ""


def fault(path: Path) -> Fault:
    text, diff = re.split(r"^(?=--- a/)", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)
    what, _, tests = text.partition("\nTests:")
    names = tests.split()
    programs = tuple(name.removeprefix("ctest:") for name in names if name.startswith("ctest:"))
    files = tuple(name for name in names if not name.startswith("ctest:"))
    if not names or not what.strip() or any(not (ROOT / name).is_file() for name in files):
        raise SystemExit(f"{path.name}: expected a text, a line `Tests:` with files that there are, and a diff")
    return Fault(path.stem, " ".join(what.split()), files, programs, "--- a/csrc/" in diff)


def settings() -> dict[str, str]:
    kept = environ(Path(sys.executable), HERE) | {"SINPE_EXT_BUILD": "cpu", "GIT_CEILING_DIRECTORIES": str(HERE)}
    del kept["PYTHONDONTWRITEBYTECODE"]  # hundreds of processes import the package, and a patched file is newer
    return kept


def run(command: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Exit status and output of a command in the copy; None past its time, when all that it started is ended."""
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
    output([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=SOURCE, env=settings())


def failing_program(names: Iterable[str]) -> str:
    """The first test of tests/cpp that fails; of all where no name is given."""
    names = tuple(names)
    targets = ["--target", *names] if names else []
    output(["cmake", "--build", str(CPP), f"--parallel={JOBS}", *targets], cwd=SOURCE, env=settings())
    chosen = ["-R", f"^({'|'.join(names)})"] if names else []
    status, text = run(["ctest", "--test-dir", str(CPP), "--no-tests=error", "--stop-on-failure", *chosen], NAMED)
    failed = re.search(r"^\s*\d+ - (\S+) \(", text, re.MULTILINE)
    return "" if status == 0 else f"ctest: {failed[1] if failed else 'a hang' if status is None else 'no test'}"


def failing_tests(tier: str, options: Iterable[str], limit: float) -> list[str]:
    """The first test that fails, or all without its -x; empty where none does."""
    status, text = run([sys.executable, *PYTEST, "-m", tier, *options], limit)
    if status in (0, 5):  # passed; none is of the tier
        return []
    if status is None:
        return ["a hang"]
    if status == 4:
        raise CannotRun(f"pytest cannot be called so: {text.strip()[-200:]}")
    named = re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", text, re.MULTILINE)
    last = [line for line in text.splitlines() if line.strip()][-1:]
    return named or [f"pytest ends with status {status}: {''.join(last)[:80]}"]


class Copy:
    """The sources as they are in the working tree, built; what was found out about them before."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        if CLEAN.is_dir():
            self.restore()
        sources(SOURCE)
        shutil.rmtree(SOURCE / "tests" / "faults")
        say("building the copy")
        build_library()
        if any(item.programs for item in faults):
            options = [f"-DPython_EXECUTABLE={sys.executable}", "-DSINPE_BUILD_EXAMPLES=OFF"]
            output(["cmake", "-S", str(SOURCE), "-B", str(CPP), *options], cwd=SOURCE, env=settings())
            output(["cmake", "--build", str(CPP), f"--parallel={JOBS}"], cwd=SOURCE, env=settings())
        shutil.rmtree(CLEAN, ignore_errors=True)
        shutil.copytree(SOURCE, CLEAN, symlinks=True)
        digest = hashlib.sha256()
        for area in ("csrc", "sinpe_ext", "tests", "tools", "setup.py", "pyproject.toml", "CMakeLists.txt"):
            for path in sorted((SOURCE / area).rglob("*")) if (SOURCE / area).is_dir() else [SOURCE / area]:
                if path.is_file() and path.suffix not in (".so", ".pyc") and path.name != "_build.json":
                    digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
        self.key = digest.hexdigest()
        kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
        self.kept: dict[str, Any] = kept if kept.get("key") == self.key else {"key": self.key, "passed": []}

    def keep(self, name: str, value: Any) -> None:
        self.kept[name] = value
        KEPT.write_text(json.dumps(self.kept, indent=1), encoding="utf-8")

    def restore(self) -> None:
        shutil.rmtree(SOURCE, ignore_errors=True)
        shutil.copytree(CLEAN, SOURCE, symlinks=True)

    def check(self, faults: Sequence[Fault]) -> None:
        """That the tests which faults name pass where there is none."""
        named = {file for item in faults for file in item.files} | {f"ctest:{p}" for i in faults for p in i.programs}
        missing = sorted(named - set(self.kept["passed"]))
        say(f"{len(missing)} of {len(named)} named tests without a fault")
        for name in missing:
            program = name.removeprefix("ctest:")
            found = failing_program([program]) if program != name else "".join(failing_tests("", [name], WIDE))
            if found:
                raise SystemExit(f"{found} fails without a fault, so that it could find none")
            self.keep("passed", [*self.kept["passed"], name])

    def others(self, tier: str) -> list[str]:
        """Options of a search through a whole tier: without what fails there anyway."""
        name = f"failing: {tier}"
        if name not in self.kept:
            say(f'all tests "{tier}" without a fault')
            patched = SOURCE.rename(HERE / "patched")
            self.restore()
            self.keep(name, failing_tests(tier, ["--numprocesses=2", "--maxfail=1000000"], WIDE))
            shutil.rmtree(SOURCE)
            patched.rename(SOURCE)
        return ["--numprocesses=2", *(f"--deselect=tests/{test}" for test in self.kept[name])]

    def result(self, item: Fault, quick: bool) -> Result:
        """What finds a fault."""
        self.restore()
        output(["git", "apply", str(FAULTS / f"{item.name}.patch")], cwd=SOURCE, env=settings())
        if item.programs and (found := failing_program(item.programs)):
            return Result(found)
        if item.compiled:
            build_library()
        if item.files and (failed := failing_tests(SHORT, item.files, NAMED)):
            return Result(failed[0])
        if not quick:
            if item.compiled and (found := failing_program([])):
                return Result(found)
            if failed := failing_tests(SHORT, self.others(SHORT), WIDE):
                return Result(failed[0])
        if item.files and (failed := failing_tests(LONG, item.files, NAMED)):
            return Result("", failed[0])
        return Result("", "".join(failing_tests(LONG, self.others(LONG), WIDE)[:1]) if not quick else "")


def table(rows: Sequence[tuple[Fault, Result]]) -> str:
    lines = [
        "| fault | what is wrong, and who would suffer | found by `make test` | by `make test-all` |",
        "|---|---|---|---|",
    ]
    for item, (short, long) in rows:
        cells = (f"`{short}`" if short else "no", "yes" if short else f"`{long}`" if long else "**no**")
        lines.append(f"| {item.name} | {item.what} | {' | '.join(cells)} |".replace("](", "] ("))
    found = [sum(bool(r.short) for _, r in rows), sum(bool(r.short or r.long) for _, r in rows)]
    return "\n".join([f"`make test` finds {found[0]} of {len(rows)}, `make test-all` {found[1]}.", "", *lines])


def page(text: str, rows: Sequence[tuple[Fault, Result]]) -> str:
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.split(END, 1)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of faults' names")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("--quick", action="store_true", help="no search beyond the tests that a fault names")
    parser.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    given = parser.parse_args()
    if given.write and (given.names or given.quick):
        parser.error("--write: expected all faults, and all tests; leave the names and --quick out")
    every = [fault(path) for path in sorted(FAULTS.glob("*.patch"))]
    faults = [item for item in every if not given.names or any(name in item.name for name in given.names)]
    if given.list:
        print("\n".join(f"{item.name}: {item.what}" for item in faults))
        return 0
    copy = Copy(faults)
    copy.check(faults)
    rows, wrong = [], []
    for item in faults:
        patch = hashlib.sha256((FAULTS / f"{item.name}.patch").read_bytes()).hexdigest()
        known = copy.kept.get(item.name, {})
        if known.get("patch") != patch or (not any(known["result"]) and known["quick"] and not given.quick):
            try:
                found = copy.result(item, given.quick)
            except CannotRun as error:  # it does not apply, or not compile
                wrong.append(f"{item.name}: {error}")
                say(wrong[-1])
                continue
            copy.keep(item.name, {"patch": patch, "quick": given.quick, "result": found})
        rows.append((item, Result(*copy.kept[item.name]["result"])))
        print(f"{item.name:32} {rows[-1][1].short or rows[-1][1].long or 'NOT FOUND'}", flush=True)
    copy.restore()
    print(f"result: {sum(any(found) for _, found in rows)} of {len(faults)} faults found", *wrong, sep="\n")
    if given.write and not wrong:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 1 if wrong or not all(any(found) for _, found in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
