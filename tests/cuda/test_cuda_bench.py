"""The CUDA benchmark without a GPU: each row's calls and checks on the CPU, and the report."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from children import REPOSITORY, execute

from benchmarks import cuda as cuda_run
from benchmarks import cuda_cases, run
from benchmarks.cuda import ROWS
from benchmarks.cuda_cases import CudaRow, Place, Work
from benchmarks.progress import Progress

SMALL = Place(torch.device("cpu"), 2**14)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_cases, "VOCABULARY", 64)
    monkeypatch.setattr(cuda_run, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(torch, "compile", lambda function: function)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row_is_checked_before_it_is_timed(row: CudaRow) -> None:
    result = cuda_run.measure(row, SMALL, rounds=1)
    assert "error" not in result, result["error"]
    assert not result["peer_errors"] and [p["name"] for p in result["peers"]] == list(row.peers)
    assert result["gigabytes_a_second"] > 0 and (result["met"] is None) == (row.fraction is row.most is None)


def test_wrong_result_is_not_timed() -> None:
    def wrong() -> None:
        raise AssertionError("add: expected values within 1e-07")

    nothing = lambda: None  # noqa: E731
    row = CudaRow("wrong", "wrong", lambda place: Work(nothing, nothing, 1, {}, wrong), "", 0.9)
    assert cuda_run.measure(row, SMALL, 1)["error"] == "AssertionError: add: expected values within 1e-07"


def entry(**named: Any) -> dict[str, Any]:
    return {
        "title": "add f32", "floor": "y.copy_(x)", "floor_ms": 0.25, "ours_ms": 0.26, "gigabytes_a_second": 4100.0,
        "fraction": 0.96, "fraction_target": 0.95, "ratio_target": None, "met": True, "peer_errors": {}, "peers": [],
        **named,
    }  # fmt: skip


def test_report() -> None:
    peers = [{"name": "eager", "ms": 0.2, "ratio": 0.77, "target": 1.0, "met": False}]
    rows = [
        entry(peers=peers),
        entry(title="step", fraction=0.5, fraction_target=None, ratio_target=1.2, met=False),
        entry(title="none", met=None, fraction_target=None, peer_errors={"torch.compile": "no triton"}),
        {"title": "broken", "error": "RuntimeError: no"},
        entry(title="roofline: copy f32", floor_gigabytes_a_second=4321.0),
    ]
    facts = {"device": "a card", "capability": "9.0", "cuda": "13.0", "how": "jit", "arithmetic": "double"}
    text = cuda_run.report({"facts": facts, "rows": rows})
    lines = text.splitlines()
    assert "96 %" in text and ">= 0.95 met" in text and ">= 1    MISSED" in text
    assert "what torch's own calls reach, floors of the rows below: copy f32 4321 GB/s" in lines
    assert any("step" in line and "2.00x" in line and "<= 1.2  MISSED" in line for line in lines)
    assert "none: torch.compile cannot run here, no triton" in lines and "broken: FAILED, RuntimeError: no" in lines


def test_rows_are_printed_as_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**30))
    monkeypatch.setattr(cuda_run, "facts", lambda device: {"device": "a card"})
    monkeypatch.setattr(cuda_run, "measure", lambda row, place, rounds: entry(title=row.title))
    log, kept = io.StringIO(), []
    rows = cuda_run.chosen([ROWS[2].name, ROWS[0].name])
    with Progress(len(rows), log) as progress:
        found = cuda_run.run(rows, 1, progress, lambda measured: kept.append(len(measured["rows"])))
    assert [row["title"] for row in found["rows"]] == [ROWS[0].title, ROWS[2].title] and kept == [1, 2]
    assert log.getvalue().splitlines()[2:] == [f"... {ROWS[2].title}", "    0.2600 ms, 96 % of y.copy_(x), met"]


@pytest.mark.processes
def test_command_without_cuda_kernels_fails() -> None:
    if not cuda_run.missing():
        pytest.skip("there is a CUDA device with kernels")
    for named in (["--device", "cuda"], ["--rows", "cuda_add_f32"]):
        command = [sys.executable, "-m", "benchmarks", "--quick", *named]
        done = execute(command, status=1, cwd=REPOSITORY)
        assert "device: expected CUDA kernels, got none: " in done.stderr


def test_interrupted_run_keeps_its_results(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    run.write(path, {"cuda": {"rows": [1]}})
    run.write(path, {"cuda": {"rows": [1, 2]}})
    assert json.loads(path.read_text()) == {"cuda": {"rows": [1, 2]}} and len(list(path.parent.iterdir())) == 1
    assert cuda_run.brief({"error": "RuntimeError: no"}) == "FAILED, RuntimeError: no"
    peers = [{"name": "eager", "ratio": 0.77}]
    assert cuda_run.brief(entry(peers=peers)) == "0.2600 ms, 96 % of y.copy_(x), met, eager 0.77x"
