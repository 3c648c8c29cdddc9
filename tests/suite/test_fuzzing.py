"""The number of hypothesis examples in the suite, and detection of failing tests with the profile `long`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import fuzzing
import pytest
from children import environment, execute

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
LEAST = 2000

PLANTED = """
import os, signal
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


def test_suite_draws_enough_examples() -> None:
    """fuzzing.py checks after each test that it drew its examples."""
    for path in (TESTS / "reference" / "test_parity.py", *TESTS.rglob("test_fuzz_*.py")):
        importlib.import_module(path.stem)
    total = sum(fuzzing.PROMISED.values())
    assert total >= LEAST
    page = ROOT / "docs" / "reliability.md"
    assert f"{total:,} examples" in page.read_text(encoding="utf-8"), f"{page.name}: the suite draws {total:,} examples"


OPTIONS = "-p conftest -p no:cacheprovider -m hypothesis --hypothesis-profile=long"


def run(folder: Path, body: str, *options: str, status: int = 0) -> str:
    """pytest's output for these tests with the profile `long`."""
    (folder / "test_planted.py").write_text(PLANTED.format(body=body))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(folder),
        str(folder),
    ]
    settings = environment(PYTHONPATH=str(TESTS))
    return execute([*command, *OPTIONS.split(), *options], cwd=folder, env=settings, status=status, merged=True).stdout


@pytest.mark.processes
def test_passing_run_draws_new_examples(tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'drawn')!r}, 'a').write(f'{{n}}\\n')"
    seeds, drawn = set(), []
    for _ in range(2):
        said = run(tmp_path, body)
        assert "2 passed" in said
        found = re.search(r"hypothesis: 9\d\d examples of 2 tests, seed (\d+)", said)
        assert found, said
        seeds.add(found[1])
        drawn.append((tmp_path / "drawn").read_text())
        (tmp_path / "drawn").unlink()
    assert len(seeds) == 2 and drawn[0] != drawn[1]
    run(tmp_path, body, f"--hypothesis-seed={found[1]}")
    assert (tmp_path / "drawn").read_text() == drawn[1]


@pytest.mark.processes
def test_failing_property_is_reported_with_its_example(tmp_path: Path) -> None:
    said = run(tmp_path, "assert n < 1000", status=1)
    assert "test_planted" in said and "n=1000," in said and "@reproduce_failure" in said  # the smallest one


@pytest.mark.processes
def test_crash_is_reported_with_test_and_example(tmp_path: Path) -> None:
    body = "\n    ".join(["if n > 1000:", "    os.kill(os.getpid(), signal.SIGSEGV)"])
    said = run(tmp_path, body, "--numprocesses=1", status=1)
    assert re.search(r"worker 'gw\d' crashed while running .*test_planted", said), said
    seed = re.search(r"--hypothesis-seed=(\d+)", said)
    assert seed, said
    again = run(tmp_path, body, "-s", seed[0], "--hypothesis-verbosity=verbose", "-k", "planted", status=-11)
    example = re.findall(r"n=(\d+)", again)[-1]  # the last one tried
    assert int(example) > 1000


@pytest.mark.processes
def test_too_few_examples_fail(tmp_path: Path) -> None:
    said = run(tmp_path, "assume(n < 20)", status=1)
    assert re.search(r"expected 800 examples, got \d+|Unsatisfiable", said), said
