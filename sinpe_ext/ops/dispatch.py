"""`Operator`: how a Python function calls one of the operators of `ops/schemas.py`.

In a graph that is being made, the operator itself. Otherwise the kernel where the compiled backend serves the device
and the eager twin elsewhere, below an autograd function where a gradient is needed and below nothing where none is:
the autograd layer of a torch.library operator costs more than a small call's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..backend import loader
from ..runtime import registration
from ..runtime.no_grad import no_grad
from ..runtime.observers import is_traced
from . import schemas

_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class Operator:
    """One operator.

    Attributes:
        op: torch.ops.sinpe_ext.<name>.default.
        direct: its CPU kernel without the layers above, for plain CPU tensors without a negative bit that need no
            gradient, where `is_traced()` is false and the compiled backend in use. Neither a profiler nor a
            TorchFunctionMode sees such a call; it saves two microseconds of five.
        direct_cuda: the same of its CUDA kernel.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.op = getattr(torch.ops.sinpe_ext, name).default
        self.eager = no_grad(schemas.EAGER[name])
        redispatch = getattr(getattr(self.op, "_handle", None), "redispatch_boxed", self.op.redispatch)
        self.direct: Callable[..., Any] = partial(redispatch, _CPU_KERNEL)
        self.direct_cuda: Callable[..., Any] = partial(redispatch, _CUDA_KERNEL)
        self.function: Any = None

    def run(self, *arguments: Any) -> Any:
        """Without autograd. The first argument's device decides."""
        if loader.compiled(arguments[0].device.type):
            with torch._C._AutoDispatchBelowAutograd():
                return self.op(*arguments)
        return self.eager(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        """With derivatives of any order, where `differentiable` gave them."""
        if is_traced() or arguments[0].device.type == "meta":
            return self.op(*arguments)
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
            return self.function.apply(*arguments)
        return self.run(*arguments)

    def differentiable(self, setup_context: Callable[..., None], backward: Callable[..., Any]) -> None:
        """Gives the operator, and the calls of this class, a derivative; both as torch.library.register_autograd."""

        class Differentiable(torch.autograd.Function):
            # Not torch's own setup_context: it binds the arguments to a signature at each call, 40 microseconds.
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                output = self.run(*arguments)
                setup_context(ctx, arguments, output)
                return output

        Differentiable.backward = staticmethod(backward)  # type: ignore[method-assign]
        Differentiable.__name__ = Differentiable.__qualname__ = f"sinpe_ext_{self.name}"  # seen in an autograd graph
        name = f"{schemas.NAMESPACE}::{self.name}"
        with registration.interrupts_held():
            if self.function is None:  # else it was registered by an import that was cut short further on
                torch.library.register_autograd(name, backward, setup_context=setup_context, lib=schemas._library)
            self.function = Differentiable


TABLE, ENCODE, ADD, ADD_OUT = Operator("table"), Operator("encode"), Operator("add"), Operator("add_out")
DROPOUT, ADD_DROPOUT, ROW_DOTS = Operator("dropout"), Operator("add_dropout"), Operator("row_dots")
EMBED, EMBED_BACKWARD = Operator("embed"), Operator("embed_backward")
