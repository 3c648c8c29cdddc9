"""The benchmark's printed report: the tables, then the missed targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FLAT_FROM = 2**24  # from this number of elements on, beyond the caches, ours / floor should be constant for float32
FLAT = 1.3  # up to this factor


def met(value: float, target: float | None, *, most: bool) -> bool | None:
    """Whether a target is met, at the two decimals that are printed; None without a target."""
    if target is None:
        return None
    return round(value, 2) <= target if most else round(value, 2) >= target


def verdict(flag: bool | None, target: float | None, sign: str) -> str:
    """ "<= 1.1 met", "<= 1.1 MISSED", or a dash."""
    return "-" if flag is None else f"{sign} {target:<4g} {'met' if flag else 'MISSED'}"


def report(results: Sequence[dict[str, Any]]) -> str:
    """The table of the timed rows: one line per row, one more for each further peer."""
    head = tuple("case|floor|floor ms|ours ms|GB/s|ours/floor|target|peer|peer ms|peer/ours|target".split("|"))
    lines: list[tuple[str, ...]] = []
    failed = []
    skipped: dict[str, list[str]] = {}  # by reason
    for entry in results:
        if "error" in entry:
            failed.append(f"{entry['title']}: FAILED, {entry['error']}")
            continue
        if "skipped" in entry:
            skipped.setdefault(entry["skipped"], []).append(entry["title"])
            continue
        own = (
            entry["title"],
            entry["floor"],
            number(entry.get("floor_ms")),
            number(entry["ours_ms"]),
            f"{entry['gigabytes_per_second']:.0f}" if "gigabytes_per_second" in entry else "-",
            f"{entry['ratio']:.2f}" if "ratio" in entry else "-",
            verdict(entry.get("met"), entry["target"], "<="),
        )
        against = [
            (peer["name"], number(peer["ms"]), f"{peer['ratio']:.2f}", verdict(peer["met"], peer["target"], ">="))
            for peer in entry["peers"]
        ] or [("-", "-", "-", "-")]
        lines += [(own if i == 0 else ("",) * len(own)) + peer for i, peer in enumerate(against)]
        failed += [f"{entry['title']}: {name} cannot run here, {why}" for name, why in entry["peer_errors"].items()]
    told = [f"skipped, {reason}: {'; '.join(titles)}" for reason, titles in skipped.items()]
    return "\n".join(["", *([aligned([head, *lines], right={2, 3, 4, 5, 8, 9})] if lines else []), *failed, *told])


def report_processes(extras: Sequence[dict[str, Any]]) -> str:
    """The table of the measurements in separate processes."""
    lines: list[tuple[str, ...]] = [("in a process of its own", "value", "target")]
    for entry in extras:
        if "value" in entry:
            value, note = f"{entry['value']:.1f} {entry['unit']}", verdict(entry["met"], entry["target"], "<=")
        else:
            value, note = "-", f"skipped: {entry['skipped']}" if "skipped" in entry else f"FAILED: {entry['error']}"
        lines.append((entry["title"], value, note))
    return "\n" + aligned(lines, right={1})


def aligned(lines: Sequence[tuple[str, ...]], right: set[int]) -> str:
    """Columns padded to their widest cell, with a ruled header."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in [text[0], "-" * len(text[0].rstrip()), *text[1:]])


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
    """How far ours / floor varies from 2^18 elements on, for each line of at least two such points."""
    found = []
    for (case, dtype, threads), entries in lines_of_sizes(sizes).items():
        ratios = [entry["ratio"] for entry in entries if "ms" in entry and entry["elements"] >= FLAT_FROM]
        if len(ratios) < 2:
            continue
        factor, target = max(ratios) / min(ratios), FLAT if dtype == "float32" else None
        found.append(
            {"case": case, "title": entries[0]["title"], "dtype": dtype, "threads": threads, "least": min(ratios)}
            | {"most": max(ratios), "factor": factor, "target": target, "met": met(factor, target, most=True)}
        )
    return found


