"""What the forward of a plain module does with its table: one of a few known forms, the first that it agrees with.

The forms are dropout(a * x + b * rows) and dropout(rows for the length of x), for the layouts of x below. a and b are
1, a number among the module's attributes or the number of channels, a square root of these, or for b a parameter with
one element. The operators that forward calls have to be those of such a form: others, such as a comparison or a second
dropout, would have an effect on some x. Then the form is chosen by one call with noise, and verified as every other
replacement is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from ..functional import add, table
from ..modules import shared
from .dropin import (
    VIEWS,
    Candidate,
    DropIn,
    Left,
    depends_on_more,
    has_changed,
    isolated_copy,
    number,
    parameters,
    settings,
)
from .measure import Probe, operators_of, quiet

BATCH, LENGTH = 3, 5  # of the first call; different, so that the dimensions can be distinguished
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-5}  # relative error of a sum; of 16-bit types 1e-2
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Layouts of x: its dimensions, B for the batch, L for the sequence, C for the channels.
LAYOUTS = {"batch first": "BLC", "sequence first": "LBC", "channels first": "BCL", "one sequence": "LC"}
RESULTS = ("LC", "1LC", "L1C", "BLC", "CL", "1CL", "BCL")  # layouts of rows for the length of x
IDS = "BL"  # layout of token ids


class PlainRows(DropIn):
    """Base of the drop-ins for plain modules.

    A call with another kind of argument than those that were verified, or after an attribute of the module has
    changed, is passed to the module's own forward.

    Attributes:
        _sinpe_argument: the name of forward's argument.
        _sinpe_layout: the layout of x.
        _sinpe_turned: whether the table is (channels, positions).
        _sinpe_follows: whether the result has the dtype of x rather than that of x + table.
        _sinpe_dropout: the name of the child that applies dropout to the result, or None.
        _sinpe_settings: the module's simple attributes when it was verified.
    """

    _sinpe_any_signature = True
    _sinpe_argument: str = "x"
    _sinpe_layout: str = "BLC"
    _sinpe_turned: bool = False
    _sinpe_follows: bool = False
    _sinpe_fused: bool = False
    _sinpe_dropout: str | None = None
    _sinpe_settings: tuple[tuple[str, Any], ...] = ()

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        length = like.shape[-1] if self._sinpe_turned else like.numel() // like.shape[-1]
        rows = table(length, self._sinpe_encoding, dtype=like.dtype, device=like.device)
        return (rows.T if self._sinpe_turned else rows).reshape(like.shape)

    def _sinpe_input(self, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor | None:
        """The tensor that forward was called with; None if the call is not of the kind that was verified."""
        inputs = (*args, *named.values())
        if len(inputs) != 1 or not {self._sinpe_argument}.issuperset(named) or not isinstance(inputs[0], Tensor):
            return None
        x, layout = inputs[0], self._sinpe_layout
        is_known = x.dtype in DTYPES if "C" in layout else not x.is_floating_point()
        if not is_known or x.dim() != len(layout):
            return None
        if "C" in layout and x.shape[layout.index("C")] != self._sinpe_encoding.dim:
            return None
        return None if has_changed(self, self._sinpe_settings) else x


class AddRows(PlainRows):
    """dropout(scale * x + factor * rows): PositionalEncoding of the tutorials."""

    _sinpe_scale: float = 1.0
    _sinpe_factor: float | str = 1.0  # of the rows; the name of a parameter if it is learned

    def forward(self, *args: Any, **named: Any) -> Any:
        x = self._sinpe_input(args, named)
        if x is None:
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        if not self._sinpe_follows:
            x = x.to(torch.promote_types(x.dtype, getattr(self, self._sinpe_tables[0]).dtype))
        factor, layout = self._sinpe_factor, self._sinpe_layout
        dropout = getattr(self, self._sinpe_dropout) if self._sinpe_dropout else None
        p = 0.0
        if dropout is not None and self._sinpe_fused:
            p, dropout = shared.rate(dropout)
        encoded = add(
            x,
            self._sinpe_encoding,
            scale=self._sinpe_scale,
            alpha=getattr(self, factor).reshape(()) if isinstance(factor, str) else factor,
            seq_dim=layout.index("L") - len(layout),
            channel_dim=layout.index("C") - len(layout),
            dropout=p,
        )
        return encoded if dropout is None else dropout(encoded)


class GiveRows(PlainRows):
    """Returns the rows for the length of x, in layout `_sinpe_result`: BERT-pytorch, Informer and similar models."""

    _sinpe_result: str = "LC"

    def forward(self, *args: Any, **named: Any) -> Any:
        x = self._sinpe_input(args, named)
        if x is None:
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        length, held = x.shape[self._sinpe_layout.index("L")], getattr(self, self._sinpe_tables[0])
        dtype = x.dtype if self._sinpe_follows else held.dtype
        rows = table(length, self._sinpe_encoding, dtype=dtype, device=held.device)
        encoded = _placed(rows, self._sinpe_result, x.shape[self._sinpe_layout.index("B")])
        return getattr(self, self._sinpe_dropout)(encoded) if self._sinpe_dropout else encoded


def _placed(rows: Tensor, layout: str, batch: int) -> Tensor:
    """Rows (L, C) in a layout, expanded along the batch."""
    rows = rows.T if layout.index("C") < layout.index("L") else rows
    for at, kind in enumerate(layout):
        rows = rows if kind in "LC" else rows.unsqueeze(at)
    return rows.expand([batch if kind == "B" else size for kind, size in zip(layout, rows.shape, strict=True)])


def forms_of(
    module: nn.Module,
    key: str,
    rows: Tensor,
    turned: bool,
    encoding: Encoding,
    learned: str | None,
    recognized: str,
) -> list[Candidate] | Left:
    """The candidates for a module with one table, or why there is none.

    Args:
        key: the name of the table.
        rows: the rows of the table, (positions, channels).
        turned: whether the table itself is (channels, positions).
        learned: the name of the parameter that may be a learned factor.
        recognized: beginning of the reason to report, which names the table.
    """
    children: list[str | None] = [name for name, child in module.named_children() if type(child) is nn.Dropout]
    common = {
        "_sinpe_argument": parameters(module)[0],
        "_sinpe_turned": turned,
        "_sinpe_settings": settings(module),
    }
    candidates = []
    reason = depends_on_more(module, (key, learned)) or _refused(module, rows, children)
    if reason:
        return Left(f"{recognized}, but {reason}", encoding)
    with quiet(rows.device):
        forms = [*_sums(module, rows, learned), *([] if learned else _rows_alone(module, rows))]
    # If the sum or the rows are followed by dropout, by which child is verified; no dropout last.
    for (mixin, form, options, probes), dropout in itertools.product(forms, [*children, None]):
        options = {**common, **options, "_sinpe_dropout": dropout}
        candidates.append(Candidate(mixin, encoding, (key,), probes, options, form, True, recognized))
    neither = "its forward is neither a sum dropout(a * x + b * rows) nor the rows for the length of x"
    return candidates or Left(f"{recognized}, but {neither}", encoding)


SUMS = VIEWS | {"mul", "div", "add", "dropout", "native_dropout", "bernoulli_", "div_", "empty_like"}


def _refused(module: Any, rows: Tensor, children: list[str | None]) -> str:
    """Why forward cannot have a known form, by the operators that it calls; "" if it may, or if no call succeeds."""
    if len(rows) < LENGTH:
        return f"it has only {len(rows)} rows"
    for layout in (*LAYOUTS.values(), IDS):
        try:
            call = Probe((_noise(layout, rows, BATCH, LENGTH),), dropout=0.5)
            operators = operators_of(isolated_copy(module), call)
        except Exception:  # another layout
            continue
        others = sorted(set(operators) - SUMS)
        if others:
            return f"its forward calls {others[0]}" + (", which writes in place" if others[0].endswith("_") else "")
        dropouts = operators["bernoulli_"] + operators["native_dropout"]
        if dropouts > 1:
            return f"it applies dropout {dropouts} times"
        if dropouts > len(children):
            return "it applies dropout by a function, not by a child"
        if operators["add"] > 1:
            return f"its forward adds {operators['add']} times"
    return ""


Form = tuple[type[PlainRows], str, dict[str, Any], list[Probe]]  # drop-in, description, options, calls that verify it


def _output(module: Any, x: Tensor) -> Tensor | None:
    """The output of a copy of a module; None if it raises or returns no tensor."""
    try:
        out = isolated_copy(module).forward(x)
    except Exception:
        return None
    return out if isinstance(out, Tensor) else None


def _sums(module: Any, rows: Tensor, learned: str | None) -> Iterator[Form]:
    """The sums of x and rows that the module may compute."""
    tried = isolated_copy(module)
    if learned is not None:
        tried._parameters[learned] = nn.Parameter(torch.full_like(tried._parameters[learned], 0.75))
    factors = _factors(module, rows.shape[1])
    for name, layout in LAYOUTS.items():
        x = _noise(layout, rows, BATCH, LENGTH)
        out = _output(tried, x)
        if out is None or out.shape != x.shape or not out.is_floating_point():
            continue
        added = _placed(rows[:LENGTH], layout, BATCH)
        x, out, added = (t.cpu().double() for t in (x, out, added))
        for a, b in itertools.product(factors, factors if learned is None else (0.75,)):
            close = CLOSE.get(rows.dtype, 1e-2) * (1 + abs(a) + abs(b))
            if not float((out - (a * x + b * added)).abs().max()) <= close:
                continue
            factor = b if learned is None else learned
            options = {"_sinpe_layout": layout, "_sinpe_scale": a, "_sinpe_factor": factor}
            options["_sinpe_follows"] = _follows(module, layout, rows, sums=True)
            form = f"{_times(a)}x + {_times(factor)}rows, {name}"
            probes = [_probe(_noise(layout, rows, *size, dtype), rows) for size, dtype in _calls(rows)]
            longer = _probe(_noise(layout, rows, 1, len(rows) + 1), rows, reported=False)
            longer.may_fail = True  # it is longer than the table
            yield AddRows, form, options, [*probes, longer, *_both_in_training(layout, rows)]
            break


def _rows_alone(module: Any, rows: Tensor) -> Iterator[Form]:
    """The rows for the length of x that the module may return."""
    for layout in (*list(LAYOUTS.values())[:3], IDS):
        x = _noise(layout, rows, BATCH, LENGTH)
        out = _output(module, x)
        length, suffix = x.shape[layout.index("L")], ", channels first" if layout == "BCL" else ""
        for result in RESULTS if out is not None else ():
            assert out is not None
            placed = _placed(rows[:length], result, BATCH)
            if out.shape != placed.shape or not torch.equal(out, placed.to(out)):
                continue
            follows = layout != IDS and _follows(module, layout, rows, sums=False)
            options = {"_sinpe_layout": layout, "_sinpe_result": result, "_sinpe_follows": follows}
            probes = [_probe(_noise(layout, rows, *size, dtype), rows) for size, dtype in _calls(rows)]
            form = f"rows for the length of x{suffix}"
            yield GiveRows, form, options, probes + _both_in_training(layout, rows)
            break


def _factors(module: nn.Module, dim: int) -> list[float]:
    """The factors that a module may apply: 1, its attributes, and square roots."""
    numbers = [float(value) for _, value in settings(module) if number(value) and 0 < value < math.inf]
    roots = [math.sqrt(value) for value in (float(dim), *numbers)]
    return list(dict.fromkeys([1.0, *numbers, *roots, *(1 / root for root in roots)]))


def _calls(rows: Tensor) -> Iterator[tuple[tuple[int, int], torch.dtype]]:
    """Sizes (batch, length), one of them as long as the table, each in four dtypes."""
    count, dim = rows.shape
    sizes = [(BATCH, LENGTH), (1, 1), (2, min(count, 37)), (1, max(1, min(count, 2**20 // dim)))]
    return itertools.product(sizes, DTYPES)


def _noise(layout: str, rows: Tensor, batch: int, length: int, dtype: torch.dtype | None = None) -> Tensor:
    """Random x, or ids, of a layout."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"B": batch, "L": length, "C": rows.shape[1]}
    shape = [sizes[kind] for kind in layout]
    if layout == IDS:
        return torch.randint(0, 50, shape, generator=generator).to(rows.device)
    return (torch.randn(shape, generator=generator) * 0.5).to(device=rows.device, dtype=dtype or rows.dtype)


