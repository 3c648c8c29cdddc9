"""`identify` for grids: every name, flattened or not, with any numbers for each axis and rows of zeros around."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from test_identify import found
from widths import WIDTHS, names_at

import sinpe_ext as sinpe
from sinpe_ext.encodings.grid import GridEncoding
from sinpe_ext.encodings.grid_catalogue import GRIDS

STORAGE = (torch.float32, torch.bfloat16)
# As in test_identify.py; fewer places per axis determine its base less precisely.
HIDDEN = {torch.float32: 3e-5, torch.bfloat16: 2e-2}
EXACTLY = 1e-14  # relative: order of float64 operations in a field
MAE = sinpe.table((14, 14), sinpe.convention("mae2d", 64), flatten=True)


def grid_table(grid: GridEncoding, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sinpe.table(shape, grid, dtype=torch.float64).to(dtype)


EVERY = [(name, dim, k) for k, dim in enumerate((48, 96, *WIDTHS)) for name in names_at(dim) if name in GRIDS]


@pytest.mark.sampled(3, "names and widths")
@pytest.mark.parametrize(("name", "dim", "number"), EVERY)
def test_every_name(name: str, dim: int, number: int) -> None:
    """As (*shape, d), flattened with its shape, after a class token in bfloat16; a square without its shape."""
    volume, zeros = name.endswith("3d"), number % 2
    shape, dtype = (((4, 5, 7), (1, 6, 8)) if volume else ((6, 11), (8, 8)))[zeros], STORAGE[zeros]
    grid = sinpe.convention(name, dim)
    held = grid_table(grid, shape, dtype)
    flat = held.reshape(-1, dim)
    ways: list[tuple[torch.Tensor, Any, int]] = [(held, None, 0)] if number == 0 else []
    ways += [(torch.cat([torch.zeros(zeros, dim, dtype=dtype), flat]), shape, zeros)]
    ways += [(flat, None, 0)] if not volume and number == 1 else []
    for tensor, given, extra in ways:
        match = found(tensor, shape=given)
        assert name in (match.name, *match.aliases), match
        assert (match.shape, match.extra_tokens) == (shape, extra)
        assert torch.equal(sinpe.table(shape, match.encoding), sinpe.table(shape, grid))


def random_grid(seed: int) -> tuple[str, GridEncoding, tuple[int, ...], torch.dtype]:
    draw = random.Random(seed)
    name = draw.choice([name for name in GRIDS if name != "detr2d"])  # its name implies a start
    grid = sinpe.convention(name, draw.choice((48, 96, 192)))
    shape = tuple(draw.choice((5, 8, 14, 16, 24)) for _ in range(grid.ndim))
    fields: dict[str, object] = {"base": draw.choice((10 ** draw.uniform(1, 6), 100.0, 20.0))}
    fields["amplitude"] = draw.choice((1.0, 10 ** draw.uniform(-2, 1)))
    fields["start"] = draw.choice((0, 1, draw.randint(0, 300), tuple(draw.randint(0, 300) for _ in shape)))
    if draw.random() < 0.3:
        fields["base"] = tuple(10 ** draw.uniform(1, 5) for _ in shape)
    elif draw.random() < 0.4:
        fields["position_scale"] = tuple(16 / length for length in shape)
    return name, grid.with_axes(**fields), shape, draw.choice((torch.float32, *STORAGE))


@pytest.mark.sampled(8, "drawn cases")
@pytest.mark.parametrize("seed", range(40))
def test_random_grids(seed: int) -> None:
    name, grid, shape, dtype = random_grid(seed)
    match = found(grid_table(grid, shape, dtype), shape=shape)
    off = (grid_table(match.encoding, shape, torch.float64) - grid_table(grid, shape, torch.float64)).abs().max()
    assert float(off) <= HIDDEN[dtype] * abs(grid.axes[0].amplitude), (grid, match)
    starts = tuple(axis.start for axis in grid.axes)
    assert match.start == (starts[0] if len(set(starts)) == 1 else starts)
    if dtype is torch.float32:
        assert name in (match.name, *match.aliases), (grid, match)


NUMBERS = [  # fields that are recovered exactly from a table of float32 angles
    ("mae2d", {"base": 500.0}, "float32_exp"),
    ("hf2d", {"base": 100000.0, "amplitude": 0.1}, "float32_pow"),
    ("detr2d", {"position_scale": 20.0}, "float32_pow"),
    ("mae2d", {"position_scale": (0.5, 14 / 24)}, "float32_pow"),
    ("hf2d", {"position_scale": 6.283185307179586, "base": 20.0}, "float32_exp"),
]


@pytest.mark.parametrize(("name", "fields", "angle"), NUMBERS, ids=str)
def test_round_numbers(name: str, fields: dict[str, Any], angle: str) -> None:
    grid = sinpe.convention(name, 192).with_axes(**fields)
    match = found(sinpe.table((14, 24), grid.with_axes(angle=angle)))
    for axis, truth in zip(match.encoding.axes, grid.axes, strict=True):
        assert axis.amplitude == truth.amplitude
        assert axis.frequencies_radians() == pytest.approx(truth.frequencies_radians(), rel=EXACTLY)


def test_interpolation_and_points() -> None:
    grid = sinpe.convention("mae2d", 192).interpolated((24, 32), base_size=14, scale=2)
    match = found(grid_table(grid, (24, 32)))
    assert match.name == "mae2d"
    assert [axis.position_scale for axis in match.encoding.axes] == [14 / 24 / 2, 14 / 32 / 2]
    points = sinpe.convention("nerf", 24, axes=2, position_scale=0.125)
    assert found(grid_table(points, (8, 12))).code == 'sinpe.convention("nerf", 24, axes=2, position_scale=0.125)'


@pytest.mark.parametrize("name", ["mae2d", "detr2d", "hf2d", "cogvideo3d"])
def test_centers_of_pixels(name: str) -> None:
    """Fractional positions, one for all axes or one for each; flattened, and in 16 bits."""
    grid = sinpe.convention(name, 192)
    shape: tuple[int, ...] = (7, 8, 9)[: grid.ndim]
    for firsts, dtype in (((0.5,) * 3, torch.float32), ((0.5, 0.0, 2.25), torch.float32), ((0.5,) * 3, torch.bfloat16)):
        offsets = [first - axis.start for first, axis in zip(firsts, grid.axes, strict=False)]
        at = sinpe.positions.grid(shape, grid) + torch.tensor(offsets)
        held = sinpe.encode(at, grid).to(dtype)
        match = sinpe.identify(held)[0]
        assert match.start == (0.5 if len(set(firsts)) == 1 else firsts[: grid.ndim])
        assert name in (match.name, *match.aliases) or grid.axes[0].start
        rows = eval(match.code, {"sinpe": sinpe, "torch": torch})
        assert float((rows - held.double()).abs().max()) == pytest.approx(match.max_error, abs=6e-8)
        assert match.max_error < (6e-8 if dtype is torch.float32 else 4e-3)
        flat = sinpe.identify(held.flatten(0, -2), shape=shape)[0]
        assert (flat.code, flat.shape) == (match.code, shape)


def test_centers_of_pixels_with_a_scale() -> None:
    scales = (14 / 24, 14 / 28)
    grid = sinpe.convention("mae2d", 64)
    at = (sinpe.positions.grid((24, 28), grid).double() + 0.5) * torch.tensor(scales, dtype=torch.float64) - 0.5
    match = sinpe.identify(sinpe.encode(at, grid))[0]
    assert [axis.position_scale for axis in match.encoding.axes] == pytest.approx(scales, rel=EXACTLY)
    assert match.start == pytest.approx([0.5 - 0.5 / scale for scale in scales]) and "interpolation" in match.note
    rows = eval(match.code, {"sinpe": sinpe, "torch": torch})
    assert float((rows - sinpe.encode(at, grid)).abs().max()) < 1e-6


@pytest.mark.parametrize(("shape", "printed"), [((25, 34), ""), ((32, 32), ""), ((20, 28), "=(1/19, 1/27)")])
def test_normalised_positions(shape: tuple[int, int], printed: str) -> None:
    """DETR's, place / (length + 1e-6) * 2 pi, and places from 0 to 1: from an exact table, with no larger errors."""
    grid = sinpe.convention("mae2d" if printed else "detr2d", 128)
    ends = torch.tensor(shape, dtype=torch.float64) + (-1 if printed else 1e-6)
    held = sinpe.encode(sinpe.positions.grid(shape, grid) / ends * (1 if printed else 6.283185307179586), grid)
    match = found(held, shape=shape)
    assert f"position_scale{printed}" in match.code and "base" not in match.code and match.max_error < 6e-8


