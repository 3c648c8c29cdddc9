"""What a recogniser says of a module, and how it reads one: by its class' names and signature, nothing imported."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..encodings.encoding import Encoding
from .dropin import DropIn
from .measure import Probe

SINUSOIDAL = re.compile(r"sinus|sin_?cos|sine_?pos|pos\w*sine", re.IGNORECASE)
ROTARY = re.compile(r"rotary|rope|inv_freq", re.IGNORECASE)
REPLACED = "its forward is replaced in the instance (offloading hooks do that): swap before they are attached"
# The angle modes by what they imitate, for angle="float32": the first that is nearest is taken.
MODES = ("float32_exp", "float32_pow", "exact")


@dataclass
class Candidate:
    """A way to serve a module, still to be tried.

    mixin: the drop-in's class.
    encoding: exact; the angle is put in later.
    tables: names of the tensors that hold its rows.
    probes: calls that must give the same.
    options: further attributes of the drop-in, their names beginning with _sinpe_.
    form: what the module does with the rows, in a few words.
    stateless: no call may change the module, but for its tables, which some make longer or convert.
    """

    mixin: type[DropIn]
    encoding: Any
    tables: tuple[str, ...]
    probes: list[Probe]
    options: dict[str, Any] = field(default_factory=dict)
    form: str = ""
    stateless: bool = False


@dataclass
class Left:
    """Why a module that looks sinusoidal is left alone; encoding where its table was recognised."""

    reason: str
    encoding: Any = None


def owner(module: nn.Module) -> Any:
    """The class whose `forward` a module runs: a subclass that has one of its own is not the class it comes from."""
    return next(made for made in type(module).__mro__ if "forward" in vars(made))


def parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of forward's arguments."""
    try:
        return tuple(inspect.signature(owner(module).forward).parameters)[1:]
    except (TypeError, ValueError):
        return ()


def has(module: nn.Module, *names: str) -> bool:
    return all(hasattr(module, name) for name in names)


def number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def half_rotary(match: Any) -> bool:
    """Channels of one kind alone: mostly the cos or the sin cache of a rotary encoding, which nothing is added to."""
    return isinstance(match.encoding, Encoding) and match.encoding.layout in ("sin", "cos")
