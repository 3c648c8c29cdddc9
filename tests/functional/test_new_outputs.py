"""Pages of a new output are populated before they are written (csrc/cpu/populate.h): results do not change, and the
caller's memory is left alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable

import pytest
import torch
from children import execute
from ulp import same_bits

import sinpe_ext as sinpe
from sinpe_ext.backend import loader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are populated on Linux only")

ROWS, DIM = 1103, 1000  # 4.4 MB of float32; neither a row nor the whole is a multiple of a page


@pytest.fixture
def populated_pages(request: pytest.FixtureRequest) -> Callable[[], int]:
    """Number of pages that the library has populated so far."""
    cpu = loader.resolve("cpu")
    if cpu.backend != "compiled" or request.config.getoption("--require-backend") in ("eager", "emulated"):
        pytest.skip(f"the CPU kernels are not in use: {cpu.reason}")
    return counter()


def counter() -> Callable[[], int]:
    assert loader.resolve("cpu").backend == "compiled"  # loads the library
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "_C_cpu" in line)
    function = ctypes.CDLL(path).sinpe_populated_pages
    function.restype = ctypes.c_int64
    return function


def kernel_populates() -> bool:
    """Whether the kernel supports MADV_POPULATE_WRITE (Linux 5.14)."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 23) == 0


X = torch.linspace(-2.0, 2.0, 3 * ROWS * DIM).reshape(3, ROWS, DIM)
ONE = X[:1]
IDS = torch.arange(3 * ROWS).reshape(3, ROWS) % 100
WEIGHT = X[0, :100]
POSITIONS = torch.arange(ROWS) * 7 % 1000
MASK = torch.ones(3, ROWS, dtype=torch.bool)

# A call with a new result, and the same with `out`. Whether a result is populated depends on what the allocator cached.
CALLS = {
    "table": (lambda: sinpe.table(ROWS, DIM), lambda out: sinpe.table(ROWS, DIM, out=out)),
    "encode": (lambda: sinpe.encode(POSITIONS, DIM), None),
    "add": (lambda: sinpe.add(X), lambda out: sinpe.add(X, out=out)),
    "add, one sample": (lambda: sinpe.add(ONE), lambda out: sinpe.add(ONE, out=out)),
    "add, bfloat16": (lambda: sinpe.add(X.bfloat16()), lambda out: sinpe.add(X.bfloat16(), out=out)),
    "add, dropout": (lambda: sinpe.add(X, dropout=0.1, seed=5), lambda out: sinpe.add(X, dropout=0.1, seed=5, out=out)),
    "add, padding": (lambda: sinpe.add(X, padding_mask=MASK), lambda out: sinpe.add(X, padding_mask=MASK, out=out)),
    "embed": (lambda: sinpe.embed(IDS, WEIGHT), None),
    "add, a view of x": (lambda: sinpe.add(X[:, 1:, 3:]), lambda out: sinpe.add(X[:, 1:, 3:], out=out)),
    "add, x transposed": (lambda: sinpe.add(X.transpose(0, 1).contiguous().transpose(0, 1)), None),
}


@pytest.mark.parametrize("name", CALLS)
def test_new_outputs(name: str, populated_pages: Callable[[], int]) -> None:
    fresh, into = CALLS[name]
    before = populated_pages()
    result = fresh()
    populated = (populated_pages() - before) * mmap.PAGESIZE
    assert 0 <= populated <= result.numel() * result.element_size()
    with sinpe.use_backend("eager"):
        assert same_bits(result, fresh())
    if into is None:
        return
    size = (result.numel() + 1) * result.element_size()
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # also new, but the caller's
    out = torch.frombuffer(memory, dtype=result.dtype)[1 : 1 + result.numel()].view(result.shape)
    before = populated_pages()
    assert into(out) is out and populated_pages() == before
    assert same_bits(out, result)


SCRIPT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import sinpe_ext as sinpe
from test_new_outputs import counter
pages = counter()
x = torch.ones(4, 4096, 1024)  # 64 MiB, which glibc never keeps
for f in (lambda: sinpe.add(x), lambda: sinpe.add(x, dropout=0.5, seed=1), lambda: sinpe.table(16384, 1024)):
    before = pages()
    f()
    print(pages() - before)
"""


@pytest.mark.parametrize("value", ["0", "1"])
def test_populate_setting(value: str, populated_pages: Callable[[], int]) -> None:
    here = os.path.dirname(__file__)
    env = {**os.environ, "SINPE_EXT_POPULATE": value, "THP_MEM_ALLOC_ENABLE": "0", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    counts = [int(line) for line in execute([sys.executable, "-c", SCRIPT, here], env=env).stdout.split()[-3:]]
    if value == "0" or not kernel_populates():
        assert counts == [0, 0, 0]
    elif platform.libc_ver()[0] == "glibc" and mmap.PAGESIZE == 4096:
        assert all(16384 - 64 <= n <= 16384 for n in counts) or transparent_huge_pages_always()


def transparent_huge_pages_always() -> bool:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return "[always]" in file.read()
    except OSError:
        return False
