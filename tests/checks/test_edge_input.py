"""Unusual arguments with a defined result: far, negative and non-finite positions, limits of integer types, sizes."""

from __future__ import annotations

import os
from typing import Any

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
def test_non_finite_positions_affect_only_their_rows(backend: str) -> None:
    nan, inf = float("nan"), float("inf")
    positions = torch.tensor([1.5, nan, -2.0, inf, -inf, 3.25], dtype=torch.float64)
    good, layer = positions.isfinite(), sinpe.SinusoidalPositionalEncoding(D + 1, 0.0, encoding=PADDED)
    for dtype in FLOATS:
        rows, x = sinpe.encode(positions, PADDED, dtype=dtype), torch.randn(B, S, D + 1).to(dtype)
        assert bool(rows[~good, :-1].isnan().all()) and bool((rows[:, -1] == 0).all())
        assert torch.equal(rows[good], sinpe.encode(positions[good], PADDED, dtype=dtype))
        got = sinpe.add(x, PADDED, positions=positions)
        assert bool(got[:, ~good, :-1].isnan().all()) and torch.equal(got[..., -1], x[..., -1])
        assert torch.equal(layer(x, positions=positions, padding_mask=~good)[:, ~good], x[:, ~good])


@pytest.mark.bad_input(4, "compiled", "eager", "NumPy", "meta", "layer")
def test_positive_and_negative_zero(backend: str) -> None:
    want = torch.tensor([0.0, 1.0] * (D // 2)).expand(4, D)
    for positions in (torch.tensor([0.0, -0.0, 0.0, -0.0]), torch.zeros(4, dtype=torch.int64)):
        for rows in (sinpe.encode(positions, D), torch.from_numpy(sinpe.numpy.encode(positions.numpy(), D))):
            assert torch.equal(rows, want) and not bool(rows.signbit().any())


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
@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ((0, 3, 8), {"start": torch.zeros(0).long(), "dropout": 1.0}),
        ((0, 3, 8), {"positions": torch.zeros(0, 3)}),
        ((2, 0, 8), {"positions": torch.zeros(2, 0), "padding_mask": torch.zeros(2, 0) > 0}),
        ((2, 3, 0), {"dropout": 0.5, "scale": 2.0}),
        ((0, 2, 0, 8), {"start": torch.zeros(0).long()}),
    ],
)
def test_zero_sizes_of_arguments(shape: tuple[int, ...], given: Any, backend: str) -> None:
    """The rest: tests/functional/test_every_function.py."""
    alpha, ids, weight = torch.ones(1, requires_grad=True), torch.zeros(shape[:-1]).long(), torch.ones(4, shape[-1])
    for got in (sinpe.add(torch.ones(shape), alpha=alpha, **given), sinpe.embed(ids, weight, alpha=alpha, **given)):
        assert got.shape == shape and torch.equal(torch.autograd.grad(got.sum(), alpha)[0], torch.zeros(1))
    assert sinpe.add_(torch.ones(shape), **given).shape == shape


@pytest.mark.bad_input(9, "compiled", "eager", "NumPy")
def test_empty_out_weight_and_grid(backend: str) -> None:
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
def test_any_stride_of_a_dimension_of_one(backend: str) -> None:
    x = torch.arange(200.0).as_strided((1, S, D), (2**62, D, 1))
    assert torch.equal(sinpe.add(x), x + sinpe.table(S, D))


@pytest.mark.bad_input(8, "compiled", "eager")
@pytest.mark.parametrize("name", ["t2t", "fairseq", "ctranslate2", "ddpm", "musicgen"])
def test_single_timescale_has_frequency_1(name: str, backend: str) -> None:
    """h - 1 = 0: ZeroDivisionError in fairseq and M2M100, NaN in diffusers."""
    for dim in (2, 3):
        p = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
        pair = [p.cos(), p.sin()] if name == "musicgen" else [p.sin(), p.cos()]
        want = torch.stack([*pair, torch.zeros_like(p)][:dim], 1)
        got = sinpe.encode(p, sinpe.convention(name, dim), dtype=torch.float64)
        assert torch.allclose(got, want, rtol=0, atol=1e-13)
        got.sum().backward()
        assert torch.isfinite(p.grad).all()
        for angle in ("float32_exp", "float32_pow"):
            rounded = sinpe.encode(p.detach(), sinpe.convention(name, dim, angle=angle))
            assert torch.allclose(rounded.double(), want, rtol=0, atol=1e-6)


def test_numbers_in_tensors_may_change(backend: str) -> None:
    """What is cached by value does not keep the value of a tensor that is used as a number."""
    encoding, grid = sinpe.Encoding(8), sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(4)))
    x, ids, weight = torch.zeros(3, 4, 8), torch.zeros(3, 4, dtype=torch.long), torch.ones(2, 8)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda n: sinpe.add(torch.zeros(1, 5, 8), encoding, extra_tokens=n), (1, 3, 0)),
        (lambda n: sinpe.add(torch.zeros(1, 8, 8, 8), grid, channel_dim=n), (-1, 1)),
        (lambda n: sinpe.add(torch.zeros(1, 16, 8), grid, grid_shape=(n, 16 // int(n))), (4, 2, 8)),
        (lambda n: sinpe.add(x, encoding, seq_dim=n), (0, 1)),
        (lambda n: sinpe.embed(ids, weight, seq_dim=n), (0, 1)),
    ]
    number = torch.tensor(1)
    for call, values in calls:
        for value in values:
            assert torch.equal(call(number.fill_(value)), call(value))