def test_names_of_the_same_grid_are_aliases() -> None:
    for name, fields, aliases in (
        ("mae2d", {}, ("monai2d",)),
        ("detr2d", {}, ("multidim2d",)),
        ("multidim2d", {}, ()),
        ("hf2d", {"base": 500}, ("fairseq2_2d",)),
    ):
        match = found(grid_table(sinpe.convention(name, 64, **fields), (8, 9)))
        assert (match.name, match.aliases) == (name, aliases)


def test_channels_first() -> None:
    held = grid_table(sinpe.convention("detr2d", 64), (8, 10)).permute(2, 0, 1)
    for tensor, shape in ((held, (8, 10)), (held[None], None), (held[None], (8, 10))):
        match = found(tensor, shape=shape)
        assert (match.name, match.shape) == ("detr2d", (8, 10))
    for shape, given in (((8, 8), None), ((8, 10), (8, 10))):  # and flattened
        flat = grid_table(sinpe.convention("detr2d", 64), shape).reshape(-1, 64)
        match = found(flat.T[None], shape=given)
        assert (match.name, match.shape, match.transposed) == ("detr2d", shape, True)
        assert not found(flat, shape=given).transposed


def test_float32_angle_errors_of_a_grid() -> None:
    grid = sinpe.convention("mae2d", 64)
    assert found(sinpe.table((32, 32), grid.with_axes(angle="float32_pow"))).float32_angle == "float32_pow"
    assert found(sinpe.table((32, 32), grid)).float32_angle == ""


