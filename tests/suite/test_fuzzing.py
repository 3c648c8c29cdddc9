"""How many examples the suite draws, and that tools/fuzz.py tells of what it finds: planted faults of every kind."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from children import Child, finish, start_command, until

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
TOOL = ROOT / "tools" / "fuzz.py"
LEAST = 2000

PLANTED = """
import os, signal, time
from fuzzing import fuzz, machine
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

@fuzz(40)
@given(st.integers(0, 10**6))
def test_planted(n):
    {body}

class Walk(RuleBasedStateMachine):
    @rule(n=st.integers(0, 9))
    def step(self, n):
        assert n < 10

test_walk = machine(Walk, examples=5, steps=3)
"""


def test_the_suite_draws_enough_examples() -> None:
    """That each test draws what it promises is checked after it, in fuzzing.py."""
    for path in (TESTS / "reference" / "test_parity.py", *TESTS.rglob("test_fuzz_*.py")):
        importlib.import_module(path.stem)
    total = sum(fuzzing.PROMISED.values())
    assert total >= LEAST
    page = ROOT / "docs" / "reliability.md"
    assert f"{total:,} examples" in page.read_text(encoding="utf-8"), f"{page.name}: the suite draws {total:,} examples"


def write(folder: Path, body: str) -> Path:
    file = folder / "test_fuzz_planted.py"
    file.write_text(PLANTED.format(body=body))
    return file


def start(folder: Path, body: str, *options: str) -> Child:
    if not TOOL.is_file():
        pytest.skip("tools/ is part of the repository alone")
    command = [sys.executable, str(TOOL), "--files", str(write(folder, body)), "--folder", str(folder / "kept")]
    command += ["--jobs", "1", "--seed", "7", *options]
    return start_command(command, cwd=folder, merged=True)


def tool(
    folder: Path, body: str, enough: Callable[[int, str], Any], *options: str, minutes: float, limit: float = 1800.0
) -> tuple[int, str]:
    """Status and output. A machine that is too slow for what is to be seen in these times is given more."""
    for factor in (1, 3, 10):
        times = ["--minutes", str(factor * minutes), "--limit", str(factor * limit)]
        process = start(folder, body, *times, *options)
        said, _ = finish(process, status=None)
        status = process.poll()
        assert status is not None
        if enough(status, said):
            break
    return status, said


def result(said: str) -> str:
    last = said.rstrip().splitlines()[-1]
    assert last.startswith("result: "), said
    return last


@pytest.mark.processes
def test_a_clean_run(tmp_path: Path) -> None:
    def enough(code: int, said: str) -> bool:
        found = re.search(r"result: ([\d,]+) examples of 2 tests", said)
        return found is not None and int(found[1].replace(",", "")) >= (40 + 5) * 3

    code, said = tool(tmp_path, "assert n >= 0", enough, "--more", "3", minutes=0.15)
    assert code == 0 and ", 0 failures, seeds 7 to " in result(said) and enough(code, said), said
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.suffix == ".txt"] == []


@pytest.mark.processes
def test_a_failing_property_is_told_with_its_example(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "assert n < 1000", lambda code, said: "test_planted fails" in said, minutes=0.15)
    assert code == 1 and ", 0 failures," not in result(said)
    assert "test_planted fails with seed 7" in said and "n=1000," in said  # the smallest one
    assert "--hypothesis-seed=7" in said and "@reproduce_failure" in said
    kept = (tmp_path / "kept" / "test_fuzz_planted-7.txt").read_text()
    assert "assert n < 1000" in kept


@pytest.mark.processes
def test_a_crash_is_told_with_its_example(tmp_path: Path) -> None:
    body = "\n    ".join(["if n > 1000:", "    os.kill(os.getpid(), signal.SIGSEGV)"])
    code, said = tool(tmp_path, body, lambda code, said: "test_planted dies of" in said, minutes=0.4)
    assert code == 1 and "test_planted dies of SIGSEGV with seed 7" in said, said
    example = (tmp_path / "kept" / "test_fuzz_planted-7-again.txt").read_text()
    assert int(re.search(r"n=(\d+)", example)[1]) > 1000  # type: ignore[index]
    assert f"n={re.search(r'n=([0-9]+)', example)[1]}," in said  # type: ignore[index]


@pytest.mark.processes
def test_a_hang_is_told_with_where_it_is(tmp_path: Path) -> None:
    hangs = re.compile("test_planted runs for more than [0-9]+ s")
    code, said = tool(tmp_path, "time.sleep(1000)", lambda _, said: hangs.search(said), minutes=0.2, limit=5)
    assert code == 1 and hangs.search(said), said
    assert "in test_planted" in (tmp_path / "kept" / "test_fuzz_planted-7.txt").read_text()  # faulthandler's


@pytest.mark.processes
def test_fewer_examples_than_promised_fail(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "assume(n < 0)", lambda _, said: "test_planted fails" in said, minutes=0.1)
    assert code == 1 and "test_planted fails with seed 7" in said, said
    fewer = re.compile(r"expected 200 examples, got \d+")
    code, said = tool(tmp_path, "assume(n < 20)", lambda _, said: fewer.search(said), minutes=0.1)
    assert code == 1 and fewer.search(said), said


@pytest.mark.processes
def test_nothing_that_ran_is_not_clean(tmp_path: Path) -> None:
    body, only = "import pytest; pytest.skip('no')", ("--", "-k", "test_planted")
    code, said = tool(tmp_path, body, lambda code, _: code == 1, *only, minutes=0.1)
    assert code == 1 and "result: 0 examples" in said


@pytest.mark.processes
def test_ctrl_c_ends_it_with_what_was_found(tmp_path: Path) -> None:
    drawn = tmp_path / "drawn"
    body = f"time.sleep(0.01)\n    with open({str(drawn)!r}, 'a') as file: file.write('.')"
    process = start(tmp_path, body, "--minutes", "60", "--more", "100000")
    until(lambda: drawn.exists() and drawn.stat().st_size > 50, "50 examples", child=process)
    os.kill(process.pid, signal.SIGINT)
    said, _ = finish(process)
    assert "stopping" in said, said
    assert int(re.search(r"result: ([\d,]+) examples", said)[1].replace(",", "")) > 20  # type: ignore[index]
