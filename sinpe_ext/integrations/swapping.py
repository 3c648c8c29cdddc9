"""Decides which modules of a model are swapped; each replacement is verified on a copy before any module is
modified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ..encodings.catalogue import CATALOGUE, convention
from ..encodings.encoding import Encoding
from ..encodings.grid import GridEncoding
from ..encodings.grid_catalogue import GRIDS
from . import dropin, measure
from .computed import computed_of
from .diffusers import diffusion_of
from .dropin import MODES, REPLACED, ROTARY, SINUSOIDAL, Candidate, DropIn, Left, is_unchanged
from .plain import plain_of
from .transformers import rows_of

ALREADY = "it is swapped already"


@dataclass
class Plan:
    """The decision for one module: `tried` is its swapped copy, or None if it is left alone."""

    module: nn.Module
    name: str
    left: str = ""
    encoding: Any = None
    tried: Any = None
    form: str = ""
    difference: float = float("nan")


def plans(model: nn.Module, angle: str, skip: Sequence[str], options: dict[str, Any]) -> list[Plan]:
    """A plan for every module that looks sinusoidal."""
    planned = []
    every = dict(model.named_modules(remove_duplicate=False))
    # Trials create tensors on the CPU; where the device of a module matters, it is passed explicitly.
    with torch.device("cpu"), measure.one_thread():
        for name, module in model.named_modules():
            if any(fnmatchcase(name, pattern) for pattern in skip):
                continue
            steps = name.split(".") if name else []
            above = [every[".".join(steps[:k])] for k in range(len(steps))]  # from the model down
            plan = _plan(module, name, above, angle, options)
            if plan is not None:
                planned.append(plan)
    return planned


def _plan(module: nn.Module, name: str, above: Sequence[nn.Module], angle: str, options: dict[str, Any]) -> Plan | None:
    """The plan of one module; None if it does not look sinusoidal."""
    if isinstance(module, DropIn):
        return Plan(module, name, ALREADY, module._sinpe_encoding)
    if isinstance(module, torch.jit.ScriptModule):
        return None
    try:
        recognized = _recognized(module, name, above)
    except ValueError as refused:  # a number of channels that the convention's library does not support either
        return Plan(module, name, str(refused))
    except (
        TypeError,
        RuntimeError,
        AttributeError,
    ) as problem:  # a dtype or layout that cannot be read
        return Plan(module, name, f"it could not be looked at: {type(problem).__name__}: {str(problem)[:160]}")
    if recognized is None:
        return None
    if isinstance(recognized, Left):
        return Plan(module, name, recognized.reason, recognized.encoding)
    reason = _untouchable(module)
    if reason:
        return Plan(module, name, reason, recognized[0].encoding)
    first: Plan | None = None
    for candidate in recognized:
        plan = _tried(module, name, candidate, angle, options)
        if plan.tried is not None:
            return plan
        first = first or plan
    return first


def _recognized(module: nn.Module, name: str, above: Sequence[nn.Module]) -> list[Candidate] | Left | None:
    """Candidates for a module: first by the interface of known libraries, then by the values of its tables, last
    by its name."""
    ways: tuple[Callable[[nn.Module], list[Candidate] | Left | None], ...] = (
        rows_of,
        diffusion_of,
        computed_of,
    )
    for of in ways:
        candidates = of(module)
        if candidates is not None:
            return candidates
    left = plain_of(module, name, above)
    kind = type(module).__name__
    if left is None and SINUSOIDAL.search(kind) and not ROTARY.search(kind) and not list(module.children()):
        return Left("it looks sinusoidal by its name; there is no drop-in for its class, and no table was recognized")
    return left


def _untouchable(module: nn.Module) -> str:
    """Why the class of a module cannot be changed, or why that would have no effect; "" if it can."""
    if "forward" in vars(module):
        return REPLACED
    tensors = (*module._parameters.values(), *module._buffers.values())
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        return "its tensors are on the meta device: load the weights first"
    return ""


def _tried(module: nn.Module, name: str, candidate: Candidate, angle: str, options: dict[str, Any]) -> Plan:
    """The plan of one candidate; with angle="float32" that of the mode with the smallest difference."""
    best: Plan | None = None
    for mode in MODES if angle == "float32" else (angle,):
        plan = _measured(module, name, candidate, mode, options)
        if best is None or plan.difference < best.difference or best.tried is None:
            best = plan
        if best.difference == 0.0:
            break
    assert best is not None
    return best


def _measured(module: nn.Module, name: str, candidate: Candidate, mode: str, options: dict[str, Any]) -> Plan:
    """The plan of one candidate with one angle mode, after comparing a swapped copy with the module."""
    encoding = with_angle(candidate.encoding, mode)
    plan = Plan(module, name, encoding=encoding, form=candidate.form)
    try:
        with measure.quiet():
            tried = dropin.swapped_copy(
                module, candidate.mixin, encoding, candidate.tables, {**candidate.options, **options}
            )
            apart = [0.0]
            for key in candidate.tables:
                apart.append(_table(module, tried, key, encoding))
        for probe in candidate.probes:
            old = dropin.isolated_copy(
                module
            )  # a new copy each time: some modules convert or replace their table in a call
            difference = measure.compare(old, tried, probe, encoding)
            if candidate.stateless and not is_unchanged(module, old, candidate.tables):
                raise measure.Differs("its forward changes the module: it keeps a state from call to call")
            apart.append(difference if probe.reported else 0.0)
    except measure.Differs as problem:
        plan.left = str(problem)
    except (
        TypeError,
        RuntimeError,
        ValueError,
    ) as problem:  # a class with other attributes, or a dtype that tables cannot have
        plan.left = f"it could not be tried: {type(problem).__name__}: {str(problem)[:160]}"
    else:
        plan.tried, plan.difference = tried, max(apart)
    if plan.left and candidate.recognized:
        plan.left = f"{candidate.recognized}, but {plan.left}"
    return plan


def _table(module: nn.Module, tried: Any, key: str, encoding: Any) -> float:
    """The largest difference between a module's table and the encoding's. Raises Differs if float32 angles do not
    explain it."""
    held, rows = dropin.tensor_of(module, key), dropin.tensor_of(tried, key)
    if held is None or rows is None:
        raise measure.Differs(f"its table `{key}` is no tensor of its own: it is parametrised, or pruned")
    apart = measure.difference(held, rows)
    limit = measure.table_limit(rows, encoding, held.dtype)
    if not apart <= limit:
        raise measure.Differs(
            f"its table `{key}` differs by up to {apart:.2g}, where float32 angles explain {limit:.2g}: it was "
            "trained, or is another convention's"
        )
    return apart


def with_angle(encoding: Encoding | GridEncoding, mode: str) -> Encoding | GridEncoding:
    """The encoding with another angle mode."""
    return encoding.with_axes(angle=mode) if isinstance(encoding, GridEncoding) else encoding.replace(angle=mode)


def carry_out(plan: Plan) -> None:
    """Applies a plan to the model."""
    dropin.apply_replacement(plan.module, plan.tried)


def name_of(encoding: Encoding | GridEncoding | None) -> str:
    """The name of an encoding in the catalogue, with the fields that differ; its repr if it has none."""
    if encoding is None:
        return ""
    plain: Any = with_angle(encoding, "exact")
    if isinstance(plain, GridEncoding):
        entries = [(_other_fields(plain.axes, entry.axes), name) for name, entry in _known(GRIDS, plain)]
    else:
        entries = [(_other_fields((plain,), (entry,)), name) for name, entry in _known(CATALOGUE, plain)]
    fitting = [(len(fields), position) for position, (fields, _) in enumerate(entries) if fields is not None]
    if not fitting:
        return repr(plain)
    fields, name = entries[min(fitting)[1]]
    return ", ".join([name, *(fields or ())])


def _known(names: Any, plain: Any) -> list[tuple[str, Any]]:
    """The conventions that exist with its dim and, for a grid, have its arrangement."""
    known = []
    for name in names:
        try:
            entry: Any = convention(name, plain.dim)
            fits = not isinstance(plain, GridEncoding) or (
                len(entry.axes) == len(plain.axes) and entry == plain.replace(axes=entry.axes)
            )
        except ValueError:  # a dim that the convention does not support, or axes that cannot be arranged so
            continue
        if fits:
            known.append((name, entry))
    return known


def _other_fields(axes: tuple[Encoding, ...], known: tuple[Encoding, ...]) -> list[str] | None:
    """The fields that differ from a convention, as text; None if more than the free fields differ."""
    free = ("start", "position_scale", "base", "amplitude")
    same = zip(axes, known, strict=True)
    if any(axis.replace(**{name: getattr(entry, name) for name in free}) != entry for axis, entry in same):
        return None
    said = []
    for name in free:
        values = [getattr(axis, name) for axis in axes]
        if values != [getattr(entry, name) for entry in known]:
            shown = ", ".join(f"{float(value):.6g}" for value in dict.fromkeys(values))
            said.append(f"{name} {shown if len(set(values)) == 1 else f'({shown})'}")
    return said
