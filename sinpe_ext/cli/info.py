"""`python -m sinpe_ext info`: which backend runs on which device, why, and how to get the compiled one."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from ..backend import build_cache, compilation, cuda_compiler, loader, variables
from ..backend.compilation import BuildUnavailable
from ..backend.info import BackendInfo, backend_info

OPTIONAL = ("numpy", "matplotlib", "mpmath", "ninja", "pybind11")
# Environment variables of other programs that affect the compilers, the architectures and the threads.
OTHER_VARIABLES = """CXX CUDACXX CUDA_HOME CUDA_PATH TORCH_CUDA_ARCH_LIST CUDA_VISIBLE_DEVICES MAX_JOBS OMP_NUM_THREADS
XDG_CACHE_HOME""".split()


def main(options: argparse.Namespace) -> int:
    """Prints the report. Always returns 0: a missing compiler is not an error."""
    refused = variables.problems()
    with variables.without(refused):
        for device in accelerators():
            if device not in loader.DISPATCH_KEYS:  # the others are in backend_info() anyway
                loader.resolve(device)
        report = backend_info()
        facts = collect(report, refused)
    if options.json:
        print(json.dumps(facts, indent=1))
        return 0
    print(report)
    print(f"    {facts['cache']}")
    for device in facts["hardware"]:
        print(f"device: {device}")
    print(f"compiler: {facts['compiler']}")
    print(f"nvcc: {facts['nvcc']}")
    print(f"ninja: {facts['ninja'] or 'not found'}")
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items())
    print(f"optional packages: {versions}")
    settings = " ".join(f"{name}={value}" for name, value in facts["environment"].items())
    print(f"environment: {settings or f'no {variables.PREFIX}* variable set'}")
    print(f"Python: {facts['executable']}; sinpe_ext: {facts['package']}")
    print()
    for problem in facts["problems"]:
        print(f"warning: {problem}")
    print(conclusion(facts, any(problem.fatal for problem in refused)))
    for step in facts["todo"]:
        print(f"  - {step}")
    return 0


def collect(report: BackendInfo, refused: list[variables.Problem]) -> dict[str, Any]:
    """backend_info() as a dict, with the compilers, the environment variables and the steps to the compiled backend."""
    told = {
        name: value
        for name, value in os.environ.items()
        if name in OTHER_VARIABLES or name.startswith(variables.PREFIX)
    }
    told |= {problem.name: problem.value for problem in refused}
    facts = {
        **report.as_dict(),
        "hardware": hardware(),
        "cache": cache(),
        "compiler": compiler(),
        "nvcc": nvcc(),
        "ninja": compilation.find_ninja(),
        "packages": {name: package_version(name) for name in OPTIONAL},
        "environment": dict(sorted(told.items())),
        "executable": sys.executable,
        "package": str(loader.PACKAGE),
        "problems": [problem.text for problem in refused] + other_kernels(report),
    }
    return {**facts, "todo": todo(facts)}


def other_kernels(report: BackendInfo) -> list[str]:
    """A warning if SINPE_EXT_CPU_ISA requests an instruction set that the CPU does not have."""
    asked = os.environ.get("SINPE_EXT_CPU_ISA", "")
    if asked not in ("v3", "v4") or report.instruction_set in (None, asked):
        return []
    return [f"SINPE_EXT_CPU_ISA={asked}: this CPU lacks it; {report.instruction_set} is taken"]


# ---------------------------------------------------------------------------------------------------------- the machine


def accelerators() -> list[str]:
    """The type of the accelerator that torch finds here, if any, as a list."""
    try:
        import torch

        current = torch.accelerator.current_accelerator()
        return [current.type] if current is not None and torch.accelerator.is_available() else []
    except (ImportError, AttributeError, RuntimeError):
        return []


def hardware() -> list[str]:
    """The processor and the visible CUDA devices, or a note about an NVIDIA driver that torch cannot use."""
    return [f"{processor()}, {cores()} cores", *cuda_devices()]


def processor() -> str:
    """The name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_devices() -> list[str]:
    """A line for each visible CUDA device, or one that says why there is none although there is a driver."""
    try:
        import torch

        if torch.cuda.is_available():
            named = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
            return [f"cuda:{k} {p.name}, compute capability {p.major}.{p.minor}" for k, p in enumerate(named)]
    except ImportError:
        pass
    except RuntimeError as error:  # torch finds a driver but cannot use it
        return [f"cuda: {str(error).splitlines()[0]}"]
    return ["an NVIDIA driver is loaded, and torch sees no CUDA device"] if has_nvidia_driver() else []


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


