"""Conversion of plans to the int64 tensors that operators take, and back.

A plan tensor is a constant of a graph; a saved graph contains a copy, which `decoded` can read. CUDA kernels read plans
from device memory: each plan is copied there once, and the copy is cached.
"""

from __future__ import annotations

import itertools
import math
import operator
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..backend import loader
from ..device_constants import on_device
from ..encodings import resolve
from ..encodings.encoding import Encoding
from ..encodings.plan import (
    ARRAYS,
    FLAG_INTERLEAVED,
    FLAG_Q0,
    FLAG_Q1,
    FLAG_SHARED,
    FLAGS_WORD,
    HEADER_WORDS,
    MAGIC,
    Plan,
)
from ..encodings.plan import plan as _plan_of
from ..encodings.tracing import constant_in_graph
from ..operator import Operator
from ..records import PlanAngularFrequencies, PlanPartner
from ..reference import float32_angle
from ..torch_state import outside_modes

CPU = torch.device("cpu")
_plans = WeakTensorKeyDictionary()  # a plan tensor -> its plan


@lru_cache(maxsize=256)
@outside_modes
def _host_tensor(plan: Plan) -> Tensor:
    """A plan as an int64 tensor on the CPU."""
    packed_plan = torch.frombuffer(plan.packed, dtype=torch.int64)
    _plans[packed_plan] = plan
    return packed_plan


def plan_tensor(plan: Plan, device: torch.device = CPU) -> Tensor:
    """A plan as the int64 tensor that the operators take for data on `device`: in CUDA memory for CUDA, else on the
    CPU. Never a fake tensor."""
    if device.type != "cuda":
        return _host_tensor(plan)
    return on_device(
        (plan, "packed"), device, lambda: _host_tensor(plan), lambda packed_plan: _plans.update({packed_plan: plan})
    )


def pack_plan(encoding: Encoding, device: torch.device = CPU) -> Tensor:
    """The plan of an encoding as the operators take it for data on `device`, see `plan_tensor`."""
    return plan_tensor(_plan_of(encoding), device)


def partner(packed_plan: Tensor) -> Tensor:
    """The packed partner plan (`Plan.partner`), in which sines and cosines are exchanged, as a new tensor."""
    exchanged = packed_plan.clone()
    exchanged[FLAGS_WORD] ^= FLAG_Q0 | FLAG_Q1
    return exchanged


def angular_frequencies(packed_plan: Tensor, dim: int) -> Tensor:
    """The factors that turn a row of the partner plan into d encode / d position: 2 pi f of each channel, float64,
    (dim,).

    Negative for cosine channels, whose derivative is minus a sine; the partner plan's factors are the negatives of
    these. The same channel mapping as `Plan.channel`, in tensor operations on the packed plan, so that nothing
    synchronizes with the device.
    """
    if packed_plan.device.type == "cpu":
        decoded(packed_plan)  # raises if this is not a packed plan
    n_osc = (len(packed_plan) - HEADER_WORDS) // ARRAYS
    n0, n1, flags = packed_plan[3], packed_plan[4], packed_plan[FLAGS_WORD]
    index = torch.arange(dim, device=packed_plan.device)
    interleaved, shared = flags & FLAG_INTERLEAVED != 0, flags & FLAG_SHARED != 0
    stream = torch.where(interleaved, index & 1, (index >= n0).long())
    pair = torch.where(interleaved, index >> 1, index - n0 * stream)
    is_zero = (pair >= torch.where(stream != 0, n1, n0)) | (pair < 0)
    if not n_osc:
        return torch.zeros(dim, dtype=torch.float64, device=packed_plan.device)
    oscillator = torch.where(shared, pair, pair + n0 * stream).clamp(0, n_osc - 1)
    is_cosine = (flags & (FLAG_Q0 + (FLAG_Q1 - FLAG_Q0) * stream)) != 0
    turns = packed_plan[HEADER_WORDS + 3 * n_osc :][:n_osc].view(torch.float64)[oscillator]
    # Not torch.where with a Python number, which would be copied to the device.
    return (2 * math.pi * turns * (1.0 - 2.0 * is_cosine.double())).masked_fill(is_zero, 0.0)


@lru_cache(maxsize=256)
@outside_modes
def _host_angular_frequencies(plan: Plan) -> Tensor:
    """`angular_frequencies` of a plan on the CPU, never a fake tensor."""
    return angular_frequencies(_host_tensor(plan), plan.dim)


