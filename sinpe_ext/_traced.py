"""What torch.compile sees: opaque `table` and `encode`, then arithmetic that it fuses with its neighbours.

A compiler must not look into an Encoding or a plan. The functions marked `constant_in_graph` run while it traces, and
what they give is a constant of the graph. They take what the caller gave for an encoding, `Given`, because a constant
of the graph cannot be handed to the next such function.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeAlias

import torch

from . import _backend, _checks, _float32_angle, _ops
from ._checks import constant_in_graph
from .encoding import Encoding

Given: TypeAlias = tuple[Any, int | None]  # the arguments of _checks.encoding


def given(encoding: Any) -> Given:
    """An encoding as the caller gave it; a dim that is a symbol of the graph becomes a number."""
    return (operator.index(encoding) if isinstance(encoding, int) else encoding), None


SLOTS = 64  # constants of one kind that a graph tells apart
_numbers = itertools.count()


@lru_cache(maxsize=256)
def _number(encoding: Encoding) -> int:
    return next(_numbers) % SLOTS


@constant_in_graph
def slot(value: Any, dim: int | None) -> int:
    """A number of an encoding's own."""
    return _number(_checks.encoding(value, dim))


def _by_slot(function: Callable[[Any, int | None], torch.Tensor]) -> tuple[Callable[..., torch.Tensor], ...]:
    """Copies of a function under names of their own: a graph calls a constant by the name of the function that gave it,
    and refuses two constants of one name."""
    copies = []
    for number in range(SLOTS):
        code = function.__code__.replace(co_name=f"sinpe_ext_{function.__name__}_{number}")
        copies.append(constant_in_graph(FunctionType(code, function.__globals__, code.co_name)))
    return tuple(copies)


@_by_slot
def _plan_words(value: Any, dim: int | None) -> torch.Tensor:
    _backend.compiled("cpu")  # load the kernels before the graph runs; without them the operator is the eager twin
    return _ops.plan_words(_checks.encoding(value, dim))


@_by_slot
def _ladder(value: Any, dim: int | None) -> torch.Tensor:
    return _float32_angle.constants(_checks.encoding(value, dim)).ladder


@_by_slot
def _kinds(value: Any, dim: int | None) -> torch.Tensor:
    return _float32_angle.constants(_checks.encoding(value, dim)).kinds


def plan_words(value: Any, dim: int | None) -> torch.Tensor:
    """The plan of an encoding as a constant of the graph."""
    return _plan_words[slot(value, dim)](value, dim)


def table(given: Given, length: int, start: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows encoding.start + start, ..., + length - 1."""
    encoding = _checks.encoding(*given)
    if device.type == "meta":
        return torch.empty((length, encoding.dim), dtype=dtype, device=device)
    if encoding.angle != "exact":
        return encode(given, torch.arange(length, device=device) + (encoding.start + start), dtype)
    return torch.ops.sinpe_ext.table.default(plan_words(*given), start, length, encoding.dim, dtype).to(device)


def encode(given: Given, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows at int64, float32 or float64 positions, differentiable."""
    encoding = _checks.encoding(*given)
    if encoding.angle != "exact":
        by_exp = encoding.angle == "float32_exp"
        ladder, kinds = _ladder[slot(*given)](*given), _kinds[slot(*given)](*given)
        return _float32_angle.rows(positions, ladder, kinds, by_exp, encoding.amplitude, dtype)
    return torch.ops.sinpe_ext.encode.default(positions.contiguous(), plan_words(*given), encoding.dim, dtype)
