"""Reference implementation of the operators that apply an encoding to data: add, dropout, embed and their gradients.

Built from `reference.table`, `reference.encode` and `philox.keep`, on any torch device, without autograd. Values are
rounded in the same order as in the compiled kernels, so that the results are bitwise equal. Dropout selects instead of
multiplying: a dropped element is +0 whatever its value. `seed`, `drop_threshold` and `rng_offsets` are arguments of
`philox.keep`; with drop_threshold 0 no seed is needed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..encodings.plan import Plan
from ..encodings.values import position_range
from ..records import Add, Dropout, Embed, EmbedBackward, RowDots
from . import packed_grid, philox, tree_sum
from .tiles import Rows, accumulation, arranged, block, widest


@torch.no_grad()
def add(plan: Plan | None, a: Add, out: Tensor | None = None) -> Tensor:
    """dropout(scale * x + alpha * PE), without gradient.

    Equivalent to, with acc = float64 for float64 x and float32 otherwise::

        total = scale * x.to(acc) + alpha * pe.to(acc)             # padded rows: scale * x.to(acc)
        torch.where(keep, (total * kept_scale).to(x.dtype), 0.0)   # drop_threshold = 0: total.to(x.dtype)

    Args:
        plan: the constants of the encoding, packed in a.plan; None with a.axis_rows, which is PE's source then.
        a.x: (B, *M, S, D) or (S, D), floating point.
        a.positions: None, (S,) or (1 or B, S), int64 or float; or (1 or B, 1) int64, the first position of each sample.
        a.start: position of the first row relative to plan.start, if positions is None.
        a.scale, a.alpha: rounded to acc first; alpha may be a tensor of shape () or (1,).
        a.padding_mask: (1 or B, S) bool, True = no encoding; or None.
        a.axis_rows: the rows of a grid's axes, see `packed_grid.py`; or None.
        a.extra_tokens: number of rows in front of those to which PE is added; S counts the others.
        out: tensor to write to and return; may be x itself. None: a new tensor as of `torch.empty_like(x)`.
    """
    x, extra = a.x, a.extra_tokens
    count = x.shape[-2] - extra
    source = None if plan is None else _rows(plan, a, x, count, a.alpha)
    out = torch.empty_like(x) if out is None else out
    if a.drop_threshold == philox.DROP_ALL:
        return out.zero_()
    if source is not None:
        pe = source.at(slice(None), slice(0, count), x.dim())
    else:
        assert a.axis_rows is not None
        pe = packed_grid.decoded(a.axis_rows, a.plan)
    if not extra:
        _combine(x, pe, a, out)
    else:
        _combine(x.narrow(-2, extra, count), pe, a, out.narrow(-2, extra, count))
        _combine(x.narrow(-2, 0, extra), None, a, out.narrow(-2, 0, extra))
    return _drop_(out, a)


@torch.no_grad()
def dropout(a: Dropout, out: Tensor | None = None) -> Tensor:
    """dropout(scale * x), without gradient; its own adjoint.

    Equivalent to, with acc as in `add`::

        total = scale * x.to(acc)
        torch.where(keep, (total * kept_scale).to(x.dtype), 0.0)   # drop_threshold = 0: total.to(x.dtype)

    Args:
        a.x: floating point, any shape.
        a.scale: rounded to acc first.
        out: as in `add`.
    """
    out = torch.empty_like(a.x) if out is None else out
    if a.drop_threshold == philox.DROP_ALL:
        return out.zero_()
    _combine(a.x, None, a, out)
    return _drop_(out, a)


@torch.no_grad()
def row_dots(plan: Plan, a: RowDots) -> Tensor:
    """The dot product of each row of `grad`, after dropout, with its row of the encoding; used for the gradients of
    alpha and positions.

    Equivalent to::

        weights = kept_scale * angular_frequencies * pe.double()                 # padded rows: 0
        (torch.where(keep, grad.double(), 0.0) * weights).sum(-1)

    Args:
        a.grad: as x of `add`; positions, start and padding_mask are as in `add`, too.
        a.angular_frequencies: float64, (dim,), a factor for each channel; None: ones.
    Returns:
        grad.shape[:-1], contiguous, float64, on devices without it float32.
    Accuracy:
        products and sums in float64; the order of summation depends on dim alone.
    """
    grad, dtype = a.grad, widest(a.grad.device)
    if dtype != torch.float64:
        on_cpu: dict[str, Any] = {name: t.cpu() for name, t in a._asdict().items() if isinstance(t, Tensor)}
        return row_dots(plan, a._replace(**on_cpu)).to(dtype).to(grad.device)
    source = _rows(plan, a, grad, grad.shape[-2])
    result = torch.zeros(grad.shape[:-1], dtype=torch.float64, device=grad.device)
    if a.drop_threshold == philox.DROP_ALL or not grad.numel():
        return result
    keep = philox.keep(a.seed, a.drop_threshold, grad.shape, a.rng_offsets, grad.device) if a.drop_threshold else None
    dots = result
    if grad.dim() == 2:
        grad, dots, keep = grad.unsqueeze(0), dots.unsqueeze(0), None if keep is None else keep.unsqueeze(0)
    angular_frequencies = None if a.angular_frequencies is None else a.angular_frequencies.to(grad.device)
    for batch, rows, pe in source.tiles(grad.shape):
        pe = pe.double() if angular_frequencies is None else pe.double() * angular_frequencies
        products = grad[batch, ..., rows, :] * pe
        if keep is not None:
            _select_(products, keep[batch, ..., rows, :])
        dots[batch, ..., rows] = _row_sums(products)
    if a.padding_mask is not None:
        dots.masked_fill_(arranged(a.padding_mask.unsqueeze(-1), grad.dim()).squeeze(-1), 0.0)
    return result.mul_(philox.kept_scale(a.drop_threshold))


@torch.no_grad()
def embed(plan: Plan, e: Embed) -> Tensor:
    """dropout(scale * weight[ids] + alpha * PE), without gradient.

    Equivalent to::

        add(plan, Add(weight[ids], ...))          # with the other fields of e

    Args:
        plan: as in `add`.
        e.ids: int64, (B, *M, S) or (S,).
        e.weight: (num_embeddings, dim), floating point.
        e.positions, e.start, e.scale, e.alpha, e.padding_mask: as in `add`.
    Returns:
        (*ids.shape, dim), as `with_channels` makes it.
    Raises:
        IndexError if an id is not a row of weight, before anything is written; only on the CPU, since the check would
        synchronize with other devices.
    """
    ids, weight = e.ids, e.weight
    source = _rows(plan, e, weight, ids.shape[-1], e.alpha)
    _check_ids(ids, weight.shape[0])
    out = with_channels(ids, weight)
    if e.drop_threshold == philox.DROP_ALL:
        return out.zero_()
    if not out.numel():
        return out
    ids, into = (ids.unsqueeze(0), out.unsqueeze(0)) if ids.dim() == 1 else (ids, out)
    for batch, rows, pe in source.tiles(into.shape):
        mask = e.padding_mask
        if mask is not None:
            mask = (mask if mask.shape[0] == 1 else mask[batch])[:, rows]
        _combine(weight[ids[batch, ..., rows]], pe, e._replace(padding_mask=mask), into[batch, ..., rows, :])
    return _drop_(out, e)


def with_channels(ids: Tensor, weight: Tensor) -> Tensor:
    """A new tensor like weight of shape (*ids.shape, weight.shape[1]): contiguous, or transposed as ids is if that is a
    transposed contiguous tensor."""
    dim, reach = weight.shape[1], 1
    shape = *ids.shape, dim
    if ids.is_contiguous() or not ids.numel() or not dim:
        return weight.new_empty(shape)
    for stride, size in sorted((stride, size) for size, stride in zip(ids.shape, ids.stride(), strict=True)):
        if size == 1:
            continue
        if stride != reach:
            return weight.new_empty(shape)
        reach *= size
    return weight.new_empty_strided(shape, (*(stride * dim for stride in ids.stride()), 1))


@torch.no_grad()
def embed_backward(b: EmbedBackward) -> Tensor:
    """The gradient of `embed` with respect to weight; deterministic.

    Equivalent to, in float32 (float64 for float64 grad)::

        rows = torch.where(keep, grad, 0.0).reshape(-1, dim)
        sums = torch.stack([sum_of(rows[ids.flatten() == id]) for id in range(num_embeddings)])
        sums * (scale * kept_scale)                            # row padding_idx: 0

        def sum_of(terms):                                     # the tree of tree_sum.levels; no terms: 0
            while len(terms) > 1:
                terms = torch.stack([sequential_sum(some) for some in terms.split(64)])
            return terms[0]

    Args:
        b.grad: (*ids.shape, dim), floating point.
        b.ids: int64.
        b.padding_idx: the row that receives no gradient, -1 for none.
        b.scale: multiplied by the kept scale; the product is rounded once.
    Returns:
        (num_embeddings, dim), contiguous, the dtype of grad; rows without a token are +0.
    Raises:
        as `embed`.
    """
    grad, ids = b.grad, b.ids
    _check_ids(ids, b.num_embeddings)
    acc, dim = accumulation(grad.dtype), grad.shape[-1]
    if b.drop_threshold == philox.DROP_ALL or not b.num_embeddings * dim or not ids.numel():
        return grad.new_zeros((b.num_embeddings, dim))
    keep = (
        philox.keep(b.seed, b.drop_threshold, grad.shape, b.rng_offsets, grad.device).reshape(-1, dim)
        if b.drop_threshold
        else None
    )
    flat, sums = ids.reshape(-1), grad.reshape(-1, dim)
    for nodes, count in tree_sum.levels(flat, b.num_embeddings):
        sums, keep = _sums(sums, keep, nodes, count, acc), None
    # A row without a token is +0 whatever the sign of the factor.
    factors = torch.ones(b.num_embeddings, dtype=acc, device=grad.device)
    # On the CPU: the device may have no float64, and a number that overflows acc has to become infinite.
    factor = torch.tensor(b.scale * philox.kept_scale(b.drop_threshold), dtype=torch.float64, device="cpu").to(acc)
    factors.index_fill_(0, flat, factor)
    if b.padding_idx >= 0:
        sums[b.padding_idx], factors[b.padding_idx] = 0.0, 1.0
    return sums.mul_(factors.unsqueeze(-1)).to(grad.dtype)


def _rows(plan: Plan, a: Add | RowDots | Embed, data: Tensor, count: int, alpha: float | Tensor | None = None) -> Rows:
    """The encoding's rows for the data; checks the range of the positions, since a graph may pass an unchecked
    start."""
    first = 0
    if a.positions is None:
        first = plan.start + a.start
        position_range(first, count)
    return Rows(plan, a.positions, first, accumulation(data.dtype), data.device, 1.0 if alpha is None else alpha)


def _sums(terms: Tensor, keep: Tensor | None, nodes: Tensor, count: int, acc: torch.dtype) -> Tensor:
    """(count, dim): the sum of the kept terms of each node, added sequentially."""
    if terms.device.type != "cpu":
        return _sums_by_sorting(_kept(terms.to(acc), keep), nodes, count)
    sums = torch.zeros((count, terms.shape[-1]), dtype=acc)
    at_once = max(1, block(terms.device) // terms.shape[-1])
    for first in range(0, len(nodes), at_once):
        some = slice(first, first + at_once)
        # On the CPU index_add_ adds row after row, in this order.
        sums.index_add_(0, nodes[some], _kept(terms[some].to(acc), None if keep is None else keep[some]))
    return sums


def _sums_by_sorting(terms: Tensor, nodes: Tensor, count: int) -> Tensor:
    """The same for devices where index_add_ has no defined order: each segment is summed from first to last."""
    nodes, order = nodes.sort(stable=True)
    ends = torch.searchsorted(nodes, torch.arange(count + 1, device=nodes.device))
    return torch.segment_reduce(terms[order], "sum", offsets=ends, axis=0, unsafe=True, initial=0)


def _check_ids(ids: Tensor, num_embeddings: int) -> None:
    """Raises IndexError if an id is not a row of weight; only on the CPU."""
    if ids.device.type == "cpu":
        id_range(ids, num_embeddings)


def _combine(x: Tensor, pe: Tensor | None, a: Any, out: Tensor) -> None:
    """out = (scale * x + pe) * kept_scale, where `pe` is in acc and may be None; `out` may be x. Of the record only
    scale, drop_threshold and, with a `pe`, padding_mask are read.

    Processed in blocks along the longest dimension other than the channels, so that the intermediate results in acc
    stay in the cache.
    """
    if not x.numel():
        return
    acc, scale, drop_threshold = accumulation(x.dtype), a.scale, a.drop_threshold
    padding_mask = None if pe is None else a.padding_mask
    if pe is not None and padding_mask is None and scale == 1.0 and not drop_threshold and x.dtype == acc:
        torch.add(x, pe, out=out)  # no intermediate results
        return
    kept_scale = philox.kept_scale(drop_threshold)
    along = max(range(max(1, x.dim() - 1)), key=lambda d: x.shape[d])
    at_once = max(1, block(x.device) // (x.numel() // x.shape[along]))
    pe = None if pe is None else pe.expand(x.shape)
    padded = None if padding_mask is None else arranged(padding_mask.unsqueeze(-1), x.dim()).expand(x.shape)
    for first in range(0, x.shape[along], at_once):
        place = along, first, min(at_once, x.shape[along] - first)
        to = out.narrow(*place)
        part = x.narrow(*place).to(acc)
        total = to if x.dtype == acc else part
        if scale != 1.0 or pe is None:
            part = torch.mul(part, scale, out=total)
        if pe is not None:
            rows = pe.narrow(*place)
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 into +0.0.
            rows = rows if padded is None else rows.masked_fill(padded.narrow(*place), -0.0)
            torch.add(part, rows, out=total)
        if drop_threshold:
            total.mul_(kept_scale)
        if total is not to:
            to.copy_(total)


def _row_sums(x: Tensor) -> Tensor:
    """x.sum(-1), overwriting x: one half of the columns is added to the other until one column is left.

    This order of summation is the same for every number of threads, batch size and device.
    """
    width = x.shape[-1]
    while width > 1:
        half = width // 2
        x[..., :half] += x[..., width - half : width]
        width -= half
    return x[..., 0]


def _kept(x: Tensor, keep: Tensor | None) -> Tensor:
    """x where `keep` is true or None, else +0."""
    return x if keep is None else torch.where(keep, x, 0.0)


def _drop_(x: Tensor, a: Any) -> Tensor:
    """Sets dropped elements to +0, in place. Of the record seed, drop_threshold and rng_offsets are read."""
    return (
        _select_(x, philox.keep(a.seed, a.drop_threshold, x.shape, a.rng_offsets, x.device))
        if a.drop_threshold and x.numel()
        else x
    )


def _select_(x: Tensor, keep: Tensor) -> Tensor:
    """x where `keep` is true, else +0, in place."""
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device), out=x)


def id_range(value: Tensor, num_embeddings: int) -> None:
    """Raises IndexError if an id is not a row of weight; synchronizes with the device."""
    if not value.numel():
        return
    extremes = value.aminmax()
    # On another device both are read at once, because each read waits for it.
    lowest, highest = map(int, extremes) if value.is_cpu else torch.stack(extremes).tolist()
    if lowest < 0 or highest >= num_embeddings:
        wrong = int(value[(value < 0) | (value >= num_embeddings)][0])
        raise IndexError(
            f"ids: expected 0 to {num_embeddings - 1}, rows of weight, got {wrong} (weight has {num_embeddings} rows); "
            "check the tokenizer's vocabulary, or enlarge the embedding"
        )
