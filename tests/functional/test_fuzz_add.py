"""Property-based tests of `add`: all forms, checked, repeated and eager, forward and backward, whole and in parts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from add_forms import FORMS, check_form
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    acc_of,
    broadcast_to_rows,
    check_sum,
    expected_dropout,
    expected_gradient,
    expected_total,
    kept_gradient,
    same,
    slopes,
    steepness,
)
from strategies import DTYPES, encodings, views
from strategies_calls import FACTORS, alphas, dropouts, gradients, rows
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe
from sinpe_ext import Encoding

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_kernels")]


class Shape(NamedTuple):
    shape: tuple[int, ...]
    seq_dim: int
    channel_dim: int
    order: list[int]  # permutation to canonical form
    batch: int
    length: int

    def arguments(self) -> dict[str, int]:
        return {"seq_dim": self.seq_dim, "channel_dim": self.channel_dim}

    def back(self, canonical: Tensor) -> Tensor:
        return canonical.permute([self.order.index(d) for d in range(len(self.order))])


@st.composite
def shapes(draw: st.DrawFn, dim: int, least: int = 0) -> Shape:
    rank = draw(st.integers(2, 4))
    seq_dim, channel_dim = draw(st.permutations(range(rank)))[:2]
    length = draw(st.sampled_from((0, 1, 2, 5, 13, 40)).filter(lambda n: n >= least))
    shape = [draw(st.integers(least, 3)) for _ in range(rank)]
    shape[seq_dim], shape[channel_dim] = length, dim
    others = [d for d in range(rank) if d not in (seq_dim, channel_dim)]
    batch = shape[others[0]] if others else 1
    signs = [draw(st.sampled_from((0, rank))) for _ in range(2)]
    order = [*others, seq_dim, channel_dim]
    return Shape(tuple(shape), seq_dim - signs[0], channel_dim - signs[1], order, batch, length)


@given(encodings(24), st.data(), st.sampled_from(DTYPES), st.sampled_from(FORMS))
def test_add(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, form: str) -> None:
    """Each form of `add`, in each way (ways.py), equals the formula and writes nothing but the result."""
    draw = data.draw
    shape = draw(shapes(encoding.dim))
    scale, alpha = draw(st.sampled_from(FACTORS)), draw(alphas())
    row, dropout = draw(rows(encoding, shape.batch, shape.length)), draw(dropouts())
    arguments = dict(row.arguments, scale=scale, alpha=alpha, **shape.arguments())

    def want(x: Tensor) -> Tensor:
        pe = sinpe.encode(row.at, encoding, dtype=acc_of(dtype))
        total = expected_total(x.permute(shape.order), pe, scale, alpha, row.mask)
        return expected_dropout(shape.back(total), dtype, dropout.rate, dropout.seed)

    check_form(draw, form, shape.shape, dtype, encoding, lambda: arguments | dropout.arguments(), want)


@given(encodings(16), st.data(), st.sampled_from(DTYPES), st.sampled_from(("add", "add_")))
def test_backward(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, form: str) -> None:
    """Gradients of alpha and positions equal their formulas; that of x is bitwise equal."""
    draw = data.draw
    shape = draw(shapes(encoding.dim, least=1))
    x, grad = draw(views(shape.shape, dtype, expanded=False))[1], draw(gradients(shape.shape, dtype))
    scale, real = draw(st.sampled_from(FACTORS[:8])), draw(st.booleans())
    row, dropout = draw(rows(encoding, shape.batch, shape.length, real)), draw(dropouts())
    alpha = torch.tensor([draw(st.sampled_from((1.0, 0.3, -2.0)))], dtype=draw(st.sampled_from(DTYPES[::3])))
    learned = draw(st.booleans())
    grads = {}
    for way in WAYS:
        with use(way):
            mine, factor = x.detach().clone().requires_grad_(), alpha.clone().requires_grad_(learned)
            inputs, arguments = [mine, factor] if learned else [mine], dict(row.arguments)
            if real:
                arguments["positions"] = row.arguments["positions"].clone().requires_grad_()
                inputs.append(arguments["positions"])
            arguments.update(shape.arguments(), scale=scale, alpha=factor, **dropout.arguments())
            call = sinpe.add if form == "add" else lambda t, *a, **k: sinpe.add_(t * 1, *a, **k)
            got = call(mine, encoding, **arguments)
            grads[way] = torch.autograd.grad(got, inputs, grad)
            check_gradients(grads[way], encoding, shape, grad, scale, alpha, dropout, row, learned, real)
    assert same(grads["checked"][0], grads["eager"][0])


def check_gradients(
    grads: tuple[Tensor, ...],
    encoding: Encoding,
    shape: Shape,
    grad: Tensor,
    scale: float,
    alpha: Tensor,
    dropout: Any,
    row: Any,
    learned: bool,
    real: bool,
) -> None:
    to_x, *others = grads
    assert same(to_x, expected_gradient(grad, scale, dropout.rate, dropout.seed))
    wide = kept_gradient(grad, dropout.rate, dropout.seed).permute(shape.order)
    if row.mask is not None:
        wide = torch.where(broadcast_to_rows(row.mask.unsqueeze(-1), wide), 0.0, wide)
    acc = acc_of(grad.dtype)
    if learned:
        pe = sinpe.encode(row.at, encoding, dtype=acc).double()
        to_alpha, *others = others
        assert to_alpha.shape == alpha.shape
        if not pe.isnan().any():
            check_sum(to_alpha, wide * broadcast_to_rows(pe, wide))
    if real:
        (to_positions,) = others
        assert to_positions.shape == row.arguments["positions"].shape
        check_position_gradient(to_positions.reshape(row.at.shape), wide, encoding, row.at, float(alpha), acc)


def check_position_gradient(
    got: Tensor, wide: Tensor, encoding: Encoding, at: Tensor, alpha: float, acc: torch.dtype
) -> None:
    """Checks the first and last row of each sample: alpha * sum(G * PE')."""
    each = wide if wide.dim() == 2 else wide.flatten(1, -3).sum(1) if wide.dim() > 3 else wide
    sizes = wide.abs() if wide.dim() == 2 else wide.abs().flatten(1, -3).sum(1) if wide.dim() > 3 else wide.abs()
    each, sizes = (t.unsqueeze(0) if t.dim() == 2 else t for t in (each, sizes))
    if at.shape[0] == 1:
        each, sizes = each.sum(0, keepdim=True), sizes.sum(0, keepdim=True)
    relative = 2.0**-23 if acc == torch.float32 else 2.0**-50  # of each row of PE' in acc, and of its angular frequency
    steepest = abs(alpha) * steepness(encoding)
    for sample in range(at.shape[0]):
        for s in {0, at.shape[1] - 1}:
            slope = alpha * slopes(encoding, [at[sample, s].item()])[0]
            want, size = float((each[sample, s] * slope).sum()), float((sizes[sample, s] * steepest).sum())
            if math.isfinite(size) and size < 1e30:
                rounding = 2.0**-23 if got.dtype == torch.float32 else 2.0**-52
                limit = (relative + 1e-12) * size + rounding * abs(want) + 1e-44
                assert abs(float(got[sample, s]) - want) <= limit, (float(got[sample, s]), want, size)


@given(encodings(24), st.data(), st.sampled_from(DTYPES))
def test_rows_of_parts_equal_rows_of_whole(encoding: Encoding, data: st.DataObject, dtype: torch.dtype) -> None:
    """Rows computed in two calls, or sample by sample, equal those of one call."""
    draw = data.draw
    batch, length, start = draw(st.integers(1, 4)), draw(st.integers(1, 60)), draw(st.integers(-(2**40), 2**40))
    x = draw(views((batch, length, encoding.dim), dtype, expanded=True))[1]
    scale, alpha = draw(st.sampled_from(FACTORS)), draw(alphas())
    cut = draw(st.integers(0, length))
    given = {"scale": scale, "alpha": alpha}
    with use(draw(st.sampled_from(WAYS))):
        whole = sinpe.add(x, encoding, start=start, **given)
        halves = [sinpe.add(x[:, :cut], encoding, start=start, **given)]
        halves.append(sinpe.add(x[:, cut:], encoding, start=start + cut, **given))
        assert same(torch.cat(halves, 1), whole)
        assert same(torch.stack([sinpe.add(t, encoding, start=start, **given) for t in x]), whole)
        at = torch.arange(length) + start + encoding.start
        order = torch.randperm(length, generator=torch.Generator().manual_seed(cut))
        shuffled = sinpe.add(x[:, order], encoding, positions=at[order], **given)
        assert same(shuffled, whole[:, order])
        table = sinpe.table(length, encoding, start=start, dtype=dtype)
        assert same(sinpe.encode(at, encoding, dtype=dtype), table)
        assert same(sinpe.table(length - cut, encoding, start=start + cut, dtype=dtype), table[cut:])
