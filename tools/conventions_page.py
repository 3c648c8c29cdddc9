"""Writes the index of docs/conventions.md from the catalogue, and its pictures: python tools/conventions_page.py

Text outside the marked part is not changed. Needs matplotlib; takes some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page_parts
import pictures as drawing
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.catalogue import CATALOGUE, GRIDS, NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "conventions.md"
PICTURES = ROOT / "docs" / "images" / "conventions"

TIMESTEPS = ("ddpm", "adm", "flux")
POINTS = tuple(name for name, entry in CATALOGUE.items() if entry.arrangement)
KINDS = {
    "Sequences": tuple(name for name in CATALOGUE if name not in (*TIMESTEPS, *POINTS)),
    "Timesteps": TIMESTEPS,
    "Images": tuple(name for name in GRIDS if name.endswith("2d")),
    "Videos and volumes": tuple(name for name in GRIDS if name.endswith("3d")),
    "Points": POINTS,
}
PLACES = 64  # rows of a picture
UNIT = ("flux", *POINTS)  # drawn at 64 places of 0..1


def cell(text: str, code: bool = False) -> str:
    """A table cell, in which | has to be escaped."""
    text = text.replace("|", "\\|")
    return f"`{text}`" if code else text


def index() -> str:
    """The conventions of each kind; the name links to the picture."""
    every: dict[str, Any] = {**CATALOGUE, **GRIDS}
    assert sorted(name for names in KINDS.values() for name in names) == sorted(every)
    lines = []
    for kind, names in KINDS.items():
        lines += [f"\n**{kind}**\n", "| name | channels | used by | if your code contains |", "|---|---|---|---|"]
        for name in names:
            entry = every[name]
            link = f"[{name}](images/conventions/{name}.png)"
            lines.append(f"| {link} | {cell(entry.formula, True)} | {cell(entry.users)} | {cell(entry.code, True)} |")
    return "\n".join([*lines, ""])


def page(text: str) -> str:
    """The page with a new index."""
    return page_parts.replace(text, {"index": index()})


def accepts(name: str, dim: int) -> bool:
    try:
        sinpe.convention(name, dim)
    except ValueError:
        return False
    return True


def rows(name: str, dim: int) -> torch.Tensor:
    """The values of a picture, of shape (64, dim)."""
    encoding = sinpe.convention(name, dim)
    if name in GRIDS:
        side = round(PLACES ** (1 / encoding.ndim))
        return sinpe.table((side,) * encoding.ndim, encoding, flatten=True)
    if name in UNIT:
        return sinpe.encode(torch.linspace(0, 1, PLACES), encoding)
    return sinpe.table(PLACES, encoding)


def pictures(folder: Path) -> Iterator[Path]:
    """Draw every convention into a folder; reproducible bytes."""
    for name in NAMES:
        dim = 16 if name in POINTS else next(dim for dim in (64, 60, 48) if accepts(name, dim))
        canvas = drawing.canvas(4.2, 2.8, dpi=80)
        start = 0 if name in GRIDS else sinpe.convention(name, dim).start
        ax = sinpe.plot.heatmap(rows(name, dim), start=start, ax=canvas.figure.add_subplot())
        if name in (*UNIT, *GRIDS):
            ax.set_ylabel("position times 63" if name in UNIT else "place, row by row")
        path = folder / f"{name}.png"
        drawing.save(canvas, path)
        yield path


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    made = page(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(made, encoding="utf-8")
    drawn = list(pictures(PICTURES))
    for old in set(PICTURES.glob("*.png")) - set(drawn):
        old.unlink()
    print(f"{PAGE}: {len(made)} characters, {len(drawn)} pictures, {sum(p.stat().st_size for p in drawn)} bytes")


if __name__ == "__main__":
    main()
