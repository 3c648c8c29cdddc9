"""The benchmark's measurements that need a process of their own: import time, first build, install, peak memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from .report import met

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 600
IMPORT_ROUNDS = 5


@dataclass(frozen=True)
class Process:
    """One line of the second report: a value that must be at most `target` (None: no target)."""

    name: str
    title: str
    unit: str
    target: float | None
    measure: Callable[[], float]
    slow: bool = False  # left out of a quick run


class Skipped(Exception):
    """Raised if a measurement cannot run here; the message is the reason."""


IMPORT = """
import time, torch
begin = time.perf_counter()
import sinpe_ext
sinpe_ext.add, sinpe_ext.SinusoidalPositionalEncoding
print(time.perf_counter() - begin)
"""

# Peak memory of a call on x of shape (1, 131072, 512), whose table would take 256 MiB, without its results.
MEMORY = """
import resource, sys, torch, sinpe_ext as sinpe

def peak():
    try:  # ru_maxrss would start at the peak of the process that launched this one
        line, = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

which, (length, dim) = sys.argv[1], (131072, 512)
encoding = sinpe.Encoding(dim)
calls = {
    "add_": lambda x, pe: sinpe.add_(x, encoding),
    "add": lambda x, pe: sinpe.add(x, encoding),
    "trained": lambda x, pe: sinpe.add(x, encoding, dropout=0.1),
    "eager trained": lambda x, pe: torch.nn.functional.dropout(x + pe, 0.1),
}
trained = which.endswith("trained")

def run(length, samples=1):
    global y, x
    x = torch.ones(samples, length, dim, requires_grad=trained)
    grad = torch.ones_like(x) if trained else None
    pe = sinpe.table(length, encoding) if which == "eager trained" else None
    before = peak()
    y = calls[which](x, pe)
    if trained:
        y.backward(grad)
    return peak() - before - {"add_": 0, "add": 1, "trained": 2, "eager trained": 2}[which] * x.nbytes

run(256, 4)
print(run(length) / 2**20)
"""

BUILD = """
import time, torch, sinpe_ext
begin = time.perf_counter()
sinpe_ext.table(8, 8)
seconds = time.perf_counter() - begin
assert sinpe_ext.backend_info().device("cpu").how == "jit", sinpe_ext.backend_info().device("cpu").reason
print(seconds)
"""


def command(*words: str, folder: Path = ROOT, **environment: str) -> str:
    """The output of a command in a folder; raises Skipped if it fails."""
    settings = {**os.environ, **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=settings, cwd=folder)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise Skipped(f"the process ended with {done.returncode}: {lines[-1]}")
    return done.stdout


def run(script: str, *arguments: str, root: Path = ROOT, **environment: str) -> float:
    """Run a script with this interpreter and the package in `root`; the last line that it prints is a number."""
    output = command(sys.executable, "-c", script, *arguments, folder=root, **environment)
    return float(output.strip().splitlines()[-1])


@contextmanager
def copy_of_sources() -> Iterator[Path]:
    """A copy of the sources without what was built, in the folder "source" of a temporary folder."""
    if not (ROOT / "setup.py").is_file():
        raise Skipped("no source tree here: run it in a checkout")
    with tempfile.TemporaryDirectory() as scratch:
        built = ("*.so", "_build.json", "build", "*.egg-info", "__pycache__")
        ignore = shutil.ignore_patterns(".*", "demo_output", *built)
        yield Path(shutil.copytree(ROOT, Path(scratch) / "source", ignore=ignore))


def import_time() -> float:
    """Milliseconds that `import sinpe_ext`, with every public operation, adds to `import torch`, when byte-compiled."""
    with tempfile.TemporaryDirectory() as cache:
        once = partial(run, IMPORT, PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=cache)
        once()
        return 1000 * median(once() for _ in range(IMPORT_ROUNDS))


def first_build() -> float:
    """Seconds of the first call without a library, which builds it, with an empty cache."""
    with copy_of_sources() as source:
        return run(BUILD, root=source, SINPE_EXT_CACHE_DIR=str(source.parent / "cache"), SINPE_EXT_JIT="1")


def install() -> float:
    """Seconds for an installation from source into an empty directory."""
    with copy_of_sources() as source:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        begin = time.perf_counter()
        command(*pip, "--target", str(source.parent / "target"), str(source))
        return time.perf_counter() - begin


# fmt: off
PROCESSES: tuple[Process, ...] = (
    Process("memory_add_", "add_ (1,131072,512): memory beyond x", "MiB", 16.0, partial(run, MEMORY, "add_")),
    Process("memory_add", "add (1,131072,512): memory beyond the output", "MiB", 16.0, partial(run, MEMORY, "add")),
    Process("memory_trained", "add + dropout and backward: memory beyond result, gradient", "MiB", 16.0,
            partial(run, MEMORY, "trained")),
    Process("memory_trained_eager", "eager dropout(x + pe) and backward: the same", "MiB", None,
            partial(run, MEMORY, "eager trained")),
    Process("import", "import sinpe_ext on top of import torch", "ms", 50.0, import_time),
    Process("jit", "first-use build of the CPU library", "s", 20.0, first_build, slow=True),
    Process("install", "install from source", "s", 60.0, install, slow=True),
)
# fmt: on


def measured(entry: Process) -> dict[str, Any]:
    """The result of one measurement."""
    result: dict[str, Any] = {"name": entry.name, "title": entry.title, "unit": entry.unit, "target": entry.target}
    try:
        value = entry.measure()
    except Skipped as reason:
        return {**result, "skipped": str(reason)}
    except subprocess.TimeoutExpired as error:
        return {**result, "error": f"took more than {error.timeout:.0f} s"}
    return {**result, "value": value, "met": met(value, entry.target, most=True)}
