"""`python -m sinpe_ext build`: compiles the kernels ahead of their first use."""

from __future__ import annotations

import argparse
import sys

from ..backend import loader

HELP = "compile the kernels now (for containers and clusters)"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    text = "device (default: the CPU, and CUDA if a device is visible or TORCH_CUDA_ARCH_LIST is set)"
    command.add_argument("--device", choices=("cpu", "cuda"), help=text)
    command.add_argument("--verbose", action="store_true", help="show the compiler's output")


def main(options: argparse.Namespace) -> int:
    """Runs the subcommand: prints the path of each library. Returns 1 if one could not be built."""
    code = 0
    for device in [options.device] if options.device else loader.buildable():
        try:
            print(loader.build(device, verbose=options.verbose))
        except loader.BackendUnavailableError as error:
            print(f"python -m sinpe_ext build: {error}", file=sys.stderr)
            code = 1
    return code
