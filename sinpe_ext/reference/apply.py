"""The eager twin of what applies an encoding to data: add, dropout, embed and what goes backward.

Built from `reference.table`, `reference.encode` and `philox.keep`, on any device of torch, without gradients. Values
are rounded in the order of the compiled kernels, so that the results have the same bits, and dropout selects: a dropped
element is +0 whatever it was. `seed`, `drop` and `elements` are those of `philox.keep`; drop 0 needs no seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import embedding
from ..encodings.plan import Plan
from ..runtime.no_grad import no_grad
from . import philox
from .tiles import Rows, accumulation, arranged, block


@no_grad
def add(
    plan: Plan,
    x: Tensor,
    positions: Tensor | None,
    start: int,
    scale: float,
    alpha: float | Tensor,
    padding_mask: Tensor | None,
    out: Tensor | None = None,
    *,
    seed: Tensor | int | None = None,
    drop: int = 0,
    elements: Sequence[int] = (),
) -> Tensor:
    """dropout(scale * x + alpha * PE), without gradient.

    Equivalent to, with acc = float64 for float64 x and float32 otherwise:
        total = scale * x.to(acc) + alpha * pe.to(acc)             # padded rows: scale * x.to(acc)
        torch.where(keep, (total * kept_scale).to(x.dtype), 0.0)   # drop = 0: total.to(x.dtype)

    Args:
        plan: the constants of the encoding.
        x: (B, *M, S, D) or (S, D), floating point.
        positions: None, (S,) or (1 or B, S), int64 or float; or (1 or B, 1) int64, the first position of each sample.
        start: position of the first row where `positions` is None.
        scale, alpha: rounded to acc first; alpha may be a tensor of shape () or (1,).
        padding_mask: (1 or B, S) bool, True = no encoding; or None.
        out: written to and returned; may be x itself. None: a new tensor with the strides of `torch.empty_like(x)`.
    """
    out = torch.empty_like(x) if out is None else out
    if drop == philox.DROP_ALL:
        return out.zero_()
    rows = Rows(plan, positions, start, accumulation(x.dtype), x.device, alpha)
    pe = rows.at(slice(None), slice(0, x.shape[-2]), x.dim())
    _combine(x, pe, padding_mask, scale, drop, out)
    return _drop_(out, seed, drop, elements)


@no_grad
def dropout(
    x: Tensor,
    seed: Tensor | int | None,
    drop: int,
    scale: float,
    elements: Sequence[int],
    out: Tensor | None = None,
) -> Tensor:
    """dropout(scale * x), without gradient; its own adjoint.

    Equivalent to, with acc as in `add`:
        total = scale * x.to(acc)
        torch.where(keep, (total * kept_scale).to(x.dtype), 0.0)   # drop = 0: total.to(x.dtype)

    Args:
        x: floating point, any shape.
        scale: rounded to acc first.
        out: as in `add`.
    """
    out = torch.empty_like(x) if out is None else out
    if drop == philox.DROP_ALL:
        return out.zero_()
    _combine(x, None, None, scale, drop, out)
    return _drop_(out, seed, drop, elements)


@no_grad
def row_dots(
    plan: Plan,
    grad: Tensor,
    positions: Tensor | None,
    start: int,
    padding_mask: Tensor | None,
    slopes: Tensor | None,
    *,
    seed: Tensor | int | None = None,
    drop: int = 0,
    elements: Sequence[int] = (),
) -> Tensor:
    """The dot of each row of `grad` after dropout with its row of the encoding: the gradients of alpha and positions.

    Equivalent to:
        (torch.where(keep, grad.double(), 0.0) * kept_scale * slopes * pe.double()).sum(-1)     # padded rows: 0

    Args:
        grad, positions, start, padding_mask: as in `add`.
        slopes: float64, (dim,), a factor for each channel; None: ones.
    Returns: float64, grad.shape[:-1], contiguous.
    Accuracy: products and sums in float64, summed in an order that depends on dim alone.
    """
    result = torch.zeros(grad.shape[:-1], dtype=torch.float64, device=grad.device)
    if drop == philox.DROP_ALL or not grad.numel():
        return result
    keep = philox.keep(seed, drop, grad.shape, elements, grad.device) if drop else None
    dots = result
    if grad.dim() == 2:
        grad, dots, keep = grad.unsqueeze(0), dots.unsqueeze(0), None if keep is None else keep.unsqueeze(0)
    slopes = None if slopes is None else slopes.to(grad.device)
    source = Rows(plan, positions, start, accumulation(grad.dtype), grad.device)
    for batch, rows, pe in source.tiles(grad.shape):
        pe = pe.double() if slopes is None else pe.double() * slopes
        products = grad[batch, ..., rows, :] * pe
        if keep is not None:
            _select_(products, keep[batch, ..., rows, :])
        dots[batch, ..., rows] = _row_sums(products)
    if padding_mask is not None:
        dots.masked_fill_(arranged(padding_mask.unsqueeze(-1), grad.dim()).squeeze(-1), 0.0)
    return result.mul_(philox.kept_scale(drop))


@no_grad
def embed(
    plan: Plan,
    ids: Tensor,
    weight: Tensor,
    positions: Tensor | None,
    start: int,
    scale: float,
    alpha: float | Tensor,
    padding_mask: Tensor | None,
    *,
    seed: Tensor | int | None = None,
    drop: int = 0,
    elements: Sequence[int] = (),
) -> Tensor:
    """dropout(scale * weight[ids] + alpha * PE), without gradient.

    Equivalent to:
        add(plan, weight[ids], positions, start, scale, alpha, padding_mask, seed=seed, drop=drop, elements=elements)

    Args:
        ids: int64, (B, *M, S) or (S,).
        weight: (num_embeddings, dim), floating point.
        positions, start, scale, alpha, padding_mask: as in `add`.
    Returns: (*ids.shape, dim), contiguous, the dtype of weight.
    Raises: IndexError where an id is no row of weight, before anything is written; on the CPU alone, others would wait.
    """
    _check_ids(ids, weight.shape[0])
    out = weight.new_empty((*ids.shape, weight.shape[1]))
    if drop == philox.DROP_ALL:
        return out.zero_()
    if not out.numel():
        return out
    ids, into = (ids.unsqueeze(0), out.unsqueeze(0)) if ids.dim() == 1 else (ids, out)
    source = Rows(plan, positions, start, accumulation(weight.dtype), weight.device, alpha)
    for batch, rows, pe in source.tiles(into.shape):
        mask = padding_mask
        if mask is not None:
            mask = (mask if mask.shape[0] == 1 else mask[batch])[:, rows]
        _combine(weight[ids[batch, ..., rows]], pe, mask, scale, drop, into[batch, ..., rows, :])
    return _drop_(out, seed, drop, elements)


@no_grad
def embed_backward(
    grad: Tensor,
    ids: Tensor,
    num_embeddings: int,
    padding_idx: int,
    scale: float,
    *,
    seed: Tensor | int | None = None,
    drop: int = 0,
    elements: Sequence[int] = (),
) -> Tensor:
    """The gradient of `embed` with respect to the weight, the same bits every time.

    Equivalent to, in float32 (float64 for float64 grad) and in the order of the tokens:
        sums = torch.zeros(num_embeddings, dim)
        for g, id in zip(torch.where(keep, grad, 0.0).reshape(-1, dim), ids.flatten()):
            sums[id] += g
        sums * (scale * kept_scale)                            # row padding_idx: 0

    Args:
        grad: (*ids.shape, dim), floating point.
        ids: int64.
        padding_idx: the row that gets no gradient, -1 for none.
        scale: its product with the kept scale is rounded once.
    Returns: (num_embeddings, dim), contiguous, the dtype of grad; rows without a token are +0.
    Raises: as `embed`.
    """
    _check_ids(ids, num_embeddings)
    acc, dim = accumulation(grad.dtype), grad.shape[-1]
    sums = torch.zeros((num_embeddings, dim), dtype=acc, device=grad.device)
    if drop == philox.DROP_ALL or not sums.numel() or not ids.numel():
        return sums.to(grad.dtype)
    keep = philox.keep(seed, drop, grad.shape, elements, grad.device).reshape(-1, dim) if drop else None
    flat, tokens = ids.reshape(-1), grad.reshape(-1, dim)
    if grad.device.type == "cpu":
        at_once = max(1, block(grad.device) // dim)
        for first in range(0, len(flat), at_once):
            some = slice(first, first + at_once)
            # On the CPU torch adds row after row, in this order.
            sums.index_add_(0, flat[some], _kept(tokens[some].to(acc), None if keep is None else keep[some]))
    else:
        sums = _sums_by_sorting(_kept(tokens.to(acc), keep), flat, num_embeddings)
    # A row without a token is +0 whatever the factor's sign.
    factors = torch.ones(num_embeddings, dtype=acc, device=grad.device)
    factor = torch.full((), scale * philox.kept_scale(drop), dtype=torch.float64, device=grad.device)
    factors.index_fill_(0, flat, factor.to(acc))
    if padding_idx >= 0:
        sums[padding_idx], factors[padding_idx] = 0.0, 1.0
    return sums.mul_(factors.unsqueeze(-1)).to(grad.dtype)


def _sums_by_sorting(tokens: Tensor, ids: Tensor, num_embeddings: int) -> Tensor:
    """index_add_ in the order of the tokens, for devices where it has none: a segment is summed from first to last."""
    ids, order = ids.sort(stable=True)
    ends = torch.searchsorted(ids, torch.arange(num_embeddings + 1, device=ids.device))
    return torch.segment_reduce(tokens[order], "sum", offsets=ends, axis=0, unsafe=True, initial=0)


def _check_ids(ids: Tensor, num_embeddings: int) -> None:
    if ids.device.type == "cpu":
        embedding.id_range(ids, num_embeddings)


def _combine(x: Tensor, pe: Tensor | None, padding_mask: Tensor | None, scale: float, drop: int, out: Tensor) -> None:
    """out = (scale * x + pe) * kept_scale, where `pe` is in acc and may be None; `out` may be x.

    In parts along the longest dimension but the channels', so that what lies between the roundings stays small and in
    the cache.
    """
    if not x.numel():
        return
    along = max(range(max(1, x.dim() - 1)), key=lambda d: x.shape[d])
    at_once = max(1, block(x.device) // (x.numel() // x.shape[along]))
    acc, kept_scale = accumulation(x.dtype), philox.kept_scale(drop)
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
            # x + (-0.0) is x for every x; adding +0.0 would turn -0.0 around.
            rows = rows if padded is None else rows.masked_fill(padded.narrow(*place), -0.0)
            torch.add(part, rows, out=total)
        if drop:
            total.mul_(kept_scale)
        if total is not to:
            to.copy_(total)


def _row_sums(x: Tensor) -> Tensor:
    """x.sum(-1), destroying x: halves are added until one is left, an order that no thread, batch or device changes."""
    width = x.shape[-1]
    while width > 1:
        half = width // 2
        x[..., :half] += x[..., width - half : width]
        width -= half
    return x[..., 0]


def _kept(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else torch.where(keep, x, 0.0)


def _drop_(x: Tensor, seed: Tensor | int | None, drop: int, elements: Sequence[int]) -> Tensor:
    """+0 where dropout drops, in place."""
    return _select_(x, philox.keep(seed, drop, x.shape, elements, x.device)) if drop and x.numel() else x


def _select_(x: Tensor, keep: Tensor) -> Tensor:
    """x where `keep` is true, else +0, in place."""
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device), out=x)
