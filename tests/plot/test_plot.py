"""Plots: each function draws into the given Axes, labels them, and renders to PNG without a display."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from children import execute

from sinpe_ext import plot
from sinpe_ext.encodings.catalogue import convention
from sinpe_ext.encodings.encoding import Encoding

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

OWN_INDEX = convention("own_index", 100)
PNG_BYTES = 5000  # empty axes take about half of this

DRAWINGS = {
    "heatmap": (lambda ax: plot.heatmap(OWN_INDEX, length=200, ax=ax), "channel", "position"),
    "heatmap transposed": (
        lambda ax: plot.heatmap(OWN_INDEX, length=200, transpose=True, cmap="Purples", ax=ax),
        "position",
        "channel",
    ),
    "curves": (lambda ax: plot.curves(OWN_INDEX, ax=ax), "channel", "value"),
    "similarity": (lambda ax: plot.similarity(OWN_INDEX, 100, ax=ax), "distance between positions", "dot product"),
    "cosine similarity": (
        lambda ax: plot.similarity(OWN_INDEX, 100, normalize=True, ax=ax),
        "distance between positions",
        "cosine similarity",
    ),
    "error": (lambda ax: plot.error(Encoding(32), ax=ax), "position", "largest error over the channels"),
}


@pytest.fixture
def ax() -> Any:
    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    return figure.add_subplot()


@pytest.mark.parametrize("name", DRAWINGS)
def test_renders(name: str, ax: Any, tmp_path: Any) -> None:
    draw, x_label, y_label = DRAWINGS[name]
    assert draw(ax) is ax
    assert (ax.get_xlabel(), ax.get_ylabel()) == (x_label, y_label)
    ax.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > PNG_BYTES


def test_heatmap_shows_the_table(ax: Any) -> None:
    encoding = Encoding(6, start=3)
    plot.heatmap(encoding, length=4, start=2, ax=ax)
    (image,) = ax.get_images()
    expected = [[np.sin(p * 1e4 ** (-2 * (c // 2) / 6) + (c % 2) * np.pi / 2) for c in range(6)] for p in range(5, 9)]
    np.testing.assert_allclose(image.get_array(), expected, rtol=0, atol=1e-14)
    assert list(image.get_extent()) == [-0.5, 5.5, 8.5, 4.5]  # rows are labelled 5..8
    assert len(ax.figure.axes) == 2  # the colour bar


def test_heatmap_without_colour_bar(ax: Any) -> None:
    plot.heatmap(np.eye(3), colorbar=False, vmin=0.0, ax=ax)
    assert len(ax.figure.axes) == 1
    assert ax.get_images()[0].get_clim() == (0.0, 1.0)


def tables() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    rows = np.arange(24.0).reshape(6, 4)
    return {
        "array": rows,
        "list": rows.tolist(),
        "tensor": torch.from_numpy(rows),
        "bfloat16 with gradients": torch.from_numpy(rows).bfloat16().requires_grad_(),
        "pe buffer, batch first": torch.from_numpy(rows).unsqueeze(0),
        "pe buffer, sequence first": torch.from_numpy(rows).unsqueeze(1),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_accepts_tables(name: str, ax: Any) -> None:
    plot.curves(tables()[name], positions=[5, 0], ax=ax)
    assert [line.get_ydata().tolist() for line in ax.get_lines()] == [[20, 21, 22, 23], [0, 1, 2, 3]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["5", "0"]


def test_curves_of_fractional_positions(ax: Any) -> None:
    plot.curves(Encoding(2), positions=[0.5], ax=ax)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [np.sin(0.5), np.cos(0.5)], rtol=0, atol=1e-15)


def test_similarity_depends_only_on_distance(ax: Any) -> None:
    encoding = Encoding(8)
    plot.similarity(encoding, 300, ax=ax)
    distance = np.arange(300)
    expected = sum(np.cos(distance * w) for w in encoding.frequencies_radians())
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), expected, rtol=0, atol=1e-12)


def test_error_plot_of_exact_and_naive_formula(ax: Any) -> None:
    plot.error(Encoding(64), positions=[10, 1_000_000], ax=ax)
    naive, ours, bound = (line.get_ydata() for line in ax.get_lines())
    assert max(ours) <= bound[0]
    assert naive[1] > 1e-3 > naive[0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda ax: plot.heatmap(Encoding(4), ax=ax), TypeError, "length: expected a number of rows"),
        (lambda ax: plot.heatmap(Encoding(4), length=0, ax=ax), ValueError, "length: expected 1 or more, got 0"),
        (lambda ax: plot.heatmap(np.zeros((2, 3, 4)), ax=ax), ValueError, r"table: .* got shape \(2, 3, 4\)"),
        (lambda ax: plot.heatmap(np.zeros((0, 4)), ax=ax), ValueError, r"table: .* got shape \(0, 4\)"),
        (lambda ax: plot.curves(np.zeros((6, 4)), ax=ax), IndexError, "positions: expected whole numbers from 0 to 5"),
        (lambda ax: plot.curves(np.zeros((6, 4)), [0.5], ax=ax), IndexError, "got 0.5"),
        (
            lambda ax: plot.error(np.zeros((6, 4)), ax=ax),
            TypeError,
            "encoding: expected an Encoding, got float64 of shape",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], words: str, ax: Any) -> None:
    with pytest.raises(error, match=words):
        call(ax)


def test_matplotlib_missing() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from sinpe_ext import plot\n"
        "try: plot.heatmap([[1.0]])\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install matplotlib" in execute([sys.executable, "-c", script]).stdout


def test_needs_no_torch() -> None:
    script = (
        "import sys, matplotlib; matplotlib.use('Agg')\n"
        "from sinpe_ext import plot\n"
        "from sinpe_ext.encodings.encoding import Encoding\n"
        "plot.heatmap(Encoding(8), length=9)\n"
        "print('torch' in sys.modules)\n"
    )
    assert execute([sys.executable, "-c", script]).stdout.strip() == "False"
