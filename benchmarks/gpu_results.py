"""Report the results of gpu_check.sh: `python -m benchmarks.gpu_results ARCHIVE [--write]`.

Prints each step's result, the rows as a table, a variant next to the usual build, and for rows that missed their target
the profiler's output. --write: saves the measurements as benchmarks/results/DATE-DEVICE-cuda.json and the table in
docs/cuda.md, replacing the earlier one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cuda.md"
MARKS = ("<!-- gpu_results: begin -->", "<!-- gpu_results: end -->")
STATE = ("<!-- measured: begin -->", "<!-- measured: end -->")  # the summary at the top of the page
SEEN = re.compile(
    r"Duration|Throughput|Ipc|Registers Per Thread|Occupancy|Elapsed Cycles|No Eligible|Warp Cycles Per Issued|stall"
)


class Unusable(Exception):
    """Raised if the archive is not from gpu_check.sh or has no measurements; the message is for the user."""


def read(archive: Path) -> dict[str, str]:
    """Return a dict: file name -> text."""
    try:
        with tarfile.open(archive) as packed:
            files = [(member.name, packed.extractfile(member)) for member in packed.getmembers() if member.isfile()]
            return {Path(name).name: file.read().decode(errors="replace") for name, file in files if file is not None}
    except (OSError, EOFError, tarfile.TarError) as error:
        raise Unusable(f"archive: expected gpu_check.sh's gpu_check.tar.gz, got {archive}: {error}") from error


def merged(files: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """Merge the groups NAME.1.json, NAME.2.json, ... into one run; None if there are none."""
    found: dict[str, Any] | None = None
    for file in sorted(files, key=lambda n: [int(t) if t.isdigit() else 0 for t in n.split(".")]):
        if re.fullmatch(rf"{name}\.\d+\.json", file):
            try:
                run = json.loads(files[file])
            except ValueError:
                print(f"{file}: left out, it was not written to its end", file=sys.stderr)
                continue
            if run.get("cuda") is None:
                continue
            if found is None:
                found = run
            else:
                found["cuda"]["rows"] += run["cuda"]["rows"]
    return found


def together(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return a dict: run -> measurements, of double (core's rows, then the others), single and variant."""
    runs = {name: run for name in ("core", "double", "single", "variant") if (run := merged(files, name))}
    if "core" in runs:
        known = {row["name"] for row in runs["core"]["cuda"]["rows"]}
        others = runs.pop("double", {"cuda": {"rows": []}})["cuda"]["rows"]
        runs["core"]["cuda"]["rows"] += [row for row in others if row["name"] not in known]
        runs["double"] = runs.pop("core")
    if not runs:
        raise Unusable("archive: expected the figures of a benchmark (core.1.json, ...), got none")
    return runs


def verdict(row: Mapping[str, Any]) -> str:
    """The row's target and whether it was met, as a table cell."""
    if "error" in row:
        return f"failed: {row['error']}"
    if row["ratio_target"] is not None:
        text = f"{1 / row['fraction']:.2f}x, target <= {row['ratio_target']:.2f}x"
    elif row["fraction_target"] is not None:
        text = f"{100 * row['fraction']:.0f} %, target {100 * row['fraction_target']:.0f} %"
    else:
        text = f"{100 * row['fraction']:.0f} %"
    return text + {None: "", True: "", False: ", MISSED"}[row["met"]]


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table: one line per row, with its floor and its peers."""
    lines = []
    for name in ("double", "single"):
        if name not in runs:
            continue
        facts, machine = runs[name]["cuda"]["facts"], runs[name]["machine"]
        lines += [
            f"{facts['device']}, CUDA {facts['cuda']}, torch {machine['torch']}, arithmetic {facts['arithmetic']}, "
            f"{machine['date'][:10]}:",
            "",
            "| case | ms | GB/s | of the floor | floor | against others |",
            "|---|---:|---:|---|---|---|",
        ]
        for row in runs[name]["cuda"]["rows"]:
            if "error" in row:
                lines.append(f"| {row['title']} | | | {verdict(row)} | | |")
                continue
            peers = ", ".join(f"{peer['name']} {peer['ratio']:.2f}x" for peer in row["peers"])
            numbers = f"{row['ours_ms']:.4g} | {row['gigabytes_a_second']:.0f}"
            lines.append(f"| {row['title']} | {numbers} | {verdict(row)} | {row['floor']} | {peers} |")
        lines.append("")
    return "\n".join(lines)


def compared(runs: Mapping[str, Mapping[str, Any]], flags: str) -> str:
    """A variant's rows next to those of the usual build."""
    usual = {row["name"]: row for row in runs["double"]["cuda"]["rows"] if "ours_ms" in row}
    lines = [f"with {flags}, beside the usual library:"]
    for row in runs["variant"]["cuda"]["rows"]:
        if "ours_ms" in row and row["name"] in usual:
            before, after = usual[row["name"]]["ours_ms"], row["ours_ms"]
            lines.append(f"  {row['title']:44s} {before:9.4f} -> {after:9.4f} ms, {after / before:.3f}x")
    return "\n".join(lines)


def reasons(files: Mapping[str, str], runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The profiler's output for the rows that missed their target."""
    missed = {row["name"] for run in runs.values() for row in run["cuda"]["rows"] if row.get("met") is False}
    lines = []
    for name in sorted(missed):
        if f"profile_{name}.txt" in files:
            lines.append(f"{name}, as the profiler saw it:")
            told = [line.strip() for line in files[f"profile_{name}.txt"].splitlines() if SEEN.search(line)]
            lines += [f"  {line}" for line in told[:24]]
    return "\n".join(lines)


def keep(files: Mapping[str, str], runs: Mapping[str, Mapping[str, Any]], results: Path, page: Path) -> Path:
    """Write the results file and the table in the page; return the file's path."""
    first = next(iter(runs.values()))
    tag = re.sub(r"[^a-z0-9]+", "-", first["cuda"]["facts"]["device"].lower()).strip("-")
    path = results / f"{first['machine']['date'][:10]}-{tag}-cuda.json"
    commit = re.findall(r"^commit (.*)$", files.get("summary.txt", ""), re.M)
    kept = {"commit": commit[-1] if commit else None, "summary": files.get("summary.txt", ""), "runs": runs}
    if not {"double", "single"} & set(runs):
        raise Unusable("archive: expected the figures of core, bench or bench_single, got those of variant alone")
    facts = first["cuda"]["facts"]
    state = (
        f"**Measured on one {facts['device']}**, {first['machine']['date'][:10]}: the table under Testing on a GPU. "
    )
    state += "The rest of this page is as it was before: counted, or run on the host."
    text = page.read_text()
    for (begin, end), content in ((MARKS, table(runs)), (STATE, state)):
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise Unusable(f"{page} has no place marked {begin} ... {end}")
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    path.write_text(json.dumps(kept, indent=1) + "\n")
    page.write_text(text)
    return path


def main(arguments: Sequence[str] | None = None, results: Path | None = None, page: Path = PAGE) -> int:
    """Return the exit code: 0 done, 1 an archive without measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_results", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the figures and the table")
    options = parser.parse_args(arguments)
    try:
        files = read(options.archive)
        print(files.get("summary.txt", "").strip())
        runs = together(files)
        print("\n" + table(runs))
        if "variant" in runs and "double" in runs:
            print(compared(runs, files.get("variant.txt", "other flags").strip()) + "\n")
        print(reasons(files, runs))
        if options.write:
            print(f"written: {keep(files, runs, results or ROOT / 'benchmarks' / 'results', page)}, {page}")
    except Unusable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
