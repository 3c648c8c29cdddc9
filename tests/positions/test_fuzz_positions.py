"""Property-based tests of sinpe_ext.positions against counting in Python, and of `add` with its results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import same
from strategies import spread
from strategies_calls import masks
from torch import Tensor

import sinpe_ext as sinpe

pytestmark = pytest.mark.filterwarnings("error")
DIM = 6


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    length = draw(st.integers(0, 17))
    return draw(st.sampled_from(((length,), (draw(st.integers(0, 4)), length))))


def counted(padding: list[bool]) -> list[int]:
    positions, tokens = [], 0
    for is_padding in padding:
        positions.append(0 if is_padding else tokens)
        tokens += not is_padding
    return positions


def by_row(rows: Tensor, function: Any) -> Tensor:
    lists = rows.tolist() if rows.dim() == 2 else [rows.tolist()]
    return torch.tensor([function(row) for row in lists], dtype=torch.int64).reshape(rows.shape)


@given(st.data(), shapes())
def test_from_padding_mask(data: st.DataObject, shape: tuple[int, ...]) -> None:
    mask = data.draw(masks(shape))
    got = sinpe.positions.from_padding_mask(mask)
    assert got.dtype == torch.int64 and torch.equal(got, by_row(mask, counted))
    if got.dim() == 2 and got.numel():  # each padded sequence equals the same sequence without padding
        x = torch.randn(*got.shape, DIM)
        y = sinpe.add(x, positions=got, padding_mask=mask)
        for sample in range(len(x)):
            real = ~mask[sample]
            assert same(y[sample][real], sinpe.add(x[sample][real]))
            assert same(y[sample][~real], x[sample][~real])


@given(st.data(), shapes(), st.integers(0, 5), st.sampled_from((torch.int64, torch.int32, torch.uint8)))
def test_from_padding_idx(data: st.DataObject, shape: tuple[int, ...], idx: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    ids = torch.randint(6, shape, generator=generator).to(dtype)
    ids = data.draw(st.sampled_from((ids, spread(ids))))
    past: Any = data.draw(st.integers(0, 2**40))
    kind = data.draw(st.sampled_from(("none", "int", "0-d", "per sample")))
    each = [past] * (len(ids) if ids.dim() == 2 else 1)
    if kind == "per sample" and ids.dim() == 2:
        each = data.draw(st.lists(st.integers(0, 2**40), min_size=len(ids), max_size=len(ids)))
        past = torch.tensor(each, dtype=torch.int64)
    elif kind == "0-d":
        past = torch.tensor(past)
    arguments = {} if kind == "none" else {"past": past}
    each = [0] * len(each) if kind == "none" else each
    got, mask = sinpe.positions.from_padding_idx(ids, idx, **arguments)
    want = []
    for earlier, row in zip(each, ids.tolist() if ids.dim() == 2 else [ids.tolist()], strict=True):
        tokens = itertools.accumulate(int(token != idx) for token in row)
        want.append([idx if token == idx else idx + earlier + n for token, n in zip(row, tokens, strict=True)])
    assert got.dtype == torch.int64 and torch.equal(got, torch.tensor(want, dtype=torch.int64).reshape(shape))
    assert torch.equal(mask, ids == idx) and mask.dtype == torch.bool


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 6), st.sampled_from((torch.int32, torch.int64)))
def test_packed(lengths: list[int], more: int, dtype: torch.dtype) -> None:
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)
    want = [p for n in lengths for p in range(n)]
    assert sinpe.positions.packed(ends).tolist() == want
    total = len(want) + more
    assert sinpe.positions.packed(spread(ends), total).tolist() == want + list(range(more))
    x = torch.randn(len(want), DIM)
    y = sinpe.add(x, positions=sinpe.positions.packed(ends))
    for first, length in zip(ends.tolist(), lengths, strict=False):
        assert same(y[first : first + length], sinpe.add(x[first : first + length]))


@given(st.integers(1, 300), st.integers(1, 40))
def test_relative(length: int, dim: int) -> None:
    got = sinpe.positions.relative(length)
    assert got.tolist() == list(range(length - 1, -length, -1)) and got.dtype == torch.int64
    assert same(sinpe.encode(got, dim).flip(0), sinpe.table(2 * length - 1, dim, start=1 - length))


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_grid(data: st.DataObject, lengths: list[int]) -> None:
    starts = data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=len(lengths), max_size=len(lengths)))
    one = data.draw(st.booleans())
    starts = [starts[0]] * len(lengths) if one else starts
    got = sinpe.positions.grid(tuple(lengths), start=starts[0] if one else starts)
    assert got.shape == (*lengths, len(lengths)) and got.dtype == torch.int64
    for place in itertools.product(*map(range, lengths)):
        assert got[place].tolist() == [s + p for s, p in zip(starts, place, strict=True)]


@given(st.data(), st.booleans(), st.sampled_from((torch.float64, torch.float32)))
def test_from_mask_2d(data: st.DataObject, normalize: bool, dtype: torch.dtype) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(0, 6), min_size=2, max_size=3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.3, 0.0, 1.1)))
    arguments: dict[str, Any] = {}
    if normalize:
        arguments = {"normalize": True, "dtype": dtype, "scale": draw(st.sampled_from((6.283, 1.0, 100.0)))}
        arguments |= {"eps": draw(st.sampled_from((1e-6, 1.0))), "offset": draw(st.sampled_from((0.0, -0.5)))}
    got = sinpe.positions.from_mask_2d(mask, **arguments)
    pixels = (~mask).numpy().astype(np.int64)
    count = np.stack([pixels.cumsum(-2), pixels.cumsum(-1)], -1)
    if normalize:
        kind = np.float64 if dtype == torch.float64 else np.float32
        lasts = [count[..., -1:, :, 0] if shape[-2] else count[..., 0]]
        lasts.append(count[..., :, -1:, 1] if shape[-1] else count[..., 1])
        last = np.stack([np.broadcast_to(each, mask.shape) for each in lasts], -1)
        scale, eps, offset = (kind(arguments[name]) for name in ("scale", "eps", "offset"))
        want = (count.astype(kind) + offset) / (last.astype(kind) + eps) * scale
        assert got.dtype == dtype and same(got, torch.from_numpy(want))
    else:
        assert torch.equal(got, torch.from_numpy(count))
