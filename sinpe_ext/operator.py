"""`Operator`: definition of one of torch.ops.sinpe_ext.*, and its call from Python.

The files of operations/ define the operators, each with the record of its operands (`records.py`), reference
implementation (`reference/`), fake kernel, vmap rule and derivative. The compiled libraries contain implementations
only: a second definition of an operator would abort the process. No operator is on an autocast list: positions,
frequencies and x keep their dtypes under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
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

    A call in C (`operations/fast_path.py`) saves as many tensors, because activation checkpointing may repeat a call in
    the other way.
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
        self.name, self.record, self._into = name, record, into
        self._index = {field: k for k, field in enumerate(record._fields)}
        self._derivative: Any = derivative
        self._saved_for: dict[tuple[bool, ...], tuple[list[int], list[int]]] = {}  # see `_save`
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

    def _positional(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of a record (and out) as a function of the operands one by one, as torch calls it."""

        def call(*operands: Any) -> Any:
            result = function(self.record(*operands[: self._count]), *operands[self._count :])
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
        is_traced = state.traced or state.fx_tracing or record[0].is_meta
        # In a trace the derivative is that of the registered operator.
        if self._function is not None and not (is_traced and out is None) and torch.is_grad_enabled():
            tensors = record[: self._tensor_count]
            if any(t is not None and t.requires_grad for t in tensors) and not any(map(is_batched, tensors)):
                return self._function.apply((state, record[self._tensor_count :], out, None), *tensors)
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
                f"{self.record._fields[0]}: expected no forward-mode differentiation of a backward pass alone, got a "
                "dual tensor; compute the forward pass under the same dual level, too"
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
                    name = [*self.record._fields, "out"][k]
                    raise TypeError(
                        f"{name}: expected an ordinary tensor, or a subclass that supports torch.ops.sinpe_ext."
                        f"{self.name}, got {type(operands[k]).__name__}; pass its values as an ordinary tensor"
                    ) from error
            raise

    def recorded(self, record: Any, result: Tensor) -> Tensor:
        """A result, computed before, as that of the operator: differentiable, for a call that nothing intercepts."""
        numbers, tensors = record[self._tensor_count :], record[: self._tensor_count]
        differentiable: Tensor = apply_of(self._function)((NOT_INTERCEPTED, numbers, None, result), *tensors)
        return differentiable

    def _save(self, ctx: Any, operands: Any, needs: Any) -> None:
        """Saves the operands for `gradients`; `needs` says which of the tensors need one."""
        needs = tuple(needs)
        if needs not in self._saved_for:
            names = self._derivative.values(tuple.__new__(self.record, needs))
            tensors = [field for field in self.record._fields[: self._tensor_count] if field not in ("plan", "seed")]
            others = [self._index[field] for field in tensors if field not in names]
            self._saved_for[needs] = [self._index[field] for field in names], others
        saved, others = self._saved_for[needs]
        ctx.save_for_backward(*[operands[k] for k in saved])
        ctx.seed = operands[self._index["seed"]] if "seed" in self._index else None
        ctx.unsaved = [
            None if operands[k] is None else Unsaved(operands[k].shape, operands[k].dtype, operands[k].device)
            for k in others
        ]
        ctx.saved_at, ctx.unsaved_at, ctx.numbers = saved, others, operands[self._tensor_count :]

    def _all_gradients(self, ctx: Any, needs: Any, *grads: Any) -> list[Tensor | None]:
        """The gradients of the operands that `_save` has saved, of those in `needs`, which says whether they are
        needed."""
        operands: list[Any] = [None] * self._tensor_count
        for k, tensor in zip(ctx.saved_at, ctx.saved_tensors, strict=True):
            operands[k] = tensor
        for k, unsaved in zip(ctx.unsaved_at, ctx.unsaved, strict=True):
            operands[k] = unsaved
        if ctx.seed is not None:
            operands[self._index["seed"]] = ctx.seed
        new = tuple.__new__  # half the time of record(...)
        record, needed = new(self.record, (*operands, *ctx.numbers)), new(self.record, needs)
        every: list[Tensor | None] = [None] * len(needs)
        for field, gradient in self._derivative.gradients(record, needed, *grads).items():
            every[self._index[field]] = gradient
        return every

    def _setup_context(self, ctx: Any, inputs: Any, output: Any) -> None:
        self._save(ctx, inputs, ctx.needs_input_grad[: self._tensor_count])

    def _backward(self, ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        return tuple(self._all_gradients(ctx, ctx.needs_input_grad, *grads))

    def _autograd_function(self) -> Any:
        """The autograd.Function for calls of this class; register_autograd serves calls of the operator itself."""

        class Differentiable(torch.autograd.Function):
            # No separate setup_context: with one, torch binds the arguments to a signature at each call, which takes 40
            # microseconds.
            @staticmethod
            def forward(ctx: Any, others: tuple[Any, tuple[Any, ...], Any, Any], *tensors: Tensor | None) -> Any:
                state, numbers, out, result = others
                operands = tensors + numbers
                self._save(ctx, operands, ctx.needs_input_grad[1:])
                if result is None:
                    result = self(operands, out, state)  # gradients are disabled in here
                if out is None:
                    return result
                ctx.mark_dirty(tensors[0])
                return tensors[0]

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return None, *self._all_gradients(ctx, ctx.needs_input_grad[1:], *grads)

        return type(f"sinpe_ext_{self.name}", (Differentiable,), {})  # the name that grad_fn shows


def apply_of(function: Any) -> Any:
    """`apply` of an autograd.Function without its check for torch.func, for calls that nothing intercepts."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


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
    """Whether a tensor has what the dispatcher resolves: a subclass, the negative bit, a zero without memory, or a
    functional tensor."""
    return type(tensor) not in _PLAIN or tensor.is_neg() or tensor._is_zerotensor() or _is_functional(tensor)


def _nothing(*operands: Any) -> None:
    """The result of an operator that writes to `out`, for tensors without data."""