# -------------------------------------------------------------------------------------------------------- what compiles


def compiler() -> str:
    """The C++ compiler that a build would use, or why there is none."""
    try:
        cxx = compilation.find_compiler()
    except BuildUnavailable as problem:
        return problem.reason
    return f"{cxx.path} ({cxx.version})"


def nvcc() -> str:
    """The nvcc that a build would use and the architectures it would compile for, or why there is none."""
    try:
        import torch

        cuda = torch.version.cuda
    except ImportError:
        cuda = None
    try:
        tool = cuda_compiler.find_nvcc(cuda)
    except BuildUnavailable as problem:
        return problem.reason if cuda else "none, and this torch is not a CUDA build"
    text = f"{tool.path} ({tool.version})"
    return f"{text}, {compiles_for(tool)}" if cuda else f"{text}, not used: this torch is not a CUDA build"


def compiles_for(nvcc: cuda_compiler.Nvcc) -> str:
    """The architectures that a build would compile for here, and what chooses them; or why it cannot."""
    devices = cuda_compiler.device_capabilities()
    try:
        names = " ".join(cuda_compiler.cuda_architectures(nvcc, devices))
    except BuildUnavailable as problem:
        return problem.reason
    if loader.names_architectures():
        return f"compiles for {names} (TORCH_CUDA_ARCH_LIST)"
    why = "the visible devices" if devices else "no device is visible; TORCH_CUDA_ARCH_LIST=9.0 would choose"
    return f"compiles for {names} ({why})"


def cache() -> str:
    """The number of builds in the JIT cache, and whether this process can write to it; or why it cannot be used."""
    try:
        folder = build_cache.checked(create=False)
    except BuildUnavailable as problem:
        return problem.reason
    if folder is None:
        return "does not exist yet"
    builds = sum(compilation.read_json(marker) != {} for marker in folder.glob(f"*/{build_cache.DONE}"))
    return f"{builds} finished builds, {'writable' if os.access(folder, os.W_OK) else 'read-only'}"


def package_version(name: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# ----------------------------------------------------------------------------------------------------------- what to do


def conclusion(facts: dict[str, Any], refused: bool = False) -> str:
    """A sentence on what the CPU and the CUDA devices run.

    refused: whether environment variables whose values raise an error were ignored for the report.
    """
    cpu, cuda = facts["devices"]["cpu"], facts["devices"]["cuda"]
    if facts["setting"] == "compiled" and cpu["backend"] != "compiled":
        said = "Calls on the CPU raise BackendUnavailableError: the compiled backend is required and not available."
    else:
        runs = {"compiled": "the compiled kernels", "none": "nothing (NumPy alone)"}
        said = f"The CPU runs {runs.get(cpu['backend'], 'eager PyTorch: the same values, slower')}."
    if cuda["backend"] == "compiled":
        said += " CUDA devices run the compiled kernels."
    elif has_cuda(facts):
        said += f" CUDA devices run eager PyTorch: {cuda['reason'].splitlines()[0]}."
    said = f"With the settings above corrected: {said}" if refused else said
    return said + (" To change that:" if facts["todo"] else "")


def has_cuda(facts: dict[str, Any]) -> bool:
    """Whether a CUDA device is listed under "hardware"."""
    return any("cuda" in device.lower() for device in facts["hardware"])


def todo(facts: dict[str, Any]) -> list[str]:
    """All steps to the compiled backend, including those whose need shows only after the first."""
    steps: list[str] = []
    cpu, cuda = facts["devices"]["cpu"], facts["devices"]["cuda"]
    if cpu["backend"] != "compiled":
        steps.append(cpu["todo"])
        if cpu["backend"] == "eager" and not re.match("chosen by|torch .* is older", cpu["reason"]):
            steps += obstacles()
    if has_cuda(facts) and cuda["backend"] != "compiled":
        steps.append(cuda["todo"])
    return [step for step in dict.fromkeys(steps) if step]


def obstacles() -> list[str]:
    """The remedies for everything that would prevent a build on first use."""
    remedies = []
    for look in (compilation.find_compiler, lambda: build_cache.checked(create=False)):
        try:
            look()
        except BuildUnavailable as problem:
            remedies.append(problem.todo)
    if compilation.find_ninja() is None:
        remedies.append("pip install ninja")
    if importlib.util.find_spec("setuptools") is None:
        remedies.append("pip install setuptools")
    return remedies
