"""Host time of the calls of benchmarks/host.py on the device of runtime.c, where kernels take no time."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import operators  # noqa: F401
import torch

from benchmarks import host
from benchmarks.cuda_cases import Place


def microseconds(call: Callable[[], object], repeats: int = 200) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats * 1e6


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print(f"{'call':<32} ours us  eager us  ours / eager  target")
    for row in host.rows("cuda"):
        if names and not any(name in row.name for name in names):
            continue
        subjects = row.build(Place(torch.device("cuda", 0)))
        assert subjects.floor is not None
        with torch.set_grad_enabled(row.grad):
            for call in (subjects.ours, subjects.floor):
                microseconds(call)
            pairs = [(microseconds(subjects.ours), microseconds(subjects.floor)) for _ in range(11)]
        ours, eager = map(statistics.median, zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{row.name:<32} {ours:7.1f}  {eager:8.1f}  {ratio:12.2f}  {row.target}")


if __name__ == "__main__":
    main(sys.argv[1:])
