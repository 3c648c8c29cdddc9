"""Property-based tests of all functions, for sequences and grids, in each way (ways.py).

Sums, dropout masks and gradients equal their formulas (oracles.py). Rows are those of `encode`, which test_parity.py
compares with mpmath; a grid combines the rows of its axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from oracles import (
    acc_of,
    broadcast_to_rows,
    check_exact,
    check_sum,
    close_float64,
    expected_dropout,
    expected_gradient,
    expected_mask,
    expected_total,
    kept_gradient,
    same,
    slopes,
    steepness,
    threshold_of,
    tree_sum,
)
from strategies import DTYPES, INT64_MAX, INT64_MIN, encodings, examples, positions, spread, sprinkle, views
from strategies_calls import FACTORS, Dropout, alphas, dropouts, masks
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding
from sinpe_ext.encodings.grid_catalogue import GRIDS

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_kernels")]
STARTS = st.integers(-(2**61), 2**61)
REAL = st.floats(-5000, 5000, width=32)
IDS = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
FORMS = ("add", "out", "out is x", "add_")


# --------------------------------------------------------------------------------------------------- encodings


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
    axes, alike = [draw(encodings(9))], draw(st.booleans())
    for _ in range(draw(st.integers(0, 3))):
        axes.append(axes[0] if alike else draw(encodings(9)))
    try:
        if arrangement == "grouped":
            fields = [{"layout": draw(st.sampled_from(("sin_cos", "cos_sin"))), "frequencies": None} for _ in axes]
            axes = [axis.replace(dim=axis.dim + axis.dim % 2, **more) for axis, more in zip(axes, fields, strict=True)]
        elif arrangement == "pairs":
            dim = axes[0].dim + axes[0].dim % 2
            axes = [axis.replace(dim=dim, layout="interleaved", frequencies=None) for axis in axes]
        elif arrangement == "interleaved":
            axes = [axis.replace(dim=axes[0].dim, frequencies=None) for axis in axes]
        total = sum(axis.dim for axis in axes)
        few, many = draw(st.integers(1, 3)), draw(st.integers(1, total))  # channels that are truncated
        dim = draw(st.sampled_from((None, None, max(1, total - few), 1 + total - many, total + 3)))
        order = draw(st.sampled_from((None, tuple(draw(st.permutations(range(len(axes))))))))
        return GridEncoding(axes, arrangement=arrangement, order=order, dim=dim)
    except (ValueError, OverflowError):  # an invalid axis
        reject()


@st.composite
def rounded(draw: st.DrawFn) -> Encoding:
    """With float32 angles."""
    encoding = draw(encodings(24))
    try:
        return encoding.replace(angle=draw(st.sampled_from(("float32_exp", "float32_pow"))))
    except ValueError:
        reject()


EXACT = st.one_of(encodings(24), encodings(24), grids(), grids())
ANY = st.one_of(encodings(24), encodings(24), rounded(), grids(), grids(), grids())


def axes_of(encoding: Encoding | GridEncoding) -> Sequence[Encoding]:
    return encoding.axes if isinstance(encoding, GridEncoding) else (encoding,)


def combine_axes(encoding: Encoding | GridEncoding, rows: list[Tensor]) -> Tensor:
    """The channels from the rows of each axis, (*places, axis.dim) each."""
    if isinstance(encoding, Encoding):
        return rows[0]
    ordered = [rows[axis] for axis in (encoding.order or range(encoding.ndim))]
    if encoding.arrangement == "interleaved":
        made = torch.stack(ordered, -1).flatten(-2)
    elif encoding.arrangement == "pairs":
        made = torch.stack([row.unflatten(-1, (-1, 2)) for row in ordered], -2).flatten(-3)
    elif encoding.arrangement == "grouped":
        made = torch.cat([part for k in (0, 1) for part in (row.chunk(2, -1)[k] for row in ordered)], -1)
    else:
        made = torch.cat(ordered, -1)
    zeros = made.new_zeros((*made.shape[:-1], max(0, encoding.dim - made.shape[-1])))
    return torch.cat([made[..., : encoding.dim], zeros], -1)


def rows_at(encoding: Encoding | GridEncoding, places: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows of places (*shape, axes)."""
    each = [sinpe.encode(places[..., k], axis, dtype=dtype) for k, axis in enumerate(axes_of(encoding))]
    return combine_axes(encoding, each)


