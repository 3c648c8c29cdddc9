"""DTensors in torch's simulation of many ranks in one process, torch.distributed._local_tensor.LocalTensorMode.

There a part holds a tensor for each rank, and sizes are ints that differ by rank. Kernels and checks want plain ones:
so whatever a rank does by itself is done for one rank after the other, without the simulation, and the results are put
together. In processes of their own all functions here give back what they are given.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Placement
from torch.utils import _pytree as pytree

from ..checks import memory


def _active() -> Any:
    """The simulation that is at work. It has no public names: where they have changed, there is none."""
    module = None if torch.compiler.is_compiling() else sys.modules.get("torch.distributed._local_tensor")
    enabled = getattr(module, "enabled_local_tensor_mode", None)
    return None if enabled is None or not hasattr(module, "_map_to_rank_local_val") else enabled()


def is_simulated() -> bool:
    return _active() is not None


def each_rank(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for each rank, of results that have no derivative: ints, sequences of ints, tensors."""
    if _active() is None:
        return function
    decorated: Callable[..., Any] = _module().maybe_run_for_local_tensor(function)
    return decorated


def each_rank_with_grad(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function for each rank, of a tensor that has derivatives to every tensor among the arguments."""
    return function if _active() is None else partial(_run, function)


def call_of_each_rank(make: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a rank's call of `add` or `embed`, for each rank."""
    return make if _active() is None else partial(_Calls, make)


def to_local(t: DTensor, gradient: Sequence[Placement]) -> Tensor:
    """t.to_local(grad_placements=gradient)."""
    if _active() is None:
        return t.to_local(grad_placements=gradient)
    local: Tensor = _ToLocal.apply(t, gradient)
    return local


class _ToLocal(torch.autograd.Function):
    """torch's own derives the strides of the whole from those of the gradient's part, which here may differ by rank."""

    @staticmethod
    def forward(ctx: Any, t: DTensor, gradient: Sequence[Placement]) -> Tensor:
        ctx.where = t.device_mesh, gradient
        ctx.whole = t.shape, t.stride()
        local = t.to_local()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        shape, stride = ctx.whole
        return DTensor.from_local(grads[0], *ctx.where, run_check=False, shape=shape, stride=stride), None


class _Calls:
    """The calls of all ranks: what a sharded call asks of that of its own rank.

    Attributes: x: the first argument, the parts.   drop.   device.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self._make, self._arguments, self._named = make, arguments, named
        self._leaves = [t for t in pytree.tree_leaves((arguments, named)) if isinstance(t, Tensor)]
        self.x: Any = arguments[0]
        with _one_by_one() as ranks:
            self.calls = {rank: make(*_own(arguments, rank), **_own(named, rank)) for rank in ranks}
        any_call = next(iter(self.calls.values()))
        self.drop, self.device, self._given_seed = any_call.drop, any_call.device, any_call._given_seed

    def needs_grad(self, *others: Tensor) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (*others, *self._leaves))

    def result(self) -> Tensor:
        return _run(partial(_result, self._make), self._given_seed, *self._arguments, **self._named)

    def written(self, out: Any) -> tuple[Any, Tensor]:
        """Checks all ranks' parts, and gives one rank's to be checked."""
        with _one_by_one():
            pairs = [call.written(_own(out, rank)) for rank, call in self.calls.items()]
            for pair in pairs:
                memory.output(*pair)
        return pairs[0]

    def write_to(self, out: Tensor) -> Tensor:
        with _one_by_one():
            for rank, call in self.calls.items():
                call._given_seed = _own(self._given_seed, rank)
                call.write_to(_own(out, rank))
        return out

    def each(self, check: Callable[[Any], None]) -> None:
        """A check of every rank's call."""
        with _one_by_one():
            for call in self.calls.values():
                check(call)


def _result(make: Callable[..., Any], seed: Any, *arguments: Any, **named: Any) -> Tensor:
    call = make(*arguments, **named)
    call._given_seed = seed
    result: Tensor = call.result()
    return result


def _run(function: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
    values, form = pytree.tree_flatten((arguments, named))
    learn = [k for k, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]

    def of_rank(rank: int, *tensors: Tensor) -> tuple[Tensor]:
        own = [None if k in learn else _own(value, rank) for k, value in enumerate(values)]
        for k, t in zip(learn, tensors, strict=True):
            own[k] = t
        some, others = pytree.tree_unflatten(own, form)
        return (function(*some, **others),)

    (result,) = _EachRank.apply(of_rank, *(values[k] for k in learn))
    return result


class _EachRank(torch.autograd.Function):
    """function(rank, *its tensors) -> tensors, of every rank. The derivative is another such function, which computes
    the first one again: so it has derivatives as well."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.function = function
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        with _one_by_one(*tensors) as ranks:
            found = {rank: function(rank, *(_own(t, rank).detach() for t in tensors)) for rank in ranks}
            count = len(next(iter(found.values())))
            joined = _module().LocalTensor
            return tuple(joined({rank: results[k].detach() for rank, results in found.items()}) for k in range(count))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        wanted = [k for k, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        at = [k for k, grad in enumerate(grads) if grad is not None]
        found: list[Any] = [None] * len(ctx.needs_input_grad)
        if at:
            derivative = partial(_derivative, ctx.function, len(ctx.saved_tensors), wanted, at)
            results = _EachRank.apply(derivative, *ctx.saved_tensors, *(grads[k] for k in at))
            for k, result in zip(wanted, results, strict=True):
                found[1 + k] = result
        return tuple(found)


def _derivative(
    function: Callable[..., Any], count: int, wanted: list[int], at: list[int], rank: int, *given: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of one rank's inputs, the first `count` given, from those of its results `at`, the others."""
    create_graph = any(t.requires_grad for t in given)
    inputs = list(given[:count])
    with torch.enable_grad():
        for k in wanted:
            inputs[k] = inputs[k] if inputs[k].requires_grad else inputs[k].detach().requires_grad_()
        results = function(rank, *inputs)
        pairs = [(results[k], grad) for k, grad in zip(at, given[count:], strict=True) if results[k].requires_grad]
        asked = [inputs[k] for k in wanted]
        found: Any = [None] * len(asked)
        if pairs:
            outputs, grads = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, asked, grads, create_graph=create_graph, allow_unused=True)
        return tuple(torch.zeros_like(t) if grad is None else grad for t, grad in zip(asked, found, strict=True))


def _module() -> Any:
    return sys.modules["torch.distributed._local_tensor"]


def _own(value: Any, rank: int) -> Any:
    """One rank's own of tensors and ints, in any structure."""
    module = _module()

    def own(leaf: Any) -> Any:
        leaf = leaf.wait() if isinstance(leaf, AsyncCollectiveTensor) else leaf
        return module._map_to_rank_local_val(leaf, rank)

    return pytree.tree_map(own, value)


@contextlib.contextmanager
def _one_by_one(*of: Any) -> Iterator[list[int]]:
    """The ranks, with nothing of the simulation around the work of each; a backward pass may come after its end, then
    the ranks are those of the tensors `of`."""
    from torch.utils._python_dispatch import _disable_current_modes

    mode = _module().local_tensor_mode()
    with contextlib.nullcontext() if mode is None else mode.disable(), _disable_current_modes():
        yield sorted(of[0]._ranks if mode is None else mode.ranks)
