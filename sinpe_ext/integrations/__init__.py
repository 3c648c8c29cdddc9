"""Integration with other programs: `standard_operators` for exporters, and `swap`, which replaces the sinusoidal
modules of an existing model by ones that use this library and keeps its checkpoints valid.

transformers and diffusers are never imported: their modules are recognised by signature, attributes and class names.
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
from ..ops.onnx_graph import standard_operators as standard_operators
from . import swapping

__all__ = ["Report", "Swap", "standard_operators", "swap"]

ANGLES = ("exact", "float32", "float32_exp", "float32_pow")


def __dir__() -> list[str]:
    return list(__all__)


@dataclass(frozen=True)
class Swap:
    """The result of `swap` for one module.

    Fields:
        name: its qualified name, the first one if it is shared; "" for the model itself.
        old_class: its previous class, with the Python module that defines it.
        swapped: whether it was replaced (with dry_run: whether it would be).
        encoding: its encoding now; if it was left alone, the one that was recognised, or None.
        convention: the name of the encoding in `sinpe.conventions()`, or its fields.
        form: what the module does with the rows.
        difference: the largest difference between its output before and after, over calls of several lengths and
            its whole table; nan if it was left alone.
        reason: why it was left alone, else "".
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
            found = f"\n    recognised: {self.convention}" if self.convention else ""
            return f"left     {where}: {kind}\n    {self.reason}{found}"
        angle = _angle_of(self.encoding)
        return (
            f"swapped  {where}: {kind}\n    {self.form}; {self.convention}"
            f"{'' if angle == 'exact' else f', angle {angle}'}; differs by {self.difference:.2g}"
        )


class Report(list[Swap]):
    """The result of `swap`: one entry for each module that it recognised as sinusoidal. An empty report does not prove
    that the model has no sinusoidal modules.

    Attributes:
        model: the swapped model, which is the given one unless inplace=False.
    """

    def __init__(self, entries: Iterable[Swap] = (), model: nn.Module | None = None) -> None:
        super().__init__(entries)
        self.model = model

    @property
    def swapped(self) -> list[Swap]:
        """The entries of modules that were swapped."""
        return [entry for entry in self if entry.swapped]

    @property
    def left(self) -> list[Swap]:
        """The entries of modules that were recognised, or look sinusoidal, and were left alone."""
        return [entry for entry in self if not entry.swapped]

    @property
    def difference(self) -> float:
        """The largest difference of the swapped modules; 0 if there are none."""
        return max((entry.difference for entry in self.swapped), default=0.0)

    def __str__(self) -> str:
        if not self:
            return (
                "none recognised: no tensor of this model holds a sinusoidal table, and no module computes one in a "
                "way that swap knows"
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
    """Replaces the sinusoidal modules of a model that it recognises, and returns a report.

    Equivalent to, for each module whose output stays the same except for the float32 error of its angles:
        module.__class__ = a subclass of its class whose forward calls sinpe's functions

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

    Recognised: transformers' and fairseq's modules that look up rows of tokens, and transformers' sine embeddings of
    images; diffusers' Timesteps, PatchEmbed and CogVideoXPatchEmbed; x-transformers' ScaledSinusoidalEmbedding and
    positional-encodings' modules; and, of any origin and name, a frozen nn.Embedding of sinusoids, modules that add or
    return rows of a table that `identify` recognises, and modules that compute the rows of timesteps, in their forward
    or in a method that it calls. Each replacement is first verified on a copy: a module is replaced only if tables and
    outputs agree; otherwise its entry states the reason. State dict keys, parameters, hooks, `isinstance`, signatures
    and all references to a module are preserved; tables are kept and overwritten with the encoding's values.

    Args:
        inplace: False: leave the model unchanged and swap a deep copy, `report.model`.
        angle: "exact"; "float32_exp" or "float32_pow" for the roundings of the usual float32 formula; "float32" for
            the one of these three that is nearest to each module, often bitwise equal.
        strict: raise, and swap nothing, if a module that was recognised would be left alone. A model without recognised
            modules does not raise.
        skip: names of modules to skip, with * and ? as in fnmatch.
        fuse_dropout: in plain modules, apply dropout in the same pass as the sum. Faster, but the masks are this
            library's; by default they are torch's, the same that the old module would have drawn.
        dry_run: report what would be done without doing it.
    Returns: a `Report`, a list of `Swap`.
    Raises:
        TypeError: for a model that is not an nn.Module, or an argument of the wrong type.
        ValueError: for an unknown angle; with strict, for modules that would be left alone.
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
            f"model: expected every sinusoidal module to be served, got {len(left)} that are not; pass strict=False, "
            "or name them in skip\n" + "\n".join(map(str, left))
        )
    if not dry_run:
        for plan in plans:
            if plan.tried is not None:
                swapping.carry_out(plan)
    return report


def _entry(plan: swapping.Plan) -> Swap:
    """The entry of the report for a plan."""
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
    axis = encoding.axes[0] if isinstance(encoding, GridEncoding) else encoding
    return str(axis.angle) if axis is not None else ""
