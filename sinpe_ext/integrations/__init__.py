"""Integration with existing models and other runtimes.

`swap` replaces the sinusoidal modules of a model by this library and keeps its checkpoints valid. `standard_operators`
exports programs for runtimes without this library. transformers and diffusers are not imported: their modules are
recognized by the names of their classes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.values import choice
from ..torch_state import standard_operators as standard_operators
from . import swapping

__all__ = ["Report", "Swap", "standard_operators", "swap"]

ANGLES = ("exact", "float32", "float32_exp", "float32_pow")


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
        difference: largest difference between the outputs before and after, over calls with several lengths and over
            the whole table; nan for a module that was not replaced.
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
        angle = _angle_of(self.encoding)
        return (
            f"swapped  {where}: {kind}\n    {self.form}; {self.convention}"
            f"{'' if angle == 'exact' else f', angle {angle}'}; differs by {self.difference:.2g}"
        )


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
    fuse_dropout: bool = False,
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

    `swap` recognizes the modules of transformers and fairseq that look up rows by token, and the sine embeddings for
    images of transformers; Timesteps, PatchEmbed and CogVideoXPatchEmbed of diffusers; ScaledSinusoidalEmbedding of
    x-transformers, the modules of positional-encodings, and the timesteps of DiT and of lucidrains' diffusion models.
    From any source and with any class name, it also recognizes a frozen nn.Embedding that holds sinusoids, and modules
    that add or return rows of a table that `identify` recognizes.

    Every replacement is verified on a copy first: a module is replaced only if tables and outputs agree, otherwise the
    entry has the reason. Names in the state dict, parameters, hooks, `isinstance`, signatures and references to the
    module stay valid. Tables are kept and filled with the values of the encoding.

    Args:
        model: the model to change.
        inplace: if False, the model is not changed; `report.model` is a deep copy with the replaced modules.
        angle: "exact"; "float32_exp" or "float32_pow" to reproduce the rounding errors of the naive float32 formulas;
            "float32" for the one of these three that is closest to each module, often with the same bits.
        strict: raise ValueError and change nothing if a recognized module cannot be replaced. A model without
            recognized modules does not raise.
        skip: names of modules to skip, with * and ? as in fnmatch.
        fuse_dropout: in modules that add rows of a table, apply dropout in the same pass as the sum. This is faster,
            but the dropout masks are those of this library; by default they are those of torch, as in the original
            module.
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
    plans = swapping.plans(model, angle, patterns, {"_sinpe_fused": bool(fuse_dropout)})
    report = Report([_entry(plan) for plan in plans], model)
    left = [entry for entry in report.left if entry.reason != swapping.ALREADY]
    if strict and left:
        raise ValueError(
            f"model: expected every sinusoidal module to be replaceable, got {len(left)} that are not; pass "
            "strict=False, or name them in skip\n" + "\n".join(map(str, left))
        )
    if not dry_run:
        for plan in plans:
            if plan.tried is not None:
                swapping.carry_out(plan)
    return report


def _entry(plan: swapping.Plan) -> Swap:
    """The entry of the report for a planned replacement."""
    kind = type(plan.module)
    return Swap(
        name=plan.name,
        old_class=f"{kind.__module__}.{kind.__qualname__}",
        swapped=plan.tried is not None,
        encoding=plan.encoding,
        convention=swapping.name_of(plan.encoding),
        form=plan.form,
        difference=plan.difference,
        reason=plan.left,
    )


def _angle_of(encoding: Any) -> str:
    """The `angle` of an encoding or of the first axis of a grid; "" for None."""
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    return str(axis.angle) if axis is not None else ""
