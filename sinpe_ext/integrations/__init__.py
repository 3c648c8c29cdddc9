"""Integration with existing models and other runtimes.

`swap` replaces the sinusoidal modules of a model by this library and keeps its checkpoints valid. `standard_operators`
exports programs for runtimes without this library. Other libraries are not imported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import choice
from ..torch_state import standard_operators as standard_operators
from .known import known_of
from .replace import Replacement, Swapped, apply_replacement, first_verified, in_short, trials
from .sums import sums_of
from .tables import Table, tables_of

__all__ = ["Report", "Swap", "standard_operators", "swap"]

ANGLES = ("exact", "float32", "float32_exp", "float32_pow")
# The modes tried for angle="float32", in this order; the first with the smallest difference is used.
MODES = ("float32_exp", "float32_pow", "exact")
ALREADY = "it is swapped already"


def __dir__() -> list[str]:
    return list(__all__)


@dataclass(frozen=True)
class Swap:
    """The result of `swap` for one module.

    Attributes:
        name: qualified name of the module, the first one if it is shared; "" for the model itself.
        old_class: its original class, with the Python module that defines it.
        swapped: whether the module was replaced (with dry_run, whether it would be).
        encoding: the encoding that the module has now; for a module that was not replaced, the one that was recognized,
            or None.
        convention: name of the encoding in `sinpe.conventions()`, or its fields.
        form: what the module does with the rows of the encoding.
        difference: largest difference between the outputs before and after, over calls with several lengths, one of
            them that of the table; nan for a module that was not replaced.
        reason: why the module was not replaced, otherwise "".
    """

    name: str
    old_class: str
    swapped: bool
    encoding: Encoding | GridEncoding | None = None
    convention: str = ""
    form: str = ""
    difference: float = float("nan")
    reason: str = ""

    def __str__(self) -> str:
        where = self.name or "(the model itself)"
        kind = self.old_class.rpartition(".")[2]
        if not self.swapped:
            recognized = f"\n    recognized: {self.convention}" if self.convention else ""
            return f"left     {where}: {kind}\n    {self.reason}{recognized}"
        return f"swapped  {where}: {kind}\n    {self.form}; {self.convention}; differs by {self.difference:.2g}"


class Report(list[Swap]):
    """The result of `swap`: a list with a `Swap` for each module that was recognized as sinusoidal.

    If it is empty, the model may still have sinusoidal modules of a form that is not recognized.

    Attributes:
        model: the model with the replaced modules, the one that was passed unless inplace=False.
    """

    def __init__(self, entries: Iterable[Swap] = (), model: nn.Module | None = None) -> None:
        super().__init__(entries)
        self.model = model

    @property
    def swapped(self) -> list[Swap]:
        """The entries of modules that were replaced."""
        return [entry for entry in self if entry.swapped]

    @property
    def left(self) -> list[Swap]:
        """The entries of modules that were recognized, or look sinusoidal, and were not replaced."""
        return [entry for entry in self if not entry.swapped]

    @property
    def difference(self) -> float:
        """The largest difference over the modules that were replaced; 0 if there are none."""
        return max((entry.difference for entry in self.swapped), default=0.0)

    def __str__(self) -> str:
        if not self:
            return (
                "none recognized: no tensor of this model holds a sinusoidal table, and no module is of a class that "
                "computes one and that swap knows"
            )
        head = f"{len(self.swapped)} swapped, {len(self.left)} left alone"
        head += f", largest difference {self.difference:.2g}" if self.swapped else ""
        return "\n".join([head, *map(str, self)])

    def __repr__(self) -> str:
        return f"Report({super().__repr__()})"


def swap(
    model: nn.Module,
    *,
    inplace: bool = True,
    angle: str = "exact",
    strict: bool = False,
    skip: str | Sequence[str] = (),
    fuse_dropout: bool = True,
    dry_run: bool = False,
) -> Report:
    """Replaces the sinusoidal modules of a model by this library, and returns a report.

    Equivalent to, for each module whose output stays the same except for the float32 error of its angles::

        module.__class__ = a subclass of its class, whose forward calls the functions of this library

    Example:
        >>> from torch import nn
        >>> import sinpe_ext as sinpe
        >>> class PositionalEncoding(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("pe", sinpe.table(100, 16)[None])
        ...
        ...     def forward(self, x):
        ...         return x + self.pe[:, : x.size(1)]
        >>> print(sinpe.integrations.swap(nn.Sequential(nn.Linear(8, 16), PositionalEncoding())))
        1 swapped, 0 left alone, largest difference 0
        swapped  1: PositionalEncoding
            x + rows, batch first; paper; differs by 0

    Two kinds of modules are replaced, under any class name: those that return dropout(a * x + b * rows) for rows of a
    table that `identify` recognizes, and those that compute rows as Timesteps of diffusers, SinusoidalPosEmb of
    denoising-diffusion-pytorch, ScaledSinusoidalEmbedding of x-transformers or PositionalEncoding of torch_geometric
    do. Other modules with a recognized table, such as those that look up its rows (Whisper, Marian, M2M100), are
    reported and left alone: for a lookup there is nothing to gain.

    Every replacement is verified on a copy first: a module is replaced only if outputs and gradients agree, otherwise
    the entry has the reason. The state dict, parameters, hooks, `isinstance`, signatures and references to the module
    stay valid; a stored table stays in the module as it is, for checkpoints.

    Args:
        model: the model to change.
        inplace: if False, the model is not changed; `report.model` is a deep copy with the replaced modules.
        angle: "exact"; "float32_exp" or "float32_pow" to reproduce the rounding errors of the naive float32 formulas;
            "float32" for the one of these three that is closest to each module, often with the same bits.
        strict: raise ValueError and change nothing if a recognized module cannot be replaced. A model without
            recognized modules does not raise.
        skip: names of modules to skip, with * and ? as in fnmatch.
        fuse_dropout: apply the dropout of a * x + b * rows in the same pass as the sum, several times as fast. Its
            masks are then those of this library, with the same probability, and differ from torch's for the same
            seed. If False, the module's own dropout is called.
        dry_run: report what would be done and change nothing.
    Returns:
        a `Report`, a list of `Swap`.
    Raises:
        TypeError: a model that is not an nn.Module, or an argument of the wrong type.
        ValueError: an unknown angle; with strict=True, modules that cannot be replaced.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    choice("angle", angle, ANGLES)
    if not isinstance(skip, (str, list, tuple, set)):
        raise TypeError(f"skip: expected names of modules, got {type(skip).__name__}; pass a list of strings")
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"skip: expected names of modules, got {patterns!r}; pass strings")
    if not inplace and not dry_run:
        model = copy.deepcopy(model)
    examined = []
    with trials({tensor.device for tensor in (*model.parameters(), *model.buffers())}):
        for name, module in model.named_modules():
            is_skipped = any(fnmatchcase(name, pattern) for pattern in patterns)
            if not is_skipped and not isinstance(module, torch.jit.ScriptModule):
                examined.append((module, *_examined(module, name, angle)))
    report = Report([entry for _, entry, _ in examined if entry is not None], model)
    left = [entry for entry in report.left if entry.reason != ALREADY]
    if strict and left:
        raise ValueError(
            f"model: expected every sinusoidal module to be replaceable, got {len(left)} that are not; pass "
            "strict=False, or name them in skip\n" + "\n".join(map(str, left))
        )
    if not dry_run:
        for module, _, copied in examined:
            if copied is not None:
                copied._sinpe_fused = bool(fuse_dropout)
                apply_replacement(module, copied)
    return report


