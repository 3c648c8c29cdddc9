"""Plots: what each function draws, into which Axes, and errors, which open no figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from children import run

from sinpe_ext import plot
from sinpe_ext.encodings.catalogue import convention
from sinpe_ext.encodings.encoding import Encoding

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

PNG_BYTES = 5000  # empty axes take about half of this
E, GRID, TABLE = Encoding(8), convention("mae2d", 16), np.arange(24.0).reshape(6, 4)


@pytest.fixture(autouse=True)
def no_figure() -> Iterator[None]:
    plt.close("all")
    yield
    plt.close("all")


def lines(ax: Any) -> list[list[float]]:
    return [np.asarray(line.get_ydata()).tolist() for line in ax.get_lines()]


@pytest.mark.parametrize(
    ("draw", "labels"),
    [
        (lambda ax: plot.heatmap(E, length=200, transpose=True, cmap="Purples", ax=ax), ("position", "channel")),
        (lambda ax: plot.curves(E, ax=ax), ("channel", "value")),
        (lambda ax: plot.similarity(E, 100, ax=ax), ("distance between positions", "dot product")),
        (lambda ax: plot.error(E, ax=ax), ("position", "largest error over the channels")),
    ],
)
def test_renders(draw: Any, labels: tuple[str, str], tmp_path: Any) -> None:
    """Into the given Axes, or the current ones of pyplot."""
    ax = plt.figure(figsize=(8, 5)).add_subplot()
    assert draw(ax) is ax and (ax.get_xlabel(), ax.get_ylabel()) == labels
    ax.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > PNG_BYTES
    assert draw(None) is plt.gca() and len(plt.get_fignums()) == 1


def test_heatmap_shows_the_table() -> None:
    encoding = Encoding(6, start=3)
    ax = plot.heatmap(encoding, length=np.int64(4), start=2)
    (image,) = ax.get_images()
    expected = [[np.sin(p * 1e4 ** (-2 * (c // 2) / 6) + (c % 2) * np.pi / 2) for c in range(6)] for p in range(5, 9)]
    np.testing.assert_allclose(image.get_array(), expected, rtol=0, atol=1e-14)
    assert list(image.get_extent()) == [-0.5, 5.5, 8.5, 4.5]  # rows are labelled 5..8
    assert len(ax.figure.axes) == 2 and (ax.get_xlabel(), ax.get_ylabel()) == ("channel", "position")  # a colour bar
    plt.figure()
    (image,) = plot.heatmap(encoding, length=4, start=2, transpose=True).get_images()
    np.testing.assert_allclose(image.get_array(), np.transpose(expected), rtol=0, atol=1e-14)
    assert list(image.get_extent()) == [4.5, 8.5, 5.5, -0.5] and image.get_cmap().name == "coolwarm"


def test_heatmap_of_a_table() -> None:
    """The first `length` rows; the colours are symmetric around 0, whatever is not finite, unless limits are given."""
    ax = plot.heatmap(TABLE, length=2, start=7, colorbar=False, vmin=0.0)
    assert len(ax.figure.axes) == 1
    (image,) = ax.get_images()
    assert image.get_array().tolist() == TABLE[:2].tolist() and list(image.get_extent()) == [-0.5, 3.5, 8.5, 6.5]
    assert image.get_clim() == (0.0, 7.0)
    for table, peak in (([[np.nan, 2.0], [np.inf, -3.0]], 3.0), ([[0.0]], 1.0)):
        plt.figure()
        assert plot.heatmap(table).get_images()[0].get_clim() == (-peak, peak)


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.tolist(),
        torch.from_numpy(TABLE).bfloat16().requires_grad_(),
        torch.from_numpy(TABLE)[None],  # a `pe` buffer, batch first and sequence first
        torch.from_numpy(TABLE)[:, None],
    ],
)
def test_curves_of_a_table(table: Any) -> None:
    ax = plot.curves(table, positions=[5, 0])
    assert lines(ax) == [[20, 21, 22, 23], [0, 1, 2, 3]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["5", "0"]
    plt.figure()
    assert lines(plot.curves(table, positions=[-3, -8], start=-8)) == lines(ax)


def test_curves_of_an_encoding() -> None:
    """At any positions, in a list, an array, a tensor or an iterator; their start is not added."""
    ax = plot.curves(Encoding(2, start=9), positions=[0.5])
    np.testing.assert_allclose(lines(ax), [[np.sin(0.5), np.cos(0.5)]], rtol=0, atol=1e-15)
    for positions in (torch.tensor([5, 6]), np.array([5, 6], np.int16), (p for p in (5, 6))):
        ax = plot.curves(E, positions, ax=plt.figure().add_subplot())
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["5", "6"]


def test_similarity() -> None:
    """It depends on the distance only, or has a band from the smallest to the largest product."""
    distance = np.arange(300)
    expected = sum(np.cos(distance * w) for w in E.frequencies_radians())
    np.testing.assert_allclose(lines(plot.similarity(E, 300)), [expected], rtol=0, atol=1e-12)
    ax = plot.similarity(E, 300, normalize=True, ax=plt.figure().add_subplot())
    np.testing.assert_allclose(lines(ax), [expected / 4], rtol=0, atol=1e-12)
    assert ax.get_ylabel() == "cosine similarity"
    ax = plot.similarity([[1.0], [2.0], [-4.0], [0.0]], ax=plt.figure().add_subplot())
    assert lines(ax) == [[21 / 4, -6 / 3, -4 / 2, 0]]
    band = {tuple(vertex) for vertex in ax.collections[0].get_paths()[0].vertices.tolist()}
    assert band == {(0, 0), (0, 16), (1, -8), (1, 2), (2, -4), (2, 0), (3, 0)}


def test_error_of_this_library_and_of_the_naive_formula() -> None:
    encoding = Encoding(64, amplitude=2.0)
    naive, ours, bound = lines(plot.error(encoding, positions=[10, 1_000_000]))
    assert bound[0] == 2.0**-24 and 0 < max(ours) <= bound[0]
    assert naive[1] > 1e-3 > naive[0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: plot.heatmap("x"), TypeError, r'^table: expected an Encoding, .* got the name "x"'),
        (lambda: plot.heatmap(E, length=5, start="a"), TypeError, "^start: expected int, got str"),
        (lambda: plot.heatmap(Encoding(8, start=2), length=3, start=2**63 - 1), ValueError, "^start: .* within int64"),
        (lambda: plot.heatmap(E, length=3, start=2**52 - 2), ValueError, r"^start: expected positions within 2\*\*52"),
        (lambda: plot.heatmap(E), TypeError, "^length: expected a number of rows"),
        (lambda: plot.heatmap(E, length=0), ValueError, "^length: expected 1 or more, got 0"),
        (lambda: plot.heatmap(E, length=2**23 + 1), ValueError, "^length: expected at most 67108864 values .* smaller"),
        (lambda: plot.heatmap([["a"]]), TypeError, "^table: expected real numbers in rows of one length, got list"),
        (lambda: plot.heatmap(TABLE + 1j), TypeError, "^table: expected real numbers .* got complex128"),
        (lambda: plot.heatmap(torch.zeros(3, 2, device="meta")), TypeError, "^table: expected real numbers in rows"),
        (lambda: plot.heatmap(torch.eye(3).to_sparse()), TypeError, "^table: expected real numbers in rows"),
        (lambda: plot.heatmap(np.zeros((2, 3, 4))), ValueError, r"^table: .* \(length, dim\), got shape \(2, 3, 4\)"),
        (lambda: plot.heatmap(np.zeros((0, 4))), ValueError, r"^table: .* got shape \(0, 4\)"),
        (lambda: plot.curves(E, 5), ValueError, r"^positions: expected a sequence of finite numbers, .* pass \[5, 6"),
        (lambda: plot.curves(E, ["a"]), TypeError, "^positions: expected integers or float32/float64, got <U1"),
        (lambda: plot.curves(E, [2**70]), TypeError, "^positions: expected integers or float32/float64, got object"),
        (lambda: plot.curves(TABLE, [np.nan]), ValueError, "^positions: expected a sequence of finite numbers"),
        (lambda: plot.curves(TABLE, []), ValueError, "^positions: expected a sequence of finite numbers, one or more"),
        (lambda: plot.curves(TABLE, [6]), IndexError, "^positions: expected whole numbers from 0 to 5"),
        (lambda: plot.curves(TABLE, [0.5]), IndexError, "^positions: .* got 0.5"),
        (lambda: plot.curves(TABLE, [0], start=1), IndexError, "^positions: expected whole numbers from 1 to 6"),
        (lambda: plot.error(E, [[1, 2], [3, 4]]), ValueError, "^positions: expected a sequence of finite numbers"),
        (lambda: plot.error(E, [0.5, 1.5]), ValueError, "^positions: expected whole numbers .* got 0.5"),
        (lambda: plot.error(E, [0]), ValueError, "^positions: expected whole numbers of 1 or more on a logarithmic"),
        (lambda: plot.error(TABLE), TypeError, "^encoding: expected an Encoding, got float64 of shape"),
        (lambda: plot.similarity(GRID, 10), TypeError, "^encoding: expected an Encoding, .* a GridEncoding of 2 axes"),
        (lambda: plot.similarity([[1], [2, 3]]), TypeError, "^encoding: expected real numbers in rows"),
    ],
)
def test_bad_arguments_open_no_figure(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refusal:
        call()
    assert ";" in str(refusal.value) and "\n" not in str(refusal.value)
    assert plt.get_fignums() == []


def test_needs_matplotlib_and_no_torch() -> None:
    script = """
import sys
from sinpe_ext import plot
from sinpe_ext.encodings.encoding import Encoding
sys.modules['matplotlib'] = None
try: plot.heatmap([[1.0]])
except ImportError as error: print(error)
del sys.modules['matplotlib']
import matplotlib; matplotlib.use('Agg')
plot.heatmap(Encoding(8), length=9)
print('torch' in sys.modules)
"""
    said = run(script)[0]
    assert "pip install matplotlib" in said and said.endswith("\nFalse\n")
