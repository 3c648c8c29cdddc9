"""Repetition of calls: a call that Python has checked is kept, and C repeats it for arguments that its guards accept.

`keep` says for each argument what a later call must have in common with this one, and for each operand of the operator
where it comes from; csrc/pybind/repeat.h does the rest, in microseconds. Nothing of the user's tensors is kept, only
what they must be like. Without the compiled module `_core` no call is repeated, and nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .. import torch_state
from ..backend import loader
from ..device_constants import releases_with
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import INT64_MAX, INT64_MIN
from ..operator import Operator
from ..reference import philox
from ..reference.tiles import widest
from . import dropout

TABLE, ENCODE, ADD, EMBED = range(4)  # the functions whose calls are repeated
# In the order of enum class Op of csrc/core/kernels.h.
OPERATORS = ("table_out", "encode", "add", "dropout", "row_dots", "add_backward", "tree_sum", "embed", "embed_backward")

_is_compiling = torch.compiler.is_compiling
_BY_EQUALITY = Encoding, GridEncoding, torch.device
_VALUES = {type(None), bool, int, float, str, torch.dtype, *_BY_EQUALITY}

# A size in a guard: 0 or more, the size itself; -1 - k, any size, the same wherever k stands.
Code: TypeAlias = int
Groups: TypeAlias = tuple[tuple[int, ...], ...]  # the dimensions of an argument that form each dimension of an operand
Source: TypeAlias = tuple[Any, ...]  # where an operand comes from
CONSTANT, ARGUMENT, TENSOR, RESULT, SEED, RNG_OFFSETS = range(6)  # kinds of sources
NONE: Source = CONSTANT, None, ()
SEEDED: Source = SEED, None, ()


class Result(NamedTuple):
    """The result of a kept call.

    Attributes:
        written: index of the argument that is written to; -1: the result is new.
        like: index of the argument of which a new result has the strides of torch.empty_like, or which an argument that
            is written to may be; -1: a contiguous tensor of `sizes`.
    """

    written: int = -1
    like: int = -1
    sizes: tuple[Code, ...] = ()
    dtype: torch.dtype | None = None
    device: torch.device | None = None


def constant(value: Any) -> Source:
    """An operand that is the same in each repetition."""
    return CONSTANT, value, ()


def result_of(groups: Groups) -> Source:
    """The result as an operand."""
    return RESULT, None, groups


def rng_offsets(groups: Groups) -> Source:
    """The RNG offsets of an operand that is a view of the result or of a tensor like it, in row-major order of that."""
    return RNG_OFFSETS, None, groups


class Call:
    """A checked call of a function: the guards of its arguments by name; those that are not set must be the same."""

    def __init__(self, function: int, arguments: Any) -> None:
        self.function, self.arguments = function, arguments
        self.index = {name: k for k, name in enumerate(arguments._fields)}
        self.guards: dict[str, Any] = dict.fromkeys(arguments._fields)
        self.draw: Callable[[tuple[Any, ...]], int] | None = None  # draws the seed, called with the arguments

    def tensor(self, name: str, sizes: Sequence[Code], groups: Groups, convert: Any = None) -> Source:
        """An operand that is a view of an argument, or of what the function `convert` returns for it."""
        self.guards[name] = tuple(sizes), convert
        return TENSOR, self.index[name], groups

    def integer(self, name: str, lowest: int, highest: int, rows: Code = 0, size: Code = 0) -> Source:
        """An operand that is an int from lowest to highest - rows."""
        self.guards[name] = lowest, highest, rows, size
        return ARGUMENT, self.index[name], ()

    def start(self, first: int, rows: Code) -> Source:
        """The operand `start` of implicit positions, which begin at first + start."""
        return self.integer("start", max(INT64_MIN, INT64_MIN - first), min(INT64_MAX, INT64_MAX - first), rows)

    def factor(self, name: str) -> Source:
        """An operand that is a finite float. (An int must be the same.)"""
        value = getattr(self.arguments, name)
        if type(value) is not float:
            return constant(float(value))
        self.guards[name] = float
        return ARGUMENT, self.index[name], ()

    def rows(self, name: str, rows: Code, batch: Code, canonical: Tensor | None, convert: Any = None) -> Source:
        """An operand (1 or batch, rows), for an argument like `canonical` or None, with the sizes of a grid's axes in
        place of rows if that is their product."""
        if canonical is None:
            return NONE
        shape = getattr(self.arguments, name).shape
        has_batch = len(shape) > 1 and math.prod(shape[1:]) == canonical.shape[1]
        of_rows = shape[1:] if has_batch else shape
        sizes = [*of_rows] if len(of_rows) > 1 else [rows]
        if has_batch:
            first = 1 if shape[0] == 1 else batch
            return self.tensor(name, (first, *sizes), ((0,), tuple(range(1, len(shape)))), convert)
        return self.tensor(name, sizes, ((), tuple(range(len(shape)))), convert)

    def starts(self, first: int, batch: Code) -> Source:
        """The operand `positions` for a tensor of starts, () or (1 or batch,), to which `first` is added."""
        value = self.arguments.start
        convert = partial(_later, first=first) if first or value.dtype != torch.int64 else None
        if value.dim() == 0:
            return self.tensor("start", (), ((), ()), convert)
        return self.tensor("start", (1 if value.shape[0] == 1 else batch,), ((0,), ()), convert)

    def alpha(self) -> Source:
        value = self.arguments.alpha
        if isinstance(value, Tensor):
            return self.tensor("alpha", value.shape, tuple((d,) for d in range(value.dim())))
        return self.factor("alpha")

    def seed(self, is_used: bool, device: torch.device) -> Source:
        """The operand `seed`, which is drawn if there is none. Drawing from a generator that is given, too."""
        value, at = self.arguments.seed, self.index["seed"]
        source = SEEDED
        if isinstance(value, Tensor):
            source = self.tensor("seed", value.shape, ())
        elif type(value) is int:
            source = self.integer("seed", INT64_MIN, INT64_MAX)
        elif value is None or type(value) is torch.Generator:
            self.guards["seed"] = type(value)
            if is_used:
                self.draw = lambda given: dropout.draw(given[at], device)
        return source if is_used else NONE

    def recorder(self, operator: Operator, operands: dict[str, Source], result: Groups) -> Callable[..., Tensor]:
        """The argument `record` of `keep`, with the operator's derivative. `result`: the groups of the result, one
        dimension each."""
        fields = operator.record_type._fields
        template = [operands[name][1] if operands[name][0] == CONSTANT else None for name in fields]
        arguments, tensors = [], []
        for k, name in enumerate(fields):
            kind, at, groups = operands[name]
            if kind == ARGUMENT:
                arguments.append((k, at))
            elif kind == TENSOR:
                tensors.append((k, at, [*self.guards.values()][at][1], _view(groups)))
        seed_at = fields.index("seed") if operands.get("seed", NONE) is not NONE else None
        is_number = operands.get("alpha", NONE) != NONE and operands["alpha"][0] != TENSOR
        alpha_at = fields.index("alpha") if is_number else None
        offsets_at = fields.index("rng_offsets") if operands.get("rng_offsets", NONE)[0] == RNG_OFFSETS else None
        order = [d for (d,) in result]
        of_grad = None if order == sorted(order) else order

        def record(result: Tensor, given: tuple[Any, ...], seed: int | None) -> Tensor:
            values = template.copy()
            for k, at in arguments:
                values[k] = given[at]
            for k, at, convert, view in tensors:
                t = given[at] if convert is None else convert(given[at])
                values[k] = t if view is None else view(t)
            if seed_at is not None:
                values[seed_at] = dropout.seed_tensor(values[seed_at] if seed is None else seed, result.device)
            if alpha_at is not None:
                alpha = values[alpha_at]  # as `Sum.alpha_tensor`
                values[alpha_at] = None if alpha == 1.0 else dropout.number(alpha, widest(result.device), result.device)
            if offsets_at is not None:
                steps = philox.row_major(result.shape)
                values[offsets_at] = [0, *[steps[d] for d in order]]
            differentiable: Tensor = operator.record(values, result, of_grad)
            return differentiable

        return record

    def keep(
        self, operator: str, operands: Sequence[Source], result: Result, record: Callable[..., Tensor] | None = None
    ) -> None:
        """Keeps the call, unless an argument is of a type of which nothing is known.

        Args:
            operands: of the operator, in the order of csrc/core/operators.h; the last one is the result.
            record: called with the result, the arguments and the seed if one was drawn; returns the result as
                differentiable.
        """
        tensors: list[tuple[Any, ...]] = []
        integers: list[tuple[Any, ...]] = []
        floats: list[int] = []
        types: list[tuple[int, type]] = []
        same: list[tuple[int, Any]] = []
        for k, (value, guard) in enumerate(zip(self.arguments, self.guards.values(), strict=True)):
            if guard is None:
                # Only values that can be compared, and kept without the memory of a tensor.
                is_list = type(value) in (tuple, list) and {*map(type, value)} <= {int}
                if not is_list and type(value) not in _VALUES:
                    return
                same.append((k, value))
            elif guard is float:
                floats.append(k)
            elif isinstance(guard, type):
                types.append((k, guard))
            elif len(guard) == 4:
                integers.append((k, *guard))
            elif value.dtype == torch.uint64:  # its values have to be checked
                return
            else:
                tensors.append((k, *guard))
        flat = tuple([(kind, at, tuple([d for g in groups for d in (*g, -1)])) for kind, at, groups in operands])
        guards = tuple(tensors), tuple(integers), tuple(floats), tuple(types), tuple(same)
        if loader.keep is not None:
            loader.keep(self.function, tuple(self.arguments), *guards, OPERATORS.index(operator), flat, tuple(result),
                        self.draw, record)  # fmt: skip


def _view(groups: Groups) -> Callable[[Tensor], Tensor] | None:
    """The view of a tensor whose dimensions are these groups; None for the tensor itself."""
    dims = [d for group in groups for d in group]
    is_ordered, is_same = dims == sorted(dims), len(dims) == len(groups) and () not in groups
    if is_same:
        return None if is_ordered else lambda t: t.permute(dims)
    assert is_ordered
    return lambda t: t.reshape([math.prod([t.shape[d] for d in group]) for group in groups])


def is_repeatable(data: Tensor) -> bool:
    """Whether a call with this tensor can be kept: by compiled kernels, and nothing intercepts it."""
    if _is_compiling() or loader.keep is None or type(data) not in torch_state.PLAIN or data.numel() == 0:
        return False
    return loader.compiled(data.device.type) and torch_state.read() is torch_state.NOT_INTERCEPTED


def _later(starts: Tensor, first: int) -> Tensor:
    """starts + first as int64."""
    if first and starts.is_cpu and not INT64_MIN <= int(starts.min()) + first <= int(starts.max()) + first <= INT64_MAX:
        raise RuntimeError("start: beyond int64")  # the checks in Python raise the error
    return starts.long() + first


def set_up(module: Any) -> bool:
    """Passes the objects that csrc/pybind/repeat.h needs to the module `_core`; returns whether it can be used."""
    of_torch = (
        Tensor,
        nn.Parameter,
        torch.empty,
        torch.empty_like,
        torch._C._is_cow_tensor,  # type: ignore[attr-defined]
        torch.is_grad_enabled,
        torch.is_inference_mode_enabled,
        torch._C._increment_version,  # type: ignore[attr-defined]
        torch.autograd._profiler_enabled,  # type: ignore[attr-defined]
    )
    dlpack = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    conditions = torch_state.CONDITIONS, torch_state.VARIABLES, torch_state.is_intercepted
    is_usable: bool = dlpack is not None and module.set_up(dlpack, *of_torch, _BY_EQUALITY, *conditions)
    if is_usable:
        torch_state.use_compiled(module.is_intercepted)
        releases_with(module.forget)
    return is_usable
