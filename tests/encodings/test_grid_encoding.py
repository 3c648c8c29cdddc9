"""`GridEncoding`: fields, errors, channel layout."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
import torch
from grids import EXAMPLES, truth

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding, convention
from sinpe_ext.encodings.grid import ChannelGroup

HALVES = Encoding(4, layout="sin_cos")
LAYOUTS = [  # arrangement, order, dim, axes -> axis, sin or cos and pair of each channel; - for zero
    ("blocks", None, None, (Encoding(4), Encoding(4)), "0s0 0c0 0s1 0c1 1s0 1c0 1s1 1c1"),
    ("blocks", (1, 0), None, (HALVES, HALVES), "1s0 1s1 1c0 1c1 0s0 0s1 0c0 0c1"),
    ("blocks", None, 7, (HALVES, HALVES), "0s0 0s1 0c0 0c1 1s0 1s1 1c0"),
    ("blocks", None, 5, (HALVES, HALVES), "0s0 0s1 0c0 0c1 1s0"),
    ("blocks", None, 3, (HALVES, HALVES), "0s0 0s1 0c0"),
    ("blocks", None, 6, (Encoding(4), Encoding(4)), "0s0 0c0 0s1 0c1 1s0 1c0"),
    ("blocks", None, 5, (Encoding(4), Encoding(4)), "0s0 0c0 0s1 0c1 1s0"),
    ("blocks", None, 10, (HALVES, HALVES), "0s0 0s1 0c0 0c1 1s0 1s1 1c0 1c1 - -"),
    ("grouped", None, None, (HALVES, HALVES), "0s0 0s1 1s0 1s1 0c0 0c1 1c0 1c1"),
    ("grouped", (1, 0), 7, (HALVES, HALVES), "1s0 1s1 0s0 0s1 1c0 1c1 0c0"),
    ("interleaved", None, None, (Encoding(4), Encoding(4)), "0s0 1s0 0c0 1c0 0s1 1s1 0c1 1c1"),
    ("interleaved", (1, 0), 7, (Encoding(4), Encoding(4)), "1s0 0s0 1c0 0c0 1s1 0s1 1c1"),
    ("pairs", None, None, (Encoding(4), Encoding(4)), "0s0 0c0 1s0 1c0 0s1 0c1 1s1 1c1"),
    ("pairs", (1, 0), 7, (Encoding(4), Encoding(4)), "1s0 1c0 0s0 0c0 1s1 1c1 0s1"),
    ("pairs", None, 9, (Encoding(4), Encoding(4)), "0s0 0c0 1s0 1c0 0s1 0c1 1s1 1c1 -"),
]


def described(grid: GridEncoding) -> str:
    """Identifies the channels of a grid, with bases 10 and 100, by their values at one place."""
    values = truth(grid, (3, 4), dtype=torch.float64)[2, 3].tolist()
    names = {}
    for axis, (position, encoding) in enumerate(zip((2, 3), grid.axes, strict=True)):
        for pair, w in enumerate(encoding.frequencies_radians()):
            names[round(float(torch.tensor(position * w, dtype=torch.float64).sin()), 12)] = f"{axis}s{pair}"
            names[round(float(torch.tensor(position * w, dtype=torch.float64).cos()), 12)] = f"{axis}c{pair}"
    return " ".join(names.get(round(value, 12), "-" if value == 0 else "?") for value in values)


@pytest.mark.parametrize(("arrangement", "order", "dim", "axes", "expected"), LAYOUTS)
def test_layout(arrangement: str, order: tuple, dim: int | None, axes: tuple, expected: str) -> None:
    axes = (axes[0].replace(base=10), axes[1].replace(base=100))
    grid = GridEncoding(axes, order=order, arrangement=arrangement, dim=dim)
    assert grid.dim == len(expected.split())
    assert described(grid) == expected


def test_truncation_of_every_kind_of_axis() -> None:
    """The first channels of an axis equal those of the whole axis."""
    axes = [
        Encoding(6, frequencies=(0.1, 0.2, 0.3)),
        Encoding(6, layout="cos_sin", frequencies=(0.1, 0.2, 0.3)),
        Encoding(6, cos_frequency="own"),
        Encoding(6, cos_frequency="own", layout="sin_cos"),
        Encoding(6, cos_frequency="own", layout="sin_cos", frequencies=(1, 2, 3, 4, 5, 6)),
        Encoding(7, layout="sin_cos", odd="pad", shift=1),
        Encoding(7, layout="cos_sin", odd="round"),
        Encoding(7, odd="round", exponent_scale=2, unit="turn"),
        Encoding(6, layout="sin"),
        Encoding(6, layout="cos", cos_frequency="own"),
    ]
    for axis in axes:
        whole = sinpe.table(9, axis, dtype=torch.float64)
        for dim in range(1, axis.dim):
            cut = sinpe.table((9,), GridEncoding((axis,), dim=dim), dtype=torch.float64)
            assert torch.equal(cut, whole[:, :dim]), (axis, dim)


def test_equality_hash_and_copies() -> None:
    names = {"GridEncoding": GridEncoding, "Encoding": Encoding, "Fraction": Fraction}
    for grid in EXAMPLES.values():
        assert eval(repr(grid), names) == grid
        copy = pickle.loads(pickle.dumps(grid))
        assert copy == grid and hash(copy) == hash(grid) and copy.channel_groups == grid.channel_groups
        assert grid.replace() == grid and grid.with_axes() == grid
        assert grid.with_axes(start=9) != grid
        fed = [group.first + c * group.step for group in grid.channel_groups for c in range(group.encoding.dim)]
        assert len(set(fed)) == len(fed) and max(fed) < grid.dim


def test_fields_of_the_axes() -> None:
    grid = convention("mae2d", 8, base=(100, 10), start=3)
    assert [axis.base for axis in grid.axes] == [100, 10] and [axis.start for axis in grid.axes] == [3, 3]
    assert convention("mae2d", 8).with_axes(base=(100, 10), start=3) == grid
    assert convention("detr2d", 8).axes[0].start == 1
    assert grid.replace(axes=(Encoding(2), Encoding(6))).dim == 8
    assert grid.channel_groups[0] == ChannelGroup(1, grid.axes[1], 0, 1)
    assert GridEncoding((HALVES, HALVES), order=(0, 1)) == GridEncoding((HALVES, HALVES))


GROUPED = {"layout": "sin_cos", "arrangement": "grouped"}


def test_fields_that_are_valid_only_together() -> None:
    """All fields change in one step."""
    axis = Encoding(4, base=0.5, exponent_dim=2, layout="sin_cos")
    assert convention("nerf", 12, axes=3, **GROUPED) == GridEncoding((axis,) * 3, arrangement="grouped")
    axis = Encoding(8, layout="sin_cos", start=1)
    assert convention("detr2d", 16, **GROUPED) == GridEncoding((axis,) * 2, arrangement="grouped")
    axis = Encoding(8, layout="sin_cos", odd="round")
    assert convention("multidim2d", 16, **GROUPED) == GridEncoding((axis,) * 2, arrangement="grouped")
    blocks = convention("timm2d", 16, layout="interleaved", arrangement="blocks")
    assert blocks == GridEncoding((Encoding(8),) * 2)
    with pytest.raises(ValueError, match="arrangement: expected axes of an even dim and layout"):
        convention("timm2d", 16, layout="interleaved")


def test_interpolated() -> None:
    """diffusers: np.arange(n) / (n / base_size) / interpolation_scale."""
    grid = convention("mae2d", 8).interpolated((6, 10), 4, 2.0)
    assert [axis.position_scale for axis in grid.axes] == [Fraction(1, 3), Fraction(1, 5)]
    rows = sinpe.table((6, 10), grid, dtype=torch.float64)
    places = torch.stack(torch.meshgrid(torch.arange(6).double() / 3, torch.arange(10).double() / 5, indexing="ij"), -1)
    assert torch.allclose(rows, sinpe.encode(places, convention("mae2d", 8), dtype=torch.float64), rtol=0, atol=1e-14)
    assert convention("mae2d", 8).interpolated((6, 10)) == convention("mae2d", 8)
    per_axis = convention("mae2d", 8).interpolated((6, 10), (3, 5), (1, 2))
    assert [axis.position_scale for axis in per_axis.axes] == [0.5, 0.25]
    twice = convention("mae2d", 8, position_scale=3).interpolated((6, 6), 2)
    assert twice.axes[0].position_scale == 1


ERRORS = [
    (lambda: GridEncoding(Encoding(4)), TypeError, "axes: expected a sequence of Encoding, one per axis, got Encoding"),
    (lambda: GridEncoding((4, 4)), TypeError, "axes: expected a sequence of Encoding, got int among them"),
    (lambda: GridEncoding(()), ValueError, "axes: expected 1 to 8, got 0"),
    (lambda: GridEncoding((HALVES,) * 9), ValueError, "axes: expected 1 to 8, got 9"),
    (lambda: GridEncoding((HALVES,) * 2, order=(0, 0)), ValueError, "order: expected each of 0 to 1 once"),
    (lambda: GridEncoding((HALVES,) * 2, order=(0, 2)), ValueError, "order: expected an int in 0..1, got 2"),
    (lambda: GridEncoding((HALVES,) * 2, arrangement="groupd"), ValueError, 'arrangement: expected one of "blocks", '),
    (lambda: GridEncoding((Encoding(4),) * 2, arrangement="grouped"), ValueError, "4 interleaved"),
    (lambda: GridEncoding((Encoding(4), Encoding(2)), arrangement="interleaved"), ValueError, "one dim"),
    (lambda: GridEncoding((HALVES,), dim=0), ValueError, "dim: expected an int in 1"),
    (lambda: GridEncoding((HALVES,)).replace(base=3), TypeError, "base: not a field of GridEncoding"),
    (lambda: GridEncoding((HALVES,)).with_axes(temperature=3), TypeError, "temperature: expected a field of"),
    (lambda: GridEncoding((HALVES,)).with_axes(base=(1, 2)), ValueError, "base: expected one value, or 1"),
    (lambda: convention("mae2d", 8).interpolated((3,)), ValueError, "lengths: expected 2"),
    (lambda: convention("mae2d", 8).interpolated((3, 4), 0), ValueError, "base_size: expected numbers above 0"),
    (lambda: convention("mae2d", 8).interpolated((3, 4), scale=0), ValueError, "scale: expected numbers above 0"),
    (lambda: convention("fairseq2_3d", 6), ValueError, "library would write past its table for; pass 8"),
    (lambda: convention("fairseq2_3d", 7), ValueError, "got 7, which the library refuses; pass 8"),
    (lambda: convention("paper", 10, axes=3), TypeError, "axes: expected a field of Encoding"),
]


@pytest.mark.parametrize(("make", "error", "message"), ERRORS)
def test_errors(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert type(caught.value) is error and message in str(caught.value)


def test_pairs_of_loftr() -> None:
    """PositionEncodingSine of LoFTR: sin x, cos x, sin y, cos y, ..., positions from 1, channels first."""
    d, (height, width) = 32, (5, 7)
    pe = torch.zeros(d, height, width, dtype=torch.float64)
    y, x = (torch.ones(height, width, dtype=torch.float64).cumsum(axis) for axis in (0, 1))
    frequencies = 10000.0 ** (-torch.arange(0, d // 2, 2, dtype=torch.float64) / (d // 2))[:, None, None]
    pe[0::4], pe[1::4] = (x * frequencies).sin(), (x * frequencies).cos()
    pe[2::4], pe[3::4] = (y * frequencies).sin(), (y * frequencies).cos()
    grid = GridEncoding((Encoding(d // 2, start=1),) * 2, order=(1, 0), arrangement="pairs")
    assert torch.allclose(
        sinpe.table((height, width), grid, dtype=torch.float64).movedim(-1, 0), pe, rtol=0, atol=1e-14
    )
    for axes in ((Encoding(4), Encoding(6)), (HALVES, HALVES), (Encoding(3), Encoding(3))):
        with pytest.raises(ValueError, match='arrangement: expected axes .* "pairs", got'):
            GridEncoding(axes, arrangement="pairs")
