"""The figure of the benchmark's sizes: a panel for each case, dtype and number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .outputs import matplotlib_installed, picture_to_write, refused
from .report import lines_of_sizes, nanoseconds, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BENCHMARK_STYLES: dict[str, dict[str, Any]] = {  # name -> its line style in every panel
    "floor": {"color": "0.4", "linestyle": ":"},
    "ours": {"color": "C0", "linewidth": 2.5, "zorder": 3},
    "naive float32 formula": {"color": "C1"},
    "torch.compile": {"color": "C2"},
    "ready table": {"color": "C3", "linestyle": "--"},
}
PANEL = (4.6, 3.4)  # inches


class Undrawn(Exception):
    """Raised if a requested figure cannot be drawn; the message says what to do."""


def check(where: str | Path) -> Path:
    """Checks --plot before anything is measured, and returns the path of the figure. Raises Undrawn."""
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


def after(results: Mapping[str, Any], path: Path | None, asked: str | None) -> str:
    """Draw the figure of a run, to the requested path or next to the JSON; return the text to print."""
    where = Path(asked) if asked else path and path.with_suffix(".png")
    if where is None or not any("ms" in entry for entry in results["sizes"]):
        return ""
    if not drawable():
        return "no picture: matplotlib is not installed; `pip install matplotlib`, then --replot the JSON"
    return f"drawn: {draw(results, where)}"


def again(source: str, asked: str | None) -> str:
    """Draw a saved result; return the text to print."""
    where = check(asked or Path(source).with_suffix(".png"))
    kind = "a result of `python -m benchmarks --sizes -o FILE.json`"
    try:
        results = json.loads(Path(source).read_text(encoding="utf-8"))
        if not timings(results):
            raise Undrawn(f"replot: expected a result with sizes, got none in {source}; measure with --sizes")
        return f"drawn: {draw(results, where)}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Undrawn(f"replot: expected {kind}, got {source} ({error!r}); pass another") from None


def draw(results: Mapping[str, Any], where: Path) -> Path:
    """One panel per case (columns) and per dtype and number of threads (rows)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = lines_of_sizes(timings(results))
    cases, kinds = list(dict.fromkeys(key[0] for key in groups)), list(dict.fromkeys(key[1:] for key in groups))
    figure = Figure(figsize=(PANEL[0] * len(cases), PANEL[1] * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(kinds), len(cases), squeeze=False, sharex=True, sharey=True)
    lines: dict[Any, Any] = {}  # label -> line, for the single legend of all panels
    for row, (dtype, threads) in enumerate(kinds):
        for column, case in enumerate(cases):
            ax = panels[row, column]
            if (case, dtype, threads) in groups:
                panel(groups[case, dtype, threads], ax)
                lines.update((line.get_label(), line) for line in ax.get_lines())
            else:
                ax.set_axis_off()
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize="small")
    about = results["machine"]
    figure.suptitle(f"{about['cpu']}, {plural(about['cores'], 'core')}, torch {about['torch']}, {about['date'][:10]}")
    try:
        figure.savefig(where, dpi=120)
    except OSError as error:
        raise Undrawn(str(refused("plot", where, error))) from None
    return where


def panel(entries: Sequence[Mapping[str, Any]], ax: Axes) -> None:
    """Draw nanoseconds per element against the sizes of one case: ours, the usual code, and the floor set by memory."""
    names = dict.fromkeys(name for entry in entries for name in entry["ms"])
    for name in names:
        some = [entry for entry in entries if name in entry["ms"]]
        style = {**BENCHMARK_STYLES.get(name, {}), "label": name, "marker": "."}
        if name == "floor":
            style["label"] = f"floor: {entries[0]['floor']}"
        ax.plot([entry["elements"] for entry in some], [nanoseconds(entry)[name] for entry in some], **style)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("elements")
    ax.set_ylabel("nanoseconds per element")
    ax.set_title(f"{entries[0]['title']} {entries[0]['dtype']}, {plural(entries[0]['threads'], 'thread')}")
    ax.grid(True, which="major", alpha=0.3)
    ax.label_outer()


def timings(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measured sizes in a benchmark's results."""
    return [entry for entry in results["sizes"] if "ms" in entry]
