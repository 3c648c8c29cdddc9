"""All named conventions against their libraries' formulas in 50 digits: values, starts, errors."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import convention_formulas as formulas
import numpy as np
import pytest
import torch
import ulp
from convention_formulas import FORMULAS, MP, STARTS

import sinpe_ext as sinpe
from sinpe_ext.encodings import catalogue

SEED = 20231
ONE_DIMENSIONAL = [name for name, (_, coordinates) in FORMULAS.items() if coordinates == 1]
GRIDS = [name for name, (_, coordinates) in FORMULAS.items() if coordinates > 1]
DIMS: dict[str, tuple[int, ...]] = {
    **{name: (1, 2, 3, 4, 5, 7, 10, 33) for name in ONE_DIMENSIONAL},
    "tcnn": (1, 2, 3, 7, 20),  # 2^9 half turns; models do not use more octaves
    "nerf": (1, 2, 3, 7, 20),
    "mae2d": (4, 8, 12, 20, 64),
    "hf2d": (4, 8, 12, 20, 64),
    "bigvision2d": (4, 8, 12, 20, 64),  # 4: one timescale, where the library divides 0 by 0
    "timm2d": (4, 8, 12, 20, 64),
    "cogvideo3d": (16, 48, 80),
    "t2t2d": (4, 5, 6, 7, 8, 11, 30),
    "multidim2d": (1, 2, 3, 5, 6, 7, 8, 10, 33),
    "multidim3d": (1, 2, 3, 4, 5, 7, 8, 11, 12, 33),
    "detr2d": (4, 8, 12, 20, 64),
    "fairseq2_2d": (4, 6, 8, 10, 34),
    "fairseq2_3d": (8, 12, 14, 16, 20, 34, 36),
    "monai2d": (4, 8, 12, 64),
    "monai3d": (6, 12, 18, 48),
}
# The amplitude 1 / sqrt(dim) is rounded to float64, by up to half an ULP, before the product.
FLOAT64_ULP = {"unit": 1.5}


def positions_of(name: str) -> list[Any]:
    """Every third to 64, then a sample up to 4096, whole and fractional; changes with SEED."""
    drawn = random.Random(SEED)
    far = [100, 127, 128, 511, 512, 1000, 1023, 2047, 2048, 3071, 4000, 4095, 4096, 0.5, 998.39, 3.25e-3, -3]
    far += [drawn.randrange(4097) for _ in range(8)] + [drawn.uniform(0, 4096) for _ in range(8)]
    line = [*range(0, 65, 3), *far]
    coordinates = FORMULAS[name][1]
    if coordinates == 1:
        return line
    return [tuple(line[(k + 7 * axis * k) % len(line)] for axis in range(coordinates)) for k in range(len(line))]


@cache
def row_of(name: str, dim: int, position: Any) -> tuple[Any, ...]:
    return tuple(formulas.row(name, position, dim))


def double_double(name: str, dim: int, positions: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The formula's rows as an unevaluated sum of two float64 arrays."""
    rows = [row_of(name, dim, position) for position in positions]
    assert all(len(row) == dim for row in rows)
    high = np.array([[float(value) for value in row] for row in rows])
    low = np.array([[float(value - MP.mpf(float(value))) for value in row] for row in rows])
    return high, low


def float32(name: str, dim: int, positions: list[Any]) -> np.ndarray:
    """The formula's rows, correctly rounded to float32."""
    exact = [row_of(name, dim, position) for position in positions]
    with MP.workprec(24):  # float32 precision, to avoid double rounding
        return np.array([[float(+value) for value in row] for row in exact], dtype=np.float32)


def assert_float32(got: torch.Tensor, name: str, positions: list[Any]) -> None:
    dim = got.shape[-1]
    rows, want = got.reshape(-1, dim).numpy(), float32(name, dim, positions)
    wrong = np.argwhere(rows != want)
    assert rows.shape == want.shape
    if len(wrong):
        at, channel = wrong[0]
        pytest.fail(
            f"{name}, dim {dim}, seed {SEED}: {len(wrong)} of {want.size} values are not the formula's rounded once; "
            f"at {positions[at]}, channel {channel}: {rows[at, channel]!r}, expected {want[at, channel]!r}"
        )