def implicit(encoding: Encoding | GridEncoding, lengths: Sequence[int], starts: Sequence[int]) -> Tensor:
    """(*lengths, axes)"""
    every = zip(lengths, starts, axes_of(encoding), strict=True)
    return torch.stack(torch.meshgrid([torch.arange(n) + s + a.start for n, s, a in every], indexing="ij"), -1)


# ----------------------------------------------------------------------------------------------- forms of a call


class Form(NamedTuple):
    """Dimensions of a result: `order` permutes it to (*batches, *lengths or extra + S, C)."""

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
def forms(draw: st.DrawFn, encoding: Encoding | GridEncoding, least: int = 0, of_ids: bool = False) -> Form:
    n, is_grid = len(axes_of(encoding)), isinstance(encoding, GridEncoding)
    several = (2, 3, 2, 1, 3, 4, 2, 3, 0) if is_grid else (2, 5, 13, 1, 40, 0)
    lengths = tuple([draw(st.sampled_from([k for k in several if k >= least])) for _ in range(n)])
    of_batch = (2,), (3, 2), (), (2, 3), (3,), (1,), (1, 2), (2, 1), (0,), (2, 0)
    batches = draw(st.sampled_from([sizes for sizes in of_batch if min(sizes, default=1) >= least]))
    places, b, flat = math.prod(lengths), len(batches), n == 1 or draw(st.booleans())
    extra = draw(st.sampled_from((0, 0, 1, 3))) if flat and not of_ids else 0
    rank, arguments = b + (1 if flat else n) + 1, {"extra_tokens": extra} if extra else {}
    back = draw(st.sampled_from((0, rank)))
    if of_ids:
        seq_dim, channel_dim = draw(st.integers(0, b)), b + 1
        arguments["seq_dim"] = draw(st.sampled_from((seq_dim, seq_dim - rank + 1)))
    elif flat:
        default = rank - 2, rank - 1
        seq_dim, channel_dim = draw(st.sampled_from((default, tuple(draw(st.permutations(range(rank)))[:2]))))
        arguments |= {"seq_dim": seq_dim - back, "channel_dim": channel_dim - back}
        arguments |= {"grid_shape": draw(st.sampled_from((lengths, [*lengths])))} if is_grid else {}
    else:
        channel_dim = draw(st.sampled_from((rank - 1, *range(b + 1))))
        arguments["channel_dim"] = channel_dim - back
    if flat:
        order = [*(d for d in range(rank) if d not in (seq_dim, channel_dim)), seq_dim, channel_dim]
        sizes = (*batches, extra + places, encoding.dim)
    else:
        order = [*(d for d in range(rank) if d != channel_dim), channel_dim]
        sizes = (*batches, *lengths, encoding.dim)
    shape = [0] * rank
    for d, size in zip(order, sizes, strict=True):
        shape[d] = size
    if not flat and (not b or draw(st.booleans())):
        arguments["grid_shape"] = lengths
        assume(channel_dim == rank - 2 or shape[rank - 2] != places)  # else it could be a flattened grid
    return Form(tuple(shape), arguments, order, flat, extra, lengths, batches)


class Places(NamedTuple):
    arguments: dict[str, Any]
    at: Tensor  # (1 or B, S, axes)
    mask: Tensor | None  # (1 or B, S)


