"""The benchmark's tables, for the terminal and the pages, and its missed targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Lines = list[tuple[str, ...]]  # of a table, the first of which is its head
FLAT_FROM = 2**24  # from this number of elements on, beyond the caches, ours / floor should be constant for float32
FLAT = 1.3  # up to this factor


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
            lines.append((title, said(entry), "", "", "", ""))
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
        value = f"{entry['value']:.1f} {entry['unit']}" if "value" in entry else said(entry)
        lines.append((entry["title"], value, verdict(entry.get("met"), entry.get("target"), "<=")))
    return lines


def sizes(points: Sequence[Mapping[str, Any]]) -> Lines:
    """The table of the sizes of one case, dtype and number of threads: nanoseconds per element, and MiB."""
    names = list(dict.fromkeys(name for point in points for name in point.get("ms", ()) if name != "floor"))
    title = f"{points[0]['title']} {points[0]['dtype']}, elements"
    lines: Lines = [(title, f"floor `{points[0]['floor']}`", *names, "ours / floor", "MiB")]
    for point in points:
        if "ms" not in point:
            lines.append((power(point["elements"]), said(point), *[""] * len(names), "", ""))
            continue
        each, extra = nanoseconds(point), point.get("memory_mib", {})
        times = [number(each["floor"]), *(number(each.get(name)) for name in names)]
        memory = ", ".join(f"{extra[name]:.0f} {name}" for name in names if name in extra)
        lines.append((power(point["elements"]), *times, f"{point['ratio']:.2f}", memory))
    return lines


def said(entry: Mapping[str, Any]) -> str:
    """Why an entry has no figures."""
    return f"FAILED: {entry['error']}" if "error" in entry else f"skipped: {entry['skipped']}"


def markdown(lines: Lines) -> str:
    """A table of a page."""
    rule = "|" + "---|" * len(lines[0])
    return "\n".join([f"| {' | '.join(lines[0])} |", rule, *(f"| {' | '.join(line)} |" for line in lines[1:])]) + "\n"


def aligned(lines: Lines) -> str:
    """A table of the terminal: columns padded to their widest cell, with a ruled header."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def number(milliseconds: float | None) -> str:
    """Milliseconds with as many decimals as are significant."""
    if milliseconds is None:
        return "-"
    return (
        f"{milliseconds:.4f}"
        if milliseconds < 0.1
        else f"{milliseconds:.3f}"
        if milliseconds < 10
        else f"{milliseconds:.1f}"
    )


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def power(elements: int) -> str:
    """Format a power of two: "2^20"."""
    return f"2^{elements.bit_length() - 1}" if elements & (elements - 1) == 0 else str(elements)


def nanoseconds(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return a dict: name -> nanoseconds per element."""
    return {name: 1e6 * ms / entry["elements"] for name, ms in entry["ms"].items()}


def lines_of_sizes(sizes: Sequence[dict[str, Any]]) -> dict[tuple[str, str, int], list[dict[str, Any]]]:
    """The points grouped by case, dtype and threads, in the order measured."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for entry in sizes:
        groups.setdefault((entry["case"], entry["dtype"], entry["threads"]), []).append(entry)
    return groups


def flatness(sizes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far ours / floor varies from FLAT_FROM elements on, for each line of at least two such points."""
    varying = []
    for (case, dtype, threads), entries in lines_of_sizes(sizes).items():
        ratios = [entry["ratio"] for entry in entries if "ms" in entry and entry["elements"] >= FLAT_FROM]
        if len(ratios) < 2:
            continue
        factor, target = max(ratios) / min(ratios), FLAT if dtype == "float32" else None
        varying.append(
            {"case": case, "title": entries[0]["title"], "dtype": dtype, "threads": threads, "least": min(ratios)}
            | {"most": max(ratios), "factor": factor, "target": target, "met": met(factor, target, most=True)}
        )
    return varying


def report_sizes(measured: Sequence[dict[str, Any]]) -> str:
    """A table for each case, dtype and number of threads, and how far its ratios vary."""
    text = []
    flat = {(entry["case"], entry["dtype"], entry["threads"]): entry for entry in flatness(measured)}
    for key, points in lines_of_sizes(measured).items():
        text += ["", f"{plural(key[2], 'thread')}, nanoseconds per element:", aligned(sizes(points))]
        if key in flat:
            line = flat[key]
            text.append(
                f"ours/floor from {power(FLAT_FROM)} elements: {line['least']:.2f} to {line['most']:.2f}, a factor of "
                f"{line['factor']:.2f} {verdict(line.get('met'), line.get('target'), '<=')}".rstrip()
            )
        for point in points:
            errors = point.get("peer_errors", {}).items()
            text += [f"{power(point['elements'])} elements: {name} cannot run here, {why}" for name, why in errors]
    return "\n".join(text)


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
        if entry.get("met") is not None:
            yield (
                f"{entry['title']}: {entry['ratio']:.2f} x {entry['floor']}, target <= {entry['target']:g}",
                entry["met"],
            )
        for peer in entry.get("peers", ()):
            if peer.get("met") is not None:
                figure = f"{peer['name']} takes {peer['ratio']:.2f} x ours, target >= {peer['target']:g}"
                yield f"{entry['title']}: {figure}", peer["met"]
    for entry in results["processes"]:
        if entry.get("met") is not None:
            line = f"{entry['title']}: {entry['value']:.1f} {entry['unit']}, target <= {entry['target']:g}"
            yield line, entry["met"]
    for entry in results["flatness"]:
        if entry.get("met") is not None:
            where = f"{entry['title']} {entry['dtype']}, {plural(entry['threads'], 'thread')}"
            line = f"{where}: ours/floor varies by {entry['factor']:.2f} over the sizes, target <= {entry['target']:g}"
            yield line, entry["met"]
