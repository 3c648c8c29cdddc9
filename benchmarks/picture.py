"""The figure of the benchmark's sizes: a panel for each case, dtype and number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinpe_ext.checks.plots import matplotlib_installed
from sinpe_ext.cli.outputs import picture_to_write, refused
from sinpe_ext.encodings.values import described

from .report import lines_of_sizes, nanoseconds, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMED = ("case", "title", "floor", "dtype", "threads", "elements", "ms")  # fields of a size that the figure needs
BENCHMARK_STYLES: dict[str, dict[str, Any]] = {  # name -> its line style in every panel
    "floor": {"color": "0.4", "linestyle": ":"},
    "ours": {"color": "C0", "linewidth": 2.5, "zorder": 3},
    "usual formula": {"color": "C1"},
    "torch.compile": {"color": "C2"},
    "ready table": {"color": "C3", "linestyle": "--"},
}
PANEL = (4.6, 3.4)  # inches
ABOUT = {"cpu", "cores", "torch", "date"}  # facts of the machine in the title


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


def after(found: Mapping[str, Any], path: Path | None, asked: str | None) -> str:
    """Draw the figure of a run, to the requested path or next to the JSON; return the text to print."""
    where = Path(asked) if asked else path and path.with_suffix(".png")
    if where is None or not any("ms" in entry for entry in found["sizes"]):
        return ""
    if not drawable():
        return "no picture: matplotlib is not installed; `pip install matplotlib`, then --replot the JSON"
    return f"drawn: {draw(found, where)}"


def again(source: str, asked: str | None) -> str:
    """Draw a saved result; return the text to print."""
    where = check(asked or Path(source).with_suffix(".png"))
    kind = "a result of `python -m benchmarks --sizes -o FILE.json`"
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
    """One panel per case (columns) and per dtype and number of threads (rows)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = list(lines_of_sizes(timings(found)))
    cases, kinds = list(dict.fromkeys(key[0] for key in keys)), list(dict.fromkeys(key[1:] for key in keys))
    figure = Figure(figsize=(PANEL[0] * len(cases), PANEL[1] * len(kinds)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(kinds), len(cases), squeeze=False, sharex=True, sharey=True)
    lines: dict[Any, Any] = {}  # label -> line, for the single legend of all panels
    for row, (dtype, threads) in enumerate(kinds):
        for column, case in enumerate(cases):
            if (case, dtype, threads) in keys:
                drawn = panel(found, case, dtype=dtype, threads=threads, ax=panels[row, column])
                drawn.label_outer()
                lines.update((line.get_label(), line) for line in drawn.get_lines())
                if (own := drawn.get_legend()) is not None:
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


def panel(
    results: Mapping[str, Any],
    case: str = "table",
    *,
    dtype: str = "float32",
    threads: int | None = None,
    ax: Axes,
) -> Axes:
    """Draw time per element against size: ours, the usual code, and the floor set by memory.

    Args:
        results: what ``python -m benchmarks --sizes -o FILE.json`` writes, loaded with ``json.load``.
        case: "table", "add_out" or "add_inplace".
        dtype: "float32" or "bfloat16".
        threads: the number of threads, by default the largest that was measured.
        ax: Axes to draw into.
    Returns:
        The Axes.
    Raises:
        ValueError: nothing was measured under that case, dtype and number of threads.
    """
    groups = lines_of_sizes(timings(results))
    if threads is None:
        threads = max((key[2] for key in groups if key[:2] == (case, dtype)), default=0)
    if (case, dtype, threads) not in list(groups):
        known = ", ".join(f"{name} {kind} on {plural(count, 'thread')}" for name, kind, count in groups) or "no sizes"
        raise ValueError(
            f"results: expected times of {case} {dtype} on {threads or 'any'} threads, got {known}; measure with "
            "`python -m benchmarks --sizes`"
        )
    entries = groups[case, dtype, threads]
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
    ax.set_title(f"{entries[0]['title']} {dtype}, {plural(threads, 'thread')}")
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize="small")
    return ax


def timings(results: Any) -> list[dict[str, Any]]:
    """The measured sizes in a benchmark's results."""
    source = "what `python -m benchmarks --sizes -o FILE.json` writes"
    if not isinstance(results, Mapping):
        raise TypeError(f"results: expected {source}, as a dict, got {described(results)}; pass json.load(open(FILE))")
    sizes = results.get("sizes", ())
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in sizes):
        raise ValueError(
            f'results: expected {source}, got "sizes" that are no list of dicts; pass such a file, unchanged'
        )
    for entry in sizes:
        missing = [name for name in TIMED if name not in entry] if "ms" in entry else []
        if missing or not all(entry.get(name) for name in TIMED if "ms" in entry):
            wrong = f'no "{missing[0]}"' if missing else "an empty one"
            raise ValueError(
                f'results: expected {source}, got an entry of "sizes" with {wrong}; pass such a file, unchanged'
            )
        if "ms" in entry and not _are_times(entry):
            raise ValueError(
                f'results: expected {source}, got an entry of "sizes" whose "ms" or "elements" are no numbers; '
                "pass such a file, unchanged"
            )
    return [dict(entry) for entry in sizes if "ms" in entry]


def _are_times(entry: Mapping[str, Any]) -> bool:
    numbers = (
        [*entry["ms"].values(), entry["elements"], entry["threads"]] if isinstance(entry["ms"], Mapping) else [None]
    )
    names = entry["case"], entry["dtype"], entry["title"], entry["floor"]
    return all(isinstance(number, (int, float)) for number in numbers) and all(isinstance(name, str) for name in names)
