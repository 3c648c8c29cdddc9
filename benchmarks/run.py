"""`python -m benchmarks`: ours, the floor and the peers, interleaved in one run, each with its target."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import sinpe_ext as sinpe

from .cases import Place, Row
from .machine import ROOT, cuda_facts, cuda_place, describe, describe_cuda, machine, no_cuda
from .process import PROCESSES, Process, measured
from .report import aligned, met, missed, processes, timed, write
from .rows import ROWS
from .timing import device_samples, drifting, interleaved, on_threads, ratio, spread, summary

ROUNDS = 15
QUICK_ROUNDS = 3
MAX_THREADS = 4096
RESULTS = ROOT / "benchmarks" / "results"


class BadRequest(Exception):
    """Raised for a request that cannot be run, with the message for the user and the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Plan:
    """What a run measures; a row is listed once for each number of threads."""

    rows: list[tuple[Row, int]]
    processes: list[Process]
    no_cuda: str  # why CUDA is not measured, if it was not requested explicitly
    several: bool  # whether there are several numbers of threads, which the titles then include
    complete: bool  # whether the run has all rows and is stored with the committed results


def main(options: argparse.Namespace) -> int:
    """Run the requested rows, print the report, write the JSON; return 1 for a wrong result, a failed row or peer."""
    try:
        return run(plan(options), options)
    except BadRequest as error:
        print(error, file=sys.stderr)
        return error.status


def plan(options: argparse.Namespace) -> Plan:
    """The plan for the options: rows by name, or everything."""
    known = [row.name for row in ROWS] + [entry.name for entry in PROCESSES]
    asked = [name.strip() for name in options.rows.split(",")] if options.rows else []
    asked = [each for name in asked for each in (fnmatch.filter(known, name) or [name])]
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise BadRequest(f"rows: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    counts = read_threads(options.threads) if options.threads else (torch.get_num_threads(),)
    check_output(options.json)
    on_cpu, everything = options.device != "cuda", not asked
    wants_cuda = any(name.startswith("cuda_") for name in asked)
    on_cuda = options.device != "cpu" and (everything or wants_cuda)
    missing = no_cuda() if on_cuda else ""
    if missing and (options.device == "cuda" or wants_cuda):
        raise BadRequest(f"device: expected CUDA kernels, got none: {missing}", status=1)

    def wanted(entry: Row | Process) -> bool:
        return entry.name in asked or (everything and not (options.quick and entry.slow))

    rows = []
    for row in ROWS:
        if row.device == "cuda" and on_cuda and not missing and (everything or row.name in asked):
            rows.append((row, torch.get_num_threads()))
        elif row.device == "cpu" and on_cpu and wanted(row):
            rows += [(row, count) for count in ((row.threads,) if row.threads else counts)]
    return Plan(
        rows=rows,
        processes=[entry for entry in PROCESSES if on_cpu and wanted(entry)],
        no_cuda=missing if not options.quick else "",
        several=len(counts) > 1,
        complete=everything and on_cpu and not (options.quick or options.best),
    )


def read_threads(text: str) -> tuple[int, ...]:
    """Parse numbers of threads such as "1,2"; in increasing order."""
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and 0 < int(part) <= MAX_THREADS for part in parts):
        raise BadRequest(
            f"threads: expected numbers from 1 to {MAX_THREADS} with commas, got {text!r}; for example, 1,2"
        )
    return tuple(sorted({int(part) for part in parts}))


def check_output(text: str | None) -> None:
    """Checks before the measurements that the JSON can be written."""
    if text is None or Path(text).is_dir():
        return
    if not Path(text).parent.is_dir():
        raise BadRequest(f"json: expected a file in a folder that exists, got {text}; make {Path(text).parent} first")
    if Path(text).suffix != ".json":
        raise BadRequest(f"json: expected a folder, or a file whose name ends in .json, got {text}; rename it")


def run(todo: Plan, options: argparse.Namespace) -> int:
    """Measure, print the report, and save the results."""
    facts = machine()
    print(f"sinpe_ext {facts['sinpe_ext']} of {Path(sinpe.__file__).parent}, {facts['backend']}")
    print(describe(facts))
    if facts["backend"] != "compiled":
        message = f"sinpe_ext: expected the compiled backend, got {facts['backend']}; see sinpe_ext.backend_info()"
        raise BadRequest(message, status=1)
    rounds, best = QUICK_ROUNDS if options.quick else ROUNDS, options.best
    path = destination(options, facts, complete=todo.complete)
    results: dict[str, Any] = {"machine": facts, "statistic": "best" if best else "median", "rows": [], "processes": []}
    places = {"cpu": Place(torch.device("cpu"))}
    if any(row.device == "cuda" for row, _ in todo.rows):
        places["cuda"], results["cuda"] = cuda_place(), cuda_facts()
        print(describe_cuda(results["cuda"]))
    for entry in progress([*todo.rows, *todo.processes]):
        if isinstance(entry, Process):
            results["processes"].append(measured(entry))
        else:
            row, count = entry
            found = measure(row, places[row.device], rounds, best=best, threads=count)
            if todo.several and not row.threads and row.device == "cpu":
                found["title"] += f", {count} thread{'s' if count > 1 else ''}"
            results["rows"].append(found)
            if row.device == "cuda":
                with contextlib.suppress(RuntimeError):  # of a device that an illegal access has made unusable
                    torch._dynamo.reset()  # the compiled peers keep their tensors
                    torch.cuda.empty_cache()
        write(path, results)
    print(text(results))
    if todo.no_cuda:
        print(f"\nnothing measured on CUDA: {todo.no_cuda}")
    if path is not None:
        print(f"written: {path}")
    failed = any("error" in entry for entry in (*results["rows"], *results["processes"]))
    return 1 if failed or any(entry["peer_errors"] for entry in results["rows"]) else 0


