"""The benchmark: selection of rows, sizes, memory, progress and report. No test asserts a time."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from children import REPOSITORY, execute

import sinpe_ext as sinpe
from benchmarks import memory, report, results_file, run, sweep, timing
from benchmarks.__main__ import main, parser
from benchmarks.cases import Row, Subjects
from benchmarks.process import Skipped
from benchmarks.progress import Progress
from benchmarks.sweep import CASES, COMPILED, DTYPES, FLOOR, OURS, SIZES, Point

MIB = 2**20
CASE = {case.name: case for case in CASES}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 1e-5)


def options(*words: str) -> argparse.Namespace:
    return parser().parse_args([*words])


def kinds(plan: run.Plan) -> tuple[bool, bool, bool]:
    return bool(plan.rows), bool(plan.processes), bool(plan.points)


@pytest.mark.parametrize(
    ("words", "expected", "complete"),
    [
        ((), (True, True, True), True),
        (("--quick",), (True, True, False), False),
        (("--best",), (True, True, True), False),
        (("--sizes",), (False, False, True), False),
        (("--rows", "table"), (True, False, False), False),
        (("--rows", "table,import", "--sizes", "512"), (True, True, True), False),
    ],
)
def test_plan(words: tuple[str, ...], expected: tuple[bool, ...], complete: bool) -> None:
    plan = run.plan(options(*words, *(["--device", "cpu"] if not words else [])))
    assert kinds(plan) == expected and plan.complete is complete
    assert len(plan) == len(plan.rows) + len(plan.processes) + len(plan.points)
    assert len(plan.points) in (0, len(CASES) * len(DTYPES), len(CASES) * len(DTYPES) * len(SIZES))


def test_plan_of_threads() -> None:
    plan = run.plan(options("--rows", "table,decode", "--sizes", "512", "--threads", "3,1"))
    assert [(row.name, count) for row, count in plan.rows] == [("table", 1), ("table", 3), ("decode", 1)]
    assert {point.threads for point in plan.points} == {1, 3} and plan.several


def test_row_uses_the_requested_threads() -> None:
    seen = []
    row = Row("r", "r", lambda: Subjects(lambda: seen.append(torch.get_num_threads())), floor="")
    before = torch.get_num_threads()
    assert run.measure(row, 1, threads=1)["threads"] == 1
    assert set(seen) == {1} and torch.get_num_threads() == before


def test_peer_that_fails_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("no triton\nlong story")

    row = Row("r", "the row", lambda: Subjects(lambda: None, lambda: None, {"torch.compile": fail}, moved=10**6), "f")
    entry = run.measure(row, 1)
    assert entry["peer_errors"] == {"torch.compile": "RuntimeError: no triton"} and entry["peers"] == []
    assert entry["gigabytes_per_second"] == pytest.approx(1 / entry["ours_ms"])
    assert report.timed([entry])[1][-1] == "torch.compile cannot run here: RuntimeError: no triton"


def test_row_without_its_library_is_skipped() -> None:
    def build() -> Subjects:
        raise Skipped("timm is not installed: pip install timm")

    entry = run.measure(Row("r", "the row", build), 1)
    assert entry["skipped"] == "timm is not installed: pip install timm" and "error" not in entry
    assert report.timed([entry])[1][:2] == ("the row", "skipped: timm is not installed: pip install timm")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", SIZES), ("2^9", (512,)), ("2**20, 512,2^9", (512, 2**20)), ("1024", (1024,)), ("2^36", (2**36,))],
)
def test_sizes(text: str, expected: tuple[int, ...]) -> None:
    assert sweep.read_sizes(text) == expected


@pytest.mark.parametrize("text", ["256", "2^37", "513", "-512", "3^9", "2^", "big", "0"])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"^sizes: expected powers of two from 512 .* got "):
        sweep.read_sizes(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "100"], "sizes: expected powers of two"),
        (["--threads", "0"], "threads: expected numbers from 1"),
        (["--threads", "1,two"], "threads: expected numbers from 1"),
        (["--sizes", "--device", "cuda"], "sizes: they are measured on the CPU"),
        (["--rows", "table", "--plot", "a.png"], "plot: expected sizes to draw"),
        (["--sizes", "512", "--plot", "q.xyz"], 'got the format "xyz" in q.xyz; pass a .png'),
        (["--sizes", "512", "--plot", "/nowhere/q.png"], "plot: expected a file to write to in a folder that exists"),
        (["--sizes", "512", "--plot", "."], "plot: expected a file to write to, got the folder ."),
        (["--sizes", "512", "-o", "/nowhere/x.json"], "json: expected a file to write to in a folder that exists"),
        (["--sizes", "512", "-o", "x.json", "--plot", "x.json"], "plot: expected another file than the JSON's"),
        (["--sizes", "512", "-o", "x.svg"], "json: expected a folder, or a file whose name ends in .json, got x.svg"),
        (["--replot", "no_such.json"], "replot: expected a result of"),
    ],
)
def test_bad_usage(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] == "--replot" or "--plot" in words:
        pytest.importorskip("matplotlib")
    assert main([*words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", CASE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_points_are_checked_before_they_are_timed(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **named: function)
    monkeypatch.setattr(sweep, "LENGTH", 16)
    for elements in (2**9, 2**15):  # one row, and 64 of them, which are four sequences
        entry = sweep.measure(Point(CASE[name], dtype, 1, elements), 1)
        assert "error" not in entry, entry["error"]
        assert {FLOOR, OURS, COMPILED} < set(entry["ms"]) and all(ms > 0 for ms in entry["ms"].values())
        assert entry["ratio"] == pytest.approx(entry["ms"][OURS] / entry["ms"][FLOOR]) and "memory_mib" not in entry


def test_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep.sinpe, "table", lambda rows, encoding, dtype, out: out.fill_(0.5))
    entry = sweep.measure(Point(CASE["table"], "float32", 1, 512), 1, compile=False)
    assert entry["error"].startswith("AssertionError: ours: expected values within") and "ms" not in entry


def test_compilation_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*inputs: Any) -> None:
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(torch, "compile", lambda function, **named: fail)
    entry = sweep.measure(Point(CASE["add_out"], "float32", 1, 512), 1)
    assert entry["peer_errors"] == {COMPILED: "RuntimeError: no C++ compiler"} and COMPILED not in entry["ms"]
    assert "2^9 elements: torch.compile cannot run here, RuntimeError: no C++ compiler" in report.report_sizes([entry])


def test_sizes_beyond_memory_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 3 * 2**30)
    entry = sweep.measure(Point(CASE["add_out"], "float32", 1, 2**29), 1)
    assert entry["skipped"] == "takes about 4.5 GiB, 3.0 are available"
    assert "skipped: takes about 4.5 GiB" in report.report_sizes([entry])


def test_available_memory() -> None:
    there = memory.available()
    assert there is None or 2**20 < there < 2**50


def test_memory_of_a_call() -> None:
    kept = torch.zeros(48 * MIB, dtype=torch.uint8)
    if memory.beyond(lambda: kept, [kept]) is None:
        pytest.skip("the peak cannot be measured on this system")
    measured = [
        memory.beyond(call, [kept])
        for call in (lambda: kept.add_(1), lambda: kept + 1, lambda: (kept + 1) + 1, lambda: kept.view(-1))
    ]
    assert [round(each / MIB / 48) for each in measured if each is not None] == [0, 0, 1, 0]


def point(elements: int, floor: float, ours: float, **named: Any) -> dict[str, Any]:
    entry = {"case": "table", "title": "table, out=", "floor": "out.fill_(1)", "dtype": "float32", "threads": 2}
    ms = {"floor": floor, "ours": ours, "naive float32 formula": 9 * ours}
    return {**entry, "elements": elements, "ms": ms, "ratio": ours / floor, "peer_errors": {}, **named}


def test_flatness() -> None:
    sizes = [point(2**9, 1, 50), point(2**24, 1, 1.5), point(2**26, 10, 11), point(2**28, 100, 100)]
    (line,) = report.flatness(sizes)
    assert (line["least"], line["most"], line["factor"], line["met"]) == (1.0, 1.5, 1.5, False)
    assert report.flatness(sizes[:2]) == []
    assert report.flatness([{**entry, "dtype": "bfloat16"} for entry in sizes])[0]["met"] is None


def test_report_of_sizes() -> None:
    sizes = [
        point(2**24, 2**24 / 1e6, 2**25 / 1e6),
        point(2**26, 1.0, 1.0, memory_mib={"floor": 0.0, "ours": 0.0, "naive float32 formula": 63.9}),
        {**point(2**28, 1, 1), "error": "RuntimeError: no"},
    ]
    del sizes[2]["ms"]
    text = report.report_sizes(sizes).splitlines()
    assert text[1] == "2 threads, nanoseconds per element:"
    assert text[2].split("  ")[0] == "table, out= float32, elements" and text[2].endswith("ours / floor  MiB")
    (line,) = [line.split() for line in text if line.startswith("2^24")]
    assert line == ["2^24", "1.000", "2.000", "18.0", "2.00"]
    assert any(line.startswith("2^26") and line.endswith("0 ours, 64 naive float32 formula") for line in text)
    assert any(line.startswith("2^28") and "FAILED: RuntimeError: no" in line for line in text)
    assert "ours/floor from 2^24 elements: 1.00 to 2.00, a factor of 2.00 <= 1.3, MISSED" in text


def test_missed_targets() -> None:
    peer = {"name": "eager", "ratio": 0.9, "target": 1.0, "met": False}
    row = {"title": "add", "floor": "x.clone()", "ratio": 1.2, "target": 1.1, "met": False, "peers": [peer]}
    fine = {"title": "fine", "floor": "x.clone()", "ratio": 1.0, "target": 1.1, "met": True, "peers": []}
    import_time = {"title": "import", "value": 60.0, "unit": "ms", "target": 50.0, "met": False}
    results: dict[str, Any] = {"rows": [row, fine, {"title": "no promise", "met": None}], "processes": [import_time]}
    results |= {"flatness": report.flatness([point(2**24, 1, 2), point(2**26, 1, 1)])}
    assert report.missed(results).splitlines() == [
        "",
        "targets missed, 4 of 5:",
        "  add: 1.20 x x.clone(), target <= 1.1",
        "  add: eager takes 0.90 x ours, target >= 1",
        "  import: 60.0 ms, target <= 50",
        "  table, out= float32, 2 threads: ours/floor varies by 2.00 over the sizes, target <= 1.3",
    ]
    none: dict[str, Any] = {"processes": [], "flatness": []}
    assert report.missed({"rows": [fine], **none}).strip() == "targets: all 1 met"
    assert report.missed({"rows": [], **none}) == ""


def test_interrupted_run_keeps_its_results(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    run.write(path, {"rows": [1]})
    run.write(path, {"rows": [1, 2]})
    assert json.loads(path.read_text()) == {"rows": [1, 2]} and len(list(path.parent.iterdir())) == 1


def test_results_file_has_a_line_for_each_row() -> None:
    """Six significant digits; what is None or empty is left out."""
    entry = {"name": "add", "ours_ms": 1.23456789, "met": None, "peer_errors": {}, "peers": [{"ratio": 12345.6}]}
    text = results_file.written({"machine": {"cores": 2}, "rows": [entry, entry], "sizes": [], "cuda": None})
    assert text.splitlines()[3] == '  {"name": "add", "ours_ms": 1.23457, "peers": [{"ratio": 12345.6}]},'
    assert len(text.splitlines()) == 8 and json.loads(text)["sizes"] == [] and "cuda" not in json.loads(text)


@pytest.mark.parametrize(
    ("samples", "expected"), [([3.0], 0.0), ([1.0, 2.0, 3.0, 4.0, 5.0], 0.6667), ([7.0] * 9, 0.0), ([1.0, 3.0], 0.5)]
)
def test_spread(samples: list[float], expected: float) -> None:
    assert results_file.spread(samples) == pytest.approx(expected)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_log() -> None:
    log = io.StringIO()
    with Progress(2, log) as progress:
        progress.step("one")
        progress.step("two")
    assert log.getvalue() == "... one\n... two\n"


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tqdm")
    screen = Terminal()
    with Progress(2, screen) as progress:
        progress.step("one")
        progress.step("two")
        assert progress.bar.n == 1 and "two" in str(progress.bar)
    assert "..." not in screen.getvalue()


def test_progress_on_a_terminal_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    screen = Terminal()
    with Progress(1, screen) as progress:
        progress.step("one")
    assert screen.getvalue() == "... one\n"


@pytest.mark.processes
def test_measure_and_replot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--sizes", "2^9,2^18,2^19", "--threads", "1"]
    done = execute([*command, "-o", tmp_path / "r.json"], cwd=REPOSITORY)
    assert f"written: {tmp_path / 'r.json'}\ndrawn: {tmp_path / 'r.png'}" in done.stdout
    assert done.stderr.count("... ") == 18
    results = json.loads((tmp_path / "r.json").read_text())
    assert len(results["sizes"]) == 18 and results["flatness"] == [] and results["rows"] == []
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["--replot", str(tmp_path / "r.json"), "--plot", str(tmp_path / "again.svg")]) == 0
    picture = (tmp_path / "again.svg").read_text()
    assert picture.lstrip().startswith("<?xml")


def test_invalid_results_are_not_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "r.json").write_text("{")
    assert main(["--replot", str(tmp_path / "r.json")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("replot: expected a result of ") and told.count("\n") == 1


@pytest.mark.processes
def test_training_step_of_the_example() -> None:
    """The rows that use examples/train_language_model.py, and the measurement in their processes."""
    (row,) = [row for row in run.ROWS if row.name == "train_step"]
    assert run.measure(row, 1, threads=1)["ours_ms"] > 0
    (memory,) = [process for process in run.PROCESSES if process.name == "step_memory"]
    assert memory.measure() > 1


@pytest.mark.processes
def test_rows_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rows", "timesteps,memory_add_"]
    done = execute([*command, "--json", tmp_path / "result.json"], cwd=REPOSITORY)
    assert "encode 8 timesteps" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"cpu", "cores", "threads", "torch", "python", "commit", "date", "backend"} <= set(result["machine"])
    (row,) = result["rows"]
    assert row["ours_ms"] > 0 and row["peers"][0]["name"] == "diffusers"
    assert result["processes"][0]["name"] == "memory_add_"
    assert f"sinpe_ext {result['machine']['sinpe_ext']} of {REPOSITORY / 'sinpe_ext'}, compiled" in done.stdout


def test_unknown_row_lists_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "nonsense"]) == 2
    assert capsys.readouterr().err.startswith("rows: expected some of table,")


def test_requires_compiled_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with sinpe.use_backend("eager"):
        assert main(["--quick", "--rows", "table"]) == 1
    assert "sinpe_ext: expected the compiled backend, got eager" in capsys.readouterr().err
