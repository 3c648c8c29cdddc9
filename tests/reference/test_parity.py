"""Compiled kernels, eager PyTorch and NumPy give the same results for random arguments.

The same means equal bits (or both NaN); float64 results are each within one ULP of the exact value. test_fuzz.py does
this for the operations on data.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import check_exact, close_float64, on, same
from strategies import DTYPES, INT64_MAX, INT64_MIN, encodings, examples, positions, whole_positions

import sinpe_ext as sinpe
import sinpe_ext.numpy as sinpe_numpy
from sinpe_ext import Encoding
from sinpe_ext.backend import loader

pytestmark = pytest.mark.emulated

# Little-endian bytes of table(65536, 512), float32; test_accuracy.py checks each entry.
SHA256 = "0bd6b4b1dfc59ae6ab06fb89d6ef7bf2be812b44837dee370b4231f20574f60f"

NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.float64: np.float64}
HAS_CORE = loader.core_module()[0] is not None


def check_backends(make: Callable[[], torch.Tensor], make_numpy: Callable[[Any], np.ndarray]) -> torch.Tensor:
    """Compares the results of all backends; returns the compiled one."""
    compiled, eager = on("compiled", make), on("eager", make)
    assert compiled.shape == eager.shape and compiled.dtype == eager.dtype
    assert close_float64(compiled, eager) if compiled.dtype == torch.float64 else same(compiled, eager)
    if compiled.dtype in NUMPY:
        assert same(torch.from_numpy(on("eager", lambda: make_numpy(NUMPY[compiled.dtype]))), eager)
        if HAS_CORE:
            assert same(torch.from_numpy(on("auto", lambda: make_numpy(NUMPY[compiled.dtype]))), compiled)
    return compiled


@pytest.mark.usefixtures("need_kernels")
@examples(100)
@given(encodings(), st.data(), st.sampled_from(DTYPES), st.lists(st.integers(0, 2**20)))
def test_rows(encoding: Encoding, data: st.DataObject, dtype: torch.dtype, entries: list[int]) -> None:
    """`table` at any start, and `encode` of any positions."""
    length, start = data.draw(st.integers(0, 300)), data.draw(whole_positions())
    low = INT64_MIN - min(encoding.start, 0)
    start = max(low, min(start, INT64_MAX - length - max(encoding.start, 0)))
    first = encoding.start + start
    rows = check_backends(
        lambda: sinpe.table(length, encoding, start=start, dtype=dtype),
        lambda narrow: sinpe_numpy.table(length, encoding, start=start, dtype=narrow),
    )
    check_exact(encoding, list(range(first, first + length)), rows, entries[:4])
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    at = data.draw(positions(shape))
    rows = check_backends(
        lambda: sinpe.encode(at, encoding, dtype=dtype),
        lambda narrow: sinpe_numpy.encode(at.numpy(), encoding, dtype=narrow),
    )
    assert rows.shape == (*shape, encoding.dim)
    check_exact(encoding, at.flatten().tolist(), rows.reshape(-1, encoding.dim), entries[:4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_zeros_have_the_sign_of_the_amplitude(backend: str, dtype: torch.dtype) -> None:
    """0 at every second quarter turn, at frequency 0 and at position 0, in each quadrant."""
    for turns, amplitude in itertools.product((0.25, -0.25, 0.5, 0.0, 3.0, 0.1), (1.0, -1.0, -0.3, 3.0)):
        encoding = Encoding(2, frequencies=(turns,), unit="turn", amplitude=amplitude)
        where = torch.tensor([0] if turns == 0.1 else [-4, -2, 0, 2, 4, 1000, -(2**40)])
        zeros = [sinpe.table(1, encoding, start=int(p), dtype=dtype)[:, 0] for p in where]
        zeros += [sinpe.encode(p, encoding, dtype=dtype)[..., 0] for p in (where, where.double(), where.float())]
        zeros = torch.cat(zeros)
        assert (zeros == 0).all() and (zeros.signbit() == (amplitude < 0)).all(), turns


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_amplitude_zero_gives_positive_zero(backend: str, dtype: torch.dtype) -> None:
    """0 times a negative sine is -0."""
    where = torch.tensor([-(2**40), -7, 0, 1, 4, 5, 1000, 2**31 - 1])
    narrow = {torch.float64: "float64", torch.float16: "float16"}.get(dtype, "float32")
    for fields in ({}, {"layout": "cos_sin"}, {"cos_frequency": "own"}, {"odd": "pad"}, {"angle": "float32_exp"}):
        encoding = Encoding(7, amplitude=0.0, **fields)
        x = torch.full((100, 7), -0.0, dtype=dtype)
        rows = [sinpe.table(100, encoding, start=-50, dtype=dtype), sinpe.add(x, encoding, start=-50)]
        rows += [sinpe.encode(p, encoding, dtype=dtype) for p in (where, where.double(), where.float() / 3)]
        rows += [sinpe.add(x, encoding, alpha=2.0, dropout=0.25, seed=1), sinpe.add_(x.clone(), encoding)]
        rows += [sinpe.embed(torch.zeros(1, 9, dtype=torch.int64), x[:1], encoding)]
        if "angle" not in fields:
            rows += [torch.from_numpy(sinpe_numpy.table(100, encoding, start=-50, dtype=narrow))]
            rows += [torch.from_numpy(sinpe_numpy.encode(where.numpy(), encoding, dtype=narrow))]
        for got in rows:
            assert (got == 0).all() and not got.signbit().any(), fields
        assert sinpe.encode(torch.tensor([math.nan]), Encoding(6, amplitude=0.0), dtype=dtype).isnan().all()


# Frequencies that are short fractions of a turn but not multiples of 2^-128, and their denominators.
RATIONAL = {
    "scale": (Encoding(2, unit="turn", position_scale=Fraction(1, 24)), 0, 24),
    "geometric": (Encoding(3, layout="sin", base=500.0, unit="turn", exponent_dim=4), 2, 500),
    "half turns": (Encoding(2, unit="half_turn", position_scale=Fraction(-7, 15)), 0, 30),
    "long": (Encoding(2, unit="turn", position_scale=Fraction(10**6 + 4, 10**9 + 7)), 0, 10**9 + 7),
}


@pytest.mark.parametrize(("name", "dtype"), list(zip(RATIONAL, DTYPES, strict=True)))
def test_exact_zeros_of_rational_frequencies(backend: str, name: str, dtype: torch.dtype) -> None:
    """500 positions of 1/500 turn gave 8e-37: 500 times the rounding of a 128-bit frequency."""
    encoding, channel, turn = RATIONAL[name]
    counts = [0, 1, 2, 3, -1, 77, (2**31 - 1) // turn, (2**53 - 1) // turn, -(2**63) // turn + 1, (2**63 - 1) // turn]
    where = torch.tensor([turn * count for count in counts])
    rows = [sinpe.encode(where, encoding, dtype=dtype)]
    rows += [sinpe.encode(where[:8].double(), encoding, dtype=dtype)]
    rows += [torch.cat([sinpe.table(1, encoding, start=int(p), dtype=dtype) for p in where])]
    rows += [torch.cat([sinpe.table(40, encoding, start=int(p), dtype=dtype)[:1] for p in where[:8]])]
    rows += [sinpe.add(torch.zeros(len(where), encoding.dim, dtype=dtype), encoding, positions=where)]
    for got in rows:
        assert (got[:, channel] == 0).all() and not got[:, channel].signbit().any()
    # Values at other positions.
    got = sinpe.encode(where[:8] + 1, encoding, dtype=torch.float64)[:, channel]
    turned = sinpe.encode(torch.ones(1, dtype=torch.int64), encoding, dtype=torch.float64)[:, channel]
    assert torch.allclose(got, turned.expand_as(got), rtol=1e-14, atol=0)
    if turn % 4 == 0 and encoding.layout != "sin":  # a quarter turn: the cosine is 0
        quarter = torch.tensor([turn // 4 + turn * count for count in counts[:8]])
        rows = sinpe.encode(quarter, encoding, dtype=dtype)
        assert (rows[:, 0] == 1).all() and (rows[:, 1] == 0).all() and not rows.signbit().any()


def test_page_has_the_published_sha256() -> None:
    assert SHA256 in (Path(__file__).resolve().parent.parent.parent / "docs/accuracy.md").read_text(encoding="utf-8")


def digest_of(table: np.ndarray) -> str:
    return hashlib.sha256(table.astype("<f4", copy=False).data).hexdigest()


EAGER = pytest.param("eager", 2, marks=pytest.mark.thorough("test_rows, with other encodings"))


@pytest.mark.parametrize(("setting", "threads"), [("compiled", 1), ("compiled", 3), EAGER])
def test_published_sha256(setting: str, threads: int, request: pytest.FixtureRequest) -> None:
    """Per instruction set: test_invariance.py; with the C interface: `ctest -R digest`."""
    if setting == "compiled":
        request.getfixturevalue("need_kernels")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert digest_of(on(setting, lambda: sinpe.table(65536, 512)).numpy()) == SHA256
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("core", ["auto", "eager"])
def test_published_sha256_of_numpy(core: str) -> None:
    """Plain NumPy, or the kernels without torch if they were built."""
    if core == "auto" and not HAS_CORE:
        pytest.skip("the NumPy module's kernels were not built")
    assert digest_of(on(core, lambda: sinpe_numpy.table(65536, 512))) == SHA256
