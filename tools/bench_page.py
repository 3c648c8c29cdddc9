"""Writes the benchmark tables of README.md, benchmarks/README.md, docs/performance.md and docs/cuda.md from a results
file.

    python tools/bench_page.py                                  # from the file that each table names
    python tools/bench_page.py benchmarks/results/new.json      # from this file, which the tables then name
    python tools/bench_page.py --check                          # write nothing; exit status 1 if a table differs

A table is between two comments, <!-- begin: tools/bench_page.py GROUP FILE --> and <!-- end -->; GROUP is a key of
GROUPS or OTHERS, and FILE is "none" before the first measurement. Each row shows the result for the largest number of
threads. A results file with some of the rows updates only the tables for which it has all rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.cases import ROWS  # noqa: E402
from benchmarks.cuda import ROWS as CUDA_ROWS  # noqa: E402
from benchmarks.grid import GRID_ROWS  # noqa: E402
from benchmarks.host import HOST_ROWS  # noqa: E402
from benchmarks.installed import INSTALLED_ROWS  # noqa: E402
from benchmarks.report import Lines, lines_of_sizes, markdown, processes, sizes, timed  # noqa: E402
from benchmarks.small import SMALL_ROWS  # noqa: E402
from benchmarks.training import TRAINING_ROWS  # noqa: E402

PAGES = ("README.md", "benchmarks/README.md", "docs/performance.md", "docs/cuda.md")
TABLE = re.compile(r"(<!-- begin: tools/bench_page\.py (\w+) (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
GROUPS = {"tables": ROWS, "installed": INSTALLED_ROWS, "grids": GRID_ROWS, "training": TRAINING_ROWS}
GROUPS |= {"small": SMALL_ROWS, "host": HOST_ROWS}
SUMMARY = ("table", "table_long", "table_fresh", "fairseq", "transformers", "add", "add_out", "add_inplace", "encode")
SUMMARY += ("decode", "decode_out", "timesteps", "dropout", "dropout_train", "embed", "embed_train", "train_step")
FRONT = {  # rows of README's table -> their titles there
    "table": "a table of 4096 x 1024, into an existing tensor; eager: the formula",
    "embed": "token lookup, scale, encoding: 32 x 512 tokens, 1024 channels",
    "dropout": "`x + PE` with dropout: (32, 512, 1024)",
    "dropout_train": "`x + PE` with dropout, forward and backward: (16, 512, 1024)",
    "timesteps": "8 timesteps, 320 channels",
    "add": "`x + PE`: (32, 512, 1024)",
    "decode": "one decoding step: (1, 1, 512)",
}
FRONT_CUDA = {  # rows of README's table of a GPU, in float32 and bfloat16 -> their titles there
    "cuda_table": "a table of 131072 x 1024, into an existing tensor; eager: the formula",
    "cuda_add": "`x + PE`: (32, 4096, 1024)",
    "cuda_dropout": "`x + PE` with dropout",
    "cuda_dropout_train": "the same, forward and backward",
    "cuda_embed_text": "token lookup, scale, encoding: ids of a text",
    "cuda_embed_train_text": "the same with dropout, forward and backward",
}
PEERS = ("eager", "naive float32 formula", "x + pe", "diffusers")  # the first of these in a row is its "eager PyTorch"
TIE = 1.3  # the ratio of two times that still counts as a tie
OTHERS = ("front", "front_cuda", "summary", "processes", "sizes", "cuda", "cuda_host")


def faster(ratio: float) -> str:
    """The verdict on a time that is `ratio` times ours; the noise of a busy machine is called a tie."""
    return "ties" if 1 / TIE < ratio < TIE else f"{ratio:.1f} x faster" if ratio > 1 else f"{1 / ratio:.1f} x slower"


def front(most: dict[str, dict[str, Any]]) -> Lines:
    lines: Lines = [("operation", "sinpe_ext", "compared with eager PyTorch", "compared with torch.compile")]
    for name, title in FRONT.items():
        if "ours_ms" not in (entry := most.get(name, {})):
            continue
        ratios = {peer["name"]: peer["ratio"] for peer in entry["peers"]}
        eager = next((ratios[peer] for peer in PEERS if peer in ratios), 1 / entry["ratio"])  # its floor, of one step
        compiled = faster(ratios["torch.compile"]) if "torch.compile" in ratios else ""
        milliseconds = entry["ours_ms"]
        spent = f"{milliseconds:.3g} ms" if milliseconds >= 0.1 else f"{1000 * milliseconds:.2g} us"
        lines.append((title, spent, faster(eager), compiled))
    return lines


def front_cuda(rows: dict[str, dict[str, Any]]) -> Lines:
    """Times in milliseconds."""
    lines: Lines = [("operation", "", "sinpe_ext", "copy or fill", "eager PyTorch", "torch.compile")]
    for name, title in FRONT_CUDA.items():
        for suffix, dtype in (("f32", "float32"), ("bf16", "bfloat16")):
            entry = rows[f"{name}_{suffix}"]
            ratios = {peer["name"]: peer["ratio"] for peer in entry["peers"]}
            eager, compiled = next(ratios[peer] for peer in PEERS if peer in ratios), ratios.get("torch.compile")
            ours = entry["ours_ms"]
            others = f"{ours / entry['ratio']:.3f}", f"{ours * eager:.3f}", f"{ours * compiled:.3f}" if compiled else ""
            lines.append((title, dtype, f"{ours:.3f}", *others))
    return lines


def without_threads(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries with titles that do not name the number of threads."""
    return [{**entry, "title": re.sub(r", \d+ threads?$", "", entry["title"])} for entry in entries]


