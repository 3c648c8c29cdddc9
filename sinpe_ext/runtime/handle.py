"""What an encoding looks like to torch 2.11's compiler; nothing but that release needs it.

There a function that is a constant of the graph takes no object as an argument, except what pytree knows as a constant:
torch.compile then keeps the object, and compares the next one with it by ==. A frozen dataclass is never one, so every
Encoding and GridEncoding carries a handle that is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from .tracing import is_in_graph

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Handle:
    """Stands for an encoding, and is equal to the handles of equal ones."""

    __slots__ = ("of",)

    def __init__(self, of: Any):
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (other.of is self.of or other.of == self.of)

    def __hash__(self) -> int:
        return hash(self.of)


_Value = TypeVar("_Value")


def with_handle(value: _Value) -> _Value:
    """A new encoding with its handle: in __new__, so that copies have their own. One that is made while a graph is
    traced says so, see encodings/in_graph.py."""
    object.__setattr__(value, "_handle", Handle(value))
    if is_in_graph():
        object.__setattr__(value, "_in_graph", True)
    return value


def _unwrapped(value: Any) -> Any:
    return value.of if isinstance(value, Handle) else value


def constant_in_graph() -> Callable[[_Function], _Function]:
    """`tracing.constant_in_graph` for this torch."""
    import torch
    from torch.utils import _pytree

    from . import tracing

    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12) or not hasattr(_pytree, "register_constant"):
        return tracing.constant_in_graph
    _pytree.register_constant(Handle)
    return by_handle


def by_handle(function: _Function) -> _Function:
    """A constant of the graph, called with handles in place of encodings."""

    def constant(*arguments: Any, **named: Any) -> Any:
        return function(*map(_unwrapped, arguments), **{name: _unwrapped(value) for name, value in named.items()})

    # A graph calls a constant by the name of the function that gave it.
    code = constant.__code__.replace(co_name=function.__code__.co_name)  # type: ignore[attr-defined]
    marked: Any = FunctionType(code, constant.__globals__, code.co_name, None, constant.__closure__)
    marked._dynamo_marked_constant = True

    def call(*arguments: Any, **named: Any) -> Any:
        return marked(
            *[getattr(value, "_handle", value) for value in arguments],
            **{name: getattr(value, "_handle", value) for name, value in named.items()},
        )

    return call  # type: ignore[return-value]
