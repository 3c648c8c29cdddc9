"""Dropout masks in torch operations: reference implementation of `csrc/core/philox.h`.

Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011), keyed by the seed. The
counter is an element's index in the whole tensor divided by 8; the remainder selects one of its eight 16-bit lanes. The
mask depends on (seed, element, drop_threshold) alone, so it never has to be stored. Unsigned words are held in int64:
products wrap, and bits above the low 32 are masked off only before a multiplication.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .arrays import arrays
from .rows import COMPUTED_HERE

DROP_ALL = 65536  # drop_threshold is a probability in units of 1 / 65536
LANES = 8  # elements per counter, 16 bits each
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
LOW32, HIGH29 = 0xFFFFFFFF, 0x1FFFFFFF  # the halves of a counter, which has 61 bits
SIGNS = -0x7FFF7FFF7FFF8000  # the top bit of each 16-bit lane: turns their unsigned order into the signed one
# Whether vmap supports a view as another dtype; torch 2.11 does not, and lanes are extracted one by one there.
VIEWS_ARE_BATCHED = torch._C._dispatch_has_kernel_for_dispatch_key("aten::view.dtype", "FuncTorchBatched")

Words = tuple[Tensor, Tensor, Tensor, Tensor]
Keys = list[tuple[Tensor, Tensor]]


def kept_scale(drop_threshold: int) -> float:
    """The factor of the kept elements, which preserves the mean; 0 if all are dropped."""
    return 0.0 if drop_threshold >= DROP_ALL else DROP_ALL / (DROP_ALL - drop_threshold)


def keep(
    seed: Tensor | int | None,
    drop_threshold: int,
    shape: Sequence[int],
    rng_offsets: Sequence[int],
    device: torch.device | str,
) -> Tensor:
    """Which elements dropout keeps: those whose 16 random bits are `drop_threshold` or more.

    Args:
        seed: int64, an int or a tensor of one element, possibly batched by torch.func.vmap; not read where
            drop_threshold is 0 or 65536, and may be None there.
        drop_threshold: 0 .. 65536, the dropout probability in units of 1 / 65536.
        shape: shape of the tensor that dropout is applied to.
        rng_offsets: [base, *steps], the index of the first element and its increment along each dimension; empty:
            row-major.
        device: device of the result.
    Returns:
        bool of `shape`, True = kept. May be an expanded tensor, so it must not be written to.
    """
    device, shape = torch.device(device), tuple(shape)
    if device.type not in COMPUTED_HERE:
        seed = seed.cpu() if isinstance(seed, Tensor) else seed
        return keep(seed, drop_threshold, shape, rng_offsets, "cpu").to(device)
    with torch.no_grad():
        if seed is None or drop_threshold in (0, DROP_ALL):
            if 0 < drop_threshold < DROP_ALL:
                raise RuntimeError(
                    f"seed: expected one int64, got None while drop_threshold is {drop_threshold}; pass a seed"
                )
            return torch.full((), drop_threshold == 0, device=device).expand(shape)
        if not isinstance(seed, Tensor):
            seed = torch.full((), seed, dtype=torch.int64, device=device)
        seed = seed.reshape(()).to(device)
        if rng_offsets and len(rng_offsets) != 1 + len(shape):
            raise RuntimeError(
                f"rng_offsets: expected {1 + len(shape)} integers (base and a step for each dimension), got "
                f"{len(rng_offsets)}; pass none for the row-major index"
            )
        base, *steps = rng_offsets or (0, *row_major(shape))
        # The mask is generated once along a dimension of stride 0.
        sizes = [1 if step == 0 else size for size, step in zip(shape, steps, strict=True)]
        order = sorted(range(len(sizes)), key=lambda d: (steps[d], sizes[d]), reverse=True)
        if 0 in shape:
            return torch.empty(shape, dtype=torch.bool, device=device)
        whole_words = VIEWS_ARE_BATCHED or not torch._C._are_functorch_transforms_active()
        if whole_words and _is_dense([sizes[d] for d in order], [steps[d] for d in order]):
            flat = _run(seed, drop_threshold, base, math.prod(sizes))
            mask = flat.reshape([sizes[d] for d in order]).permute([order.index(d) for d in range(len(order))])
        else:
            mask = _scattered(seed, drop_threshold, base, sizes, steps).reshape(sizes)
        return mask.expand(shape)


def row_major(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _is_dense(sizes: list[int], steps: list[int]) -> bool:
    """Whether the indices are consecutive, row-major in this order of dimensions; dimensions of size 1 are ignored."""
    counted = [(size, step) for size, step in zip(sizes, steps, strict=True) if size > 1]
    return [step for _, step in counted] == row_major([size for size, _ in counted])


def _run(seed: Tensor, drop_threshold: int, base: int, count: int) -> Tensor:
    """The mask of elements base .. base + count - 1, (count,)."""
    keys, limit = _keys(seed), drop_threshold - 0x8000
    first, end = base >> 3, (base + count - 1 >> 3) + 1
    mask = seed.new_empty(count, dtype=torch.bool)  # batched if the seed is
    for counter, n in _counters(first, end, seed.device):
        low = torch.arange(counter & LOW32, (counter & LOW32) + n, device=seed.device)
        x0, x1, x2, x3 = _philox(low, counter >> 32 & HIGH29, keys)
        lanes = torch.stack(
            (x0.bitwise_or_(x1.bitwise_left_shift_(32)), x2.bitwise_or_(x3.bitwise_left_shift_(32))), -1
        )
        kept = lanes.bitwise_xor_(SIGNS).view(torch.int16).reshape(-1) >= limit
        # The first and the last counter may have lanes outside of the range.
        at = counter * LANES - base
        mask[max(at, 0) : at + n * LANES].copy_(kept[max(-at, 0) : count - at])
    return mask


def _counters(first: int, end: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """(first counter, number) of blocks in which all counters have the same high word."""
    block = arrays(None, device).block
    while first < end:
        n = min(block, end - first, 2**32 - (first & LOW32))
        yield first, n
        first += n


def _scattered(seed: Tensor, drop_threshold: int, base: int, sizes: Sequence[int], steps: Sequence[int]) -> Tensor:
    """The mask of elements with any rng_offsets, each computed separately, in row-major order."""
    keys, count = _keys(seed), math.prod(sizes)
    block = arrays(None, seed.device).block
    mask = seed.new_empty(count, dtype=torch.bool)
    for first in range(0, count, block):
        place = torch.arange(first, min(count, first + block), device=seed.device)
        element = torch.full_like(place, (base + 2**63) % 2**64 - 2**63)
        for size, step, step_in_mask in zip(sizes, steps, row_major(sizes), strict=True):
            element += (place // step_in_mask % size).mul_(step)
        words = _philox(element >> 3 & LOW32, element >> 35 & HIGH29, keys)
        upper = torch.where(element & 2 != 0, words[3], words[2])
        lower = torch.where(element & 2 != 0, words[1], words[0])
        word = torch.where(element & 4 != 0, upper, lower)
        mask[first : first + block].copy_(((word >> (element & 1) * 16) & 0xFFFF) >= drop_threshold)
    return mask


def _keys(seed: Tensor) -> Keys:
    """The key of each round, from the low and the high half of the seed."""
    low, high = seed & LOW32, seed >> 32 & LOW32
    return [(low + r * WEYL[0] & LOW32, high + r * WEYL[1] & LOW32) for r in range(ROUNDS)]


def _philox(low: Tensor, high: Tensor | int, keys: Keys) -> Words:
    """The four words of counters (low, high, 0, 0), new tensors; in x1 and x3 the bits above the low 32 are undefined.

    The first rounds use out-of-place operations, because combining with a batched key gives a batched tensor; later
    rounds work in place.
    """
    # Round 0 has only one product; if `high` is a number, one of the two products of round 1 is a scalar.
    (key0, key1), (next0, next1) = keys[:2]
    x3 = low * MULTIPLIERS[0]
    x0, x2 = key0 ^ high, (x3 >> 32 ^ key1).bitwise_and_(LOW32)
    p0, p1 = x0 * MULTIPLIERS[0], x2.mul_(MULTIPLIERS[1])
    x0, x2 = (p1 >> 32 ^ next0).bitwise_and_(LOW32), (x3 ^ (p0 >> 32 ^ next1)).bitwise_and_(LOW32)
    x1, x3 = p1, p0.expand_as(p1).clone()
    for key0, key1 in keys[2:]:
        p0, p1 = x0.mul_(MULTIPLIERS[0]), x2.mul_(MULTIPLIERS[1])
        x0 = x1.bitwise_xor_(p1 >> 32).bitwise_xor_(key0).bitwise_and_(LOW32)
        x2 = x3.bitwise_xor_(p0 >> 32).bitwise_xor_(key1).bitwise_and_(LOW32)
        x1, x3 = p1, p0
    return x0, x1, x2, x3
