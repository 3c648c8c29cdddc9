"""The benchmark tables of the pages equal the results that they name (tools/bench_page.py)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import bench_page as tool
import pages
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

MEASURED = {
    "rows": [
        {
            "name": "table",
            "title": "table, 2 threads",
            "threads": 2,
            "target": 2.5,
            "met": False,
            "ratio": 4.0,
            "floor": "f",
        }
        | {"ours_ms": 2.0, "floor_ms": 0.5}
        | {"peers": [{"name": "usual", "ms": 20, "ratio": 10.0, "target": 9.0, "met": True}]},
        {
            "name": "table",
            "title": "table, 1 thread",
            "threads": 1,
            "target": 2.5,
            "met": True,
            "ratio": 2.0,
            "floor": "f",
        }
        | {"ours_ms": 4.0, "floor_ms": 2.0, "peers": []},
        {"name": "table_bf16", "title": "bf16, 2 threads", "threads": 2, "error": "RuntimeError: no"},
        {"name": "embed", "title": "embed, 2 threads", "threads": 2, "ours_ms": 3.0, "target": None, "peers": []},
    ],
    "processes": [
        {"title": "import", "value": 31.04, "unit": "ms", "target": 60, "met": True},
        {"title": "build", "skipped": "no"},
    ],
}


def test_pages_contain_the_tables_of_their_results() -> None:
    text = "".join(pages.text_of(page) for page in tool.PAGES)
    assert sorted(match[2] for match in tool.TABLE.finditer(text)) == sorted([*tool.GROUPS, *tool.OTHERS])
    named = {match[2]: match[3] for match in tool.TABLE.finditer(text)}
    assert named["front"] == named["summary"], "the front page and its details must be of one run"
    apart = ("small", "host", "cuda", "cuda_host", "front_cuda")
    assert len({path for group, path in named.items() if group not in apart}) == 1, "one run"
    assert named["cuda"] == named["front_cuda"], "the front page and its details must be of one run"
    assert tool.main(["--check"]) == 0, "run tools/bench_page.py"


def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"tables": ("table", "table_bf16"), "training": ("embed",), "grids": ("table", "grid")}
    monkeypatch.setattr(tool, "GROUPS", {group: [SimpleNamespace(name=n) for n in groups[group]] for group in groups})
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PAGES", ("README.md",))
    page = tmp_path / "README.md"
    results = tmp_path / "new.json"
    results.write_text(json.dumps(MEASURED))
    begin = "<!-- begin: tools/bench_page.py {} {} -->\n{}<!-- end -->\nText.\n"
    page.write_text("".join(begin.format(g, "old.json", "old\n") for g in ("tables", "training", "processes")))
    assert tool.main([str(results)]) == 0
    tables = {m[2]: m[4].splitlines()[2:] for m in tool.TABLE.finditer(page.read_text())}
    assert tables == {
        "tables": [
            "| table | 2.000 | 0.500 `f` | 4.00 | <= 2.5, MISSED | 10 usual (>= 9, met) |",
            "| bf16 | FAILED: RuntimeError: no |  |  |  |  |",
        ],
        "training": ["| embed | 3.000 |  |  |  |  |"],
        "processes": ["| import | 31.0 ms | <= 60, met |", "| build | skipped: no |  |"],
    }
    results.write_text(json.dumps(MEASURED | {"processes": []}))
    assert tool.main([str(results)]) == 0  # without processes: their table is unchanged
    assert "| build | skipped: no |" in page.read_text()
    results.write_text(json.dumps(MEASURED))
    assert page.read_text().count("new.json") == 3 and tool.main(["--check"]) == 0
    assert not tool.has_all("grids", MEASURED)  # it has one row of two
    page.write_text(page.read_text().replace("31.0 ms", "30.0 ms"))
    assert tool.main(["--check"]) == 1 and "30.0 ms" in page.read_text()


def test_table_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text stands until there are results; then each row has its floor, its target and its peers."""
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "PAGES", ("README.md",))
    page, results = tmp_path / "README.md", tmp_path / "new.json"
    page.write_text("<!-- begin: tools/bench_page.py cuda none -->\nNothing yet.\n<!-- end -->\n")
    assert tool.main(["--check"]) == 0
    entry = {"title": "add f32", "device": "cuda", "floor": "y.copy_(x)", "floor_ms": 0.25, "ours_ms": 0.26}
    entry |= {"gigabytes_per_second": 4100.2, "ratio": 1.04, "target": 1.05, "met": True, "peers": []}
    facts = {"device": "a card", "cuda": "13.0", "arithmetic": "double", "elements": 2**27}
    monkeypatch.setattr(
        tool,
        "CUDA_ROWS",
        [SimpleNamespace(name=name, host=name == "cuda_host_add") for name in ("add", "table", "cuda_host_add")],
    )
    entry["name"], other = "add", {"name": "table", "device": "cpu"}
    machine = {"torch": "2.13.0", "commit": "abc", "date": "2026-11-25T18:06:09+00:00"}
    results.write_text(json.dumps({"machine": machine, "cuda": facts, "rows": [entry]}))
    assert tool.main([str(results)]) == 0 and "Nothing yet." in page.read_text()  # it lacks a row
    results.write_text(json.dumps({"machine": machine, "cuda": facts, "rows": [entry, other]}))
    assert tool.main([str(results)]) == 0
    text = page.read_text()
    assert "cuda new.json -->\na card, CUDA 13.0, torch 2.13.0, arithmetic double, tensors of 134217728 " in text
    assert "commit abc, 2026-11-25, wall time:" in text
    assert "| add f32 | 0.260 (4100 GB/s) | 0.250 `y.copy_(x)` | 1.04 | <= 1.05, met |  |" in text
    entry["wall_ms"] = {"ours": 0.3}
    host = {**entry, "name": "cuda_host_add", "title": "host"}
    assert not tool.has_all("cuda_host", {"rows": [entry]}) and tool.has_all("cuda_host", {"rows": [host]})
    measured = {"machine": machine, "cuda": facts, "rows": [entry, host]}
    assert "2026-11-25, device time:" in tool.table("cuda", measured) and "wall 0.300" in tool.table("cuda", measured)
    assert "host" in tool.table("cuda_host", measured) and "add f32" not in tool.table("cuda_host", measured)


