"""AddressSanitizer and UBSan detect faults when the suite runs under them: `nox -s asan`."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import SANITIZED, execute

from sinpe_ext.backend import sources

PLANTED = """
#include <cstdlib>
extern "C" int overrun(int count) {
  volatile int* array = static_cast<int*>(std::malloc(count * sizeof(int)));
  const int value = array[count];
  std::free(const_cast<int*>(array));
  return value;
}
extern "C" int overflow(int count) { return count * 65536; }
"""
WORDS = {"overrun": "heap-buffer-overflow", "overflow": "signed integer overflow"}

pytestmark = pytest.mark.skipif(not SANITIZED, reason="not under sanitizers: nox -s asan")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the flags of the package's libraries."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cpp").write_text(PLANTED)
    flags = [flag for flag in sources.compile_flags("cpu") if not flag.startswith(("-D", "-fvisibility"))]
    command = ["g++", "-shared", "-fPIC", *flags, str(folder / "planted.cpp"), "-o", str(folder / "planted.so")]
    subprocess.run(command, check=True, env={**os.environ, "LD_PRELOAD": ""})
    return folder / "planted.so"


@pytest.mark.parametrize("fault", WORDS)
def test_fault_is_reported(fault: str, library: Path, tmp_path: Path) -> None:
    call = f"import ctypes; ctypes.CDLL({str(library)!r}).{fault}(40000)"
    options = os.environ["ASAN_OPTIONS"].split(":log_path=")[0]  # report to stderr
    environment = {**os.environ, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": ""}
    done = execute([sys.executable, "-c", call], env=environment, status=1, merged=True)
    assert WORDS[fault] in done.stdout


def test_runtimes_are_loaded() -> None:
    assert hasattr(ctypes.CDLL(None), "__asan_init")
