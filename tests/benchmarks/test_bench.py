"""The benchmark: selection of rows, checks before timing, report and file. No test asserts a time."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from children import REPOSITORY, execute

import sinpe_ext as sinpe
from benchmarks import cases, report, run, small, timing
from benchmarks.__main__ import main, parser
from benchmarks.cases import Calls, Place, Row
from benchmarks.rows import ROWS

CPU = Place(torch.device("cpu"))
ROW = {row.name: row for row in ROWS}
SMALLER = {"shape": (2, 16, 64), "length": 128, "dim": 64, "count": 200}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-5)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(cases, "VOCABULARY", 64)


def options(line: str) -> argparse.Namespace:
    return parser().parse_args(line.split())


def test_plan() -> None:
    """Everything, or rows by name, once for each number of threads; a complete run is stored with the results."""
    for words, complete in (("", True), ("--quick", False), ("--best", False), ("--threads 1", True)):
        plan = run.plan(options(f"{words} --device cpu"))
        assert plan.rows and plan.processes and plan.complete is complete
        assert all(row.device == "cpu" for row, _ in plan.rows)
        assert any(entry.slow for entry in (*plan.processes, *(row for row, _ in plan.rows))) is (words != "--quick")
    plan = run.plan(options("--rows table,decode,import --threads 3,1"))
    assert [(row.name, count) for row, count in plan.rows] == [("table", 1), ("table", 3), ("decode", 1)]
    assert [entry.name for entry in plan.processes] == ["import"] and plan.several and not plan.complete


def test_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ("--threads 0", "threads: expected numbers from 1"),
        ("--threads 1,two", "threads: expected numbers from 1"),
        ("-o /nowhere/x.json", "json: expected a file in a folder that exists"),
        ("-o x.svg", "json: expected a folder, or a file whose name ends in .json, got x.svg"),
        ("--rows nonsense", "rows: expected some of table,"),
    ):
        assert main(words.split()) == 2 and message in capsys.readouterr().err
    with sinpe.use_backend("eager"):
        assert main(["--quick", "--rows", "table"]) == 1
    assert "sinpe_ext: expected the compiled backend, got eager" in capsys.readouterr().err


def smaller(build: Any) -> Any:
    """A row's builder with small shapes in place of its own."""
    if not isinstance(build, partial):
        return build
    names = inspect.signature(build.func).parameters
    given = {name: value for name, value in SMALLER.items() if name in names}
    if build.func is cases.add_image:
        given["shape"] = (2, 3, 5, 64)
    if "encoding" in build.keywords:
        given["encoding"] = build.keywords["encoding"].replace(dim=64)
    return partial(build.func, *map(smaller, build.args), **{**build.keywords, **given})


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.device == "cpu" and "train_step" not in row.name])
def test_row_is_checked_before_it_is_timed(name: str) -> None:
    row = replace(ROW[name], build=smaller(ROW[name].build))
    result = run.measure(row, CPU, 1)
    assert "error" not in result, result["error"]
    assert not result["peer_errors"] and [p["name"] for p in result["peers"]] == list(row.peers)
    assert ("ratio" in result) == bool(row.floor) and (result.get("met") is None) == (row.target is None)


@pytest.mark.parametrize("name", ["table", "encode", "embed", "dropout", "layout_heads", "grid_add", "host_add"])
def test_wrong_result_is_not_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = name if name in ("table", "encode", "embed") else "add"
    right = getattr(sinpe, function)
    monkeypatch.setattr(sinpe, function, lambda *args, **named: right(*args, **named) + 0.25)
    entry = run.measure(replace(ROW[name], build=smaller(ROW[name].build)), CPU, 1)
    assert entry["error"].startswith("AssertionError: ") and "ours_ms" not in entry


def test_other_wrong_results_are_not_timed() -> None:
    total, x = torch.randn(1000, 1000).double(), torch.randn(8, 64)
    with pytest.raises(AssertionError, match="expected a share of 0.1 dropped, got 0"):
        cases.close_dropout(torch.where(torch.rand(total.shape) < 0.2, 0, total * cases.KEPT_SCALE).float(), total)
    small.agree(x, x, False)
    for ours, dropout in ((x + 0.01, False), (x * 1.01, True), (torch.zeros_like(x), True)):
        with pytest.raises(AssertionError, match="expected"):
            small.agree(ours, x, dropout)


