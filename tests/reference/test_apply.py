"""The reference add, dropout, embed and their gradients, against plain float64: values, rounding, order of sums."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracles import acc_of, tree_sum
from philox import kept  # reference implementation in Python integers
from torch import Tensor

from sinpe_ext import reference
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import plan
from sinpe_ext.records import Add, Dropout, Embed, EmbedBackward, RowDots
from sinpe_ext.reference import apply, tiles

B, S, D, V = 3, 5, 11, 7
PLAN = plan(Encoding(D))
WORDS = torch.empty(0, dtype=torch.int64)  # placeholder for the packed plan
SEED, DROP = -987654321987, 20000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DROPS = [0, 1, DROP, 65535, 65536]
DOT_ERROR = 1e-12  # relative to the sum of |products|: float64 sums in two orders
STARTS, IDS = torch.tensor([[0], [100], [-3]]), torch.tensor([[0, 3, 2, 3, 6], [1, 1, 4, 0, 6], [5, 5, 5, 5, 2]])
FORMS: dict[str, tuple[Tensor | None, Tensor]] = {  # arguments with start 5, and the final positions
    "implicit": (None, torch.arange(5, 5 + S)),
    "shared": (torch.arange(S) * 3, torch.arange(S) * 3),
    "one_row": (torch.arange(S)[None] - 2, torch.arange(S)[None] - 2),
    "per_sample": (torch.arange(B * S).reshape(B, S), torch.arange(B * S).reshape(B, S)),
    "start_per_sample": (STARTS, STARTS + torch.arange(S)),
    "fractional": (torch.arange(B * S).reshape(B, S) / 3, torch.arange(B * S).reshape(B, S) / 3),
}
CASES = [(form, FLOATS[k % 4], DROPS[k % 5]) for k, form in enumerate([*FORMS] * 4)]
PADDING = torch.rand((B, S), generator=torch.Generator().manual_seed(3)) < 0.4


@pytest.fixture(params=[None, 64], ids=["one block", "small blocks"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data processed in one block, and in several."""
    if request.param is not None:
        monkeypatch.setattr(tiles, "arrays", lambda xp, device: SimpleNamespace(block=request.param))
        monkeypatch.setattr(tiles, "FEWEST_ROWS", 1)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, 6e4, 3e38])


def data(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random numbers and several copies of each special value."""
    x = randn(*shape)
    at = torch.arange(0, x.numel(), max(1, x.numel() // 24))
    x.view(-1)[at] = SPECIAL.repeat(8)[: len(at)]
    return x.to(dtype)


def rounded(value: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Rounded to acc, as float64."""
    return torch.as_tensor(value, dtype=torch.float64).to(acc_of(dtype)).double()


def mask_of(shape: tuple[int, ...], drop: int, offsets: list[int] | None = None) -> Tensor:
    """Kept elements, one after the other; row-major without `offsets`."""
    base, *steps = offsets or [0, *(math.prod(shape[d + 1 :]) for d in range(len(shape)))]
    numbers = [base + sum(map(int.__mul__, at, steps)) for at in itertools.product(*map(range, shape))]
    keep = [drop < 65536 and (drop == 0 or kept(SEED, e % 2**64, drop)) for e in numbers]
    return torch.tensor(keep, dtype=torch.bool).reshape(shape)


def rows_of(form: str, rank: int, dtype: torch.dtype) -> Tensor:
    rows = reference.encode(PLAN, FORMS[form][1], acc_of(dtype))
    return rows.unsqueeze(1) if rank == 4 and rows.dim() == 3 else rows


def plain(x: Tensor, rows: Tensor | None, padded: Tensor | None, scale: float, alpha: float, drop: int) -> Tensor:
    """add, or dropout if rows is None. A rounded float64 sum or product of two float32 numbers is correctly rounded."""
    dtype = x.dtype
    total = rounded(rounded(scale, dtype) * x.double(), dtype)
    if rows is not None:
        encoded = rounded(total + rounded(rounded(alpha, dtype) * rows.double(), dtype), dtype)
        total = encoded if padded is None else torch.where(padded, total, encoded)
    if drop == 65536:
        return torch.zeros_like(x)
    if drop:
        total = rounded(total * rounded(65536 / (65536 - drop), dtype), dtype)
    return torch.where(mask_of(x.shape, drop), total.to(acc_of(dtype)).to(dtype), 0.0)


def assert_bits(got: Tensor, want: Tensor) -> None:
    """Equal bits; all NaN are equal."""
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())
    got, want = got.nan_to_num(0.0, torch.inf, -torch.inf), want.nan_to_num(0.0, torch.inf, -torch.inf)
    assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())


