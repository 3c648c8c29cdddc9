"""Replaces the computation of a module, after a comparison of outputs on copies.

A replacement changes the class of the module to a subclass of its class. The module stays the same object, so all
references to it (from its parent, a list, a hook, an optimizer) stay valid, `isinstance` gives the same results, and
parameters, buffers and state dict keys are unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import agreement
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..functional import table

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24, torch.float64: 2.0**-53}
DROPOUT = 0.5  # probability in calls in training mode
CLOSE = 2.0**-20  # relative error of frequencies in float32


@dataclass(frozen=True)
class Call:
    """A call by which a replacement is compared with the module.

    Attributes:
        args, kwargs: its arguments.
        position: the largest position that it uses.
        training: whether it is made in training mode, with dropout and gradients.
        reported: whether its difference counts for the report; not if it is one of 16-bit rounding.
        rounds: the dtype to which the module may round products, if its output has a wider one.
        may_fail: whether the module may raise, as for a sequence longer than its table.
    """

    args: tuple[Tensor, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    position: float = 0.0
    training: bool = False
    reported: bool = True
    rounds: torch.dtype | None = None
    may_fail: bool = False


@dataclass(frozen=True)
class Replacement:
    """A possible replacement of a module, not yet verified.

    Attributes:
        form: what the module does with the rows, as a short text.
        encoding, convention: the encoding and its name.
        compute: (module, *args, **kwargs) -> output, or None if the module's own forward has to handle the call.
        calls: the calls whose outputs must agree.
        tables: names of the tensors that hold rows, or frequencies, of the encoding.
        options: attributes of the module that `compute` reads; their names begin with _sinpe_.
        error: factor of the error of an angle in the output.
        caches: names of tensors that a call may set.
    """

    form: str
    encoding: Encoding | GridEncoding
    convention: str
    compute: Callable[..., Tensor | None]
    calls: list[Call]
    tables: tuple[str, ...]
    options: Mapping[str, Any]
    error: float = 1.0
    caches: tuple[str, ...] = ()


class Differs(Exception):
    """Raised if a replacement and its module differ; the message says how."""


def verified(module: nn.Module, replacement: Replacement) -> tuple[Any, float]:
    """(a copy of the module with the replacement, the largest difference of its outputs and tables from the module's).

    Raises Differs if the difference is larger than rounding errors, or if the module also does something else, and
    whatever its forward raises.
    """
    new, ignored = isolated_copy(module), {*replacement.tables, *replacement.caches}
    state = settings(module, ignored)
    new.__class__ = class_of(replacement.compute, type(module))
    new.__dict__.update(
        replacement.options,
        _sinpe_encoding=replacement.encoding,
        _sinpe_convention=replacement.convention,
        _sinpe_tables=replacement.tables,
        _sinpe_settings=state,
    )
    apart = [0.0]
    for name in replacement.tables:
        held = tensor_of(module, name)
        assert held is not None
        if not new._sinpe_holds(held):
            raise Differs(f"its `{name}` does not hold {replacement.convention}")
        write(new, name, new._sinpe_rows(name, held), in_place=False)
        apart.append(difference(held, new._sinpe_rows(name, held)))
    for call in replacement.calls:
        old = isolated_copy(module)  # each time: some modules convert or extend their table in a call
        try:
            before, again = run(old, call), run(old, call)
        except Exception:
            if call.may_fail:
                continue
            raise
        if settings(old, ignored) != state or members(old).keys() != members(module).keys() or not same(before, again):
            raise Differs("its forward changes the module: it keeps a state from call to call")
        after = run(new, call)
        compare(before, after, call, replacement)
        apart.append(difference(before[0], after[0]) if call.reported else 0.0)
    return new, max(apart)


def apply_replacement(module: nn.Module, new: Any) -> None:
    """Applies to a module the replacement that was verified on a copy."""
    module.__dict__.update({name: value for name, value in new.__dict__.items() if name.startswith("_sinpe_")})
    for name in new._sinpe_tables:
        write(module, name, tensor_of(new, name), in_place=True)
    module.__class__ = type(new)


# ---------------------------------------------------------------------------------------- the class of a swapped module


class Swapped:
    """Mixin placed before a module's class. Its attributes are those of the instance, and not in the state dict.

    Attributes:
        _sinpe_encoding, _sinpe_convention: the encoding and its name.
        _sinpe_tables: names of the tensors that hold rows, or frequencies. They are not read, but kept with the exact
            values, because checkpoints and other code read them.
        _sinpe_transposed: whether the table is (channels, positions).
        _sinpe_settings: the module's simple attributes when it was verified; if one has changed since, the module's
            own forward is called.
    """

    _sinpe_encoding: Any
    _sinpe_convention: str
    _sinpe_tables: tuple[str, ...]
    _sinpe_settings: tuple[tuple[str, Any], ...]
    _sinpe_transposed = False

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        """The values of a table, or of frequencies, with the shape, dtype and device of `like`."""
        encoding = self._sinpe_encoding
        if like.dim() == 1:
            axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
            return torch.tensor(axis.frequencies_radians(), dtype=torch.float64).to(like.dtype).to(like.device)
        rows = table(like.numel() // encoding.dim, encoding, dtype=like.dtype, device=like.device)
        return (rows.T if self._sinpe_transposed else rows).reshape(like.shape)

    def _sinpe_holds(self, loaded: Tensor) -> bool:
        """Whether a tensor has the values of a table or of frequencies, except for rounding errors."""
        loaded, dim = loaded.detach().cpu(), self._sinpe_encoding.dim
        if loaded.dim() == 1:
            exact = self._sinpe_rows("", loaded.double())
            return loaded.shape == exact.shape and torch.allclose(loaded.double(), exact, rtol=CLOSE, atol=0.0)
        rows = loaded.reshape(dim, -1).T if self._sinpe_transposed else loaded.reshape(-1, dim)
        return agreement.agrees(rows, self._sinpe_encoding)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]
        for name in self._sinpe_tables:
            loaded, current = state.get(prefix + name), tensor_of(self, name)
            if not isinstance(loaded, Tensor) or current is None or current.is_meta:
                continue
            if loaded.shape == current.shape and not loaded.is_meta and not self._sinpe_holds(loaded):
                warnings.warn(
                    f"{prefix}{name}: the checkpoint's table is not the encoding that this module was swapped for, "
                    f"{self._sinpe_encoding!r}; the module keeps its own encoding. Load the checkpoint before the swap",
                    UserWarning,
                    stacklevel=2,
                )
            # With assign=True the tensor is the checkpoint's own and must not be modified.
            in_place = not metadata.get("assign_to_params_buffers", False)
            write(self, name, self._sinpe_rows(name, current), in_place=in_place)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # .half().float() would leave 16-bit rows in a float32 table, and to_empty undefined values.
        super()._apply(fn, recurse)  # type: ignore[misc]
        for name in self._sinpe_tables:
            tensor = tensor_of(self, name)
            if tensor is not None and not tensor.is_meta and type(tensor) in (Tensor, nn.Parameter):
                write(self, name, self._sinpe_rows(name, tensor), in_place=True)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is created at run time, but its base and the function can be imported.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (type(self)._sinpe_compute, type(self).__bases__[1]), state  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        base_repr: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(part for part in (base_repr, repr(self._sinpe_encoding)) if part)


@functools.cache
def class_of(compute: Callable[..., Tensor | None], base: Any) -> Any:
    """The class of a swapped module whose previous class is `base`."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = None if has_changed(self) else compute(self, *args, **kwargs)
        return base.forward(self, *args, **kwargs) if output is None else output

    members = {"__module__": base.__module__, "__doc__": base.__doc__}
    members |= {"forward": forward, "_sinpe_compute": staticmethod(compute)}
    return types.new_class(f"Sinpe{base.__name__}", (Swapped, base), {}, lambda namespace: namespace.update(members))


def _rebuild(compute: Any, base: Any) -> Any:
    """Creates an object of a swapped class, for pickle."""
    made = class_of(compute, base)
    return made.__new__(made)


def only_argument(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor with which a swapped module was called; None if it was called with something else."""
    inputs = (*args, *kwargs.values())
    is_one = len(inputs) == 1 and isinstance(inputs[0], Tensor) and {module._sinpe_argument}.issuperset(kwargs)
    return inputs[0] if is_one else None


def tensor_of(module: Any, name: str) -> Tensor | None:
    """A parameter, buffer or plain attribute of a module, if it is a tensor."""
    value = members(module).get(name)
    return value if isinstance(value, Tensor) else None


def write(module: Any, name: str, rows: Any, *, in_place: bool) -> None:
    """Writes values into a table, or replaces the table by a new tensor."""
    held: Any = tensor_of(module, name)
    with torch.inference_mode(held.is_inference()), torch.no_grad():
        if in_place:
            with contextlib.suppress(RuntimeError):  # an expanded tensor cannot be written to
                held.copy_(rows)
                return
        rows = rows.detach().to(held.device)
        rows = nn.Parameter(rows, requires_grad=False) if name in module._parameters else rows
        next(d for d in (module._parameters, module._buffers, module.__dict__) if name in d)[name] = rows


# ----------------------------------------------------------------------------------- what a forward reads from a module

INTERNAL = frozenset(vars(nn.Module()))  # hooks, children, training, the dictionaries of tensors
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, types.FunctionType)


def members(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes, parameters and buffers by name, except those of nn.Module and of a replacement."""
    own = {key: value for key, value in vars(module).items() if key not in INTERNAL and not key.startswith("_sinpe")}
    return {**module._parameters, **module._buffers, **own}


def settings(module: nn.Module, ignored: Iterable[str] = ()) -> tuple[tuple[str, Any], ...]:
    """The simple values, (name, value), that a forward can read from a module or its classes."""
    every: dict[str, Any] = {}
    for made in reversed(type(module).__mro__[: type(module).__mro__.index(nn.Module)]):
        every |= {key: value for key, value in vars(made).items() if not isinstance(value, types.FunctionType)}
    every |= members(module)
    named = [(key, value) for key, value in every.items() if not key.startswith(("__", "_is_", "_sinpe"))]
    return tuple((key, value) for key, value in named if _is_simple(value) and key not in ignored)


def has_changed(module: Any) -> bool:
    """Whether one of the `settings` of a swapped module has changed since it was verified."""
    for name, value in module._sinpe_settings:
        now = getattr(module, name, None)
        if type(now) is not type(value) or now != value:
            return True
    return False


def depends_on_more(module: nn.Module, known: Iterable[str | None]) -> str:
    """Why a replacement would not follow a module with other tensors, containers or objects than the known ones; "" if
    it has none."""
    others = [key for key, value in members(module).items() if key not in known and not _is_simple(value)]
    also = "too, on which its forward may depend and which a replacement would not follow"
    return f"it has `{others[0]}`, {also}" if others else ""


def _is_simple(value: Any) -> bool:
    """Whether a value is of a type in SIMPLE, or a tuple of such values."""
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_is_simple, value)))


