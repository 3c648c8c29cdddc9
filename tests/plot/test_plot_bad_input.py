"""Bad arguments of plots: each error names the argument and the remedy, and no figure is opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sinpe_ext import plot
from sinpe_ext.encodings.catalogue import convention
from sinpe_ext.encodings.encoding import Encoding

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

E, GRID, TABLE = Encoding(8), convention("mae2d", 16), np.zeros((6, 4))
CASES: list[tuple[Any, type[Exception], str]] = [
    (lambda: plot.heatmap("x"), TypeError, r'^table: expected an Encoding, .* got the name "x"'),
    (lambda: plot.heatmap(E, length=5, start="a"), TypeError, "^start: expected int, got str"),
    (lambda: plot.heatmap(E, length=3, start=2**63), ValueError, "^start: expected an int in"),
    (lambda: plot.heatmap(Encoding(8, start=2), length=3, start=2**63 - 1), ValueError, "^start: .* within int64"),
    (lambda: plot.heatmap(E, length=3, start=2**60), ValueError, r"^start: expected positions within 2\*\*52"),
    (lambda: plot.heatmap(E, length=True), TypeError, "^length: expected int, got bool"),
    (lambda: plot.heatmap(E, length=2**24), ValueError, "^length: expected at most 67108864 values .* smaller length"),
    (lambda: plot.heatmap([["a"]]), TypeError, "^table: expected real numbers in rows of one length, got list"),
    (lambda: plot.heatmap([[1, 2], [3]]), TypeError, "^table: expected real numbers in rows of one length, got list"),
    (lambda: plot.heatmap([[None, object()]]), TypeError, "^table: expected real numbers"),
    (lambda: plot.heatmap(TABLE + 1j), TypeError, "^table: expected real numbers .* got complex128"),
    (lambda: plot.heatmap(3), ValueError, r"^table: .* \(length, dim\), got shape \(\)"),
    (
        lambda: plot.curves(E, 5),
        ValueError,
        r"^positions: expected a sequence of finite numbers, one or more, got 5; pass \[5, 6",
    ),
    (lambda: plot.curves(E, "5"), TypeError, "^positions: expected integers or float32/float64, got <U1"),
    (lambda: plot.curves(E, ["a"]), TypeError, "^positions: expected integers or float32/float64, got <U1"),
    (lambda: plot.curves(E, [None]), TypeError, "^positions: expected integers or float32/float64, got object"),
    (lambda: plot.curves(E, [2**70]), TypeError, "^positions: expected integers or float32/float64, got object"),
    (lambda: plot.curves(E, [2**63]), ValueError, "^positions: expected values within int64, got 9223372036854775808"),
    (lambda: plot.curves(E, [np.nan]), ValueError, "^positions: expected a sequence of finite numbers"),
    (lambda: plot.curves(TABLE, [np.nan]), ValueError, "^positions: expected a sequence of finite numbers"),
    (lambda: plot.curves(TABLE, []), ValueError, "^positions: expected a sequence of finite numbers, one or more"),
    (lambda: plot.curves(TABLE, [7]), IndexError, "^positions: expected whole numbers from 0 to 5"),
    (lambda: plot.error(E, 5), ValueError, "^positions: expected a sequence of finite numbers"),
    (lambda: plot.error(E, ["a"]), TypeError, "^positions: expected integers or float32/float64"),
    (lambda: plot.error(E, [[1, 2], [3, 4]]), ValueError, "^positions: expected a sequence of finite numbers"),
    (lambda: plot.error(E, [0.5, 1.5]), ValueError, "^positions: expected whole numbers .* got 0.5"),
    (lambda: plot.error(E, [1e30]), ValueError, r"^positions: expected whole numbers .* got 1e\+30"),
    (lambda: plot.error(E, [np.nan]), ValueError, "^positions: expected a sequence of finite numbers"),
    (
        lambda: plot.error(E, [-5, -1]),
        ValueError,
        "^positions: expected whole numbers of 1 or more on a logarithmic axis, got -5",
    ),
    (lambda: plot.error(E, []), ValueError, "^positions: expected a sequence of finite numbers, one or more"),
    (lambda: plot.error("paper"), TypeError, "^encoding: expected an Encoding, got str"),
    (lambda: plot.similarity(GRID, 10), TypeError, "^encoding: expected an Encoding, .* a GridEncoding of 2 axes"),
    (lambda: plot.similarity("paper", 10), TypeError, '^encoding: expected an Encoding, .* got the name "paper"'),
    (lambda: plot.similarity(E), TypeError, "^length: expected a number of rows"),
    (lambda: plot.similarity([[1], [2, 3]]), TypeError, "^encoding: expected real numbers in rows"),
]


@pytest.fixture(autouse=True)
def no_figure() -> Any:
    plt.close("all")
    yield
    plt.close("all")


@pytest.mark.parametrize(("call", "error", "words"), CASES, ids=[words for _, _, words in CASES])
def test_bad_arguments_open_no_figure(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as refusal:
        call()
    assert ";" in str(refusal.value) and "\n" not in str(refusal.value)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", ["complex", "meta", "sparse"])
def test_invalid_tables_are_rejected(name: str) -> None:
    torch = pytest.importorskip("torch")
    tensor, words = {
        "complex": (torch.zeros(3, 2, dtype=torch.complex64), "^table: expected real numbers .* got torch.complex64"),
        "meta": (torch.zeros(3, 2, device="meta"), "^table: expected real numbers in rows of one length"),
        "sparse": (torch.eye(3).to_sparse(), "^table: expected real numbers in rows of one length"),
    }[name]
    with pytest.raises(TypeError, match=words):
        plot.heatmap(tensor)
    assert plt.get_fignums() == []


def test_numpy_integers_are_accepted() -> None:
    ax = plot.heatmap(E, length=np.int64(5), start=np.int32(2))
    assert list(ax.get_images()[0].get_extent()) == [-0.5, 7.5, 6.5, 1.5]


def test_positions_in_a_tensor_or_an_array() -> None:
    torch = pytest.importorskip("torch")
    for positions in (torch.tensor([5, 6]), np.array([5, 6], np.int16), (p for p in (5, 6))):
        ax = plot.curves(E, positions, ax=plt.figure().add_subplot())
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["5", "6"]


def test_nan_does_not_change_the_colour_scale() -> None:
    ax = plot.heatmap([[np.nan, 2.0], [np.inf, -3.0]])
    assert ax.get_images()[0].get_clim() == (-3.0, 3.0)
