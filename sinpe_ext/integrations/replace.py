"""Replaces the forward of a module, after a comparison of outputs on copies.

A replacement changes the class of the module to a subclass of its class, and nothing else. The module stays the same
object, so all references to it (from its parent, a list, a hook, an optimizer) stay valid, `isinstance` gives the same
results, and parameters, buffers and the state dict are unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import agreement
from ..agreement import ROUNDING
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..modules.shared import refuse_script

DROPOUT = 0.5  # probability in calls in training mode
CLOSE = 2.0**-20  # relative error of frequencies in float32


class Call(NamedTuple):
    """A call by which a replacement is compared with the module."""

    args: tuple[Tensor, ...]
    position: float  # the largest that it uses
    training: bool = False  # with dropout and gradients
    reported: bool = False  # whether its difference counts for the report
    may_fail: bool = False  # as with a sequence longer than the table


class Replacement(NamedTuple):
    """A possible replacement of a module, not yet verified."""

    form: str  # what the module does with the rows, as a short text
    encoding: Encoding | GridEncoding
    convention: str  # name of the encoding
    # (module, *args, **kwargs) -> output; None: the module's own forward has to handle the call
    compute: Callable[..., Tensor | None]
    options: dict[str, Any]  # attributes of the module that `compute` reads; their names begin with _sinpe_
    calls: list[Call]  # those whose outputs must agree
    tables: tuple[str, ...]  # names of tensors with rows (positions, channels), their transpose, or frequencies
    dtype: torch.dtype = torch.float32  # of the tables
    error: float = 1.0  # factor of the error of an angle in the output


class LeftAlone(Exception):
    """Raised for a module that cannot be replaced; the message says why."""


def first_verified(module: nn.Module, replacements: list[list[Replacement]]) -> tuple[Replacement, Any, float]:
    """(the replacement, a copy of the module with it, its difference) of the first list in which one agrees with the
    module; of several in a list, the one with the smallest difference. Raises LeftAlone if there is none."""
    reason = ""
    for alternatives in replacements:
        agreeing = []
        for replacement in alternatives:
            try:
                agreeing.append((replacement, *verified(module, replacement)))
            except Exception as problem:
                reason = reason or in_short(problem)
        if agreeing:
            return min(agreeing, key=lambda result: result[2])
    raise LeftAlone(reason)


def verified(module: nn.Module, replacement: Replacement) -> tuple[Any, float]:
    """(a copy of the module with the replacement, the largest difference of its outputs from the module's).

    Raises LeftAlone if they differ by more than rounding errors, or if the module also does something else.
    """
    new, ignored = isolated_copy(module), replacement.tables
    names, state = members(module).keys(), settings(module, ignored)
    base: Any = type(module)
    new.__class__ = class_of(replacement.compute, base)
    new.__dict__.update(
        replacement.options,
        _sinpe_encoding=replacement.encoding,
        _sinpe_convention=replacement.convention,
        _sinpe_tables=replacement.tables,
        _sinpe_settings=state,
        _sinpe_children=kinds_of_children(module),
    )
    largest = 0.0
    for call in replacement.calls:
        old = isolated_copy(module)  # each time: some modules convert or extend their table in a call
        host = random_states(None)
        try:
            before, again = run(old, call), run(old, call)
        except Exception:
            if call.may_fail:
                continue
            raise
        if members(old).keys() != names or settings(old, ignored) != state or any(map(different, before, again)):
            raise LeftAlone("its forward changes the module: it keeps a state from call to call")
        if host != random_states(None):
            raise LeftAlone("its forward draws random numbers of Python or NumPy")
        drawn = random_states(call)
        after = run(new, call)
        compare(before, after, call, replacement)
        if drawn != random_states(call):
            raise LeftAlone("its forward draws random numbers besides dropout")
        if call.reported and before[0].numel():
            largest = max(largest, float((after[0].double() - before[0].double()).abs().max()))
    return new, largest


def apply_replacement(module: nn.Module, new: Any) -> None:
    """Applies to a module the replacement that was verified on a copy."""
    module.__dict__.update({name: value for name, value in new.__dict__.items() if name.startswith("_sinpe_")})
    module.__class__ = type(new)


# ---------------------------------------------------------------------------------------- the class of a swapped module


class Swapped:
    """Mixin placed before a module's class. Its attributes are those of the instance, and not in the state dict.

    Attributes:
        _sinpe_encoding, _sinpe_convention: the encoding and its name.
        _sinpe_tables: names of the tensors that hold rows or frequencies. They are kept, because checkpoints and other
            code read them; the new forward does not.
        _sinpe_settings, _sinpe_children: the module's simple attributes and the classes of its children when it was
            verified; if one has changed since, the module's own forward is called.
    """

    _sinpe_encoding: Any
    _sinpe_convention: str
    _sinpe_tables: tuple[str, ...]
    _sinpe_settings: tuple[tuple[str, Any], ...]
    _sinpe_children: tuple[tuple[str, type], ...]
    _sinpe_transposed = False
    __prepare_scriptable__ = refuse_script

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[misc]
        for name in self._sinpe_tables:
            loaded, held = state.get(prefix + name), members(self).get(name)
            if not isinstance(loaded, Tensor) or loaded.is_meta or held is None or loaded.shape != held.shape:
                continue
            if not _holds(loaded.detach().cpu(), self._sinpe_encoding, self._sinpe_transposed):
                warnings.warn(
                    f"{prefix}{name}: the checkpoint's table is not the encoding that this module was swapped for, "
                    f"{self._sinpe_encoding!r}; the module keeps its own encoding. Load the checkpoint before the swap",
                    UserWarning,
                    stacklevel=2,
                )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is created at run time, but its base and the function can be imported.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (type(self)._sinpe_compute, type(self).__bases__[1]), state  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        base_repr: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(part for part in (base_repr, repr(self._sinpe_encoding)) if part)


def _holds(loaded: Tensor, encoding: Any, transposed: bool) -> bool:
    """Whether a loaded tensor has the values of a table or of frequencies, except for rounding errors."""
    if loaded.dim() > 1:
        rows = loaded.reshape(encoding.dim, -1).T if transposed else loaded.reshape(-1, encoding.dim)
        return agreement.agrees(rows, encoding)
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    # position_scale is not part of them: modules multiply the positions or the angles by it.
    frequencies = torch.tensor(axis.replace(position_scale=1).frequencies_radians(), dtype=torch.float64)
    return torch.allclose(loaded.double(), frequencies, rtol=max(CLOSE, ROUNDING[loaded.dtype]), atol=0.0)


@functools.cache
def class_of(compute: Any, base: Any) -> Any:
    """The class of a swapped module whose previous class is `base`."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = None if has_changed(self) else compute(self, *args, **kwargs)
        return base.forward(self, *args, **kwargs) if output is None else output

    namespace = {"__module__": base.__module__, "__doc__": base.__doc__}
    namespace |= {"forward": forward, "_sinpe_compute": staticmethod(compute)}
    return types.new_class(f"Sinpe{base.__name__}", (Swapped, base), {}, lambda made: made.update(namespace))


def _rebuild(compute: Any, base: Any) -> Any:
    """Creates an object of a swapped class, for pickle."""
    made = class_of(compute, base)
    return made.__new__(made)


def only_argument(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor with which a swapped module was called; None if it was called with something else."""
    inputs = (*args, *kwargs.values())
    is_one = len(inputs) == 1 and isinstance(inputs[0], Tensor) and {module._sinpe_argument}.issuperset(kwargs)
    return inputs[0] if is_one else None


# ----------------------------------------------------------------------------------- what a forward reads from a module

INTERNAL = frozenset(vars(nn.Module()))  # hooks, training, the dictionaries of tensors and children
CONTAINERS = (dict, list, set)
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, types.FunctionType)


def members(module: Any) -> dict[str, Any]:
    """A module's own attributes, tensors and children by name, except those of nn.Module and of a replacement."""
    own = {key: value for key, value in vars(module).items() if key not in INTERNAL and not key.startswith("_sinpe")}
    return {**module._parameters, **module._buffers, **module._modules, **own}


def settings(module: nn.Module, ignored: Iterable[str] = ()) -> tuple[tuple[str, Any], ...]:
    """The simple values, (name, value), that a forward can read from a module or its classes."""
    every: dict[str, Any] = {}
    for made in reversed(type(module).__mro__[: type(module).__mro__.index(nn.Module)]):
        every |= {key: value for key, value in vars(made).items() if not isinstance(value, types.FunctionType)}
    every |= members(module)
    named = [(key, value) for key, value in every.items() if not key.startswith(("__", "_is_", "_sinpe"))]
    return tuple((key, value) for key, value in named if _is_simple(value) and key not in ignored)


def kinds_of_children(module: nn.Module) -> tuple[tuple[str, type], ...]:
    """The name and class of each child."""
    return tuple((name, type(child)) for name, child in module._modules.items())


def has_changed(module: Any) -> bool:
    """Whether one of the `settings` of a swapped module, or the class of a child, has changed since it was verified, or
    a table is to be trained now."""
    held = (module._parameters.get(name) for name in module._sinpe_tables)
    if module._sinpe_children != kinds_of_children(module) or any(t is not None and t.requires_grad for t in held):
        return True
    for name, value in module._sinpe_settings:
        now = getattr(module, name, None)
        if type(now) is not type(value) or now != value:
            return True
    return False


def check_members(module: nn.Module, known: Iterable[str | None]) -> None:
    """Raises LeftAlone for a module with another forward than its class's, or with other tensors, layers, containers or
    objects than the known ones, which a replacement would not follow."""
    if "forward" in vars(module):
        raise LeftAlone("its forward is replaced in the instance (offloading hooks do that): swap before that")
    of_class = type(module).__mro__[: type(module).__mro__.index(nn.Module)]
    shared = {key: value for made in of_class for key, value in vars(made).items() if type(value) in CONTAINERS}
    every = {**{key: value for key, value in shared.items() if not key.startswith("__")}, **members(module)}
    others = {key: value for key, value in every.items() if key not in known and not _is_simple(value)}
    named = [f"`{k}` ({type(v).__name__})" for k, v in others.items() if type(v) not in (nn.Dropout, nn.Identity)]
    if named:
        raise LeftAlone(f"the module has {', '.join(named[:4])}, too, on which its forward may depend")


def _is_simple(value: Any) -> bool:
    """Whether a value is of a type in SIMPLE, or a tuple of such values."""
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_is_simple, value)))