def padded_of(mask: Tensor | None, rank: int) -> Tensor | None:
    return None if mask is None else mask.reshape(-1, *(1,) * (rank - 3), S, 1)


@pytest.mark.parametrize(("form", "dtype", "drop"), CASES, ids=str)
def test_add_and_embed(form: str, dtype: torch.dtype, drop: int, block: None) -> None:
    given, dropped = FORMS[form][0], {"seed": SEED, "drop_threshold": drop}
    for (shape, scale, alpha), mask in itertools.product(
        (((B, S, D), 1.0, 1.0), ((B, S, D), 0.1, -0.3), ((B, 2, S, D), 3.7, 1.0)), (None, PADDING, PADDING[:1])
    ):
        x, rows = data(*shape, dtype=dtype), rows_of(form, len(shape), dtype)
        want = plain(x, rows, padded_of(mask, x.dim()), scale, alpha, drop)
        weighed = torch.tensor([alpha], dtype=torch.float64)
        record = Add(x, WORDS, given, mask, alpha, start=5, scale=scale, **dropped)
        assert_bits(apply.add(PLAN, record), want)
        mine = x.clone()  # in place, and with alpha as a tensor
        assert apply.add(PLAN, record._replace(x=mine, alpha=weighed), mine) is mine
        assert_bits(mine, want)
    weight = data(V, D, dtype=dtype)
    for ids, mask in ((IDS, PADDING), (IDS[:, None].expand(B, 2, S), PADDING[:1])):
        rows = rows_of(form, ids.dim() + 1, dtype)
        want = plain(weight[ids], rows, padded_of(mask, ids.dim() + 1), 1.7, 0.3, drop)
        got = apply.embed(PLAN, Embed(ids, weight, WORDS, given, mask, 0.3, start=5, scale=1.7, **dropped))
        assert_bits(got, want)
        assert got.is_contiguous() or not ids.is_contiguous()


OFFSETS: dict[str, list[int]] = {
    "based": [77, S * D, D, 1],
    "channels first": [0, S * D, 1, S],
    "sequence first": [5, D, B * D, 1],
    "shard": [2**35 - 60, 1000, 20, 1],
    "shared by the batch": [0, 0, D, 1],
}


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
def test_rng_offsets(offsets: list[int], block: None) -> None:
    x, keep = randn(B, S, D).abs() + 2, mask_of((B, S, D), DROP, offsets)
    numbers: dict[str, Any] = {"seed": SEED, "drop_threshold": DROP, "rng_offsets": offsets}
    assert torch.equal(apply.dropout(Dropout(x, SEED, DROP, 1.0, offsets)) != 0, keep)
    assert torch.equal(apply.add(PLAN, Add(x, WORDS, None, None, 1.0, **numbers)) != 0, keep)
    ids = torch.zeros(B, S, dtype=torch.long)
    assert torch.equal(apply.embed(PLAN, Embed(ids, x[0, :1], WORDS, None, None, 1.0, **numbers)) != 0, keep)
    back = apply.embed_backward(EmbedBackward(torch.ones_like(x), ids, SEED, 1, -1, 1.0, DROP, offsets))
    factor = 65536 / (65536 - DROP)
    assert torch.equal(back, keep.float().sum((0, 1), keepdim=True)[0] * torch.tensor(factor))
    dots = apply.row_dots(PLAN, RowDots(x, WORDS, None, None, None, **numbers))
    want = apply.row_dots(PLAN, RowDots(torch.where(keep, x, 0.0), WORDS, None, None, None))
    assert torch.equal(dots, want * factor)


@pytest.mark.parametrize(("dtype", "drop"), list(zip([*FLOATS, torch.float32], DROPS, strict=True)), ids=str)
def test_dropout(dtype: torch.dtype, drop: int, block: None) -> None:
    for shape in ((40,), (5, 8), (2, 1, 3, 2, 2, 3)):
        for scale in (1.0, -0.3):
            x = data(*shape, dtype=dtype)
            want = plain(x, None, None, scale, 1.0, drop)
            assert_bits(apply.dropout(Dropout(x, torch.tensor(SEED), drop, scale, [])), want)
            assert apply.dropout(Dropout(x, SEED, drop, scale, []), x) is x
            assert_bits(x, want)


