"""The command line: ``python -m sinpe_ext info | demo | plot | build | export | identify``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from ._version import __version__
from .cli import identify as identify_command
from .cli import plot as plot_command
from .cli.outputs import file_to_write, refused


class UsageError(Exception):
    """Raised for bad usage; the first line of the message is printed, and the exit code is 2."""


def parser() -> argparse.ArgumentParser:
    """The argument parser with all subcommands. A subcommand imports the modules that it needs when it runs."""
    top = argparse.ArgumentParser(
        prog="python -m sinpe_ext", description="Exact, fast sinusoidal positional encoding for PyTorch."
    )
    top.add_argument("--version", action="version", version=f"sinpe_ext {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    command = add(commands, info, "show which backend runs on which device, why, and how to get the compiled one")
    command.add_argument("--json", action="store_true", help="print JSON")

    command = add(commands, demo, "encode a text; show accuracy, times and plots")
    command.add_argument("--text", metavar="FILE", help="the text to encode (default: the README)")
    command.add_argument(
        "--output", metavar="DIR", default="demo_output", help="folder for the plots (default: ./demo_output)"
    )

    command = add(commands, plot, "draw an encoding into a PNG, PDF or SVG file")
    encoding_options(command)
    plot_command.options(command)

    command = add(commands, build, "compile the kernels now (for containers and clusters)")
    text = "device (default: the CPU, and CUDA if a device is visible or TORCH_CUDA_ARCH_LIST is set)"
    command.add_argument("--device", choices=("cpu", "cuda"), help=text)
    command.add_argument("--verbose", action="store_true", help="show the compiler's output")

    command = add(commands, export, "write an encoding's constants as a C header")
    command.add_argument("convention", metavar="CONVENTION", help="name of a convention, such as paper or t2t")
    command.add_argument("dim", metavar="DIM", type=int, help="number of channels")
    encoding_options(command)
    command.add_argument("--name", help="C identifier of the array (default: the convention and the dim, as paper6)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write; - for standard output")

    command = add(
        commands, identify, "find the tables of positional encodings in a checkpoint and name their conventions"
    )
    identify_command.options(command)
    return top


def add(commands: Any, run: Any, text: str) -> argparse.ArgumentParser:
    """Adds a subcommand that is named after the function that runs it."""
    command: argparse.ArgumentParser = commands.add_parser(
        run.__name__, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def encoding_options(command: argparse.ArgumentParser) -> None:
    """Adds the option --set of subcommands that take an encoding."""
    text = "a field of the Encoding, such as base=500000 or odd=pad; may be repeated"
    command.add_argument("--set", metavar="FIELD=VALUE", action="append", default=[], help=text)


def chosen_encoding(options: argparse.Namespace) -> Any:
    """The encoding of the arguments convention and dim and of --set. Raises UsageError."""
    from .encodings.catalogue import convention

    try:
        return convention(options.convention, options.dim, **dict(map(field, options.set)))
    except (TypeError, ValueError) as error:
        raise UsageError(error) from None


def field(setting: str) -> tuple[str, Any]:
    """Parses FIELD=VALUE: the value is an int, a float or comma-separated floats if it reads as one, else a string."""
    name, separator, text = setting.partition("=")
    if not separator or not name:
        raise UsageError(f"--set: expected FIELD=VALUE, got {setting!r}; pass --set base=500000")
    for read in (int, float, floats):
        with contextlib.suppress(ValueError):
            return name.strip(), read(text)
    return name.strip(), None if text == "None" else text


def floats(text: str) -> tuple[float, ...]:
    """Parses comma-separated floats."""
    return tuple(float(part) for part in text.rstrip(",").split(","))


def info(options: argparse.Namespace) -> int:
    from .cli import info as info_command

    return info_command.main(options)


def need_torch() -> None:
    """Raises UsageError if torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UsageError(f"this command requires torch ({error}); run `pip install torch`") from None


def demo(options: argparse.Namespace) -> int:
    need_torch()
    from .cli import demo as demo_command

    try:
        return demo_command.main(options)
    except demo_command.DemoError as error:
        raise UsageError(error) from None


def build(options: argparse.Namespace) -> int:
    from .backend import loader

    code = 0
    for device in [options.device] if options.device else loader.buildable():
        try:
            print(loader.build(device, verbose=options.verbose))
        except loader.BackendUnavailableError as error:
            print(f"python -m sinpe_ext build: {error}", file=sys.stderr)
            code = 1
    return code


def export(options: argparse.Namespace) -> int:
    from .cli.export import export_header

    try:
        name = f"{options.convention}{options.dim}".replace("-", "_") if options.name is None else options.name
        path = None if options.output == "-" else file_to_write("output", options.output)
        text = export_header(chosen_encoding(options), name)
    except (TypeError, ValueError) as error:
        raise UsageError(error) from None
    if path is None:
        print(text, end="")
        return 0
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(refused("output", path, error)) from None
    print(path)
    return 0


def identify(options: argparse.Namespace) -> int:
    need_torch()
    try:
        return identify_command.main(options)
    except identify_command.IdentifyError as error:
        raise UsageError(error) from None


def plot(options: argparse.Namespace) -> int:
    try:
        return plot_command.main(options, chosen_encoding(options))
    except (ImportError, IndexError, TypeError, ValueError) as error:
        raise UsageError(error) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code: 0 for success, 1 for failure, 2 for bad usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may have characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    options = parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        if sys.stdout is not None:  # None if it was closed when the process started
            sys.stdout.flush()
        return code
    except UsageError as error:
        print(f"python -m sinpe_ext {options.command}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        discard_output()
        return 1
    except OSError as error:  # for example a full disk to which standard output is redirected
        print(f"python -m sinpe_ext {options.command}: {error}", file=sys.stderr)
        discard_output()
        return 1
    except KeyboardInterrupt:
        return 130


def discard_output() -> None:
    """Redirects standard output to the null device, so that Python does not try to flush it again at exit."""
    with contextlib.suppress(AttributeError, OSError):  # standard output is not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
