"""`python -m sinpe_ext info`: which backend runs on which device, why, and how to get the compiled one."""

from __future__ import annotations

import argparse
import json

from ..backend.info import BackendInfo, backend_info


def main(options: argparse.Namespace) -> int:
    """Prints the report. Always returns 0: a missing compiler is not an error."""
    report = backend_info()
    lines, steps = conclusion(report), todo(report)
    if options.json:
        print(json.dumps({**report.as_dict(), "conclusion": lines, "todo": steps}, indent=1))
        return 0
    print(report, "", *lines, sep="\n")
    if steps:
        print("To change that:", *(f"  - {step}" for step in steps), sep="\n")
    return 0


def conclusion(report: BackendInfo) -> list[str]:
    """Sentences on what the CPU and the CUDA devices run."""
    cpu, cuda = report.device("cpu"), report.device("cuda")
    if report.setting == "compiled" and cpu.backend != "compiled":
        lines = ["Calls on the CPU raise BackendUnavailableError: the compiled backend is required and not available."]
    else:
        runs = {"compiled": "the compiled kernels", "none": "nothing (NumPy alone)"}
        lines = [f"The CPU runs {runs.get(cpu.backend, 'eager PyTorch: the same values, slower')}."]
    if cuda.backend == "compiled":
        lines.append("CUDA devices run the compiled kernels.")
    elif has_cuda(report):
        lines.append(f"CUDA devices run eager PyTorch: {cuda.reason.splitlines()[0]}.")
    return lines


def todo(report: BackendInfo) -> list[str]:
    """The steps to the compiled backend."""
    needed = [report.device("cpu"), *([report.device("cuda")] if has_cuda(report) else [])]
    steps = [device.todo for device in needed if device.backend != "compiled" and device.todo]
    return list(dict.fromkeys(steps))


def has_cuda(report: BackendInfo) -> bool:
    """Whether torch sees a CUDA device."""
    if report.torch is None:
        return False
    import torch

    return torch.cuda.is_available()
