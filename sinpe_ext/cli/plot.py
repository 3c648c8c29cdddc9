"""`python -m sinpe_ext plot`: writes a plot of an encoding to a file."""

from __future__ import annotations

import argparse
from typing import Any

PLOTS = ("heatmap", "curves", "similarity", "error")
OF_KINDS = {  # option -> the kinds of plot that it applies to
    "length": ("heatmap", "similarity"),
    "positions": ("curves", "error"),
    "transpose": ("heatmap",),
    "cmap": ("heatmap",),
}
LENGTH = 200


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand, except --set."""
    command.add_argument("--convention", metavar="NAME", default="paper", help="name of a convention (default: paper)")
    command.add_argument("--dim", type=int, default=100, help="number of channels (default: 100)")
    command.add_argument("--kind", choices=PLOTS, default="heatmap", help="kind of plot (default: heatmap)")
    text = f"number of positions (heatmap, similarity; default: {LENGTH})"
    command.add_argument("--length", type=int, help=text)
    text = "positions (curves: default 5,6,50; error: default 1 to 10 million)"
    command.add_argument("--positions", metavar="P,P,...", help=text)
    command.add_argument("--transpose", action="store_true", default=None, help="positions along the x axis (heatmap)")
    command.add_argument("--cmap", help="matplotlib colour map (heatmap; default: coolwarm)")
    command.add_argument("--dpi", type=int, default=150, help="resolution (default: 150)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write")


def main(options: argparse.Namespace, encoding: Any) -> int:
    """Runs the subcommand. Raises ImportError without matplotlib, TypeError or ValueError for invalid options."""
    from .. import plot as pictures

    pictures.matplotlib_installed()
    check(options, encoding)

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from .outputs import picture_to_write, refused

    path, dpi = picture_to_write("output", options.output), pictures.dpi(options.dpi)
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.add_subplot()
    length = LENGTH if options.length is None else options.length
    positions = None if options.positions is None else whole_numbers(options.positions)
    try:
        if options.kind == "heatmap":
            extra = {} if options.cmap is None else {"cmap": options.cmap}
            pictures.heatmap(encoding, length=length, transpose=bool(options.transpose), ax=ax, **extra)
        elif options.kind == "curves":
            pictures.curves(encoding, positions or (5, 6, 50), ax=ax)
        elif options.kind == "similarity":
            pictures.similarity(encoding, length, ax=ax)
        else:
            pictures.error(encoding, positions, ax=ax)
        ax.set_title(f"{options.convention}, {encoding.dim} channels")
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise refused("output", path, error) from None
    except MemoryError:
        raise ValueError(
            f"dpi: expected a picture that fits into memory, got {dpi} dots an inch; lower it, --length or --dim"
        ) from None
    except RuntimeError as error:  # a format that needs a program that is not installed, such as LaTeX for .pgf
        raise ValueError(f"output: expected a format that can be written here, got {path} ({error})") from None
    print(path)
    return 0


def check(options: argparse.Namespace, encoding: Any) -> None:
    """Raises ValueError if the encoding or an option does not apply to the kind of plot."""
    from ..encodings.grid import GridEncoding

    if isinstance(encoding, GridEncoding):
        raise ValueError(
            f"convention: expected one of one axis, got {options.convention}, a grid of {encoding.ndim}; give "
            "sinpe_ext.table((H, W), grid, flatten=True) to sinpe_ext.plot.heatmap"
        )
    for name, kinds in OF_KINDS.items():
        if getattr(options, name) is not None and options.kind not in kinds:
            raise ValueError(
                f"--{name}: expected it with --kind {' or '.join(kinds)}, got --kind {options.kind}; leave one out"
            )


def whole_numbers(text: str) -> list[int]:
    """Parses comma-separated integers. Raises ValueError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--positions: expected whole numbers with commas, got {text!r}; pass --positions 5,6,50"
        ) from None