def of_most_threads(entries: list[dict[str, Any]]) -> Iterator[str]:
    """The tables of the sizes."""
    most = max((entry["threads"] for entry in entries), default=0)
    for (_, _, threads), points in lines_of_sizes(entries).items():
        if threads == most:
            yield markdown(sizes(points))


def cuda(run: dict[str, Any], *, host: bool) -> str:
    """The rows of a GPU: those of the device, or those of the host's time."""
    facts, machine = run["cuda"], run["machine"]
    entries = [row for row in run["rows"] if row["device"] == "cuda" and row["name"].startswith("cuda_host_") == host]
    clock = "device time" if any("wall_ms" in row for row in entries) else "wall time"
    return (
        f"{facts['device']}, CUDA {facts['cuda']}, torch {machine['torch']}, arithmetic {facts['arithmetic']}, "
        f"tensors of {facts['elements']} elements, commit {machine['commit']}, {machine['date'][:10]}, {clock}:\n\n"
        + markdown(timed(entries))
    )


def table(group: str, run: dict[str, Any]) -> str:
    """One table, in Markdown."""
    if group == "processes":
        return markdown(processes(run["processes"]))
    if group == "sizes":
        return "\n".join(of_most_threads(run["sizes"]))
    if group in ("cuda", "cuda_host"):
        return cuda(run, host=group == "cuda_host")
    most = {entry["name"]: entry for entry in sorted(run["rows"], key=lambda entry: entry.get("threads") or 0)}
    if group == "front":
        return markdown(front(most))
    if group == "front_cuda":
        return markdown(front_cuda(most))
    names = SUMMARY if group == "summary" else [row.name for row in GROUPS[group]]
    return markdown(timed(without_threads(most[name] for name in names if name in most)))


def has_all(group: str, run: dict[str, Any]) -> bool:
    """Whether the results contain all rows of the table of a group."""
    if group in ("sizes", "processes"):
        return bool(run.get(group))
    of_device = [row.name for row in CUDA_ROWS if not row.host]
    named = {"front": FRONT, "summary": SUMMARY, "front_cuda": of_device, "cuda": of_device}
    named["cuda_host"] = [row.name for row in CUDA_ROWS if row.host]
    names = named.get(group) or [row.name for row in GROUPS[group]]
    return set(names) <= {entry["name"] for entry in run.get("rows", ())}


def renewed(text: str, results: str = "") -> str:
    """The page with its tables written from `results`, or else from the file that each table names."""

    def fresh(match: re.Match[str]) -> str:
        head, group, named, _, end = match.groups()
        path = results or named
        if path == "none":
            return match[0]  # not measured yet
        run = json.loads((ROOT / path).read_text(encoding="utf-8"))
        if results and not has_all(group, run):
            return match[0]  # the results do not contain all rows of this table
        return head.replace(named, path) + table(group, run) + end

    return TABLE.sub(fresh, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, help="a file of benchmarks/results")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    results = ""
    if options.results:
        path = options.results.resolve()
        if not path.is_relative_to(ROOT):
            parser.error(f"results: expected a file in {ROOT}, which the pages can name, got {path}; copy it there")
        results = path.relative_to(ROOT).as_posix()
    stale = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        new = renewed(text, results)
        if new != text:
            stale.append(page)
            if not options.check:
                (ROOT / page).write_text(new, encoding="utf-8")
    if options.check and stale:
        print(f"bench_page: {', '.join(stale)}: not the tables of the results that are named; run tools/bench_page.py")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
