"""What torch.compile has to be told; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_in_graph(function: _Function) -> _Function:
    """Has torch.compile call a function while it traces, and keep the result as a constant of the graph.

    torch.compiler.assume_constant_result without its import of the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
