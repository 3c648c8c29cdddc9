"""`python -m sinpe_ext info`: what runs here, why, and what to install or set to get more."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata
from typing import Any

from . import _backend, _build, _nvcc

OPTIONAL = ("numpy", "matplotlib", "mpmath", "ninja", "pybind11")
PREFIX = "SINPE_EXT_"


def main(options: argparse.Namespace) -> int:
    """Print the account; 0 always: a missing compiler is a fact, not an error."""
    facts = collect()
    if options.json:
        print(json.dumps(facts, indent=1))
        return 0
    print(_backend.backend_info())
    print(f"compiler: {facts['compiler']}")
    print(f"nvcc: {facts['nvcc']}")
    print(f"ninja: {facts['ninja'] or 'not found'}")
    print(
        "optional packages: " + ", ".join(f"{name} {found or 'missing'}" for name, found in facts["packages"].items())
    )
    print(
        "environment: "
        + (" ".join(f"{k}={v}" for k, v in facts["environment"].items()) or f"no {PREFIX}* variable set")
    )
    print(f"Python: {facts['executable']}")
    print(f"\n{conclusion(facts)}")
    return 0


def collect() -> dict[str, Any]:
    """backend_info() as a dictionary, with the tools and settings that decide it."""
    try:
        found = _build.find_compiler()
        compiler = f"{found.path} ({found.version})"
    except _build.BuildUnavailable as problem:
        compiler = str(problem)
    return {
        **_backend.backend_info().as_dict(),
        "compiler": compiler,
        "nvcc": nvcc(),
        "ninja": _build.find_ninja(),
        "packages": {name: package_version(name) for name in OPTIONAL},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)},
        "executable": sys.executable,
    }


def nvcc() -> str:
    """nvcc as a build would use it, or why it would not."""
    try:
        import torch

        cuda = torch.version.cuda
    except ImportError:
        cuda = None
    if not cuda:
        return "not looked for (torch is no CUDA build)"
    try:
        found = _nvcc.find_nvcc(str(cuda))
    except _build.BuildUnavailable as problem:
        return str(problem)
    return f"{found.path} ({found.version})"


def package_version(name: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def conclusion(facts: dict[str, Any]) -> str:
    """One sentence: do the CPU and a CUDA device run compiled kernels, and if not the CPU, what to do."""
    cpu, cuda = facts["devices"]["cpu"], facts["devices"]["cuda"]
    if cpu["backend"] == "compiled":
        also = " and CUDA devices run" if cuda["backend"] == "compiled" else " runs"
        return f"The CPU{also} the compiled kernels."
    runs = "nothing (NumPy alone)" if cpu["backend"] == "none" else "eager PyTorch: the same values, slower"
    return f"The CPU runs {runs}. {'To change that: ' + cpu['todo'] + '.' if cpu['todo'] else ''}".rstrip()


def backend_lines() -> list[str]:
    """Which backend serves the CPU and why, in two or three lines (for the demo)."""
    info = _backend.backend_info()
    cpu = info.device("cpu")
    isa = f", {info.instruction_set}" if info.instruction_set else ""
    lines = [f"cpu: {cpu.backend} ({cpu.reason}){isa}, {info.threads} threads, torch {info.torch}"]
    if cpu.library:
        lines.append(f"library: {cpu.library}")
    if cpu.backend != "compiled" and cpu.todo:
        lines.append(f"missing for the compiled backend: {cpu.todo}")
    return lines
