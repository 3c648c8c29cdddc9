"""The machine of a benchmark run: facts stored with the measurements, without paths, because the file is committed."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

import sinpe_ext

from .cases import Place

ROOT = Path(__file__).resolve().parent.parent
BUSY = 0.5  # load per core before timing above which other programs disturb the measurement
SMALL_MEMORY = 20 * 2**30  # of a device: with less, tensors have a quarter of the size; about eight exist at a time


def machine() -> dict[str, Any]:
    """The facts needed to interpret a measurement."""
    info = sinpe_ext.backend_info()
    cpu = info.device("cpu")
    model, cores = processor(), os.cpu_count() or 1
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "tag": re.sub(r"[^a-z0-9]+", "-", f"{model} {cores}c {info.instruction_set}".lower()).strip("-"),
        "cpu": model,
        "cores": cores,
        "caches": caches(),
        "huge_pages": huge_pages(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "platform": info.platform,
        "python": info.python,
        "torch": info.torch,
        "sinpe_ext": info.version,
        "commit": commit(),
        "backend": cpu.backend,
        "how": cpu.how,
        "instruction_set": info.instruction_set,
        "compiler": cpu.build.get("compiler_version"),
    }


def describe(facts: dict[str, Any]) -> str:
    """A line about the machine for the head of the report, and a warning if it is busy."""
    isa = f" ({facts['instruction_set']})" if facts["instruction_set"] else ""
    sizes = "".join(f", {size} of {name}" for name, size in facts["caches"].items() if name != "L1i")
    text = (
        f"{facts['cpu']}{sizes}, {facts['threads']} threads on {facts['cores']} cores, torch {facts['torch']}, "
        f"Python {facts['python']}, backend {facts['backend']}{isa}"
    )
    if facts["load"] is not None and facts["load"] > BUSY * facts["cores"]:
        text += f"\nThe machine was busy when this began (load {facts['load']}): times on several threads mean little."
    return text


def processor() -> str:
    """The name of the processor."""
    path = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", path.read_text() if path.exists() else "", re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """Cache sizes of the first core, from Linux: {"L1d": "32K", "L2": "1024K", ...}; empty elsewhere."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        sizes["L" + level + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return sizes


def huge_pages() -> str | None:
    """Linux's setting of transparent huge pages: always, madvise or never."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", path.read_text()) if path.exists() else None
    return chosen and chosen[1]


def commit() -> str | None:
    """The checkout's commit, with "+changes" if files differ from it; None outside a checkout."""
    if not (ROOT / ".git").exists():  # git would find a checkout around an unpacked source distribution
        return None
    command = ["git", "-C", str(ROOT), *"describe --always --exclude=* --abbrev=12 --dirty=+changes".split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


# ---------------------------------------------------------------------------------------------------------------- CUDA


def no_cuda() -> str:
    """The reason why CUDA cannot be measured here; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    backend = sinpe_ext.backend_info().device("cuda")
    return "" if backend.backend == "compiled" else backend.reason


def cuda_place() -> Place:
    """The current device, with the size of the tensors that its memory allows."""
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch.cuda.get_device_properties(device).total_memory
    return Place(device) if memory >= SMALL_MEMORY else Place(device, Place(device).elements // 4)


def cuda_facts() -> dict[str, Any]:
    """The current device, and the library that computes on it."""
    info, p = sinpe_ext.backend_info(), torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_bytes": p.total_memory,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "how": info.device("cuda").how,
        "elements": cuda_place().elements,
        "arithmetic": info.cuda_arithmetic,
    }


def describe_cuda(facts: dict[str, Any]) -> str:
    """A line about the device for the head of the report."""
    return (
        f"{facts['device']} (capability {facts['capability']}), CUDA {facts['cuda']}, {facts['how']} kernels, "
        f"arithmetic: {facts['arithmetic']}, tensors of {facts['elements']} elements"
    )