# ------------------------------------------------------------------------------------------ calls and their differences


def isolated_copy(module: Any) -> Any:
    """A deep copy of a module in evaluation mode and without hooks: running it does not affect the module."""
    # deepcopy would also copy the objects to which hooks are bound; it takes what is in the memo as copied already.
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    excluded = [vars(each)[name] for each in module.modules() for name in hooks]
    made = copy.deepcopy(module, {id(each): type(each)() for each in excluded})
    for each in made.modules():
        each.__dict__["training"] = False
    return made


def run(module: Any, call: Call) -> list[Any]:
    """The output of a copy of a module and, in training, the gradients of its arguments and parameters."""
    for each in module.modules():
        each.__dict__["training"] = call.training
        if call.training and isinstance(each, nn.Dropout):
            each.__dict__["p"] = DROPOUT
    args = [arg.clone().requires_grad_(call.training and arg.is_floating_point()) for arg in call.args]
    with torch.set_grad_enabled(call.training):
        # torch.manual_seed would seed the generators of all devices.
        cuda = args[0].device.type == "cuda"
        (torch.cuda.default_generators[args[0].device.index] if cuda else torch.default_generator).manual_seed(0)
        output = module.forward(*args, **call.kwargs)
    if not isinstance(output, Tensor):
        raise Differs(f"its output is {type(output).__name__}, not a tensor")
    if not same([*args], [*call.args]):
        raise Differs("its forward writes to its argument in place")
    if not call.training:
        return [output]
    leaves = [leaf for leaf in (*args, *module.parameters()) if leaf.requires_grad]
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).to(output)
    gradients = torch.autograd.grad(output, leaves, noise, allow_unused=True) if output.requires_grad else ()
    return [output.detach(), *gradients]


