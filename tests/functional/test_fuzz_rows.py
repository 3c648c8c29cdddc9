"""Property-based tests of rows: by name, by timestep, into views, large sizes; compared with mpmath."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, reject
from hypothesis import strategies as st
from oracles import check_exact, close_float64, on, same, slopes, steepness
from strategies import DTYPES, INT64_MAX, INT64_MIN, encodings, fractional_positions, positions, views, whole_positions
from torch import Tensor
from ulp import compare, some_channels

import sinpe_ext as sinpe
from sinpe_ext import Encoding
from sinpe_ext.encodings.catalogue import CATALOGUE

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("need_kernels")]
BACKENDS = ("compiled", "eager")
# Reasons in test_accuracy.py: the float32 value rounded once more, and double-double arithmetic.
ULP = {torch.float32: 0.5001, torch.float64: 1.0, torch.bfloat16: 0.501, torch.float16: 0.501}


@pytest.fixture(autouse=True, scope="module")
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@st.composite
def named_encodings(draw: st.DrawFn, max_dim: int = 70) -> Encoding:
    """A convention with any dim and changed fields."""
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        fields["base"] = draw(st.sampled_from((10000.0, 100.0, 1e6, 500000, 2.0)))
    if draw(st.booleans()):
        fields["start"] = draw(st.sampled_from((0, 1, 2, -3)))
    if draw(st.integers(0, 3)) == 0:
        fields["position_scale"] = draw(st.sampled_from((1000, 0.25, 2 * math.pi)))
    name = draw(st.sampled_from(sorted(CATALOGUE)))
    fields = {} if name in ("nerf", "tcnn") else fields  # powers of two: no base
    try:
        return sinpe.convention(name, draw(st.integers(1, 40 if name in ("nerf", "tcnn") else max_dim)), **fields)
    except ValueError:  # shift=1 needs more than one frequency
        reject()


def check_against_mpmath(rows: Tensor, encoding: Encoding, at: list[Any]) -> None:
    """Compares about 40 entries with mpmath."""
    if not rows.numel() or not all(math.isfinite(p) for p in at):
        return
    each = max(1, min(encoding.dim, 40 // len(at)))
    report = compare(rows, encoding, at, some_channels(len(at), encoding.dim, each))
    assert report.worst <= ULP[rows.dtype], str(report)


@given(named_encodings(), st.integers(0, 40), whole_positions(), st.sampled_from(DTYPES))
def test_named_table(encoding: Encoding, length: int, start: int, dtype: torch.dtype) -> None:
    start = max(-(2**30), min(start, 2**30))  # the ULP bound holds for positions below 2**31
    made = [on(backend, lambda: sinpe.table(length, encoding, start=start, dtype=dtype)) for backend in BACKENDS]
    assert close_float64(*made) if dtype == torch.float64 else same(*made)
    first = encoding.start + start
    for rows in made:
        check_against_mpmath(rows, encoding, list(range(first, first + length)))


@pytest.mark.parametrize("odd", ["round", "truncate", "pad"])
@pytest.mark.parametrize("layout", ["interleaved", "sin_cos", "cos_sin"])
def test_frequencies_of_each_channel(layout: str, odd: str, backend: str) -> None:
    """Explicit list, in the order sin 0, cos 0, sin 1, ...: a truncated channel, possibly a sine, has none."""
    frequencies = tuple(0.1 * k for k in range(1, 6 - (odd == "pad")))
    encoding = Encoding(5, layout=layout, odd=odd, cos_frequency="own", frequencies=frequencies)
    check_against_mpmath(sinpe.table(20, encoding), encoding, list(range(20)))


@given(named_encodings(), st.data(), st.sampled_from(DTYPES))
def test_timesteps(encoding: Encoding, data: st.DataObject, dtype: torch.dtype) -> None:
    """The layer of diffusion models: fractional positions, gradients, conversion of the layer."""
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=2)))
    t = draw(positions(shape))
    layer = sinpe.TimestepEncoding(encoding.dim, encoding=encoding, dtype=draw(st.sampled_from((dtype, None))))
    if layer.follows:
        layer.to(dtype)
    made = [on(backend, lambda: layer(t)) for backend in BACKENDS]
    assert close_float64(*made) if dtype == torch.float64 else same(*made)
    at = t.flatten().tolist()
    for rows in made:
        assert rows.shape == (*shape, encoding.dim) and rows.dtype == dtype
        flat = rows.reshape(-1, encoding.dim)
        if all(abs(p) < 2**30 for p in at):
            check_exact(encoding, at, flat, [0, 1, encoding.dim - 1, flat.numel() - 1, flat.numel() // 2])
        zeros = 1 if encoding.odd == "pad" and encoding.dim % 2 else 0
        for k, p in enumerate(at):
            assert bool((flat[k, : encoding.dim - zeros].isnan() != math.isfinite(p)).all())


@given(encodings(16), st.data(), st.sampled_from(DTYPES[::3]))
def test_gradient_of_encode(encoding: Encoding, data: st.DataObject, dtype: torch.dtype) -> None:
    draw = data.draw
    values = draw(st.lists(st.floats(-5000, 5000, width=32), min_size=1, max_size=4))
    t = torch.tensor(values, dtype=draw(st.sampled_from(DTYPES[::3])))
    grad = torch.randn(len(values), encoding.dim, generator=torch.Generator().manual_seed(len(values))).to(dtype)
    terms = slopes(encoding, t.tolist()) * grad
    sizes = (steepness(encoding) * grad.abs().double()).sum(-1)
    for backend in BACKENDS:
        with sinpe.use_backend(backend):
            given = t.clone().requires_grad_()
            (got,) = torch.autograd.grad(sinpe.encode(given, encoding, dtype=dtype), given, grad)
        rounding = 2.0**-23 if torch.float32 in (t.dtype, dtype) else 2.0**-50
        fine = sizes < 1e30
        off = (got.double() - terms.sum(-1)).abs()
        assert bool((off <= (rounding + 1e-12) * sizes + 1e-44)[fine].all()), (got, terms.sum(-1))


@given(st.one_of(encodings(40), named_encodings()), st.data(), st.integers(0, 70), st.sampled_from(DTYPES))
def test_table_out(encoding: Encoding, data: st.DataObject, length: int, dtype: torch.dtype) -> None:
    """Each element of the view is written, and none outside it."""
    start = data.draw(st.integers(-(2**45), 2**45))
    memory, out = data.draw(views((length, encoding.dim), dtype, expanded=False))
    before = memory.clone()
    torch.as_strided(before, out.size(), out.stride(), out.storage_offset()).fill_(0)
    for backend in BACKENDS:
        with sinpe.use_backend(backend), torch.inference_mode(data.draw(st.booleans())):
            out.fill_(math.nan)
            assert sinpe.table(length, encoding, start=start, out=out) is out
            assert same(out.clone(), sinpe.table(length, encoding, start=start, dtype=dtype))
            out.fill_(0)
            assert same(memory, before), "an element outside the result was modified"


@given(named_encodings(), st.data(), st.sampled_from(("float32_exp", "float32_pow")), st.sampled_from(DTYPES))
def test_float32_angles(encoding: Encoding, data: st.DataObject, angle: str, dtype: torch.dtype) -> None:
    """All backends give equal bits; a table equals its positions' rows; near 0 they are close to the exact ones."""
    assume(encoding.frequencies is None)
    try:
        rounded = encoding.replace(angle=angle)
    except ValueError:
        reject()
    length, start = data.draw(st.integers(1, 60)), data.draw(st.integers(-(2**20), 2**20))
    made = [on(backend, lambda: sinpe.table(length, rounded, start=start, dtype=dtype)) for backend in BACKENDS]
    assert same(*made)
    at = torch.arange(length) + (rounded.start + start)
    assert same(sinpe.encode(at, rounded, dtype=dtype), made[0])
    x = torch.randn(length, rounded.dim, dtype=torch.float32)
    added = [on(backend, lambda: sinpe.add(x, rounded, start=start, dropout=0.5, seed=3)) for backend in BACKENDS]
    assert same(*added)
    if not start:
        assert (made[0][0].double() - sinpe.table(1, encoding, dtype=torch.float64)[0]).abs().max() < 0.01


