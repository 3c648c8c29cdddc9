"""What torch.compile and torch.jit.trace have to be told; imports no torch by itself."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_in_graph(function: _Function) -> _Function:
    """Has torch.compile call a function while it traces, and keep the result as a constant of the graph.

    torch.compiler.assume_constant_result without its import of the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_tracing_state: Any = None


@constant_in_graph
def is_jit_traced() -> bool:
    """Whether torch.jit.trace, or the exporter that is built on it, records the operations."""
    global _tracing_state
    if _tracing_state is None:
        import torch

        _tracing_state = torch._C._get_tracing_state
    return _tracing_state() is not None


def is_in_graph() -> bool:
    """Whether this very call is being traced by torch.compile or a strict export; what runs meanwhile is not."""
    if "torch" not in sys.modules:
        return False
    import torch

    return torch.compiler.is_dynamo_compiling()


def is_size(value: Any) -> bool:
    """Whether a number is one that torch.jit.trace records: a size of some tensor, or made of one."""
    return type(value) is not int and hasattr(value, "untyped_storage") and is_jit_traced()


def untraced(function: _Function) -> _Function:
    """Decorator for checks and constants: what the function does is not recorded by torch.jit.trace, which else would
    warn of every number that is looked at."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not is_jit_traced():
            return function(*args, **named)
        import torch

        state = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
        try:
            return function(*args, **named)
        finally:
            torch._C._set_tracing_state(state)  # type: ignore[attr-defined]

    return cast(_Function, call)