@st.composite
def where(draw: st.DrawFn, encoding: Encoding | GridEncoding, form: Form, real: bool = False) -> Places:
    """start of each kind or positions, with or without a mask, in each supported shape. `real`: float positions."""
    n, places, is_grid = len(form.lengths), math.prod(form.lengths), isinstance(encoding, GridEncoding)
    batch = form.batches[0] if form.batches else 1
    allowed = [((places,), False), (form.lengths, False)] if form.flat else [(form.lengths, False)]
    if form.batches:
        allowed += [((k, *dims), True) for dims, _ in list(allowed) for k in (1, batch)]
    arguments: dict[str, Any] = {}
    kind = draw(st.sampled_from(("implicit", "int", "each", "0-d", "tensor", "per sample", "positions", "positions")))
    starts = draw(st.lists(STARTS, min_size=n, max_size=n))
    if kind == "positions" or real:
        shape, sampled = draw(st.sampled_from(allowed))
        if real:
            values, count = draw(st.lists(REAL, min_size=1, max_size=9)), math.prod(shape) * n
            at = torch.tensor(values, dtype=draw(st.sampled_from((torch.float32, torch.float64))))
            at = at.repeat(count // len(values) + 1)[:count].reshape(*shape, n)
        else:
            at = draw(positions((*shape, n)))
        arguments["positions"] = at if is_grid else at[..., 0]
        at = at.reshape(shape[0] if sampled else 1, places, n)
    elif kind == "per sample" and form.batches:
        drawn = torch.tensor(starts, dtype=torch.int64) + 7 * torch.arange(batch).unsqueeze(1)
        arguments["start"] = drawn if is_grid else drawn[:, 0]
        at = implicit(encoding, form.lengths, [0] * n).reshape(1, places, n) + drawn.unsqueeze(1)
    else:
        if kind in ("implicit", "per sample"):
            starts = [0] * n
        elif kind in ("int", "0-d") or not is_grid:
            starts = [starts[0]] * n
            arguments["start"] = starts[0] if kind == "int" else torch.tensor(starts[0])
            if kind == "0-d" and draw(st.booleans()):
                starts = [starts[0] % 2**31] * n
                arguments["start"] = torch.tensor(starts[0], dtype=torch.int32)
        else:
            arguments["start"] = starts if kind == "each" else torch.tensor(starts, dtype=torch.int64)
        at = implicit(encoding, form.lengths, starts).reshape(1, places, n)
    mask = None
    if draw(st.booleans()):
        shape, sampled = draw(st.sampled_from(allowed))
        mask = arguments["padding_mask"] = draw(masks(shape))
        mask = mask.reshape(shape[0] if sampled else 1, places)
    return Places(arguments, at, mask)


def expected(
    encoding: Any, form: Form, at: Places, x: Tensor, scale: float, alpha: Any, mask: Tensor | None, dropout: Dropout
) -> Tensor:
    acc = acc_of(x.dtype)
    total = expected_total(form.canonical(x), rows_at(encoding, at.at, acc), scale, alpha, mask)
    front = torch.as_tensor(scale, dtype=acc) * x.permute(form.order).to(acc)[..., : form.extra, :]
    return expected_dropout(form.restore(total, front), x.dtype, dropout.rate, dropout.seed)


def unmasked(t: Tensor, mask: Tensor | None) -> Tensor:
    return t if mask is None else torch.where(broadcast_to_rows(mask.unsqueeze(-1), t), 0.0, t)


def check_alpha(got: Tensor, wide: Tensor, encoding: Any, at: Tensor, acc: torch.dtype) -> None:
    """`wide`: the gradient of the sum, in canonical form."""
    pe, is_grid = rows_at(encoding, at, acc).double(), isinstance(encoding, GridEncoding)
    if not pe.isnan().any():
        check_sum(got, wide * broadcast_to_rows(pe, wide), relative=4 * torch.finfo(acc).eps if is_grid else 0.0)


def check_positions(got: Tensor, wide: Tensor, encoding: Any, at: Tensor, alpha: float, acc: torch.dtype) -> None:
    """The first and the last place: alpha * sum(G * PE') for each axis."""
    got, wide = got.reshape(at.shape), wide.reshape(at.shape[0], -1, *wide.shape[-2:])  # (1 or B, any, S, C)
    relative = 2.0**-23 if acc == torch.float32 else 2.0**-50  # of each row of PE' in acc, and of its angular frequency
    relative *= 2 if isinstance(encoding, GridEncoding) else 1
    rounding = 2.0**-23 if got.dtype == torch.float32 else 2.0**-52
    for sample, s in {(0, 0), (len(at) - 1, at.shape[1] - 1)}:
        for k, axis in enumerate(axes_of(encoding)):
            steep, slope = ([torch.zeros(a.dim, dtype=torch.float64) for a in axes_of(encoding)] for _ in range(2))
            steep[k], slope[k] = steepness(axis), slopes(axis, [at[sample, s, k].item()])[0]
            terms = wide[sample, :, s] * combine_axes(encoding, slope) * alpha
            size = float((wide[sample, :, s].abs() * combine_axes(encoding, steep) * abs(alpha)).sum())
            want, one = float(terms.sum()), float(got[sample, s, k])
            if math.isfinite(size) and size < 1e30:
                assert abs(one - want) <= (relative + 1e-12) * size + rounding * abs(want) + 1e-44, (one, want, size)


# ----------------------------------------------------------------------------------------------------------- add


def copy_of_view(memory: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A copy of all the memory, and the same view of it."""
    kept = memory.clone()
    return kept, torch.as_strided(kept, x.size(), x.stride(), x.storage_offset())


def filled(memory: Tensor, view: Tensor) -> Tensor:
    """A copy of the memory, in which the view is 0."""
    kept, same_view = copy_of_view(memory, view)
    same_view.fill_(0)
    return kept


@examples(120)
@given(ANY, st.data(), st.sampled_from(DTYPES), st.sampled_from(FORMS))
def test_add(encoding: Any, data: st.DataObject, dtype: torch.dtype, call: str) -> None:
    """Writes nothing but the result."""
    draw = data.draw
    form = draw(forms(encoding))
    at, dropout = draw(where(encoding, form)), draw(dropouts())
    scale, alpha, inference = draw(st.sampled_from(FACTORS)), draw(alphas()), draw(st.booleans())
    memory, x = draw(views(form.shape, dtype, expanded=call in ("add", "out")))
    if x.numel() and 0 not in x.stride():
        sprinkle(x, draw(st.integers(0, 2**20)))
    other_memory, other = draw(views(form.shape, dtype, expanded=False))
    results = {}
    for way in WAYS:
        with use(way), torch.inference_mode(inference):
            kept, given = copy_of_view(memory, x)
            into_memory, into = copy_of_view(other_memory, other) if call == "out" else (kept, given)
            want = expected(encoding, form, at, given, scale, alpha, at.mask, dropout)
            if call == "out":
                into.fill_(math.nan)
            around = filled(into_memory, into)
            arguments = dict(form.arguments, scale=scale, alpha=alpha, **at.arguments, **dropout.arguments())
            if call == "add":
                got = sinpe.add(given, encoding, **arguments)
                assert got.stride() == torch.empty_like(given).stride()
            else:
                arguments |= {} if call == "add_" else {"out": into}
                got = (sinpe.add_ if call == "add_" else sinpe.add)(given, encoding, **arguments)
                assert got is into and same(filled(into_memory, into), around), "written outside of the result"
            assert same(got, want), way
            if call in ("add", "out"):
                assert same(kept, memory), "x was modified"
            results[way] = got.clone()
    assert same(results["checked"], results["repeated"])
    assert dtype == torch.float64 or same(results["checked"], results["eager"])


@examples(80)
@given(EXACT, st.data(), st.sampled_from(DTYPES), st.booleans())
def test_gradients_of_add(encoding: Any, data: st.DataObject, dtype: torch.dtype, in_place: bool) -> None:
    """That of x is bitwise equal, except of a grid together with others, which torch operations compute."""
    draw = data.draw
    form, real, learned = draw(forms(encoding, least=1)), draw(st.booleans()), draw(st.booleans())
    at, dropout, scale = draw(where(encoding, form, real)), draw(dropouts()), draw(st.sampled_from(FACTORS[:8]))
    x, grad = (draw(views(form.shape, dtype, expanded=True))[1] for _ in range(2))
    alpha = torch.tensor([draw(st.sampled_from((1.0, 0.75, -2.0)))], dtype=draw(st.sampled_from(DTYPES[::3])))
    want = expected_gradient(grad, scale, dropout.rate, dropout.seed)
    wide = unmasked(form.canonical(kept_gradient(grad, dropout.rate, dropout.seed)), at.mask)
    for way in WAYS:
        with use(way):
            mine = (x.detach().clone() if in_place else x.detach()).requires_grad_()
            factor = alpha.clone().requires_grad_(learned)
            inputs, arguments = [mine, factor][: 1 + learned], dict(form.arguments, scale=scale, alpha=factor)
            arguments |= at.arguments | dropout.arguments()
            if real:
                arguments["positions"] = at.arguments["positions"].clone().requires_grad_()
                inputs.append(arguments["positions"])
            made = sinpe.add_(mine * 1, encoding, **arguments) if in_place else sinpe.add(mine, encoding, **arguments)
            to_x, *others = torch.autograd.grad(made, inputs, grad)
            if isinstance(encoding, GridEncoding) and (learned or real):
                torch.testing.assert_close(to_x, want, rtol=4 * torch.finfo(dtype).eps, atol=1e-37, equal_nan=True)
            else:
                assert same(to_x, want), way
            if learned:
                assert others[0].shape == alpha.shape
                check_alpha(others[0], wide, encoding, at.at, acc_of(dtype))
            if real:
                assert others[-1].shape == arguments["positions"].shape
                check_positions(others[-1], wide, encoding, at.at, float(alpha), acc_of(dtype))


# --------------------------------------------------------------------------------------------------------- embed


class Tokens(NamedTuple):
    """A call of `embed`, except its encoding, weight and alpha."""

    ids: Tensor
    form: Form
    at: Places
    mask: Tensor | None  # with the padding tokens, if they are not encoded
    padding: int | None
    dropout: Dropout
    arguments: dict[str, Any]

    def __call__(self, weight: Tensor, encoding: Encoding, alpha: Any) -> Tensor:
        of, given = self.ids, self.arguments | self.at.arguments | self.dropout.arguments()
        return sinpe.embed(of, weight, encoding, alpha=alpha, **self.form.arguments, **given)


@st.composite
def tokens(draw: st.DrawFn, encoding: Encoding, vocabulary: int, least: int = 0) -> Tokens:
    form = draw(forms(encoding, least, of_ids=True))
    shape = form.shape[:-1]
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
    at = draw(where(encoding, form))
    arguments: dict[str, Any] = {"scale": draw(st.sampled_from(FACTORS[:8])), "sparse": draw(st.booleans())}
    mask, row = at.mask, None
    if draw(st.booleans()):
        arguments["padding_idx"] = draw(st.integers(-vocabulary, vocabulary - 1))
        row = arguments["padding_idx"] % vocabulary
        if len(shape) <= 2 and draw(st.booleans()):
            arguments["encode_padding"] = False
            bare = form.canonical(ids.unsqueeze(-1) == row).reshape((*(form.batches or (1,)), form.lengths[0]))
            mask = bare if mask is None else bare | mask
    return Tokens(ids, form, at, mask, row, draw(dropouts()), arguments)


@examples(60)
@given(st.one_of(encodings(24), rounded()), st.data(), st.sampled_from(DTYPES), st.sampled_from((1, 2, 7, 100)))
def test_embed(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, vocabulary: int) -> None:
    draw = data.draw
    memory, weight = draw(views((vocabulary, encoding.dim), dtype, expanded=True))
    if 0 not in weight.stride():
        sprinkle(weight, draw(st.integers(0, 2**20)))
    of, alpha, inference = draw(tokens(encoding, vocabulary)), draw(alphas()), draw(st.booleans())
    before, results = memory.clone(), {}
    for way in WAYS:
        with use(way), torch.inference_mode(inference):
            looked_up, scale = weight[of.ids.long()], of.arguments["scale"]
            results[way] = of(weight, encoding, alpha)
            want = expected(encoding, of.form, of.at, looked_up, scale, alpha, of.mask, of.dropout)
            assert same(results[way], want), way
    assert same(memory, before), "weight was modified"
    assert dtype == torch.float64 or same(results["checked"], results["eager"])


@examples(50)
@given(encodings(16), st.data(), st.sampled_from(DTYPES), st.sampled_from((1, 2, 7, 100)))
def test_gradients_of_embed(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, vocabulary: int) -> None:
    """Dense gradients of weight are bitwise equal to the formula, sparse ones row by row; alpha's within bounds."""
    draw = data.draw
    weight = draw(views((vocabulary, encoding.dim), dtype, expanded=False))[1]
    of = draw(tokens(encoding, vocabulary, least=1))
    grad = draw(views(of.form.shape, dtype, expanded=True))[1]
    alpha = torch.tensor(draw(st.sampled_from((1.0, 0.3, -2.0))), dtype=draw(st.sampled_from(DTYPES[::3])))
    wide = unmasked(of.form.canonical(kept_gradient(grad, of.dropout.rate, of.dropout.seed)), of.mask)
    for way in WAYS:
        with use(way):
            mine, factor = weight.detach().clone().requires_grad_(), alpha.clone().requires_grad_()
            to_weight, to_alpha = torch.autograd.grad(of(mine, encoding, factor), (mine, factor), grad)
            assert to_weight.is_sparse == of.arguments["sparse"] and to_weight.shape == weight.shape
            check_weight(to_weight, grad, of)
            check_alpha(to_alpha, wide, encoding, of.at.at, acc_of(dtype))


def check_weight(got: Tensor, grad: Tensor, of: Tokens) -> None:
    scale, rate, seed, channels = of.arguments["scale"], of.dropout.rate, of.dropout.seed, grad.shape[-1]
    flat = of.form.canonical(of.ids.unsqueeze(-1)).flatten().tolist()
    if of.arguments["sparse"]:
        each = of.form.canonical(expected_gradient(grad, scale, rate, seed)).reshape(-1, channels)
        counted = [k for k, token in enumerate(flat) if token != of.padding]
        assert got._indices().tolist() == [[flat[k] for k in counted]]
        assert same(got._values(), each[counted])
        return
    # Tree sum of the tokens in acc, times one factor, rounded once; a row without a token is +0.
    drop, acc = threshold_of(rate), acc_of(grad.dtype)
    want = torch.zeros(got.shape, dtype=acc)
    if drop < 65536:
        keep = expected_mask(grad.shape, rate, seed)
        each = of.form.canonical(torch.where(keep, grad.to(acc), 0.0)).reshape(-1, channels)
        factor = torch.tensor(scale * (65536 / (65536 - drop)), dtype=torch.float64).to(acc)
        for row in {token for token in flat if token != of.padding}:
            want[row] = tree_sum(each[[token == row for token in flat]]) * factor
    assert same(got, want.to(got.dtype))


# -------------------------------------------------------------------------------------------------- table, encode


@examples(60)
@given(ANY, st.data(), st.sampled_from(DTYPES))
def test_rows(encoding: Any, data: st.DataObject, dtype: torch.dtype) -> None:
    """`table` at any start, into any view, and `encode`, of torch and NumPy."""
    draw, n, is_grid = data.draw, len(axes_of(encoding)), isinstance(encoding, GridEncoding)
    lengths = tuple(draw(st.lists(st.integers(0, 4 if is_grid else 40), min_size=n, max_size=n)))
    starts = draw(st.lists(STARTS, min_size=n, max_size=n))
    count, start = (lengths, starts) if is_grid else (lengths[0], starts[0])
    arguments: dict[str, Any] = {"extra_tokens": draw(st.sampled_from((0, 0, 1, 3)))} | (
        {"flatten": draw(st.booleans())} if is_grid else {}
    )
    extra = arguments["extra_tokens"]
    shape = (extra + math.prod(lengths), encoding.dim) if any(arguments.values()) else (*lengths, encoding.dim)
    memory, out = draw(views(shape, dtype, expanded=False))
    around, results = filled(memory, out), {}
    places = draw(positions((*draw(st.lists(st.integers(0, 5), max_size=2)), n)))
    at = places if is_grid else places[..., 0]
    for way in WAYS:
        with use(way):
            want = rows_at(encoding, implicit(encoding, lengths, starts), dtype)
            want = torch.cat(
                [want.new_zeros(extra, encoding.dim), want.reshape(math.prod(lengths), encoding.dim)]
            ).reshape(shape)
            got = sinpe.table(count, encoding, start=start, dtype=dtype, **arguments)
            assert same(got, want), way
            out.fill_(math.nan)
            assert sinpe.table(count, encoding, start=start, out=out, **arguments) is out
            assert same(out, want) and same(filled(memory, out), around), "written outside of the result"
            rows = sinpe.encode(at, encoding, dtype=dtype)
            assert same(rows, rows_at(encoding, places, dtype))
            results[way] = got, rows
    for compiled, eager in zip(results["checked"], results["eager"], strict=True):
        assert close_float64(compiled, eager) if dtype == torch.float64 else same(compiled, eager)
    if dtype == torch.float32 and all(axis.angle == "exact" for axis in axes_of(encoding)):
        assert same(torch.from_numpy(sinpe.numpy.encode(at.numpy(), encoding)), results["eager"][1])
        numpy_out = np.full((*np.shape(got[extra:]), 2), np.nan, dtype=np.float32)[..., 0]
        if not any(arguments.values()):
            assert sinpe.numpy.table(count, encoding, start=start, out=numpy_out) is numpy_out
            assert same(torch.from_numpy(numpy_out.copy()), results["eager"][0])


@examples(40)
@given(EXACT, st.data(), st.sampled_from(DTYPES[::3]))
def test_gradient_of_encode(encoding: Any, data: st.DataObject, dtype: torch.dtype) -> None:
    n, is_grid = len(axes_of(encoding)), isinstance(encoding, GridEncoding)
    values = data.draw(st.lists(REAL, min_size=n, max_size=3 * n))
    at = torch.tensor(values[: len(values) // n * n], dtype=data.draw(st.sampled_from(DTYPES[::3]))).reshape(-1, n)
    grad = torch.randn(len(at), encoding.dim, generator=torch.Generator().manual_seed(len(at))).to(dtype)
    for way in ("checked", "repeated", "eager"):
        with use(way):
            given = (at if is_grid else at[:, 0]).clone().requires_grad_()
            (got,) = torch.autograd.grad(sinpe.encode(given, encoding, dtype=dtype), given, grad)
            check_positions(got, grad.double(), encoding, at[None], 1.0, dtype)


# -------------------------------------------------------------------------------------------- large tensors


@pytest.fixture(scope="module")
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@examples(15)
@given(encodings(40), st.data(), st.sampled_from(DTYPES), st.sampled_from((1, 2, 3)))
def test_large(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, threads: int) -> None:
    """More than one tile, block and chunk per thread: table, encode, add with dropout and its backward pass."""
    draw = data.draw
    dim = draw(st.sampled_from((1, 2, 7, 64, 129, 400)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(65, 70000 // dim)), dim)
    try:
        encoding = encoding.replace(dim=dim, frequencies=None)
        assume(all(w == 0 or 2.0**-350 < abs(w) < 2.0**62 for w in encoding.frequencies_radians()))
    except (ValueError, OverflowError):
        reject()
    start, seed = draw(st.integers(-(2**60), 2**60)), draw(st.integers(INT64_MIN, INT64_MAX))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed % 2**32)).to(dtype)
    results = []
    torch.set_num_threads(threads)
    for way in ("checked", "eager"):
        with use(way):
            given = x.clone().requires_grad_()
            y = sinpe.add(given, encoding, start=start, scale=1.5, alpha=0.3, dropout=0.25, seed=seed)
            (back,) = torch.autograd.grad(y, given, x)
            table = sinpe.table(shape[1], encoding, start=start, dtype=dtype)
            at = torch.arange(shape[1]) + (start + encoding.start)
            assert same(sinpe.encode(at, encoding, dtype=dtype), table)
            results.append((back, y.detach(), table))
    assert same(results[0][0], results[1][0])
    for compiled, eager in zip(results[0][1:], results[1][1:], strict=True):
        assert dtype == torch.float64 or same(compiled, eager)
    entries = [0, table.numel() - 1, *(k * table.numel() // 7 for k in range(1, 7))]
    check_exact(encoding, range(start + encoding.start, start + encoding.start + shape[1]), results[0][2], entries)