def compare(before: list[Any], after: list[Any], call: Call, replacement: Replacement) -> None:
    """Compares the results of `run` of a module and of its replacement. Raises Differs if they differ by more than
    rounding errors explain."""
    rounding = 4 * max(ROUNDING.get(dtype, 0.0) for dtype in (before[0].dtype, call.rounds or before[0].dtype))
    limit = replacement.error * allowed(replacement.encoding, call.position, torch.int64) + rounding
    mode = " in training" if call.training else ""
    try:
        torch.testing.assert_close(after[0], before[0], rtol=rounding, atol=limit, equal_nan=True)
    except AssertionError as problem:
        raise Differs(f"the output would differ{mode}: {in_short(problem)}") from problem
    try:
        torch.testing.assert_close(after[1:], before[1:], rtol=limit, atol=limit * before[0].numel(), equal_nan=True)
    except AssertionError as problem:
        raise Differs(f"its gradients would differ: {in_short(problem)}") from problem


def allowed(encoding: Encoding | GridEncoding, position: float, dtype: torch.dtype, size: float = 1.0) -> float:
    """The difference explained by float32 angles at a position and by rounding values of a given size to a dtype."""
    shape = (1, encoding.ndim) if isinstance(encoding, GridEncoding) else (1,)
    errors = agreement.rounding_errors(torch.full(shape, float(position), dtype=torch.float64), encoding)
    return float(errors.max()) + 4 * ROUNDING.get(dtype, 0.0) * size


def difference(old: Tensor, new: Tensor) -> float:
    """The largest absolute difference of two tensors; equal infinities and NaNs do not differ."""
    apart = (old.detach().cpu().double() - new.detach().cpu().double()).abs().nan_to_num(0.0)
    return float(apart.max()) if apart.numel() else 0.0


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of tensors, or None, have the same values."""
    try:
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    except AssertionError:
        return False
    return True


@contextlib.contextmanager
def trials(devices: Iterable[torch.device]) -> Iterator[None]:
    """Context manager in which modules are tried: no gradients, inference mode or autocast; one CPU thread, because the
    calls consist of many small operations; the random generators are restored."""
    threads = torch.get_num_threads()
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"), contextlib.ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.random.fork_rng([device for device in devices if device.type == "cuda"]))
        stack.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        yield


def in_short(problem: BaseException) -> str:
    """The type and the first line of an exception; of a failed comparison, the difference that it found."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if isinstance(problem, AssertionError):
        found = next((line for line in lines if line.startswith("Greatest absolute")), lines[0])
        return found[0].lower() + found[1:].split(" at index")[0].split(" (up to")[0]
    return f"{type(problem).__name__}: {lines[0][:160]}" if lines else type(problem).__name__