# ------------------------------------------------------------------------------------------ calls and their differences


def isolated_copy(module: Any) -> Any:
    """A deep copy of a module in evaluation mode and without hooks: running it does not affect the module."""
    # deepcopy would also copy the objects to which hooks are bound; it takes what is in the memo as copied already.
    hooks = [value for each in module.modules() for name, value in vars(each).items() if name.endswith("_hooks")]
    return copy.deepcopy(module, {id(each): type(each)() for each in hooks}).eval()


def run(module: Any, call: Call) -> list[Any]:
    """The output of a copy of a module and, in training, the gradients of its arguments and parameters."""
    module.train(call.training)
    for dropout in module.children():
        dropout.p = DROPOUT
    args = [arg.clone().requires_grad_(call.training and arg.is_floating_point()) for arg in call.args]
    with torch.set_grad_enabled(call.training):
        _generator(call).manual_seed(0)  # torch.manual_seed would seed the generators of all devices
        output = module.forward(*args)
    if not isinstance(output, Tensor):
        raise LeftAlone(f"its output is {type(output).__name__}, not a tensor")
    if any(map(different, args, call.args)):
        raise LeftAlone("its forward writes to its argument in place")
    leaves = [leaf for leaf in (*args, *module.parameters()) if leaf.requires_grad]
    if not call.training or not output.requires_grad:
        return [output]
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).to(output)
    return [output.detach(), *torch.autograd.grad(output, leaves, noise, allow_unused=True)]


