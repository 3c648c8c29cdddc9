"""The reference add, dropout, embed and their gradients, against plain float64: values, rounding, order of sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracles import tree_sum
from philox import kept  # reference implementation in Python integers
from torch import Tensor

from sinpe_ext import reference
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import plan
from sinpe_ext.records import Add, Dropout, Embed, EmbedBackward, RowDots
from sinpe_ext.reference import apply, tiles

B, S, D, V = 3, 5, 11, 7
PLAN = plan(Encoding(D))
SEED, DROP = -987654321987, 20000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DROPS = [0, 1, DROP, 65535, 65536]
DOT_ERROR = 1e-12  # relative to the sum of |products|: float64 sums in two orders
STARTS = torch.tensor([[0], [100], [-3]])
FORMS: dict[str, tuple[Tensor | None, Tensor]] = {  # arguments with start 5, and the final positions
    "implicit": (None, torch.arange(5, 5 + S)),
    "shared": (torch.arange(S) * 3, torch.arange(S) * 3),
    "one_row": (torch.arange(S)[None] - 2, torch.arange(S)[None] - 2),
    "per_sample": (torch.arange(B * S).reshape(B, S), torch.arange(B * S).reshape(B, S)),
    "start_per_sample": (STARTS, STARTS + torch.arange(S)),
    "fractional": (torch.arange(B * S).reshape(B, S) / 3, torch.arange(B * S).reshape(B, S) / 3),
}
BLOCKS = [pytest.param(None, id="one block"), pytest.param(64, id="small blocks")]
Elements = Sequence[int]


WORDS = torch.empty(0, dtype=torch.int64)  # placeholder for the packed plan


def add(
    of: Any,
    x: Tensor,
    positions: Any,
    start: int,
    scale: float,
    alpha: Any,
    mask: Any,
    out: Tensor | None = None,
    **dropped: Any,
) -> Tensor:
    return apply.add(of, Add(x, WORDS, positions, mask, alpha, start=start, scale=scale, **dropped), out)


def dropout(
    x: Tensor, seed: Any, drop_threshold: int, scale: float, elements: Elements, out: Tensor | None = None
) -> Tensor:
    return apply.dropout(Dropout(x, seed, drop_threshold, scale, elements), out)


def row_dots(of: Any, grad: Tensor, positions: Any, start: int, mask: Any, slopes: Any, **dropped: Any) -> Tensor:
    return apply.row_dots(of, RowDots(grad, WORDS, positions, mask, slopes, start=start, **dropped))


def embed(
    of: Any,
    ids: Tensor,
    weight: Tensor,
    positions: Any,
    start: int,
    scale: float,
    alpha: Any,
    mask: Any,
    **dropped: Any,
) -> Tensor:
    return apply.embed(of, Embed(ids, weight, WORDS, positions, mask, alpha, start=start, scale=scale, **dropped))


def embed_backward(grad: Tensor, ids: Tensor, rows: int, padding_idx: int, scale: float, **dropped: Any) -> Tensor:
    return apply.embed_backward(
        EmbedBackward(grad, ids, dropped.pop("seed", None), rows, padding_idx, scale, **dropped)
    )


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data processed in one block, and in several."""
    if request.param is not None:
        monkeypatch.setattr(tiles, "arrays", lambda xp, device: SimpleNamespace(block=request.param))
        monkeypatch.setattr(tiles, "FEWEST_ROWS", 1)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def acc_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def rounded(value: Tensor | float, dtype: torch.dtype) -> Tensor:
    """Rounded to acc, as float64."""
    return torch.as_tensor(value, dtype=torch.float64).to(acc_of(dtype)).double()


def mask_of(shape: Sequence[int], drop_threshold: int, elements: Elements = ()) -> Tensor:
    return _mask_of(tuple(shape), drop_threshold, tuple(elements))


@cache
def _mask_of(shape: tuple[int, ...], drop_threshold: int, elements: tuple[int, ...]) -> Tensor:
    """Kept elements, one by one."""
    base, *steps = elements or (0, *(math.prod(shape[d + 1 :]) for d in range(len(shape))))
    indices = itertools.product(*map(range, shape))
    numbers = [base + sum(i * step for i, step in zip(index, steps, strict=True)) for index in indices]
    return torch.tensor(
        [drop_threshold == 0 or kept(SEED, e, drop_threshold) for e in numbers], dtype=torch.bool
    ).reshape(shape)


