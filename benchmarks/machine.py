"""The machine of a benchmark run: facts stored with the measurements."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from .timing import load, warning

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, Any]:
    """The facts needed to interpret a measurement (without paths, because the file is committed)."""
    import torch

    from sinpe_ext.backend.info import backend_info

    from .installed import versions

    info = backend_info()
    cpu = info.device("cpu")
    model, cores = processor(), os.cpu_count() or 1
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "tag": re.sub(r"[^a-z0-9]+", "-", f"{model} {cores}c {info.instruction_set}".lower()).strip("-"),
        "cpu": model,
        "cores": cores,
        "caches": caches(),
        "huge_pages": huge_pages(),
        "load": load(),
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
        "libraries": versions(),
    }


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


def describe(facts: dict[str, Any]) -> str:
    """A line about the machine for the head of the report, and a warning if it is busy."""
    isa = f" ({facts['instruction_set']})" if facts["instruction_set"] else ""
    sizes = "".join(f", {size} of {name}" for name, size in facts["caches"].items() if name != "L1i")
    text = (
        f"{facts['cpu']}{sizes}, {facts['threads']} threads on {facts['cores']} cores, torch {facts['torch']}, "
        f"Python {facts['python']}, backend {facts['backend']}{isa}"
    )
    return "\n".join(filter(None, [text, warning(facts["load"])]))


def processor() -> str:
    """The name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()
