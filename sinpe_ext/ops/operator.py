"""`Operator`: one of torch.ops.sinpe_ext.*, and how a Python function calls it.

rows.py, embed.py, plan_words.py and seed_tensor.py define them: of each the schema, what computes it where no kernel
does (`reference/`), what a fake tensor gives, a rule for vmap and the derivative. The compiled libraries hold
implementations only: a second definition would abort the process. None is on an autocast list: positions, frequencies
and x keep their dtypes under autocast.
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

NAMESPACE = "sinpe_ext"
OPERATORS: dict[str, Operator] = {}  # by their names

_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class Operator:
    """One operator.

    In a graph that is being made it is called itself. Otherwise the kernel where the compiled backend serves the device
    and the reference elsewhere, below an autograd function where a gradient is needed and below nothing where none is:
    the autograd layer of a torch.library operator costs more than a small call's arithmetic.

    Args:
        schema: as torch.library.Library.define takes it.
        reference: computes it on any device.
        fake: what torch.library.register_fake takes.
        vmap: what torch.library.register_vmap takes, or None.
        derivative: (setup_context, backward) of torch.library.register_autograd, or None.
        tags: besides pt2_compliant_tag.
    Attributes:
        op: torch.ops.sinpe_ext.<name>.default.
        direct: its CPU kernel without the layers above, for plain CPU tensors without a negative bit that need no
            gradient, where `is_traced()` is false and the compiled backend in use. Neither a profiler nor a
            TorchFunctionMode sees such a call; it saves two microseconds of five.
        direct_cuda: the same of its CUDA kernel.
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
        self.reference = no_grad(reference)
        redispatch = getattr(getattr(self.op, "_handle", None), "redispatch_boxed", self.op.redispatch)
        self.direct: Callable[..., Any] = partial(redispatch, _CPU_KERNEL)
        self.direct_cuda: Callable[..., Any] = partial(redispatch, _CUDA_KERNEL)
        self._function: Any = None if derivative is None else self._autograd_function(*derivative)

    def run(self, *arguments: Any) -> Any:
        """Without autograd. The first argument's device decides."""
        if loader.compiled(arguments[0].device.type):
            with torch._C._AutoDispatchBelowAutograd():
                return self.op(*arguments)
        return self.reference(*arguments)

    def __call__(self, *arguments: Any) -> Any:
        """With derivatives of any order."""
        if is_traced() or arguments[0].device.type == "meta":
            return self.op(*arguments)
        if torch.is_grad_enabled():
            for a in arguments:
                if isinstance(a, Tensor) and a.requires_grad:
                    return self._function.apply(*arguments)
        return self.run(*arguments)

    def _autograd_function(self, setup_context: Callable[..., None], backward: Callable[..., Any]) -> Any:
        """The derivative for calls of this class, as register_autograd has it for calls of the operator."""

        class Differentiable(torch.autograd.Function):
            # Not torch's own setup_context: it binds the arguments to a signature at each call, 40 microseconds.
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                output = self.run(*arguments)
                setup_context(ctx, arguments, output)
                return output

        Differentiable.backward = staticmethod(backward)  # type: ignore[method-assign]
        Differentiable.__name__ = Differentiable.__qualname__ = f"sinpe_ext_{self.name}"  # seen in an autograd graph
        return Differentiable


def one_by_one(name: str) -> Callable[..., Any]:
    """A rule for vmap, one call for each sample: a mask counts the elements of a sample, as it does without vmap."""

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        op = OPERATORS[name].op
        # vmap gives a list argument a list of entries, all None here.
        dims = [None if isinstance(d, (list, tuple)) else d for d in in_dims]
        results = [
            op(*(a if d is None else a.select(d, k) for a, d in zip(arguments, dims, strict=True)))
            for k in range(info.batch_size)
        ]
        return torch.stack(results), 0

    return rule
