"""Writes the figures of the documentation as small PNG files with reproducible bytes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLOURS = 200  # of a picture, for its size


def canvas(width: float, height: float, dpi: int) -> Any:
    """A matplotlib figure without a display and without pyplot's global state; sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(width, height), dpi=dpi, layout="constrained"))


def save(drawn: Any, path: Path, colours: int = COLOURS, transparent: bool = False) -> None:
    """Saves a canvas as a PNG with at most `colours` colours."""
    from PIL import Image

    drawn.draw()
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.frombytes("RGBA", drawn.get_width_height(), bytes(drawn.buffer_rgba()))
    if transparent:
        image = image.quantize(colours, method=Image.Quantize.FASTOCTREE)  # the others know no transparency
    else:
        image = image.convert("RGB").quantize(colours)
    image.save(path, optimize=True)


def main(description: str, picture: Path, draw: Callable[[Path], None]) -> int:
    """The command line of a tool that draws one picture."""
    arguments = argparse.ArgumentParser(description=description.splitlines()[0])
    arguments.add_argument("-o", "--output", metavar="FILE", type=Path, default=picture)
    path = arguments.parse_args().output
    draw(path)
    print(f"{path}: {path.stat().st_size} bytes")
    return 0
