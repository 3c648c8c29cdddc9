"""The operators `torch.ops.sinpe_ext.*`: schemas, fake kernels, and the eager twin for devices without kernels.

Schemas stand here and nowhere else; the compiled libraries hold implementations only (a second definition would abort
the process). A device whose library is not loaded runs `reference.py` behind the same operator, so a compiled graph
never sees the difference. The functions of `functional.py` call the twin directly outside of a graph.
"""

from __future__ import annotations

from functools import cache, lru_cache

import torch

from . import reference
from ._plan import Plan
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

_plans: dict[int, Plan] = {}  # address of a plan tensor's words -> its plan; plan tensors live as long as the process


@cache  # a plan tensor's address identifies it, so none may die
def plan_tensor(plan: Plan) -> torch.Tensor:
    """A plan as the int64 tensor that the operators take. Never a fake tensor."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        words = torch.frombuffer(plan.words, dtype=torch.int64)
    _plans[words.data_ptr()] = plan
    return words


@lru_cache(maxsize=256)
def plan_words(encoding: Encoding) -> torch.Tensor:
    """The plan of an encoding as the operators take it."""
    return plan_tensor(_plan_of(encoding))


def _decoded(words: torch.Tensor) -> Plan:
    plan = _plans.get(words.data_ptr())
    if plan is None:
        raise RuntimeError("plan: not made by this process; build it with sinpe_ext._ops.plan_words(encoding)")
    return plan


def _eager_table(plan, start, length, dim, dtype):
    decoded = _decoded(plan)
    return reference.table(decoded, length, decoded.start + start, dtype)


def _eager_table_out(plan, start, out):
    out.copy_(_eager_table(plan, start, out.shape[0], out.shape[1], out.dtype))


def _eager_encode(positions, plan, dim, dtype):
    return reference.encode(_decoded(plan), positions, dtype)


def _eager_add(x, plan, start, scale):
    decoded = _decoded(plan)
    return reference.add(decoded, x, None, decoded.start + start, scale, 1.0, None)


def _eager_add_out(x, plan, positions, padding_mask, start, positions_are_starts, scale, alpha, out):
    decoded = _decoded(plan)
    reference.add(decoded, x, positions, decoded.start + start, scale, alpha, padding_mask, out)


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
