"""`python -m sinpe_ext bench`: ours, the floor and the peers, interleaved in one run, each with its target."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import _bench_cuda
from ._bench_cases import ROWS as INFERENCE_ROWS
from ._bench_cases import Row
from ._bench_grid import GRID_ROWS
from ._bench_process import PROCESSES, Process, Skipped
from ._bench_timing import interleaved, load, summary, warning
from ._bench_training import TRAINING_ROWS

ROWS = (*INFERENCE_ROWS, *GRID_ROWS, *TRAINING_ROWS)
ROUNDS = 15
QUICK_ROUNDS = 3
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def names() -> list[str]:
    """Every row that can be asked for."""
    names = [row.name for row in ROWS] + [process.name for process in PROCESSES]
    return names + [row.name for row in _bench_cuda.ROWS]


def main(options: argparse.Namespace) -> int:
    """Run the rows asked for, print the report, write the JSON; 1 when a result is wrong or a row failed."""
    asked = [name.strip() for name in options.rows.split(",")] if options.rows else []
    unknown = [name for name in asked if name not in names()]
    if unknown:
        print(f"rows: expected some of {', '.join(names())}; got {', '.join(unknown)}", file=sys.stderr)
        return 2
    on_cuda = options.device != "cpu" and (not asked or any(name.startswith("cuda_") for name in asked))
    missing = _bench_cuda.missing() if on_cuda else ""
    if missing and (options.device == "cuda" or any(name.startswith("cuda_") for name in asked)):
        print(f"device: expected CUDA kernels, got none: {missing}", file=sys.stderr)
        return 1
    on_cpu = options.device != "cuda"
    rows = [row for row in ROWS if on_cpu and (row.name in asked if asked else not (options.quick and row.slow))]
    processes = [
        entry
        for entry in PROCESSES
        if on_cpu
        and (
            entry.name in asked
            if asked
            else not (options.quick and entry.slow) and (not entry.asked or options.install)
        )
    ]
    facts = machine()
    print(describe(facts))
    results = [measure(row, QUICK_ROUNDS if options.quick else ROUNDS, best=options.best) for row in rows]
    extras = [measure_process(entry) for entry in processes]
    if results:
        print(report(results))
    if extras:
        print(report_processes(extras))
    path = destination(options, facts, complete=not (asked or options.quick or options.best or not on_cpu))
    found = {"machine": facts, "statistic": "best" if options.best else "median", "rows": results, "processes": extras}
    write(path, {**found, "cuda": None})
    cuda = None
    if on_cuda and not missing:
        rounds = QUICK_ROUNDS if options.quick else ROUNDS
        cuda = _bench_cuda.run(asked, rounds, lambda measured: write(path, {**found, "cuda": measured}))
        write(path, {**found, "cuda": cuda})
        print(_bench_cuda.report(cuda))
    elif on_cuda and not options.quick:
        print(f"\nnothing measured on CUDA: {missing}")
    if path is not None:
        print(f"written: {path}")
    return 1 if any("error" in entry for entry in [*results, *extras, *(cuda["rows"] if cuda else [])]) else 0


def write(path: Path | None, found: dict[str, Any]) -> None:
    """The JSON, in place at once: who stops a run keeps a whole file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(json.dumps(found, indent=1) + "\n")
        whole.replace(path)


def destination(options: argparse.Namespace, facts: dict[str, Any], *, complete: bool) -> Path | None:
    """Where the JSON goes: as asked; else a complete run in a checkout is kept with the committed results."""
    name = f"{facts['date'][:10]}-{options.tag or facts['tag']}.json"
    if options.json:
        path = Path(options.json)
        return path / name if path.is_dir() else path
    return RESULTS / name if complete and RESULTS.is_dir() else None


@contextlib.contextmanager
def circumstances(row: Row) -> Iterator[None]:
    """The gradient mode and the backend that a row is measured under."""
    import torch

    import sinpe_ext as sinpe

    with (
        torch.set_grad_enabled(row.grad),
        sinpe.use_backend(row.backend) if row.backend != "auto" else contextlib.nullcontext(),
    ):
        yield


def measure(row: Row, rounds: int, *, best: bool = False) -> dict[str, Any]:
    """Check one row's results, then time it."""
    progress(row.title)
    result: dict[str, Any] = {"name": row.name, "title": row.title, "floor": row.floor, "target": row.target}
    try:
        with circumstances(row):
            subjects = row.build()
            subjects.check()
            calls = {
                "floor": subjects.floor,
                "ours": subjects.ours,
                **{f"peer:{k}": v for k, v in subjects.peers.items()},
            }
            samples = interleaved({name: call for name, call in calls.items() if call}, rounds, row.threads)
    except Exception as error:  # one row that cannot run must not cost the others; it is reported and fails the run
        return {**result, "error": f"{type(error).__name__}: {first_line(error)}"}
    seconds = summary(samples, best=best)
    ours = seconds["ours"]
    result |= {
        "ours_ms": 1e3 * ours,
        "samples_ms": {name: [round(1e3 * v, 6) for v in s] for name, s in samples.items()},
    }
    if "floor" in seconds:
        ratio = ours / seconds["floor"]
        result |= {"floor_ms": 1e3 * seconds["floor"], "ratio": ratio, "met": met(ratio, row.target, most=True)}
    result["peers"] = [
        {
            "name": name,
            "ms": 1e3 * seconds[f"peer:{name}"],
            "ratio": seconds[f"peer:{name}"] / ours,
            "target": target,
            "met": met(seconds[f"peer:{name}"] / ours, target, most=False),
        }
        for name, target in row.peers.items()
        if f"peer:{name}" in seconds
    ]
    return result


