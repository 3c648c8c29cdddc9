"""Determines what the forward of a plain module does with its table, by running it."""

from __future__ import annotations

import itertools
import math
import types
from typing import Any

import torch
from torch import Tensor, nn

from ..encodings.encoding import Encoding
from ..functional import add, table
from ..modules import shared
from .dropin import (
    MOST,
    Candidate,
    DropIn,
    Left,
    changed,
    inner,
    isolated_copy,
    number,
    other,
    parameters,
    same,
    settings,
)
from .measure import Probe, quiet

# ------------------------------------------------------------------------------------------------------------- trials

CLOSE = 1e-4  # relative precision of a factor estimated from float32 values; the exact value is in the module
BATCH, LENGTH = 3, 5  # of the first trials; different, so that the axes can be distinguished
PADDING = (0, 1, 2, 3, 5, 100, 103, 151643, 21128, 29999, 32000, 50256, 50257, 128001, 250001, -1, -100)

Factor = float | tuple[str, float]  # a number, or (name of an attribute, its power)


class Unclear(Exception):
    """Raised if the forward does something that a drop-in cannot do."""


def run(tried: Any, x: Tensor) -> tuple[Tensor | None, str]:
    """(output of a copy of a module, ""), or (None, reason) if there is none. A copy is used because a call may
    convert or replace the table."""
    try:
        out = isolated_copy(tried, as_it_is=True).forward(x.clone())
    except Exception as problem:
        return None, f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    return (out, "") if isinstance(out, Tensor) else (None, f"it gives {type(out).__name__}")


def run_or_raise(tried: Any, x: Tensor) -> Tensor:
    """The output of `run`. Raises Unclear if there is none."""
    out, problem = run(tried, x)
    if out is None:
        raise Unclear(f"its forward could not be run on x of shape {tuple(x.shape)}: {problem}")
    return out


def same_values(a: Tensor | None, b: Tensor) -> bool:
    """Whether two tensors have the same shape and values; False if there is no first tensor."""
    return a is not None and a.shape == b.shape and torch.equal(a, b)


