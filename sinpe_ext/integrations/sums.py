"""Modules that hold one table and add rows of it to x: PositionalEncoding of the tutorials and its kin.

What a module does is found from its outputs: for each layout of x, least squares of output = a x + b rows. If nothing
remains, the module is a sum; calls with other sizes, dtypes and values, and in training, verify it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from ..functional import add
from ..modules import shared
from .replace import Call, LeftAlone, Replacement, check_members, in_short, isolated_copy, only_argument
from .tables import Table

# Layouts of x: its dimensions, B for the batch, L for the sequence, C for the channels.
LAYOUTS = {"batch first": "BLC", "sequence first": "LBC", "channels first": "BCL", "one sequence": "LC"}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BATCH, LENGTH = 3, 5  # of the first call; different, so that the dimensions can be distinguished
LEARNED = (-2.5, 0.75, 3.25)  # values of a learned factor with which the module is called
LONGEST, LONGEST_IN_TRAINING = 2**22, 2**17  # elements of a call with the whole table
SPECIAL = (1e6, -1e6, 0.0, math.inf, -math.inf, math.nan)
A_LOOKUP = "a lookup of a stored table gains nothing"


def added_rows(module: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """dropout(a * x + b * rows)."""
    x, encoding, layout = only_argument(module, args, kwargs), module._sinpe_encoding, module._sinpe_layout
    channels = layout.index("C")
    if x is None or x.dtype not in DTYPES or x.dim() != len(layout) or x.shape[channels] != encoding.dim:
        return None
    if not module._sinpe_follows_x:
        x = x.to(torch.promote_types(x.dtype, getattr(module, module._sinpe_tables[0]).dtype))
    factor, p = module._sinpe_factor, 0.0
    dropout = getattr(module, module._sinpe_dropout) if module._sinpe_dropout else None
    if dropout is not None and module._sinpe_fused:
        p, dropout = shared.rate(dropout)
    encoded = add(
        x,
        encoding,
        scale=module._sinpe_scale,
        alpha=getattr(module, factor).reshape(()) if isinstance(factor, str) else factor,
        seq_dim=layout.index("L") - len(layout),
        channel_dim=channels - len(layout),
        dropout=p,
    )
    return encoded if dropout is None else dropout(encoded)


def sums_of(module: nn.Module, held: Table) -> list[Replacement]:
    """The replacements of a module with one table. Raises LeftAlone if there are none."""
    arguments = tuple(inspect.signature(type(module).forward).parameters)[1:]
    single = [name for name, value in module._parameters.items() if value is not None and value.numel() == 1]
    learned = single[0] if single else None
    _check(module, held, learned, arguments)
    replacements, reason = [], ""
    for name, layout in LAYOUTS.items():
        try:
            a, b = _factors(module, held, layout, learned)
        except Exception as problem:  # another layout
            reason = reason or f"its forward is not dropout(a * x + b * rows): {in_short(problem)}"
            continue
        if a == 0:
            raise LeftAlone(A_LOOKUP)
        options = {
            "_sinpe_argument": arguments[0],
            "_sinpe_transposed": held.transposed,
            "_sinpe_layout": layout,
            "_sinpe_scale": a,
            "_sinpe_factor": learned or b,
            "_sinpe_follows_x": _follows_x(module, held, layout),
            "_sinpe_fused": False,  # while it is verified, with the same masks
        }
        form, calls = f"{_times(a)}x + {_times(learned or b)}rows, {name}", list(_calls(held, layout))
        # Whether dropout follows, and by which child, is verified.
        for dropout in (*(name for name, child in module.named_children() if type(child) is nn.Dropout), None):
            replacements.append(
                Replacement(
                    form,
                    held.encoding,
                    held.convention,
                    added_rows,
                    {**options, "_sinpe_dropout": dropout},
                    calls,
                    tables=(held.key,),
                    dtype=held.tensor.dtype,
                    error=2 * max(1.0, abs(b)),
                )
            )
    if not replacements:
        raise LeftAlone(reason)
    return replacements


def _check(module: nn.Module, held: Table, learned: str | None, arguments: tuple[str, ...]) -> None:
    """Raises LeftAlone for a module that cannot be a sum that this library computes."""
    if held.tensor.requires_grad:
        raise LeftAlone("it is trained (requires_grad=True): freeze it first if it is meant to be fixed")
    if type(module).forward is nn.Embedding.forward:
        raise LeftAlone(A_LOOKUP)
    check_members(module, (held.key, learned))
    if len(arguments) != 1:
        taken = ", ".join(arguments) or "nothing"
        raise LeftAlone(f"its forward takes {taken}, not x alone: only sums of x are replaced, and {A_LOOKUP}")
    if not isinstance(held.encoding, Encoding):
        raise LeftAlone("sums with grids are not replaced")
    if not held.is_whole:
        raise LeftAlone("some rows of it are zero, or not those of the encoding")
    if len(held.rows) < LENGTH:
        raise LeftAlone("that is too short to find what its forward does")


def _factors(module: Any, held: Table, layout: str, learned: str | None) -> tuple[float, float]:
    """(a, b) such that the module returns a x + b rows for x of this layout. Raises LeftAlone if there are none."""
    x = _noise(held, layout, BATCH, LENGTH, torch.float64)
    rows = held.rows[:LENGTH].T if layout.index("C") < layout.index("L") else held.rows[:LENGTH]
    rows = (rows.unsqueeze(layout.index("B")) if "B" in layout else rows).expand(x.shape)
    found: list[tuple[float, float]] = []
    for value in LEARNED if learned else (1.0,):
        tried = isolated_copy(module)
        if learned:
            getattr(tried, learned).fill_(value)
        output = tried.forward(x.clone())
        if not isinstance(output, Tensor) or not output.is_floating_point() or not _fits(output.shape, x.shape):
            raise LeftAlone("it returns something else")
        columns = torch.stack([x.reshape(-1), rows.reshape(-1)], 1).cpu().double()
        result = output.expand(x.shape).reshape(-1, 1).cpu().double()
        a, b = (_with_fewest_digits(float(factor)) for factor in torch.linalg.lstsq(columns, result).solution)
        error = float((columns @ columns.new_tensor([[a], [b]]) - result).abs().max())
        if not error <= (1e-6 if output.dtype.itemsize >= 4 else 1e-2) * (1 + abs(a) + abs(b)):
            raise LeftAlone(f"the best a and b leave {error:.2g}")
        if output.shape != x.shape and a != 0:
            raise LeftAlone("it returns something else")
        if b == 0 or (learned and b != value):
            raise LeftAlone(f"b is not `{learned}`" if learned else "it adds no rows")
        found.append((a, b))
    if len({a for a, _ in found}) != 1:
        raise LeftAlone(f"a depends on `{learned}`")
    return found[-1]


def _fits(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor can be expanded to a shape."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(length in (1, expanded) for length, expanded in pairs)


def _with_fewest_digits(value: float) -> float:
    """A factor without rounding errors: it, its square or the reciprocal of its square has few digits."""
    if abs(value) < 1e-6:
        return 0.0
    powers = ((exponent, float(f"{abs(value) ** exponent:.6g}")) for exponent in (1, 2, -2))
    rounded = (math.copysign(power ** (1 / exponent), value) for exponent, power in powers)
    return next((near for near in rounded if abs(near - value) <= 1e-7 * abs(value)), value)


def _calls(held: Table, layout: str) -> Iterator[Call]:
    """Calls that verify a sum: several sizes, one of them as long as the table, in four dtypes; longer than the table;
    in training; values that a forward may treat differently."""
    count, dim = held.rows.shape
    own, first = held.tensor.dtype, abs(held.encoding.start)  # type: ignore[union-attr, arg-type]
    longest = max(1, min(count, LONGEST // dim))
    for batch, length in ((BATCH, LENGTH), (1, 1), (2, min(count, 37))):
        for dtype in DTYPES:
            yield Call((_noise(held, layout, batch, length, dtype),), first + length, reported=dtype == own)
    yield Call((_noise(held, layout, 1, longest, own),), first + longest, reported=True)
    yield Call((_noise(held, layout, 1, count + 1, own),), first + count + 1, may_fail=True)
    for length in (LENGTH, min(count, max(LENGTH, LONGEST_IN_TRAINING // dim))):
        yield Call((_noise(held, layout, BATCH, length, own),), first + length, training=True)
    yield Call((_noise(held, layout, 1, LENGTH, torch.bfloat16),), first + LENGTH, training=True)
    x = _noise(held, layout, BATCH, LENGTH, torch.float32)
    sequence = x.movedim((layout.index("L"), layout.index("C")), (0, -1))
    sequence[0], sequence[1] = 0.0, 1.0
    sequence[2] = torch.tensor(SPECIAL).repeat(dim)[:dim].to(x)
    yield Call((x,), first + LENGTH)


def _noise(held: Table, layout: str, batch: int, length: int, dtype: torch.dtype) -> Tensor:
    """Random x of a layout."""
    sizes = {"B": batch, "L": length, "C": held.rows.shape[1]}
    x = torch.randn([sizes[kind] for kind in layout], generator=torch.Generator().manual_seed(1)) * 0.5
    return x.to(device=held.tensor.device, dtype=dtype)


def _follows_x(module: Any, held: Table, layout: str) -> bool:
    """Whether the output has the dtype of x, whatever the table's."""
    dtype = torch.float16 if held.tensor.dtype == torch.bfloat16 else torch.bfloat16
    return bool(isolated_copy(module).forward(_noise(held, layout, BATCH, LENGTH, dtype)).dtype == dtype)


def _times(factor: float | str) -> str:
    """A factor as text, for the description of a form."""
    return f"{factor} * " if isinstance(factor, str) else "" if factor == 1.0 else f"{factor:.6g} * "
