"""Modules that hold one table and add rows of it to x: PositionalEncoding of the tutorials and its kin.

What a module does is found from its outputs: for each layout of x, least squares of output = a x + b rows. If nothing
remains, the module is a sum; calls with other sizes, dtypes and values, and in training, verify it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from ..functional import add
from ..modules import shared
from ..reference.tiles import widest
from .known import DTYPES, arguments_of
from .replace import Call, Replacement, depends_on_more, in_short, isolated_copy, only_argument
from .tables import Table

# Layouts of x: its dimensions, B for the batch, L for the sequence, C for the channels.
LAYOUTS = {"batch first": "BLC", "sequence first": "LBC", "channels first": "BCL", "one sequence": "LC"}
BATCH, LENGTH = 3, 5  # of the first call; different, so that the dimensions can be distinguished
LEARNED = (-2.5, 0.75)  # values of a learned factor with which the module is called
LONGEST = 2**20  # elements of a call with the whole table
SPECIAL = (1e6, -1e6, 0.0, math.inf, -math.inf, math.nan)
A_LOOKUP = "a lookup of a stored table gains nothing"
NO_SUM = "its forward is not dropout(a * x + b * rows)"


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


def sums_of(module: nn.Module, held: Table, *others: Table) -> list[Replacement] | str:
    """The replacements of a module with one table, or why there are none."""
    learned = next((name for name, value in module._parameters.items() if value is not held.tensor), None)
    reason = _excluded(module, held, learned)
    if others:
        reason = f"{reason}; {', '.join(f'`{other.key}`' for other in others)} recognized, too"
    if reason:
        return reason
    dropouts = [name for name, child in module.named_children() if type(child) is nn.Dropout]
    replacements = []
    for name, layout in LAYOUTS.items():
        try:
            a, b = _factors(module, held, layout, learned)
        except Exception as problem:  # another layout
            reason = reason or f"{NO_SUM}: {problem if type(problem) is NoSum else in_short(problem)}"
            continue
        if a == 0:
            return A_LOOKUP
        factor = learned or b
        form = f"{_times(a)}x + {_times(factor)}rows, {name}"
        # Whether dropout follows, and by which child, is verified.
        for dropout in (*dropouts, None):
            options = {
                "_sinpe_argument": arguments_of(module)[0],
                "_sinpe_transposed": held.transposed,
                "_sinpe_layout": layout,
                "_sinpe_scale": a,
                "_sinpe_factor": factor,
                "_sinpe_follows_x": _follows_x(module, held, layout),
                "_sinpe_dropout": dropout,
                "_sinpe_fused": False,  # while it is verified, to compare masks
            }
            replacements.append(
                Replacement(
                    form=form,
                    encoding=held.encoding,
                    convention=held.convention,
                    compute=added_rows,
                    calls=list(_calls(held, layout)),
                    tables=(held.key,),
                    options=options,
                    error=2 * max(1.0, abs(b)),
                )
            )
    return replacements or reason


def _excluded(module: nn.Module, held: Table, learned: str | None) -> str:
    """Why a module cannot be a sum that this library computes; "" if it may be one."""
    layers = [
        f"{type(child).__name__} {name}"
        for name, child in module.named_children()
        if type(child) not in (nn.Dropout, nn.Identity)
    ]
    trained = [name for name, value in module._parameters.items() if value is not held.tensor and value is not None]
    arguments = arguments_of(module)
    if held.tensor.requires_grad:
        return "it is trained (requires_grad=True): freeze it first if it is meant to be fixed"
    if isinstance(module, nn.Embedding):
        return A_LOOKUP
    if layers:
        return f"the module has layers of its own ({', '.join(layers[:4])})"
    if len(trained) > 1 or any(module._parameters[name].numel() > 1 for name in trained):  # type: ignore[union-attr]
        return f"the module has parameters of its own ({', '.join(trained[:4])})"
    if len(arguments) != 1:
        return f"its forward takes {', '.join(arguments) or 'nothing'}, not x alone; {A_LOOKUP}"
    if not isinstance(held.encoding, Encoding):
        return "sums with grids are not replaced"
    if not held.is_whole:
        return "some rows of it are zero, or not those of the encoding"
    if len(held.rows) < LENGTH:
        return "that is too short to find what its forward does"
    return depends_on_more(module, (held.key, learned))


class NoSum(Exception):
    """Raised if an output is not a x + b rows; the message says why."""


def _factors(module: Any, held: Table, layout: str, learned: str | None) -> tuple[float, float]:
    """(a, b) such that the module returns a x + b rows for x of this layout. Raises NoSum, or what forward raises."""
    x = _noise(held, layout, BATCH, LENGTH, widest(held.tensor.device))
    rows = held.rows[:LENGTH].T if layout.index("C") < layout.index("L") else held.rows[:LENGTH]
    rows = (rows.unsqueeze(layout.index("B")) if "B" in layout else rows).expand(x.shape)
    a = b = 0.0
    for value in LEARNED if learned else (1.0,):
        tried = isolated_copy(module)
        if learned:
            tried._parameters[learned].fill_(value)
        output = tried.forward(x.clone())
        if not isinstance(output, Tensor) or output.shape != x.shape or not output.is_floating_point():
            raise NoSum("it returns something else")
        columns = torch.stack([x.reshape(-1), rows.reshape(-1)], 1).cpu().double()
        result = output.reshape(-1, 1).cpu().double()
        a, b = (_with_fewest_digits(float(factor)) for factor in torch.linalg.lstsq(columns, result).solution)
        error = float((columns @ torch.tensor([[a], [b]], dtype=torch.float64) - result).abs().max())
        if not error <= (1e-6 if output.dtype.itemsize >= 4 else 1e-2) * (1 + abs(a) + abs(b)):
            raise NoSum(f"the best a and b leave {error:.2g}")
        if b == 0 or (learned and b != value):
            raise NoSum(f"b is not `{learned}`" if learned else "it adds no rows")
    return a, b


def _with_fewest_digits(value: float) -> float:
    """A factor without rounding errors: it, its square or the reciprocal of its square has few digits."""
    if abs(value) < 1e-6:
        return 0.0
    for exponent in (1, 2, -2):
        near = math.copysign(float(f"{abs(value) ** exponent:.6g}") ** (1 / exponent), value)
        if abs(near - value) <= 1e-7 * abs(value):
            return near
    return value


def _calls(held: Table, layout: str) -> Iterator[Call]:
    """Calls that verify a sum: several sizes, one of them as long as the table, in four dtypes; longer than the table;
    values that a forward may treat differently; in training."""
    count, dim = held.rows.shape
    own = held.tensor.dtype

    def call(batch: int, length: int, dtype: torch.dtype, **options: Any) -> Call:
        x = _noise(held, layout, batch, length, dtype)
        furthest = abs(held.encoding.start) + length  # type: ignore[union-attr, operator]
        narrower = min(dtype, own, key=lambda each: each.itemsize)
        return Call((x,), position=furthest, reported=dtype == own and not options, rounds=narrower, **options)

    longest = max(1, min(count, LONGEST // dim))
    for batch, length in ((BATCH, LENGTH), (1, 1), (2, min(count, 37)), (1, longest)):
        for dtype in DTYPES:
            yield call(batch, length, dtype)
    yield call(1, count + 1, own, may_fail=True)
    special = call(BATCH, LENGTH, torch.float32, training=False)
    sequence = special.args[0].movedim((layout.index("L"), layout.index("C")), (0, -1))
    sequence[0], sequence[1] = 0.0, 1.0
    sequence[2] = torch.tensor(SPECIAL).repeat(dim)[:dim].to(sequence)
    yield special
    yield call(BATCH, LENGTH, own, training=True)


def _noise(held: Table, layout: str, batch: int, length: int, dtype: torch.dtype) -> Tensor:
    """Random x of a layout."""
    sizes = {"B": batch, "L": length, "C": held.rows.shape[1]}
    x = torch.randn([sizes[kind] for kind in layout], generator=torch.Generator().manual_seed(1)) * 0.5
    return x.to(device=held.tensor.device, dtype=dtype)


def _follows_x(module: Any, held: Table, layout: str) -> bool:
    """Whether the output has the dtype of x, whatever the table's."""
    dtype = torch.float16 if held.tensor.dtype == torch.bfloat16 else torch.bfloat16
    output = isolated_copy(module).forward(_noise(held, layout, BATCH, LENGTH, dtype))
    return bool(output.dtype == dtype != torch.promote_types(dtype, held.tensor.dtype))


def _times(factor: float | str) -> str:
    """A factor as text, for the description of a form."""
    return f"{factor} * " if isinstance(factor, str) else "" if factor == 1.0 else f"{factor:.6g} * "
