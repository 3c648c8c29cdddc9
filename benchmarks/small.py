"""Rows of small data: few channels a position, as of Fourier features, against the naive float32 formula; and tensors
that fit into a cache."""

from __future__ import annotations

import math
from functools import partial

import torch

import sinpe_ext as sinpe

from . import peers as peer
from .cases import CHECK_ROWS, Row, Subjects, tolerance

VALUES = 2**21  # of a result: 8 MiB, for which malloc keeps its memory
LARGEST = 1000  # position


def encode(dim: int, *, integers: bool) -> Subjects:
    """Positions up to 1000, integers or not."""
    encoding, index = sinpe.Encoding(dim), torch.arange(0, dim, 2).float()
    positions = torch.rand(VALUES // dim, generator=torch.Generator().manual_seed(0)) * LARGEST
    positions = positions.long() if integers else positions

    def check() -> None:
        some = positions[:CHECK_ROWS]
        peer.agree("small", sinpe.encode(some, encoding), peer.exact_rows(some, dim), tolerance(torch.float32, LARGEST))

    return Subjects(
        ours=lambda: sinpe.encode(positions, encoding),
        floor=lambda: torch.full((VALUES // dim, dim), 1.0),
        peers={"naive float32 formula": lambda: peer.usual_table(positions.float().unsqueeze(1), index)},
        check=check,
    )


def turns(layout: str, dim: int, parts: int) -> Subjects:
    """Positions that are multiples of 1 / parts, in turns: many of the values are exactly 0, 1 or -1."""
    frequencies = tuple(2.0**k for k in range(dim // 2))
    encoding = sinpe.Encoding(dim, unit="turn", layout=layout, frequencies=frequencies)
    whole = torch.randint(0, 5000, (VALUES // dim,), generator=torch.Generator().manual_seed(0))
    positions, turned = whole if parts == 1 else whole / parts, torch.tensor(frequencies, dtype=torch.float64)
    angular = (2 * math.pi * turned).float()

    def of(angle: torch.Tensor) -> torch.Tensor:
        values = angle.sin(), angle.cos()
        return torch.cat(values, -1) if layout == "sin_cos" else torch.stack(values, -1).flatten(-2)

    def check() -> None:
        some = positions[:CHECK_ROWS]
        exact = of(2 * math.pi * (some.double().unsqueeze(-1) * turned % 1))
        peer.agree("turns", sinpe.encode(some, encoding), exact, tolerance(torch.float32, 1))

    return Subjects(
        ours=lambda: sinpe.encode(positions, encoding),
        floor=lambda: torch.full((VALUES // dim, dim), 1.0),
        peers={"naive float32 formula": lambda: of(positions.float().unsqueeze(-1) * angular)},
        check=check,
    )


def fourier(features: int) -> Subjects:
    """Random Fourier features of points: sines and cosines of 2 pi x @ frequencies, by the recipe of
    docs/conventions.md."""
    generator, encoding = torch.Generator().manual_seed(0), sinpe.Encoding(2, unit="turn")
    x = torch.rand(VALUES // (2 * features), 3, generator=generator)
    frequencies = torch.randn(3, features, generator=generator) * 10

    def ours() -> torch.Tensor:
        return sinpe.encode(x @ frequencies, encoding)

    def usual() -> torch.Tensor:
        angle = 2 * math.pi * (x @ frequencies)
        return torch.stack([angle.sin(), angle.cos()], -1)

    def check() -> None:
        angle = 2 * math.pi * (x[:97] @ frequencies).double()
        peer.agree("fourier", ours()[:97], torch.stack([angle.sin(), angle.cos()], -1), 1e-5)  # x @ in two sizes

    return Subjects(ours, lambda: torch.full((len(x), features, 2), 1.0), {"naive float32 formula": usual}, check)


def add_cached(shape: tuple[int, int, int]) -> Subjects:
    """`add` of data in a cache, to existing memory, against the sum with a stored table, also in the cache."""
    x, pe = torch.randn(shape), sinpe.table(*shape[1:])
    out = torch.empty_like(x)

    def check() -> None:
        exact = x.double() + peer.exact_rows(torch.arange(shape[1]), shape[2])
        peer.agree("add", sinpe.add(x, out=out), exact, 2.0**-22 + tolerance(torch.float32, shape[1]))

    return Subjects(lambda: sinpe.add(x, out=out), lambda: torch.add(x, pe, out=out), check=check)


def rows() -> tuple[Row, ...]:
    faster: dict[str, float | None] = {"naive float32 formula": 1.0}
    title = f"Fourier features ({VALUES // 256}, 3) x 128"
    bench_rows = [Row("fourier", title, partial(fourier, 128), "torch.full", None, faster)]
    for dim in (2, 4, 8, 16, 32, 64):
        for integers in (True, False):
            kind = "int64" if integers else "float32"
            title = f"encode {VALUES // dim} {kind} x {dim}"
            build = partial(encode, dim, integers=integers)
            bench_rows.append(Row(f"encode_{dim}_{kind}", title, build, "torch.full", None, faster))
    for dim, layout, parts, values in (
        (2, "interleaved", 1, "whole"),
        (2, "interleaved", 8, "eighths of"),
        (20, "interleaved", 512, "512ths of"),
        (48, "sin_cos", 512, "512ths of"),
    ):
        title = f"encode {VALUES // dim} {values} turns x {dim}, {layout}"
        build = partial(turns, layout, dim, parts)
        bench_rows.append(Row(f"encode_{dim}_turns_{parts}", title, build, "torch.full", None, faster))
    for shape in ((1, 64, 768), (1, 196, 768), (8, 64, 768), (8, 196, 768), (32, 64, 768)):
        title = f"add {str(shape).replace(' ', '')}, out="
        bench_rows.append(Row("add_{}_{}_{}".format(*shape), title, partial(add_cached, shape), "a stored table", None))
    return tuple(bench_rows)


SMALL_ROWS = rows()
