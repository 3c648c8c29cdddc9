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
from torch import Tensor, nn

from . import torch_state
from .backend import loader, registration
from .torch_state import NOT_INTERCEPTED

NAMESPACE = "sinpe_ext"
OPERATORS: dict[str, Operator] = {}  # by name

_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_PLAIN = Tensor, nn.Parameter
_is_functional = torch._is_functional_tensor  # type: ignore[attr-defined]
is_batched = torch._C._functorch.is_legacy_batchedtensor  # of autograd.grad(is_grads_batched=True)
_is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


class Operator:
    """One operator, called like a function with the operands of its schema.

    A call chooses what computes the result:

    - the registered operator, torch.ops.sinpe_ext.<name>, while a graph is traced and for tensors without data;
    - an autograd.Function around what follows, if a gradient is needed: the autograd layer of a torch.library operator
      costs more than the arithmetic of a small call;
    - the kernel, if the compiled backend serves the device of the first operand: without torch's dispatcher, which
      would take two of five microseconds, if no operand needs it;
    - otherwise the reference implementation.

    Args:
        schema: as for torch.library.Library.define.
        reference: reference implementation, for any device.
        fake: as for torch.library.register_fake.
        vmap: as for torch.library.register_vmap, or None.
        derivative: (setup_context, backward) as for torch.library.register_autograd, or None: no gradient.
        tags: tags in addition to pt2_compliant_tag.
    Attributes:
        op: torch.ops.sinpe_ext.<name>.default.
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
        self._cpu_kernel: Callable[..., Any] = partial(redispatch, _CPU_KERNEL)
        self._cuda_kernel: Callable[..., Any] = partial(redispatch, _CUDA_KERNEL)
        # The places of tensors among the operands; a plan is never differentiated and always an ordinary tensor.
        listed = enumerate(self.op._schema.arguments)
        self._tensors = [k for k, a in listed if "Tensor" in str(a.type) and a.name != "plan"]
        self._function: Any = None if derivative is None else self._autograd_function(*derivative)

    def __call__(self, *operands: Any) -> Any:
        """Calls the operator, differentiable to any order if it has a derivative."""
        state = torch_state.read()
        if state.traced or state.fx_tracing or operands[0].is_meta:
            return self.op(*operands)
        needs_dispatcher = state is not NOT_INTERCEPTED or _is_profiled()
        may_learn = self._function is not None and torch.is_grad_enabled()
        for k in self._tensors:
            tensor = operands[k]
            if tensor is None:
                continue
            if is_batched(tensor):  # calls the operator once per sample
                return self.op(*operands)
            if may_learn and tensor.requires_grad:
                return self._function.apply(*operands)
            # The dispatcher resolves the negative bit, zeros without memory, and functional tensors.
            if type(tensor) not in _PLAIN or tensor.is_neg() or tensor._is_zerotensor() or _is_functional(tensor):
                needs_dispatcher = True
        on_cpu = operands[0].is_cpu
        device_type = "cpu" if on_cpu else operands[0].device.type
        if not loader.choices.get(device_type) and not loader.compiled(device_type):
            return self.reference(*operands)
        if needs_dispatcher:
            with torch._C._AutoDispatchBelowAutograd():
                return self.op(*operands)
        return self._cpu_kernel(*operands) if on_cpu else self._cuda_kernel(*operands)

    def _autograd_function(self, setup_context: Callable[..., None], backward: Callable[..., Any]) -> Any:
        """The autograd.Function for calls of this class; register_autograd serves calls of the operator itself."""

        class Differentiable(torch.autograd.Function):
            # No separate setup_context: with one, torch binds the arguments to a signature at each call, which takes 40
            # microseconds.
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                output = self(*arguments)  # gradients are disabled in here
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
