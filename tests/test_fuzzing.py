"""How many examples the suite draws, and that tools/fuzz.py tells of what it finds: planted faults of every kind."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import fuzzing
import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
TOOL = ROOT / "tools" / "fuzz.py"
LEAST = 2000

PLANTED = """
import os, signal, time
from fuzzing import fuzz, machine
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

@pytest.mark.processes
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


@pytest.mark.processes
def test_the_suite_draws_enough_examples() -> None:
    """That each test draws what it promises is checked after it, in fuzzing.py."""
    for path in (TESTS / "test_parity.py", *TESTS.glob("test_fuzz_*.py")):
        importlib.import_module(path.stem)
    total = sum(fuzzing.PROMISED.values())
    assert total >= LEAST
    page = ROOT / "docs" / "reliability.md"
    assert f"{total:,} examples" in page.read_text(encoding="utf-8"), f"{page.name}: the suite draws {total:,} examples"


def write(folder: Path, body: str) -> Path:
    file = folder / "test_fuzz_planted.py"
    file.write_text(PLANTED.format(body=body))
    return file


def start(folder: Path, body: str, *options: str) -> subprocess.Popen[str]:
    if not TOOL.is_file():
        pytest.skip("tools/ is part of the repository alone")
    command = [sys.executable, str(TOOL), "--files", str(write(folder, body)), "--folder", str(folder / "kept")]
    command += ["--jobs", "1", "--seed", "7", *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)


def tool(folder: Path, body: str, *options: str) -> tuple[int, str]:
    process = start(folder, body, *(options or ("--minutes", "0.05")))
    said, _ = process.communicate(timeout=120)
    return process.returncode, said


def result(said: str) -> str:
    last = said.rstrip().splitlines()[-1]
    assert last.startswith("result: "), said
    return last


@pytest.mark.processes
def test_a_clean_run(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "assert n >= 0", "--minutes", "0.15", "--more", "3")
    assert code == 0 and ", 0 failures, seeds 7 to " in result(said), said
    total = int(re.search(r"result: ([\d,]+) examples of 2 tests", said)[1].replace(",", ""))  # type: ignore[index]
    assert total >= (40 + 5) * 3
    assert [path.name for path in (tmp_path / "kept").iterdir() if path.suffix == ".txt"] == []


@pytest.mark.processes
def test_a_failing_property_is_told_with_its_example(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "assert n < 1000", "--minutes", "0.15")
    assert code == 1 and "0 failures" not in result(said)
    assert "test_planted fails with seed 7" in said and "n=1000," in said  # the smallest one
    assert "--hypothesis-seed=7" in said and "@reproduce_failure" in said
    kept = (tmp_path / "kept" / "test_fuzz_planted-7.txt").read_text()
    assert "assert n < 1000" in kept


@pytest.mark.processes
def test_a_crash_is_told_with_its_example(tmp_path: Path) -> None:
    body = "\n    ".join(["if n > 1000:", "    os.kill(os.getpid(), signal.SIGSEGV)"])
    code, said = tool(tmp_path, body, "--minutes", "0.4")
    assert code == 1 and "test_planted dies of SIGSEGV with seed 7" in said, said
    example = (tmp_path / "kept" / "test_fuzz_planted-7-again.txt").read_text()
    assert int(re.search(r"n=(\d+)", example)[1]) > 1000  # type: ignore[index]
    assert f"n={re.search(r'n=([0-9]+)', example)[1]}," in said  # type: ignore[index]


@pytest.mark.processes
def test_a_hang_is_told_with_where_it_is(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "time.sleep(1000)", "--minutes", "0.2", "--limit", "5")
    assert code == 1 and "test_planted runs for more than 5 s" in said, said
    assert "in test_planted" in (tmp_path / "kept" / "test_fuzz_planted-7.txt").read_text()  # faulthandler's


@pytest.mark.processes
def test_fewer_examples_than_promised_fail(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "assume(n < 0)", "--minutes", "0.1")
    assert code == 1 and "test_planted fails with seed 7" in said, said
    code, said = tool(tmp_path, "assume(n < 20)", "--minutes", "0.1")
    assert code == 1 and re.search(r"expected 200 examples, got \d+", said), said


@pytest.mark.processes
def test_nothing_that_ran_is_not_clean(tmp_path: Path) -> None:
    code, said = tool(tmp_path, "import pytest; pytest.skip('no')", "--minutes", "0.1", "--", "-k", "test_planted")
    assert code == 1 and "result: 0 examples" in said


@pytest.mark.processes
def test_ctrl_c_ends_it_with_what_was_found(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(0.01)", "--minutes", "60", "--more", "100000")
    time.sleep(5)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopping" in said, said
    assert int(re.search(r"result: ([\d,]+) examples", said)[1].replace(",", "")) > 20  # type: ignore[index]
