"""The CUDA rows of the benchmark on the current device; `run.py` measures them like the others.

A small call is bound by its launch on the CPU, which its floor includes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sinpe_ext.backend.loader import resolve

from .cases import Row
from .cuda_cases import ELEMENTS, Place
from .cuda_cases import ROWS as INFERENCE_ROWS
from .cuda_grid import GRID_ROWS
from .cuda_training import TRAINING_ROWS

ROWS = (*INFERENCE_ROWS, *GRID_ROWS, *TRAINING_ROWS)
SMALL_MEMORY = 20 * 2**30  # with less memory the tensors have a quarter of the size; about eight exist at a time


def missing() -> str:
    """The reason why CUDA cannot be measured here; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    found = resolve("cuda")
    return "" if found.backend == "compiled" else found.reason


def place() -> Place:
    """The current device, with the size of the tensors that its memory allows."""
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch.cuda.get_device_properties(device).total_memory
    return Place(device, ELEMENTS if memory >= SMALL_MEMORY else ELEMENTS // 4)


def chosen(asked: Sequence[str]) -> list[Row]:
    """The rows with the given names, or all rows if there are none, on the current device."""
    return [replace(row, build=partial(row.build, place())) for row in ROWS if not asked or row.name in asked]


def facts() -> dict[str, Any]:
    """The current device, and the library that computes on it."""
    found, p = resolve("cuda"), torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_bytes": p.total_memory,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "how": found.how,
        "elements": place().elements,
        "arithmetic": str(torch.ops.sinpe_ext.cuda_arithmetic.default()),
    }


def describe(facts: dict[str, Any]) -> str:
    """A line about the device for the head of the report."""
    return (
        f"{facts['device']} (capability {facts['capability']}), CUDA {facts['cuda']}, {facts['how']} kernels, "
        f"arithmetic: {facts['arithmetic']}, tensors of {facts['elements']} elements"
    )
