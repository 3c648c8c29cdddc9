"""Trials of a plain module's forward: what it gives, whether it keeps a state, and which of its values it reads."""

from __future__ import annotations

import itertools
import math
import types
from typing import Any

import torch
from torch import Tensor

from .dropin import twin
from .families import number
from .module_state import MOST, changed, inner, other, same

CLOSE = 1e-4  # relative: how well a factor is read off float32 values; the exact one stands in the module
BATCH, LENGTH = 3, 5  # of the first trials; different, so that axes can be told apart
PADDING = (0, 1, 2, 3, 5, 100, 103, 151643, 21128, 29999, 32000, 50256, 50257, 128001, 250001, -1, -100)

Factor = float | tuple[str, float]  # a number, or the name of an attribute and the power of it


class Unclear(Exception):
    """What the forward does is not what a drop-in can do."""


def run(tried: Any, x: Tensor) -> tuple[Tensor | None, str]:
    """Its output on a twin, which may convert or replace its table; None and the reason where there is none."""
    try:
        out = twin(tried, as_it_is=True).forward(x.clone())
    except Exception as problem:
        return None, f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return (out, "") if isinstance(out, Tensor) else (None, f"it gives {type(out).__name__}")


def must(tried: Any, x: Tensor) -> Tensor:
    out, problem = run(tried, x)
    if out is None:
        raise Unclear(f"its forward could not be run on x of shape {tuple(x.shape)}: {problem}")
    return out


def same_values(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.shape == b.shape and torch.equal(a, b)


def inputs_of(tried: Any, x: Tensor) -> list[Tensor]:
    """Inputs of the shape, dtype and device of x: noise of several sizes, or ids, those of padding among them."""
    generator = torch.Generator().manual_seed(2)
    if x.is_floating_point():
        noise = [torch.randn(x.shape, generator=generator) * size for size in (0.5, 1.0, 100.0, 1e4)]
        return [part.to(x) for part in (*noise, torch.ones(x.shape), torch.full(x.shape, math.nan))]
    code = getattr(type(tried).forward, "__code__", None)
    words = [*vars(tried).values(), *(code.co_consts if isinstance(code, types.CodeType) else ())]
    named = {word for word in words if type(word) is int and abs(word) < 2**31}
    ids = torch.tensor(sorted({*PADDING, *named}))
    # Each of them somewhere, beside ids of all sizes.
    found = [torch.randint(0, most, x.shape, generator=generator) for most in (3, 50, 2**16)]
    for start in range(0, len(ids), max(x.numel() // 2, 1)):
        some = found[1].flatten().clone()
        part = ids[start : start + max(x.numel() // 2, 1)]
        some[torch.randperm(len(some), generator=generator)[: len(part)]] = part
        found.append(some.reshape(x.shape))
    return [part.to(x) for part in found]


def stateless(tried: Any, x: Tensor) -> None:
    """Raises Unclear where a call leaves anything behind: the next one could differ."""
    for training in (False, True):
        called = twin(tried)
        for module in called.modules():
            module.__dict__["training"] = training and type(module).__name__ != "Dropout"
        before = twin(called)
        first, second = called.forward(x.clone()), called.forward(x.clone())
        if not same(before, called):
            raise Unclear("its forward changes the module: it keeps a state from call to call")
        if not training and not same(first, second):
            raise Unclear("its forward gives something else the second time")


def fixed_inside(tried: Any, x: Tensor, known: tuple[str | None, ...]) -> None:
    """Raises Unclear where the output depends on tensors other than those known, or on numbers inside of objects."""
    base = must(tried, x)
    paths = [path for path in inner(tried) if path[0] not in known]
    if len(paths) > MOST:
        raise Unclear(f"it holds {len(paths)} values, too many to try which of them its forward reads")
    for path in paths:
        changed_ = twin(tried)
        changed(changed_, path)
        out, _ = run(changed_, x)
        if out is not None and not same_values(out, base):
            raise Unclear(f"its output depends on `{'.'.join(map(str, path))}`, which a drop-in would not follow")


def number_of(module: Any, factor: Factor) -> float:
    """The value of a factor today."""
    if not isinstance(factor, tuple):
        return factor
    name, power = factor
    value: float = getattr(module, name)
    return value if power == 1 else math.sqrt(value) if power > 0 else 1 / math.sqrt(value)


def live(tried: Any, scale: float, factor: Any, x: Tensor, rows: Tensor) -> tuple[Factor, Any, tuple[str, ...]]:
    """The factors of x and of the rows, by the name of the attribute that they are read from, and those names."""
    names: list[str] = []
    found: list[Factor] = [scale, factor]
    for name, value in vars(tried).items():
        if not number(value) or value <= 0:
            continue
        changed_ = twin(tried)
        changed_.__dict__[name] = other(value)
        out, _ = run(changed_, x)
        if out is None or out.shape != x.shape or same_values(out, must(tried, x)):
            continue
        ways = [[now, *_powers(tried, name, now)] for now in found]
        for pair in itertools.product(*ways):
            a, b = (getattr(changed_, now) if isinstance(now, str) else number_of(changed_, now) for now in pair)
            expected = a * x.double() + float(b) * rows.double()
            size = max(1.0, abs(a), abs(float(b)))
            if float((out.double() - expected).abs().max()) <= CLOSE * 4 * size:
                found = list(pair)
                names.append(name)
                break
    return found[0], found[1], tuple(names)


def _powers(tried: Any, name: str, now: Any) -> list[Factor]:
    if not isinstance(now, (int, float)):
        return []
    powers: list[Factor] = [(name, 1.0), (name, 0.5), (name, -0.5)]
    return [way for way in powers if math.isclose(number_of(tried, way), now, rel_tol=1e-9)]
