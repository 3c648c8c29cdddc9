"""The benchmark's tables for the terminal, its missed targets, and the file of its results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Lines = list[tuple[str, ...]]  # of a table, the first of which is its head
DIGITS = 6  # significant ones in the file: more than any table shows


def met(value: float, target: float | None, *, most: bool) -> bool | None:
    """Whether a target is met, at the two decimals that are printed; None without a target."""
    if target is None:
        return None
    return round(value, 2) <= target if most else round(value, 2) >= target


def verdict(flag: bool | None, target: float | None, sign: str) -> str:
    """ "<= 1.1, met", "<= 1.1, MISSED", or nothing without a target."""
    return "" if flag is None or target is None else f"{sign} {target:g}, {'met' if flag else 'MISSED'}"


def timed(entries: Iterable[Mapping[str, Any]]) -> Lines:
    """The table of timed rows."""
    lines: Lines = [("case", "ours, ms", "floor, ms", "ours / floor", "target", "peer / ours")]
    for entry in entries:
        title = entry["title"]
        if entry.get("unsteady"):
            title += f" (not steady: {', '.join(entry['unsteady'])})"
        if "ours_ms" not in entry:
            lines.append((title, no_figures(entry), "", "", "", ""))
            continue
        peers = []
        for peer in entry["peers"]:
            aim = verdict(peer.get("met"), peer.get("target"), ">=")
            peers.append(f"{peer['ratio']:.3g} {peer['name']}" + (f" ({aim})" if aim else ""))
        peers += [f"{name} cannot run here: {why}" for name, why in entry.get("peer_errors", {}).items()]
        speed = f" ({entry['gigabytes_per_second']:.0f} GB/s)" if "gigabytes_per_second" in entry else ""
        speed += f", wall {number(entry['wall_ms']['ours'])}" if "wall_ms" in entry else ""
        floor = f"{number(entry['floor_ms'])} `{entry['floor']}`" if "floor_ms" in entry else ""
        ratio = f"{entry['ratio']:.2f}" if "ratio" in entry else ""
        aim = verdict(entry.get("met"), entry.get("target"), "<=")
        lines.append((title, number(entry["ours_ms"]) + speed, floor, ratio, aim, "; ".join(peers)))
    return lines


def processes(entries: Iterable[Mapping[str, Any]]) -> Lines:
    """The table of the measurements in separate processes."""
    lines: Lines = [("in a process of its own", "value", "target")]
    for entry in entries:
        value = f"{entry['value']:.1f} {entry['unit']}" if "value" in entry else no_figures(entry)
        lines.append((entry["title"], value, verdict(entry.get("met"), entry.get("target"), "<=")))
    return lines


def no_figures(entry: Mapping[str, Any]) -> str:
    """Why an entry has no figures."""
    return f"FAILED: {entry['error']}" if "error" in entry else f"skipped: {entry['skipped']}"


def aligned(lines: Lines) -> str:
    """A table of the terminal: columns padded to their widest cell, with a ruled header."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def number(milliseconds: float) -> str:
    """Milliseconds with as many decimals as are significant."""
    return f"{milliseconds:.{4 if milliseconds < 0.1 else 3 if milliseconds < 10 else 1}f}"


def missed(results: Mapping[str, Any]) -> str:
    """The last lines: every missed target, with its figure."""
    verdicts = list(_verdicts(results))
    if not verdicts:
        return ""
    lost = [line for line, flag in verdicts if not flag]
    if not lost:
        return f"\ntargets: all {len(verdicts)} met"
    return "\n".join([f"\ntargets missed, {len(lost)} of {len(verdicts)}:", *(f"  {line}" for line in lost)])


def _verdicts(results: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Every measured target of a run: the line to print if it was missed, and whether it was met."""
    for entry in results["rows"]:
        title = entry["title"]
        if entry.get("met") is not None:
            yield f"{title}: {entry['ratio']:.2f} x {entry['floor']}, target <= {entry['target']:g}", entry["met"]
        for peer in entry.get("peers", ()):
            if peer.get("met") is not None:
                figure = f"{peer['name']} takes {peer['ratio']:.2f} x ours, target >= {peer['target']:g}"
                yield f"{title}: {figure}", peer["met"]
    for entry in results["processes"]:
        if entry.get("met") is not None:
            figure = f"{entry['value']:.1f} {entry['unit']}, target <= {entry['target']:g}"
            yield f"{entry['title']}: {figure}", entry["met"]


# ------------------------------------------------------------------------------------------------ the file of results


def write(path: Path | None, results: Mapping[str, Any]) -> None:
    """Writes a results file atomically, so that an interrupted run leaves a complete file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)  # the default folder; a folder given by the user exists
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(written(results))
        whole.replace(path)


def written(results: Mapping[str, Any]) -> str:
    """The text of a results file: JSON with a line for each entry of a list, so that a change is readable."""
    parts = []
    for name, value in _shortened(results).items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _shortened(value: Any) -> Any:
    """A copy with floats of DIGITS significant digits, and without the entries of dicts that are None or empty."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {name: _shortened(item) for name, item in value.items() if item is not None and item != {}}
    return [_shortened(item) for item in value] if isinstance(value, (list, tuple)) else value
