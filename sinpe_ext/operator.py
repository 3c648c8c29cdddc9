"""`Operator`: definition of one of torch.ops.sinpe_ext.*, and its call from Python.

The files of operations/ define the operators, each with the record of its operands (`records.py`), reference
implementation (`reference/`), fake kernel, vmap rule and derivative. The compiled libraries contain implementations
only: a second definition of an operator would abort the process. No operator is on an autocast list: positions,
frequencies and x keep their dtypes under autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from . import torch_state
from .backend import loader, registration
from .torch_state import NOT_INTERCEPTED, TorchState

NAMESPACE = "sinpe_ext"
OPERATORS: dict[str, Operator] = {}  # by name

_CPU_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_CUDA_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_PLAIN = Tensor, nn.Parameter
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_functional = torch._is_functional_tensor  # type: ignore[attr-defined]
_is_profiled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


# The types of operands, as a record is annotated with them, and in the schema.
_TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "Size": "SymInt",
    "int": "int",
    "bool": "bool",
    "float": "float",
    "Sequence[Size]": "SymInt[]",
    "torch.dtype": "ScalarType",
}


class Unsaved(NamedTuple):
    """What a derivative gets of a tensor that is not saved for it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Derivative(NamedTuple):
    """The derivative of an operator.

    Attributes:
        gradients: called with the operands, a record of the same type that says which of them need a gradient, and the
            gradient of each result; returns the gradients by the names of the operands. It may consist of
            differentiable operations only.
        values: called with that record of what needs a gradient; the names of the tensors whose values `gradients`
            reads. These are saved, of the other tensors it gets an `Unsaved`. So another tensor may be changed between
            forward and backward. The seed, which nobody else has, is never saved but kept.

    A call that is repeated in C saves as many tensors, because activation checkpointing may repeat a call in the other
    way.
    """

    gradients: Callable[..., dict[str, Tensor | None]]
    values: Callable[[Any], tuple[str, ...]]


