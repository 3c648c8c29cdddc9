"""The picture of the benchmark's sizes: `plot.benchmark` for each case, dtype and number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._bench_report import lines_of_sizes, plural

PANEL = (4.6, 3.4)  # inches


class Undrawn(Exception):
    """A picture that was asked for cannot be drawn, with what to do."""


def check(sizes: bool) -> None:
    """Before anything is measured: stop where --plot could not be done in the end."""
    if not sizes:
        raise Undrawn("plot: expected sizes to draw, got a run without them; add --sizes")
    if not drawable():
        raise Undrawn("plot: expected matplotlib, which is not installed; run `pip install sinpe-ext[plot]`")


def drawable() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def after(found: Mapping[str, Any], path: Path | None, asked: str | None) -> str:
    """The picture of a run, where asked or beside the JSON; what to print of it."""
    where = Path(asked) if asked else path and path.with_suffix(".png")
    if where is None or not any("ms" in entry for entry in found["sizes"]):
        return ""
    if not drawable():
        return "no picture: matplotlib is not installed; `pip install sinpe-ext[plot]`, then --replot the JSON"
    return f"drawn: {draw(found, where)}"


def again(source: str, asked: str | None) -> str:
    """Draw a kept result; what to print of it."""
    check(sizes=True)
    try:
        found = json.loads(Path(source).read_text(encoding="utf-8"))
        good = any("ms" in entry for entry in found["sizes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Undrawn(
            f"replot: expected a result of `python -m sinpe_ext bench --sizes -o FILE.json`, got {source}: "
            f"{type(error).__name__}: {error}"
        ) from None
    if not good:
        raise Undrawn(f"replot: expected a result with sizes, got none in {source}; measure with --sizes")
    return f"drawn: {draw(found, Path(asked) if asked else Path(source).with_suffix('.png'))}"


def draw(found: Mapping[str, Any], where: Path) -> Path:
    """One panel a case (columns), dtype and number of threads (rows)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from . import plot

    keys = [key for key, entries in lines_of_sizes(found["sizes"]).items() if any("ms" in entry for entry in entries)]
    cases, kinds = list(dict.fromkeys(key[0] for key in keys)), list(dict.fromkeys(key[1:] for key in keys))
    figure = Figure(figsize=(PANEL[0] * len(cases), PANEL[1] * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(kinds), len(cases), squeeze=False, sharex=True, sharey=True)
    lines: dict[Any, Any] = {}  # by label; one legend for all panels, where it hides none of them
    for row, (dtype, threads) in enumerate(kinds):
        for column, case in enumerate(cases):
            if (case, dtype, threads) in keys:
                panel = plot.benchmark(found, case, dtype=dtype, threads=threads, ax=panels[row, column])
                panel.label_outer()
                lines.update((line.get_label(), line) for line in panel.get_lines())
                if (own := panel.get_legend()) is not None:
                    own.remove()
            else:
                panels[row, column].set_axis_off()
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize="small")
    about = found["machine"]
    figure.suptitle(f"{about['cpu']}, {plural(about['cores'], 'core')}, torch {about['torch']}, {about['date'][:10]}")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(where, dpi=120)
    except (OSError, ValueError) as error:
        raise Undrawn(f"plot: expected a picture's file to write to, got {where}: {error}") from None
    return where
