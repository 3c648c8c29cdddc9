"""Decorators and predicates for torch.compile and torch.jit.trace. Does not import torch until one is used."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_in_graph(function: _Function) -> _Function:
    """Decorator: torch.compile calls the function while tracing and keeps the result as a constant of the graph.

    The same as torch.compiler.assume_constant_result, but without importing the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_tracing_state: Any = None


@constant_in_graph
def is_jit_traced() -> bool:
    """Whether torch.jit.trace, or the ONNX exporter built on it, is recording the operations."""
    global _tracing_state
    if _tracing_state is None:
        import torch

        _tracing_state = torch._C._get_tracing_state
    return _tracing_state() is not None


def is_in_graph() -> bool:
    """Whether this call itself is being traced by torch.compile or a strict export; False in code that Python runs
    while a graph is traced."""
    if "torch" not in sys.modules:
        return False
    import torch

    return torch.compiler.is_dynamo_compiling()


def is_size(value: Any) -> bool:
    """Whether a number is recorded by torch.jit.trace: the size of a tensor, or a number computed from one."""
    return type(value) is not int and hasattr(value, "untyped_storage") and is_jit_traced()


def untraced(function: _Function) -> _Function:
    """Decorator for checks and constants: torch.jit.trace does not record what the function does. Otherwise it would
    warn about every value that is converted to a Python number."""

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