def random_states(call: Call | None) -> Any:
    """The state of torch's generator that a call uses; for None, those of Python and, where it is loaded, NumPy."""
    if call is not None:
        return _generator(call).get_state().tolist()
    numpy = sys.modules.get("numpy")
    state = ("", b"", 0) if numpy is None else numpy.random.get_state()
    return random.getstate(), bytes(state[1]), state[2]


def _generator(call: Call) -> torch.Generator:
    device = call.args[0].device
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator


def compare(before: list[Any], after: list[Any], call: Call, replacement: Replacement) -> None:
    """Compares the results of `run` of a module and of its replacement. Raises LeftAlone if they differ by more than
    rounding errors explain."""
    dtypes = [before[0].dtype, replacement.dtype, *(arg.dtype for arg in call.args)]
    rounding = 4 * max(ROUNDING.get(dtype, 0.0) for dtype in dtypes)
    limit = replacement.error * allowed(replacement.encoding, call.position, torch.int64) + rounding
    mode = " in training" if call.training else ""
    if how := different(before[0], after[0], rounding, limit):
        raise LeftAlone(f"its output would differ{mode} {how}")
    for one, other in zip_longest(before[1:], after[1:]):
        if how := different(one, other, rounding, limit * before[0].numel()):
            raise LeftAlone(f"its gradients would differ {how}")


def different(old: Any, new: Any, relative: float = 0.0, absolute: float = 0.0) -> str:
    """How a tensor, or None, differs from another by more than the given errors; "" if it does not."""
    if old is None or new is None:
        return "" if old is new else "where one is detached"
    for what in ("shape", "dtype", "device"):
        if getattr(old, what) != getattr(new, what):
            return f"in the {what}, {getattr(new, what)} instead of {getattr(old, what)}"
    if torch.equal(old, new):
        return ""
    old, new = old.double(), new.double()
    if torch.allclose(new, old, rtol=relative, atol=absolute, equal_nan=True):
        return ""
    return f"by {float((new - old).abs().nan_to_num(math.inf).max()):.2g}"


def allowed(encoding: Encoding | GridEncoding, position: float, dtype: torch.dtype, size: float = 1.0) -> float:
    """The difference explained by float32 angles at a position and by rounding values of a given size to a dtype."""
    shape = (1, encoding.ndim) if isinstance(encoding, GridEncoding) else (1,)
    errors = agreement.rounding_errors(torch.full(shape, float(position), dtype=torch.float64), encoding)
    return float(errors.max()) + 4 * ROUNDING.get(dtype, 0.0) * size


@contextlib.contextmanager
def trials(devices: Iterable[torch.device]) -> Iterator[None]:
    """Context manager in which modules are tried: without gradients, inference mode and autocast, new tensors on the
    CPU, and the random generators restored."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"), contextlib.ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.random.fork_rng([device for device in devices if device.type == "cuda"]))
        yield


def in_short(problem: Exception) -> str:
    """The reason of LeftAlone; the type and the first line of another exception."""
    line = (str(problem).strip().splitlines() or [""])[0]
    return line if isinstance(problem, LeftAlone) else f"a call of it failed: {type(problem).__name__}: {line[:160]}"
