"""`Operator`: definition of one of torch.ops.sinpe_ext.*, and its call from Python.

The files of operations/ define the operators, each with its schema, reference implementation (`reference/`), fake
kernel, vmap rule and derivative. The compiled libraries contain implementations only: a second definition of an
operator would abort the process. No operator is on an autocast list: positions, frequencies and x keep their dtypes
under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .backend import loader, registration
from .torch_state import is_traced

NAMESPACE = "sinpe_ext"
OPERATORS: dict[str, Operator] = {}  # by name

_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class Operator:
    """One operator.

    While a graph is traced, a call dispatches to the registered operator. Otherwise it runs the kernel if the compiled
    backend serves the device, else the reference implementation. It does so inside an autograd.Function if a gradient
    is needed, and directly if not: the autograd layer of a torch.library operator costs more than the arithmetic of a
    small call.

    Args:
        schema: as for torch.library.Library.define.
        reference: reference implementation, for any device.
        fake: as for torch.library.register_fake.
        vmap: as for torch.library.register_vmap, or None.
        derivative: (setup_context, backward) as for torch.library.register_autograd, or None.
        tags: tags in addition to pt2_compliant_tag.
    Attributes:
        op: torch.ops.sinpe_ext.<name>.default.
        direct: the CPU kernel without the dispatch layers above it, for plain CPU tensors without the negative bit that
            need no gradient, while `is_traced()` is false and the compiled backend is in use. Such a call is invisible
            to profilers and TorchFunctionModes; it saves two of five microseconds.
        direct_cuda: the same for the CUDA kernel.
    """

    def __init__(
        self,
        schema: str,
        reference: Callable[..., Any],
        fake: Callable[..., Any],
        vmap: Callable[..., Any] | None = None,
        derivative: tuple[Callable[..., None], Callable[..., Any]] | None = None,
        tags: tuple[torch.Tag, ...] = (),
    ) -> None:
        self.name = schema[: schema.index("(")]
        library = registration.once("library", lambda: registration.fragment(NAMESPACE))

        def register() -> None:
            name = f"{NAMESPACE}::{self.name}"
            library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
            library.impl(self.name, reference, "CompositeExplicitAutograd")
            torch.library.register_fake(name, fake, lib=library)
            if vmap is not None:
                torch.library.register_vmap(name, vmap, lib=library)
            if derivative is not None:
                setup_context, backward = derivative
                torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)

        registration.once(self.name, register)
        OPERATORS[self.name] = self
        self.op = getattr(torch.ops.sinpe_ext, self.name).default
        self.reference = torch.no_grad()(reference)
        redispatch = getattr(getattr(self.op, "_handle", None), "redispatch_boxed", self.op.redispatch)
        self.direct: Callable[..., Any] = partial(redispatch, _CPU_KERNEL)
        self.direct_cuda: Callable[..., Any] = partial(redispatch, _CUDA_KERNEL)
        self._function: Any = None if derivative is None else self._autograd_function(*derivative)

    def run(self, *arguments: Any) -> Any:
        """Runs the kernel or the reference, chosen by the device of the first argument, without autograd."""
        if loader.compiled(arguments[0].device.type):
            with torch._C._AutoDispatchBelowAutograd():
                return self.op(*arguments)
        return self.reference(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the operator, differentiable to any order."""
        if is_traced() or arguments[0].device.type == "meta":
            return self.op(*arguments)
        if torch.is_grad_enabled():
            for a in arguments:
                if isinstance(a, Tensor) and a.requires_grad:
                    return self._function.apply(*arguments)
        return self.run(*arguments)

    def _autograd_function(self, setup_context: Callable[..., None], backward: Callable[..., Any]) -> Any:
        """The autograd.Function for calls of this class; register_autograd serves calls of the operator itself."""

        class Differentiable(torch.autograd.Function):
            # No separate setup_context: with one, torch binds the arguments to a signature at each call, which takes 40
            # microseconds.
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                output = self.run(*arguments)
                setup_context(ctx, arguments, output)
                return output

        Differentiable.backward = staticmethod(backward)  # type: ignore[method-assign]
        Differentiable.__name__ = Differentiable.__qualname__ = f"sinpe_ext_{self.name}"  # shown as grad_fn
        return Differentiable


def one_by_one(name: str) -> Callable[..., Any]:
    """A vmap rule that calls the operator once per sample, so that a sample's dropout mask is the same as without
    vmap."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        op = OPERATORS[name].op
        # For a list argument vmap passes a list of in_dims, all None here.
        dims = [None if isinstance(d, (list, tuple)) else d for d in in_dims]
        results = [
            op(*(a if d is None else a.select(d, k) for a, d in zip(arguments, dims, strict=True)))
            for k in range(info.batch_size)
        ]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])
        return torch.stack(results), 0

    return rule
