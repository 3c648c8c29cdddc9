"""Rows of a grid from the rows of its axes: whole tables for `table` and `encode`, and the operands of `add`.

The operator takes the rows of the axes, `axis_rows`, and as plan a packed description, `pack_grid`, of the channels to
which they belong (layout: `csrc/core/grid.h`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backend import loader
from ..device_constants import on_device, releases_with
from ..encodings import resolve
from ..encodings.encoding import Encoding
from ..encodings.grid import ChannelGroup, GridEncoding
from ..encodings.tracing import constant_in_graph
from ..reference.packed_grid import HEADER_WORDS, MAGIC
from ..torch_state import is_capturing, outside_modes
from . import encoded_rows

MAX_CACHED = 1 << 17  # sum of a grid's lengths times its channels; the rows of larger grids are computed in each call
MAX_CORNERS = 64  # rows of grids that start at other coordinates than 0 kept in CUDA memory: crops may start anywhere

_at_corners: set[AxisRows] = set()  # those that are kept
releases_with(_at_corners.clear)


@constant_in_graph
def layout(value: Any, dim: int | None) -> tuple[tuple[int, int, int, int, int], ...]:
    """Each group of a grid as (axis, first channel, step between channels, number of channels, start)."""
    groups = resolve.grid(value, dim).channel_groups
    return tuple((p.axis, p.first, p.step, p.encoding.dim, p.encoding.start) for p in groups)


@constant_in_graph
def outline(value: Any, dim: int | None) -> tuple[int, tuple[int, ...], bool, bool]:
    """(number of channels, starts of the axes, whether kernels support the encodings, whether it is that of a sequence)
    of a grid."""
    grid = resolve.grid(value, dim)
    groups = grid.channel_groups
    is_sequence = len(grid.axes) == len(groups) == 1 and groups[0].encoding.dim == grid.dim
    starts = tuple([axis.start for axis in grid.axes])
    return grid.dim, starts, all([axis.angle == "exact" for axis in grid.axes]), is_sequence


@constant_in_graph
def equal_axes(value: Any, dim: int | None) -> tuple[str, tuple[int, ...]] | None:
    """(arrangement, order of the axes) of a grid whose axes have equal encodings that cover all channels, else None."""
    grid = resolve.grid(value, dim)
    if len({axis.replace(start=0) for axis in grid.axes}) > 1 or grid.dim != sum(axis.dim for axis in grid.axes):
        return None
    return grid.arrangement, tuple(range(grid.ndim)) if grid.order is None else grid.order


def table(
    value: Any, dim: int, lengths: Sequence[int], starts: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The encoding of the whole grid, (*lengths, dim)."""
    groups = layout(value, dim)
    parts = []
    for k, (axis, _, _, width, _) in enumerate(groups):
        rows = encoded_rows.table((value, dim, k), lengths[axis], starts[axis], dtype, device)
        shape = [1] * len(lengths)
        shape[axis] = lengths[axis]
        parts.append(rows.reshape(*shape, width).expand(*lengths, width))
    return combined(parts, groups, lengths, dim, dtype, device)


def encode(value: Any, dim: int, positions: Tensor, dtype: torch.dtype) -> Tensor:
    """The grid encoding of positions of shape (*shape, axes): (*shape, dim)."""
    shared = equal_axes(value, dim)
    if shared is not None:  # every coordinate is a position of one encoding
        arrangement, order = shared
        if order != tuple(range(len(order))):
            positions = torch.stack([positions.select(-1, axis) for axis in order], -1)
        rows = encoded_rows.encode((value, dim, -1), positions, dtype)
        if arrangement == "interleaved":
            rows = rows.transpose(-1, -2)
        elif arrangement in ("grouped", "pairs"):
            half = rows.shape[-1] // 2
            rows = (
                rows.unflatten(-1, (2, half) if arrangement == "grouped" else (half, 2)).transpose(-3, -2).flatten(-2)
            )
        return rows.flatten(-2)
    groups = layout(value, dim)
    parts = [
        encoded_rows.encode((value, dim, k), positions.select(-1, group[0]), dtype) for k, group in enumerate(groups)
    ]
    return combined(parts, groups, positions.shape[:-1], dim, dtype, positions.device)