def _examined(module: nn.Module, name: str, angle: str) -> tuple[Swap | None, Any]:
    """(the entry of a module, or None if it does not look sinusoidal; the copy on which its replacement was verified,
    or None)."""
    facts: dict[str, Any] = {"name": name, "old_class": f"{type(module).__module__}.{type(module).__qualname__}"}
    if isinstance(module, Swapped):
        known = {"encoding": module._sinpe_encoding, "convention": module._sinpe_convention}
        return Swap(**facts, swapped=False, reason=ALREADY, **known), None
    tables: list[Table] = []
    try:
        replacements = known_of(module)
        if replacements is None:
            tables = tables_of(module)
            if not tables:
                return None, None
            facts |= {"encoding": tables[0].encoding, "convention": tables[0].convention}
            replacements = sums_of(module, tables[0])
        alternatives = [_with_angles(replacement, angle) for replacement in replacements]
        used, copied, difference = first_verified(module, alternatives)
    except Exception as problem:
        reason = "; ".join([*map(str, tables[:1]), in_short(problem), *map(str, tables[1:4])])
        return Swap(**facts, swapped=False, reason=reason), None
    facts |= {"encoding": used.encoding, "convention": used.convention, "form": used.form}
    return Swap(**facts, swapped=True, difference=difference), copied


def _with_angles(replacement: Replacement, angle: str) -> list[Replacement]:
    """A replacement in each of the angle modes that are to be tried."""
    modes = {mode: f", angle {mode}" if mode != "exact" else "" for mode in (MODES if angle == "float32" else (angle,))}
    exact: Any = replacement.encoding
    change = exact.with_axes if isinstance(exact, GridEncoding) else exact.replace
    return [
        replacement._replace(encoding=change(angle=mode), convention=replacement.convention + suffix)
        for mode, suffix in modes.items()
    ]
