"""Property-based tests of grids: axes, arrangements and forms of x, against the concatenated rows of each axis."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from add_forms import FORMS, check_form
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from oracles import (
    acc_of,
    broadcast_to_rows,
    check_sum,
    close_float64,
    expected_dropout,
    expected_gradient,
    expected_total,
    kept_gradient,
    same,
    slopes,
    steepness,
)
from strategies import DTYPES, encodings, fractional_positions, views
from strategies_calls import FACTORS, alphas, dropouts, gradients, masks
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe
import sinpe_ext.numpy as sinpe_numpy
from sinpe_ext import GridEncoding
from sinpe_ext.encodings.grid_catalogue import GRIDS

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_kernels")]
ALPHA = 0.75  # the same number in every dtype


@st.composite
def grids(draw: st.DrawFn) -> GridEncoding:
    """Named grids, and any encodings in any arrangement, truncated or padded with zeros."""
    if draw(st.integers(0, 3)) == 0:
        name, dim = draw(st.sampled_from(sorted(GRIDS))), draw(st.sampled_from((4, 8, 12, 16, 24, 48, 7, 22)))
        try:
            return sinpe.convention(name, dim)
        except ValueError:  # a dim that the library does not support
            reject()
    arrangement = draw(st.sampled_from(("blocks", "blocks", "grouped", "interleaved", "pairs")))
    axes = [draw(encodings(9))]
    alike = draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        axes.append(axes[0] if alike else draw(encodings(9)))
    try:
        if arrangement == "grouped":
            layouts = ("sin_cos", "cos_sin")
            dims = [axis.dim + axis.dim % 2 for axis in axes]
            fields = [{"layout": draw(st.sampled_from(layouts)), "frequencies": None} for _ in axes]
            axes = [axis.replace(dim=dim, **more) for axis, dim, more in zip(axes, dims, fields, strict=True)]
        elif arrangement == "pairs":
            dim, fields = axes[0].dim + axes[0].dim % 2, {"layout": "interleaved", "frequencies": None}
            axes = [axis.replace(dim=dim, **fields) for axis in axes]
        elif arrangement == "interleaved":
            axes = [axis.replace(dim=axes[0].dim, frequencies=None) for axis in axes]
        total = sum(axis.dim for axis in axes)
        few, many = draw(st.integers(1, 3)), draw(st.integers(1, total))  # channels that are truncated
        dim = draw(st.sampled_from((None, None, max(1, total - few), max(1, total - few), 1 + total - many, total + 3)))
        order = draw(st.sampled_from((None, tuple(draw(st.permutations(range(len(axes))))))))
        return GridEncoding(axes, arrangement=arrangement, order=order, dim=dim)
    except (ValueError, OverflowError):  # an invalid axis
        reject()


def combine_axes(grid: GridEncoding, rows: list[Tensor]) -> Tensor:
    """The channels of a grid from the rows of each axis, (*places, axis.dim) each."""
    ordered = [rows[axis] for axis in (grid.order or range(grid.ndim))]
    if grid.arrangement == "interleaved":
        made = torch.stack(ordered, -1).flatten(-2)
    elif grid.arrangement == "pairs":
        made = torch.stack([row.unflatten(-1, (-1, 2)) for row in ordered], -2).flatten(-3)
    elif grid.arrangement == "grouped":
        made = torch.cat([part for k in (0, 1) for part in (row.chunk(2, -1)[k] for row in ordered)], -1)
    else:
        made = torch.cat(ordered, -1)
    zeros = made.new_zeros((*made.shape[:-1], max(0, grid.dim - made.shape[-1])))
    return torch.cat([made[..., : grid.dim], zeros], -1)


def truth(grid: GridEncoding, places: Tensor, dtype: torch.dtype) -> Tensor:
    """For coordinates (*places, axes)."""
    return combine_axes(grid, [sinpe.encode(places[..., k], axis, dtype=dtype) for k, axis in enumerate(grid.axes)])


def implicit(grid: GridEncoding, lengths: tuple[int, ...], starts: list[int]) -> Tensor:
    axes = [torch.arange(n) + s + axis.start for n, s, axis in zip(lengths, starts, grid.axes, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


@st.composite
def coordinates(draw: st.DrawFn, shape: tuple[int, ...]) -> Tensor:
    """For places (*shape)."""
    count = math.prod(shape)
    if draw(st.booleans()):
        values = draw(st.lists(st.integers(-(2**40), 2**40), min_size=min(count, 5), max_size=5)) or [0]
        return torch.tensor(values, dtype=torch.int64).repeat(count // len(values) + 1)[:count].reshape(shape)
    values = draw(st.lists(fractional_positions(32), min_size=3, max_size=9))
    dtype = draw(st.sampled_from((torch.float32, torch.float64)))
    return torch.tensor(values, dtype=dtype).repeat(count // len(values) + 1)[:count].reshape(shape)


STARTS = st.integers(-(2**40), 2**40)


@given(grids(), st.data(), st.sampled_from(DTYPES))
def test_table_and_encode(grid: GridEncoding, data: st.DataObject, dtype: torch.dtype) -> None:
    draw, n = data.draw, grid.ndim
    lengths = tuple(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    starts = draw(st.lists(STARTS, min_size=n, max_size=n))
    extra, flat = draw(st.sampled_from((0, 0, 1, 3))), draw(st.booleans())
    shape = (extra + math.prod(lengths), grid.dim) if extra or flat else (*lengths, grid.dim)
    memory, out = draw(views(shape, dtype, expanded=False))
    before = memory.clone()
    torch.as_strided(before, out.size(), out.stride(), out.storage_offset()).fill_(0)
    places = draw(coordinates((*draw(st.lists(st.integers(0, 5), max_size=2)), n)))
    results = {}
    for way in WAYS:
        with use(way):
            want = truth(grid, implicit(grid, lengths, starts), dtype)
            want = want.reshape(-1, grid.dim) if math.prod(lengths) else want.reshape(0, grid.dim)
            want = torch.cat([want.new_zeros(extra, grid.dim), want]).reshape(shape)
            got = sinpe.table(lengths, grid, start=starts, dtype=dtype, extra_tokens=extra, flatten=flat)
            assert same(got, want), way
            out.fill_(math.nan)
            assert sinpe.table(lengths, grid, start=starts, out=out, extra_tokens=extra, flatten=flat) is out
            assert same(out, want)
            out.fill_(0)
            assert same(memory, before), "an element outside the result was modified"
            rows = sinpe.encode(places, grid, dtype=dtype)
            assert same(rows, truth(grid, places, dtype))
            results[way] = got, rows
    for compiled, eager in zip(results["checked"], results["eager"], strict=True):
        assert close_float64(compiled, eager) if dtype == torch.float64 else same(compiled, eager)
    if dtype == torch.float32:
        assert same(torch.from_numpy(sinpe_numpy.encode(places.numpy(), grid)), results["eager"][1])
        if not extra:
            table = sinpe_numpy.table(lengths, grid, start=starts)
            assert same(torch.from_numpy(table).reshape(shape), results["eager"][0])


class Form(NamedTuple):
    """Dimensions of x: `order` permutes x to (*batches, *lengths or S, C)."""

    shape: tuple[int, ...]
    arguments: dict[str, Any]
    order: list[int]
    flat: bool
    extra: int
    lengths: tuple[int, ...]
    batches: tuple[int, ...]

    def canonical(self, t: Tensor) -> Tensor:
        """(*batches, S, C), without the extra tokens."""
        t = t.permute(self.order)
        t = t.narrow(-2, self.extra, t.shape[-2] - self.extra) if self.flat else t
        return t.reshape(*self.batches, math.prod(self.lengths), t.shape[-1])

    def restore(self, canonical: Tensor, front: Tensor) -> Tensor:
        """Inverse of canonical; `front` are the extra tokens, (*batches, extra, C)."""
        t = torch.cat([front, canonical], -2) if self.flat else canonical
        t = t.reshape([self.shape[d] for d in self.order])
        return t.permute([self.order.index(d) for d in range(len(self.order))])


@st.composite
def forms(draw: st.DrawFn, grid: GridEncoding, least: int = 0) -> Form:
    n = grid.ndim
    lengths = tuple(draw(st.lists(st.integers(least, 4), min_size=n, max_size=n)))
    batches = tuple(draw(st.lists(st.integers(least, 3), max_size=2)))
    places, flat = math.prod(lengths), n == 1 or draw(st.booleans())
    extra = draw(st.sampled_from((0, 0, 1, 3))) if flat else 0
    arguments: dict[str, Any] = {"extra_tokens": extra} if extra else {}
    b = len(batches)
    if flat:
        arguments["grid_shape"] = draw(st.sampled_from((lengths, list(lengths))))
        rank = b + 2
        seq_dim, channel_dim = draw(
            st.sampled_from(((rank - 2, rank - 1), tuple(draw(st.permutations(range(rank)))[:2])))
        )
        arguments |= {"seq_dim": seq_dim, "channel_dim": channel_dim}
        order = [*(d for d in range(rank) if d not in (seq_dim, channel_dim)), seq_dim, channel_dim]
        sizes = (*batches, extra + places, grid.dim)
    else:
        rank = b + n + 1
        channel_dim = draw(st.sampled_from((rank - 1, *range(b + 1))))
        arguments["channel_dim"] = channel_dim - draw(st.sampled_from((0, rank)))
        order = [*(d for d in range(rank) if d != channel_dim), channel_dim]
        sizes = (*batches, *lengths, grid.dim)
    shape = [0] * rank
    for d, size in zip(order, sizes, strict=True):
        shape[d] = size
    if not flat:
        if not b or draw(st.booleans()):
            arguments["grid_shape"] = lengths
            assume(channel_dim == rank - 2 or shape[rank - 2] != places)  # else it could be a flattened grid
    return Form(tuple(shape), arguments, order, flat, extra, lengths, batches)


class Places(NamedTuple):
    arguments: dict[str, Any]
    at: Tensor  # (1 or B, S, axes)
    mask: Tensor | None  # (1 or B, S)


@st.composite
def where(draw: st.DrawFn, grid: GridEncoding, form: Form) -> Places:
    """start of each kind or positions, with or without a mask, in each supported shape."""
    n, places = grid.ndim, math.prod(form.lengths)
    batch = form.batches[0] if form.batches else 1
    allowed = [((places,), False), (form.lengths, False)] if form.flat else [(form.lengths, False)]
    if form.batches:
        allowed += [((k, *dims), True) for dims, _ in list(allowed) for k in (1, batch)]
    arguments: dict[str, Any] = {}
    kind = draw(st.sampled_from(("implicit", "int", "each", "0-d", "tensor", "per sample", "positions", "positions")))
    starts = draw(st.lists(STARTS, min_size=n, max_size=n))
    if kind == "positions":
        shape, sampled = draw(st.sampled_from(allowed))
        at = arguments["positions"] = draw(coordinates((*shape, n)))
        at = at.reshape(shape[0] if sampled else 1, places, n)
    elif kind == "per sample" and form.batches:
        drawn = torch.tensor(starts * batch, dtype=torch.int64).reshape(batch, n)
        arguments["start"] = drawn + torch.arange(batch).unsqueeze(1)
        base = implicit(grid, form.lengths, [0] * n).reshape(1, places, n)
        at = base + arguments["start"].unsqueeze(1)
    else:
        if kind == "implicit" or kind == "per sample":
            starts = [0] * n
        elif kind in ("int", "0-d"):
            starts = [starts[0]] * n
            arguments["start"] = starts[0] if kind == "int" else torch.tensor(starts[0])
        else:
            arguments["start"] = starts if kind == "each" else torch.tensor(starts, dtype=torch.int64)
        at = implicit(grid, form.lengths, starts).reshape(1, places, n)
    mask = None
    if draw(st.booleans()):
        shape, sampled = draw(st.sampled_from(allowed))
        mask = arguments["padding_mask"] = draw(masks(shape))
        mask = mask.reshape(shape[0] if sampled else 1, places)
    return Places(arguments, at, mask)


@given(grids(), st.data(), st.sampled_from(DTYPES), st.sampled_from(FORMS))
def test_add(grid: GridEncoding, data: st.DataObject, dtype: torch.dtype, call: str) -> None:
    """Each form of `add`, in each way (ways.py), equals the formula and writes nothing but the result."""
    draw = data.draw
    form = draw(forms(grid))
    at, dropout = draw(where(grid, form)), draw(dropouts())
    scale, alpha, acc = draw(st.sampled_from(FACTORS)), draw(alphas()), acc_of(dtype)
    arguments = dict(form.arguments, scale=scale, alpha=alpha, **at.arguments)

    def want(x: Tensor) -> Tensor:
        total = expected_total(form.canonical(x), truth(grid, at.at, acc), scale, alpha, at.mask)
        front = torch.as_tensor(scale, dtype=acc) * x.permute(form.order).to(acc)[..., : form.extra, :]
        return expected_dropout(form.restore(total, front), dtype, dropout.rate, dropout.seed)

    check_form(draw, call, form.shape, dtype, grid, lambda: arguments | dropout.arguments(), want)


@given(grids(), st.data(), st.sampled_from(DTYPES), st.sampled_from(("add", "add_")))
def test_backward(grid: GridEncoding, data: st.DataObject, dtype: torch.dtype, call: str) -> None:
    """The gradient of x is bitwise equal for implicit coordinates if no other is needed; those of alpha and coordinates
    equal their formulas."""
    draw = data.draw
    form = draw(forms(grid, least=1))
    at, dropout, scale = draw(where(grid, form)), draw(dropouts()), draw(st.sampled_from(FACTORS[:8]))
    x, grad = draw(views(form.shape, dtype, expanded=False))[1], draw(gradients(form.shape, dtype))
    acc, by_way = acc_of(dtype), {}
    given = at.arguments.get("positions", torch.zeros(0, dtype=torch.int64))
    moves = given.is_floating_point() and bool((given.abs() < 2**20).all())
    for way in WAYS:
        with use(way):
            mine = x.detach().clone().requires_grad_()
            alpha = torch.tensor([ALPHA], dtype=draw(st.sampled_from(DTYPES[::3])), requires_grad=True)
            arguments = dict(form.arguments, scale=scale, alpha=alpha, **at.arguments, **dropout.arguments())
            inputs = [mine, alpha]
            if moves:
                arguments["positions"] = given.clone().requires_grad_()
                inputs.append(arguments["positions"])
            made = sinpe.add(mine, grid, **arguments) if call == "add" else sinpe.add_(mine * 1, grid, **arguments)
            to_x, to_alpha, *to_positions = torch.autograd.grad(made, inputs, grad)
            want = expected_gradient(grad, scale, dropout.rate, dropout.seed)
            torch.testing.assert_close(to_x, want, rtol=4 * torch.finfo(dtype).eps, atol=1e-37, equal_nan=True)
            arguments = dict(form.arguments, scale=scale, **dropout.arguments())
            made = sinpe.add(mine, grid, **arguments) if call == "add" else sinpe.add_(mine * 1, grid, **arguments)
            (to_x,) = torch.autograd.grad(made, mine, grad)
            assert same(to_x, want)
            by_way[way] = to_x
            wide = form.canonical(kept_gradient(grad, dropout.rate, dropout.seed))
            wide = wide if at.mask is None else torch.where(broadcast_to_rows(at.mask.unsqueeze(-1), wide), 0.0, wide)
            pe = truth(grid, at.at, acc).double()
            if not pe.isnan().any():
                check_sum(to_alpha, wide * broadcast_to_rows(pe, wide), relative=4 * torch.finfo(acc).eps)
            if moves:
                check_coordinates(to_positions[0].reshape(at.at.shape), wide, grid, at.at, acc)
    assert same(by_way["checked"], by_way["eager"])


def check_coordinates(got: Tensor, wide: Tensor, grid: GridEncoding, at: Tensor, acc: torch.dtype) -> None:
    """Checks the first and last place: ALPHA * sum(G * PE') for each axis."""
    wide = wide.reshape(-1, *wide.shape[-2:]) if at.shape[0] == 1 else wide.reshape(len(at), -1, *wide.shape[-2:])
    wide = wide.unsqueeze(0) if at.shape[0] == 1 else wide  # (1 or B, any, S, C)
    relative = 2.0**-22 if acc == torch.float32 else 2.0**-49
    for sample, s in {(0, 0), (len(at) - 1, at.shape[1] - 1)}:
        for k, axis in enumerate(grid.axes):
            steep, slope = ([torch.zeros(a.dim, dtype=torch.float64) for a in grid.axes] for _ in range(2))
            steep[k], slope[k] = steepness(axis), slopes(axis, [at[sample, s, k].item()])[0]
            terms = wide[sample, :, s] * combine_axes(grid, slope) * ALPHA
            size = float((wide[sample, :, s].abs() * combine_axes(grid, steep)).sum())
            want, one = float(terms.sum()), float(got[sample, s, k])
            if size < 1e30:
                rounding = 2.0**-23 if got.dtype == torch.float32 else 2.0**-52
                assert abs(one - want) <= (relative + 1e-12) * size + rounding * abs(want) + 1e-44, (one, want)
