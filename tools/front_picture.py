"""Draws docs/images/front.png, the figure of README: python tools/front_picture.py [-o FILE]

Left: a table of the paper's encoding. Right: the largest error of a row against its position, of the naive float32
formula and of this library. The background is transparent, and the colours are legible on light and dark pages. Needs
matplotlib.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pictures

import sinpe_ext as sinpe
from sinpe_ext import plot

ROOT = Path(__file__).resolve().parent.parent

PICTURE = ROOT / "docs" / "images" / "front.png"
GREY = "#808080"  # reads on white and on black


def draw(path: Path) -> None:
    drawn = pictures.canvas(9.0, 2.9, dpi=100)
    left, right = drawn.figure.subplots(1, 2, width_ratios=(3, 2))
    plot.heatmap(sinpe.Encoding(128, layout="sin_cos"), length=256, transpose=True, colorbar=False, ax=left)
    left.set_title("256 positions of 128 channels: sines above, cosines below", fontsize=10, color=GREY)
    plot.error(sinpe.Encoding(512), ax=right)
    right.set(title="largest error in a row of 512 float32 channels", ylabel=None)
    right.title.set(fontsize=10, color=GREY)
    right.legend(fontsize=8, frameon=False, labelcolor=GREY)
    for ax in (left, right):
        ax.set_facecolor("none")
        ax.tick_params(colors=GREY, labelsize=8)
        for label in (ax.xaxis.label, ax.yaxis.label):
            label.set(color=GREY, fontsize=9)
        for spine in ax.spines.values():
            spine.set_color(GREY)
    drawn.figure.patch.set_alpha(0)
    pictures.save(drawn, path, colours=128, transparent=True)


if __name__ == "__main__":
    sys.exit(pictures.main(__doc__, PICTURE, draw))
