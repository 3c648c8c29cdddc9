"""What torch.compile sees: opaque `table` and `encode`, then arithmetic that it fuses with its neighbours.

A compiler must not look into an Encoding or a plan. The functions marked `constant_in_graph` run while it traces, and
what they give is a constant of the graph. They take what the caller gave for an encoding, `Given`, because a constant
of the graph cannot be handed to the next such function.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch

from . import _backend, _checks, _float32_angle, _ops
from ._checks import constant_in_graph

Given: TypeAlias = tuple[Any, int | None]  # the arguments of _checks.encoding


def given(encoding: Any) -> Given:
    """An encoding as the caller gave it; a dim that is a symbol of the graph becomes a number."""
    return (operator.index(encoding) if isinstance(encoding, int) else encoding), None


@constant_in_graph
def plan_words(value: Any, dim: int | None) -> torch.Tensor:
    _backend.compiled("cpu")  # load the kernels before the graph runs; without them the operator is the eager twin
    return _ops.plan_words(_checks.encoding(value, dim))


@constant_in_graph
def ladder(value: Any, dim: int | None) -> torch.Tensor:
    return _float32_angle.constants(_checks.encoding(value, dim)).ladder


@constant_in_graph
def kinds(value: Any, dim: int | None) -> torch.Tensor:
    return _float32_angle.constants(_checks.encoding(value, dim)).kinds


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
        return _float32_angle.rows(positions, ladder(*given), kinds(*given), by_exp, encoding.amplitude, dtype)
    return torch.ops.sinpe_ext.encode.default(positions.contiguous(), plan_words(*given), encoding.dim, dtype)
