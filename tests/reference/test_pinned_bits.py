"""Results of every operation and convention have the same bits on each backend, in each version, on each machine.

Each hash is of all results of a kind, except float64 results and sums whose order is not fixed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

FLOATS = torch.float32, torch.bfloat16, torch.float16
DIMS = {"cogvideo3d": 48, "nerf": 18, "tcnn": 7}  # of the conventions that do not allow 24


def ids(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) * 7 % 5


def x(*shape: int) -> Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) * 37 % 64 - 31) / 16


def conventions() -> Iterator[tuple[str, Tensor]]:
    for name in sinpe.conventions():
        dim = DIMS.get(name, 24)
        encoding = sinpe.convention(name, dim)
        axes = getattr(encoding, "ndim", 1)
        for dtype in FLOATS:
            if axes > 1:
                yield "table of a grid", sinpe.table((5, 6, 7)[:axes], encoding, dtype=dtype)
                continue
            yield "table", sinpe.table(70, encoding, dtype=dtype)
            yield "table beyond 2^40", sinpe.table(9, encoding, start=2**40 + 3, dtype=dtype)
            yield "encode", sinpe.encode(x(64) * 333.3, encoding, dtype=dtype)
        if axes == 1:
            yield "add", sinpe.add(x(2, 9, dim), encoding, positions=ids(2, 9) * 2**33, scale=2, alpha=0.5)


def operations() -> Iterator[tuple[str, Tensor]]:
    for dtype in FLOATS:
        data, gradient = x(3, 11, 24).to(dtype), x(3, 11, 24).to(dtype)
        yield "add, masked", sinpe.add(data, start=ids(3), padding_mask=ids(3, 11) == 0, dropout=0.3, seed=5)
        yield "add, grid", sinpe.add(x(2, 3, 4, 24).to(dtype), "mae2d", dropout=0.3, seed=-5)
        yield "add, sequence first", sinpe.add(x(11, 3, 24).to(dtype), seq_dim=0, dropout=0.9, seed=2**62)
        first = x(3, 24, 11).to(dtype)
        yield "add, channels first", sinpe.add(first, seq_dim=2, channel_dim=1, dropout=0.1, seed=1)
        alpha, rows = torch.ones((), requires_grad=True), (x(5, 24) / 2).to(dtype).requires_grad_()
        data.requires_grad_()
        sinpe.add(data, dropout=0.3, seed=9, scale=0.7, alpha=alpha).backward(gradient)
        assert data.grad is not None
        yield "gradient of x", data.grad
        out = sinpe.embed(ids(3, 11), rows, "t2t", scale=3, dropout=0.3, seed=8, padding_idx=1, alpha=alpha)
        yield "embed", out.detach()
        out.backward(gradient)
        assert rows.grad is not None
        yield "gradient of weight", rows.grad
        # Tokens with frequencies as in text: sums of two levels of the tree, of one, and of few tokens.
        k, rows = torch.arange(5000)[None], (x(8, 24) / 2).to(dtype).requires_grad_()
        often = torch.where(k % 8 != 0, 0, torch.where(k % 64 != 0, 1, 2 + k // 64 % 6))  # 4375, 546, 13 or 14 times
        sinpe.embed(often, rows, dropout=0.3, seed=8).backward((k[..., None] * 37 % 1021 + x(1, 1, 24)).to(dtype) / 7)
        assert rows.grad is not None
        yield "gradient of weight, frequent tokens", rows.grad


PINNED = {
    "table": "5fb339867e52a74f",
    "table beyond 2^40": "3d5b6d27bdba2f5c",
    "encode": "0fa2a5c55408bd7f",
    "add": "6ae195ab24c0c9ba",
    "table of a grid": "6d0a77c40182fd65",
    "add, masked": "c6ddab5a72db6ad3",
    "add, grid": "6a3c5986d2da4e3d",
    "add, sequence first": "01f91832967846ae",
    "add, channels first": "82a882509b4be656",
    "gradient of x": "a66a8e3e7c56360b",
    "embed": "17b585c8529fbb83",
    "gradient of weight": "d5d85450499eaf27",
    "gradient of weight, frequent tokens": "cd9d7c18a4666631",
}


def test_pinned_bits(backend: str) -> None:
    digests: dict[str, hashlib._Hash] = defaultdict(hashlib.sha256)
    for results in (conventions(), operations()):
        for name, result in results:
            digests[name].update(result.detach().contiguous().view(torch.uint8).numpy().tobytes())
    assert {name: digest.hexdigest()[:16] for name, digest in digests.items()} == PINNED
