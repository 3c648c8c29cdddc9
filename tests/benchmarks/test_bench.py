"""The benchmark: selection of rows, checks before timing, progress, report and file. No test asserts a time."""

from __future__ import annotations

import argparse
import inspect
import io
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
from benchmarks import cases, process, report, run, small, timing
from benchmarks.__main__ import main, parser
from benchmarks.cases import Calls, Place, Row
from benchmarks.rows import ROWS

CPU = Place(torch.device("cpu"))
ROW = {row.name: row for row in ROWS}
SMALLER = {"shape": (2, 16, 64), "length": 128, "dim": 64, "count": 200}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-5)


def options(*words: str) -> argparse.Namespace:
    return parser().parse_args([*words])


@pytest.mark.parametrize(
    ("words", "complete"), [((), True), (("--quick",), False), (("--best",), False), (("--threads", "1"), True)]
)
def test_plan_of_everything(words: tuple[str, ...], complete: bool) -> None:
    plan = run.plan(options(*words, "--device", "cpu"))
    assert plan.rows and plan.processes and plan.complete is complete
    assert all(row.device == "cpu" for row, _ in plan.rows)
    assert any(entry.slow for entry in (*plan.processes, *(row for row, _ in plan.rows))) is ("--quick" not in words)


def test_plan_of_threads() -> None:
    plan = run.plan(options("--rows", "table,decode,import", "--threads", "3,1"))
    assert [(row.name, count) for row, count in plan.rows] == [("table", 1), ("table", 3), ("decode", 1)]
    assert [entry.name for entry in plan.processes] == ["import"] and plan.several and not plan.complete


def test_names_are_unique() -> None:
    assert len(ROW) == len(ROWS) and not ROW.keys() & {entry.name for entry in process.PROCESSES}


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


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.device == "cpu"])
def test_row_is_checked_before_it_is_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("train_step"):
        pytest.skip("test_training_step_of_the_example")
    monkeypatch.setattr(cases, "VOCABULARY", 64)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    row = replace(ROW[name], build=smaller(ROW[name].build))
    result = run.measure(row, CPU, 1)
    assert "error" not in result, result["error"]
    assert not result["peer_errors"] and [p["name"] for p in result["peers"]] == list(row.peers)
    assert ("ratio" in result) == bool(row.floor) and (result.get("met") is None) == (row.target is None)


WRONG = {"table": "table", "encode": "encode", "timesteps": "encode", "embed": "embed", "add": "add", "dropout": "add"}
WRONG |= {"layout_heads": "add", "layout_heads_dropout": "add", "grid_add": "add", "host_add": "add"}


@pytest.mark.parametrize(("name", "function"), WRONG.items())
def test_wrong_result_is_not_timed(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(sinpe, function)
    monkeypatch.setattr(sinpe, function, lambda *args, **named: right(*args, **named) + 0.25, raising=False)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    entry = run.measure(replace(ROW[name], build=smaller(ROW[name].build)), CPU, 1)
    assert entry["error"].startswith("AssertionError: ") and "ours_ms" not in entry


def test_dropout_of_another_probability_is_not_timed() -> None:
    total = torch.randn(1000, 1000).double()
    with pytest.raises(AssertionError, match="expected a share of 0.1 dropped, got 0"):
        cases.close_dropout(torch.where(torch.rand(total.shape) < 0.2, 0, total * cases.KEPT_SCALE).float(), total)


def test_results_of_small_rows_are_compared() -> None:
    x = torch.randn(8, 64)
    small.agree(x, x, False)
    for ours, dropout in ((x + 0.01, False), (x * 1.01, True), (torch.zeros_like(x), True)):
        with pytest.raises(AssertionError, match="expected"):
            small.agree(ours, x, dropout)


def test_row_uses_the_requested_threads() -> None:
    seen = []
    row = Row("r", "r", lambda place: Calls(lambda: seen.append(torch.get_num_threads())))
    before = torch.get_num_threads()
    assert run.measure(row, CPU, 1, threads=1)["threads"] == 1
    assert set(seen) == {1} and torch.get_num_threads() == before


def test_peer_that_fails_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("no triton\nlong story")

    calls = Calls(lambda: None, lambda: None, {"torch.compile": fail}, moved=10**6)
    entry = run.measure(
        Row("r", "the row", lambda place: calls, "f", peers={"torch.compile": None}, device="cuda"), CPU, 1
    )
    assert entry["peer_errors"] == {"torch.compile": "RuntimeError: no triton"} and entry["peers"] == []
    assert entry["gigabytes_per_second"] == pytest.approx(1 / entry["ours_ms"])
    assert report.timed([entry])[1][-1] == "torch.compile cannot run here: RuntimeError: no triton"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threads", "0"], "threads: expected numbers from 1"),
        (["--threads", "1,two"], "threads: expected numbers from 1"),
        (["-o", "/nowhere/x.json"], "json: expected a file in a folder that exists"),
        (["-o", "x.svg"], "json: expected a folder, or a file whose name ends in .json, got x.svg"),
        (["--rows", "nonsense"], "rows: expected some of table,"),
    ],
)
def test_bad_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words]) == 2
    assert message in capsys.readouterr().err


