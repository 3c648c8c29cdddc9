"""Memory that a call uses in addition to its result, and available memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KIB = 1024
CGROUP = Path("/sys/fs/cgroup")  # the memory limit of a container, which may be less than the machine's memory


def peak() -> int:
    """Peak memory of this process in bytes."""
    try:
        # ru_maxrss would start at the peak of the process that launched this one
        return _status("VmHWM")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def beyond(call: Callable[[], Any], kept: Sequence[Any]) -> int | None:
    """Peak bytes during a call, without the memory held before and a new result.

    kept: existing tensors; a result that shares memory with one of them is not counted as new.
    Returns: the bytes; None if the system cannot reset its peak (Linux can).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        result = call()
        most = _status("VmHWM")
    except OSError:
        return None
    new = getattr(result, "nbytes", 0) if all(result.data_ptr() != tensor.data_ptr() for tensor in kept) else 0
    return max(0, most - before - new)


def available() -> int | None:
    """Bytes available without swapping, if the system reports them."""
    amounts = []
    try:
        amounts.append(_field(Path("/proc/meminfo"), "MemAvailable"))
    except OSError:
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:  # all memory, not only what is free
            amounts.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    try:
        limit, used = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        if limit != "max":
            amounts.append(max(0, int(limit) - int(used)))
    except OSError:
        pass
    return min(amounts, default=None)


def _status(name: str) -> int:
    return _field(Path("/proc/self/status"), name)


def _field(path: Path, name: str) -> int:
    """Bytes, from a line such as "VmHWM: 1234 kB"."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIB
    raise OSError(f"{path} has no {name}")
