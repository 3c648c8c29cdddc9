"""Property-based tests of `embed`: equals `add` of the looked-up rows, forward and backward, in each way (ways.py)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    acc_of,
    broadcast_to_rows,
    check_sum,
    expected_dropout,
    expected_gradient,
    expected_mask,
    expected_total,
    kept_gradient,
    same,
    threshold_of,
    tree_sum,
)
from strategies import DTYPES, encodings, spread, sprinkle, views
from strategies_calls import FACTORS, alphas, dropouts, gradients, rows
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe
from sinpe_ext import Encoding

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_kernels")]
IDS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Tokens(NamedTuple):
    ids: Tensor
    seq_dim: int
    order: list[int]  # permutation of the result to canonical form
    batch: int
    length: int

    def back(self, canonical: Tensor) -> Tensor:
        return canonical.permute([self.order.index(d) for d in range(len(self.order))])


@st.composite
def tokens(draw: st.DrawFn, vocabulary: int, least: int = 0) -> Tokens:
    """ids of any shape, integer dtype and layout."""
    rank = draw(st.integers(1, 3))
    seq_dim = draw(st.integers(0, rank - 1))
    shape = [draw(st.integers(least, 3)) for _ in range(rank)]
    shape[seq_dim] = draw(st.sampled_from((0, 1, 2, 5, 13)).filter(lambda n: n >= least))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    few = draw(st.sampled_from((vocabulary, vocabulary, 1, 2)))
    ids = torch.randint(min(few, vocabulary), shape, generator=generator).to(draw(st.sampled_from(IDS)))
    layout = draw(st.sampled_from(("plain", "spread", "transposed", "expanded")))
    if layout == "spread":
        ids = spread(ids)
    elif layout == "transposed":
        ids = ids.movedim(0, -1).contiguous().movedim(-1, 0)
    elif layout == "expanded" and shape[0]:
        ids = ids[:1].expand(shape)
    others = [d for d in range(rank) if d != seq_dim]
    order = [*others, seq_dim, rank]
    batch = shape[others[0]] if others else 1
    return Tokens(ids, seq_dim - draw(st.sampled_from((0, rank))), order, batch, shape[seq_dim])


class Padding(NamedTuple):
    arguments: dict[str, Any]
    row: int | None  # row of weight that gets no gradient


@st.composite
def paddings(draw: st.DrawFn, vocabulary: int, rank: int) -> Padding:
    if draw(st.booleans()):
        return Padding({}, None)
    index = draw(st.integers(-vocabulary, vocabulary - 1))
    arguments: dict[str, Any] = {"padding_idx": index}
    if rank <= 2:
        arguments["encode_padding"] = draw(st.booleans())
    return Padding(arguments, index % vocabulary)


def mask_of(of: Tokens, padding: Padding, mask: Tensor | None) -> Tensor | None:
    """Rows without encoding, (1 or B, S)."""
    if padding.arguments.get("encode_padding", True):
        return mask
    bare = (of.ids.permute(of.order[:-1]) == padding.row).reshape(of.batch, of.length)
    return bare if mask is None else bare | mask


def forward(case: Any, weight: Tensor, encoding: Encoding, alpha: Any) -> Tensor:
    of, row, dropout, padding, scale, sparse = case
    return sinpe.embed(
        of.ids,
        weight,
        encoding,
        scale=scale,
        alpha=alpha,
        seq_dim=of.seq_dim,
        sparse=sparse,
        **row.arguments,
        **padding.arguments,
        **dropout.arguments(),
    )


@given(encodings(24), st.data(), st.sampled_from(DTYPES))
def test_embed(encoding: Encoding, data: st.DataObject, dtype: torch.dtype) -> None:
    draw, vocabulary = data.draw, data.draw(st.sampled_from((1, 2, 7, 100)))
    memory, weight = draw(views((vocabulary, encoding.dim), dtype, expanded=True))
    if 0 not in weight.stride():
        sprinkle(weight, draw(st.integers(0, 2**20)))
    of = draw(tokens(vocabulary))
    padding = draw(paddings(vocabulary, of.ids.dim()))
    row, dropout = draw(rows(encoding, of.batch, of.length)), draw(dropouts())
    case = (of, row, dropout, padding, draw(st.sampled_from(FACTORS)), draw(st.booleans()))
    alpha, before, results = draw(alphas()), memory.clone(), {}
    for way in WAYS:
        with use(way), torch.inference_mode(draw(st.booleans())):
            pe = sinpe.encode(row.at, encoding, dtype=acc_of(dtype))
            looked_up = weight[of.ids.long()].permute(of.order)
            mask = mask_of(of, padding, row.mask)
            total = of.back(expected_total(looked_up, pe, case[4], alpha, mask))
            got = forward(case, weight, encoding, alpha)
            assert same(got, expected_dropout(total, dtype, dropout.rate, dropout.seed)), way
            results[way] = got.clone()
    assert same(memory, before), "weight was modified"
    if dtype != torch.float64:
        assert same(results["checked"], results["eager"])


@given(encodings(16), st.data(), st.sampled_from(DTYPES))
def test_backward(encoding: Encoding, data: st.DataObject, dtype: torch.dtype) -> None:
    """Dense gradients of weight are bitwise equal to the formula, sparse ones row by row; alpha's within bounds."""
    draw, vocabulary = data.draw, data.draw(st.sampled_from((1, 2, 7, 100)))
    weight = draw(views((vocabulary, encoding.dim), dtype, expanded=False))[1]
    of = draw(tokens(vocabulary, least=1))
    padding, dropout = draw(paddings(vocabulary, of.ids.dim())), draw(dropouts())
    row = draw(rows(encoding, of.batch, of.length))
    case = (of, row, dropout, padding, draw(st.sampled_from(FACTORS[:8])), draw(st.booleans()))
    grad = draw(gradients((*of.ids.shape, encoding.dim), dtype))
    alpha = torch.tensor(draw(st.sampled_from((1.0, 0.3, -2.0))), dtype=draw(st.sampled_from(DTYPES[::3])))
    results = {}
    for way in WAYS:
        with use(way):
            mine, factor = weight.detach().clone().requires_grad_(), alpha.clone().requires_grad_()
            to_weight, to_alpha = torch.autograd.grad(forward(case, mine, encoding, factor), (mine, factor), grad)
            results[way] = to_weight
            assert to_weight.is_sparse == case[5] and to_weight.shape == weight.shape
            check_weight(to_weight, grad, case)
            wide = kept_gradient(grad, dropout.rate, dropout.seed).permute(of.order)
            mask = mask_of(of, padding, row.mask)
            wide = wide if mask is None else torch.where(broadcast_to_rows(mask.unsqueeze(-1), wide), 0.0, wide)
            pe = sinpe.encode(row.at, encoding, dtype=acc_of(dtype)).double()
            if not pe.isnan().any():
                check_sum(to_alpha, wide * broadcast_to_rows(pe, wide))
    if not case[5]:
        assert same(results["checked"], results["eager"])


