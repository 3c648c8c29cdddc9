"""Reference implementation of `table` and `encode` in array operations, bitwise equal to the compiled kernels.

Written once for torch (any device) and NumPy. It is used where no kernel is available, and tests compare with it as
well as with mpmath. float32 values are computed in float64 with an error bound. An entry whose rounding the bound does
not decide is evaluated more accurately (`phase.sin_cos`), and if that does not decide it either, in integer arithmetic
(`exact`). So every float32 entry is correctly rounded and does not depend on how rows are grouped. 16-bit results are
the float32 results, rounded.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from ..encodings.plan import Plan
from . import exact, phase
from .arrays import Array, Arrays, arrays

# Up to this many entries are resolved one by one (20 to 50 us each) rather than by another pass of array operations.
FEW = 12
MAX_BLOCK_ROWS = 256  # rows rotated from one anchor; a directly evaluated row costs about 25 times a rotated one
COMPUTED_HERE = ("cpu", "cuda")  # devices with float64 and int64 shifts; for others results are computed on the CPU


def table(
    plan: Plan,
    length: int,
    start: int,
    dtype: Any,
    device: Any = None,
    xp: ModuleType | None = None,
) -> Array:
    """Rows start .. start + length - 1 of an encoding.

    Args:
        plan: the constants of the encoding.
        length: number of rows; start + length - 1 must fit int64.
        start: position of the first row (`encoding.start` already added).
        dtype: of the result, a dtype of `xp`.
        device: for torch.
        xp: torch (the default) or numpy.
    Returns:
        (length, dim).
    Accuracy:
        float32 correctly rounded; 16-bit the float32 value rounded again; float64 within 1 ULP.
    """
    a = arrays(xp, device)
    if a.device is not None and a.device.type not in COMPUTED_HERE:
        return table(plan, length, start, dtype, "cpu", xp).to(a.device)
    return a.quiet(_table)(a, plan, length, start, dtype)


def encode(plan: Plan, positions: Array, dtype: Any, xp: ModuleType | None = None) -> Array:
    """The encoding of any positions.

    Args:
        plan: the constants of the encoding.
        positions: int64, float32 or float64, any shape; floats are taken at their exact value.
        dtype: of the result, a dtype of `xp`.
        xp: torch (the default) or numpy.
    Returns:
        `(*positions.shape, dim)`, on the device of `positions`; NaN where a position is NaN or infinite.
    Accuracy:
        as `table`.
    """
    device = getattr(positions, "device", None) if xp is None or xp.__name__ != "numpy" else None
    a = arrays(xp, device)
    if a.device is not None and a.device.type not in COMPUTED_HERE:
        return encode(plan, positions.cpu(), dtype, xp).to(a.device)
    return a.quiet(_encode)(a, plan, positions, dtype)


def _table(a: Arrays, plan: Plan, length: int, start: int, dtype: Any) -> Array:
    """`table` with the array operations of one library."""
    if not plan.n_osc:
        return a.zeros((length, plan.dim), dtype)
    out = a.empty((length, plan.dim), dtype)
    if not length:
        return out
    if dtype != a.xp.float64:
        _rotated_rows(a, plan, start, out)
        return out
    osc = phase.oscillators(a, plan)
    rows = _rows_at_once(a, plan, dtype)
    for first in range(0, length, rows):
        last = min(length, first + rows)
        _float64_rows(a, plan, osc, start + a.arange(first, last), out[first:last])
    return out


def _encode(a: Arrays, plan: Plan, positions: Array, dtype: Any) -> Array:
    """`encode` with the array operations of one library."""
    flat = positions.reshape(-1)
    if a.is_float(flat):
        flat = a.cast(flat, a.xp.float64)
    count = len(flat)
    out = a.empty((count, plan.dim), dtype) if plan.n_osc else a.zeros((count, plan.dim), dtype)
    if count and plan.n_osc:
        osc = phase.oscillators(a, plan)
        fill = _float64_rows if dtype == a.xp.float64 else _float32_rows
        rows = _rows_at_once(a, plan, dtype)
        for first in range(0, count, rows):
            block, target = flat[first : first + rows], out[first : first + rows]
            if a.is_float(flat):
                finite = a.xp.isfinite(block)
                fill(a, plan, osc, a.xp.where(finite, block, 0.0), target)
                if not bool(finite.all()):
                    target[:, : plan.n0 + plan.n1][~finite] = math.nan
            else:
                fill(a, plan, osc, block, target)
    return out.reshape(*positions.shape, plan.dim)


def _rows_at_once(a: Arrays, plan: Plan, dtype: Any) -> int:
    """Rows evaluated directly in one pass: a few arrays of that size exist at the same time, for float64 about
    thirty."""
    return max(1, a.block // (8 if dtype == a.xp.float64 else 2) // plan.n_osc)


def _rotated_rows(a: Arrays, plan: Plan, start: int, out: Array) -> None:
    """Fills `out` with rows from `start`: a few directly evaluated rows (anchors), rotated by the angles of rows 0, 1,
    2, ... (offsets).

    sin(x + y) = sin x cos y + cos x sin y, where x includes the quarter turn of a cosine channel.
    Error: `_bounds` at the largest angle.
    """
    xp, length = a.xp, len(out)
    osc = phase.oscillators(a, plan)
    block = min(MAX_BLOCK_ROWS, 1 << math.isqrt(length - 1).bit_length())
    reach = xp.abs(osc.turns) * (phase.TURN * (max(abs(start), abs(start + length)) + block))
    rows = a.arange(0, length, block)[:, None]
    first, _ = phase.integer_phase(a.array_of([[start]], xp.int64), osc.high, osc.low)
    reals = a.cast(rows, xp.float64) + float(start)
    theta = phase.word_angles(a, first + phase.phase_word(a, rows, osc), reals, osc, reach)
    sines, cosines = xp.sin(theta) * plan.amplitude, xp.cos(theta) * plan.amplitude
    anchor_sin = _channels(a, plan, *_ordered(plan, sines, cosines))[:, None]
    anchor_cos = _channels(a, plan, *_ordered(plan, cosines, -sines))[:, None]
    rows = a.arange(0, block)[:, None]
    theta = phase.word_angles(a, phase.phase_word(a, rows, osc), a.cast(rows, xp.float64), osc, reach)
    sines, cosines = xp.sin(theta), xp.cos(theta)
    offset_sin, offset_cos = _channels(a, plan, sines, sines), _channels(a, plan, cosines, cosines)
    bound = _channels(a, plan, *(x[None] for x in _bounds(a, plan, phase.sine_bound(a, reach))))
    minus_bound, twice_bound = -bound, bound + bound

    # A piece of the result is rotated in one pass: several blocks of narrow rows, or a part of a block of wide rows.
    per_pass = max(1, a.block // plan.dim)
    many = max(1, min(len(anchor_sin), per_pass // block))
    part = block if many > 1 else min(block, 1 << per_pass.bit_length() - 1)
    offsets = list(zip(a.split(offset_cos, part), a.split(offset_sin, part), strict=True))
    anchors = list(zip(a.split(anchor_sin, many), a.split(anchor_cos, many), strict=True))
    buffer = a.empty((many, part, plan.dim), xp.float64)
    values, upper = buffer.reshape(-1, plan.dim), a.empty((many * part, plan.dim), xp.float32)
    lower = None if out.dtype == xp.float32 else a.empty((many * part, plan.dim), xp.float32)
    position = start
    for number, target in enumerate(a.split(out, many * part)):
        (sines, cosines), (offset_cos, offset_sin) = anchors[number // len(offsets)], offsets[number % len(offsets)]
        count = len(target)
        work = buffer if len(sines) == many else buffer[: len(sines)]
        a.multiply_add(sines, offset_cos, minus_bound, work)
        a.multiply_add(cosines, offset_sin, work, work)
        rows, high = (values, upper) if count == len(values) else (values[:count], upper[:count])
        low = target if lower is None else lower[:count]
        a.copy(low, rows)
        xp.add(rows, twice_bound, out=rows)
        a.copy(high, rows)
        if position <= 0 < position + count:
            low[-position] = high[-position] = _origin(a, plan)
        if not a.same_bits(low, high):
            _resolve_roundings(a, plan, osc, low, high, position + a.arange(0, count))
        if lower is not None:
            a.copy(target, low)
        position += count


def _float32_rows(a: Arrays, plan: Plan, osc: phase.Oscillators, positions: Array, out: Array) -> None:
    """Fills `out` with the float32 rows of finite positions, rounded once more if its dtype is narrower."""
    xp, p = a.xp, positions[:, None]
    fast = phase.angles(a, p, osc)
    if fast is not None:
        theta, bound = fast
        sines, cosines = xp.sin(theta) * plan.amplitude, xp.cos(theta) * plan.amplitude
        bounds = _bounds(a, plan, bound)
    else:
        sines, _, cosines, _, _ = phase.sin_cos(a, p, osc)
        sines, cosines = sines * plan.amplitude, cosines * plan.amplitude
        bounds = _ordered(plan, xp.abs(sines) * phase.DIRECT_ERROR, xp.abs(cosines) * phase.DIRECT_ERROR)
    first, second = _ordered(plan, sines, cosines)
    low = a.cast(_channels(a, plan, first - bounds[0], second - bounds[1]), xp.float32)
    high = a.cast(_channels(a, plan, first + bounds[0], second + bounds[1]), xp.float32)
    zero = positions == 0
    if bool(zero.any()):
        low[zero] = high[zero] = _origin(a, plan)
    if not a.same_bits(low, high):
        _resolve_roundings(a, plan, osc, low, high, positions)
    a.copy(out, low)


def _float64_rows(a: Arrays, plan: Plan, osc: phase.Oscillators, positions: Array, out: Array) -> None:
    """Fills `out` with the float64 rows of finite positions."""
    sines, sines_low, cosines, cosines_low, _ = phase.sin_cos(a, positions[:, None], osc)
    sines = phase.scaled(a, sines, sines_low, plan.amplitude)
    cosines = phase.scaled(a, cosines, cosines_low, plan.amplitude)
    a.copy(out, _channels(a, plan, *_ordered(plan, sines, cosines)))


def _resolve_roundings(
    a: Arrays, plan: Plan, osc: phase.Oscillators, low: Array, high: Array, positions: Array
) -> None:
    """Recomputes, in place, the entries of `low` that differ from `high`: the error bound does not decide their
    rounding."""
    xp = a.xp
    rows, channels = a.nonzero(low.view(xp.int32) != high.view(xp.int32))
    for first in range(0, len(rows), a.block):
        row, channel = rows[first : first + a.block], channels[first : first + a.block]
        if len(row) > FEW:
            stream = channel & 1 if plan.interleaved else a.cast(channel >= plan.n0, xp.int64)
            pair = channel >> 1 if plan.interleaved else channel - plan.n0 * stream
            one = osc.at(pair if plan.shared else pair + plan.n0 * stream)
            sine, _, cosine, _, rest = phase.sin_cos(a, positions[row], one)
            value = xp.where((stream != 0) != bool(plan.q0), cosine, sine) * plan.amplitude
            error = xp.where(rest == 0, 0.0, phase.DIRECT_ERROR * xp.abs(value))
            lower, upper = a.cast(value - error, xp.float32), a.cast(value + error, xp.float32)
            low[row, channel] = lower
            (still,) = a.nonzero((lower.view(xp.int32) != upper.view(xp.int32)) & (error != 0))
            row, channel = row[still], channel[still]
        if len(row):
            known: dict[tuple[float, int], float] = {}  # a position is often repeated
            entries = list(zip(positions[row].tolist(), channel.tolist(), strict=True))
            for position, index in entries:
                if (position, index) not in known:
                    known[position, index] = exact.float32(plan, position, index)
            low[row, channel] = a.array_of([known[entry] for entry in entries], xp.float32)


def _bounds(a: Arrays, plan: Plan, sine: Array) -> tuple[Array, Array]:
    """Error bounds of stream 0 and stream 1 per oscillator, from the bound of sines before the amplitude."""
    cosine = a.xp.maximum(sine, sine * 0.0 + phase.ANGLE_ERROR) * abs(plan.amplitude)
    return _ordered(plan, sine * abs(plan.amplitude), cosine)


def _ordered(plan: Plan, sine: Array, cosine: Array) -> tuple[Array, Array]:
    """Sines and cosines as (stream 0, stream 1)."""
    return (cosine, sine) if plan.q0 else (sine, cosine)


def _origin(a: Arrays, plan: Plan) -> Array:
    """The float32 row of position 0: 0 and 1 times the amplitude."""
    zero = a.zeros((1, plan.n_osc), a.xp.float64)
    row = _channels(a, plan, (zero + plan.q0) * plan.amplitude, (zero + plan.q1) * plan.amplitude)
    return a.cast(row[0], a.xp.float32)


def _channels(a: Arrays, plan: Plan, first: Array, second: Array) -> Array:
    """(rows, dim) from the values of the two streams, each (rows, n_osc); the remaining channels are 0."""
    used = plan.n0 + plan.n1
    rows = a.empty((len(first), plan.dim), first.dtype)
    second = second if plan.shared else second[:, plan.n0 :]
    to_first, to_second = slice(0, plan.n0), slice(plan.n0, used)
    if plan.interleaved:
        to_first, to_second = slice(0, used, 2), slice(1, used, 2)
    rows[:, to_first] = first[:, : plan.n0]
    rows[:, to_second] = second[:, : plan.n1]
    rows[:, used:] = 0
    return rows