def derivative_constants(plan: Plan, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """The packed partner plan and the angular frequencies of a plan, on the device where `plan_tensor` puts the
    plan."""
    if device.type != "cuda":
        return _host_tensor(plan.partner()), _host_angular_frequencies(plan)
    return plan_tensor(plan.partner(), device), on_device(
        (plan, "angular_frequencies"), device, lambda: _host_angular_frequencies(plan)
    )


def decoded(packed_plan: Tensor) -> Plan:
    """The plan that a tensor of `plan_tensor` holds. A copy, as in a saved graph, is unpacked from its values."""
    plan = _plans.get(packed_plan)
    return plan if plan is not None else _unpacked(tuple(packed_plan.tolist()))


@lru_cache(maxsize=64)
def _unpacked(packed: tuple[int, ...]) -> Plan:
    """The inverse of `Plan.packed`, whose layout `encodings/plan.py` describes."""
    if len(packed) < HEADER_WORDS or packed[:2] != (MAGIC, len(packed)):
        raise RuntimeError("plan: expected a packed plan tensor, got other values; pass that of pack_plan(...)")
    _, _, dim, n0, n1, flags, amplitude, n_osc, start = packed[:9]
    columns = [packed[HEADER_WORDS + k * n_osc :][:n_osc] for k in range(ARRAYS)]
    high, low, whole, turns_hi, turns_lo = columns

    def floats(column: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(array("d", array("q", column).tobytes()))

    return Plan(
        dim=dim,
        n0=n0,
        n1=n1,
        interleaved=bool(flags & FLAG_INTERLEAVED),
        shared=bool(flags & FLAG_SHARED),
        q0=int(bool(flags & FLAG_Q0)),
        q1=int(bool(flags & FLAG_Q1)),
        amplitude=floats((amplitude,))[0],
        start=start,
        fractions=tuple((h % 2**64) << 64 | lo % 2**64 for h, lo in zip(high, low, strict=True)),
        whole=whole,
        turns_hi=floats(turns_hi),
        turns_lo=floats(turns_lo),
        largest=floats((packed[10],))[0],
    )


PLAN_PARTNER = Operator(
    "plan_partner", PlanPartner, reference=lambda p: partner(p.plan), fake=lambda p: torch.empty_like(p.plan)
)
PLAN_ANGULAR_FREQUENCIES = Operator(
    "plan_angular_frequencies",
    PlanAngularFrequencies,
    reference=lambda p: angular_frequencies(p.plan, p.dim),
    fake=lambda p: p.plan.new_empty((p.dim,), dtype=torch.float64),
)


# ------------------------------------------------------------------------------------------ constants of a graph
# The compiler must not trace into an Encoding or a plan. The functions decorated with `constant_in_graph` run while it
# traces, and their results are constants of the graph. They take `EncodingArguments`, because a constant of the graph
# cannot be passed to another such function. Constants are created on the device of the result: one on the CPU would be
# copied in every run of the graph, and would prevent the use of CUDA graphs.

Selection: TypeAlias = int | tuple[int, int] | None
EncodingArguments: TypeAlias = tuple[Any, int | None, Selection]  # the arguments of resolve.encoding


def encoding_arguments(encoding: Any, dim: int | None = None) -> EncodingArguments:
    """The caller's arguments for the encoding; a dim that is a symbolic int becomes a number."""
    is_int = isinstance(encoding, int) and not isinstance(encoding, bool)
    return (operator.index(encoding) if is_int else encoding), dim, None


MAX_CONSTANTS = 256  # that graphs can use without being compiled again


class _Constants:
    """Tensors that graphs read, as attributes.

    The compiler makes an attribute an input of the graph, which every part of the graph can use; a constant of its own
    cannot be used in a `torch.compiler.nested_compile_region`. It guards on the sizes of an attribute, not on its
    values, so a name is never used for another tensor: a graph whose constant was removed is compiled again.
    """


_constants = _Constants()
_names: dict[tuple[Any, ...], str] = {}  # of the attributes, oldest first
_numbers = itertools.count()


@constant_in_graph
def _name(kind: str, value: Any, dim: int | None, selection: Selection, device: torch.device) -> str:
    """The name of the attribute of `_constants` that holds a constant of an encoding: "plan", the packed plan;
    "frequencies" or "kinds", those fields of `float32_angle.Constants`."""
    encoding = resolve.encoding(value, dim, selection)
    if kind == "plan":
        # Load the kernels before the graph runs; without them the operator runs the reference implementation.
        loader.compiled(device.type if device.type == "cuda" else "cpu")
    if kind == "plan":
        return constant_name((kind, encoding, device), lambda: pack_plan(encoding, device))
    return constant_name((kind, encoding, device), lambda: getattr(float32_angle.constants_on(encoding, device), kind))


def constant_name(key: tuple[Any, ...], make: Callable[[], Tensor]) -> str:
    """The name of the attribute of `_constants` that holds the constant `key`, which `make` makes if there is none."""
    if key not in _names:
        constant = make()
        torch._dynamo.mark_static(constant)
        torch._dynamo.mark_static_address(constant)  # CUDA graphs do not copy it
        if len(_names) >= MAX_CONSTANTS:
            delattr(_constants, _names.pop(next(iter(_names))))
        _names[key] = f"{key[0]}_{next(_numbers)}"
        setattr(_constants, _names[key], constant)
    return _names[key]


def is_constant(key: tuple[Any, ...]) -> bool:
    """Whether there is a constant `key`."""
    return key in _names


def constants_bytes(kind: str) -> int:
    """The size of all constants whose keys begin with `kind`."""
    return sum(getattr(_constants, name).nbytes for key, name in _names.items() if key[0] == kind)


def named_constant(name: str) -> Tensor:
    """The constant with a name of `constant_name`, in a graph."""
    constant: Tensor = getattr(_constants, name)
    return constant


def graph_constant(kind: str, value: Any, dim: int | None, selection: Selection, device: torch.device) -> torch.Tensor:
    """A constant of an encoding in a graph, see `_name`."""
    return named_constant(_name(kind, value, dim, selection, device))


@constant_in_graph
def _order(value: Any, dim: int | None, selection: Selection) -> tuple[bool, float]:
    """Whether the float32 angle is a product (not a quotient), and the scale of the positions."""
    encoding = resolve.encoding(value, dim, selection)
    return float32_angle.multiplies(encoding), float(encoding.position_scale)


def graph_plan(value: Any, dim: int | None, selection: Selection, device: torch.device) -> torch.Tensor:
    """The plan of an encoding as a constant of the graph, for tensors on `device`."""
    packed_plan = graph_constant("plan", value, dim, selection, device)
    # A graph for CUDA that is exported on a machine without CUDA copies the constant when it runs.
    return packed_plan.to(device) if device.type == "cuda" and packed_plan.device.type != "cuda" else packed_plan
