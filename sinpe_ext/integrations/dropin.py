"""What stands in the place of a module: the module itself, with a class of ours in front of its own.

So whatever holds the module (its parent, a list, a hook, an optimizer) goes on holding it, `isinstance` answers as
before, and parameters, buffers and their names in the state dict are the module's own. Only what computes is replaced.
"""

from __future__ import annotations

import inspect
import types
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from . import measure, module_state

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class DropIn:
    """Mixin in front of a module's class: `forward` and the like of a family, written with this library's functions.

    Attributes (in the instance, none of them in the state dict):
        _sinpe_encoding: what it encodes with.
        _sinpe_tables: names of its tensors that hold rows of the encoding; kept, because checkpoints and other code
            read them, and rewritten with the encoding's own values.
        _sinpe_replaces: the method of the module's class that is ours; where it is not `forward`, that stays.
        _sinpe_any_signature: our forward is shown with the signature of the module's own.
    """

    _sinpe_encoding: Any
    _sinpe_tables: tuple[str, ...] = ()
    _sinpe_replaces: str = "forward"
    _sinpe_any_signature = False
    _sinpe_freeze = False

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        """The values of a table: of the shape, dtype and device of `like`."""
        raise NotImplementedError

    def _sinpe_ready(self) -> None:
        """Called once the encoding and the options are set, before anything is computed."""

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]
        for name in self._sinpe_tables:
            given, own = state.get(prefix + name), tensor_of(self, name)
            if not isinstance(given, Tensor) or own is None or own.is_meta:
                continue
            rows = self._sinpe_rows(name, own)
            found = given.shape == own.shape and not given.is_meta
            if found and not measure.is_table(given.detach().to(rows.device), rows, self._sinpe_encoding):
                warnings.warn(
                    f"{prefix}{name}: the checkpoint's table is not the encoding that this module was swapped for, "
                    f"{self._sinpe_encoding!r}; the module keeps its own encoding. Load the checkpoint before the swap",
                    UserWarning,
                    stacklevel=2,
                )
            # With assign=True the tensor is the checkpoint's own, which is not ours to write to.
            write(self, name, rows, in_place=not metadata.get("assign_to_params_buffers", False))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # .half().float() would leave 16-bit rows in a float32 table, and to_empty none.
        super()._apply(fn, recurse)  # type: ignore[misc]
        with torch.no_grad():
            for name in self._sinpe_tables:
                own = tensor_of(self, name)
                if own is not None and not own.is_meta and type(own) in (Tensor, nn.Parameter):
                    write(self, name, self._sinpe_rows(name, own), in_place=True)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time; what it is made of can be imported.
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__.copy()
        return _rebuild, (*type(self).__bases__, self._sinpe_replaces), state

    def extra_repr(self) -> str:
        own: str = super().extra_repr()  # type: ignore[misc]
        return ", ".join(part for part in (own, repr(self._sinpe_encoding)) if part)


def class_of(mixin: Any, base: type, replaces: str = "forward") -> Any:
    """The class of a swapped module whose class was `base`."""
    return _class_of(mixin, base, replaces)


@cache
def _class_of(mixin: Any, base: Any, replaces: str) -> Any:
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=base.__module__, __doc__=base.__doc__)
        if replaces != "forward":
            namespace[replaces] = mixin._sinpe_method
        elif mixin._sinpe_any_signature:  # one forward for every name of its arguments: shown under the module's own
            own = mixin.forward
            shown: Any = types.FunctionType(own.__code__, own.__globals__, "forward", own.__defaults__, own.__closure__)
            shown.__kwdefaults__ = own.__kwdefaults__
            shown.__signature__ = inspect.signature(base.forward)
            namespace["forward"] = shown

    return types.new_class(f"Sinpe{base.__name__}", (mixin, base), {}, fill)


def _rebuild(mixin: Any, base: Any, replaces: str = "forward") -> Any:
    made = class_of(mixin, base, replaces)
    return made.__new__(made)


def twin(module: Any, as_it_is: bool = False, memo: dict[int, Any] | None = None) -> Any:
    """A module with tensors, containers and children of its own, in evaluation mode and without hooks.

    Code can be tried on it: what it sets or writes, it sets and writes on the twin. as_it_is: in the mode that the
    module is in. memo: what was copied already, so that what is shared inside of it stays shared.
    """
    kind: Any = type(module)
    copy = kind.__new__(kind)
    memo = {} if memo is None else memo
    copy.__dict__ = dict(module.__dict__)
    for name, value in module.__dict__.items():
        if name in ("_parameters", "_buffers") or name not in module_state.INTERNAL:
            copy.__dict__[name] = module_state.own(value, memo)
    copy.__dict__["_non_persistent_buffers_set"] = set(module.__dict__["_non_persistent_buffers_set"])
    for name in _HOOKS:
        copy.__dict__[name] = type(copy.__dict__[name])()
    children = module.__dict__["_modules"]
    copy.__dict__["_modules"] = {
        name: None if child is None else twin(child, as_it_is, memo) for name, child in children.items()
    }
    copy.__dict__["training"] = as_it_is and module.training
    return copy


def trial(
    module: nn.Module, mixin: type[DropIn], encoding: Any, tables: tuple[str, ...], options: dict[str, Any]
) -> Any:
    """A twin that is swapped already, with tables of its own."""
    copy = twin(module)
    copy.__class__ = class_of(mixin, type(module), options.get("_sinpe_replaces", "forward"))
    copy.__dict__.update(_sinpe_encoding=encoding, _sinpe_tables=tables, **options)
    copy._sinpe_ready()
    for name in tables:
        own = tensor_of(copy, name)
        if own is not None:
            write(copy, name, copy._sinpe_rows(name, own), in_place=False)
    return copy


def settle(module: nn.Module, tried: Any) -> None:
    """Makes of a module what was tried on its twin."""
    own = {name: value for name, value in tried.__dict__.items() if name.startswith("_sinpe_")}
    module.__dict__.update(own)
    for name in tried._sinpe_tables:
        rows = tensor_of(tried, name)
        if rows is not None:
            write(module, name, rows.detach(), in_place=True)
        if tried._sinpe_freeze:
            module._parameters[name].requires_grad_(False)  # type: ignore[union-attr]
    module.__class__ = type(tried)


def tensor_of(module: Any, name: str) -> Tensor | None:
    """A parameter, buffer or plain attribute of a module that is a tensor."""
    for place in ("_parameters", "_buffers"):
        if name in module.__dict__[place]:
            found: Tensor | None = module.__dict__[place][name]
            return found
    value = module.__dict__.get(name)
    return value if isinstance(value, Tensor) else None


def write(module: Any, name: str, rows: Tensor, *, in_place: bool) -> None:
    """Puts values into a table, or a new table into the place of the old one."""
    own = tensor_of(module, name)
    if in_place and own is not None:
        try:
            with torch.inference_mode(own.is_inference()), torch.no_grad():
                own.copy_(rows)
            return
        except RuntimeError:  # an expanded tensor cannot be written to
            pass
    for place in ("_parameters", "_buffers"):
        if name in module.__dict__[place]:
            module.__dict__[place][name] = nn.Parameter(rows, requires_grad=False) if place == "_parameters" else rows
            return
    module.__dict__[name] = rows
