"""Calls inside parallel regions and threads of other libraries, with different thread counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_support import needs_compiler
from children import execute, library_environment, run

from sinpe_ext.backend import sources

# Compares all results in 8 parts of a region run by `region(function)` with those outside.
NESTED = """
import ctypes, os, threading, torch, sinpe_ext as sinpe
x = torch.ones(2, 1200, 64)
weight, ids = torch.ones(1200, 64, requires_grad=True), torch.arange(1200)
def everything(k=0):
    y = sinpe.embed(ids, weight, dropout=0.5, seed=k)
    return [sinpe.table(1200, 64, start=k), sinpe.add(x, start=k, dropout=0.5, seed=k), y,
            torch.autograd.grad(y, weight, torch.ones_like(y))[0]]
torch.set_num_threads(2)
want = [everything(k) for k in range(8)]
def compare(region):
    results, failed = {}, []
    def part(k):
        try:
            results[k] = everything(k)
        except BaseException as error:
            failed.append(error)
    region(part)
    assert not failed and len(results) == 8, (failed, sorted(results))
    for k in range(8):
        assert all(torch.equal(a, b) for a, b in zip(results[k], want[k], strict=True)), k
    assert all(torch.equal(a, b) for a, b in zip(everything(3), want[3], strict=True))
"""

TORCHS_REGION = """
library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
RANGE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
library.torch_parallel_for.argtypes = [ctypes.c_int64] * 3 + [RANGE, ctypes.c_void_p]
threads = set()
def region(part):
    def parts(first, last, _):
        threads.add(threading.get_native_id())
        for k in range(first, last):
            part(k)
    assert library.torch_parallel_for(0, 8, 1, RANGE(parts), None) == 0
compare(region)
assert len(threads) == 2, threads
"""

HELPER = """
#include <thread>
#include <vector>
extern "C" void in_openmp(int n, void (*part)(int)) {
#pragma omp parallel for num_threads(3) schedule(static, 1)
  for (int k = 0; k < n; ++k) part(k);
}
extern "C" void in_threads(int n, void (*part)(int)) {
  std::vector<std::thread> threads;
  for (int k = 0; k < n; ++k) threads.emplace_back(part, k);
  for (std::thread& thread : threads) thread.join();
}
"""

HELPERS_REGION = """
PART = ctypes.CFUNCTYPE(None, ctypes.c_int)
helper = getattr(ctypes.CDLL(os.environ["HELPER"]), os.environ["REGION"])
compare(lambda part: helper(8, PART(part)))
"""

PYTHONS_THREADS = """
def region(part):
    start = threading.Barrier(8)
    def work(k):
        start.wait()
        torch.set_num_threads(1 + k % 3)
        for _ in range(3):
            part(k)
            torch.set_num_threads(1 + (k + 1) % 3)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
compare(region)
"""


@pytest.mark.bad_input(22, "compiled", "eager")
def test_calls_inside_a_torch_parallel_region(backend: str) -> None:
    run(NESTED + TORCHS_REGION, library_environment(backend))


@pytest.mark.processes
@pytest.mark.bad_input(22, "compiled", "eager")
def test_threads_that_set_their_number_of_threads(backend: str) -> None:
    run(NESTED + PYTHONS_THREADS, library_environment(backend))


@pytest.fixture(scope="module")
def helper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with OpenMP and std::thread, like another extension."""
    folder = tmp_path_factory.mktemp("helper")
    (folder / "helper.cpp").write_text(HELPER)
    flags = ["-std=c++17", "-shared", "-fPIC", "-fopenmp", "-pthread"]
    command = [sources.find_compiler()[0], *flags, "helper.cpp", "-o", "helper.so"]
    done = execute(command, cwd=folder, status=None)
    if done.returncode:
        pytest.skip(f"no OpenMP: {done.stderr}")
    return folder / "helper.so"


@pytest.mark.processes
@pytest.mark.bad_input(22, "compiled", "eager")
@needs_compiler
@pytest.mark.parametrize("region", ["in_openmp", "in_threads"])
def test_calls_inside_threads_of_another_library(region: str, helper: Path, backend: str) -> None:
    run(NESTED + HELPERS_REGION, library_environment(backend, HELPER=str(helper), REGION=region))
