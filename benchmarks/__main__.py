"""Command-line options of `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .run import main as run


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time sinpe_ext, the cost of the memory traffic alone, and other implementations.",
    )
    command.add_argument("--quick", action="store_true", help="few rounds, slow rows left out")
    command.add_argument("--rows", metavar="A,B,...", help="only these rows (an unknown one lists all)")
    command.add_argument("--threads", metavar="N,M,...", help="on each of these numbers of threads (default: torch's)")
    command.add_argument("--device", choices=("cpu", "cuda"), help="only this device (default: each that has kernels)")
    text = "report the fastest round instead of the median (busy machine)"
    command.add_argument("--best", action="store_true", help=text)
    text = "write the results there (a folder: under the default name)"
    command.add_argument("-o", "--json", metavar="FILE", help=text)
    command.add_argument("--tag", help="name of the machine in the file name (default: from the CPU's name)")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 a wrong result or a failed row, 2 bad usage."""
    try:
        return run(parser().parse_args(arguments))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
