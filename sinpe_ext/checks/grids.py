"""Checks of the arguments that only grids have; each message is defined once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import checks
from ..encodings.grid import lengths_of
from ..encodings.values import integer
from ..runtime import observers
from . import INT64_MAX

Shapes: TypeAlias = Sequence[tuple[tuple[int, ...], bool]]  # (shape, whether its first dimension is the batch)

_is_compiling = torch.compiler.is_compiling


def lengths(name: str, value: Any, axes: int) -> tuple[int, ...]:
    """Checks the lengths of a grid's axes."""
    if _is_compiling() and isinstance(value, (tuple, list)) and len(value) == axes and all(map(_is_whole, value)):
        return tuple(value)  # may be symbolic ints of the graph
    return lengths_of(name, value, axes)


def _is_whole(value: Any) -> bool:
    """Whether a value is an int or a symbolic int."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def refuse_grid_shape(value: Any, advice: str) -> None:
    """Raises ValueError for a `grid_shape` with a one-dimensional encoding."""
    if value is not None:
        raise ValueError(
            f"grid_shape: expected None for an encoding of one dimension, got {checks.shown(value)}; {advice}"
        )


def extra(value: Any) -> int:
    """Checks `extra_tokens`."""
    if _is_compiling() and _is_whole(value):
        return value
    return integer("extra_tokens", value, 0, INT64_MAX, "pass the number of tokens in front, 1 for a class token")


def starts(value: Any, firsts: Sequence[int], sizes: Sequence[int], batch: int | None, device: Any) -> Any:
    """Checks `start` of a grid.

    Args:
        firsts: the starts of the axes' encodings.
        sizes: the lengths of the axes.
        batch: the number of samples, None if there is no batch dimension.
    Returns:
        a list with one int or 0-d tensor per axis, or an int64 tensor of shape (B, axes), one row per sample.
    """
    axes = len(firsts)
    if isinstance(value, Tensor):
        return _start_tensor(value, firsts, sizes, batch, device)
    items = checks.one_per_axis(value, axes)
    if _is_compiling() and all(map(_is_whole, items)):
        return items
    found = [checks.start(item) for item in items]
    for k, first in enumerate(found):
        if type(first) is int:
            checks.position_range(firsts[k] + first, sizes[k])
    return found


def _start_tensor(value: Tensor, firsts: Sequence[int], sizes: Sequence[int], batch: int | None, device: Any) -> Any:
    """`starts` for a tensor."""
    axes = len(firsts)
    checks.dense_tensor("start", value)
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"start: expected ints or an integer tensor, got {value.dtype}; pass int64 starts")
    if value.device != device:
        raise RuntimeError(
            f"start: expected the device of the data, {device}, got {value.device}; move it with start.to(...)"
        )
    value = checks.positions(value)
    if value.dim() == 0:
        _check_starts(value.expand(axes), firsts, sizes)
        return [value] * axes
    allowed = [(axes,)] + ([(1, axes), (batch, axes)] if batch is not None else [])
    if tuple(value.shape) not in allowed:
        samples = f" or ({batch}, {axes}), one for each sample" if batch is not None else ""
        raise ValueError(
            f"start: expected shape () or ({axes},), one per axis{samples}, got {tuple(value.shape)}; pass one of these"
        )
    _check_starts(value, firsts, sizes)
    if value.dim() == 2 and value.shape[0] == 1:
        value = value[0]
    return list(value.unbind()) if value.dim() == 1 else value


def _check_starts(value: Tensor, firsts: Sequence[int], sizes: Sequence[int]) -> None:
    """Checks the range of the positions that follow from start, if its values can be read."""
    if not observers.should_check_values(value) or not value.numel():
        return
    low, high = torch.stack(value.reshape(-1, len(firsts)).aminmax(dim=0)).tolist()
    for extremes in (low, high):
        for first, size, extreme in zip(firsts, sizes, extremes, strict=True):
            checks.position_range(first + extreme, size)


def positions(value: Any, axes: int, shapes: Shapes, x: Tensor) -> Tensor:
    """Checks the coordinates of a grid's points, of shape (*one of `shapes`, axes); returns (1 or B, S, axes)."""
    value = checks.positions(value)
    if value.device != x.device:
        raise RuntimeError(
            f"positions: expected the device of x, {x.device}, got {value.device}; move it with positions.to(x.device)"
        )
    wanted, given = [(*shape, axes) for shape, _ in shapes], tuple(value.shape)
    sampled = _sampled(given[:-1], shapes) if given and given[-1] == axes else None
    if sampled is None:
        raise ValueError(
            f"positions: expected shape {_either(wanted)}, coordinates in the last dimension, got {given} "
            f"for x of shape {tuple(x.shape)}; stack the coordinates of the axes there"
        )
    return value.flatten(1, -2) if sampled else value.flatten(0, -2).unsqueeze(0)


def padding_mask(value: Any, shapes: Shapes, x: Tensor) -> Tensor:
    """Checks a bool mask of a grid's points, True = padding, of one of `shapes`; returns (1 or B, S)."""
    checks.bool_mask(value)
    if value.device != x.device:
        raise RuntimeError(
            f"padding_mask: expected the device of x, {x.device}, got {value.device}; move it with .to(x.device)"
        )
    given = tuple(value.shape)
    sampled = _sampled(given, shapes)
    if sampled is None:
        wanted = _either([shape for shape, _ in shapes])
        raise ValueError(
            f"padding_mask: expected shape {wanted}, got {given} for x of shape {tuple(x.shape)}; it "
            "speaks of the places of the grid, not of extra_tokens"
        )
    return value.flatten(1) if sampled else value.flatten().unsqueeze(0)


def _sampled(found: tuple[int, ...], shapes: Shapes) -> bool | None:
    """Whether a shape begins with the batch; None if it is not one of `shapes`."""
    for shape, has_samples in shapes:
        if len(shape) == len(found) and shape == found:
            return has_samples
    return None


def _either(shapes: Sequence[Sequence[int]]) -> str:
    """The distinct shapes as text, joined by "or"."""
    unique = list(dict.fromkeys(f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})" for shape in shapes))
    return " or ".join(unique)