def test_every_name_has_a_formula() -> None:
    assert list(FORMULAS) == list(DIMS) and set(FORMULAS) == set(catalogue.NAMES)


@pytest.mark.sampled("values")  # both backends have the bits of test_pinned_bits.py
@pytest.mark.parametrize("name", FORMULAS)
def test_values(name: str, backend: str) -> None:
    positions = positions_of(name)
    given = torch.tensor(positions, dtype=torch.float64)
    channels = {dim: np.tile(np.arange(dim), (len(positions), 1)) for dim in DIMS[name]}
    for dim in DIMS[name]:
        encoding = sinpe.convention(name, dim)
        assert_float32(sinpe.encode(given, encoding), name, positions)
        got = sinpe.encode(given, encoding, dtype=torch.float64).numpy()
        report = ulp.report(got, *double_double(name, dim, positions), "float64", positions, channels[dim])
        assert report.worst <= FLOAT64_ULP.get(name, 1.0), f"{name}, dim {dim}, seed {SEED}: {report}"


@pytest.mark.sampled("values")
@pytest.mark.parametrize("name", FORMULAS)
def test_tables_start_where_the_library_does(name: str, backend: str) -> None:
    first, coordinates = STARTS.get(name, 0), FORMULAS[name][1]
    for dim in DIMS[name][:4]:
        encoding = sinpe.convention(name, dim)
        if coordinates == 1:
            assert_float32(sinpe.table(20, encoding), name, [first + k for k in range(20)])
            assert_float32(sinpe.table(3, encoding, start=4000), name, [first + 4000 + k for k in range(3)])
            continue
        shape, start = (3, 4, 2)[:coordinates], (7, 0, 2000)[:coordinates]
        cells = [tuple(first + k for k in cell) for cell in np.ndindex(*shape)]
        got = sinpe.table(shape, encoding)
        assert got.shape == (*shape, dim)
        assert_float32(got, name, cells)
        cropped = [tuple(a + b for a, b in zip(cell, start, strict=True)) for cell in cells]
        assert_float32(sinpe.table(shape, encoding, start=start), name, cropped)
        flat = sinpe.table(shape, encoding, extra_tokens=2)
        assert flat.shape == (2 + len(cells), dim) and not flat[:2].any()
        assert torch.equal(flat[2:], got.flatten(0, -2))
        assert torch.equal(sinpe.table(shape, encoding, flatten=True), flat[2:])


@pytest.mark.parametrize("name", FORMULAS)
def test_rejects_what_the_library_rejects(name: str) -> None:
    """And nothing else. t2t2d with too few channels for a timescale and fairseq2's broken tables count as rejected."""
    origin = (1,) * FORMULAS[name][1] if FORMULAS[name][1] > 1 else 1
    refused = 0
    for dim in range(1, 61):
        try:
            formulas.row(name, origin, dim)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match=f"^dim: expected .*{name}, got {dim}"):
                sinpe.convention(name, dim)
        else:
            assert sinpe.convention(name, dim).dim == dim
    accepts_all = name in ONE_DIMENSIONAL or name.startswith("multidim")
    assert refused == 0 if accepts_all else 0 < refused < 60


@pytest.mark.parametrize("name", ["nerf", "tcnn"])
def test_points(name: str, backend: str) -> None:
    """Points of several coordinates: concatenated in nerf, interleaved blocks in tiny-cuda-nn."""
    drawn = random.Random(SEED)
    for axes in (1, 2, 3):
        points = [tuple(drawn.uniform(-1, 1) for _ in range(axes)) for _ in range(20)] + [(0.5,) * axes, (0.0,) * axes]
        for octaves in (1, 2, 10):
            dim = 2 * octaves * axes
            encoding = sinpe.convention(name, dim, axes=axes)
            assert encoding.ndim == axes
            assert_float32(sinpe.encode(torch.tensor(points, dtype=torch.float64), encoding), name, points)
        for dim in (2 * axes - 1, 2 * axes + 1):
            with pytest.raises(ValueError, match=f"multiple of {2 * axes} for {name}"):
                sinpe.convention(name, dim, axes=axes)
