"""What a module holds beside its code: copied for trials, compared after them, and changed on purpose.

A trial shows what a forward does with the values that it finds today. What it writes must not reach the user's module,
and what it reads may be changed tomorrow: both are looked for here.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

INTERNAL = frozenset(vars(nn.Module())) - {"_parameters", "_buffers"}  # hooks, children, the mode
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, types.FunctionType)
MOST = 256  # values inside of objects that are changed one after the other


def own(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of what code could write to: tensors, containers, generators and plain objects; the rest is shared.

    memo: what was copied, by identity; holds the originals too, so that no identity is given out twice.
    """
    if id(value) in memo:
        return memo[id(value)][1]
    made: Any
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter):
            return value  # quantised, distributed, not initialised: no module of those is served
        with torch.inference_mode(False), torch.no_grad():
            made = value.detach().clone()
        if type(value) is nn.Parameter:
            made = nn.Parameter(made, requires_grad=value.requires_grad)
        elif value.requires_grad:
            made.requires_grad_()
    elif isinstance(value, torch.Generator):
        made = torch.Generator(value.device)
        made.set_state(value.get_state())
    elif isinstance(value, dict):
        made = copy.copy(value)
        memo[id(value)] = (value, made)
        made.update({key: own(item, memo) for key, item in value.items()})
    elif type(value) is list:
        made = []
        memo[id(value)] = (value, made)
        made.extend(own(item, memo) for item in value)
    elif type(value) in (tuple, set, frozenset):
        made = type(value)([own(item, memo) for item in value])
    elif _is_object(value):
        try:
            made = copy.copy(value)
            memo[id(value)] = (value, made)
            for name, item in vars(value).items():
                made.__dict__[name] = own(item, memo)
        except Exception:  # an object that refuses to be copied is shared
            made = value
    else:
        return value
    memo[id(value)] = (value, made)
    return made


def _is_object(value: Any) -> bool:
    """An instance of someone's class that keeps attributes, such as a configuration."""
    other = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
    return hasattr(value, "__dict__") and not isinstance(value, other)


def same(a: Any, b: Any, without: tuple[str, ...] = (), seen: set[tuple[int, int]] | None = None) -> bool:
    """Whether two states hold equal values; without: names of a module's own attributes that may differ."""
    seen = set() if seen is None else seen
    if a is b or (id(a), id(b)) in seen:
        return True
    seen.add((id(a), id(b)))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    if type(a) is not type(b):
        return False
    if isinstance(a, nn.Module):
        first, second = ({**_held(module), "": module._modules} for module in (a, b))
        for name in without:
            first.pop(name, None), second.pop(name, None)
        return same(first, second, (), seen)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], (), seen) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, (), seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Generator):
        return torch.equal(a.get_state(), b.get_state())
    if _is_object(a):
        return same(vars(a), vars(b), (), seen)
    try:
        return bool(a == b)
    except Exception:
        return False


def _held(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes, parameters and buffers under their names."""
    own_ = {key: value for key, value in vars(module).items() if key not in INTERNAL | {"_parameters", "_buffers"}}
    return {**module._parameters, **module._buffers, **own_}


def settings(module: nn.Module, without: tuple[str, ...] = ()) -> tuple[tuple[str, Any], ...]:
    """The plain values that a forward can read from a module or its classes, by name."""
    found: dict[str, Any] = {}
    for made in reversed(type(module).__mro__[: type(module).__mro__.index(nn.Module)]):
        found.update({key: value for key, value in vars(made).items() if not isinstance(value, types.FunctionType)})
    found.update(vars(module))
    return tuple(
        (key, value)
        for key, value in found.items()
        if _simple(value)
        and key not in INTERNAL
        and key not in without
        and not key.startswith(("__", "_is_", "_sinpe"))
    )


def _simple(value: Any) -> bool:
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_simple, value)))


def inner(module: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Paths to the values that `settings` does not hold: tensors, and numbers inside of containers and objects."""
    seen: set[int] = set()

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, Tensor) or (len(path) > 1 and isinstance(value, (bool, int, float))):
            yield path
        elif id(value) not in seen and (isinstance(value, (dict, list)) or _is_object(value)):
            seen.add(id(value))
            items = _inside(value)
            for key, item in items.items() if isinstance(items, dict) else enumerate(items):
                yield from walk(item, (*path, key))

    for name, value in _held(module).items():
        yield from walk(value, (name,))


def _inside(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else vars(value)


def changed(module: nn.Module, path: tuple[Any, ...]) -> None:
    """Puts another value in a place of a module, which is a twin."""
    place: Any = next((held for held in (module._parameters, module._buffers) if path[0] in held), vars(module))
    for key in path[:-1]:
        place = _inside(place[key])
    value = place[path[-1]]
    if not isinstance(value, Tensor):
        place[path[-1]] = other(value)
    elif value.dtype == torch.bool:
        place[path[-1]] = ~value
    else:
        made = value.detach() * 2 + 1
        place[path[-1]] = nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made


def other(value: Any) -> Any:
    """Another number of the same type."""
    return not value if isinstance(value, bool) else value * 2 + 1
