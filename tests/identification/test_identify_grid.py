"""identify for grids: every name at several shapes, flattened or not, then any base, start and scale."""

from __future__ import annotations

import random

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.grid import GridEncoding
from sinpe_ext.encodings.grid_catalogue import GRIDS

DIMS = (27, 48, 64, 96)
STORAGE = (torch.float32, torch.bfloat16)
# As in test_identify.py; fewer places per axis determine its base less precisely.
HIDDEN = {torch.float32: 3e-5, torch.bfloat16: 2e-2}


def shapes(name: str) -> tuple[tuple[int, ...], ...]:
    return ((4, 8, 8), (3, 5, 7)) if name.endswith("3d") else ((8, 8), (6, 11), (14, 14))


def grid_table(grid: GridEncoding, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sinpe.table(shape, grid, dtype=torch.float64).to(dtype)


def check_code(match: sinpe.Match) -> None:
    assert eval(match.code, {"sinpe": sinpe}) == match.encoding


def exists(name: str, dim: int) -> bool:
    """Whether a grid with that many channels exists."""
    try:
        sinpe.convention(name, dim)
    except ValueError:
        return False
    return True


@pytest.mark.sampled("values", where=lambda name, dim, **_: exists(name, dim))
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", GRIDS)
def test_every_name(name: str, dim: int, dtype: torch.dtype) -> None:
    if not exists(name, dim):
        pytest.skip(f"{name} has no grid of {dim} channels")
    grid = sinpe.convention(name, dim)
    for shape in shapes(name):
        held = grid_table(grid, shape, dtype)
        flat = held.reshape(-1, dim)
        ways = [
            (flat, shape),
            (held, None),
            (flat[None], shape),
            (torch.cat([torch.zeros(1, dim, dtype=dtype), flat]), shape),
        ]
        ways += [(flat, None)] if len(set(shape)) == 1 and len(shape) == 2 else []
        for number, (tensor, given) in enumerate(ways):
            match = sinpe.identify(tensor, shape=given)[0]
            assert name in (match.name, *match.aliases), (shape, number, match)
            assert (match.shape, match.extra_tokens) == (shape, int(number == 3))
            assert torch.equal(sinpe.table(shape, match.encoding), sinpe.table(shape, grid))
            check_code(match)


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


@pytest.mark.sampled(4, "drawn cases")
@pytest.mark.parametrize("seed", range(40))
def test_random_grids(seed: int) -> None:
    name, grid, shape, dtype = random_grid(seed)
    matches = sinpe.identify(grid_table(grid, shape, dtype), shape=shape)
    assert matches, (grid, shape, dtype, matches.reason)
    match = matches[0]
    check_code(match)
    off = (grid_table(match.encoding, shape, torch.float64) - grid_table(grid, shape, torch.float64)).abs().max()
    assert float(off) <= HIDDEN[dtype] * abs(grid.axes[0].amplitude), (grid, match)
    starts = tuple(axis.start for axis in grid.axes)
    assert match.start == (starts[0] if len(set(starts)) == 1 else starts)
    if dtype is torch.float32:
        assert name in (match.name, *match.aliases), (grid, match)


def test_interpolation_is_recovered_as_fractions() -> None:
    grid = sinpe.convention("mae2d", 192).interpolated((24, 32), base_size=14, scale=2)
    match = sinpe.identify(grid_table(grid, (24, 32)))[0]
    assert match.name == "mae2d"
    assert [axis.position_scale for axis in match.encoding.axes] == [14 / 24 / 2, 14 / 32 / 2]


def test_names_of_the_same_grid_are_aliases() -> None:
    def aliases(name: str, **fields: int) -> tuple[str, ...]:
        match = sinpe.identify(grid_table(sinpe.convention(name, 64, **fields), (8, 9)))[0]
        return (match.name, *match.aliases)

    assert aliases("mae2d") == ("mae2d", "monai2d")
    assert aliases("hf2d") == ("hf2d", "fairseq2_2d")
    assert aliases("detr2d") == ("detr2d", "multidim2d")
    assert aliases("multidim2d") == ("multidim2d",)
    assert aliases("hf2d", base=500) == ("hf2d", "fairseq2_2d")


def test_channel_first() -> None:
    held = grid_table(sinpe.convention("detr2d", 64), (8, 10)).permute(2, 0, 1)
    for tensor, shape in ((held, (8, 10)), (held[None], None), (held[None], (8, 10))):
        match = sinpe.identify(tensor, shape=shape)[0]
        assert (match.name, match.shape) == ("detr2d", (8, 10))


def test_channel_first_and_flattened() -> None:
    for shape, given in (((12, 12), None), ((12, 12), (12, 12)), ((12, 16), (12, 16))):
        flat = grid_table(sinpe.convention("detr2d", 64), shape).reshape(-1, 64)
        for tensor in (flat.T, flat.T[None]):
            match = sinpe.identify(tensor, shape=given)[0]
            assert (match.name, match.shape, match.transposed) == ("detr2d", shape, True)
        assert not sinpe.identify(flat, shape=given)[0].transposed


def test_nerf_points() -> None:
    grid = sinpe.convention("nerf", 24, axes=2, position_scale=0.125)
    match = sinpe.identify(grid_table(grid, (8, 12)))[0]
    assert match.code == 'sinpe.convention("nerf", 24, axes=2, position_scale=0.125)'
    check_code(match)


def test_float32_angle_errors_of_a_grid() -> None:
    grid = sinpe.convention("mae2d", 64)
    held = sinpe.table((32, 32), grid.with_axes(angle="float32_pow"))
    assert sinpe.identify(held)[0].float32_angle == "float32_pow"
    assert sinpe.identify(sinpe.table((32, 32), grid))[0].float32_angle == ""


def test_other_tables_are_rejected() -> None:
    flat = grid_table(sinpe.convention("mae2d", 64), (14, 14)).reshape(-1, 64)
    assert "do not follow one axis each of a grid of 7 x 28" in sinpe.identify(flat, shape=(7, 28)).reason
    learned = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    matches = sinpe.identify(torch.cat([learned, flat + learned]), shape=(14, 14))
    assert list(matches) == [] and matches.reason.startswith("its first row is not zero, but a grid of 14 x 14")
    assert list(sinpe.identify(flat + learned * 0.01)) == []
    assert list(sinpe.identify(torch.randn(14, 14, 64))) == []
    changed = flat.clone()
    changed[[20, 90]] += 0.3
    matches = sinpe.identify(changed, shape=(14, 14))
    assert "differs in 2 of 196 rows (20, 90)" in matches.reason
    assert matches.closest is not None and matches.closest.name == "mae2d"
