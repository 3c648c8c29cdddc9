"""How pictures of the documentation are written: small files, the same bytes each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = 200  # of a picture, for its size


def canvas(width: float, height: float, dpi: int) -> Any:
    """A figure of its own: no display, and nothing of pyplot's state. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(width, height), dpi=dpi, layout="constrained"))


def save(drawn: Any, path: Path, colours: int = COLOURS, transparent: bool = False) -> None:
    """The canvas as a PNG, without its background where `transparent`."""
    from PIL import Image

    drawn.draw()
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.frombytes("RGBA", drawn.get_width_height(), bytes(drawn.buffer_rgba()))
    if transparent:
        image = image.quantize(colours, method=Image.Quantize.FASTOCTREE)  # the others know no transparency
    else:
        image = image.convert("RGB").quantize(colours)
    image.save(path, optimize=True)
