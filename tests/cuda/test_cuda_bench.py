"""The CUDA benchmark without a GPU: each row's calls and checks on the CPU."""

from __future__ import annotations

import sys

import pytest
import torch
from children import REPOSITORY, execute

from benchmarks import cases, machine, one_row, report, rows, run, timing
from benchmarks.cases import Calls, Place, Row

# timesteps_many: as timesteps, of more
ROWS = [row for row in rows.ROWS if row.device == "cuda" and not row.name.startswith("cuda_timesteps_many")]
SMALL = Place(torch.device("cpu"), 2**14)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "VOCABULARY", 64)
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_is_checked_before_it_is_timed(row: Row) -> None:
    result = run.measure(row, SMALL, rounds=1)
    assert "error" not in result, result["error"]
    assert not result["peer_errors"] and [p["name"] for p in result["peers"]] == list(row.peers)
    assert ("gigabytes_per_second" in result) != row.host and (result["met"] is None) == (row.target is None)


@pytest.mark.parametrize(
    ("device", "host", "wall"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_row_whose_figures_are_those_of_the_device(
    device: str, host: bool, wall: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    samples = {"floor": [1e-3], "ours": [3e-3], "peer:eager": [6e-3]}
    monkeypatch.setattr(run, "device_samples", lambda calls, rounds: samples)
    calls = Calls(lambda: None, lambda: None, {"eager": lambda: None}, moved=10**9)
    row = Row("r", "r", lambda place: calls, "copy", 1.1, {"eager": None}, device=device, host=host)
    found = run.measure(row, SMALL, 1)
    assert ("wall_ms" in found) is wall
    if wall:
        assert (found["ours_ms"], found["ratio"], found["peers"][0]["ratio"], found["met"]) == (3.0, 3.0, 2.0, False)
        assert found["wall_ms"].keys() == {"floor", "ours", "eager"} == found["spread"].keys()
        assert report.timed([found])[1][1].startswith("3.000 (333 GB/s), wall ")


def test_call_that_is_profiled() -> None:
    one_row.main("cuda_table_f32", SMALL)


@pytest.mark.processes
def test_calls_that_are_sanitized() -> None:
    """Each kernel of benchmarks/sanitizer_subset.py, here the CPU's."""
    done = execute([sys.executable, "benchmarks/sanitizer_subset.py", "cpu"], cwd=REPOSITORY)
    assert done.stdout.endswith("12 rounds done on cpu\n")


@pytest.mark.processes
def test_command_without_cuda_kernels_fails() -> None:
    if not machine.no_cuda():
        pytest.skip("there is a CUDA device with kernels")
    for named in (["--device", "cuda"], ["--rows", "cuda_add_f32"]):
        command = [sys.executable, "-m", "benchmarks", "--quick", *named]
        done = execute(command, status=1, cwd=REPOSITORY)
        assert "device: expected CUDA kernels, got none: " in done.stderr
