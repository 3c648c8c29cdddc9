"""Replacement of a module by changing its class to a subclass with a mixin of this library.

The module object stays the same, so all references to it (from its parent, a list, a hook, an optimizer) stay valid,
`isinstance` gives the same results, and parameters, buffers and state dict keys are unchanged. Only the computation is
replaced.
"""

from __future__ import annotations

import copy
import inspect
import re
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from . import measure
from .measure import Probe

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class DropIn:
    """Mixin placed before a module's class: the `forward` of a family of modules, written with this library's
    functions.

    Attributes (of the instance, none of them in the state dict):
        _sinpe_encoding: the encoding.
        _sinpe_tables: names of the tensors that hold rows of the encoding. They are kept, because checkpoints and other
            code read them, and overwritten with the encoding's values.
        _sinpe_replaces: name of the method that is replaced; if it is not `forward`, the module keeps its forward.
        _sinpe_any_signature: whether the new forward shows the signature of the module's own.
        _sinpe_synonyms: other names of arguments of the new forward, by which some releases call them.
    """

    _sinpe_encoding: Any
    _sinpe_tables: tuple[str, ...] = ()
    _sinpe_replaces: str = "forward"
    _sinpe_any_signature = False
    _sinpe_synonyms: Mapping[str, str] = {}
    _sinpe_freeze = False

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        """The values of a table, with the shape, dtype and device of `like`."""
        raise NotImplementedError

    def _sinpe_ready(self) -> None:
        """Called after the encoding and the options are set, before anything is computed."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]
        for name in self._sinpe_tables:
            loaded, current = state.get(prefix + name), tensor_of(self, name)
            if not isinstance(loaded, Tensor) or current is None or current.is_meta:
                continue
            rows = self._sinpe_rows(name, current)
            has_shape = loaded.shape == current.shape and not loaded.is_meta
            if has_shape and not measure.is_table(loaded.detach().to(rows.device), rows, self._sinpe_encoding):
                warnings.warn(
                    f"{prefix}{name}: the checkpoint's table is not the encoding that this module was swapped for, "
                    f"{self._sinpe_encoding!r}; the module keeps its own encoding. Load the checkpoint before the swap",
                    UserWarning,
                    stacklevel=2,
                )
            # With assign=True the tensor is the checkpoint's own and must not be modified.
            write(self, name, rows, in_place=not metadata.get("assign_to_params_buffers", False))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # .half().float() would leave 16-bit rows in a float32 table, and to_empty undefined values.
        super()._apply(fn, recurse)  # type: ignore[misc]
        with torch.no_grad():
            for name in self._sinpe_tables:
                tensor = tensor_of(self, name)
                if tensor is not None and not tensor.is_meta and type(tensor) in (Tensor, nn.Parameter):
                    write(self, name, self._sinpe_rows(name, tensor), in_place=True)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is created at run time, but its bases can be imported.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (*type(self).__bases__, self._sinpe_replaces), state

    def extra_repr(self) -> str:
        base_repr: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(part for part in (base_repr, repr(self._sinpe_encoding)) if part)


def class_of(mixin: Any, base: type, replaces: str = "forward") -> Any:
    """The class of a swapped module whose previous class is `base`."""
    return _class_of(mixin, base, replaces)


@cache
def _class_of(mixin: Any, base: Any, replaces: str) -> Any:
    """Creates and caches the class for `class_of`."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=base.__module__, __doc__=base.__doc__)
        if replaces != "forward":
            namespace[replaces] = _method_or_static(mixin._sinpe_method, getattr(base, replaces))
        elif mixin._sinpe_any_signature:  # accepts any argument names, and is shown with the module's own signature
            fn = mixin.forward
            shown: Any = types.FunctionType(fn.__code__, fn.__globals__, "forward", fn.__defaults__, fn.__closure__)
            shown.__kwdefaults__ = fn.__kwdefaults__
            shown.__signature__ = inspect.signature(base.forward)
            namespace["forward"] = shown
        elif mixin._sinpe_synonyms.keys() & inspect.signature(base.forward).parameters.keys():
            namespace["forward"] = _renamed(mixin, base)

    return types.new_class(f"Sinpe{base.__name__}", (mixin, base), {}, fill)


def _method_or_static(method: Any, original: Any) -> Any:
    """A method in place of one that may be static: called on the class, it is the original."""

    def replaced(*arguments: Any, **named: Any) -> Any:
        is_method = bool(arguments) and isinstance(arguments[0], DropIn)
        return (method if is_method else original)(*arguments, **named)

    return replaced


