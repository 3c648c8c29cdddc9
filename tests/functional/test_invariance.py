"""Results that do not depend on threads, splitting, instruction set, stores or previous memory contents, bit by bit."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from functools import lru_cache
from typing import Any

import pytest
import torch
from children import forked, library_environment
from oracles import same
from strategies import DTYPES
from test_parity import SHA256, digest_of
from ulp import bits, same_bits

import sinpe_ext as sinpe
from sinpe_ext import Encoding, convention
from sinpe_ext.backend import loader

CHECKED = {
    "paper": Encoding(96),
    "own, odd": Encoding(61, cos_frequency="own", layout="cos_sin", amplitude=-0.3),
    "t2t": convention("t2t", 129),
    "few channels": Encoding(7, layout="cos_sin"),
    "turns": Encoding(40, frequencies=tuple(7.3 / (i + 1) - 1 for i in range(20)), unit="turn"),
}


def all_results(encoding: Encoding, length: int = 1100) -> dict[str, torch.Tensor]:
    """One result per operation and dtype, long enough for several threads and anchors."""
    x = torch.randn(3, length, encoding.dim, generator=torch.Generator().manual_seed(2))
    far = torch.arange(length) * 7919 % 100_003 - 50_000
    mask = torch.arange(length) % 7 == 3
    made = {}
    for dtype in DTYPES:
        made[f"table {dtype}"] = sinpe.table(length, encoding, start=-60, dtype=dtype)
        made[f"encode {dtype}"] = sinpe.encode(far, encoding, dtype=dtype)
        made[f"encode floats {dtype}"] = sinpe.encode(far / 7, encoding, dtype=dtype)
        made[f"add {dtype}"] = sinpe.add(x.to(dtype), encoding, scale=3.3, alpha=0.7, padding_mask=mask)
        made[f"add positions {dtype}"] = sinpe.add(x.to(dtype), encoding, positions=far)
        made[f"add dropout {dtype}"] = sinpe.add(x.to(dtype)[:1], encoding, dropout=0.25, seed=5)
        made[f"add starts {dtype}"] = sinpe.add(x.to(dtype), encoding, start=torch.tensor([5, -9, 2**33]))
    return made


@pytest.mark.bad_input(20, "compiled", "eager")
@pytest.mark.parametrize("name", CHECKED)
def test_result_does_not_depend_on_thread_count(backend: str, name: str) -> None:
    """Of each function, at fewer rows: test_every_function.py."""
    before, length = torch.get_num_threads(), 1100 if backend == "compiled" else 300
    try:
        torch.set_num_threads(1)
        one = all_results(CHECKED[name], length)
        torch.set_num_threads(3)
        assert all(map(same_bits, all_results(CHECKED[name], length).values(), one.values()))
    finally:
        torch.set_num_threads(before)


@pytest.mark.bad_input(20, "compiled", "eager")
@pytest.mark.parametrize(("name", "dtype"), [*zip(CHECKED, DTYPES * 2, strict=False), ("t2t", DTYPES[0])])
def test_split_calls_equal_one_call(backend: str, name: str, dtype: torch.dtype) -> None:
    """A single row, a table in parts, a changed start, a batch in parts: the same rows."""
    encoding, length, first = CHECKED[name], 400, -37
    whole = sinpe.table(length, encoding, start=first, dtype=dtype)
    for row in (0, 1, 36, 37, 38, 127, 128, 129, 255, 256, 399):
        assert same_bits(sinpe.table(1, encoding, start=first + row, dtype=dtype), whole[row : row + 1])
    cuts = [0, 1, 4, 16, 17, 145, 274, length]
    parts = [sinpe.table(b - a, encoding, start=first + a, dtype=dtype) for a, b in itertools.pairwise(cuts)]
    assert same_bits(torch.cat(parts), whole)
    moved = encoding.replace(start=first + 11)
    assert same_bits(sinpe.table(length, moved, start=-11, dtype=dtype), whole)
    assert same_bits(sinpe.encode(first + torch.arange(length), encoding, dtype=dtype), whole)
    shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(1))
    assert same_bits(sinpe.encode(first + shuffled, encoding, dtype=dtype), whole[shuffled])

    x = torch.randn(4, length, encoding.dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = sinpe.add(x, encoding, start=first)
    assert same_bits(torch.cat([sinpe.add(x[:1], encoding, start=first), sinpe.add(x[1:], encoding, start=first)]), y)
    steps = [sinpe.add(x[:, t : t + 1], encoding, start=first + t) for t in range(0, length, 29)]
    assert same_bits(torch.cat(steps, 1), y[:, ::29].contiguous())
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    made = sinpe.table(length, encoding, start=first, dtype=wide)
    assert same_bits(y, (x.to(wide) + made).to(dtype))


def child() -> None:
    digest = compiled_digest()
    print(torch.ops.sinpe_ext.cpu_isa(), digest_of(sinpe.table(65536, 512).numpy()), digest)


@lru_cache
def compiled_digest() -> str:
    digest = hashlib.sha256()
    with sinpe.use_backend("compiled"):
        for encoding in CHECKED.values():
            for result in all_results(encoding, 300).values():
                digest.update(bits(result).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    "settings",
    [
        {"SINPE_EXT_CPU_ISA": "default"},
        {"SINPE_EXT_CPU_ISA": "v3", "SINPE_EXT_NON_TEMPORAL_BYTES": "0"},  # outputs are written around the cache
        {"SINPE_EXT_CPU_ISA": "v4", "SINPE_EXT_NON_TEMPORAL_BYTES": "0"},
    ],
    ids=lambda settings: settings["SINPE_EXT_CPU_ISA"],
)
def test_result_does_not_depend_on_instruction_set_and_stores(
    settings: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """More of stores: tests/cpp/test_stores.cpp."""
    cpu = loader.resolve("cpu")
    if cpu.backend != "compiled" or request.config.getoption("--require-backend") in ("eager", "emulated"):
        pytest.skip(f"the CPU kernels are not in use: {cpu.reason}")
    code = f"import sys; sys.path[:] = {sys.path!r}; import test_invariance; test_invariance.child()"
    ran, sha256, digest = forked(code, library_environment("compiled", **settings))[0].split()[-3:]
    isa = settings["SINPE_EXT_CPU_ISA"]
    if ran != isa:
        pytest.skip(f"this CPU runs {ran} where {isa} is asked for")
    assert digest == compiled_digest() and sha256 == SHA256


LENGTHS = (0, 1, 2, 3, 4, 11, 12, 13, 63, 65, 127, 128, 129, 260)
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65)


@pytest.mark.bad_input(20, "compiled", "eager")
@pytest.mark.parametrize(
    ("layout", "cos_frequency"), [("interleaved", "shared"), ("sin_cos", "own"), ("cos_sin", "shared")]
)
def test_every_element_is_written(backend: str, nan_filled_empty: None, layout: str, cos_frequency: str) -> None:
    sizes = list(itertools.product(WIDTHS, LENGTHS))
    for dim, length in sizes if backend == "compiled" else sizes[::11]:
        encoding = Encoding(dim, layout=layout, cos_frequency=cos_frequency, odd="pad" if dim % 4 == 1 else "truncate")
        dtype = DTYPES[(dim + length) % 4]
        fresh = sinpe.table(length, encoding, dtype=dtype)
        assert fresh.shape == (length, dim) and not fresh.isnan().any()
        memory = torch.full((length + 2, dim + 3), math.nan, dtype=dtype)
        out = memory[1 : length + 1, 2 : dim + 2]
        assert sinpe.table(length, encoding, out=out) is out and same_bits(out, fresh)
        assert int(memory.isnan().sum()) == memory.numel() - length * dim
        assert same_bits(sinpe.encode(torch.arange(length), encoding, dtype=dtype), fresh)
        for shape in ((length, dim), (2, length, dim), (0, length, dim)):
            y = sinpe.add(torch.zeros(shape, dtype=dtype), encoding)
            assert y.shape == shape and not y.isnan().any()
        turned = sinpe.add(torch.zeros(length, dim, 2, dtype=dtype), encoding, seq_dim=0, channel_dim=1)
        assert same_bits(turned[..., 1] + 0.0, fresh + 0.0)


POSITIONS_OF_FEW = {
    "small integers": lambda g: torch.randint(-(2**20), 2**20, (1500,), generator=g),
    "large integers": lambda g: torch.randint(-(2**52), 2**52, (1500,), generator=g),
    "any integers": lambda g: torch.randint(-(2**62), 2**62, (200,), generator=g),
    "float32": lambda g: torch.randn(1500, generator=g) * 100,
    "float64": lambda g: torch.rand(1500, generator=g, dtype=torch.float64) * 1e6,
    "near 0": lambda g: torch.rand(1500, generator=g) * 2**-20,
    "eighths": lambda g: torch.randint(-5000, 5000, (1500,), generator=g) / 8,
    "0, NaN and infinite": lambda g: torch.tensor([0.0, -0.0, 1.0, math.nan, 0.25, math.inf, 1e300] * 20),
}


FEW: list[tuple[tuple[float, ...], str, float]] = [
    ((1.0,), "turn", 1.0),
    ((0.25, 1 / 24, 3.0, 0.0), "turn", 1.0),
    ((1 / 3, 1 / 24, 0.5), "turn", -1.5),
    ((0.37, 1e-3), "radian", 1.0),
    ((1 / 3, 2**-20, 7.7), "radian", 1.0),
    ((1e-9,), "radian", 1.0),
    ((123.456, 3e5), "radian", 1.0),
    (tuple(1.5**-k for k in range(17)), "radian", 1.0),
]


@pytest.mark.parametrize("number", range(len(FEW)))
def test_few_channels_have_the_bits_of_many(number: int, backend: str) -> None:
    """Rows of few channels are computed for several positions at a time, rows of many for one."""
    frequencies, unit, amplitude = FEW[number]
    fields: dict[str, Any] = {"unit": unit, "amplitude": amplitude}
    few = Encoding(2 * len(frequencies), frequencies=frequencies, **fields)
    many = Encoding(32 * len(frequencies), frequencies=frequencies * 16, **fields)
    for at, make in enumerate(POSITIONS_OF_FEW.values()):
        positions = make(torch.Generator().manual_seed(3))
        for dtype in (torch.float32, DTYPES[(at + number) % 4]):
            got = sinpe.encode(positions, few, dtype=dtype)
            assert same_bits(got, sinpe.encode(positions, many, dtype=dtype)[:, : few.dim].contiguous())
        if number < 4:
            x, got = torch.randn(3, len(positions), few.dim), sinpe.encode(positions, few)
            assert same(sinpe.add(x, few, positions=positions), x + got)
