"""Host time of calls on the device of runtime.c, where kernels take no time: the rows cuda_host_* of the benchmark.

Arguments: parts of the names of rows; all rows without arguments.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import operators  # noqa: F401
import torch

from benchmarks.cases import Calls, Place, Row
from benchmarks.report import aligned, timed
from benchmarks.run import ROUNDS, measure
from benchmarks.small import CUDA_HOST_ROWS


def unchecked(row: Row) -> Row:
    """The row without its comparison: kernels that are skipped compute nothing."""

    def build(place: Place) -> Calls:
        return replace(row.build(place), check=lambda: None)

    return replace(row, build=build)


rows = [unchecked(row) for row in CUDA_HOST_ROWS if not sys.argv[1:] or any(name in row.name for name in sys.argv[1:])]
print(aligned(timed(measure(row, Place(torch.device("cuda", 0)), ROUNDS) for row in rows)))