@given(encodings(40), st.data(), st.sampled_from(DTYPES), st.sampled_from((1, 2, 3)))
def test_large(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, threads: int) -> None:
    """More than one tile, block and chunk per thread: table, encode, add with dropout and its backward pass."""
    draw = data.draw
    dim = draw(st.sampled_from((1, 2, 7, 64, 129, 400)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(65, 70000 // dim)), dim)
    try:
        encoding = encoding.replace(dim=dim, frequencies=None)
        assert not encoding.frequencies_radians() or max(map(abs, encoding.frequencies_radians())) < 2.0**62
    except (ValueError, OverflowError, AssertionError):
        reject()
    assume(all(w == 0 or abs(w) > 2.0**-350 for w in encoding.frequencies_radians()))
    start, seed = draw(st.integers(-(2**60), 2**60)), draw(st.integers(INT64_MIN, INT64_MAX))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed % 2**32)).to(dtype)
    results = []
    torch.set_num_threads(threads)
    for backend in BACKENDS:
        with sinpe.use_backend(backend):
            given = x.clone().requires_grad_()
            y = sinpe.add(given, encoding, start=start, scale=1.5, alpha=0.3, dropout=0.25, seed=seed)
            (back,) = torch.autograd.grad(y, given, x)
            table = sinpe.table(shape[1], encoding, start=start, dtype=dtype)
            at = torch.arange(shape[1]) + (start + encoding.start)
            assert same(sinpe.encode(at, encoding, dtype=dtype), table)
            results.append((back, y.detach(), table))
    assert same(results[0][0], results[1][0])
    entries = [0, table.numel() - 1, *(k * table.numel() // 7 for k in range(1, 7))]
    for compiled, eager in zip(results[0][1:], results[1][1:], strict=True):
        assert dtype == torch.float64 or same(compiled, eager)
    check_exact(encoding, range(start + encoding.start, start + encoding.start + shape[1]), results[0][2], entries)


@given(encodings(24), st.data(), st.sampled_from((np.float32, np.float64, np.float16)))
def test_numpy_takes_arrays_of_any_layout(encoding: Encoding, data: st.DataObject, dtype: Any) -> None:
    draw, count = data.draw, data.draw(st.integers(0, 9))
    values = draw(st.lists(fractional_positions(64), min_size=count, max_size=count))
    at = np.array(values, dtype=np.float64)
    layouts = {"plain": at, "swapped": at.astype(at.dtype.newbyteorder()), "spread": np.repeat(at, 2)[::2]}
    given = layouts[draw(st.sampled_from(sorted(layouts)))][:: draw(st.sampled_from((1, -1)))]
    want = sinpe.numpy.encode(np.ascontiguousarray(given, dtype=np.float64), encoding, dtype=dtype)
    got = sinpe.numpy.encode(given, encoding, dtype=dtype)
    assert same(torch.from_numpy(got), torch.from_numpy(want))
    length = draw(st.integers(0, 20))
    memory = np.full((length + 2, 2 * encoding.dim + 1), 7, dtype=dtype)
    out = memory[1:-1, 1::2]
    assert sinpe.numpy.table(length, encoding, dtype=dtype, out=out) is out
    assert same(torch.from_numpy(out.copy()), torch.from_numpy(sinpe.numpy.table(length, encoding, dtype=dtype)))
    out[...] = 7
    assert (memory == 7).all()
