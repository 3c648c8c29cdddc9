"""`python -m benchmarks`: ours, the floor and the peers, interleaved in one run, each with its target."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import sinpe_ext

from . import cuda as cuda_run
from . import picture, sweep
from .cases import ROWS as INFERENCE_ROWS
from .cases import Row
from .grid import GRID_ROWS
from .host import HOST_ROWS
from .installed import INSTALLED_ROWS
from .machine import ROOT, describe, machine
from .outputs import file_to_write
from .process import PROCESSES, Process, Skipped
from .progress import Progress
from .report import aligned, flatness, met, missed, plural, processes, report_sizes, timed
from .results_file import spread, write
from .small import SMALL_ROWS
from .sweep import Point
from .timing import drifting, first_line, interleaved, on_threads, ratio, summary
from .training import TRAINING_ROWS

ROWS = (*INFERENCE_ROWS, *INSTALLED_ROWS, *GRID_ROWS, *TRAINING_ROWS, *SMALL_ROWS, *HOST_ROWS)
ROUNDS = 15
QUICK_ROUNDS = 3
RESULTS = ROOT / "benchmarks" / "results"


class Refused(Exception):
    """Raised for a request that cannot be run, with the message for the user and the exit status."""

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Plan:
    """What a run measures; a row is listed once for each number of threads."""

    rows: list[tuple[Row, int]]
    processes: list[Process]
    points: list[Point]
    no_cuda: str  # why CUDA is not measured, if it was not requested explicitly
    several: bool  # whether there are several numbers of threads, which the titles then include
    complete: bool  # whether the run has all rows and is stored with the committed results

    def __len__(self) -> int:
        return len(self.rows) + len(self.processes) + len(self.points)


def names() -> list[str]:
    """The names of all rows."""
    names = [row.name for row in ROWS] + [process.name for process in PROCESSES]
    return names + [row.name for row in cuda_run.ROWS]


def main(options: argparse.Namespace) -> int:
    """Run the requested rows, print the report, write the JSON; return 1 for a wrong result, a failed row or peer."""
    try:
        if options.replot:
            print(picture.again(options.replot, options.plot))
            return 0
        return run(plan(options), options)
    except (Refused, picture.Undrawn) as error:
        print(error, file=sys.stderr)
        return getattr(error, "status", 2)


def plan(options: argparse.Namespace) -> Plan:
    """The plan for the options: rows by name, sizes only, or everything."""
    asked = [name.strip() for name in options.rows.split(",")] if options.rows else []
    unknown = [name for name in asked if name not in names()]
    if unknown:
        raise Refused(f"rows: expected some of {', '.join(names())}; got {', '.join(unknown)}")
    try:
        sizes = None if options.sizes is None else sweep.read_sizes(options.sizes)
        counts = sweep.read_threads(options.threads) if options.threads else (torch.get_num_threads(),)
    except ValueError as error:
        raise Refused(str(error)) from None
    on_cpu, everything = options.device != "cuda", not asked and sizes is None
    if everything and on_cpu and not options.quick:
        sizes = sweep.SIZES
    if sizes and not on_cpu:
        raise Refused("sizes: they are measured on the CPU; leave --device cuda out")
    check_outputs(options, bool(sizes))
    wants_cuda = any(name.startswith("cuda_") for name in asked)
    on_cuda = options.device != "cpu" and (everything or wants_cuda)
    missing = cuda_run.missing() if on_cuda else ""
    if missing and (options.device == "cuda" or wants_cuda):
        raise Refused(f"device: expected CUDA kernels, got none: {missing}", status=1)

    def wanted(entry: Row | Process) -> bool:
        return entry.name in asked or (everything and not (options.quick and entry.slow))

    rows = [(row, n) for row in ROWS if on_cpu and wanted(row) for n in ((row.threads,) if row.threads else counts)]
    if on_cuda and not missing:
        rows += [(row, torch.get_num_threads()) for row in cuda_run.chosen(asked)]
    return Plan(
        rows=rows,
        processes=[entry for entry in PROCESSES if on_cpu and wanted(entry)],
        points=sweep.points(sizes or (), counts),
        no_cuda=missing if not options.quick else "",
        several=len(counts) > 1,
        complete=everything and on_cpu and not (options.quick or options.best),
    )


def check_outputs(options: argparse.Namespace, sizes: bool) -> None:
    """Checks before the measurements that the JSON and the figure can be written."""
    if options.json is not None:
        try:
            path = file_to_write("json", options.json, or_folder=True)
        except ValueError as error:
            raise Refused(str(error)) from None
        if not path.is_dir() and path.suffix != ".json":  # the figure is written next to it
            raise Refused(f"json: expected a folder, or a file whose name ends in .json, got {options.json}; rename it")
        if options.plot is not None and path == Path(options.plot):
            raise Refused(f"plot: expected another file than the JSON's, got {options.plot}; pass a .png")
    if options.plot is not None:
        if not sizes:
            raise Refused("plot: expected sizes to draw, got a run without them; add --sizes")
        picture.check(options.plot)


def run(todo: Plan, options: argparse.Namespace) -> int:
    """Measure, print the report, and save the results."""
    facts = machine()
    print(f"sinpe_ext {facts['sinpe_ext']} of {Path(sinpe_ext.__file__).parent}, {facts['backend']}")
    print(describe(facts))
    if facts["backend"] != "compiled":
        raise Refused(
            f"sinpe_ext: expected the compiled backend, got {facts['backend']}; see sinpe_ext.backend_info()", 1
        )
    rounds, best = QUICK_ROUNDS if options.quick else ROUNDS, options.best
    points, quick = sweep.QUICK_ROUNDS if options.quick else sweep.ROUNDS, options.quick
    path = destination(options, facts, complete=todo.complete)
    results: dict[str, Any] = {"machine": facts, "statistic": "best" if best else "median", "rows": [], "processes": []}
    results |= {"sizes": [], "flatness": [], "cuda": None}
    if any(row.device == "cuda" for row, _ in todo.rows):
        results["cuda"] = cuda_run.facts()
        print(cuda_run.describe(results["cuda"]))
    with Progress(len(todo)) as progress:
        for row, count in todo.rows:
            varied = todo.several and not row.threads and row.device == "cpu"
            title = f"{row.title}, {plural(count, 'thread')}" if varied else row.title
            progress.step(title)
            results["rows"].append({**measure(row, rounds, best=best, threads=count), "title": title})
            if row.device == "cuda":
                with contextlib.suppress(RuntimeError):  # of a device that an illegal access has made unusable
                    torch._dynamo.reset()  # the compiled peers keep their tensors
                    torch.cuda.empty_cache()
            write(path, results)
        for entry in todo.processes:
            progress.step(entry.title)
            results["processes"].append(measure_process(entry))
            write(path, results)
        for point in todo.points:
            progress.step(point.title)
            results["sizes"].append(sweep.measure(point, points, best=best, compile=not quick))
            results["flatness"] = flatness(results["sizes"])
            write(path, results)
    print(text(results))
    if todo.no_cuda:
        print(f"\nnothing measured on CUDA: {todo.no_cuda}")
    if path is not None:
        print(f"written: {path}")
    drawn = picture.after(results, path, options.plot)
    if drawn:
        print(drawn)
    everything = [*results["rows"], *results["processes"], *results["sizes"]]
    failed = any("error" in entry for entry in everything) or any(entry["peer_errors"] for entry in results["rows"])
    return 1 if failed else 0  # a peer that cannot run is not compared with its target


def text(results: dict[str, Any]) -> str:
    """The whole report."""
    parts = [
        "\n" + aligned(timed(results["rows"])) if results["rows"] else "",
        "\n" + aligned(processes(results["processes"])) if results["processes"] else "",
        report_sizes(results["sizes"]) if results["sizes"] else "",
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
    import sinpe_ext as sinpe

    with (
        torch.set_grad_enabled(row.grad),
        sinpe.use_backend(row.backend) if row.backend != "auto" else contextlib.nullcontext(),
    ):
        yield


def measure(row: Row, rounds: int, *, best: bool = False, threads: int | None = None) -> dict[str, Any]:
    """Check one row's results, then time it, with its own number of threads or the given one."""
    result: dict[str, Any] = {"name": row.name, "title": row.title, "floor": row.floor, "target": row.target}
    result |= {"device": row.device, "peer_errors": {}}
    try:
        with circumstances(row), on_threads(row.threads or threads) as count:
            result["threads"] = count
            subjects = row.build()
            subjects.check()
            calls = {"floor": subjects.floor} if subjects.floor else {}
            calls["ours"] = subjects.ours
            for name, peer in subjects.peers.items():
                try:
                    peer()
                    calls[f"peer:{name}"] = peer
                except Exception as error:  # for example torch.compile without a compiler
                    result["peer_errors"][name] = first_line(error)
            unsteady: list[str] = []
            samples = interleaved(calls, rounds, count, unsteady.append)
            on_device = cuda_run.device_samples(calls, rounds) if times_device(row) else {}
    except Skipped as reason:
        return {**result, "skipped": str(reason)}
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
    if subjects.moved:
        result["gigabytes_per_second"] = subjects.moved / ours / 1e9
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
    """Whether the figures of a row are those of the device's clock, beside which wall time is told."""
    return row.device == "cuda" and not row.host and torch.cuda.is_available()


def without_prefix(name: str) -> str:
    return name.removeprefix("peer:")


def measure_process(entry: Process) -> dict[str, Any]:
    """Run one measurement in separate processes."""
    result: dict[str, Any] = {"name": entry.name, "title": entry.title, "unit": entry.unit, "target": entry.target}
    try:
        value = entry.measure()
    except Skipped as reason:
        return {**result, "skipped": str(reason)}
    except subprocess.TimeoutExpired as error:
        return {**result, "error": f"took more than {error.timeout:.0f} s"}
    return {**result, "value": value, "met": met(value, entry.target, most=True)}
