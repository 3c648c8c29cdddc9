"""Rows of the benchmark for grids, timesteps as a layer, and `identify`."""

from __future__ import annotations

import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.encodings.grid import GridEncoding

from . import peers as peer
from .cases import Call, Row, Subjects, tolerance

BASE = 10000.0


def exact(grid: GridEncoding, lengths: tuple[int, ...]) -> Tensor:
    """The table of shape (*lengths, dim) with torch's float64 functions, axis by axis."""
    out = torch.zeros(*lengths, grid.dim, dtype=torch.float64)
    for axis, encoding, first, step in grid.pieces:
        w = torch.tensor(encoding.frequencies_radians(), dtype=torch.float64)
        position = torch.arange(lengths[axis], dtype=torch.float64) + encoding.start
        angle = position[:, None] * w
        halves = torch.cat([angle.sin(), angle.cos()], 1)
        rows = _alternating(angle) if encoding.layout == "interleaved" else halves
        shape = [1] * len(lengths)
        shape[axis] = lengths[axis]
        last = first + (encoding.dim - 1) * step + 1
        out[..., first:last:step] = rows.reshape(*shape, encoding.dim)
    return out


def _alternating(angle: Tensor) -> Tensor:
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def diffusers_2d(height: int, width: int, dim: int) -> Tensor:
    """get_2d_sincos_pos_embed with the grid as its base size: float64 angles of the whole grid, columns first."""
    omega = 1.0 / BASE ** (torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles = [torch.outer(p.reshape(-1).double(), omega) for p in (columns, rows)]
    return torch.cat([part for a in angles for part in (a.sin(), a.cos())], 1)


def detr_2d(mask: Tensor, dim: int) -> Tensor:
    """PositionEmbeddingSine without normalize, for a mask of (B, H, W): (B, dim, H, W) float32."""
    free = ~mask
    steps = torch.arange(dim // 2, dtype=torch.float32)
    timescale = BASE ** (2 * torch.div(steps, 2, rounding_mode="floor") / (dim // 2))
    parts = []
    for along in (1, 2):
        angle = free.cumsum(along, dtype=torch.float32)[..., None] / timescale
        parts.append(torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], 4).flatten(3))
    return torch.cat(parts, 3).permute(0, 3, 1, 2)


def nerf_points(points: Tensor, octaves: int) -> Tensor:
    """The embedder of NeRF without its raw inputs."""
    bands = 2.0 ** torch.arange(octaves)
    return torch.cat([f(points * band) for band in bands for f in (torch.sin, torch.cos)], -1)


def add_places(batch: int, height: int, width: int, dim: int) -> Subjects:
    """Patches of images plus mae2d, against the sum with a stored table."""
    grid = sinpe.convention("mae2d", dim)
    x = torch.randn(batch, height * width, dim)
    y, pe = torch.empty_like(x), sinpe.table((height, width), grid, flatten=True)

    def ours() -> Tensor:
        return sinpe.add(x, grid, grid_shape=(height, width), out=y)

    def check() -> None:
        want = x.double() + exact(grid, (height, width)).flatten(0, 1)
        peer.agree("add mae2d", ours(), want, 2.0**-22 + tolerance(torch.float32, height))

    return Subjects(ours, lambda: y.copy_(x), {"out=y": lambda: torch.add(x, pe, out=y)}, check)


def add_channels_first(batch: int, dim: int, height: int, width: int) -> Subjects:
    """Convolutional features plus detr2d, against DETR's formula and the sum."""
    grid = sinpe.convention("detr2d", dim)
    x = torch.randn(batch, dim, height, width)
    y, mask = torch.empty_like(x), torch.zeros(batch, height, width, dtype=torch.bool)

    def ours() -> Tensor:
        return sinpe.add(x, grid, channel_dim=1, out=y)

    def check() -> None:
        want = x.double() + exact(grid, (height, width)).movedim(-1, 0)
        peer.agree("add detr2d", ours(), want, 2.0**-22 + tolerance(torch.float32, height))
        peer.agree("DETR", x + detr_2d(mask, dim), want, 1e-4)

    return Subjects(ours, lambda: y.copy_(x), {"DETR": lambda: torch.add(x, detr_2d(mask, dim), out=y)}, check)


def grid_table(height: int, width: int, dim: int) -> Subjects:
    """The whole table of an image."""
    grid = sinpe.convention("mae2d", dim)
    out = torch.empty(height, width, dim)

    def check() -> None:
        want = exact(grid, (height, width))
        peer.agree("mae2d", sinpe.table((height, width), grid, out=out), want, tolerance(torch.float32, height))
        peer.agree("diffusers", diffusers_2d(height, width, dim), want.flatten(0, 1), 1e-12)

    peers: dict[str, Call] = {"diffusers": lambda: diffusers_2d(height, width, dim).float()}
    return Subjects(lambda: sinpe.table((height, width), grid), lambda: torch.full_like(out, 1.0), peers, check)


def points(count: int, octaves: int) -> Subjects:
    """Points with three coordinates, as in a radiance field."""
    dim = 6 * octaves
    encoding = sinpe.convention("nerf", dim, axes=3)
    p = torch.rand(count, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def check() -> None:
        want = nerf_points(p[:97].double(), octaves)
        peer.agree("nerf", sinpe.encode(p[:97], encoding), want, tolerance(torch.float32, 2.0**octaves))

    ours = lambda: sinpe.encode(p, encoding)  # noqa: E731
    return Subjects(ours, lambda: torch.full((count, dim), 1.0), {"NeRF": lambda: nerf_points(p, octaves)}, check)


def timestep_layer(count: int, dim: int) -> Subjects:
    """The layer with a float32 result, and with bfloat16 timesteps."""
    layer = sinpe.TimestepEncoding(dim, encoding="adm")
    t = torch.linspace(0.5, 999.5, count)

    def usual() -> Tensor:
        return peer.diffusers_embedding(t, dim, shift=0.0).roll(dim // 2, -1)

    def check() -> None:
        want = peer.exact_rows(t, dim, shift=0.0, interleaved=False).roll(dim // 2, -1)
        peer.agree("TimestepEncoding", layer(t), want, tolerance(torch.float32, 1000))

    return Subjects(lambda: layer(t), lambda: torch.empty(count, dim).fill_(1.0), {"diffusers": usual}, check)


def identified(length: int, dim: int) -> Subjects:
    """`identify` of a checkpoint's float32 table of the naive float32 formula."""
    table = peer.usual_table(*peer.usual_parts(length, dim))

    def check() -> None:
        best = sinpe.identify(table)[0]
        if best.encoding != sinpe.Encoding(dim):
            raise AssertionError(f"identify: expected paper with base 10000, got {best}")

    return Subjects(lambda: sinpe.identify(table), check=check)


# fmt: off
GRID_ROWS: tuple[Row, ...] = (
    Row("grid_add", "add mae2d (64,14*14,768), out=", lambda: add_places(64, 14, 14, 768), "y.copy_(x)", None,
        {"out=y": None}),
    Row("grid_add_large", "add mae2d (8,64*64,1024), out=", lambda: add_places(8, 64, 64, 1024), "y.copy_(x)", 1.10,
        {"out=y": 1.0}),
    Row("grid_add_first", "add detr2d (8,256,100,100), out=", lambda: add_channels_first(8, 256, 100, 100),
        "y.copy_(x)", 1.10, {"DETR": None}),
    Row("grid_table", "table mae2d (64,64) x 1024, fresh", lambda: grid_table(64, 64, 1024), "torch.full_like", None,
        {"diffusers": None}),
    Row("points", "encode 1M points x 3, nerf 60", lambda: points(1_000_000, 10), "torch.full", None, {"NeRF": None}),
    Row("timestep_layer", "TimestepEncoding, 8 x 320", lambda: timestep_layer(8, 320), "empty, fill_", 3.0,
        {"diffusers": 4.0}),
    Row("identify", "identify 5000x512", lambda: identified(5000, 512)),
)
# fmt: on