def combined(
    parts: list[Tensor], groups: Any, shape: Sequence[int], dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Combines the groups into all channels; channels that no group covers are zero. Differentiable."""
    steps, filled = {step for _, _, step, _, _ in groups}, sum(width for _, _, _, width, _ in groups)
    if len(parts) == 1 and filled == dim:
        return parts[0].contiguous()
    if steps == {1}:
        if filled < dim:
            parts = [*parts, torch.zeros((), dtype=dtype, device=device).expand(*shape, dim - filled)]
        return torch.cat(parts, -1)
    if len({width for _, _, _, width, _ in groups}) == 1 and filled == dim and steps == {len(parts)}:
        return torch.stack(parts, -1).flatten(-2)
    at = [filled] * dim  # index of each channel in the concatenation of all groups and a zero
    for k, (_, first, step, width, _) in enumerate(groups):
        before = sum(group[3] for group in groups[:k])
        at[first : first + (width - 1) * step + 1 : step] = range(before, before + width)
    zero = torch.zeros((), dtype=dtype, device=device).expand(*shape, 1)
    return torch.cat([*parts, zero], -1).index_select(-1, torch.tensor(at, device=device))


def all_groups(grid: GridEncoding, lengths: Sequence[int]) -> tuple[ChannelGroup, ...]:
    """The groups of a grid. If zero channels follow them, one more group covers these, on the shortest axis."""
    first = max((p.first + (p.encoding.dim - 1) * p.step + 1 for p in grid.channel_groups), default=0)
    if first == grid.dim:
        return grid.channel_groups
    shortest, count = min(range(len(lengths)), key=lambda axis: lengths[axis]), grid.dim - first
    # Zeros, added like any other encoding: the sign of alpha * (+0) affects a sum of zeros.
    zeros = Encoding(count, layout="sin", frequencies=(0.0,) * count, amplitude=0.0)
    return (*grid.channel_groups, ChannelGroup(shortest, zeros, first, 1))


class AxisRows(NamedTuple):
    """What determines the rows of a grid's axes.

    Attributes:
        starts: one per axis, relative to the starts of the axes' encodings; ints, or 0-d tensors.
        acc: dtype of the rows.
        by_channels: whether they are transposed, for x with channels first.
    """

    grid: GridEncoding
    lengths: tuple[int, ...]
    starts: tuple[Any, ...]
    acc: torch.dtype
    device: torch.device
    by_channels: bool


def values(of: AxisRows) -> Tensor:
    """The rows of the axes, all groups concatenated."""
    if not are_cached(of):
        return _rows(of)
    return _rows_on_cpu(of, loader.compiled("cpu")) if of.device.type == "cpu" else _rows_on_cuda(of)


def scaled(rows: Tensor, alpha: float | Tensor) -> Tensor:
    """The operand `axis_rows` of `add`: alpha times the rows of the axes, for an alpha that needs no gradient."""
    if isinstance(alpha, Tensor):
        return rows * alpha.to(rows.dtype).reshape(())
    return rows * alpha


def are_cached(of: AxisRows) -> bool:
    """Whether the rows are computed once and kept."""
    if sum(of.lengths) * of.grid.dim > MAX_CACHED or {*map(type, of.starts)} != {int}:
        return False
    if of.device.type != "cuda" or not any(of.starts) or of in _at_corners:
        return of.device.type in ("cpu", "cuda")
    return len(_at_corners) < MAX_CORNERS and torch.cuda.is_available() and not is_capturing(of.device)


def _rows(of: AxisRows) -> Tensor:
    """`values`, computed now."""
    parts = []
    for k, group in enumerate(all_groups(of.grid, of.lengths)):
        length = of.lengths[group.axis]
        if k < len(of.grid.channel_groups):
            rows = encoded_rows.table((of.grid, None, k), length, of.starts[group.axis], of.acc, of.device)
        else:
            rows = torch.zeros(length, group.encoding.dim, dtype=of.acc, device=of.device)
        parts.append((rows.t() if of.by_channels else rows).reshape(-1))
    if not parts:
        return torch.zeros(0, dtype=of.acc, device=of.device)
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()


@lru_cache(maxsize=64)
@outside_modes
def _rows_on_cpu(of: AxisRows, _compiled: bool) -> Tensor:  # the last bit of float64 rows depends on _compiled
    """`_rows` on the CPU, computed once."""
    return _rows(of)


def _rows_on_cuda(of: AxisRows) -> Tensor:
    """`_rows` on a CUDA device, computed once."""

    def make() -> Tensor:
        if not torch.cuda.is_available():
            return _rows(of._replace(device=torch.device("cpu")))
        rows = _rows(of)
        torch.cuda.current_stream(of.device).synchronize()  # later calls may be on another stream
        if any(of.starts):
            _at_corners.add(of)
        return rows

    return on_device((of, loader.compiled("cuda")), of.device, make)


@lru_cache(maxsize=256)
@outside_modes
def _pack_grid_cpu(grid: GridEncoding, lengths: tuple[int, ...], by_channels: bool) -> Tensor:
    """`pack_grid` on the CPU."""
    every, groups, at = all_groups(grid, lengths), [], 0
    for group in every:
        groups += [group.axis, group.first, group.step, group.encoding.dim, at]
        at += group.encoding.dim * lengths[group.axis]
    size = HEADER_WORDS + len(lengths) + len(groups)
    header = [MAGIC, size, int(by_channels), len(lengths), len(every), grid.dim, at, 0]
    return torch.tensor([*header, *lengths, *groups], dtype=torch.int64, device="cpu")


def pack_grid(grid: GridEncoding, lengths: tuple[int, ...], by_channels: bool, device: torch.device) -> Tensor:
    """The packed description of a grid with these lengths, in CUDA memory for CUDA data, else on the CPU."""
    key = grid, lengths, by_channels
    return _pack_grid_cpu(*key) if device.type != "cuda" else on_device(key, device, lambda: _pack_grid_cpu(*key))
