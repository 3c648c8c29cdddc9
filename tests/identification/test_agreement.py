"""Whether a stored table is that of an encoding: rounding errors are accepted, other differences are not."""

from __future__ import annotations

import math

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.agreement import agrees, compare
from sinpe_ext.encodings.encoding import Encoding

ROWS, SHAPE = 3000, (20, 30)
ENCODINGS = [
    Encoding(64),
    sinpe.convention("fairseq", 65),
    sinpe.convention("adm", 64, base=500.0, position_scale=20.0, amplitude=0.02),
    sinpe.convention("nerf", 16, position_scale=0.125),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_rounding_errors_are_accepted_and_other_encodings_are_not(encoding: Encoding) -> None:
    for angle in ("exact", "float32_exp", "float32_pow"):
        held = sinpe.table(ROWS, encoding.replace(angle=angle))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            assert agrees(held.to(dtype), encoding)
    held = sinpe.table(ROWS, encoding)
    changes: list[dict[str, float]] = [{"base": float(encoding.base) * 1.01}, {"start": encoding.start + 1}]
    for fields in [*changes, {"amplitude": encoding.amplitude * 1.001}]:
        assert not agrees(held, encoding.replace(**fields))
    assert not agrees(held.bfloat16(), encoding.replace(amplitude=encoding.amplitude * 1.05))


@pytest.mark.parametrize("name", ["mae2d", "detr2d"])
def test_grids(name: str) -> None:
    grid = sinpe.convention(name, 64)
    for angle in ("exact", "float32_pow"):
        held = sinpe.table(SHAPE, grid.with_axes(angle=angle), flatten=True)
        assert agrees(held, grid, SHAPE)
        assert not agrees(held, grid, SHAPE[::-1]) and not agrees(held, grid.with_axes(start=(3, 3)), SHAPE)


def test_rows_are_compared_one_by_one() -> None:
    held = sinpe.table(ROWS, 64)
    held[7, 3] += 0.01
    held[90, 0] = math.nan
    compared = compare(held, Encoding(64))
    assert compared.differs.nonzero().flatten().tolist() == [7, 90]
    assert float(compared.error[7]) == pytest.approx(0.01, abs=1e-6)
    some = compare(held, Encoding(64), which=torch.tensor([90, 8, 7]))
    assert some.differs.tolist() == [True, False, True]
