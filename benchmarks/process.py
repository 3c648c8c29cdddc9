"""The benchmark's measurements that need a process of their own: import time, first build, install, peak memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

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
import json, time, torch
begin = time.perf_counter()
import sinpe_ext
sinpe_ext.add, sinpe_ext.SinusoidalPositionalEncoding
print(json.dumps(time.perf_counter() - begin))
"""

MEMORY = """
import json, sys, torch, sinpe_ext as sinpe
from benchmarks.memory import peak
which, length, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
encoding = sinpe.Encoding(dim)
small = torch.zeros(4, 256, dim)
sinpe.add_(small, encoding); sinpe.add(small, encoding); small + sinpe.table(256, encoding)
small.requires_grad_()
sinpe.add(small, encoding, dropout=0.1).backward(torch.ones(4, 256, dim))
torch.nn.functional.dropout(small + sinpe.table(256, encoding), 0.1).backward(torch.ones(4, 256, dim))
x = torch.ones(1, length, dim, requires_grad=which.endswith("trained"))
grad = torch.ones(1, length, dim) if which.endswith("trained") else None
pe = sinpe.table(length, encoding) if which == "eager trained" else None
before = peak()
if which == "add_":
    y = sinpe.add_(x, encoding)
elif which == "add":
    y = sinpe.add(x, encoding)
elif which == "trained":
    y = sinpe.add(x, encoding, dropout=0.1)
    y.backward(grad)
elif which == "eager trained":
    y = torch.nn.functional.dropout(x + pe, 0.1)
    y.backward(grad)
results = {"add_": 0, "add": 1, "trained": 2, "eager trained": 2}[which]
extra = peak() - before - results * x.nbytes
print(json.dumps(extra / 2**20))
"""

# Peak memory of a training step of the example's language model, minus the memory before the model was created.
STEP = """
import json, sys, torch
from benchmarks.memory import peak
from sinpe_ext.backend import loader
from benchmarks import training
loader.compiled("cpu")
lm, kind, compiled = training.example(), sys.argv[1], sys.argv[2] == "compiled"
torch.manual_seed(0)
data, order = torch.randint(90, (20_000,)), torch.Generator().manual_seed(0)
torch.ones(64, 64) @ torch.ones(64, 64)
before = peak()
model = lm.model_of(kind, 90)
run = torch.compile(model) if compiled else model
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(3):
    optimizer.zero_grad()
    lm.loss_of(run, *lm.batches(data, order)).backward()
    optimizer.step()
print(json.dumps((peak() - before) / 2**20))
"""

# Calls the JIT directly, because a library built at install time would be used otherwise.
BUILD = """
import json, time, torch
from sinpe_ext.backend import jit
begin = time.perf_counter()
jit.library("cpu")
print(json.dumps(time.perf_counter() - begin))
"""


def run(script: str, *arguments: str, **environment: str) -> Any:
    """Run a script with this interpreter and this package; its last line of output is JSON."""
    package = str(Path(__file__).resolve().parent.parent)
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "PYTHONPATH": search, **environment},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise Skipped(f"the process ended with {done.returncode}: {lines[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def import_time() -> float:
    """Milliseconds that `import sinpe_ext`, with every public operation, adds to `import torch`, when byte-compiled."""
    with tempfile.TemporaryDirectory() as cache:
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        run(IMPORT, **compiled)
        return 1000 * median(run(IMPORT, **compiled) for _ in range(IMPORT_ROUNDS))


def memory(which: str) -> float:
    """MiB in addition to the output for x of shape (1, 131072, 512), whose table would take 256 MiB."""
    return run(MEMORY, which, "131072", "512")


def step_memory(kind: str, *, compiled: bool = False) -> float:
    """MiB used by building and training the example's language model."""
    return run(STEP, kind, "compiled" if compiled else "eager")


def first_build() -> float:
    """Seconds for building the CPU library on first use, into an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        return run(BUILD, SINPE_EXT_CACHE_DIR=cache)


def install() -> float:
    """Seconds for an installation from source, built in a copy of the sources and installed into an empty directory."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "setup.py").is_file():
        raise Skipped("no source tree here: run it in a checkout")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        ignore = shutil.ignore_patterns(".git", ".venv", "build", "*.so", "__pycache__", "*.egg-info", "demo_output")
        shutil.copytree(root, source, ignore=ignore)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, "--target", str(Path(scratch) / "target"), str(source)],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise Skipped((done.stderr.strip().splitlines() or ["pip failed without a message"])[-1])
    return seconds


# fmt: off
PROCESSES: tuple[Process, ...] = (
    Process("memory_add_", "add_ (1,131072,512): memory beyond x", "MiB", 16.0, lambda: memory("add_")),
    Process("memory_add", "add (1,131072,512): memory beyond the output", "MiB", 16.0, lambda: memory("add")),
    Process("memory_trained", "add + dropout and backward: memory beyond result, gradient", "MiB", 16.0,
            lambda: memory("trained")),
    Process("memory_trained_eager", "eager dropout(x + pe) and backward: the same", "MiB", None,
            lambda: memory("eager trained")),
    Process("step_memory", "training step, our layer: memory", "MiB", None, lambda: step_memory("sinpe_ext"),
            slow=True),
    Process("step_memory_both", "training step, our layer under torch.compile: memory", "MiB", None,
            lambda: step_memory("sinpe_ext", compiled=True), slow=True),
    Process("step_memory_torch", "training step, torch layers: memory", "MiB", None, lambda: step_memory("torch"),
            slow=True),
    Process("step_memory_compiled", "training step, torch.compile of torch layers: memory", "MiB", None,
            lambda: step_memory("torch", compiled=True), slow=True),
    Process("import", "import sinpe_ext on top of import torch", "ms", 50.0, import_time),
    Process("jit", "first-use build of the CPU library", "s", 20.0, first_build, slow=True),
    Process("install", "install from source", "s", 60.0, install, slow=True),
)
# fmt: on
