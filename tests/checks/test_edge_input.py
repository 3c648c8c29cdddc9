"""Unusual arguments with a defined result: far, negative and non-finite positions, all layouts, all sizes."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

B, S, D = 3, 6, 8
MAX = 2**63 - 1
PADDED = sinpe.convention("t2t", D + 1)  # the last channel is zero
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


POSITION_TYPES = {
    torch.uint8: [0, 1, 255],
    torch.int8: [-128, -1, 127],
    torch.uint16: [0, 300, 2**16 - 1],
    torch.int16: [-(2**15), 300, 2**15 - 1],
    torch.uint32: [0, 2**31, 2**32 - 1],
    torch.int32: [-(2**31), 2**24 + 1, 2**31 - 1],
    torch.uint64: [0, 2**40 + 1, MAX],
    torch.int64: [-MAX - 1, 2**40 + 1, MAX],
    torch.float32: [-1.5, 2.0**24, 1e30],
    torch.float64: [-1.5, 2.0**53 + 2, 1e300],
}


@pytest.mark.bad_input(6, "compiled", "eager")
@pytest.mark.parametrize("dtype", POSITION_TYPES, ids=str)
def test_positions_of_any_dtype_are_exact(dtype: torch.dtype, backend: str) -> None:
    values = POSITION_TYPES[dtype]
    positions = torch.tensor(values, dtype=dtype)
    want = [[exact.float32(plan(PADDED), value, c) for c in range(PADDED.dim)] for value in positions.tolist()]
    got = sinpe.encode(positions, PADDED)
    assert torch.equal(got, torch.tensor(want))
    assert torch.equal(sinpe.encode(positions.view(3, 1), PADDED)[:, 0], got)
    assert torch.equal(sinpe.add(torch.zeros(1, 3, PADDED.dim), PADDED, positions=positions)[0], got)


@pytest.mark.bad_input(5, "compiled", "eager")
def test_float32_positions_above_2_24_are_rounded(backend: str) -> None:
    """2**24 + 1 is 2**24 in float32."""
    positions = torch.tensor([2**24, 2**24 + 1])
    whole, rounded = sinpe.encode(positions, D), sinpe.encode(positions.float(), D)
    assert not torch.equal(whole[0], whole[1]) and torch.equal(rounded[0], rounded[1])
    assert torch.equal(rounded[0], whole[0]) and torch.equal(sinpe.encode(positions.double(), D), whole)


@pytest.mark.bad_input(4, "compiled", "eager")
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_positions_affect_only_their_rows(dtype: torch.dtype, wide: torch.dtype, backend: str) -> None:
    nowhere = [float("nan"), float("inf"), -float("inf")]
    positions = torch.tensor([1.5, nowhere[0], -2.0, nowhere[1], nowhere[2], 3.25], dtype=wide)
    good = positions.isfinite()
    rows = sinpe.encode(positions, PADDED, dtype=dtype)
    assert bool(rows[~good, :-1].isnan().all()) and bool((rows[:, -1] == 0).all())
    assert torch.equal(rows[good], sinpe.encode(positions[good], PADDED, dtype=dtype))
    x = randn(B, S, D + 1, dtype=dtype)
    got = sinpe.add(x, PADDED, positions=positions)
    assert bool(got[:, ~good, :-1].isnan().all()) and torch.equal(got[..., -1], x[..., -1])
    assert torch.equal(got[:, good], sinpe.add(x[:, good], PADDED, positions=positions[good]))
    mask = ~good
    assert torch.equal(sinpe.add(x, PADDED, positions=positions, padding_mask=mask)[:, mask], x[:, mask])


@pytest.mark.bad_input(4, "compiled", "eager")
def test_positive_and_negative_zero(backend: str) -> None:
    want = torch.tensor([0.0, 1.0] * (D // 2)).expand(4, D)
    for positions in (torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.zeros(4, dtype=torch.int64)):
        rows = sinpe.encode(positions, D)
        assert torch.equal(rows, want) and not bool(rows.signbit().any())


@pytest.mark.bad_input(3, "compiled", "eager")
def test_negative_start(backend: str) -> None:
    """Left padding moves the first row below 0: sines change sign, cosines do not."""
    x = torch.zeros(1, 2 * S + 1, D)
    rows = sinpe.add(x, start=-S)[0]
    assert torch.equal(rows, sinpe.encode(torch.arange(-S, S + 1), D))
    mirrored = rows.flip(0)
    assert torch.equal(mirrored[:, 1::2], rows[:, 1::2])
    assert torch.equal(mirrored[:S, ::2], -rows[:S, ::2])
    assert torch.equal(sinpe.add(x, start=torch.tensor(-S))[0], rows)


@pytest.mark.bad_input(7, "compiled", "eager")
@pytest.mark.parametrize("start", [-MAX - 1, -(2**31) - 2, 2**24 - 2, 2**31 - 3, 2**32 - 2, MAX - S + 1])
def test_rows_at_the_limits_of_integer_types(start: int, backend: str) -> None:
    want = torch.stack([sinpe.encode(torch.tensor(start + row), D) for row in range(S)])
    assert torch.equal(sinpe.table(S, D, start=start), want)
    for given in (start, torch.tensor(start), torch.tensor([start] * B)):
        assert torch.equal(sinpe.add(torch.zeros(B, S, D), start=given)[1], want)


@pytest.mark.bad_input(7, "compiled", "eager")
def test_last_int64_position_has_no_successor(backend: str) -> None:
    """Positions at both ends of int64 in one call: consecutive only in wrapping arithmetic."""
    positions = torch.cat([torch.arange(20) + (MAX - 19), torch.arange(20) - MAX - 1])
    assert positions[[0, 19, 20, 39]].tolist() == [MAX - 19, MAX, -MAX - 1, -MAX + 18]
    want = torch.cat([sinpe.encode(part, 64) for part in positions.split(1)])
    assert torch.equal(sinpe.encode(positions, 64), want)
    assert torch.equal(sinpe.add(torch.zeros(1, 40, 64), positions=positions)[0], want)


@pytest.mark.bad_input(8, "compiled", "eager")
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 33, 66, 2**20 + 1])
def test_any_number_of_channels(dim: int, backend: str) -> None:
    rows = 3 if dim < 1000 else 1
    x = randn(rows, dim)
    want = sinpe.table(rows, dim, start=5)
    assert torch.equal(sinpe.add(x, start=5), x + want)
    assert torch.equal(sinpe.encode(torch.arange(5, 5 + rows), dim), want)
    column = dim - 1
    assert float(want[-1, column]) == exact.float32(plan(sinpe.Encoding(dim)), 4 + rows, column)


@pytest.mark.bad_input(9, "compiled", "eager", "layer")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape", [(0, S, D), (B, 0, D), (B, S, 0), (0, D), (S, 0), (0, 0, 0), (B, 0, S, D), (0, 2, 0, D)]
)
def test_empty_tensors(shape: tuple[int, ...], dtype: torch.dtype, backend: str) -> None:
    x = torch.empty(shape, dtype=dtype)
    batch = shape[0] if len(shape) > 2 else 1
    for arguments in ({}, {"start": MAX - 9}, {"start": torch.zeros(batch, dtype=torch.int64)}, {"scale": 2.0}):
        got = sinpe.add(x, **arguments)
        assert got.shape == shape and got.dtype == dtype and got is not x
    positions = torch.zeros(batch, shape[-2], dtype=torch.int64)
    assert sinpe.add(x, positions=positions, padding_mask=positions > 0).shape == shape
    assert sinpe.add_(x) is x and sinpe.add(x, out=x) is x
    assert sinpe.SinusoidalPositionalEncoding(shape[-1] or 1).eval()(torch.empty(0, shape[-1] or 1)).shape[0] == 0


@pytest.mark.bad_input(9, "compiled", "eager")
def test_zero_rows(backend: str) -> None:
    assert sinpe.table(0, D, start=MAX).shape == (0, D)
    assert sinpe.encode(torch.empty(0), D).shape == (0, D) and sinpe.encode(torch.empty(2, 0), D).shape == (2, 0, D)
    assert sinpe.table(0, D, out=torch.empty(0, D)).shape == (0, D)


LAYOUTS: dict[str, Any] = {
    "sequence first": lambda t: t(S, B, D).transpose(0, 1),
    "every other channel": lambda t: t(B, S, 2 * D)[..., ::2],
    "every other row": lambda t: t(B, 2 * S, D)[:, 1::2],
    "a window": lambda t: t(B, S + 2, D + 5)[:, 1:-1, 2 : D + 2],
    "one element in": lambda t: t(B * S * D + 1)[1:].view(B, S, D),
    "channels first": lambda t: t(B, D, S).transpose(1, 2),
    "expanded batch": lambda t: t(1, S, D).expand(B, S, D),
    "expanded rows": lambda t: t(B, 1, D).expand(B, S, D),
    "expanded channels": lambda t: t(B, S, 1).expand(B, S, D),
    "one number": lambda t: t(1).expand(B, S, D),
    "overlapping": lambda t: t(100).as_strided((B, S, D), (7, 3, 1)),
    "channels last": lambda t: t(B, 4, S, D).to(memory_format=torch.channels_last),
    "5-D": lambda t: t(S, 2, B, D, 2).permute(2, 1, 4, 0, 3),
    "negated": lambda t: torch.complex(t(B, S, D).float(), -t(B, S, D).float()).conj().imag,
}


@pytest.mark.bad_input(11, "compiled", "eager", "meta")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str, dtype: torch.dtype, backend: str) -> None:
    x = LAYOUTS[layout](lambda *shape: randn(*shape, dtype=dtype))
    mask = torch.arange(S) > 3
    for arguments in (
        {"start": 3},
        {"scale": 0.7, "alpha": 1.3, "padding_mask": mask},
        {"positions": torch.rand(B, S)},
    ):
        before = x.clone()
        got = sinpe.add(x, **arguments)
        assert torch.equal(got, sinpe.add(x.clone(memory_format=torch.contiguous_format), **arguments))
        assert torch.equal(x, before)
        on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        assert got.stride() == torch.empty_like(x).stride() == sinpe.add(x.to("meta"), **on_meta).stride()
    if "expanded" not in layout and layout not in ("one number", "overlapping"):
        want = sinpe.add(x, start=3)
        assert sinpe.add_(x, start=3) is x and torch.equal(x, want)


@pytest.mark.bad_input(11, "compiled", "eager")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_of_any_layout(layout: str, dtype: torch.dtype, backend: str) -> None:
    positions = LAYOUTS[layout](lambda *shape: torch.arange(torch.Size(shape).numel()).reshape(shape))
    if layout == "negated":
        return
    want = sinpe.encode(positions.clone(memory_format=torch.contiguous_format), 4, dtype=dtype)
    assert torch.equal(sinpe.encode(positions, 4, dtype=dtype), want)


@pytest.mark.bad_input(11, "compiled", "eager")
def test_masks_and_starts_of_any_layout(backend: str) -> None:
    x = randn(B, S, D)
    positions, mask = torch.arange(B * S).reshape(S, B), (torch.arange(B * S) % 3 == 0).reshape(S, B)
    want = sinpe.add(x, positions=positions.t().contiguous(), padding_mask=mask.t().contiguous())
    assert torch.equal(sinpe.add(x, positions=positions.t(), padding_mask=mask.t()), want)
    row = torch.arange(2 * S)[::2]
    assert torch.equal(sinpe.add(x, positions=row.expand(B, S)), sinpe.add(x, positions=row.clone()))
    starts = torch.arange(2 * B)[::2]
    assert torch.equal(sinpe.add(x, start=starts), sinpe.add(x, start=starts.clone()))
    assert torch.equal(sinpe.add(x, start=torch.tensor([4]).expand(B)), sinpe.add(x, start=4))


@pytest.mark.bad_input(11, "compiled", "eager")
@pytest.mark.parametrize("out", ["contiguous", "columns", "transposed", "rows", "negated"])
def test_table_out_of_any_layout(out: str, backend: str) -> None:
    target = {
        "contiguous": torch.full((S, D), torch.nan),
        "columns": torch.full((S, 2 * D), torch.nan)[:, ::2],
        "transposed": torch.full((D, S), torch.nan).t(),
        "rows": torch.full((2 * S, D + 3), torch.nan)[1::2, 1 : D + 1],
        "negated": torch.full((S, 2 * D), torch.nan)[:, :D]._neg_view(),
    }[out]
    assert sinpe.table(S, D, start=2, out=target) is target
    assert torch.equal(target, sinpe.table(S, D, start=2))


@pytest.mark.bad_input(10, "compiled")
@pytest.mark.parametrize("shape", [(70000, 1, 4), (1, 70000, 4), (2, 33000, 2, 3), (100000, 3)])
def test_sizes_beyond_16_bits(shape: tuple[int, ...], backend: str) -> None:
    x = torch.zeros(shape)
    rows = sinpe.table(shape[-2], shape[-1])
    assert torch.equal(sinpe.add(x), rows.expand(shape))


@pytest.mark.thorough("test_sizes_beyond_16_bits and the C++ test of layouts use the same indices")
@pytest.mark.bad_input(10, "compiled")
def test_more_elements_than_31_bits(backend: str) -> None:
    if backend == "eager":
        pytest.skip("half a minute of PyTorch operations")
    rows, dim = 2**22, 513
    needed = 12 * 2**30
    pages = os.sysconf("SC_AVPHYS_PAGES") if hasattr(os, "sysconf") else 0
    if pages * os.sysconf("SC_PAGE_SIZE") < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory")
    x = torch.zeros(1, rows, dim, dtype=torch.bfloat16)
    assert x.numel() > 2**31
    sinpe.add_(x)
    for row in (0, 2**22 // 2, rows - 1):
        assert torch.equal(x[0, row], sinpe.table(1, dim, start=row, dtype=torch.bfloat16)[0])


@pytest.mark.bad_input(22, "compiled", "eager")
def test_python_threads(backend: str) -> None:
    """Eight threads at once, each with an encoding that was not used before."""
    results: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        encoding = sinpe.Encoding(64, base=9000.0 + index // 2)
        results[index] = sinpe.add(torch.zeros(2, 300, 64), encoding, start=index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    for index, got in results.items():
        assert torch.equal(got[1], sinpe.table(300, sinpe.Encoding(64, base=9000.0 + index // 2), start=index))
    assert len(results) == 8