def _renamed(mixin: Any, base: Any) -> Any:
    """The mixin's forward, with arguments named as those of the module's own."""
    forward, synonyms = mixin.forward, dict(mixin._sinpe_synonyms)

    def renamed(self: Any, *arguments: Any, **named: Any) -> Any:
        return forward(self, *arguments, **{synonyms.get(name, name): value for name, value in named.items()})

    renamed.__name__ = "forward"
    renamed.__signature__ = inspect.signature(base.forward)  # type: ignore[attr-defined]
    return renamed


def _rebuild(mixin: Any, base: Any, replaces: str = "forward") -> Any:
    """Creates an object of a swapped class, for pickle."""
    made = class_of(mixin, base, replaces)
    return made.__new__(made)


def isolated_copy(module: Any) -> Any:
    """A deep copy of a module in evaluation mode and without hooks: its code can be run without affecting the
    module."""
    # deepcopy would also copy the objects to which hooks are bound; it takes what is in the memo as copied already.
    members = [vars(each)[name] for each in module.modules() for name in _HOOKS]
    with torch.inference_mode(False), torch.no_grad():
        made = copy.deepcopy(module, {id(hooks): type(hooks)() for hooks in members})
    for each in made.modules():
        each.__dict__["training"] = False
    return made


def swapped_copy(
    module: nn.Module, mixin: type[DropIn], encoding: Any, tables: tuple[str, ...], options: dict[str, Any]
) -> Any:
    """An `isolated_copy` of a module on which the replacement has been made, with its own tables."""
    made = isolated_copy(module)
    made.__class__ = class_of(mixin, type(module), options.get("_sinpe_replaces", "forward"))
    made.__dict__.update(_sinpe_encoding=encoding, _sinpe_tables=tables, **options)
    made._sinpe_ready()
    for name in tables:
        tensor = tensor_of(made, name)
        if tensor is not None:
            write(made, name, made._sinpe_rows(name, tensor), in_place=False)
    return made


def apply_replacement(module: nn.Module, tried: Any) -> None:
    """Applies to a module the replacement that was verified on a copy."""
    attributes = {name: value for name, value in tried.__dict__.items() if name.startswith("_sinpe_")}
    module.__dict__.update(attributes)
    for name in tried._sinpe_tables:
        rows = tensor_of(tried, name)
        if rows is not None:
            write(module, name, rows.detach(), in_place=True)
        if tried._sinpe_freeze:
            module._parameters[name].requires_grad_(False)  # type: ignore[union-attr]
    module.__class__ = type(tried)


def tensor_of(module: Any, name: str) -> Tensor | None:
    """A parameter, buffer or plain attribute of a module, if it is a tensor."""
    for members in ("_parameters", "_buffers"):
        if name in module.__dict__[members]:
            tensor: Tensor | None = module.__dict__[members][name]
            return tensor
    value = module.__dict__.get(name)
    return value if isinstance(value, Tensor) else None


def write(module: Any, name: str, rows: Tensor, *, in_place: bool) -> None:
    """Writes values into a table, or replaces the table by a new tensor."""
    tensor = tensor_of(module, name)
    if in_place and tensor is not None:
        try:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(rows)
            return
        except RuntimeError:  # an expanded tensor cannot be written to
            pass
    for members in ("_parameters", "_buffers"):
        if name in module.__dict__[members]:
            module.__dict__[members][name] = (
                nn.Parameter(rows, requires_grad=False) if members == "_parameters" else rows
            )
            return
    module.__dict__[name] = rows


# ---------------------------------------------------------------------------------------------- the state of a module

INTERNAL = frozenset(vars(nn.Module())) - {"_parameters", "_buffers"}  # hooks, children, training
SIMPLE = (bool, int, float, str, type(None), torch.dtype, torch.device, types.FunctionType)


