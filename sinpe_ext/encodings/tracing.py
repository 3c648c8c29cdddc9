"""Constants of a torch.compile graph, and the refusal of torch.jit.trace. Does not import torch until it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_in_graph(function: _Function) -> _Function:
    """Decorator: torch.compile calls the function while tracing and keeps the result as a constant of the graph.

    The same as torch.compiler.assume_constant_result, but without importing the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


NO_TRACE = (
    "torch.jit.trace is not supported, because a trace keeps sizes, starts and dropout as they are now; use "
    "torch.export.export or torch.compile, and for ONNX torch.onnx.export(..., dynamo=True)"
)

_tracing_state: Any = None


@constant_in_graph
def refuse_jit_trace() -> None:
    """Raises RuntimeError if torch.jit.trace, or the ONNX exporter built on it, is recording the operations."""
    global _tracing_state
    if _tracing_state is None:
        import torch

        _tracing_state = torch._C._get_tracing_state
    if _tracing_state() is not None:
        raise RuntimeError(NO_TRACE)


def refuse_in_graph(what: str) -> None:
    """Raises RuntimeError if this call itself is being traced by torch.compile or a strict export; not in code that
    Python runs while a graph is traced. Without fullgraph=True torch then runs the calling function uncompiled."""
    if "torch" not in sys.modules:
        return
    import torch

    if torch.compiler.is_dynamo_compiling():
        raise RuntimeError(
            f"{what}: expected one that is made outside of a compiled function, got a call inside of it; make it "
            "before, as in __init__ of a module, or pass the name of a convention as encoding="
        )


# Modules whose functions a user may compile by themselves.
PUBLIC = "functional", "positions", "modules.layers", "modules.timestep"


def run_uncompiled(package: str = __name__.partition(".")[0]) -> None:
    """Marks the functions of a package's imported modules so that torch.compile does not compile them one by one.

    It would try to where it gave up the function that calls this library, as around a graph break that it cannot resume
    from or under torch.func, and in their middle it would meet constants that it must not see. Functions that are
    called in a function that is compiled are traced as before, and those of `PUBLIC` are not marked.
    """
    import torch

    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        return
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(f"{package}.") and name.partition(".")[2] not in PUBLIC:
            for code in _codes_of(vars(module), name):
                frames.set_code_exec_strategy(code, strategy)


def _codes_of(members: Any, module: str) -> Iterator[CodeType]:
    """The code of the functions and methods that a module defines, with the functions inside of them."""
    for member in list(members.values()):
        if isinstance(member, type) and member.__module__ == module:
            yield from _codes_of(vars(member), module)
        while hasattr(member, "__wrapped__") or isinstance(member, (staticmethod, classmethod, property)):
            if isinstance(member, FunctionType):
                yield from _nested(member.__code__)
            member = member.fget if isinstance(member, property) else member.__wrapped__
        if isinstance(member, FunctionType) and member.__module__ == module:
            yield from _nested(member.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
