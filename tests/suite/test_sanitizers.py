"""AddressSanitizer and UBSan detect faults when the suite runs under them: `nox -s asan`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from children import SANITIZED, execute

from sinpe_ext.backend import sources

PLANTED = """
#include <cstdlib>
extern "C" int overrun(int count) { return static_cast<volatile int*>(std::malloc(count * sizeof(int)))[count]; }
extern "C" int overflow(int count) { return count * 65536; }
"""


@pytest.mark.skipif(not SANITIZED, reason="not under sanitizers: nox -s asan")
@pytest.mark.parametrize(
    ("fault", "words"), [("overrun", "heap-buffer-overflow"), ("overflow", "signed integer overflow")]
)
def test_fault_is_reported(fault: str, words: str, tmp_path: Path) -> None:
    """By a library that is built with the flags of the package's libraries."""
    (tmp_path / "planted.cpp").write_text(PLANTED)
    flags = [flag for flag in sources.compile_flags("cpu") if not flag.startswith(("-D", "-fvisibility"))]
    command = ["g++", "-shared", "-fPIC", *flags, str(tmp_path / "planted.cpp"), "-o", str(tmp_path / "planted.so")]
    subprocess.run(command, check=True, env={**os.environ, "LD_PRELOAD": ""})
    call = f"import ctypes; ctypes.CDLL({str(tmp_path / 'planted.so')!r}).{fault}(40000)"
    options = os.environ["ASAN_OPTIONS"].split(":log_path=")[0]  # report to stderr
    environment = {**os.environ, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": ""}
    done = execute([sys.executable, "-c", call], env=environment, status=1, merged=True)
    assert words in done.stdout
