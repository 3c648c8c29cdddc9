"""The plot of the benchmark's sizes, and invalid results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from benchmarks import picture  # noqa: E402

TIMES = {
    "sizes": [
        {"case": "table", "title": "table, out=", "floor": "out.fill_(1)", "dtype": "float32", "threads": threads}
        | {"elements": 2**power, "ms": {"floor": 1e-6 * 2**power, "ours": 2e-6 * 2**power / threads}}
        for threads in (1, 2)
        for power in (9, 14, 20)
    ]
    + [{"case": "table", "dtype": "float32", "threads": 2, "elements": 2**28, "skipped": "takes about 4.5 GiB"}]
}
TIME = {
    "case": "table",
    "title": "t",
    "floor": "f",
    "dtype": "float32",
    "threads": 1,
    "elements": 512,
    "ms": {"ours": 1},
}


@pytest.fixture
def ax() -> Iterator[Any]:
    figure = Figure()
    FigureCanvasAgg(figure)
    yield figure.add_subplot()


def test_plot_shows_nanoseconds_per_element(ax: Any) -> None:
    picture.panel(TIMES, threads=1, ax=ax)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    floor, ours = ax.get_lines()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["floor: out.fill_(1)", "ours"]
    assert list(ours.get_xdata()) == [2**9, 2**14, 2**20]  # skipped sizes have no point
    np.testing.assert_allclose([floor.get_ydata(), ours.get_ydata()], [[1] * 3, [2] * 3])
    ax.clear()
    picture.panel(TIMES, ax=ax)
    assert ax.get_title() == "table, out= float32, 2 threads"  # the largest thread count


CASES: list[tuple[Any, type[Exception], str]] = [
    (lambda ax: picture.panel({}, ax=ax), ValueError, "results: expected times of table float32 .* got no sizes"),
    (lambda ax: picture.panel(TIMES, "add_out", ax=ax), ValueError, "got table float32 on 1 thread, table"),
    (lambda ax: picture.panel(TIMES, threads=7, ax=ax), ValueError, "table float32 on 7 threads, got"),
    (lambda ax: picture.panel("x.json", ax=ax), TypeError, r"^results: .* as a dict, got str; pass json.load"),
    (lambda ax: picture.panel(None, ax=ax), TypeError, "^results: .* as a dict, got NoneType"),
    (lambda ax: picture.panel({"sizes": [{"ms": 1}]}, ax=ax), ValueError, '^results: .* "sizes" with no "case"'),
    (lambda ax: picture.panel({"sizes": [3]}, ax=ax), ValueError, '^results: .* "sizes" that are no list of dicts'),
    (
        lambda ax: picture.panel({"sizes": [{**TIME, "ms": 1}]}, ax=ax),
        ValueError,
        '^results: .* "ms" or "elements" are no numbers',
    ),
    (
        lambda ax: picture.panel({"sizes": [{**TIME, "elements": 0}]}, ax=ax),
        ValueError,
        "^results: .* with an empty one",
    ),
    (lambda ax: picture.panel({"sizes": [TIME]}, "other", ax=ax), ValueError, "^results: expected times of other"),
]


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_invalid_results_are_rejected(call: Any, error: type[Exception], words: str, ax: Any) -> None:
    with pytest.raises(error) as caught:
        call(ax)
    assert type(caught.value) is error and re.search(words, str(caught.value)) and not ax.lines
