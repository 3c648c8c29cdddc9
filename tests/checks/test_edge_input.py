"""Unusual arguments with a defined result: far, negative and non-finite positions, limits of integer types, sizes."""

from __future__ import annotations

import os

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

B, S, D = 3, 6, 8
MAX = 2**63 - 1
PADDED = sinpe.convention("t2t", D + 1)  # the last channel is zero
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
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
    torch.bfloat16: [-1.5, 257.0, 2.0**20],
    torch.float16: [-1.5, 2049.0, 65504.0],
}


@pytest.mark.bad_input(5, "compiled", "eager", "meta", "layer")
@pytest.mark.bad_input(6, "compiled", "eager", "meta", "layer")
@pytest.mark.parametrize("dtype", POSITION_TYPES, ids=str)
def test_positions_of_any_dtype_are_exact(dtype: torch.dtype, backend: str) -> None:
    """Each at its stored value; 2**24 + 1 is 2**24 in float32."""
    positions, is_16bit = (
        torch.tensor(POSITION_TYPES[dtype], dtype=dtype),
        dtype.itemsize == 2 and dtype.is_floating_point,
    )
    want = [[exact.float32(plan(PADDED), value, c) for c in range(PADDED.dim)] for value in positions.tolist()]
    got = sinpe.encode(positions, PADDED, allow_16bit=is_16bit)
    assert torch.equal(got, torch.tensor(want))
    assert torch.equal(sinpe.encode(positions.view(3, 1), PADDED, allow_16bit=is_16bit)[:, 0], got)
    assert sinpe.encode(positions.to("meta"), PADDED, allow_16bit=is_16bit).shape == got.shape
    if not is_16bit:
        x, layer = torch.zeros(1, 3, PADDED.dim), sinpe.SinusoidalPositionalEncoding(PADDED.dim, 0.0, encoding=PADDED)
        assert torch.equal(sinpe.add(x, PADDED, positions=positions)[0], got)
        assert torch.equal(layer(x, positions=positions)[0], got)


@pytest.mark.bad_input(4, "compiled", "eager", "meta", "layer")
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_non_finite_positions_affect_only_their_rows(wide: torch.dtype, backend: str) -> None:
    nan, inf = float("nan"), float("inf")
    positions = torch.tensor([1.5, nan, -2.0, inf, -inf, 3.25], dtype=wide)
    good, layer = positions.isfinite(), sinpe.SinusoidalPositionalEncoding(D + 1, 0.0, encoding=PADDED)
    for dtype in FLOATS:
        rows = sinpe.encode(positions, PADDED, dtype=dtype)
        assert bool(rows[~good, :-1].isnan().all()) and bool((rows[:, -1] == 0).all())
        assert torch.equal(rows[good], sinpe.encode(positions[good], PADDED, dtype=dtype))
        x = torch.randn(B, S, D + 1).to(dtype)
        got = sinpe.add(x, PADDED, positions=positions)
        assert bool(got[:, ~good, :-1].isnan().all()) and torch.equal(got[..., -1], x[..., -1])
        assert torch.equal(got[:, good], sinpe.add(x[:, good], PADDED, positions=positions[good]))
        assert torch.equal(layer(x, positions=positions, padding_mask=~good)[:, ~good], x[:, ~good])


