"""The CUDA benchmark without a GPU: each row's calls and checks on the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from children import REPOSITORY, execute

from benchmarks import cuda as cuda_run
from benchmarks import cuda_cases, one_row, run
from benchmarks.cases import Row, Subjects
from benchmarks.cuda import ROWS
from benchmarks.cuda_cases import Place
from sinpe_ext.cli import timing

SMALL = Place(torch.device("cpu"), 2**14)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_cases, "VOCABULARY", 64)
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_is_checked_before_it_is_timed(row: Row) -> None:
    result = run.measure(replace(row, build=partial(row.build, SMALL)), rounds=1)
    assert "error" not in result, result["error"]
    assert not result["peer_errors"] and [p["name"] for p in result["peers"]] == list(row.peers)
    assert result["gigabytes_per_second"] > 0 and (result["met"] is None) == (row.target is None)


def test_call_that_is_profiled() -> None:
    one_row.main("cuda_table_f32", SMALL)


@pytest.mark.processes
def test_calls_that_are_sanitized() -> None:
    """Each kernel of benchmarks/sanitizer_subset.py, here the CPU's."""
    done = execute([sys.executable, "benchmarks/sanitizer_subset.py", "cpu"], cwd=REPOSITORY)
    assert done.stdout.endswith("12 rounds done on cpu\n")


def test_wrong_result_is_not_timed() -> None:
    def wrong() -> None:
        raise AssertionError("add: expected values within 1e-07")

    row = Row("wrong", "wrong", lambda: Subjects(lambda: None, lambda: None, check=wrong), "", 0.9)
    assert run.measure(row, 1)["error"] == "AssertionError: add: expected values within 1e-07"


@pytest.mark.processes
def test_command_without_cuda_kernels_fails() -> None:
    if not cuda_run.missing():
        pytest.skip("there is a CUDA device with kernels")
    for named in (["--device", "cuda"], ["--rows", "cuda_add_f32"]):
        command = [sys.executable, "-m", "benchmarks", "--quick", *named]
        done = execute(command, status=1, cwd=REPOSITORY)
        assert "device: expected CUDA kernels, got none: " in done.stderr