def test_missed_targets() -> None:
    peer = {"name": "eager", "ratio": 0.9, "target": 1.0, "met": False}
    row = {"title": "add", "floor": "x.clone()", "ratio": 1.2, "target": 1.1, "met": False, "peers": [peer]}
    fine = {"title": "fine", "floor": "x.clone()", "ratio": 1.0, "target": 1.1, "met": True, "peers": []}
    import_time = {"title": "import", "value": 60.0, "unit": "ms", "target": 50.0, "met": False}
    results: dict[str, Any] = {"rows": [row, fine, {"title": "no promise", "met": None}], "processes": [import_time]}
    assert report.missed(results).splitlines() == [
        "",
        "targets missed, 3 of 4:",
        "  add: 1.20 x x.clone(), target <= 1.1",
        "  add: eager takes 0.90 x ours, target >= 1",
        "  import: 60.0 ms, target <= 50",
    ]
    assert report.missed({"rows": [fine], "processes": []}).strip() == "targets: all 1 met"
    assert report.missed({"rows": [], "processes": []}) == ""


def test_interrupted_run_keeps_its_results(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    report.write(path, {"rows": [1]})
    report.write(path, {"rows": [1, 2]})
    assert json.loads(path.read_text()) == {"rows": [1, 2]} and len(list(path.parent.iterdir())) == 1


def test_results_file_has_a_line_for_each_row() -> None:
    """Six significant digits; what is None or empty is left out."""
    entry = {"name": "add", "ours_ms": 1.23456789, "met": None, "peer_errors": {}, "peers": [{"ratio": 12345.6}]}
    text = report.written({"machine": {"cores": 2}, "rows": [entry, entry], "processes": [], "cuda": None})
    assert text.splitlines()[3] == '  {"name": "add", "ours_ms": 1.23457, "peers": [{"ratio": 12345.6}]},'
    assert len(text.splitlines()) == 8 and json.loads(text)["processes"] == [] and "cuda" not in json.loads(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "bar"), [(io.StringIO, True), (Terminal, True), (Terminal, False)])
def test_progress(stream: type[io.StringIO], bar: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on a terminal with tqdm, otherwise a line for each entry."""
    if bar:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    entries = [(ROW["table"], 1), process.PROCESSES[0]]
    assert list(run.progress([*entries])) == entries
    if stream is Terminal and bar:
        assert "0/2" in screen.getvalue() and "..." not in screen.getvalue()
    else:
        assert screen.getvalue() == f"... {ROW['table'].title}\n... {process.PROCESSES[0].title}\n"


def test_requires_compiled_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with sinpe.use_backend("eager"):
        assert main(["--quick", "--rows", "table"]) == 1
    assert "sinpe_ext: expected the compiled backend, got eager" in capsys.readouterr().err


@pytest.mark.processes
def test_training_step_of_the_example() -> None:
    """The rows that use examples/train_language_model.py."""
    assert run.measure(ROW["train_step"], CPU, 1, threads=1)["ours_ms"] > 0


@pytest.mark.processes
def test_rows_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rows", "timesteps,memory_add_", "--threads", "1,2"]
    done = execute([*command, "--json", tmp_path / "result.json"], cwd=REPOSITORY)
    assert "encode 8 timesteps x 320, 2 threads" in done.stdout and done.stderr.count("... ") == 3
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"cpu", "cores", "threads", "torch", "python", "commit", "date", "backend"} <= set(result["machine"])
    one, two = result["rows"]
    assert (one["threads"], two["threads"]) == (1, 2) and one["ours_ms"] > 0
    assert one["peers"][0]["name"] == "diffusers"
    assert result["processes"][0]["name"] == "memory_add_" and result["processes"][0]["value"] < 64
    assert f"sinpe_ext {result['machine']['sinpe_ext']} of {REPOSITORY / 'sinpe_ext'}, compiled" in done.stdout
