"""One result, whoever computes it: compiled kernels, eager twin and NumPy, over drawn arguments.

Equal means equal bits (a NaN for a NaN); float64 of two backends is only within an ULP of the exact value each. The
drawn cases are the same for everyone; SINPE_EXT_FUZZ=50 draws 50 times as many, new ones at each run.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DTYPES, INT64_MAX, INT64_MIN, encodings, positions, sprinkle, views, whole_positions
from ulp import bits, units

import sinpe_ext as sinpe
import sinpe_ext.numpy as sinpe_numpy
from sinpe_ext import Encoding, _backend, _exact
from sinpe_ext._plan import plan

# Little-endian bytes of table(65536, 512), float32; test_accuracy.py holds every entry of it against the truth.
SHA256 = "0bd6b4b1dfc59ae6ab06fb89d6ef7bf2be812b44837dee370b4231f20574f60f"

FLOAT64_ULP = 1.0  # of the exact value, from each backend
SMALLEST_FLOAT64 = 2.0**-960  # below, double-double arithmetic runs out of exponents
MORE = int(os.environ.get("SINPE_EXT_FUZZ", "1"))

NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.float64: np.float64}
HAS_CORE = _backend.core_module()[0] is not None


def fuzz(examples: int) -> settings:
    """The same examples for everyone; new ones at each long run."""
    return settings(max_examples=examples * MORE, derandomize=MORE == 1)


@pytest.fixture(scope="module")
def need_kernels(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--require-backend") == "eager":
        pytest.skip("--require-backend=eager")
    found = _backend.resolve("cpu")
    if found.backend != "compiled":
        pytest.skip(f"no compiled backend: {found.reason}")


def on(backend: str, call: Callable[[], Any]) -> Any:
    with sinpe.use_backend(backend):
        return call()


def same(x: Any, y: Any) -> bool:
    """Equal bits, or NaN in both."""
    if x.shape != y.shape or str(x.dtype) != str(y.dtype):
        return False
    nans = [a.isnan().numpy() if isinstance(a, torch.Tensor) else np.isnan(a) for a in (x, y)]
    return np.array_equal(*nans) and bool((nans[0] | (bits(x) == bits(y))).all())


def check_exact(encoding: Encoding, at: list[Any], rows: torch.Tensor, entries: list[int]) -> None:
    """Some entries, by their index in `rows`, against integer arithmetic."""
    p, limit = plan(encoding), FLOAT64_ULP
    for index in entries if rows.numel() else ():
        row, channel = divmod(index % rows.numel(), p.dim)
        got = rows[row, channel]
        if rows.dtype == torch.float64:
            want = _exact.float64(p, at[row], channel)
            if want == 0:
                assert same(got, torch.tensor(want, dtype=torch.float64)), (at[row], channel)
            elif abs(want) > SMALLEST_FLOAT64:
                assert abs(float(got) - want) <= limit * units(np.float64(want), 0.0, "float64"), (at[row], channel)
        else:
            want = torch.tensor(_exact.float32(p, at[row], channel), dtype=torch.float32).to(rows.dtype)
            assert same(got, want), (at[row], channel, float(got), float(want))


def check_backends(make: Callable[[], torch.Tensor], make_numpy: Callable[[Any], np.ndarray]) -> torch.Tensor:
    """The result on each backend, compared; the compiled one is returned."""
    compiled, eager = on("compiled", make), on("eager", make)
    assert compiled.shape == eager.shape and compiled.dtype == eager.dtype
    if compiled.dtype != torch.float64:
        assert same(compiled, eager)
    else:
        gap = 2 * FLOAT64_ULP * units(eager.nan_to_num().numpy(), 0.0, "float64") + SMALLEST_FLOAT64
        assert (torch.isnan(compiled) == torch.isnan(eager)).all()
        assert ((compiled - eager).abs().nan_to_num(0.0, 0.0).numpy() <= gap).all()
        assert (compiled.signbit() == eager.signbit())[(compiled == 0) | (eager == 0)].all()
    if compiled.dtype in NUMPY:
        assert same(torch.from_numpy(on("eager", lambda: make_numpy(NUMPY[compiled.dtype]))), eager)
        if HAS_CORE:
            assert same(torch.from_numpy(on("auto", lambda: make_numpy(NUMPY[compiled.dtype]))), compiled)
    return compiled


@pytest.mark.usefixtures("need_kernels")
@fuzz(600)
@given(encodings(), st.integers(0, 300), whole_positions(), st.sampled_from(DTYPES), st.lists(st.integers(0, 2**20)))
def test_table(encoding: Encoding, length: int, start: int, dtype: torch.dtype, entries: list[int]) -> None:
    low = INT64_MIN - min(encoding.start, 0)
    start = max(low, min(start, INT64_MAX - length - max(encoding.start, 0)))
    first = encoding.start + start
    rows = check_backends(
        lambda: sinpe.table(length, encoding, start=start, dtype=dtype),
        lambda narrow: sinpe_numpy.table(length, encoding, start=start, dtype=narrow),
    )
    check_exact(encoding, list(range(first, first + length)), rows, entries[:8])


@pytest.mark.usefixtures("need_kernels")
@fuzz(700)
@given(encodings(), st.data(), st.sampled_from(DTYPES), st.lists(st.integers(0, 2**20)))
def test_encode(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, entries: list[int]) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    at = data.draw(positions(shape))
    rows = check_backends(
        lambda: sinpe.encode(at, encoding, dtype=dtype),
        lambda narrow: sinpe_numpy.encode(at.numpy(), encoding, dtype=narrow),
    )
    assert rows.shape == (*shape, encoding.dim)
    check_exact(encoding, at.flatten().tolist(), rows.reshape(-1, encoding.dim), entries[:8])


FACTORS = (1.0, 1.0, 1.0, 0.5, -1.7, 512**0.5, 0.1, 0.0, -0.0, 1e-30, 3e30)


def sum_by_the_rule(x: torch.Tensor, rows: torch.Tensor, scale: float, alpha: Any, mask: Any) -> torch.Tensor:
    """round(round(scale * x) + round(alpha * PE)) of x (B, *M, S, D), rows (1 or B, S, D), mask (1 or B, S)."""
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32

    def beside_x(t: torch.Tensor) -> torch.Tensor:  # (1 or B, S, n) -> (1 or B, 1, ..., S, n), or (S, n)
        return t[0] if x.dim() == 2 else t.reshape(t.shape[0], *(1,) * (x.dim() - 3), *t.shape[1:])

    scaled = torch.as_tensor(scale, dtype=acc) * x.to(acc)
    added = torch.as_tensor(alpha, dtype=torch.float64).reshape(()).to(acc) * rows.to(acc)
    total = scaled + beside_x(added)
    if mask is not None:
        total = torch.where(beside_x(mask.unsqueeze(-1)), scaled, total)
    return total.to(x.dtype)


@pytest.mark.usefixtures("need_kernels")
@fuzz(900)
@given(encodings(24), st.data(), st.sampled_from(DTYPES), st.sampled_from(("add", "out", "out is x", "add_")))
def test_add(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, form: str) -> None:
    """Every form of `add`, on each backend, by the rule; and nothing but the result is written to."""
    draw, dim = data.draw, encoding.dim
    rank = draw(st.integers(2, 4))
    seq_dim, channel_dim = draw(st.permutations(range(rank)))[:2]
    length = draw(st.sampled_from((0, 1, 2, 5, 13, 40)))
    shape = [draw(st.integers(0, 3)) for _ in range(rank)]
    shape[seq_dim], shape[channel_dim] = length, dim
    others = [d for d in range(rank) if d not in (seq_dim, channel_dim)]
    batch = shape[others[0]] if others else 1
    order = [*others, seq_dim, channel_dim]

    memory, x = draw(views(tuple(shape), dtype, expanded=form in ("add", "out")))
    if x.numel() and 0 not in x.stride():
        sprinkle(x, draw(st.integers(0, 2**20)))
    sizes = draw(st.sampled_from((None, None, (length,), (batch, length), (1, length))))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = None if sizes is None else torch.rand(sizes, generator=generator) < 0.4
    scale, alpha = draw(st.sampled_from(FACTORS)), draw(st.sampled_from(FACTORS))
    as_tensor = draw(st.sampled_from((None, None, torch.float32, torch.float64)))
    if as_tensor is not None:
        alpha = torch.tensor(alpha, dtype=as_tensor).reshape(draw(st.sampled_from(((), (1,)))))

    steps = torch.arange(length)
    where: dict[str, Any] = {}
    starts = st.integers(-(2**61), 2**61)
    kind = draw(st.sampled_from(("implicit", "start", "0-d", "per sample", "positions", "positions")))
    if kind == "positions":
        at = where["positions"] = draw(positions(draw(st.sampled_from(((length,), (batch, length), (1, length))))))
    else:
        if kind == "start":
            where["start"] = draw(starts)
        elif kind == "0-d":
            where["start"] = torch.tensor(draw(st.integers(-(2**31), 2**31 - 1)), dtype=torch.int32)
        elif kind == "per sample":
            drawn = draw(st.lists(starts, min_size=batch, max_size=batch))
            where["start"] = torch.tensor(drawn, dtype=torch.int64)
        first = torch.as_tensor(where.get("start", 0), dtype=torch.int64) + encoding.start
        at = first.reshape(-1, 1) + steps
    at = at.reshape(1, length) if at.dim() == 1 else at

    rows_mask = mask if mask is None or mask.dim() == 2 else mask.unsqueeze(0)
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    arguments = dict(where, scale=scale, alpha=alpha, padding_mask=mask, seq_dim=seq_dim, channel_dim=channel_dim)
    results = {}
    for backend in ("compiled", "eager"):
        kept = memory.clone()
        own = torch.as_strided(kept, x.size(), x.stride(), x.storage_offset())
        into_memory, into = kept, own
        if form == "out":
            into_memory, into = draw(views(tuple(shape), dtype, expanded=False))
            into.fill_(math.nan)
        before = into_memory.clone()
        with sinpe.use_backend(backend):
            rows = sinpe.encode(at, encoding, dtype=acc)
            want = sum_by_the_rule(x.permute(order), rows, scale, alpha, rows_mask)
            if form == "add":
                got = sinpe.add(own, encoding, **arguments)
                assert got.stride() == torch.empty_like(own).stride()
            elif form == "add_":
                got = sinpe.add_(own, encoding, **arguments)
                assert got is own
            else:
                got = sinpe.add(own, encoding, out=into, **arguments)
                assert got is into
        assert same(got.permute(order), want), (backend, kind)
        results[backend] = got.clone()
        if form != "add":
            into.fill_(0)
            torch.as_strided(before, into.size(), into.stride(), into.storage_offset()).fill_(0)
            assert same(into_memory, before), "an element outside of the result was written to"
        if form in ("add", "out"):
            assert same(kept, memory), "x was written to"
    if dtype != torch.float64:
        assert same(results["compiled"], results["eager"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("amplitude", [1.0, -1.0, -0.3, 3.0])
def test_exact_zeros_have_the_sign_of_the_amplitude(backend: str, amplitude: float, dtype: torch.dtype) -> None:
    """0 at every second quarter turn, at a frequency of 0 and at position 0, whatever quadrant led there."""
    for turns in (0.25, -0.25, 0.5, 0.0, 3.0, 0.1):
        encoding = Encoding(2, frequencies=(turns,), unit="turn", amplitude=amplitude)
        where = torch.tensor([0] if turns == 0.1 else [-4, -2, 0, 2, 4, 1000, -(2**40)])
        zeros = [sinpe.table(1, encoding, start=int(p), dtype=dtype)[:, 0] for p in where]
        zeros += [sinpe.encode(p, encoding, dtype=dtype)[..., 0] for p in (where, where.double(), where.float())]
        zeros = torch.cat(zeros)
        assert (zeros == 0).all() and (zeros.signbit() == (amplitude < 0)).all(), turns


@pytest.mark.parametrize("file", ["README.md", "docs/accuracy.md", "tests/cpp/test_sha256.cpp"])
def test_this_sha256_is_the_published_one(file: str) -> None:
    text = (Path(__file__).resolve().parent.parent / file).read_text(encoding="utf-8")
    assert SHA256 in text, "run python tools/accuracy_table.py --write"


def digest_of(table: np.ndarray) -> str:
    return hashlib.sha256(table.astype("<f4", copy=False).data).hexdigest()


@pytest.mark.feature("table")
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_published_sha256(backend: str, threads: int) -> None:
    """On each instruction set: test_invariance.py; by the C interface: tests/cpp/test_sha256.cpp."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert digest_of(sinpe.table(65536, 512).numpy()) == SHA256
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("core", ["auto", "eager"])
def test_published_sha256_of_numpy(core: str) -> None:
    """NumPy's own arithmetic where nothing was compiled, else the kernels without torch."""
    if core == "auto" and not HAS_CORE:
        pytest.skip("the NumPy module's kernels were not built")
    assert digest_of(on(core, lambda: sinpe_numpy.table(65536, 512))) == SHA256
