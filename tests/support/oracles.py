"""Expected results: sums, dropout masks and gradients by formula; comparison of bits; checks against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import torch
from philox import kept, kept_mask
from torch import Tensor
from ulp import PRECISION, bits, truth, units

import sinpe_ext as sinpe
from sinpe_ext import Encoding
from sinpe_ext.encodings.plan import plan
from sinpe_ext.reference import exact

FLOAT64_ULP = 1.0  # of the exact value, for each backend
SMALLEST_FLOAT64 = 2.0**-960  # below, double-double arithmetic underflows
SUM_ORDER = 1e-12  # relative to the sum of absolute values: float64 sums in different orders


def on(backend: str, call: Callable[[], Any]) -> Any:
    with sinpe.use_backend(backend):
        return call()


def acc_of(dtype: torch.dtype) -> torch.dtype:
    """The dtype that products and sums are rounded to."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def same(x: Any, y: Any) -> bool:
    """Equal bits, or NaN in both."""
    if x.shape != y.shape or str(x.dtype) != str(y.dtype):
        return False
    nans = [a.isnan().numpy() if isinstance(a, Tensor) else np.isnan(a) for a in (x.detach(), y.detach())]
    return np.array_equal(*nans) and bool((nans[0] | (bits(x) == bits(y))).all())


def close_float64(x: Tensor, y: Tensor) -> bool:
    """float64 of two backends: each within one ULP of the exact value, NaN and zeros at the same places."""
    gap = 2 * FLOAT64_ULP * units(y.nan_to_num().numpy(), 0.0, "float64") + SMALLEST_FLOAT64
    zeros = (x == 0) | (y == 0)
    return (
        torch.equal(x.isnan(), y.isnan())
        and bool(((x - y).abs().nan_to_num(0.0, 0.0).numpy() <= gap).all())
        and torch.equal(x.signbit()[zeros], y.signbit()[zeros])
    )


def check_exact(encoding: Encoding, at: Sequence[Any], rows: Tensor, entries: list[int]) -> None:
    """Some entries, by their index in `rows`: against mpmath, and bitwise against integer arithmetic."""
    p, limit = plan(encoding), FLOAT64_ULP
    for index in entries if rows.numel() else ():
        row, channel = divmod(index % rows.numel(), p.dim)
        got = rows[row, channel]
        check_truth(encoding, at[row], channel, got)
        if rows.dtype == torch.float64:
            want = exact.float64(p, at[row], channel)
            if want == 0:
                assert same(got, torch.tensor(want, dtype=torch.float64)), (at[row], channel)
            elif abs(want) > SMALLEST_FLOAT64:
                assert abs(float(got) - want) <= limit * units(np.float64(want), 0.0, "float64"), (at[row], channel)
        else:
            want = torch.tensor(exact.float32(p, at[row], channel), dtype=torch.float32).to(rows.dtype)
            assert same(got, want), (at[row], channel, float(got), float(want))


def check_truth(encoding: Encoding, position: Any, channel: int, got: Tensor) -> None:
    """One entry against mpmath, computed from the formula including the frequency."""
    if not abs(position) < 2**31:  # also NaN
        return
    want, dtype = truth(encoding).entry(position, channel), str(got.dtype).removeprefix("torch.")
    with mpmath.workprec(PRECISION):
        off = float(abs(mpmath.mpf(float(got)) - want))
    limit = {"float64": FLOAT64_ULP, "float32": 0.5001}.get(dtype, 0.501)
    near_zero = abs(encoding.amplitude) * abs(position) * 2.0**-125  # the error of the stored frequency, in radians
    allowed = limit * float(units(np.array(float(want)), 0.0, dtype)) + near_zero
    assert off <= max(allowed, SMALLEST_FLOAT64), (position, channel, float(got), float(want))


def broadcast_to_rows(t: Tensor, x: Tensor) -> Tensor:
    """(1 or B, S, n) in the shape of x in canonical form, (B, *M, S, D) or (S, D)."""
    return t[0] if x.dim() == 2 else t.reshape(t.shape[0], *(1,) * (x.dim() - 3), *t.shape[1:])


def expected_total(x: Tensor, rows: Tensor, scale: float, alpha: Any, mask: Tensor | None) -> Tensor:
    """round(scale * x) + round(alpha * PE), rounded, in acc: x (B, *M, S, D), rows (1 or B, S, D), mask (1 or B, S)."""
    acc = acc_of(x.dtype)
    scaled = torch.as_tensor(scale, dtype=acc) * x.to(acc)
    added = torch.as_tensor(alpha, dtype=torch.float64).detach().reshape(()).to(acc) * rows.to(acc)
    total = scaled + broadcast_to_rows(added, x)
    return total if mask is None else torch.where(broadcast_to_rows(mask.unsqueeze(-1), x), scaled, total)