@pytest.mark.parametrize(("form", "dtype", "drop"), CASES[::2], ids=str)
def test_row_dots(form: str, dtype: torch.dtype, drop: int, block: None) -> None:
    slopes = randn(D, dtype=torch.float64, seed=8)
    for shape, weights, mask in (((B, S, D), None, None), ((B, S, D), slopes, PADDING), ((B, 2, S, D), slopes, None)):
        grad, rows, keep = randn(*shape, dtype=dtype), rows_of(form, len(shape), dtype), mask_of(shape, drop)
        products = torch.where(keep, grad, 0.0).double() * rows.double() * (1.0 if weights is None else weights)
        products = products if mask is None else products.masked_fill(mask.unsqueeze(-1), 0.0)
        scale = 65536 / (65536 - drop) if drop < 65536 else 0.0
        want = torch.tensor([math.fsum(row) * scale for row in products.reshape(-1, D).tolist()], dtype=torch.float64)
        grad = torch.where(keep, grad, torch.nan)  # dropped or padded NaN has no effect
        grad = grad if mask is None else torch.where(mask.unsqueeze(-1), torch.inf, grad)
        record = RowDots(grad, WORDS, FORMS[form][0], mask, weights, start=5, seed=SEED, drop_threshold=drop)
        got = apply.row_dots(PLAN, record)
        assert got.dtype == torch.float64 and got.shape == shape[:-1] and got.is_contiguous()
        assert bool(((got.flatten() - want).abs() <= products.abs().sum(-1).flatten() * scale * DOT_ERROR).all())


def by_rows(grad: Tensor, ids: Tensor, rows: int, padding_idx: int, scale: float, drop: int) -> Tensor:
    """embed_backward by its definition."""
    acc, dim = acc_of(grad.dtype), grad.shape[-1]
    tokens = torch.where(mask_of(grad.shape, drop) if drop else torch.tensor(True), grad, 0.0).to(acc).reshape(-1, dim)
    factor = torch.tensor(scale * (65536 / (65536 - drop)), dtype=torch.float64).to(acc)
    want, flat = torch.zeros(rows, dim, dtype=acc), ids.flatten()
    for row in flat.unique().tolist():
        if row != padding_idx:
            want[row] = tree_sum(tokens[flat == row]) * factor
    return want.to(grad.dtype)


@pytest.mark.parametrize(("dtype", "drop"), list(zip(FLOATS, DROPS[:-1], strict=True)), ids=str)
def test_embed_backward(dtype: torch.dtype, drop: int, block: None) -> None:
    cases = (((40,), -1, 1.0), ((B, S), 2, -0.7), ((2, 3, 20), 0, 1e-3), ((B, S), V - 1, 1e300))
    for shape, padding_idx, scale in cases:
        ids = torch.randint(V - 2, shape, generator=torch.Generator().manual_seed(1))
        grad = data(*shape, D, dtype=dtype)
        got = apply.embed_backward(EmbedBackward(grad, ids, SEED, V, padding_idx, scale, drop))
        assert got.is_contiguous()
        assert_bits(got, by_rows(grad, ids, V, padding_idx, scale, drop))
    none = apply.embed_backward(EmbedBackward(grad, ids, None, V, -1, -1.0, 65536))
    assert_bits(none, torch.zeros(V, D, dtype=dtype))


def test_token_sums_are_trees() -> None:
    """For 0 to more than 64 * 64 tokens per id, index_add_ on the CPU with any number of threads gives the bits of the
    definition, which another order does not; and so does sorting, the method for other devices."""
    rows, dim, before = 7, 19, torch.get_num_threads()
    ids = torch.arange(rows).repeat_interleave(torch.tensor([64, 5000, 1, 0, 65, 4096, 129]))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    tokens = randn(len(ids), dim) * 10.0 ** randn(len(ids), dim, seed=9)
    want = by_rows(tokens, ids, rows, -1, 1.0, 0)
    assert not torch.equal(torch.zeros(rows, dim).index_add_(0, ids, tokens), want)  # another order
    for threads, dtype in ((1, torch.float32), (3, torch.float32), (2, torch.float64)):
        torch.set_num_threads(threads)
        got = apply.embed_backward(EmbedBackward(tokens.to(dtype), ids, None, rows, -1, 1.0))
        assert torch.equal(got, want if dtype == torch.float32 else by_rows(tokens.double(), ids, rows, -1, 1.0, 0))
    torch.set_num_threads(before)
    count, some = 5, tokens[:500, :3]  # terms of node `count` are ignored
    nodes = torch.randint(count + 1, (500,), generator=torch.Generator().manual_seed(0))
    want = torch.zeros(count + 1, 3)
    for term, node in zip(some, nodes.tolist(), strict=True):
        want[node] += term
    assert torch.equal(apply._sums_by_sorting(some, nodes, count), want[:-1])
