"""Writes the generated parts of docs/conventions.md, and its figures: python tools/conventions_page.py

The parts are generated from the catalogue of `sinpe.convention`, and the numbers by running the lines of code shown.
Text outside the marked parts is not changed. Needs matplotlib; takes some seconds.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator
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
PRINTING: dict[str, Any] = {"precision": 4, "sci_mode": False, "linewidth": 140}  # as the page's first block sets

TIMESTEPS = ("ddpm", "adm", "flux")
POINTS = tuple(name for name, entry in CATALOGUE.items() if entry.arrangement)
SEQUENCES = tuple(name for name in CATALOGUE if name not in (*TIMESTEPS, *POINTS))

DIM = 8  # channels of the printed numbers, unless DIMS has another number
DIMS = {"cogvideo3d": 16, "t2t2d": 10, "multidim2d": 10, "multidim3d": 16, "monai3d": 12}
PLACES = 64  # rows of a picture
UNIT = ("flux", *POINTS)  # drawn at 64 places of 0..1


def call(name: str, dim: int) -> str:
    """The line of code that a reader writes."""
    return f'sinpe.convention("{name}", {dim})'


def encoding(name: str, dim: int) -> Any:
    return sinpe.convention(name, dim)


def session(*lines: str) -> str:
    """Lines of code with their output, as an interactive session."""
    scope: dict[str, Any] = {"sinpe": sinpe, "torch": torch}
    shown = []
    for line in lines:
        shown.append(">>> " + line)
        try:
            value = eval(compile(ast.parse(line, mode="eval"), "page", "eval"), scope)
        except SyntaxError:
            exec(line, scope)
        else:
            shown.append(repr(value))
    return "```python\n" + "\n".join(shown) + "\n```\n"


def lengths(name: str, size: int) -> tuple[int, ...]:
    return (size,) * encoding(name, DIMS.get(name, DIM)).ndim


def rows(name: str, dim: int) -> torch.Tensor:
    """The values of a picture, of shape (64, dim)."""
    convention = sinpe.convention(name, dim)
    if name in GRIDS:
        return sinpe.table(lengths(name, round(PLACES ** (1 / convention.ndim))), convention, flatten=True)
    if name in UNIT:
        return sinpe.encode(torch.linspace(0, 1, PLACES), convention)
    return sinpe.table(PLACES, convention)


def accepted(name: str) -> list[int]:
    """The dims up to 64 that a convention accepts."""
    dims = []
    for dim in range(1, 65):
        try:
            encoding(name, dim)
        except ValueError:
            continue
        dims.append(dim)
    return dims


def dims_of(name: str) -> str:
    """A sentence about the dims that a grid accepts; all others accept any."""
    if name not in GRIDS:
        return ""
    dims = accepted(name)
    for step in range(1, dims[0] + 1):
        if dims == list(range(dims[0], 65, step)) and dims[0] in (1, step):
            return "Any number of channels." if step == 1 else f"The number of channels is a multiple of {step}."
    if dims == list(range(dims[0], 65)):
        return f"Any number of channels from {dims[0]}."
    shown = ", ".join(map(str, dims[:8]))
    return f"Accepted numbers of channels: {shown}, ..."


def same_numbers() -> dict[str, str]:
    """For each name, a sentence with the names whose tables have the same values."""

    def group(names: tuple[str, ...], dim: int) -> dict[str, set[str]]:
        tables = {name: rows(name, dim) for name in names if dim in accepted(name)}
        alike: dict[str, set[str]] = {}
        for name, table in tables.items():
            alike[name] = {
                o for o, t in tables.items() if o != name and t.shape == table.shape and torch.equal(t, table)
            }
        return alike

    # A scale of the positions and a start of 1 or 2 show in `rows`; those of no picture are compared as sequences.
    even, odd = group(tuple(NAMES), 48), group(tuple(CATALOGUE), 49)
    sentences = {}
    for name in NAMES:
        always = sorted(o for o in even[name] if name in GRIDS or o in odd[name])
        mostly = sorted(even[name] - set(always))
        parts = [f"it gives the same values as {_names(always)}"] if always else []
        parts += [f"for an even dim it gives the same values as {_names(mostly)}"] if mostly else []
        text = "; ".join(parts)
        sentences[name] = f"{text[0].upper()}{text[1:]}." if text else ""
    return sentences


def sentence(text: str) -> str:
    """A description as a sentence; a name at its start is quoted, not capitalized."""
    word = re.split(r"\W", text, maxsplit=1)[0]
    return f"`{word}`{text[len(word) :]}." if word in NAMES else f"{text[0].upper()}{text[1:]}."


def _names(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def example(name: str) -> str:
    dim = DIMS.get(name, DIM)
    line = call(name, dim)
    lines, named = [line], f'"{name}", dim={dim}'
    if name in GRIDS:
        shape = lengths(name, 2)
        steps = "[:3]" if len(shape) == 2 else "[[0, 1, 2, 4]]"  # one step along each axis
        lines.append(f"sinpe.table({shape}, {named}, flatten=True){steps}")
    elif name in POINTS:
        points = line.replace(str(dim), "12, axes=3")
        lines += [f"sinpe.encode(torch.tensor([0.0, 0.1]), {named})"]
        lines += [f"sinpe.encode(torch.tensor([[0.1, 0.2, 0.3]]), {points})"]
    elif name in TIMESTEPS:
        t = "[0.0, 0.99839]" if name == "flux" else "[0.0, 998.39]"
        lines += [f'sinpe.TimestepEncoding({dim}, encoding="{name}")(torch.tensor({t}))']
    else:
        lines.append(f"sinpe.table(2, {named})")
    return session(*lines)


def entries(names: tuple[str, ...]) -> str:
    """One section per name."""
    same = same_numbers()
    sections = []
    for name in names:
        entry: Any = CATALOGUE.get(name) or GRIDS[name]
        sections.append(
            f"### {name}\n\n"
            f"{' '.join(filter(None, [sentence(entry.description), dims_of(name), same[name]]))} "
            f"Used by {entry.users}.\n\n"
            f"```text\n{entry.formula}\n```\n\n"
            f"![{name}](images/conventions/{name}.png)\n\n"
            f"{example(name)}"
        )
    return "\n" + "\n".join(sections)


def index() -> str:
    """A table of kind, code, name and description."""
    every: dict[str, Any] = {**CATALOGUE, **GRIDS}
    assert not any("|" in entry.code + entry.description for entry in every.values()), "a cell cannot hold |"
    kinds = {
        "sequence": SEQUENCES,
        "timesteps": TIMESTEPS,
        "image": tuple(name for name in GRIDS if name.endswith("2d")),
        "video, volume": tuple(name for name in GRIDS if name.endswith("3d")),
        "points": POINTS,
    }
    assert sorted(name for names in kinds.values() for name in names) == sorted(every)
    lines = [
        f"| {kind} | `{every[name].code}` | [{name}](#{name}) | {every[name].description} |"
        for kind, names in kinds.items()
        for name in names
    ]
    return "\n".join(["\n| kind | if your code contains | convention | description |", "|---|---|---|---|", *lines, ""])


PARTS: dict[str, Callable[[], str]] = {
    "index": index,
    "sequences": lambda: entries(SEQUENCES),
    "timesteps": lambda: entries(TIMESTEPS),
    "points": lambda: entries(POINTS),
    "grids": lambda: entries(tuple(GRIDS)),
}


def page(text: str) -> str:
    """The page with its generated parts renewed."""
    before = torch._tensor_str.PRINT_OPTS.__dict__.copy()
    torch.set_printoptions(**PRINTING)
    try:
        return page_parts.replace(text, {name: made() for name, made in PARTS.items()})
    finally:
        torch._tensor_str.PRINT_OPTS.__dict__.update(before)


def pictures(folder: Path) -> Iterator[Path]:
    """Draw every convention into a folder; reproducible bytes."""
    for name in NAMES:
        dim = 16 if name in POINTS else next(dim for dim in (64, 60, 48) if dim in accepted(name))
        canvas = drawing.canvas(4.2, 2.8, dpi=80)
        start = 0 if name in GRIDS else encoding(name, dim).start
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