@pytest.mark.bad_input(4, "compiled", "eager", "NumPy", "meta", "layer")
def test_positive_and_negative_zero(backend: str) -> None:
    want = torch.tensor([0.0, 1.0] * (D // 2)).expand(4, D)
    for positions in (torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.zeros(4, dtype=torch.int64)):
        for rows in (sinpe.encode(positions, D), torch.from_numpy(sinpe.numpy.encode(positions.numpy(), D))):
            assert torch.equal(rows, want) and not bool(rows.signbit().any())


@pytest.mark.bad_input(1, "compiled", "eager", "meta", "NumPy", "layer")
@pytest.mark.bad_input(2, "compiled", "eager", "meta", "NumPy", "layer")
@pytest.mark.bad_input(3, "compiled", "eager", "meta", "NumPy", "layer")
@pytest.mark.bad_input(7, "compiled", "eager", "meta", "NumPy", "layer")
@pytest.mark.parametrize(
    "start", [-S // 2, -MAX - 1, -(2**31) - 2, 2**24 - 2, 2**31 - 3, 2**32 - 2, 10**12, MAX - S + 1]
)
def test_rows_at_negative_starts_and_limits_of_integer_types(start: int, backend: str) -> None:
    want = torch.stack([sinpe.encode(torch.tensor(start + row), D) for row in range(S)])
    mirrored = torch.stack([sinpe.encode(torch.tensor(-max(start + row, -MAX)), D) for row in range(S)])
    if start > -MAX:
        assert torch.equal(mirrored[:, 1::2], want[:, 1::2]) and torch.equal(mirrored[:, ::2], -want[:, ::2])
    assert torch.equal(sinpe.table(S, D, start=start), want)
    assert torch.equal(torch.from_numpy(sinpe.numpy.table(S, D, start=start)), want)
    layer, x = sinpe.SinusoidalPositionalEncoding(D, 0.0), torch.zeros(B, S, D)
    for given in (start, torch.tensor(start), torch.tensor([start] * B)):
        assert torch.equal(sinpe.add(x, start=given)[1], want) and torch.equal(layer(x, start=given)[1], want)
    assert sinpe.add(x.to("meta"), start=start).shape == x.shape


@pytest.mark.bad_input(7, "compiled", "eager")
def test_last_int64_position_has_no_successor(backend: str) -> None:
    """Positions at both ends of int64 in one call: consecutive only in wrapping arithmetic."""
    positions = torch.cat([torch.arange(20) + (MAX - 19), torch.arange(20) - MAX - 1])
    want = torch.cat([sinpe.encode(part, 64) for part in positions.split(1)])
    assert torch.equal(sinpe.encode(positions, 64), want)
    assert torch.equal(sinpe.add(torch.zeros(1, 40, 64), positions=positions)[0], want)
    assert sinpe.table(0, D, start=MAX).shape == sinpe.add(torch.zeros(1, 0, D), start=MAX)[0].shape == (0, D)


@pytest.mark.bad_input(8, "compiled", "eager", "meta", "NumPy", "layer")
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 33, 66, 70_001])
def test_any_number_of_channels(dim: int, backend: str) -> None:
    rows = 3 if dim < 1000 else 1
    x, want = torch.randn(rows, dim), sinpe.table(rows, dim, start=5)
    assert torch.equal(sinpe.add(x, start=5), x + want)
    assert torch.equal(sinpe.SinusoidalPositionalEncoding(dim, 0.0)(x, start=5), x + want)
    assert torch.equal(torch.from_numpy(sinpe.numpy.table(rows, dim, start=5)), want)
    assert sinpe.table(rows, dim, device="meta").shape == want.shape
    column = dim - 1
    assert float(want[-1, column]) == exact.float32(plan(sinpe.Encoding(dim)), 4 + rows, column)


@pytest.mark.bad_input(9, "compiled", "eager", "NumPy", "layer", "meta")
def test_zero_sizes_of_arguments(backend: str) -> None:
    """The rest: tests/functional/test_every_function.py."""
    none, alpha = torch.zeros(0, dtype=torch.long), torch.ones(1, requires_grad=True)
    given: dict[tuple[int, ...], tuple[dict[str, object], ...]] = {
        (0, 3, 8): ({"start": none}, {"start": none, "dropout": 1.0}, {"positions": torch.zeros(0, 3)}),
        (2, 0, 8): ({"positions": torch.zeros(2, 0), "padding_mask": torch.zeros(2, 0, dtype=torch.bool)},),
        (2, 3, 0): ({}, {"dropout": 0.5}, {"scale": 2.0}),
        (0, 2, 0, 8): ({}, {"start": none}),
    }
    for shape, each in given.items():
        for arguments in each:
            x = torch.ones(shape, requires_grad=True)
            assert sinpe.add(x, **arguments).shape == sinpe.add_(x * 1, **arguments).shape == shape
            assert torch.equal(
                torch.autograd.grad(sinpe.add(x, alpha=alpha, **arguments).sum(), alpha)[0], torch.zeros(1)
            )
            ids, weight = torch.zeros(shape[:-1], dtype=torch.long), torch.ones(4, shape[-1])
            got = sinpe.embed(ids, weight, alpha=alpha, **arguments)
            assert got.shape == shape and torch.equal(torch.autograd.grad(got.sum(), alpha)[0], torch.zeros(1))
    x = torch.zeros(0, D)
    assert sinpe.add_(x) is x and sinpe.add(x, out=x) is x and sinpe.table(0, D, out=x) is x
    assert sinpe.embed(torch.zeros(2, 0, dtype=torch.long), torch.ones(0, 4)).shape == (2, 0, 4)
    assert sinpe.numpy.table(0, D).shape == (0, D) and sinpe.table((0, 4), "mae2d", dim=8).shape == (0, 4, 8)
    assert sinpe.table((0, 4), "mae2d", dim=8, extra_tokens=2).tolist() == [[0.0] * 8] * 2


@pytest.mark.bad_input(10, "compiled")
@pytest.mark.parametrize("shape", [(70000, 1, 4), (1, 70000, 4), (2, 33000, 2, 3), (100000, 3)])
def test_sizes_beyond_16_bits(shape: tuple[int, ...], backend: str) -> None:
    rows = sinpe.table(shape[-2], shape[-1])
    assert torch.equal(sinpe.add(torch.zeros(shape)), rows.expand(shape))


@pytest.mark.thorough("test_sizes_beyond_16_bits and the C++ test of layouts use the same indices")
@pytest.mark.bad_input(10, "compiled")
def test_more_elements_than_31_bits(need_kernels: None) -> None:
    rows, dim, needed = 2**22, 513, 12 * 2**30
    pages = os.sysconf("SC_AVPHYS_PAGES") if hasattr(os, "sysconf") else 0
    if pages * os.sysconf("SC_PAGE_SIZE") < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free memory")
    x = torch.zeros(1, rows, dim, dtype=torch.bfloat16)
    assert x.numel() > 2**31
    sinpe.add_(x)
    for row in (0, 2**22 // 2, rows - 1):
        assert torch.equal(x[0, row], sinpe.table(1, dim, start=row, dtype=torch.bfloat16)[0])


@pytest.mark.bad_input(11, "compiled", "eager")
@pytest.mark.parametrize("out", ["columns", "transposed", "rows", "negated"])
def test_out_of_any_layout(out: str, backend: str) -> None:
    memory = torch.full((2 * S, 2 * D), torch.nan)
    target = {
        "columns": memory[:S, 1::2],
        "transposed": torch.full((D, S), torch.nan).t(),
        "rows": memory[1::2, 1 : D + 1],
        "negated": memory[:S, :D]._neg_view(),
    }[out]
    assert sinpe.table(S, D, start=2, out=target) is target
    want = sinpe.table(S, D, start=2)
    assert torch.equal(target, want) and int(memory.isnan().sum()) in (memory.numel(), memory.numel() - S * D)
    assert torch.equal(sinpe.add(want, start=2, out=target), 2 * want)


@pytest.mark.bad_input(11, "compiled", "eager")
@pytest.mark.parametrize("dtype", FLOATS)
def test_x_of_overlapping_or_permuted_memory(dtype: torch.dtype, backend: str) -> None:
    """Layouts beside those of tests/functional/test_every_function.py; strides are those of empty_like."""
    memory = torch.randn(4 * S * D * B * 2).to(dtype)
    for x in (
        memory[:100].as_strided((B, S, D), (7, 3, 1)),
        memory[: B * 4 * S * D].view(B, 4, S, D).to(memory_format=torch.channels_last),
        memory[: S * 2 * B * D * 2].view(S, 2, B, D, 2).permute(2, 1, 4, 0, 3),
        memory[: B * D * S].view(B, S, D)[:, 1:-1, 2:7],
    ):
        for arguments in ({"start": 3}, {"scale": 0.7, "alpha": 1.3, "positions": torch.rand(B, x.shape[-2])}):
            before, got = x.clone(), sinpe.add(x, **arguments)
            want = sinpe.add(x.clone(memory_format=torch.contiguous_format), **arguments)
            assert torch.equal(got, want) and torch.equal(x, before)
            assert got.stride() == torch.empty_like(x).stride()
