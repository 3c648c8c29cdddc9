"""Runs the property-based tests again and again, with new examples each time, until the time is up:

    python tools/fuzz.py --minutes 480 --jobs 4
    python tools/fuzz.py -- --require-backend=emulated -k backward     # what stands behind -- goes to pytest

Each run is one file of tests in a process of its own, named by its seed, which gives the same examples again. A test
that fails, a process that dies and one that hangs are reported with the example and what shows it again, and kept in
build/fuzz. Ctrl-C ends it early.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PATIENCE = 60.0  # seconds for a process to end after it was asked to
TRYING = re.compile(r"^(?:Trying example|Test case):", re.MULTILINE)


@dataclass
class Run:
    """One file of tests with one seed."""

    file: Path
    seed: int
    process: subprocess.Popen[bytes]
    output: Path
    log: Path
    started: float = field(default_factory=time.monotonic)
    hangs: bool = False
    stopped: bool = False

    def lines(self) -> list[dict[str, object]]:
        if not self.log.is_file():
            return []
        return [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]

    def unfinished(self) -> str | None:
        """The test that began and did not end."""
        last = self.lines()[-1:] or [{}]
        return str(last[0]["test"]) if last[0].get("began") else None


class Fuzz:
    def __init__(self, arguments: argparse.Namespace):
        self.files = [path.resolve() for path in arguments.files] or default_files()
        self.named = list(self.files)
        self.minutes, self.jobs, self.more, self.limit = (
            arguments.minutes,
            arguments.jobs or os.cpu_count() or 1,
            arguments.more,
            arguments.limit,
        )
        self.to_pytest: list[str] = arguments.pytest
        self.folder: Path = arguments.folder.resolve()
        self.first = self.next = (
            arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31)
        )
        self.examples: Counter[str] = Counter()
        self.failures: list[str] = []
        self.running: list[Run] = []
        self.started = time.monotonic()

    def command(self, what: str, seed: int, *more: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "fuzzing", "-p", "no:cacheprovider", "-rfE"]
        command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), f"--hypothesis-seed={seed}"]
        return [*command, *more, what, *self.to_pytest]

    def environment(self, log: Path) -> dict[str, str]:
        paths = [str(TESTS / "support"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"SINPE_EXT_FUZZ": str(self.more), "SINPE_EXT_FUZZ_LOG": str(log), "PYTHONPATH": os.pathsep.join(paths)}
        return {**os.environ, **own}

    def start(self, file: Path) -> None:
        seed, self.next = self.next, self.next + 1
        name = f"{file.stem}-{seed}"
        log, output = self.folder / f"{name}.jsonl", self.folder / f"{name}.txt"
        log.unlink(missing_ok=True)
        with output.open("wb") as to:
            process = subprocess.Popen(
                self.command(str(file), seed),
                cwd=ROOT,
                env=self.environment(log),
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the others
            )
        self.running.append(Run(file, seed, process, output, log))

    def minutes_gone(self) -> float:
        return (time.monotonic() - self.started) / 60

    def main(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (signal.SIGINT, signal.SIGTERM):  # a shell in the background has the first one ignored
            signal.signal(name, signal.default_int_handler)
        print(
            f"{len(self.files)} files, {self.jobs} at a time, {self.minutes:g} minutes, seeds from {self.first}",
            flush=True,
        )
        turn = 0
        try:
            while self.minutes_gone() < self.minutes and (self.files or self.running):
                while self.files and len(self.running) < self.jobs:
                    self.start(self.files[turn % len(self.files)])
                    turn += 1
                time.sleep(0.1)
                self.look()
            self.stop()
        except KeyboardInterrupt:
            print("stopping", flush=True)
            self.stop()
        return self.report()

    def look(self) -> None:
        """At what has ended, or should have."""
        for run in list(self.running):
            if run.process.poll() is not None:
                self.finish(run)
            elif time.monotonic() - run.started > self.limit:
                run.hangs = True
                end(run.process, signal.SIGABRT)  # of which faulthandler says where

    def stop(self) -> None:
        """Ends what runs; its examples count."""
        for run in self.running:
            if run.process.poll() is None:
                run.stopped = True
                os.killpg(run.process.pid, signal.SIGINT)
        for run in list(self.running):
            end(run.process, None)
            self.finish(run)

    def finish(self, run: Run) -> None:
        self.running.remove(run)
        code, lines, before = run.process.returncode, run.lines(), len(self.failures)
        ran = {str(line["test"]): int(str(line["cases"])) for line in lines if "cases" in line}
        failed = [
            str(x["test"]) for x in lines if x.get("outcome") not in (None, "passed", "KeyboardInterrupt", "Skipped")
        ]
        self.examples.update(ran)
        for test in failed:
            self.fail(run, test, f"fails with seed {run.seed}")
        if run.hangs:
            self.fail(
                run, run.unfinished() or run.file.name, f"runs for more than {self.limit:g} s with seed {run.seed}"
            )
        elif code < 0 and not run.stopped:
            self.died(run, signal.Signals(-code).name)
        elif code not in (0, 1, 5) and not run.stopped:
            self.fail(run, run.file.name, f"ends with {code}")
        elif code == 1 and not failed:
            self.fail(run, run.file.name, f"fails with seed {run.seed}, outside of a property")
        elif code in (0, 5) and not any(ran.values()):
            self.files = [file for file in self.files if file != run.file]
            if code == 0:  # 5: nothing was asked for
                self.fail(run, run.file.name, "ran nothing: was it skipped?")
        if len(self.failures) == before:
            run.output.unlink()
        run.log.unlink(missing_ok=True)
        seconds, total = time.monotonic() - run.started, sum(self.examples.values())
        print(
            f"{self.minutes_gone():6.1f} min  {total:9,} examples  {len(self.failures)} failures   "
            f"{run.file.name} seed {run.seed}: {sum(ran.values()):,} in {seconds:.0f} s",
            flush=True,
        )

    def path(self, run: Run, test: str) -> str:
        """What pytest is to run for a test of this run."""
        file = run.file.relative_to(ROOT) if run.file.is_relative_to(ROOT) else run.file
        return "::".join([str(file), *test.split("::")[1:]])

    def fail(self, run: Run, test: str, how: str, more: str = "") -> None:
        self.failures.append(f"{test} {how}")
        again = f"SINPE_EXT_FUZZ={self.more} python -m pytest '{self.path(run, test)}' --hypothesis-seed={run.seed}"
        print(f"\nFAILURE: {test} {how}\n  output: {run.output}\n  again:  {' '.join([again, *self.to_pytest])}")
        print(more or indented(run.output.read_text(encoding="utf-8", errors="replace"), "E  "), flush=True)

    def died(self, run: Run, name: str) -> None:
        """Runs the test again, with the same examples, each shown before it is tried: the last one is it."""
        test = run.unfinished()
        if test is None:
            self.fail(run, run.file.name, f"dies of {name} with seed {run.seed}")
            return
        again = self.folder / f"{run.output.stem}-again.txt"
        with again.open("wb") as to:
            shown = self.command(self.path(run, test), run.seed, "-s", "--hypothesis-verbosity=verbose")
            process = subprocess.Popen(
                shown,
                cwd=ROOT,
                env=self.environment(run.log.with_suffix(".again")),
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(self.limit)
            except subprocess.TimeoutExpired:
                end(process, signal.SIGKILL)
        run.log.with_suffix(".again").unlink(missing_ok=True)
        text = again.read_text(encoding="utf-8", errors="replace")
        at = [found.start() for found in TRYING.finditer(text)]
        if process.returncode >= 0 or not at:
            self.fail(run, test, f"dies of {name} with seed {run.seed}", f"  it did not die again: {again}")
            return
        example = text[at[-1] :]
        again.write_text(example, encoding="utf-8")
        shown_part = "\n".join("  " + line for line in example.splitlines()[:40])
        self.fail(run, test, f"dies of {name} with seed {run.seed}", f"  example: {again}\n{shown_part}")

    def report(self) -> int:
        print()
        for test, count in sorted(self.examples.items()):
            print(f"{count:10,}  {test}")
        for each in self.failures:
            print(f"FAILURE: {each}")
        total = sum(self.examples.values())
        seeds = f"seeds {self.first} to {self.next - 1}" if self.next > self.first else "no seed"
        extra = f" ({' '.join(self.to_pytest)})" if self.to_pytest else ""
        idle = [file for file in self.named if not any(Path(file).stem in test for test in self.examples)]
        if idle:
            extra += f", none of {', '.join(Path(file).stem for file in idle)}"
        print(
            f"result: {total:,} examples of {len(self.examples)} tests{extra} in {self.minutes_gone():.1f} min, "
            f"{len(self.failures)} failures, {seeds}"
        )
        return 0 if total and not self.failures else 1


def indented(text: str, begin: str) -> str:
    """The first lines of an output that tell what is wrong."""
    found = [line for line in text.splitlines() if line.startswith(begin)] or text.splitlines()[-20:]
    return "\n".join("  " + line for line in found[:60])


def end(process: subprocess.Popen[bytes], how: signal.Signals | None) -> None:
    """Waits for a process and those that it began; after a while it is killed."""
    if how is not None and process.poll() is None:
        os.killpg(process.pid, how)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def default_files() -> list[Path]:
    return [TESTS / "reference" / "test_parity.py", *sorted(TESTS.rglob("test_fuzz_*.py"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time; 0: as many as there are cores")
    parser.add_argument("--seed", type=int, help="of the first run; the next ones count on")
    parser.add_argument("--more", type=int, default=5, help="times as many examples in a run as the test suite has")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which a run counts as hanging")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="where failures are kept")
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="test files in place of all")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:at])
    arguments.pytest = words[at + 1 :]
    if arguments.more < 2:
        parser.error("--more: expected 2 or more; 1 is the test suite, whose examples are always the same")
    return Fuzz(arguments).main()


if __name__ == "__main__":
    sys.exit(main())
