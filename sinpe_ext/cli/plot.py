"""`python -m sinpe_ext plot`: writes a plot of an encoding to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import chosen_encoding, encoding_option

HELP = "draw an encoding into a PNG, PDF or SVG file"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument("--convention", metavar="NAME", default="paper", help="name of a convention (default: paper)")
    command.add_argument("--dim", type=int, default=100, help="number of channels (default: 100)")
    encoding_option(command)
    kinds = ("heatmap", "curves", "similarity", "error")
    command.add_argument("--kind", choices=kinds, default="heatmap", help="kind of plot (default: heatmap)")
    command.add_argument("--length", type=int, default=200, help="positions of heatmap and similarity (default: 200)")
    text = "positions (curves: default 5,6,50; error: default 1 to 10 million)"
    command.add_argument("--positions", metavar="P,P,...", type=whole_numbers, help=text)
    command.add_argument("--transpose", action="store_true", help="positions along the x axis of a heatmap")
    command.add_argument("--cmap", default="coolwarm", help="matplotlib colour map of a heatmap (default: coolwarm)")
    command.add_argument("--dpi", type=int, default=150, help="resolution (default: 150)")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write")


def whole_numbers(text: str) -> list[int]:
    """Parses comma-separated integers."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, got {text!r}; pass 5,6,50") from None


def main(options: argparse.Namespace) -> int:
    """Runs the subcommand. Raises ImportError without matplotlib, TypeError or ValueError for invalid options."""
    from .. import plot
    from ..encodings.resolve import name_of

    encoding = chosen_encoding(options)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"plotting requires matplotlib ({error}); run `pip install matplotlib`") from None

    path = options.output if Path(options.output).suffix else f"{options.output}.png"
    figure = Figure(figsize=(8, 5), layout="constrained")
    ax = figure.add_subplot()
    if options.kind == "heatmap":
        plot.heatmap(encoding, length=options.length, transpose=options.transpose, cmap=options.cmap, ax=ax)
    elif options.kind == "curves":
        plot.curves(encoding, options.positions or (5, 6, 50), ax=ax)
    elif options.kind == "similarity":
        plot.similarity(encoding, options.length, ax=ax)
    else:
        plot.error(encoding, options.positions, ax=ax)
    ax.set_title(name_of(encoding))
    figure.savefig(path, dpi=options.dpi)
    print(path)
    return 0