def progress(entries: list[tuple[Row, int] | Process]) -> Iterable[tuple[Row, int] | Process]:
    """The entries, with a bar on a terminal with tqdm, else with a line for each on standard error."""
    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        if sys.stderr.isatty():
            yield from tqdm(entries, leave=False, dynamic_ncols=True, unit="row")
            return
    for entry in entries:
        print(f"... {(entry if isinstance(entry, Process) else entry[0]).title}", file=sys.stderr, flush=True)
        yield entry


def text(results: dict[str, Any]) -> str:
    """The whole report."""
    parts = [
        "\n" + aligned(timed(results["rows"])) if results["rows"] else "",
        "\n" + aligned(processes(results["processes"])) if results["processes"] else "",
        missed(results),
    ]
    return "\n".join(filter(None, parts))


def destination(options: argparse.Namespace, facts: dict[str, Any], *, complete: bool) -> Path | None:
    """The path of the JSON: as given; otherwise a complete run in a checkout goes to the committed results."""
    name = f"{facts['date'][:10]}-{options.tag or facts['tag']}.json"
    if options.json:
        path = Path(options.json)
        return path / name if path.is_dir() else path
    return RESULTS / name if complete and RESULTS.is_dir() else None


@contextlib.contextmanager
def circumstances(row: Row) -> Iterator[None]:
    """Context manager: the gradient mode and the backend of a row."""
    chosen = sinpe.use_backend(row.backend) if row.backend != "auto" else contextlib.nullcontext()
    with torch.set_grad_enabled(row.grad), chosen:
        yield


def measure(row: Row, place: Place, rounds: int, *, best: bool = False, threads: int | None = None) -> dict[str, Any]:
    """Check one row's results, then time it, with its own number of threads or the given one."""
    result: dict[str, Any] = {"name": row.name, "title": row.title, "floor": row.floor, "target": row.target}
    result |= {"device": row.device, "peer_errors": {}}
    try:
        with circumstances(row), on_threads(row.threads or threads) as count:
            result["threads"] = count
            calls = row.build(place)
            calls.check()
            subjects = {"floor": calls.floor} if calls.floor else {}
            subjects["ours"] = calls.ours
            for name in row.peers:
                try:
                    calls.peers[name]()
                    subjects[f"peer:{name}"] = calls.peers[name]
                except Exception as error:  # for example torch.compile without a compiler
                    result["peer_errors"][name] = first_line(error)
            unsteady: list[str] = []
            samples = interleaved(subjects, rounds, count, unsteady.append)
            on_device = device_samples(subjects, rounds) if times_device(row) else {}
    except Exception as error:  # the other rows still run; this one is reported and fails the run
        return {**result, "error": first_line(error)}
    if unsteady := [*unsteady, *drifting(samples)]:
        result["unsteady"] = [without_prefix(name) for name in dict.fromkeys(unsteady)]
    if on_device:
        wall = summary(samples, best=best).items()
        result["wall_ms"] = {without_prefix(name): 1e3 * seconds for name, seconds in wall}
        samples = on_device
    seconds = summary(samples, best=best)
    ours = seconds["ours"]
    result |= {"ours_ms": 1e3 * ours, "spread": {without_prefix(name): spread(s) for name, s in samples.items()}}
    if "floor" in seconds:
        to_floor = ratio(samples, "ours", "floor", best=best)
        result |= {"floor_ms": 1e3 * seconds["floor"], "ratio": to_floor, "met": met(to_floor, row.target, most=True)}
    if row.device == "cuda" and not row.host:
        result["gigabytes_per_second"] = calls.moved / ours / 1e9
    result["peers"] = [
        {
            "name": name,
            "ms": 1e3 * seconds[f"peer:{name}"],
            "ratio": (to_ours := ratio(samples, f"peer:{name}", "ours", best=best)),
            "target": target,
            "met": met(to_ours, target, most=False),
        }
        for name, target in row.peers.items()
        if f"peer:{name}" in seconds
    ]
    return result


def times_device(row: Row) -> bool:
    """Whether the figures of a row are those of the device's clock, beside which there is wall time."""
    return row.device == "cuda" and not row.host and torch.cuda.is_available()


def without_prefix(name: str) -> str:
    return name.removeprefix("peer:")


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
