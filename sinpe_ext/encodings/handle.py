"""Encodings as arguments of graph constants in torch 2.11; later releases do not need this.

In torch 2.11 a function whose result is a constant of the graph (`assume_constant_result`) accepts no objects as
arguments except those registered with pytree as constants: torch.compile keeps such an object and guards on it with ==.
A frozen dataclass cannot be registered, so every Encoding and GridEncoding carries a `Handle`, which is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from .tracing import is_in_graph

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Handle:
    """Wraps an encoding; handles of equal encodings are equal."""

    __slots__ = ("of",)

    def __init__(self, of: Any):
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (other.of is self.of or other.of == self.of)

    def __hash__(self) -> int:
        return hash(self.of)


_Value = TypeVar("_Value")


def with_handle(value: _Value) -> _Value:
    """Gives a new encoding its handle; called in `__new__`, so that copies get their own. An encoding that is created
    while a graph is traced is marked as such, see encodings/in_graph.py."""
    object.__setattr__(value, "_handle", Handle(value))
    if is_in_graph():
        object.__setattr__(value, "_in_graph", True)
    return value


def _unwrapped(value: Any) -> Any:
    return value.of if isinstance(value, Handle) else value


def constant_in_graph() -> Callable[[_Function], _Function]:
    """The decorator `tracing.constant_in_graph`, adapted to this version of torch."""
    import torch
    from torch.utils import _pytree

    from . import tracing

    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12) or not hasattr(_pytree, "register_constant"):
        return tracing.constant_in_graph
    _pytree.register_constant(Handle)
    return by_handle


def by_handle(function: _Function) -> _Function:
    """`constant_in_graph` that passes handles to the compiler in place of encodings."""

    def constant(*arguments: Any, **named: Any) -> Any:
        return function(*map(_unwrapped, arguments), **{name: _unwrapped(value) for name, value in named.items()})

    # The graph names a constant after the function that returned it.
    code = constant.__code__.replace(co_name=function.__code__.co_name)  # type: ignore[attr-defined]
    marked: Any = FunctionType(code, constant.__globals__, code.co_name, None, constant.__closure__)
    marked._dynamo_marked_constant = True

    def call(*arguments: Any, **named: Any) -> Any:
        return marked(
            *[getattr(value, "_handle", value) for value in arguments],
            **{name: getattr(value, "_handle", value) for name, value in named.items()},
        )

    return call  # type: ignore[return-value]