def measure_process(entry: Process) -> dict[str, Any]:
    """Run one measurement in processes of its own."""
    progress(entry.title)
    result: dict[str, Any] = {"name": entry.name, "title": entry.title, "unit": entry.unit, "target": entry.target}
    try:
        value = entry.measure()
    except Skipped as reason:
        return {**result, "skipped": str(reason)}
    except subprocess.TimeoutExpired as error:
        return {**result, "error": f"took more than {error.timeout:.0f} s"}
    return {**result, "value": value, "met": met(value, entry.target, most=True)}


def met(value: float, target: float | None, *, most: bool) -> bool | None:
    """Whether a target is met, at the two decimals that are printed; None where nothing is promised."""
    if target is None:
        return None
    return round(value, 2) <= target if most else round(value, 2) >= target


def verdict(flag: bool | None, target: float | None, sign: str) -> str:
    """ "<= 1.1 met", "<= 1.1 MISSED", or a dash."""
    return "-" if flag is None else f"{sign} {target:<4g} {'met' if flag else 'MISSED'}"


def report(results: Sequence[dict[str, Any]]) -> str:
    """The table of the timed rows: one line a row, one more for each further peer."""
    head = ("case", "floor", "floor ms", "ours ms", "ours/floor", "target", "peer", "peer ms", "peer/ours", "target")
    lines: list[tuple[str, ...]] = []
    failed = []
    for entry in results:
        if "error" in entry:
            failed.append(f"{entry['title']}: FAILED, {entry['error']}")
            continue
        own = (
            entry["title"],
            entry["floor"],
            number(entry.get("floor_ms")),
            number(entry["ours_ms"]),
            f"{entry['ratio']:.2f}" if "ratio" in entry else "-",
            verdict(entry.get("met"), entry["target"], "<="),
        )
        against = [
            (peer["name"], number(peer["ms"]), f"{peer['ratio']:.2f}", verdict(peer["met"], peer["target"], ">="))
            for peer in entry["peers"]
        ] or [("-", "-", "-", "-")]
        lines += [(own if i == 0 else ("",) * len(own)) + peer for i, peer in enumerate(against)]
    return "\n".join(["", aligned([head, *lines], right={2, 3, 4, 7, 8}), *failed])


def report_processes(extras: Sequence[dict[str, Any]]) -> str:
    """The table of what was measured in processes of their own."""
    lines: list[tuple[str, ...]] = [("in a process of its own", "value", "target")]
    for entry in extras:
        if "value" in entry:
            value, note = f"{entry['value']:.1f} {entry['unit']}", verdict(entry["met"], entry["target"], "<=")
        else:
            value, note = "-", f"skipped: {entry['skipped']}" if "skipped" in entry else f"FAILED: {entry['error']}"
        lines.append((entry["title"], value, note))
    return "\n" + aligned(lines, right={1})


def aligned(lines: Sequence[tuple[str, ...]], right: set[int]) -> str:
    """Columns padded to their widest cell, under a ruled head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in [text[0], "-" * len(text[0].rstrip()), *text[1:]])


def number(milliseconds: float | None) -> str:
    """Milliseconds with as many decimals as mean something."""
    if milliseconds is None:
        return "-"
    return (
        f"{milliseconds:.4f}"
        if milliseconds < 0.1
        else f"{milliseconds:.3f}"
        if milliseconds < 10
        else f"{milliseconds:.1f}"
    )


def machine() -> dict[str, Any]:
    """The facts without which a figure means nothing (and no paths: the file is committed)."""
    import torch

    from ._backend import backend_info

    info = backend_info()
    cpu = info.device("cpu")
    model, cores = cpu_model(), os.cpu_count() or 1
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "tag": re.sub(r"[^a-z0-9]+", "-", f"{model} {cores}c".lower()).strip("-"),
        "cpu": model,
        "cores": cores,
        "load": load(),
        "threads": torch.get_num_threads(),
        "platform": info.platform,
        "python": info.python,
        "torch": info.torch,
        "sinpe_ext": info.version,
        "commit": commit(),
        "backend": cpu.backend,
        "how": cpu.how,
        "instruction_set": info.instruction_set,
        "compiler": cpu.build.get("compiler_version"),
    }


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The checkout's commit, with "+changes" when files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD") if (ROOT / ".git").exists() else None
    return head and head + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def describe(facts: dict[str, Any]) -> str:
    """One line about the machine above the report, and a warning where others use it too."""
    isa = f" ({facts['instruction_set']})" if facts["instruction_set"] else ""
    text = (
        f"{facts['cpu']}, {facts['threads']} threads on {facts['cores']} cores, torch {facts['torch']}, "
        f"Python {facts['python']}, backend {facts['backend']}{isa}"
    )
    return "\n".join(filter(None, [text, warning(facts["load"])]))


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def progress(title: str) -> None:
    print(f"... {title}", file=sys.stderr, flush=True)
