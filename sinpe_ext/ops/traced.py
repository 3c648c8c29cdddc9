"""The operations that torch.compile traces: opaque `table` and `encode`, then arithmetic that it can fuse.

The compiler must not trace into an Encoding or a plan. The functions decorated with `constant_in_graph` run while it
traces, and their results are constants of the graph. They take the caller's arguments for the encoding, `Given`,
because a constant of the graph cannot be passed to another such function.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeAlias

import torch

from .. import checks
from ..backend import loader
from ..encodings.encoding import Encoding
from ..encodings.plan import plan as _plan_of
from ..reference import float32_angle
from ..runtime import handle, observers
from . import onnx_graph
from . import packed_plan as plans

constant_in_graph = handle.constant_in_graph()
if constant_in_graph is handle.by_handle:  # torch 2.11: adapt the functions decorated in checks
    for _name in ("encoding", "grid", "grid_dim_and_starts"):
        setattr(checks, _name, handle.by_handle(getattr(checks, _name)))

Piece: TypeAlias = int | tuple[int, int] | None
Given: TypeAlias = tuple[Any, int | None, Piece]  # the arguments of checks.encoding
Constant: TypeAlias = Callable[[Any, int | None, Piece, torch.device], torch.Tensor]


def given(encoding: Any, dim: int | None = None) -> Given:
    """The caller's arguments for the encoding; a dim that is a symbolic int becomes a number."""
    is_int = isinstance(encoding, int) and not isinstance(encoding, bool)
    return (operator.index(encoding) if is_int else encoding), dim, None


SLOTS = 256  # distinct constants of one kind that a graph can contain
_numbers = itertools.count()


@lru_cache(maxsize=256)  # no more than SLOTS
def _number(encoding: Encoding, device: torch.device) -> int:
    """A number below SLOTS for an encoding on a device, the same in every call while it is cached."""
    return next(_numbers) % SLOTS


@constant_in_graph
def slot(value: Any, dim: int | None, piece: Piece, device: torch.device) -> int:
    """The slot of an encoding on a device, by which a graph distinguishes its constants from those of others."""
    return _number(checks.encoding(value, dim, piece), device)


def _by_slot(function: Constant) -> tuple[Constant, ...]:
    """Copies of a function with different names: a graph names a constant after the function that returned it, and does
    not accept two constants with the same name."""
    copies = []
    for number in range(SLOTS):
        code = function.__code__.replace(co_name=f"sinpe_ext_{function.__name__}_{number}")
        copies.append(constant_in_graph(FunctionType(code, function.__globals__, code.co_name)))
    return tuple(copies)


# Constants are created on the device of the result: one on the CPU would be copied in every run of the graph, and would
# prevent the use of CUDA graphs.


@_by_slot
def _packed_plan(value: Any, dim: int | None, piece: Piece, device: torch.device) -> torch.Tensor:
    """The packed plan."""
    # Load the kernels before the graph runs; without them the operator runs the reference implementation.
    loader.compiled(device.type if device.type == "cuda" else "cpu")
    return plans.pack_plan(checks.encoding(value, dim, piece), device)


@_by_slot
def _ladder(value: Any, dim: int | None, piece: Piece, device: torch.device) -> torch.Tensor:
    """The float32 frequencies or timescales of the channels (`float32_angle.Constants.ladder`)."""
    return float32_angle.constants_on(checks.encoding(value, dim, piece), device).ladder


@_by_slot
def _kinds(value: Any, dim: int | None, piece: Piece, device: torch.device) -> torch.Tensor:
    """SINE, COSINE or ZERO of each channel (`float32_angle.Constants.kinds`)."""
    return float32_angle.constants_on(checks.encoding(value, dim, piece), device).kinds


@constant_in_graph
def _order(value: Any, dim: int | None, piece: Piece) -> tuple[bool, float]:
    """Whether the float32 angle is a product (not a quotient), and the scale of the positions."""
    encoding = checks.encoding(value, dim, piece)
    return float32_angle.multiplies(encoding), float(encoding.position_scale)


def pack_plan(value: Any, dim: int | None, piece: Piece, device: torch.device) -> torch.Tensor:
    """The plan of an encoding as a constant of the graph, for tensors on `device`."""
    packed_plan = _packed_plan[slot(value, dim, piece, device)](value, dim, piece, device)
    # A graph for CUDA that is exported on a machine without CUDA copies the constant when it runs.
    return packed_plan.to(device) if device.type == "cuda" and packed_plan.device.type != "cuda" else packed_plan


def table(given: Given, length: Any, start: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows at positions encoding.start + start, ..., encoding.start + start + length - 1."""
    encoding = checks.encoding(*given)
    if device.type == "meta":
        return torch.empty((length, encoding.dim), dtype=dtype, device=device)
    if encoding.angle != "exact":
        return encode(given, torch.arange(length, device=device) + (encoding.start + start), dtype)
    if observers.is_exporting():
        return onnx_graph.table(_plan_of(encoding), length, start, dtype, device)
    rows = torch.ops.sinpe_ext.table.default(pack_plan(*given, device), start, length, encoding.dim, dtype)
    return rows if rows.device.type == device.type else rows.to(device)


def encode(given: Given, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows at int64, float32 or float64 positions, differentiable."""
    encoding, device = checks.encoding(*given), positions.device
    if encoding.angle != "exact":
        number = slot(*given, device)
        ladder, kinds = _ladder[number](*given, device), _kinds[number](*given, device)
        multiply, factor = _order(*given)
        return float32_angle.rows(positions, ladder, kinds, multiply, factor, encoding.amplitude, dtype)
    if observers.is_exporting():
        return onnx_graph.encode(_plan_of(encoding), positions, dtype)
    packed_plan = pack_plan(*given, device)
    return torch.ops.sinpe_ext.encode.default(positions.contiguous(), packed_plan, encoding.dim, dtype)
