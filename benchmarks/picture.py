"""The picture of the benchmark's sizes: `plot.benchmark` for each case, dtype and number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinpe_ext._plot_checks import matplotlib_installed, timings
from sinpe_ext.cli.outputs import picture_to_write, refused

from .report import lines_of_sizes, plural

PANEL = (4.6, 3.4)  # inches
ABOUT = {"cpu", "cores", "torch", "date"}  # what the title tells of the machine


class Undrawn(Exception):
    """A picture that was asked for cannot be drawn, with what to do."""


def check(where: str | Path) -> Path:
    """Before anything is measured or read: stop where --plot could not be done in the end; the picture's path."""
    try:
        matplotlib_installed()
        return picture_to_write("plot", str(where))
    except (ImportError, ValueError) as error:
        raise Undrawn(str(error)) from None


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
        return "no picture: matplotlib is not installed; `pip install matplotlib`, then --replot the JSON"
    return f"drawn: {draw(found, where)}"


def again(source: str, asked: str | None) -> str:
    """Draw a kept result; what to print of it."""
    where = check(asked or Path(source).with_suffix(".png"))
    kind = "a result of `python -m sinpe_ext bench --sizes -o FILE.json`"
    try:
        found = json.loads(Path(source).read_text(encoding="utf-8"))
        good = timings(found)
        about = found.get("machine")
        if not isinstance(about, Mapping) or not ABOUT <= set(about) or not isinstance(about["cores"], int):
            raise ValueError(f'results: expected "machine" with {", ".join(sorted(ABOUT))}, got another; measure again')
    except OSError as error:
        raise Undrawn(f"replot: expected {kind}, got {source} ({error.strerror or error}); pass another") from None
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise Undrawn(f"replot: expected {kind}, got {source}, which is no JSON ({error}); pass another") from None
    except (TypeError, ValueError) as error:
        raise Undrawn(f"replot: expected {kind}, got {source}: {error}") from None
    if not good:
        raise Undrawn(f"replot: expected a result with sizes, got none in {source}; measure with --sizes")
    return f"drawn: {draw(found, where)}"


def draw(found: Mapping[str, Any], where: Path) -> Path:
    """One panel a case (columns), dtype and number of threads (rows)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from sinpe_ext import plot

    keys = list(lines_of_sizes(timings(found)))
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
        figure.savefig(where, dpi=120)
    except OSError as error:
        raise Undrawn(str(refused("plot", where, error))) from None
    return where
