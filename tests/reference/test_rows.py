"""The reference implementation's rows: equal to integer arithmetic bit by bit, whatever the blocks."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

import pytest
import torch
from test_exact import ENCODINGS, INT64_MAX, INT64_MIN
from ulp import same_bits

import sinpe_ext
from sinpe_ext import reference
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import Plan, plan
from sinpe_ext.reference import arrays, exact

INTEGERS = [
    *range(-5, 70),
    *(sign * (2**k + d) for k in range(7, 63, 3) for d in (-1, 0, 1) for sign in (-1, 1)),
    *(2**24 + 1, 2**31 - 1, 2**40, INT64_MIN, INT64_MIN + 1, INT64_MAX),
]
FLOATS = [
    *(0.0, -0.0, 0.5, -0.1, 1 / 3, 0.9999, 1.5, 499.25, -1234.56789, 1e-3, 1e-30, -1e-200, 1e6 + 0.1, 2.0**31 - 0.5),
    *(2.0**53 - 1, 2.0**62, -(2.0**63), 2.0**64, 1e300),
]
RUNS = [(-3, 7), (0, 70), (-(2**40), 33), (INT64_MIN, 5), (INT64_MAX - 66, 67)]  # start, length


def check_entries(p: Plan, positions: list, values: torch.Tensor) -> None:
    """Each float32 entry is bitwise equal to the integer evaluation, which test_exact.py compares with mpmath."""
    for position, row in zip(positions, values.tolist(), strict=True):
        for channel, got in enumerate(row):
            want = exact.float32(p, position, channel)
            assert struct.pack("f", got) == struct.pack("f", want), (position, channel, got, want)


@pytest.fixture(params=[2**6, 2**16], ids=["small_blocks", "large_blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Work buffers of this many elements, filled with NaN so that an element that is not written shows."""
    plain = arrays.TorchArrays.__init__
    empty = arrays.TorchArrays.empty

    def init(self, xp, device):
        plain(self, xp, device)
        self.block = request.param

    def nan_filled(self, shape, dtype):
        return empty(self, shape, dtype).fill_(math.nan if dtype.is_floating_point else -1)

    monkeypatch.setattr(arrays.TorchArrays, "__init__", init)
    monkeypatch.setattr(arrays.TorchArrays, "empty", nan_filled)
    yield request.param


@pytest.mark.sampled("values")
@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "smallest"])  # float64 products are zero there
def test_rows_equal_integer_evaluation(name: str, block: int) -> None:
    of = plan(ENCODINGS[name])
    integers = INTEGERS[:: 9 if of.dim > 20 else 2]
    narrow = torch.tensor(FLOATS[:-1], dtype=torch.float32)
    for p in (of, of.partner()):
        check_entries(p, integers, reference.encode(p, torch.tensor(integers), torch.float32))
        check_entries(p, FLOATS, reference.encode(p, torch.tensor(FLOATS, dtype=torch.float64), torch.float32))
        check_entries(p, narrow.tolist(), reference.encode(p, narrow, torch.float32))
    for start, length in RUNS:
        rows = reference.table(of, length, start, torch.float32)
        picked = [*range(0, length, 17), length - 1]
        check_entries(of, [start + row for row in picked], rows[picked])


def test_cosines_beside_the_midpoint_of_two_floats(backend: str) -> None:
    """The error of cos is absolute however small the angle is: float64 rounds these cosines to the midpoint itself."""
    middle, sides = math.acos(1 - 2.0**-25), set()
    for step in range(-40, 41):
        encoding = Encoding(2, frequencies=(middle + step * 2.0**-64,))
        want = exact.float32(plan(encoding), 1, 1)
        for rows in (sinpe_ext.table(2, encoding), sinpe_ext.encode(torch.arange(2.0), encoding)):
            assert float(rows[1, 1]) == want, step
        sides.add(want)
    assert len(sides) == 2


@pytest.mark.sampled("values")
@pytest.mark.parametrize("name", ["paper", "odd_halves", "odd_pad", "own_odd_halves", "turns", "dim_1"])
def test_bits_do_not_depend_on_blocks(name: str, block: int) -> None:
    p, start, length = plan(ENCODINGS[name]), -60, 131
    order = torch.randperm(length, generator=torch.Generator().manual_seed(1))
    for dtype in (torch.float32, torch.float64):
        whole = reference.table(p, length, start, dtype)
        parts = [reference.table(p, n, start + first, dtype) for first, n in ((0, 1), (1, 63), (64, 60), (124, 7))]
        assert same_bits(whole, torch.cat(parts))
        assert same_bits(whole[order], reference.encode(p, torch.arange(start, start + length)[order], dtype))


def test_default_device_does_not_affect_the_constants() -> None:
    with torch.device("meta"):
        assert reference.table(plan(Encoding(8)), 5, 0, torch.float32).device.type == "cpu"
    assert reference.table(plan(Encoding(8)), 5, 0, torch.float32, "meta").shape == (5, 8)


def test_non_finite_positions_leave_zero_channels() -> None:
    got = reference.encode(plan(Encoding(7, odd="pad")), torch.tensor([1.0, math.nan, math.inf]), torch.float32)
    assert got[1:, :6].isnan().all() and not got[0].isnan().any() and (got[:, 6] == 0).all()