def rows_of(form: str, rank: int, acc: torch.dtype) -> Tensor:
    rows = reference.encode(PLAN, FORMS[form][1], acc)
    return rows.unsqueeze(1) if rank == 4 and rows.dim() == 3 else rows


def plain(
    x: Tensor, rows: Tensor | None, padded: Tensor | None, scale: float, alpha: float, drop_threshold: int
) -> Tensor:
    """add, or dropout if rows is None. A rounded float64 sum or product of two float32 numbers is correctly rounded."""
    dtype = x.dtype
    total = rounded(rounded(scale, dtype) * x.double(), dtype)
    if rows is not None:
        encoded = rounded(total + rounded(rounded(alpha, dtype) * rows.double(), dtype), dtype)
        total = encoded if padded is None else torch.where(padded, total, encoded)
    if drop_threshold == 65536:
        return torch.zeros_like(x)
    if drop_threshold:
        total = rounded(total * rounded(65536 / (65536 - drop_threshold), dtype), dtype)
    return torch.where(mask_of(x.shape, drop_threshold), total.to(acc_of(dtype)).to(dtype), 0.0)


def assert_bits(got: Tensor, want: Tensor) -> None:
    """Equal bits; all NaN are equal."""
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())
    got, want = got.nan_to_num(0.0, torch.inf, -torch.inf), want.nan_to_num(0.0, torch.inf, -torch.inf)
    assert torch.equal(got, want) and torch.equal(got.signbit(), want.signbit())


SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, 6e4, 3e38])


