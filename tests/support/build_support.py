"""Small replacement sources, compilers in shell and builds of the project, for tests of the loader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from children import REPOSITORY, environment, execute

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

# A small CUDA library: a kernel, its launch, and a binding.
KERNEL = """
#include "core/number.h"
__global__ void number(int* out) { *out = 8; }
int sinpe_launch(int* out, void* stream) {
  number<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(out);
  return cudaGetLastError();
}
int sinpe_number() { return 8; }
"""
CUDA_OPS = """
#include <torch/csrc/stable/library.h>
#include <string>
#include "core/number.h"
static void table(StableIValue*, uint64_t, uint64_t) {}
int sinpe_launch(int*, void*);
static void encode(StableIValue*, uint64_t, uint64_t) { sinpe_launch(nullptr, nullptr); }
static std::string cuda_arithmetic() { return "small"; }
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CUDA, m) {
  m.impl("table", &table);
  m.impl("encode", &encode);
}
STABLE_TORCH_LIBRARY_IMPL(sinpe_ext, CompositeExplicitAutograd, m) {
  m.impl("cuda_arithmetic", TORCH_BOX(&cuda_arithmetic));
}
"""

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
    files = {
        "core/number.h": "#pragma once\nint sinpe_number();\n",
        "include/sinpe/sinpe.h": "#pragma once\n",
        "cpu/table.cpp": '#include "core/number.h"\nint sinpe_number() { return 7; }\n',
        "cpu/parallel_standalone.cpp": "#error not part of the torch library\n",
        "torch/cpu_ops.cpp": TABLE,
        "cuda/number.cu": KERNEL,
        "torch/cuda_ops.cpp": CUDA_OPS,
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def write_nvcc(path: Path, compile: str = "exit 0", version: str = "12.8.61") -> Path:
    """A shell script as nvcc: answers the queries of a build, and runs `compile` on a source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = f"""
case "$*" in
  *--version*) echo "Cuda compilation tools, release {version.rpartition(".")[0]}, V{version}";;
  *--dryrun*) echo '#$ LIBRARIES=  "-L{path.parent}/../lib" "-L/nonexistent"';;
  *) {compile};;
esac"""
    return write_script(path, body)


def copy_project(target: Path) -> Path:
    """A copy of the project, so that builds do not change the working tree."""
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "_build.json", "__pycache__", "results")
    shutil.copytree(REPOSITORY, target, ignore=leave)
    return target


def build_by(hook: str, project: Path, out: Path, **env: str | None) -> subprocess.CompletedProcess[str]:
    """Calls a build hook as pip does without isolation, without pip's start-up time and network access."""
    code = f"from setuptools import build_meta; print(build_meta.{hook}({str(out)!r}))"
    out.mkdir(exist_ok=True)
    env = {"CUDA_HOME": "/nonexistent", **env}  # the CPU libraries only
    return execute([sys.executable, "-c", code], cwd=project, env=environment(**env), merged=True, status=None)


def wheel_of(done: subprocess.CompletedProcess[str], out: Path) -> tuple[Path, zipfile.ZipFile, dict]:
    """The wheel that was built, opened, and its _build.json."""
    assert done.returncode == 0, done.stdout
    (wheel,) = out.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    return wheel, archive, json.loads(archive.read(f"sinpe_ext/{sources.MANIFEST}"))


def write_script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
