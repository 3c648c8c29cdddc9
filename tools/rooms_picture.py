"""Draws docs/images/rooms.png from the import contract in pyproject.toml: python tools/rooms_picture.py [-o FILE]

Each row is a layer of the package `sinpe_ext`; a folder may import only folders in the rows below it. The background is
transparent, for light and dark pages. Needs matplotlib.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pictures

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "rooms.png"
GREY, BLUE, WHITE = "#808080", "#3b6ea5", "#ffffff"
LEFT_OUT = ("__main__", "_version")  # the command line's entry and a constant


def layers() -> list[list[str]]:
    """The folders of each layer, from top to bottom."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = ast.literal_eval(re.findall(r"^layers = (\[.*?^\])", text, re.M | re.S)[0])
    rooms = [[room.strip() for room in layer.split(":")] for layer in listed]
    return [layer for layer in rooms if layer[0] not in LEFT_OUT]


def draw(path: Path) -> None:
    from matplotlib.patches import FancyBboxPatch

    drawn = pictures.canvas(5.2, 4.4, dpi=100)
    ax = drawn.figure.subplots()
    rows = layers()
    for row, rooms in enumerate(rows):
        for place, room in enumerate(rooms):
            width = 8 / len(rooms)
            corner = (place * width + 0.1, len(rows) - row)
            box = FancyBboxPatch(corner, width - 0.2, 0.62, boxstyle="round,pad=0.02", facecolor=BLUE, edgecolor="none")
            ax.add_patch(box)
            ax.text(corner[0] + width / 2 - 0.1, corner[1] + 0.29, room, color=WHITE, ha="center", va="center", size=9)
    ax.annotate("", (8.5, 1.0), (8.5, len(rows) + 0.6), arrowprops={"arrowstyle": "->", "color": GREY})
    ax.text(8.8, len(rows) / 2 + 0.8, "imports", color=GREY, rotation=270, va="center", size=9)
    ax.set(xlim=(0, 9.2), ylim=(0.8, len(rows) + 0.9))
    ax.axis("off")
    drawn.figure.patch.set_alpha(0)
    pictures.save(drawn, path, colours=64, transparent=True)


if __name__ == "__main__":
    sys.exit(pictures.main(__doc__, PICTURE, draw))