def data(*shape: int, dtype: torch.dtype) -> Tensor:
    """Random numbers and several copies of each special value."""
    x = randn(*shape)
    at = torch.arange(0, x.numel(), max(1, x.numel() // 24))
    x.view(-1)[at] = SPECIAL.repeat(8)[: len(at)]
    return x.to(dtype)


@pytest.mark.sampled("pairs")
@pytest.mark.parametrize("drop_threshold", DROPS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_add(form: str, dtype: torch.dtype, drop_threshold: int, block: None) -> None:
    given, acc, dropped = FORMS[form][0], acc_of(dtype), {"seed": torch.tensor(SEED), "drop_threshold": drop_threshold}
    padding = torch.rand((B, S), generator=torch.Generator().manual_seed(3)) < 0.4
    for shape, scale, alpha in (((B, S, D), 1.0, 1.0), ((B, S, D), 0.1, -0.3), ((B, 2, S, D), 3.7, 1.0)):
        x, rows = data(*shape, dtype=dtype), rows_of(form, len(shape), acc)
        for mask in (None, padding, padding[:1]):
            padded = None if mask is None else mask.reshape(-1, *(1,) * (x.dim() - 3), S, 1)
            want = plain(x, rows, padded, scale, alpha, drop_threshold)
            assert_bits(add(PLAN, x, given, 5, scale, alpha, mask, **dropped), want)
        mine, weight = x.clone(), torch.tensor([alpha], dtype=torch.float64)
        got = add(PLAN, mine, given, 5, scale, weight, mask, mine, **dropped)
        assert got is mine
        assert_bits(mine, want)


@pytest.mark.parametrize("drop_threshold", DROPS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(dtype: torch.dtype, drop_threshold: int, block: None) -> None:
    for shape in ((40,), (5, 8), (B, S, D), (2, 1, 3, 2, 2, 3)):
        x = data(*shape, dtype=dtype)
        for scale in (1.0, -0.3):
            want = plain(x, None, None, scale, 1.0, drop_threshold)
            assert_bits(dropout(x, torch.tensor(SEED), drop_threshold, scale, []), want)
            mine = x.clone()
            assert dropout(mine, SEED, drop_threshold, scale, [], mine) is mine
            assert_bits(mine, want)


ELEMENTS: dict[str, list[int]] = {
    "based": [77, S * D, D, 1],
    "channels first": [0, S * D, 1, S],
    "sequence first": [5, D, B * D, 1],
    "shard": [2**35 - 60, 1000, 20, 1],
    "shared by the batch": [0, 0, D, 1],
}


@pytest.mark.parametrize("elements", ELEMENTS.values(), ids=ELEMENTS)
def test_elements(elements: list[int], block: None) -> None:
    x, keep = randn(B, S, D).abs() + 2, mask_of((B, S, D), DROP, elements)
    numbers: dict[str, Any] = {"seed": SEED, "drop_threshold": DROP, "rng_offsets": elements}
    assert torch.equal(dropout(x, SEED, DROP, 1.0, elements) != 0, keep)
    assert torch.equal(add(PLAN, x, None, 0, 1.0, 1.0, None, **numbers) != 0, keep)
    ids = torch.zeros(B, S, dtype=torch.long)
    assert torch.equal(embed(PLAN, ids, x[0, :1], None, 0, 1.0, 1.0, None, **numbers) != 0, keep)
    back = embed_backward(torch.ones_like(x), ids, 1, -1, 1.0, **numbers)
    factor = torch.tensor(65536 / (65536 - DROP))
    assert torch.equal(back, keep.float().sum((0, 1), keepdim=True)[0] * factor)
    dots = row_dots(PLAN, x, None, 0, None, None, **numbers)
    want = row_dots(PLAN, torch.where(keep, x, 0.0), None, 0, None, None) * (65536 / (65536 - DROP))
    assert torch.equal(dots, want)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "window": lambda x: torch.stack([x, x], 3)[..., 1],
    "expanded": lambda x: x[:1, :1, :1].expand(x.shape),
    "expanded batch": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout: str, dtype: torch.dtype, block: None) -> None:
    """Results have the strides of empty_like; only the logical shape of the inputs counts."""
    x, numbers = LAYOUTS[layout](randn(B, S, D, dtype=dtype)), {"seed": SEED, "drop_threshold": DROP}
    dense, strides = x.contiguous(), torch.empty_like(x).stride()
    for call in (
        lambda t: add(PLAN, t, None, 0, 2.0, 1.0, None, **numbers),
        lambda t: dropout(t, SEED, DROP, 0.5, []),
    ):
        got = call(x)
        assert torch.equal(got, call(dense)) and got.stride() == strides
    ids, wide = torch.arange(B * S).reshape(S, B).T % V, torch.full((V, D, 2), 0.5, dtype=dtype)[..., 0]
    for call in (
        lambda t, i: row_dots(PLAN, t, None, 0, None, None, **numbers),
        lambda t, i: embed_backward(t, i, V, -1, 1.0, **numbers),
    ):
        got = call(x, ids)
        assert torch.equal(got, call(dense, ids.contiguous())) and got.is_contiguous()
    got, same = (embed(PLAN, i, wide, None, 0, 1.0, 1.0, None, **numbers) for i in (ids, ids.contiguous()))
    assert torch.equal(got, same) and same.is_contiguous() and got.transpose(0, 1).is_contiguous()  # as ids.T is


@pytest.mark.parametrize("drop_threshold", DROPS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_row_dots(form: str, dtype: torch.dtype, drop_threshold: int, block: None) -> None:
    given, acc = FORMS[form][0], acc_of(dtype)
    padding = torch.rand((B, S), generator=torch.Generator().manual_seed(3)) < 0.4
    slopes = randn(D, dtype=torch.float64, seed=8)
    for shape, weights, mask in (((B, S, D), None, None), ((B, S, D), slopes, padding), ((B, 2, S, D), slopes, None)):
        grad, rows = randn(*shape, dtype=dtype), rows_of(form, len(shape), acc)
        keep = mask_of(shape, drop_threshold)
        products = torch.where(keep, grad, 0.0).double() * rows.double() * (1.0 if weights is None else weights)
        products = products if mask is None else products.masked_fill(mask.unsqueeze(-1), 0.0)
        scale = 65536 / (65536 - drop_threshold) if drop_threshold < 65536 else 0.0
        want = torch.tensor([math.fsum(row) * scale for row in products.reshape(-1, D).tolist()], dtype=torch.float64)
        bound = products.abs().sum(-1) * scale * DOT_ERROR
        grad = torch.where(keep, grad, torch.nan)  # dropped or padded NaN has no effect
        grad = grad if mask is None else torch.where(mask.unsqueeze(-1), torch.inf, grad)
        got = row_dots(PLAN, grad, given, 5, mask, weights, seed=SEED, drop_threshold=drop_threshold)
        assert got.dtype == torch.float64 and got.shape == shape[:-1] and got.is_contiguous()
        assert bool(((got - want.reshape(shape[:-1])).abs() <= bound).all())


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 17, 100, 513])
def test_order_of_dot_sums_is_fixed(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's bits do not depend on other rows, blocks or threads."""
    grad, of = randn(4, 9, dim), plan(Encoding(dim))
    want, before = row_dots(of, grad, None, 0, None, None), torch.get_num_threads()
    for sample in range(4):
        assert torch.equal(row_dots(of, grad[sample], None, 0, None, None), want[sample])
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(row_dots(of, grad, None, 0, None, None), want)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(tiles, "arrays", lambda xp, device: SimpleNamespace(block=2 * dim))
    monkeypatch.setattr(tiles, "FEWEST_ROWS", 1)
    assert torch.equal(row_dots(of, grad, None, 0, None, None), want)


@pytest.mark.parametrize("drop_threshold", DROPS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_embed(form: str, dtype: torch.dtype, drop_threshold: int, block: None) -> None:
    given, acc = FORMS[form][0], acc_of(dtype)
    weight = data(V, D, dtype=dtype)
    padding = torch.rand((B, S), generator=torch.Generator().manual_seed(3)) < 0.4
    numbers: dict[str, Any] = {"seed": SEED, "drop_threshold": drop_threshold}
    for shape, mask in (((B, S), None), ((B, S), padding), ((B, 2, S), padding[:1])):
        ids = torch.randint(V, shape, generator=torch.Generator().manual_seed(1))
        padded = None if mask is None else mask.reshape(-1, *(1,) * (ids.dim() - 2), S, 1)
        want = plain(weight[ids], rows_of(form, ids.dim() + 1, acc), padded, 1.7, 0.3, drop_threshold)
        got = embed(PLAN, ids, weight, given, 5, 1.7, 0.3, mask, **numbers)
        assert got.is_contiguous()
        assert_bits(got, want)
    if FORMS[form][1].shape[0] != B:
        want = embed(PLAN, ids[:1, 0], weight, given, 5, 1.7, 0.3, padding[:1], **numbers)
        got = embed(PLAN, ids[0, 0], weight, given, 5, 1.7, 0.3, padding[:1], **numbers)
        assert_bits(got, want[0])


def by_rows(grad: Tensor, ids: Tensor, rows: int, padding_idx: int, scale: float, drop_threshold: int) -> Tensor:
    """embed_backward by its definition."""
    acc, dim = acc_of(grad.dtype), grad.shape[-1]
    tokens = torch.where(mask_of(grad.shape, drop_threshold), grad, 0.0).to(acc).reshape(-1, dim)
    factor = torch.tensor(scale * (65536 / (65536 - drop_threshold)), dtype=torch.float64).to(acc)
    want, flat = torch.zeros(rows, dim, dtype=acc), ids.flatten()
    for row in flat.unique().tolist():
        if row != padding_idx:
            want[row] = tree_sum(tokens[flat == row]) * factor
    return want.to(grad.dtype)


@pytest.mark.parametrize("drop_threshold", DROPS[:-1])
@pytest.mark.parametrize("dtype", FLOATS)
def test_embed_backward(dtype: torch.dtype, drop_threshold: int, block: None) -> None:
    for shape, padding_idx, scale in (
        ((40,), -1, 1.0),
        ((B, S), 2, -0.7),
        ((2, 3, 20), 0, 1e-3),
        ((B, S), V - 1, 1e300),
    ):
        ids = torch.randint(V - 2, shape, generator=torch.Generator().manual_seed(1))
        grad = data(*shape, D, dtype=dtype)
        got = embed_backward(grad, ids, V, padding_idx, scale, seed=SEED, drop_threshold=drop_threshold)
        assert got.is_contiguous()
        assert_bits(got, by_rows(grad, ids, V, padding_idx, scale, drop_threshold))
    assert_bits(embed_backward(grad, ids, V, -1, -1.0, drop_threshold=65536), torch.zeros(V, D, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_token_sums_are_trees(threads: int, dtype: torch.dtype) -> None:
    """For 0 to more than 64 * 64 tokens per id: index_add_ on the CPU and the sorting method give the bits of the
    definition, which another order does not.
    """
    rows, dim, before = 7, 67, torch.get_num_threads()
    ids = torch.arange(rows).repeat_interleave(torch.tensor([64, 5000, 1, 0, 65, 4096, 129]))
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]
    tokens = (randn(len(ids), dim) * 10.0 ** randn(len(ids), dim, seed=9)).to(dtype)
    want = by_rows(tokens, ids, rows, -1, 1.0, 0)
    assert not torch.equal(torch.zeros(rows, dim, dtype=dtype).index_add_(0, ids, tokens), want)  # another order
    try:
        torch.set_num_threads(threads)
        assert torch.equal(embed_backward(tokens, ids, rows, -1, 1.0), want)
    finally:
        torch.set_num_threads(before)


def test_token_sums_by_sorting() -> None:
    """The method for other devices than the CPU; terms of node `count` are ignored."""
    many, count = 6000, 5
    nodes = torch.randint(count + 1, (many,), generator=torch.Generator().manual_seed(0))
    terms, want = randn(many, 3) * 10.0 ** randn(many, 3, seed=9), torch.zeros(count + 1, 3)
    for term, node in zip(terms, nodes.tolist(), strict=True):
        want[node] += term
    assert torch.equal(apply._sums_by_sorting(terms, nodes, count), want[:-1])


@pytest.mark.parametrize("bad", [-1, V, 2**40])
def test_ids_out_of_range(bad: int) -> None:
    ids, message = (
        torch.tensor([[0, 3], [bad, V + 5]]),
        f"ids: expected 0 to {V - 1}, rows of weight, got {bad} \\(weight",
    )
    with pytest.raises(IndexError, match=message):
        embed(PLAN, ids, randn(V, D), None, 0, 1.0, 1.0, None)
    with pytest.raises(IndexError, match=message):
        embed_backward(randn(2, 2, D), ids, V, -1, 1.0)


def test_empty() -> None:
    weight, none = randn(V, D), torch.zeros(0, S, dtype=torch.long)
    for drop_threshold in DROPS:
        numbers: dict[str, Any] = {"seed": SEED, "drop_threshold": drop_threshold}
        for shape in ((0, S, D), (B, 0, D), (0, D)):
            x = torch.empty(shape)
            assert add(PLAN, x, None, 0, 2.0, 1.0, None, **numbers).shape == shape
            assert dropout(x, SEED, drop_threshold, 2.0, []).shape == shape
            assert row_dots(PLAN, x, None, 0, None, None, **numbers).shape == shape[:-1]
        assert embed(PLAN, none, weight, None, 0, 1.0, 1.0, None, **numbers).shape == (0, S, D)
        back = embed_backward(torch.empty(0, S, D), none, V, -1, 1.0, **numbers)
        assert torch.equal(back, torch.zeros(V, D))
        back = embed_backward(torch.empty(0, S, D), none, 0, -1, 1.0, **numbers)
        assert back.shape == (0, D)


def test_no_gradient_is_recorded() -> None:
    x, weight, alpha = (t.requires_grad_() for t in (randn(B, S, D), randn(V, D), torch.ones(1)))
    ids = torch.zeros(B, S, dtype=torch.long)
    assert not add(PLAN, x, None, 0, 2.0, alpha, None, seed=SEED, drop_threshold=DROP).requires_grad
    assert not dropout(x, SEED, DROP, 2.0, []).requires_grad
    assert not row_dots(PLAN, x, None, 0, None, None).requires_grad
    assert not embed(PLAN, ids, weight, None, 0, 2.0, alpha, None).requires_grad
    assert not embed_backward(x, ids, V, -1, 2.0).requires_grad
