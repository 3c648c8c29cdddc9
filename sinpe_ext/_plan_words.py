"""Plans as the int64 tensors that operators take, and back.

A plan tensor is a constant of a graph; a saved graph has a copy of it, which `decoded` reads again.
"""

from __future__ import annotations

import math
from array import array
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ._plan import ARRAYS, FLAG_INTERLEAVED, FLAG_Q0, FLAG_Q1, FLAG_SHARED, FLAGS_WORD, HEADER_WORDS, MAGIC, Plan
from ._plan import plan as _plan_of
from .encoding import Encoding

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


def partner(words: Tensor) -> Tensor:
    """The words of the partner plan (`Plan.partner`), as a new tensor."""
    exchanged = words.clone()
    exchanged[FLAGS_WORD] ^= FLAG_Q0 | FLAG_Q1
    return exchanged


def slopes(plan: Plan) -> Tensor:
    """What turns a row of the partner plan into d encode / d position: 2 pi f of each channel, float64, (dim,).

    Negative where the channel is a cosine, whose partner, a sine, enters with a minus. Those of the partner are minus
    these.
    """
    signs = [0.0 if entry is None else (-1.0 if entry[1] else 1.0) for entry in plan.channels()]
    values = [2 * math.pi * f * sign for f, sign in zip(plan.channel_turns(), signs, strict=True)]
    return torch.tensor(values, dtype=torch.float64, device="cpu")


@lru_cache(maxsize=256)
def derivative_constants(plan: Plan) -> tuple[Tensor, Tensor]:
    """The partner's words and the slopes of a plan."""
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        return plan_tensor(plan.partner()), slopes(plan)


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