def test_zeros_around_and_in_a_grid() -> None:
    wide = torch.cat([torch.zeros(1, 67), torch.cat([MAE, torch.zeros(196, 3)], 1)])  # a class token, three channels
    match = found(wide)
    assert (match.code, match.zero_columns) == ('sinpe.convention("mae2d", 64)', (64, 65, 66))
    assert (match.shape, match.extra_tokens) == ((14, 14), 1)
    assert "sinpe.table((14, 14), encoding) gives the other 64" in match.note
    for shape in (None, (14, 14)):
        match = found(torch.cat([torch.zeros(2, 64), MAE, torch.zeros(1, 64)]), shape=shape)
        assert (match.shape, match.extra_tokens, match.zero_rows, match.rows) == ((14, 14), 2, (198,), 199)
        assert "zero after the end of the grid: row 198" in match.note
        assert not sinpe.identify(torch.cat([torch.randn(1, 64) * 0.02, MAE]), shape=shape)
    for row, before, shape in ((0, 0, (14, 14)), (3, 1, (14, 14)), (195, 1, None), (90, 0, None)):
        held = MAE.clone()
        held[row] = 0
        match = found(torch.cat([torch.zeros(before, 64), held]), shape=shape)
        assert (match.name, match.shape, match.zero_rows) == ("mae2d", (14, 14), (row + before,))
        assert match.note.endswith(f"row {row + before}") and "padding" not in match.note
    held = MAE.clone()
    held[:10] = 0  # too few rows of the first line are left for a fit
    (match,) = sinpe.identify(held, shape=(14, 14))
    assert (match.name, match.zero_rows) == ("mae2d", tuple(range(10)))


def test_other_tables_are_rejected() -> None:
    assert "do not follow one axis each of a grid of 7 x 28" in sinpe.identify(MAE, shape=(7, 28)).reason
    learned = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    matches = sinpe.identify(torch.cat([learned, MAE + learned]), shape=(14, 14))
    assert list(matches) == [] and matches.reason.startswith("its first row is not zero, but a grid of 14 x 14")
    assert list(sinpe.identify(MAE + learned * 0.01)) == [] and list(sinpe.identify(torch.randn(9, 9, 32))) == []
    changed = MAE.clone()
    changed[[20, 90]] += 0.3
    matches = sinpe.identify(changed, shape=(14, 14))
    assert "differs in 2 of 196 rows (20, 90)" in matches.reason
    assert matches.closest is not None and matches.closest.name == "mae2d"
    video = sinpe.table((4, 6, 8), sinpe.convention("multidim3d", 96), flatten=True)
    noise = torch.randn(video.shape, generator=torch.Generator().manual_seed(0)) * 0.02
    assert "pass shape=(H, W) or (T, H, W)" in sinpe.identify(video + noise).reason