def inputs_of(tried: Any, x: Tensor) -> list[Tensor]:
    """Inputs with the shape, dtype and device of x: noise of several sizes, or ids, including padding ids."""
    generator = torch.Generator().manual_seed(2)
    if x.is_floating_point():
        noise = [torch.randn(x.shape, generator=generator) * size for size in (0.5, 1.0, 100.0, 1e4)]
        return [part.to(x) for part in (*noise, torch.ones(x.shape), torch.full(x.shape, math.nan))]
    code = getattr(type(tried).forward, "__code__", None)
    words = [*vars(tried).values(), *(code.co_consts if isinstance(code, types.CodeType) else ())]
    named = {word for word in words if type(word) is int and abs(word) < 2**31}
    ids = torch.tensor(sorted({*PADDING, *named}))
    # Each of these ids occurs in an input, along with ids of all sizes.
    inputs = [torch.randint(0, most, x.shape, generator=generator) for most in (3, 50, 2**16)]
    for start in range(0, len(ids), max(x.numel() // 2, 1)):
        some = inputs[1].flatten().clone()
        part = ids[start : start + max(x.numel() // 2, 1)]
        some[torch.randperm(len(some), generator=generator)[: len(part)]] = part
        inputs.append(some.reshape(x.shape))
    return [part.to(x) for part in inputs]


def check_stateless(tried: Any, x: Tensor) -> None:
    """Raises Unclear if a call changes the module, since the next call could differ."""
    for training in (False, True):
        called = isolated_copy(tried)
        for module in called.modules():
            module.__dict__["training"] = training and type(module).__name__ != "Dropout"
        before = isolated_copy(called)
        first, second = called.forward(x.clone()), called.forward(x.clone())
        if not same(before, called):
            raise Unclear("its forward changes the module: it keeps a state from call to call")
        if not training and not same(first, second):
            raise Unclear("its forward gives something else the second time")


def check_no_other_inputs(tried: Any, x: Tensor, known: tuple[str | None, ...]) -> None:
    """Raises Unclear if the output depends on tensors other than the known ones, or on numbers inside objects."""
    base = run_or_raise(tried, x)
    paths = [path for path in inner(tried) if path[0] not in known]
    if len(paths) > MOST:
        raise Unclear(f"it holds {len(paths)} values, too many to try which of them its forward reads")
    for path in paths:
        changed_ = isolated_copy(tried)
        changed(changed_, path)
        out, _ = run(changed_, x)
        if out is not None and not same_values(out, base):
            raise Unclear(f"its output depends on `{'.'.join(map(str, path))}`, which a drop-in would not follow")


def number_of(module: Any, factor: Factor) -> float:
    """The current value of a factor."""
    if not isinstance(factor, tuple):
        return factor
    name, power = factor
    value: float = getattr(module, name)
    return value if power == 1 else math.sqrt(value) if power > 0 else 1 / math.sqrt(value)


def as_attributes(
    tried: Any, scale: float, factor: Any, x: Tensor, rows: Tensor
) -> tuple[Factor, Any, tuple[str, ...]]:
    """The factors of x and of the rows, expressed as the attributes from which they are computed, and the names of
    these attributes."""
    names: list[str] = []
    factors: list[Factor] = [scale, factor]
    for name, value in vars(tried).items():
        if not number(value) or value <= 0:
            continue
        changed_ = isolated_copy(tried)
        changed_.__dict__[name] = other(value)
        out, _ = run(changed_, x)
        if out is None or out.shape != x.shape or same_values(out, run_or_raise(tried, x)):
            continue
        ways = [[now, *_powers(tried, name, now)] for now in factors]
        for pair in itertools.product(*ways):
            a, b = (getattr(changed_, now) if isinstance(now, str) else number_of(changed_, now) for now in pair)
            expected = float(a) * x.cpu().double() + float(b) * rows.cpu().double()
            size = max(1.0, abs(float(a)), abs(float(b)))
            if float((out.cpu().double() - expected).abs().max()) <= CLOSE * 4 * size:
                factors = list(pair)
                names.append(name)
                break
    return factors[0], factors[1], tuple(names)


def _powers(tried: Any, name: str, now: Any) -> list[Factor]:
    """The powers of an attribute that equal a factor."""
    if not isinstance(now, (int, float)):
        return []
    powers: list[Factor] = [(name, 1.0), (name, 0.5), (name, -0.5)]
    return [way for way in powers if math.isclose(number_of(tried, way), now, rel_tol=1e-9)]


LARGE = (100.0, 1e4)  # further sizes of x, which reveal code that clamps or saturates
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class PlainRows(DropIn):
    """Base of the drop-ins for plain modules.

    Attributes:
        _sinpe_argument: the name of forward's argument.
        _sinpe_sequence: the sequence dimension of a three-dimensional, channels-last input.
        _sinpe_channels_first: whether x and the result are (batch, channels, sequence).
        _sinpe_turned: whether the table is (channels, positions).
        _sinpe_ranks: the numbers of dimensions that the old forward accepts.
        _sinpe_follows: whether the result has the dtype of x rather than that of x + table.
        _sinpe_settings: the module's simple attributes at the time of the trial. If one has changed since, the module's
            own forward is called, because the effect of the change is unknown.
    """

    _sinpe_any_signature = True
    _sinpe_argument: str = "x"
    _sinpe_sequence: int = 1
    _sinpe_channels_first: bool = False
    _sinpe_turned: bool = False
    _sinpe_ranks: tuple[int, ...] = (3,)
    _sinpe_follows: bool = False
    _sinpe_fused: bool = False
    _sinpe_scale: Factor = 1.0
    _sinpe_factor: Any = 1.0  # of the rows; the name of a parameter if it is learned
    _sinpe_dropout: str | None = None
    _sinpe_settings: tuple[tuple[str, Any], ...] = ()

    def _sinpe_held(self, x: Tensor) -> tuple[torch.dtype, torch.device]:
        """The dtype and device of the table, or of the rows that a module without one computes."""
        if not self._sinpe_tables:
            return torch.float32, x.device
        held = getattr(self, self._sinpe_tables[0])
        return held.dtype, held.device

    def _sinpe_changed(self) -> bool:
        return any(getattr(self, name, None) != value for name, value in self._sinpe_settings)

    def _sinpe_rows(self, name: str, like: Tensor) -> Tensor:
        length = like.shape[-1] if self._sinpe_turned else like.numel() // like.shape[-1]
        rows = table(length, self._sinpe_encoding, dtype=like.dtype, device=like.device)
        return (rows.T if self._sinpe_turned else rows).reshape(like.shape)

    def _sinpe_input(self, args: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """The single tensor that forward was called with."""
        inputs = (*args, *named.values())
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not {self._sinpe_argument}.issuperset(named):
            got = ", ".join([*(type(value).__name__ for value in args), *named])
            raise TypeError(f"{self._sinpe_argument}: expected this one tensor, got {got or 'nothing'}; pass it alone")
        if inputs[0].dim() not in self._sinpe_ranks:
            raise ValueError(
                f"x: expected {' or '.join(map(str, self._sinpe_ranks))} dimensions, as before the swap, got shape "
                f"{tuple(inputs[0].shape)}; reshape it"
            )
        return inputs[0]


class AddRows(PlainRows):
    """dropout(scale * x + factor * rows): PositionalEncoding of the tutorials."""

    def forward(self, *args: Any, **named: Any) -> Any:
        if self._sinpe_changed():
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        x = self._sinpe_input(args, named)
        if not self._sinpe_follows:
            x = x.to(torch.promote_types(x.dtype, self._sinpe_held(x)[0]))
        factor = self._sinpe_factor
        factor = getattr(self, factor) if isinstance(factor, str) else number_of(self, factor)
        first = x.dim() == 3 and self._sinpe_sequence == 0
        dropout = getattr(self, self._sinpe_dropout) if self._sinpe_dropout else None
        p = 0.0
        if dropout is not None and self._sinpe_fused:
            p, dropout = shared.rate(dropout)
        encoded = add(
            x,
            self._sinpe_encoding,
            scale=number_of(self, self._sinpe_scale),
            alpha=factor,
            seq_dim=-1 if self._sinpe_channels_first else 0 if first else -2,
            channel_dim=-2 if self._sinpe_channels_first else -1,
            dropout=p,
        )
        return encoded if dropout is None else dropout(encoded)


class GiveRows(PlainRows):
    """Returns the rows for the length of x: BERT-pytorch, Informer and similar models."""

    _sinpe_form: tuple[
        int, ...
    ] = ()  # shape of the result: 0 stands for the batch, 1 for a size of 1, 2 for the length

    def forward(self, *args: Any, **named: Any) -> Any:
        if self._sinpe_changed():
            return super(DropIn, self).forward(*args, **named)  # type: ignore[misc]
        x = self._sinpe_input(args, named)
        x = x.mT if self._sinpe_channels_first and x.is_floating_point() else x
        length = x.shape[self._sinpe_sequence]
        dtype, device = self._sinpe_held(x)
        rows = table(length, self._sinpe_encoding, dtype=x.dtype if self._sinpe_follows else dtype, device=device)
        batch = x.shape[1 - self._sinpe_sequence]
        sizes = {0: batch, 1: 1, 2: length}
        lead = tuple(sizes[part] for part in self._sinpe_form)
        form = tuple(length if part == 2 else 1 for part in self._sinpe_form)
        encoded = rows.reshape(*form, -1).expand(*lead, -1)
        encoded = encoded.mT if self._sinpe_channels_first else encoded
        return getattr(self, self._sinpe_dropout)(encoded) if self._sinpe_dropout else encoded


def form_of(
    module: nn.Module,
    key: str | None,
    rows: Tensor,
    turned: bool,
    encoding: Encoding,
    learned: str | None,
    recognized: str,
) -> list[Candidate] | Left:
    """The candidate for a module with one table, or why there is none.

    Args:
        key: the name of the table; None for a module that computes its rows.
        rows: the rows of the table, (positions, channels).
        turned: whether the table itself is (channels, positions).
        learned: the name of the parameter that may be a learned factor.
        recognized: beginning of the reason to report, which names the table.
    """
    reasons = []
    with quiet(rows.device):
        for channels_first in (turned, not turned):
            tried = isolated_copy(module)
            if channels_first:
                _with_channels_last(tried)
            try:
                (candidate,) = _form(tried, key, rows, encoding, learned)
            except Unclear as problem:
                reasons.append(str(problem))
                continue
            candidate.options["_sinpe_argument"] = parameters(module)[0]
            candidate.options["_sinpe_turned"] = turned
            if channels_first:
                _to_channels_first(candidate)
            return [candidate]
    return Left(f"{recognized}, but {reasons[0]}", encoding)


def _with_channels_last(tried: Any) -> None:
    """Changes a copy of a module with x and result of shape (batch, channels, sequence): its forward then takes and
    returns (batch, sequence, channels)."""
    kind: Any = type(tried)

    def forward(self: Any, x: Tensor) -> Tensor:
        out: Tensor = kind.forward(self, x.mT if x.is_floating_point() else x)
        return out.mT

    tried.__class__ = type(kind.__name__, (kind,), {"forward": forward})


def _to_channels_first(candidate: Candidate) -> None:
    """Converts a candidate found on the copy of `_with_channels_last` to channels first."""
    candidate.options["_sinpe_channels_first"] = True
    candidate.form = candidate.form.replace("batch first", "channels first").replace("of x", "of x, channels first")
    for probe in candidate.probes:
        probe.args = tuple(x.mT.contiguous() if x.is_floating_point() else x for x in probe.args)


def _form(tried: Any, key: str | None, held: Tensor, encoding: Encoding, learned: str | None) -> list[Candidate]:
    """The candidate for a channels-last forward. Raises Unclear if there is none."""
    dim, rows = held.shape[-1], held.numel() // held.shape[-1]
    if rows < LENGTH:
        raise Unclear(f"it has only {rows} rows")
    zeros = torch.zeros(BATCH, LENGTH, dim, dtype=held.dtype, device=held.device)
    at_zero, problem = run(tried, zeros)
    if at_zero is None and learned is None:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=held.device)
        if run(tried, ids)[0] is not None:
            return _returning(tried, key, held, encoding, ids)
        flat, _ = run(tried, zeros[0])
        if flat is not None and flat.shape == zeros[0].shape:
            return _adding(tried, key, held, encoding, learned, flat)
        raise Unclear(f"its forward could not be run on x of shape {tuple(zeros.shape)}: {problem}")
    if at_zero is not None and at_zero.shape == zeros.shape:
        if not all(same_values(run(tried, x)[0], at_zero) for x in inputs_of(tried, zeros)):
            return _adding(tried, key, held, encoding, learned, at_zero)
    if at_zero is not None and learned is None:
        return _returning(tried, key, held, encoding, zeros)
    raise Unclear("its forward does something else with it")


def _adding(
    tried: Any, key: str | None, held: Tensor, encoding: Encoding, learned: str | None, at_zero: Tensor
) -> list[Candidate]:
    """The candidate for a forward that adds the rows to x."""
    dim, rows = held.shape[-1], held.reshape(-1, held.shape[-1])
    noise = torch.randn(at_zero.shape, generator=torch.Generator().manual_seed(0)).to(held) * 0.5
    sequence = 1
    if at_zero.dim() == 3:
        by_batch, by_time = same_values(at_zero[0], at_zero[1]), same_values(at_zero[:, 0], at_zero[:, 1])
        if by_batch == by_time:
            raise Unclear("it does not add one row to each token")
        sequence = 1 if by_batch else 0
    result = at_zero if at_zero.dim() == 2 else at_zero.select(1 - sequence, 0)
    check_stateless(tried, noise)
    check_no_other_inputs(tried, noise, (key, learned))
    factor: Any = 1.0
    if learned is None:
        factor = _factor(tried, dim, result, rows[: len(result)], "rows")
    scale = _factor(tried, dim, run_or_raise(tried, noise) - at_zero, noise, "x")
    if learned is not None:
        factor = _learned(tried, learned, result, rows[: len(result)], at_zero)
    form = f"{_times(scale)}x + {_times(factor)}rows"
    placed = rows[: len(result)] if at_zero.dim() == 2 else rows[: len(result)].unsqueeze(1 - sequence)
    times, factor, named = as_attributes(tried, scale, factor, noise, placed)
    options: dict[str, Any] = {"_sinpe_sequence": sequence, "_sinpe_scale": times, "_sinpe_factor": factor}
    options["_sinpe_settings"] = settings(tried, named)
    options["_sinpe_argument"] = parameters(tried)[0]
    options["_sinpe_dropout"] = _dropout(tried, noise)
    options["_sinpe_follows"] = _follows(tried, noise, held)
    _differentiates(tried, noise)
    ranks = [3] if at_zero.dim() == 3 else [2]
    flat, _ = run(tried, torch.zeros(LENGTH, dim).to(held))
    if flat is not None and ranks == [3] and flat.shape == (LENGTH, dim) and same_values(flat, result[:LENGTH]):
        ranks = [2, 3]
    options["_sinpe_ranks"] = tuple(ranks)
    shapes = _shapes(ranks, sequence, rows)
    probes = [_noise(shape, dtype, held, len(rows)) for dtype in DTYPES for shape in shapes]
    probes += [_noise(shape, held.dtype, held, len(rows), size) for size in LARGE for shape in shapes[2::4]]
    order = "batch first" if sequence else "sequence first"
    form = f"{form}, {order if 3 in ranks else 'one sequence'}"
    return [Candidate(AddRows, encoding, (key,) if key else (), probes, options, form, True)]


def _returning(tried: Any, key: str | None, held: Tensor, encoding: Encoding, x: Tensor) -> list[Candidate]:
    """The candidate for a forward that returns rows for the length of x."""
    dim = held.shape[-1]
    result = run_or_raise(tried, x)
    forms = {
        (LENGTH, dim): (2,), (1, LENGTH, dim): (1, 2), (LENGTH, 1, dim): (2, 1), (BATCH, LENGTH, dim): (0, 2),
        (BATCH, dim): (2,), (1, BATCH, dim): (1, 2), (BATCH, 1, dim): (2, 1),
    }  # fmt: skip
    if result.dtype != held.dtype or tuple(result.shape) not in forms:
        raise Unclear(f"its forward gives a tensor of shape {tuple(result.shape)} for one of {tuple(x.shape)}")
    sequence = 1 if LENGTH in result.shape[:-1] else 0
    options: dict[str, Any] = {"_sinpe_sequence": sequence, "_sinpe_form": forms[tuple(result.shape)]}
    options["_sinpe_ranks"] = (x.dim(),)
    options["_sinpe_argument"] = parameters(tried)[0]
    inputs = inputs_of(tried, x)
    for another in inputs:
        if not same_values(run_or_raise(tried, another), result):
            raise Unclear("its forward does something else with x than to give rows for its length")
    check_stateless(tried, inputs[0])
    check_no_other_inputs(tried, inputs[0], (key, None))
    options["_sinpe_dropout"] = _dropout(tried, inputs[0])
    options["_sinpe_settings"] = settings(tried)
    rows = held.reshape(-1, dim)
    shapes = [shape[: x.dim()] for shape in _shapes([3], sequence, rows)]
    if not x.is_floating_point():
        most = [inputs_of(tried, torch.zeros(shape, dtype=x.dtype, device=x.device)) for shape in shapes]
        probes = [Probe((other,), {}, len(rows)) for others in most for other in others]
    else:
        options["_sinpe_follows"] = _follows(tried, inputs[0], held, sums=False)
        probes = [_noise(shape, dtype, held, len(rows)) for dtype in DTYPES for shape in shapes]
        ids = inputs_of(tried, torch.zeros(BATCH, LENGTH, dtype=torch.long, device=held.device))
        outs = [run(tried, other)[0] for other in ids]
        if sequence and not options["_sinpe_follows"] and all(same_values(out, result) for out in outs):
            options["_sinpe_ranks"] = (2, 3)  # BERT-pytorch calls it with token ids
            probes += [Probe((other,), {}, len(rows)) for other in ids]
    return [Candidate(GiveRows, encoding, (key,) if key else (), probes, options, "rows for the length of x", True)]


def _shapes(ranks: list[int], sequence: int, rows: Tensor) -> list[tuple[int, ...]]:
    """Shapes of inputs with several lengths, one of them the length of the table."""
    count, dim = rows.shape
    longest = max(1, min(count, 2**20 // dim))
    lengths = [(BATCH, LENGTH), (1, 1), (2, min(count, 37)), (1, longest)]
    shapes: list[tuple[int, ...]] = []
    if 3 in ranks:
        shapes += [(batch, length, dim) if sequence else (length, batch, dim) for batch, length in lengths]
    return shapes + ([(length, dim) for _, length in lengths] if 2 in ranks else [])


def _noise(shape: tuple[int, ...], dtype: torch.dtype, held: Tensor, rows: int, size: float = 0.5) -> Probe:
    """A call with random x."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * size
    reported = dtype == held.dtype and size <= 1
    return Probe((x.to(device=held.device, dtype=dtype),), {}, float(rows), 2.0, reported, dtype)


def _factor(tried: Any, dim: int, got: Tensor, of: Tensor, what: str) -> float:
    """The ratio got / of: 1, or a number that follows from an attribute of the module or its number of channels."""
    rounding = 1e-2 if got.dtype in (torch.bfloat16, torch.float16) else CLOSE
    got, of = got.cpu().double(), of.cpu().double()
    measured = float((got * of).sum() / of.square().sum())
    if not float((got - measured * of).abs().max()) <= rounding * max(1.0, abs(measured)) * 4:
        raise Unclear(f"its output is not a multiple of {what} plus something constant")
    attributes = [float(value) for value in vars(tried).values() if number(value)]
    attributes += [float(value) for value in tried._buffers.values() if value is not None and value.numel() == 1]
    roots = [math.sqrt(value) for value in (*attributes, float(dim)) if value > 0]
    known = [1.0, *attributes, *roots, *(1 / root for root in roots)]
    nearest = min(known, key=lambda value: abs(value - measured))
    if not abs(nearest - measured) <= rounding * max(1.0, abs(measured)):
        raise Unclear(f"it multiplies {what} by {measured:.6g}, which no attribute explains")
    return nearest


def _learned(tried: Any, name: str, result: Tensor, rows: Tensor, zeros: Tensor) -> str:
    """The name of the parameter by which the rows are multiplied. Raises Unclear if it does something else."""
    other = isolated_copy(tried)
    held = other._parameters[name] = nn.Parameter(tried._parameters[name].detach() * 2 + 0.5)
    for value, got in ((float(tried._parameters[name]), result), (float(held), None)):
        if got is None:
            changed = run_or_raise(other, torch.zeros_like(zeros))
            got = changed.reshape(zeros.shape)
            got = got if got.dim() == 2 else got[0] if same_values(got[0], got[1]) else got[:, 0]
        if not float((got.cpu().double() - value * rows.cpu().double()).abs().max()) <= CLOSE * (1 + abs(value)) * 4:
            raise Unclear(f"what its parameter `{name}` does is not clear")
    return name


def _dropout(tried: Any, x: Tensor) -> str | None:
    """The name of the child that applies dropout to the result; None if there is no dropout."""
    names = [name for name, child in tried._modules.items() if isinstance(child, nn.Dropout)]
    if len(names) > 1:
        raise Unclear(f"it has {len(names)} dropouts")
    other = isolated_copy(tried)
    other.__dict__["training"] = True
    for name in names:
        other._modules[name].__dict__.update(training=True, p=1.0)
    still, before = run_or_raise(other, x), run_or_raise(tried, x)
    if names and not bool(still.any()):
        return names[0]
    if not same_values(still, before) or not same_values(run_or_raise(other, x), before):
        raise Unclear("it gives something else in training than dropout of the sum")
    return None


def _follows(tried: Any, x: Tensor, held: Tensor, sums: bool = True) -> bool:
    """Whether the result has the dtype of x, whatever the table's; sums: whether x is added to the rows."""
    kinds = {}
    for dtype in DTYPES:
        out = run_or_raise(tried, x.to(dtype))
        usual = torch.promote_types(dtype, held.dtype) if sums else held.dtype
        if out.dtype not in (dtype, usual):
            raise Unclear(f"it gives {out.dtype} for x of {dtype}")
        if dtype != usual:
            kinds[dtype] = out.dtype == dtype
    if len(set(kinds.values())) > 1:
        raise Unclear("the dtype of its result follows no rule")
    return any(kinds.values())


def _differentiates(tried: Any, x: Tensor) -> None:
    """Raises Unclear if the output is not differentiable with respect to x."""
    with torch.enable_grad():
        if not run_or_raise(tried, x.detach().clone().requires_grad_()).requires_grad:
            raise Unclear("no gradient reaches x through it")


def _times(factor: Any) -> str:
    """A factor as text, for the description of a form."""
    return f"{factor} * " if isinstance(factor, str) else "" if factor == 1.0 else f"{factor:.6g} * "
