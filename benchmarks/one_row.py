"""`python -m benchmarks.one_row NAME`: one call of a CUDA row for a profiler that waits for a start signal
(ncu --profile-from-start off)."""

from __future__ import annotations

import sys

import torch

from .cases import Place
from .rows import ROWS


def main(name: str, place: Place) -> None:
    """Run the call three times; only the last one is profiled."""
    (row,) = (row for row in ROWS if row.name == name)
    with torch.no_grad():
        ours = row.build(place).ours
        ours(), ours()
        if place.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        ours()
        if place.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1], Place(torch.device("cuda", torch.cuda.current_device())))
