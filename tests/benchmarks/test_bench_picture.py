"""The figure of the benchmark's sizes, and files that are no results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from benchmarks import picture  # noqa: E402
from benchmarks.report import lines_of_sizes  # noqa: E402

MACHINE = {"cpu": "a CPU", "cores": 2, "torch": "2.13.0", "date": "2026-11-25"}
SIZES = [
    {"case": "table", "title": "table, out=", "floor": "out.fill_(1)", "dtype": "float32", "threads": threads}
    | {"elements": 2**power, "ms": {"floor": 1e-6 * 2**power, "ours": 2e-6 * 2**power / threads}}
    for threads in (1, 2)
    for power in (9, 14, 20)
]
SKIPPED = {"case": "table", "dtype": "float32", "threads": 2, "elements": 2**28, "skipped": "takes about 4.5 GiB"}
TIMES = {"machine": MACHINE, "sizes": [*SIZES, SKIPPED]}


def test_panel_shows_nanoseconds_per_element() -> None:
    figure = Figure()
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    picture.panel(lines_of_sizes(picture.timings(TIMES))["table", "float32", 1], ax)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log") and ax.get_title() == "table, out= float32, 1 thread"
    floor, ours = ax.get_lines()
    assert [floor.get_label(), ours.get_label()] == ["floor: out.fill_(1)", "ours"]
    assert list(ours.get_xdata()) == [2**9, 2**14, 2**20]  # skipped sizes have no point
    np.testing.assert_allclose([floor.get_ydata(), ours.get_ydata()], [[1] * 3, [2] * 3])


def test_replot(tmp_path: Path) -> None:
    source = tmp_path / "sizes.json"
    source.write_text(json.dumps(TIMES))
    assert picture.again(str(source), None) == f"drawn: {tmp_path / 'sizes.png'}"
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", ["no JSON", [], {}, {"sizes": [3]}, {"sizes": [{"ms": 1}]}, {"sizes": SIZES}])
def test_replot_of_another_file(content: Any, tmp_path: Path) -> None:
    source = tmp_path / "other.json"
    source.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(picture.Undrawn, match="^replot: expected a result of .*other.json .*; pass another$"):
        picture.again(str(source), None)
    with pytest.raises(picture.Undrawn, match="^replot: expected a result with sizes, got none"):
        source.write_text(json.dumps({"sizes": [SKIPPED]}))
        picture.again(str(source), None)
