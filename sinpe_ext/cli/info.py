"""`python -m sinpe_ext info`: which backend runs on which device, why, and how to get the compiled one."""

from __future__ import annotations

import argparse
import json

from ..backend.info import BackendInfo, backend_info

HELP = "show which backend runs on which device, why, and how to get the compiled one"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    """Prints the report. Always returns 0: a missing compiler is not an error."""
    report = backend_info()
    lines, steps = conclusion(report)
    if options.json:
        print(json.dumps({**report.as_dict(), "conclusion": lines, "todo": steps}, indent=1))
    else:
        steps = ["To change that:", *(f"  - {step}" for step in steps)] if steps else []
        print(report, "", *lines, *steps, sep="\n")
    return 0


def conclusion(report: BackendInfo) -> tuple[list[str], list[str]]:
    """Sentences on what the CPU and the visible CUDA devices run, and the steps to the compiled backend."""
    cpu, cuda = report.device("cpu"), report.device("cuda")
    if report.setting == "compiled" and cpu.backend != "compiled":
        lines = ["Calls on the CPU raise BackendUnavailableError: the compiled backend is required and not available."]
    else:
        runs = {"compiled": "the compiled kernels", "none": "nothing (NumPy alone)"}
        lines = [f"The CPU runs {runs.get(cpu.backend, 'eager PyTorch: the same values, slower')}."]
    steps = [cpu.todo] if cpu.backend != "compiled" else []
    if cuda.backend == "compiled":
        lines.append("CUDA devices run the compiled kernels.")
    elif report.torch is not None:
        import torch

        if torch.cuda.is_available():
            lines.append(f"CUDA devices run eager PyTorch: {cuda.reason.splitlines()[0]}.")
            steps.append(cuda.todo)
    return lines, [step for step in dict.fromkeys(steps) if step]
