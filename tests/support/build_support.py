"""Small replacement sources and compilers in shell, for tests of the loader and of builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sinpe_ext.backend import sources

TABLE = """
#include <torch/csrc/stable/library.h>
#include <string>
#include "core/number.h"
static void table(StableIValue*, uint64_t, uint64_t) {}
static std::string cpu_isa() { return "small-" + std::to_string(sinpe_number()); }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CPU, m) { m.impl("table", &table); }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }
"""

KERNEL = """
#include "core/number.h"
__global__ void number(int* out) { *out = 8; }
int sinpe_number() { number<<<1, 1>>>(nullptr); return 8; }
"""
CUDA_OPS = """
#include <torch/csrc/stable/library.h>
#include "core/number.h"
static void table(StableIValue*, uint64_t, uint64_t) { sinpe_number(); }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CUDA, m) { m.impl("table", &table); }
"""
SMALL = {
    "core/number.h": "#pragma once\nint sinpe_number();\n",
    "include/sinpe/sinpe.h": "#pragma once\n",
    "cpu/table.cpp": '#include "core/number.h"\nint sinpe_number() { return 7; }\n',
    "cpu/parallel_standalone.cpp": "#error not part of the torch library\n",
    "torch/cpu_ops.cpp": TABLE,
    "cuda/number.cu": KERNEL,
    "torch/cuda_ops.cpp": CUDA_OPS,
}

# Runs before a test's code: the library is compiled from the small sources on first use.
PREAMBLE = """
import os, pathlib, sys, threading, time, warnings
import sinpe_ext
from sinpe_ext.backend import loader, sources, jit
def nothing_built(device):
    raise sources.BuildUnavailable("nothing was built at install time")
loader._load_prebuilt = nothing_built
sources.source_root = lambda package=None: pathlib.Path(os.environ["SMALL_SOURCES"])
"""


def _missing(find: Callable[[], object]) -> str:
    try:
        find()
    except sources.BuildUnavailable as error:
        return error.reason
    return ""


no_compiler, no_nvcc = _missing(sources.find_compiler), _missing(sources.find_nvcc)
needs_compiler = pytest.mark.skipif(bool(no_compiler), reason=no_compiler or "never")
needs_nvcc = pytest.mark.skipif(bool(no_nvcc), reason=no_nvcc or "never")  # and a CUDA build of torch


def write_small_sources(root: Path) -> Path:
    """A CPU library of two files, and a CUDA library of two."""
    for name, content in SMALL.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def write_script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def write_nvcc(path: Path, compile: str = "exit 0", version: str = "12.8.61") -> Path:
    """A shell script as nvcc: answers the queries of a build, and runs `compile` on a source."""
    body = f"""
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version.rpartition(".")[0]}, V{version}";;
  *--dryrun*) echo '#$ LIBRARIES=  "-L{path.parent}/../lib" "-L/nonexistent"';;
  *) {compile};;
esac"""
    return write_script(path, body)


def cuda_torch(version: str = "12.8") -> str:
    """Code that declares torch to be a CUDA build; torch reads CUDA_HOME only in one."""
    code = f"import os, torch; torch.version.cuda = {version!r}; torch.version.hip = None\n"
    code += "torch.cuda.is_available, torch.cuda.device_count = (lambda: False), (lambda: 0)\n"
    return code + "from torch.utils import cpp_extension; cpp_extension.CUDA_HOME = os.environ['CUDA_HOME']\n"