def test_front_page_has_the_times_of_a_gpu() -> None:
    """Those of a copy and of torch.compile too, also where they are shorter."""

    def row(name: str, ratio: float, *peers: tuple[str, float]) -> dict[str, object]:
        others = [{"name": peer, "ratio": times} for peer, times in (("eager", 1.5), *peers)]
        return {"name": name, "ours_ms": 0.2, "ratio": ratio, "peers": others}

    names = [f"{name}_{dtype}" for name in tool.FRONT_CUDA for dtype in ("f32", "bf16")]
    measured = {"rows": [row(names[0], 1.0), *(row(name, 2.0, ("torch.compile", 0.5)) for name in names[1:])]}
    lines = tool.table("front_cuda", measured).splitlines()[2:]
    assert len(lines) == len(names) and lines[0].endswith("| float32 | 0.200 | 0.200 | 0.300 |  |")
    assert lines[1].endswith("| bfloat16 | 0.200 | 0.100 | 0.300 | 0.100 |")


def test_front_page_reports_ties() -> None:
    row = {"ours_ms": 2.0, "ratio": 0.8, "floor": "f", "target": None, "title": "t", "peers": []}
    peers = [{"name": "eager", "ratio": 3.21}, {"name": "torch.compile", "ratio": 0.5}]
    measured = {"rows": [{"name": "add", **row}, {"name": "dropout", **row, "peers": peers}]}
    head, line, dropped, added = tool.table("front", measured).splitlines()
    assert head.count("|") == line.count("|") == dropped.count("|") == added.count("|")
    assert dropped.endswith("| 2 ms | 3.2 x faster | 2.0 x slower |") and added.endswith("| 2 ms | ties |  |")
    assert tool.faster(1.4) == "1.4 x faster" and tool.faster(1 / 1.4) == "1.4 x slower"
