"""The command line: ``python -m sinpe_ext info | demo | plot | build | export | identify``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence

from ._version import __version__
from .cli import build, demo, export, identify, info, plot, printable


def parser() -> argparse.ArgumentParser:
    """The argument parser with all subcommands."""
    top = argparse.ArgumentParser(
        prog="python -m sinpe_ext", description="Exact, fast sinusoidal positional encoding for PyTorch."
    )
    top.add_argument("--version", action="version", version=f"sinpe_ext {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (info, demo, plot, build, export, identify):
        name, text = module.__name__.rpartition(".")[2], module.HELP
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(run=module.main)
        module.options(command)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 0 for success, 1 for failure, 2 for bad usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may have characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        print(end="", flush=True)  # sys.stdout is None if it was closed when the process started
        return code
    except (ImportError, IndexError, TypeError, ValueError) as error:
        print(f"python -m sinpe_ext {options.command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk to which standard output is redirected, or a reader that closed the pipe
        if not isinstance(error, BrokenPipeError):
            print(f"python -m sinpe_ext {options.command}: {error}", file=sys.stderr)
        with contextlib.suppress(AttributeError, OSError):  # so that Python does not flush standard output at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