def _probe(x: Tensor, rows: Tensor, reported: bool = True) -> Probe:
    """A call with x. Both x and a table of 16 bits are rounded by the old code."""
    coarser = rows.dtype if rows.dtype.itemsize < x.dtype.itemsize or not x.is_floating_point() else x.dtype
    return Probe((x,), {}, float(len(rows)), 2.0, reported and x.dtype == rows.dtype, coarser)


def _in_training(x: Tensor, rows: Tensor, dropout: float) -> Probe:
    """A call in training mode, with gradients and this probability of every dropout."""
    probe = _probe(x.clone().requires_grad_(x.is_floating_point()), rows)
    probe.dropout = dropout
    return probe


def _both_in_training(layout: str, rows: Tensor) -> list[Probe]:
    """Calls in training mode, without dropout and with dropout of everything."""
    x = _noise(layout, rows, BATCH, LENGTH)
    return [_in_training(x, rows, 0.0), _in_training(x, rows, 1.0)]


def _follows(module: Any, layout: str, rows: Tensor, sums: bool) -> bool:
    """Whether the result has the dtype of x, whatever the table's; sums: whether x is added to the rows."""
    for dtype in DTYPES:
        out = _output(module, _noise(layout, rows, BATCH, LENGTH, dtype))
        usual = torch.promote_types(dtype, rows.dtype) if sums else rows.dtype
        if out is not None and out.dtype == dtype != usual:
            return True
    return False


def _times(factor: float | str) -> str:
    """A factor as text, for the description of a form."""
    return f"{factor} * " if isinstance(factor, str) else "" if factor == 1.0 else f"{factor:.6g} * "
