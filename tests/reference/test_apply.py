"""The reference add, dropout, embed and their gradients, against plain float64: values, rounding, order of sums."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracles import acc_of, expected_dropout, expected_total, same, tree_sum
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


def mask_of(shape: tuple[int, ...], drop: int, offsets: list[int] | None = None) -> Tensor:
    """Kept elements, one after the other; row-major without `offsets`."""
    base, *steps = offsets or [0, *(math.prod(shape[d + 1 :]) for d in range(len(shape)))]
    numbers = [base + sum(map(int.__mul__, at, steps)) for at in itertools.product(*map(range, shape))]
    keep = [drop < 65536 and (drop == 0 or kept(SEED, e % 2**64, drop)) for e in numbers]
    return torch.tensor(keep, dtype=torch.bool).reshape(shape)


def expected(x: Tensor, form: str, mask: Tensor | None, scale: float, alpha: float, drop: int) -> Tensor:
    rows = reference.encode(PLAN, FORMS[form][1], acc_of(x.dtype)).reshape(-1, S, D)
    return expected_dropout(expected_total(x, rows, scale, alpha, mask), x.dtype, drop / 65536, SEED)


@pytest.mark.parametrize(("form", "dtype", "drop"), CASES, ids=str)
def test_add_and_embed(form: str, dtype: torch.dtype, drop: int, block: None) -> None:
    given, dropped = FORMS[form][0], {"seed": SEED, "drop_threshold": drop}
    for (shape, scale, alpha), mask in itertools.product(
        (((B, S, D), 1.0, 1.0), ((B, S, D), 0.1, -0.3), ((B, 2, S, D), 3.7, 1.0)), (None, PADDING, PADDING[:1])
    ):
        x = data(*shape, dtype=dtype)
        want = expected(x, form, mask, scale, alpha, drop)
        weighed = torch.tensor([alpha], dtype=torch.float64)
        record = Add(x, WORDS, given, mask, alpha, start=5, scale=scale, **dropped)
        assert same(apply.add(PLAN, record), want)
        mine = x.clone()  # in place, and with alpha as a tensor
        assert apply.add(PLAN, record._replace(x=mine, alpha=weighed), mine) is mine
        assert same(mine, want)
    weight = data(V, D, dtype=dtype)
    for ids, mask in ((IDS, PADDING), (IDS[:, None].expand(B, 2, S), PADDING[:1])):
        want = expected(weight[ids], form, mask, 1.7, 0.3, drop)
        got = apply.embed(PLAN, Embed(ids, weight, WORDS, given, mask, 0.3, start=5, scale=1.7, **dropped))
        assert same(got, want) and (got.is_contiguous() or not ids.is_contiguous())


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
        assert got.is_contiguous() and same(got, by_rows(grad, ids, V, padding_idx, scale, drop))
    none = apply.embed_backward(EmbedBackward(grad, ids, None, V, -1, -1.0, 65536))
    assert same(none, torch.zeros(V, D, dtype=dtype))


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