def threshold_of(p: float) -> int:
    """A probability in 65536ths; 0 and 65536 only for exactly 0 and 1."""
    return int(p) * 65536 if p in (0.0, 1.0) else min(max(round(p * 65536), 1), 65535)


def expected_mask(shape: Sequence[int], p: float, seed: int) -> Tensor:
    """The elements of a result of that shape that dropout keeps."""
    count, drop = math.prod(shape), threshold_of(p)
    keep = kept_mask(seed, count, drop)
    for element in {0, count // 3, count - 1} if 0 < drop < 65536 and count else ():
        assert keep[element] == kept(seed, element, drop)
    return torch.from_numpy(keep).reshape(tuple(shape))


def expected_dropout(total: Tensor, dtype: torch.dtype, p: float, seed: int) -> Tensor:
    """Dropout of a sum in acc, in the shape of the result; +0 where dropped, then rounded to `dtype`."""
    drop = threshold_of(p)
    if drop == 0:
        return total.to(dtype)
    scaled = total * torch.tensor(0.0 if drop == 65536 else 65536 / (65536 - drop), dtype=total.dtype)
    return torch.where(expected_mask(total.shape, p, seed), scaled.to(dtype), torch.zeros((), dtype=dtype))


def expected_gradient(grad: Tensor, scale: float, p: float, seed: int) -> Tensor:
    """Gradient of x, for a gradient of the result in the same shape."""
    acc = acc_of(grad.dtype)
    return expected_dropout(torch.as_tensor(scale, dtype=acc) * grad.to(acc), grad.dtype, p, seed)


def kept_gradient(grad: Tensor, p: float, seed: int) -> Tensor:
    """The gradient of the sum in float64, from which the other gradients follow."""
    drop = threshold_of(p)
    wide = grad.double() * (65536 / (65536 - drop) if drop < 65536 else 0.0)
    return wide if drop == 0 else torch.where(expected_mask(grad.shape, p, seed), wide, 0.0)


def check_sum(got: Tensor, terms: Tensor, relative: float = 0.0) -> None:
    """A gradient of one element that is the sum of `terms`, each with that relative error."""
    want, sizes = float(terms.sum()), float(terms.abs().sum())
    if math.isfinite(sizes) and sizes < 1e30:
        rounding = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}[got.dtype]
        limit = (SUM_ORDER + relative) * sizes + rounding * abs(want) + 1e-44
        assert abs(float(got) - want) <= limit, (float(got), want, sizes)


def slope(encoding: Encoding, position: float, channel: int) -> float:
    """The derivative of a channel with respect to the position."""
    kind, frequency = truth(encoding)._formula[channel]
    with mpmath.workprec(PRECISION):
        exact = mpmath.mpf(position)
        if encoding.unit == "radian":
            angle, of_angle, sine, cosine = exact * frequency, frequency, mpmath.sin, mpmath.cos
        else:
            angle, of_angle, sine, cosine = exact * frequency, frequency * mpmath.pi, mpmath.sinpi, mpmath.cospi
        value = -sine(angle) if kind else cosine(angle)
        return float(mpmath.mpf(encoding.amplitude) * of_angle * value)


def slopes(encoding: Encoding, positions: Sequence[float]) -> Tensor:
    """(len(positions), dim), float64."""
    every = [[slope(encoding, p, channel) for channel in range(encoding.dim)] for p in positions]
    return torch.tensor(every, dtype=torch.float64).reshape(len(positions), encoding.dim)


def steepness(encoding: Encoding) -> Tensor:
    """The largest derivative of each channel, (dim,)."""
    unit = 1.0 if encoding.unit == "radian" else math.pi
    frequencies = [abs(float(truth(encoding).frequency(channel))) for channel in range(encoding.dim)]
    return torch.tensor(frequencies, dtype=torch.float64) * unit * abs(encoding.amplitude)


def tree_sum(terms: Tensor) -> Tensor:
    """(*, dim) of (n, *, dim), in the order of csrc/core/tree_sum.h: sums of 64 neighbours, sequentially from +0, then
    sums of 64 of these, until one is left.
    """
    while True:
        sums = []
        for some in terms.split(64):
            total = torch.zeros_like(terms[0])
            for one in some:
                total = total + one
            sums.append(total)
        if len(sums) == 1:
            return sums[0]
        terms = torch.stack(sums)