def check_weight(got: Tensor, grad: Tensor, case: Any) -> None:
    of, _, dropout, padding, scale, sparse = case
    flat = of.ids.permute(of.order[:-1]).flatten().tolist()
    if sparse:
        each = expected_gradient(grad, scale, dropout.rate, dropout.seed).permute(of.order)
        each = each.reshape(-1, grad.shape[-1])
        counted = [k for k, token in enumerate(flat) if token != padding.row]
        assert got._indices().tolist() == [[flat[k] for k in counted]]
        assert same(got._values(), each[counted])
        return
    # Tree sum of the tokens in acc, times one factor, rounded once; a row without a token is +0.
    drop, acc = threshold_of(dropout.rate), acc_of(grad.dtype)
    want = torch.zeros(got.shape, dtype=acc)
    if drop < 65536:
        keep = expected_mask(grad.shape, dropout.rate, dropout.seed)
        each = torch.where(keep, grad.to(acc), 0.0).permute(of.order).reshape(-1, grad.shape[-1])
        factor = torch.tensor(scale * (65536 / (65536 - drop)), dtype=torch.float64).to(acc)
        for row in {token for token in flat if token != padding.row}:
            want[row] = tree_sum(each[[token == row for token in flat]]) * factor
    assert same(got, want.to(got.dtype))