def members(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes, parameters and buffers by name, except those of nn.Module and of a drop-in."""
    own = {key: value for key, value in vars(module).items() if key not in INTERNAL | {"_parameters", "_buffers"}}
    every = {**module._parameters, **module._buffers, **own}
    return {key: value for key, value in every.items() if not key.startswith("_sinpe")}


def depends_on_more(module: nn.Module, known: tuple[str | None, ...]) -> str:
    """Why a drop-in would not follow a module with other tensors, containers or objects than the known ones, or with
    children that are not the identity in evaluation mode; "" if it has none."""
    others = [key for key, value in members(module).items() if key not in known and not _simple(value)]
    others += [name for name, child in module.named_children() if type(child) not in (nn.Dropout, nn.Identity)]
    return (
        f"it has `{others[0]}`, too, on which its forward may depend and which a drop-in would not follow"
        if others
        else ""
    )


def is_unchanged(module: nn.Module, called: nn.Module, tables: tuple[str, ...]) -> bool:
    """Whether a copy of a module that has been called is as the module, except for its tables, which some modules
    extend or convert."""
    before, after = ({k: v for k, v in members(each).items() if k not in tables} for each in (module, called))
    return before.keys() == after.keys() and all(
        torch.equal(value, after[key]) if isinstance(value, Tensor) else value == after[key]
        for key, value in before.items()
    )


def settings(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """The simple values, (name, value), that a forward can read from a module or its classes."""
    attrs: dict[str, Any] = {}
    for made in reversed(type(module).__mro__[: type(module).__mro__.index(nn.Module)]):
        attrs.update({key: value for key, value in vars(made).items() if not isinstance(value, types.FunctionType)})
    attrs.update(members(module))
    return tuple(
        (key, value) for key, value in attrs.items() if _simple(value) and not key.startswith(("__", "_is_", "_sinpe"))
    )


def has_changed(module: Any, known: tuple[tuple[str, Any], ...]) -> bool:
    """Whether one of the `settings` of a module has changed since they were read."""
    for name, value in known:
        now = getattr(module, name, None)
        if type(now) is not type(value) or now != value:
            return True
    return False


def _simple(value: Any) -> bool:
    """Whether a value is of a type in SIMPLE, or a tuple of such values."""
    return type(value) in SIMPLE or (type(value) is tuple and all(map(_simple, value)))


# ----------------------------------------------------------------------------------------------------------- families

SINUSOIDAL = re.compile(r"sinus|sin_?cos|sine_?pos|pos\w*sine", re.IGNORECASE)
ROTARY = re.compile(r"rotary|rope|inv_freq", re.IGNORECASE)
REPLACED = "its forward is replaced in the instance (offloading hooks do that): swap before they are attached"
# The modes tried for angle="float32", in this order; the first with the smallest difference is used.
MODES = ("float32_exp", "float32_pow", "exact")
# Operators that do not change values, or whose values do not depend on those of x.
VIEWS = {
    "slice", "select", "unsqueeze", "squeeze", "view", "_unsafe_view", "expand", "permute", "transpose", "t", "alias",
    "detach", "_to_copy", "clone", "repeat", "lift_fresh", "arange", "index", "index_select", "constant_pad_nd", "full",
    "scalar_tensor", "sqrt",
}  # fmt: skip


@dataclass
class Candidate:
    """A possible replacement of a module, not yet verified.

    Attributes:
        mixin: the mixin class.
        encoding: the encoding, with exact angles; the angle mode is set later.
        tables: names of the tensors that hold its rows.
        probes: calls whose outputs must agree.
        options: further attributes of the drop-in, whose names begin with _sinpe_.
        form: what the module does with the rows, as a short text.
        stateless: whether a call must not change the module, except its tables, which some modules extend or convert.
        recognized: how the module was recognized, if it is reported with the reason why it is left alone.
    """

    mixin: type[DropIn]
    encoding: Any
    tables: tuple[str, ...]
    probes: list[Probe]
    options: dict[str, Any] = field(default_factory=dict)
    form: str = ""
    stateless: bool = False
    recognized: str = ""


@dataclass
class Left:
    """Why a module that looks sinusoidal is left alone; `encoding` is set if its table was recognized."""

    reason: str
    encoding: Any = None


def owner(module: nn.Module) -> Any:
    """The class that defines the `forward` of a module."""
    return next(made for made in type(module).__mro__ if "forward" in vars(made))


def parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of the arguments of a module's forward."""
    try:
        return tuple(inspect.signature(owner(module).forward).parameters)[1:]
    except (TypeError, ValueError):
        return ()


def has(module: nn.Module, *names: str) -> bool:
    """Whether a module has all these attributes."""
    return all(hasattr(module, name) for name in names)


def number(value: Any) -> bool:
    """Whether a value is an int or a float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def half_rotary(match: Any) -> bool:
    """Whether a match has only sines or only cosines: usually the cos or sin cache of a rotary embedding, which is not
    added to anything."""
    return isinstance(match.encoding, Encoding) and match.encoding.layout in ("sin", "cos")