class Operator:
    """One operator, called with a record of operands, and with `out` if it writes to one.

    The fields of the record are the arguments in the schema. The structs of the C interface
    (csrc/include/sinpe/sinpe.h) use the same names; the plan is a separate argument there, and what concerns dropout a
    struct of its own.

    A call chooses what computes the result:

    - the registered operator, torch.ops.sinpe_ext.<name>, while a graph is traced and for tensors without data;
    - an autograd.Function around what follows, if a gradient is needed: the autograd layer of a torch.library operator
      costs more than the arithmetic of a small call, and has no operators that write to a tensor;
    - the kernel, if the compiled backend serves the device of the first operand: without torch's dispatcher, which
      would take two of five microseconds, if no operand needs it;
    - otherwise the reference implementation.

    Args:
        name: name of the operator.
        record: a NamedTuple, the operands. Tensors come first.
        returns: "Tensor", "(Tensor, Tensor)", or "()" for an operator that writes to one more operand, `out`.
        reference: reference implementation, for any device; called with the record, and with out.
        fake: the same for tensors without data, as for torch.library.register_fake; None for an operator that returns
            nothing.
        vmap: called with the operator and what torch.library.register_vmap passes on; None: not supported.
        derivative: None: no gradient.
        into: the operator that writes the same result to `out`.
        tags: tags in addition to pt2_compliant_tag.
    Attributes:
        op: torch.ops.sinpe_ext.<name>.default.
        reference: the reference implementation, called with the operands one by one.
    """

    def __init__(
        self,
        name: str,
        record: Any,
        returns: str = "Tensor",
        *,
        reference: Callable[..., Any],
        fake: Callable[..., Any] | None = None,
        vmap: Callable[..., Any] | None = None,
        derivative: Derivative | None = None,
        into: Operator | None = None,
        tags: tuple[torch.Tag, ...] = (),
    ) -> None:
        self.name, self.record_type, self._into = name, record, into
        self._index = {field: k for k, field in enumerate(record._fields)}
        self._derivative: Any = derivative
        self._saved_for: dict[tuple[bool, ...], tuple[list[int], list[int]]] = {}  # see `_kept`
        types = [_TYPES[getattr(hint, "__forward_arg__", hint)] for hint in record.__annotations__.values()]
        self._count, self._tensor_count = len(types), sum(kind.startswith("Tensor") for kind in types)
        arguments = list(zip(types, record._fields, strict=True))
        if returns == "()":
            arguments.append(("Tensor(a!)", "out"))
        schema = f"{name}({', '.join(map(' '.join, arguments))}) -> {returns}"
        # The places of tensors among the operands; a plan is never differentiated and always an ordinary tensor.
        listed = enumerate(arguments)
        self._tensors = [k for k, (kind, field) in listed if kind.startswith("Tensor") and field != "plan"]
        library = registration.once("library", lambda: registration.fragment(NAMESPACE))

        def register() -> None:
            of_torch = f"{NAMESPACE}::{name}"
            library.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
            library.impl(name, self._positional(reference), "CompositeExplicitAutograd")
            torch.library.register_fake(of_torch, self._positional(fake or _nothing), lib=library)
            if vmap is not None:
                torch.library.register_vmap(of_torch, partial(vmap, self), lib=library)
            if derivative is not None:
                setup, backward = self._setup_context, self._backward
                torch.library.register_autograd(of_torch, backward, setup_context=setup, lib=library)

        registration.once(name, register)
        OPERATORS[name] = self
        self.op = getattr(torch.ops.sinpe_ext, name).default
        self.reference = torch.no_grad()(self._positional(reference))
        redispatch = getattr(getattr(self.op, "_handle", None), "redispatch_boxed", self.op.redispatch)
        self._cpu_kernel: Callable[..., Any] = partial(redispatch, _CPU_KERNEL)
        self._cuda_kernel: Callable[..., Any] = partial(redispatch, _CUDA_KERNEL)
        self._function: Any = None if derivative is None else self._autograd_function()
        self._apply: Any = None
        if derivative is not None:  # `apply` without its check for torch.func, for calls that nothing intercepts
            self._apply = super(torch.autograd.Function, self._function).apply  # type: ignore[misc]

    def _positional(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a record (and out) as a function of the operands one by one, as torch calls it."""

        def call(*operands: Any) -> Any:
            result = function(self.record_type(*operands[: self._count]), *operands[self._count :])
            return result if len(operands) == self._count else None

        return call

    def __call__(self, record: Any, out: Tensor | None = None, state: TorchState | None = None) -> Any:
        """Calls the operator, differentiable to any order if it has a derivative.

        Args:
            out: the tensor to write to; the first operand itself if a gradient is needed.
            state: what `torch_state.read` returns, if the caller has read it.
        """
        if state is None:
            state = torch_state.read()
        if state is NOT_INTERCEPTED and out is None and not torch.is_grad_enabled():  # such as in a backward pass
            device = record[0].device.type
            given = [record[k] for k in self._tensors if record[k] is not None]
            if loader.uses_kernels.get(device) and not _is_profiled() and not any(map(_needs_dispatcher, given)):
                return (self._cpu_kernel if device == "cpu" else self._cuda_kernel)(*record)
        is_traced = state.traced or state.fx_tracing or record[0].is_meta
        # In a trace the derivative is that of the registered operator.
        if self._function is not None and not (is_traced and out is None) and torch.is_grad_enabled():
            tensors = record[: self._tensor_count]
            places = [k for k, t in enumerate(tensors) if t is not None and t.requires_grad]
            if places and not any(map(is_batched, tensors)):
                with torch.no_grad():
                    result = self(record, out, state)
                if out is not None:  # what is written to is an input of the function, too
                    places = [0, *(k for k in places if k)]
                written = out is not None
                result = tensors[0] if written else result
                return self._recorded(self._function.apply, record, places, result, written)
        if out is not None and self._into is not None:
            return self._into(record, out, state)
        operands = record if out is None else (*record, out)
        given = [operands[k] for k in self._tensors if operands[k] is not None]
        # Under torch.func an operator of ordinary tensors can be computed now, by the backend that is set.
        in_graph = state.compiling or state.fx_tracing
        runs_now = not is_traced or (state.transformed and not in_graph and not any(map(_is_wrapped, given)))
        if not runs_now or any(map(is_batched, given)):  # batched: calls the operator once per sample
            return self.op(*operands)
        if state.transformed and any(forward_ad.unpack_dual(t).tangent is not None for t in given):
            raise NotImplementedError(
                f"{self.record_type._fields[0]}: expected no forward-mode differentiation of a backward pass alone, "
                "got a dual tensor; compute the forward pass under the same dual level, too"
            )
        on_cpu = operands[0].is_cpu
        device_type = "cpu" if on_cpu else operands[0].device.type
        if not loader.uses_kernels.get(device_type) and not loader.compiled(device_type):
            # A subclass with its own dispatch may not support writing into the reference's ordinary tensors.
            has_own_dispatch = any(map(torch_state.has_own_dispatch, given))
            return self._dispatched(operands) if has_own_dispatch else self.reference(*operands)
        if is_traced:
            return self.op(*operands)
        if state is not NOT_INTERCEPTED or _is_profiled() or any(map(_needs_dispatcher, given)):
            with torch._C._AutoDispatchBelowAutograd():
                return self._dispatched(operands)
        return self._cpu_kernel(*operands) if on_cpu else self._cuda_kernel(*operands)

    def _dispatched(self, operands: tuple[Any, ...]) -> Any:
        """Calls the registered operator; tells which tensor has a class that does not support it."""
        try:
            return self.op(*operands)
        except (NotImplementedError, TypeError) as error:
            for k in self._tensors:
                if operands[k] is not None and torch_state.has_own_dispatch(operands[k]):
                    name = [*self.record_type._fields, "out"][k]
                    raise TypeError(
                        f"{name}: expected an ordinary tensor, or a subclass that supports torch.ops.sinpe_ext."
                        f"{self.name}, got {type(operands[k]).__name__}; pass its values as an ordinary tensor"
                    ) from error
            raise

    def recorded(
        self, result: Any, tensors: Sequence[Tensor], gradients: Callable[..., Any], saved: Sequence[Tensor] = ()
    ) -> Any:
        """A result, computed before, as that of the operator: differentiable, for a call that nothing intercepts.

        Args:
            tensors: what it depends on.
            gradients: returns their gradients; called with the context of the function and the gradient of each result.
            saved: what `gradients` finds in the context's `saved_tensors`.
        """
        return self._apply((result, gradients, saved, False), *tensors)

    def record(self, operands: Any, result: Any, order: Sequence[int] | None = None) -> Any:
        """`recorded` with the derivative of the operator, for its operands in order. Permuted to `order`, the gradient
        of the result is that of the operator."""
        places = [k for k, t in enumerate(operands[: self._tensor_count]) if t is not None and t.requires_grad]
        return self._recorded(self._apply, operands, places, result, False, order)

    def _recorded(
        self, apply: Any, operands: Any, places: list[int], result: Any, is_written: bool,
        order: Sequence[int] | None = None,
    ) -> Any:  # fmt: skip
        saved, saved_at, rest = self._kept(operands, [k in places for k in range(self._tensor_count)])

        def gradients(ctx: Any, *grads: Any) -> list[Tensor | None]:
            needs = [False] * self._count
            for place, need in zip(places, ctx.needs_input_grad[1:], strict=True):
                needs[place] = need
            if order is not None:
                grads = tuple([grad.permute(order) for grad in grads])
            every = self._all_gradients(saved_at, rest, ctx.saved_tensors if saved_at else (), needs, *grads)
            return [every[place] for place in places]

        return apply((result, gradients, saved, is_written), *[operands[k] for k in places])

    def _kept(self, operands: Any, needs: Sequence[bool]) -> tuple[list[Tensor], list[int], list[Any]]:
        """What is kept of the operands for `gradients`: the tensors to save, their places, and the operands with
        `Unsaved` in place of the other tensors; `needs` says which of the tensors need a gradient."""
        needs = tuple(needs)
        if needs not in self._saved_for:
            names = self._derivative.values(tuple.__new__(self.record_type, needs))
            fields = self.record_type._fields[: self._tensor_count]
            others = [k for k, field in enumerate(fields) if field not in names and field != "seed"]
            self._saved_for[needs] = [self._index[field] for field in names], others
        saved_at, others = self._saved_for[needs]
        rest = list(operands)
        for k in saved_at:
            rest[k] = None
        for k in others:
            if (t := operands[k]) is not None:
                rest[k] = Unsaved(t.shape, t.dtype, t.device)
        return [operands[k] for k in saved_at], saved_at, rest

    def _all_gradients(self, saved_at: Any, rest: Any, saved: Any, needs: Any, *grads: Any) -> list[Tensor | None]:
        """The gradients of all operands; `needs` says which are needed."""
        operands = list(rest)
        for k, tensor in zip(saved_at, saved, strict=True):
            operands[k] = tensor
        new = tuple.__new__  # half the time of record_type(...)
        every: list[Tensor | None] = [None] * len(needs)
        gradients = self._derivative.gradients(new(self.record_type, operands), new(self.record_type, needs), *grads)
        for field, gradient in gradients.items():
            every[self._index[field]] = gradient
        return every

    def _setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        saved, *ctx.kept = self._kept(inputs, ctx.needs_input_grad[: self._tensor_count])
        ctx.save_for_backward(*saved)

    def _backward(self, ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return tuple(self._all_gradients(*ctx.kept, ctx.saved_tensors, ctx.needs_input_grad, *grads))

    def _autograd_function(self) -> Any:
        """The autograd.Function for calls of this class; register_autograd serves calls of the operator itself."""

        class Differentiable(torch.autograd.Function):
            # Its arguments are the tensors that need a gradient: each argument costs time. No separate setup_context:
            # with one, torch binds the arguments to a signature at each call, which takes 40 microseconds.
            @staticmethod
            def forward(ctx: Any, call: tuple[Any, Any, Sequence[Tensor], bool], *tensors: Tensor) -> Any:
                result, ctx.gradients, saved, is_written = call
                if saved:
                    ctx.save_for_backward(*saved)
                if is_written:
                    ctx.mark_dirty(tensors[0])
                    return tensors[0]
                return result

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return None, *ctx.gradients(ctx, *grads)

        return type(f"sinpe_ext_{self.name}", (Differentiable,), {})  # the name that grad_fn shows


def one_by_one(operator: Operator, info: Any, in_dims: Any, *operands: Any) -> Any:
    """A vmap rule that calls the operator once per sample, so that a sample's dropout mask is the same as without
    vmap."""
    # For a list argument vmap passes a list of in_dims, all None here.
    dims = [None if isinstance(d, (list, tuple)) else d for d in in_dims]
    results = [
        operator.op(*(a if d is None else a.select(d, k) for a, d in zip(operands, dims, strict=True)))
        for k in range(info.batch_size)
    ]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0,) * len(results[0])
    return torch.stack(results), 0


def is_batched(tensor: Tensor | None) -> bool:
    """Whether a tensor is one of autograd.grad(is_grads_batched=True)."""
    return tensor is not None and torch._C._functorch.is_legacy_batchedtensor(tensor)


def _needs_dispatcher(tensor: Tensor) -> bool:
    """Whether a tensor has what the dispatcher resolves: a subclass, the negative bit, a zero without memory, a
    functional tensor, or one of autograd.grad(is_grads_batched=True)."""
    if type(tensor) not in _PLAIN or tensor.is_neg() or tensor._is_zerotensor():
        return True
    return _is_functional(tensor) or torch._C._functorch.is_legacy_batchedtensor(tensor)


def _nothing(*operands: Any) -> None:
    """The result of an operator that writes to `out`, for tensors without data."""
