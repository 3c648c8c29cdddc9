"""The operators `torch.ops.sinpe_ext.*`: schemas, fake kernels, and the eager twin for devices without kernels.

Schemas stand here and nowhere else; the compiled libraries hold implementations only (a second definition would abort
the process). A device whose library is not loaded runs `reference.py` behind the same operator, so a compiled graph
never sees the difference. The functions of `functional.py` call the twin directly outside of a graph.
"""

from __future__ import annotations

import math
from array import array
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from . import reference
from ._checks import position_range
from ._plan import ARRAYS, FLAG_INTERLEAVED, FLAG_Q0, FLAG_Q1, FLAG_SHARED, HEADER_WORDS, MAGIC, Plan
from ._plan import plan as _plan_of
from .encoding import Encoding

NAMESPACE = "sinpe_ext"  # the only place where the operators' namespace is named

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag,)

# `plan` is always the int64 words of `_plan.Plan`; `dim` repeats its width for the fake kernels, which see no data.
_library.define("table(Tensor plan, SymInt start, SymInt length, int dim, ScalarType dtype) -> Tensor", tags=_TAGS)
_library.define("table_out(Tensor plan, SymInt start, Tensor(a!) out) -> ()", tags=_TAGS)
_library.define("encode(Tensor positions, Tensor plan, int dim, ScalarType dtype) -> Tensor", tags=_TAGS)
_library.define("add(Tensor x, Tensor plan, SymInt start, float scale) -> Tensor", tags=_TAGS)
_library.define(
    "add_out(Tensor x, Tensor plan, Tensor? positions, Tensor? padding_mask, SymInt start, bool positions_are_starts, "
    "float scale, float alpha, Tensor(a!) out) -> ()",
    tags=_TAGS,
)
_library.define("cpu_isa() -> str")

_plans = WeakTensorKeyDictionary()  # a plan tensor -> its plan


@lru_cache(maxsize=256)
def plan_tensor(plan: Plan) -> Tensor:
    """A plan as the int64 tensor that the operators take. Never a fake tensor."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        words = torch.frombuffer(plan.words, dtype=torch.int64)
    _plans[words] = plan
    return words


@lru_cache(maxsize=256)
def plan_words(encoding: Encoding) -> Tensor:
    """The plan of an encoding as the operators take it."""
    return plan_tensor(_plan_of(encoding))


@lru_cache(maxsize=64)
def derivative_constants(encoding: Encoding) -> tuple[Tensor, Tensor, Tensor]:
    """The plan, its partner, and what turns rows of the partner into d encode / d position: 2 pi f of each channel.

    Negative where the channel is a cosine, whose partner, a sine, enters with a minus. Those of the partner are minus
    these.
    """
    plan = _plan_of(encoding)
    signs = [0.0 if entry is None else (-1.0 if entry[1] else 1.0) for entry in plan.channels()]
    slopes = [2 * math.pi * f * sign for f, sign in zip(plan.channel_turns(), signs, strict=True)]
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        return (
            plan_words(encoding),
            plan_tensor(plan.partner()),
            torch.tensor(slopes, dtype=torch.float64, device="cpu"),
        )


def decoded(words: Tensor) -> Plan:
    """The plan that the words of `plan_tensor` hold; also of a copy, such as a saved graph has."""
    plan = _plans.get(words)
    return plan if plan is not None else _unpacked(tuple(words.tolist()))


@lru_cache(maxsize=64)
def _unpacked(words: tuple[int, ...]) -> Plan:
    """The inverse of `Plan.words`, whose layout `_plan` describes."""
    if len(words) < HEADER_WORDS or words[:2] != (MAGIC, len(words)):
        raise RuntimeError("plan: expected the words of a frequency plan, got others; pass _ops.plan_words(encoding)")
    _, _, dim, n0, n1, flags, amplitude, n_osc, start = words[:9]
    columns = [words[HEADER_WORDS + k * n_osc :][:n_osc] for k in range(ARRAYS)]
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
        n_osc=n_osc,
        fractions=tuple((h % 2**64) << 64 | lo % 2**64 for h, lo in zip(high, low, strict=True)),
        whole=whole,
        turns_hi=floats(turns_hi),
        turns_lo=floats(turns_lo),
        words=array("q", words),
    )


def _first(plan, start, rows):
    """The first position; a graph calls with a start that no one has checked."""
    position_range(plan.start + start, rows)
    return plan.start + start


def _eager_table(words, start, length, dim, dtype):
    plan = decoded(words)
    return reference.table(plan, length, _first(plan, start, length), dtype)


def _eager_table_out(words, start, out):
    out.copy_(_eager_table(words, start, out.shape[0], out.shape[1], out.dtype))


def _eager_encode(positions, words, dim, dtype):
    return reference.encode(decoded(words), positions, dtype)


def _eager_add(x, words, start, scale):
    plan = decoded(words)
    return reference.add(plan, x, None, _first(plan, start, x.shape[-2]), scale, 1.0, None)


def _eager_add_out(x, words, positions, padding_mask, start, positions_are_starts, scale, alpha, out):
    plan = decoded(words)
    first = _first(plan, start, x.shape[-2]) if positions is None else 0
    reference.add(plan, x, positions, first, scale, alpha, padding_mask, out)


for _name, _function in {
    "table": _eager_table,
    "table_out": _eager_table_out,
    "encode": _eager_encode,
    "add": _eager_add,
    "add_out": _eager_add_out,
}.items():
    _library.impl(_name, _function, "CompositeExplicitAutograd")


@torch.library.register_fake(f"{NAMESPACE}::table", lib=_library)
def _(plan, start, length, dim, dtype):
    return plan.new_empty((length, dim), dtype=dtype)


@torch.library.register_fake(f"{NAMESPACE}::table_out", lib=_library)
def _(plan, start, out):
    return None


@torch.library.register_fake(f"{NAMESPACE}::encode", lib=_library)
def _(positions, plan, dim, dtype):
    return positions.new_empty((*positions.shape, dim), dtype=dtype)


@torch.library.register_fake(f"{NAMESPACE}::add", lib=_library)
def _(x, plan, start, scale):
    return torch.empty_like(x)


@torch.library.register_fake(f"{NAMESPACE}::add_out", lib=_library)
def _(x, plan, positions, padding_mask, start, positions_are_starts, scale, alpha, out):
    return None


@torch.library.register_vmap(f"{NAMESPACE}::encode", lib=_library)
def _(info, in_dims, positions, plan, dim, dtype):
    return torch.ops.sinpe_ext.encode.default(positions.movedim(in_dims[0], 0).contiguous(), plan, dim, dtype), 0


@torch.library.register_vmap(f"{NAMESPACE}::add", lib=_library)
def _(info, in_dims, x, plan, start, scale):
    return torch.ops.sinpe_ext.add.default(x.movedim(in_dims[0], 0), plan, start, scale), 0
