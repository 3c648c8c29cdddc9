"""The calls that are counted, at the shapes that the targets name, with the budgets for sm_90."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import sinpe_ext as sinpe
from benchmarks.cuda_cases import VOCABULARY, Place

PLACE = Place(torch.device("cpu"))  # the benchmark's shape and ids
B, L, D = PLACE.shape()
PAIR, SIXTEEN, ROW = "sine-cosine pair", "16 elements", "row"


@dataclass(frozen=True)
class Call:
    """A call to count: `run` computes `units` units of kind `unit` and moves `moved` bytes."""

    run: Callable[[], object]
    units: int
    unit: str
    moved: int
    floor: str  # "copy" or "fill" of the same bytes; "kernel": too small for a comparison
    read: int = 0  # how many of the moved bytes are read
    heaviest: int | None = None  # the block that takes longest, if that depends on the data


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[torch.dtype], Call]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    kernels: tuple[str, ...] = ("*",)  # patterns of the kernels whose launches are counted
    launches: int = 1  # number of these launches
    followed: str = ""  # a kernel that also runs as C++, because later kernels read indices that it writes
    # Budgets for sm_90: name of the figure -> limits for float32 and for 16 bits.
    budgets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    blocks: int = 4  # number of blocks to execute
    beside: str = ""  # the case whose time limits that of this one
    fp64: float | None = 5.0  # limit of float64 instructions in single arithmetic, for each dtype except float64


def _size(*shape: int, dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def table(dtype: torch.dtype) -> Call:
    length = B * L
    return Call(
        lambda: sinpe.table(length, D, dtype=dtype), length * D // 2, PAIR, _size(length, D, dtype=dtype), "fill"
    )


def encode(dtype: torch.dtype) -> Call:
    count, dim = 1_000_000, 128
    at = torch.randint(2**20, (count,), generator=torch.Generator().manual_seed(0))
    moved = _size(count, dim, dtype=dtype) + 8 * count
    return Call(lambda: sinpe.encode(at, dim, dtype=dtype), count * dim // 2, PAIR, moved, "fill", 8 * count)


def add(dtype: torch.dtype, *, positions: bool = False, shape: tuple[int, int, int] = (B, L, D), **given: Any) -> Call:
    batch, length, dim = shape
    x = torch.empty(shape, dtype=dtype)
    if positions:
        generator = torch.Generator().manual_seed(0)
        given["positions"] = torch.stack([torch.randperm(length, generator=generator) for _ in range(batch)])
    moved = 2 * _size(*shape, dtype=dtype)
    units, unit = (batch * length * dim // 2, PAIR) if positions else (batch * length * dim // 16, SIXTEEN)
    return Call(lambda: sinpe.add(x, **given), units, unit, moved, "copy", moved // 2)


def channels_first(dtype: torch.dtype, **given: Any) -> Call:
    x, moved = torch.empty(B, D, L, dtype=dtype), 2 * _size(B, D, L, dtype=dtype)
    return Call(
        lambda: sinpe.add(x, seq_dim=2, channel_dim=1, **given), B * L * D // 16, SIXTEEN, moved, "copy", moved // 2
    )


def dropout_backward(dtype: torch.dtype) -> Call:
    x = torch.empty(B, L, D, dtype=dtype, requires_grad=True)
    grad, moved = torch.empty(B, L, D, dtype=dtype), 2 * _size(B, L, D, dtype=dtype)
    return Call(
        lambda: sinpe.add(x, dropout=0.1, seed=1).backward(grad), B * L * D // 16, SIXTEEN, moved, "copy", moved // 2
    )


def embed(dtype: torch.dtype, dropout: float = 0.0) -> Call:
    ids, weight = PLACE.ids(of_text=True), torch.empty(VOCABULARY, D, dtype=dtype)
    moved = 2 * _size(B, L, D, dtype=dtype) + 8 * B * L
    given = {"dropout": dropout, "seed": 1} if dropout else {}
    return Call(lambda: sinpe.embed(ids, weight, **given), B * L * D // 16, SIXTEEN, moved, "copy", moved // 2)


def embed_backward(dtype: torch.dtype, *, of_text: bool) -> Call:
    ids = PLACE.ids(of_text=of_text)
    weight = torch.empty(VOCABULARY, D, dtype=dtype, requires_grad=True)
    grad = torch.empty(B, L, D, dtype=dtype)
    read, written = _size(B, L, D, dtype=dtype) + 8 * B * L, _size(VOCABULARY, D, dtype=dtype)
    return Call(
        lambda: sinpe.embed(ids, weight).backward(grad),
        B * L * D // 16,
        SIXTEEN,
        read + written,
        "copy",
        read,
        heaviest=0 if of_text else None,
    )


def alpha_gradient(dtype: torch.dtype) -> Call:
    x, grad = torch.empty(B, L, D, dtype=dtype), torch.empty(B, L, D, dtype=dtype)
    alpha = torch.ones(1, dtype=dtype, requires_grad=True)
    read = _size(B, L, D, dtype=dtype)
    return Call(
        lambda: sinpe.add(x, alpha=alpha).backward(grad), B * L * D // 16, SIXTEEN, read + 8 * B * L, "copy", read
    )


def timesteps(dtype: torch.dtype) -> Call:
    at = torch.linspace(0, 999, 8).long()
    return Call(lambda: sinpe.encode(at, 320, dtype=dtype), 8 * 160, PAIR, _size(8, 320, dtype=dtype), "kernel", 64)


def decode(dtype: torch.dtype) -> Call:
    x = torch.empty(8, 1, 4096, dtype=dtype)
    return Call(
        lambda: sinpe.add(x, start=1000), 8 * 4096 // 16, SIXTEEN, 2 * _size(8, 4096, dtype=dtype), "kernel",
        _size(8, 4096, dtype=dtype),
    )  # fmt: skip


DIRECT = {"instructions": (75.0, 50.0)}  # rows at unrelated positions
# Loads issued before the random numbers are computed have about fifty instructions of time to arrive.
DROPPED = {"instructions": (300.0, 300.0), "alu": (160.0, 160.0), "ahead": (50.0, 50.0)}
AHEAD = {"ahead": (50.0, 50.0)}
SIDE_BY_SIDE = {"sectors": (1.1, 1.1)}  # bytes in accessed sectors per requested byte

CASES = (
    Case("table 131072x1024", table, budgets={"instructions": (60, 40)}),
    Case("encode 1M random int64 x 128", encode, budgets=DIRECT),
    Case("add, positions of each token, 32x4096x1024", partial(add, positions=True), budgets=DIRECT),
    Case("add 32x4096x1024", add, budgets={"waves": (8, 8)}),
    Case("add 32x512x1024", partial(add, shape=(32, 512, 1024))),
    Case("add 256x197x768", partial(add, shape=(256, 197, 768))),
    Case("add + dropout 32x4096x1024", partial(add, dropout=0.1, seed=1), budgets=DROPPED),
    Case("backward of add + dropout 32x4096x1024", dropout_backward, kernels=("Apply<*,Unencoded*",), budgets=DROPPED),
    Case("add, channels first, 32x1024x4096", channels_first, budgets=SIDE_BY_SIDE),
    Case("add + dropout, channels first", partial(channels_first, dropout=0.1, seed=1), budgets=SIDE_BY_SIDE | AHEAD),
    # Counted: 2.2 to 2.4 and 1.2 to 1.4, depending on the address: host memory is aligned to 16 bytes, sectors to 32.
    Case("embed, ids of a text, 32x4096x1024", embed, budgets={"waits": (2.5, 1.5)}),
    Case("embed + dropout", partial(embed, dropout=0.1), budgets=AHEAD),
    Case(
        "embed backward, random ids",
        partial(embed_backward, of_text=False),
        kernels=("RowStarts", "EmbedBackward<*"),
        launches=4,  # the starts of rows; the sums of 64 tokens, of 4096 tokens, and of rows
        followed="RowStarts",
        blocks=24,
    ),
    Case(
        "embed backward, ids of a text",
        partial(embed_backward, of_text=True),
        kernels=("RowStarts", "EmbedBackward<*"),
        launches=4,
        followed="RowStarts",
        blocks=24,
        beside="embed backward, random ids",
        budgets={"times embed backward, random ids": (1.3, 1.3)},
    ),
    Case("gradient of alpha (row_dots)", alpha_gradient, kernels=("RowDots<*",), fp64=None),  # a sum in double
    Case("encode 8 timesteps x 320", timesteps),
    Case("decode step 8x1x4096", decode),
    Case("table 131072x1024 float64", table, (torch.float64,)),
)
# Cases for which the recomputations in exact arithmetic are counted.
COUNTED_EXACT = ("table 131072x1024", "encode 1M random int64 x 128", "add, positions of each token, 32x4096x1024")