def report_sizes(sizes: Sequence[dict[str, Any]]) -> str:
    """A table for each case, dtype and number of threads: one line per size."""
    text = []
    flat = {(entry["case"], entry["dtype"], entry["threads"]): entry for entry in flatness(sizes)}
    for key, entries in lines_of_sizes(sizes).items():
        _, dtype, threads = key
        title = f"{entries[0]['title']} {dtype}, {plural(threads, 'thread')}, floor {entries[0]['floor']}"
        text += ["", f"{title}: nanoseconds an element"]
        good = [entry for entry in entries if "ms" in entry]
        if good:
            text.append(_size_table(good))
        if key in flat:
            line = flat[key]
            text.append(
                f"ours/floor from {power(FLAT_FROM)} elements: {line['least']:.2f} to {line['most']:.2f}, a factor of "
                f"{line['factor']:.2f} {verdict(line['met'], line['target'], '<=')}".removesuffix(" -")
            )
        for entry in entries:
            where = f"{power(entry['elements'])} elements"
            if "ms" not in entry:
                text.append(
                    f"{where}: " + (f"FAILED, {entry['error']}" if "error" in entry else f"skipped, {entry['skipped']}")
                )
            text += [f"{where}: {name} cannot run here, {why}" for name, why in entry.get("peer_errors", {}).items()]
    return "\n".join(text)


def _size_table(entries: Sequence[dict[str, Any]]) -> str:
    peers = dict.fromkeys(name for entry in entries for name in entry["ms"] if name not in ("floor", "ours"))
    measured = [name for name in ("ours", *peers) if any(name in entry.get("memory_mib", {}) for entry in entries)]
    lines = [("elements", "floor", "ours", "ours/floor", *peers, *(f"MiB: {name}" for name in measured))]
    for entry in entries:
        each, extra = nanoseconds(entry), entry.get("memory_mib", {})
        own = (power(entry["elements"]), number(each["floor"]), number(each["ours"]), f"{entry['ratio']:.2f}")
        others = (number(each.get(name)) for name in peers)
        lines.append((*own, *others, *(f"{extra[name]:.1f}" if name in extra else "-" for name in measured)))
    return aligned(lines, right=set(range(len(lines[0]))))


def never_steady(rows: Sequence[Mapping[str, Any]]) -> str:
    """Subjects whose time was still falling when they were timed, or that drifted meanwhile: figures to distrust."""
    lines = [f"  {row['title']}: {', '.join(row['unsteady'])}" for row in rows if row.get("unsteady")]
    return "\n".join(["\nnot steady, so figures to distrust:", *lines]) if lines else ""


def missed(found: Mapping[str, Any]) -> str:
    """The last lines: every missed target, with its figure."""
    verdicts = list(_verdicts(found))
    if not verdicts:
        return ""
    lost = [line for line, flag in verdicts if not flag]
    if not lost:
        return f"\ntargets: all {len(verdicts)} met"
    return "\n".join([f"\ntargets missed, {len(lost)} of {len(verdicts)}:", *(f"  {line}" for line in lost)])


def _verdicts(found: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Every measured target of a run: the line to print if it was missed, and whether it was met."""
    for entry in found["rows"]:
        if entry.get("met") is not None:
            yield (
                f"{entry['title']}: {entry['ratio']:.2f} x {entry['floor']}, target <= {entry['target']:g}",
                entry["met"],
            )
        for peer in entry.get("peers", ()):
            if peer["met"] is not None:
                figure = f"{peer['name']} takes {peer['ratio']:.2f} x ours, target >= {peer['target']:g}"
                yield f"{entry['title']}: {figure}", peer["met"]
    for entry in found["processes"]:
        if entry.get("met") is not None:
            line = f"{entry['title']}: {entry['value']:.1f} {entry['unit']}, target <= {entry['target']:g}"
            yield line, entry["met"]
    for entry in found["flatness"]:
        if entry["met"] is not None:
            where = f"{entry['title']} {entry['dtype']}, {plural(entry['threads'], 'thread')}"
            line = f"{where}: ours/floor varies by {entry['factor']:.2f} over the sizes, target <= {entry['target']:g}"
            yield line, entry["met"]