def test_measured_row() -> None:
    """With the requested threads. A peer that fails is reported, and the bytes moved are those per second."""
    seen = []

    def fail() -> None:
        raise RuntimeError("no triton\nlong story")

    ours = Calls(lambda: seen.append(torch.get_num_threads()), lambda: None, {"torch.compile": fail}, moved=10**6)
    row = Row("r", "the row", lambda place: ours, "f", peers={"torch.compile": None}, device="cuda")
    before = torch.get_num_threads()
    entry = run.measure(row, CPU, 1, threads=1)
    assert entry["threads"] == 1 and set(seen) == {1} and torch.get_num_threads() == before
    assert entry["peer_errors"] == {"torch.compile": "RuntimeError: no triton"} and entry["peers"] == []
    assert entry["gigabytes_per_second"] == pytest.approx(1 / entry["ours_ms"])
    assert report.timed([entry])[1][-1] == "torch.compile cannot run here: RuntimeError: no triton"


def test_warm_up_and_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Falling times are reported; a drift that two subjects share cancels."""
    now, seconds = [0.0], iter(2.0 ** (20 - k) for k in range(99))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    never: list[str] = []
    calls = {"falling": lambda: now.__setitem__(0, now[0] + next(seconds))}
    timing.interleaved(calls, rounds=1, unsteady=never.append)
    assert never == ["falling"]
    samples = {"ours": [1.0, 2.0, 4.0, 9.0], "floor": [1.0, 2.0, 2.0, 3.0], "slow": [30.0]}
    ratios = [timing.ratio(samples, *names) for names in (("ours", "floor"), ("slow", "ours"))]
    assert ratios == [1.5, 10.0] and timing.ratio(samples, "ours", "floor", best=True) == 1.0
    steady, falling = [1.0, 1.1] * 8, [1.2] * 8 + [1.0] * 8
    assert timing.drifting({"steady": steady, "falling": falling, "small": [9.0, 1.0]}) == ["falling"]
    assert [timing.spread(x) for x in ([3.0], [1.0, 2, 3, 4, 5])] == [0.0, pytest.approx(0.6667)]


def test_report_and_file(tmp_path: Path) -> None:
    """Targets that were missed; a file with a line for each row, six significant digits, without what is empty."""
    peer = {"name": "eager", "ratio": 0.9, "target": 1.0, "met": False}
    row = {"title": "add", "floor": "x.clone()", "ratio": 1.2, "target": 1.1, "met": False, "peers": [peer]}
    fine = {"title": "fine", "floor": "x.clone()", "ratio": 1.0, "target": 1.1, "met": True, "peers": []}
    import_time = {"title": "import", "value": 60.0, "unit": "ms", "target": 50.0, "met": False}
    results: dict[str, Any] = {"rows": [row, fine, {"title": "no promise", "met": None}], "processes": [import_time]}
    said = report.missed(results)
    assert "targets missed, 3 of 4:\n  add: 1.20 x x.clone(), target <= 1.1\n  add: eager takes 0.90 x ours" in said
    assert said.endswith("\n  import: 60.0 ms, target <= 50")
    assert report.missed({"rows": [fine], "processes": []}).strip() == "targets: all 1 met"
    entry = {"name": "add", "ours_ms": 1.23456789, "met": None, "peer_errors": {}, "peers": [{"ratio": 12345.6}]}
    path = tmp_path / "new" / "result.json"
    for rows in ([], [entry, entry]):  # after each row
        report.write(path, {"machine": {"cores": 2}, "rows": rows, "processes": [], "cuda": None})
    lines = path.read_text().splitlines()
    assert lines[3] == '  {"name": "add", "ours_ms": 1.23457, "peers": [{"ratio": 12345.6}]},' and len(lines) == 8
    assert "cuda" not in json.loads(path.read_text()) and len(list(path.parent.iterdir())) == 1


@pytest.mark.processes
def test_program(tmp_path: Path) -> None:
    """And the rows that use examples/train_language_model.py."""
    assert run.measure(ROW["train_step"], CPU, 1, threads=1)["ours_ms"] > 0
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rows", "timesteps,memory_add_", "--threads", "1,2"]
    done = execute([*command, "--json", tmp_path / "result.json"], cwd=REPOSITORY)
    assert "encode 8 timesteps x 320, 2 threads" in done.stdout and done.stderr.count("... ") == 3
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"cpu", "cores", "threads", "torch", "python", "commit", "date", "backend"} <= set(result["machine"])
    one, two = result["rows"]
    assert (one["threads"], two["threads"]) == (1, 2) and one["ours_ms"] > 0
    assert one["peers"][0]["name"] == "diffusers" and result["processes"][0]["value"] < 64
    assert f"sinpe_ext {result['machine']['sinpe_ext']} of {REPOSITORY / 'sinpe_ext'}, compiled" in done.stdout
