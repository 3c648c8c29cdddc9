"""The CUDA half of the benchmark: timing and reporting the rows of `cuda_cases.py`.

Times are medians of the time between two CUDA events around several calls, interleaved (A B A B ...). A small call is
bound by its launch on the CPU, which its floor includes too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from sinpe_ext.backend.loader import resolve

from .cuda_cases import ELEMENTS, CudaRow, Place
from .cuda_cases import ROWS as INFERENCE_ROWS
from .cuda_grid import GRID_ROWS
from .cuda_training import TRAINING_ROWS
from .progress import Progress
from .report import aligned, number, verdict

ROWS = (*INFERENCE_ROWS, *GRID_ROWS, *TRAINING_ROWS)
SAMPLE_SECONDS = 0.01
SMALL_MEMORY = 20 * 2**30  # with less memory the tensors have a quarter of the size; about eight exist at a time


def missing() -> str:
    """The reason why CUDA cannot be measured here; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    found = resolve("cuda")
    return "" if found.backend == "compiled" else found.reason


def chosen(asked: Sequence[str]) -> list[CudaRow]:
    """The rows with the given names; all rows if there are none."""
    return [row for row in ROWS if not asked or row.name in asked]


def run(
    rows: Sequence[CudaRow], rounds: int, progress: Progress, after: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure the rows; return device facts and results.

    after: called with both after each row, so that an interrupted run keeps its results.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    memory = torch.cuda.get_device_properties(device).total_memory
    place = Place(device, ELEMENTS if memory >= SMALL_MEMORY else ELEMENTS // 4)
    results: list[dict[str, Any]] = []
    measured = {"facts": facts(device), "elements": place.elements, "rows": results}
    for row in rows:
        progress.step(row.title)
        results.append(measure(row, place, rounds))
        progress.note(brief(results[-1]))
        after(measured)
        torch._dynamo.reset()  # the compiled peers keep their tensors
        torch.cuda.empty_cache()
    return measured


def brief(entry: Mapping[str, Any]) -> str:
    """One row's result in short, for the progress display."""
    if "error" in entry:
        return f"FAILED, {entry['error']}"
    peers = "".join(f", {peer['name']} {peer['ratio']:.2f}x" for peer in entry["peers"])
    met = {None: "", True: ", met", False: ", MISSED"}[entry["met"]]
    return f"{entry['ours_ms']:.4f} ms, {100 * entry['fraction']:.0f} % of {entry['floor']}{met}{peers}"


def timed(calls: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds per call, one entry per round. A round times every subject once, so that a slowdown affects all."""
    for call in calls.values():
        call(), call()  # a first call may compile or copy constants
    numbers = {name: 1 for name in calls}
    for name, call in calls.items():
        numbers[name] = max(1, min(2000, round(SAMPLE_SECONDS / max(_seconds(call, 1, device), 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(_seconds(call, numbers[name], device))
    return samples


def _seconds(call: Callable[[], object], number: int, device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        for _ in range(number):
            call()
        return (time.perf_counter() - begin) / number
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(number):
        call()
    last.record()
    torch.cuda.synchronize(device)
    return first.elapsed_time(last) / 1e3 / number


def measure(row: CudaRow, place: Place, rounds: int) -> dict[str, Any]:
    """Check one row's results, then time it."""
    result: dict[str, Any] = {"name": row.name, "title": row.title, "floor": row.floor}
    result |= {"fraction_target": row.fraction, "ratio_target": row.most, "peers": []}
    try:
        with torch.no_grad():
            work = row.build(place)
            work.check()
            calls = {"floor": work.floor, "ours": work.ours}
            result["peer_errors"] = {}
            for name, call in work.peers.items():
                try:
                    call()
                    calls[f"peer:{name}"] = call
                except Exception as error:  # a peer that fails is reported, and the others are measured
                    result["peer_errors"][name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            samples = timed(calls, rounds, place.device)
    except Exception as error:  # as in run.measure: reported, and fails the run
        return {**result, "error": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"}
    seconds = {name: median(values) for name, values in samples.items()}
    ours, floor = seconds["ours"], seconds["floor"]
    met = None
    if row.fraction is not None:
        met = round(floor / ours, 2) >= row.fraction
    elif row.most is not None:
        met = round(ours / floor, 2) <= row.most
    against = []
    for name, target in row.peers.items():
        if f"peer:{name}" in seconds:
            ratio = seconds[f"peer:{name}"] / ours
            good = None if target is None else round(ratio, 2) >= target
            against.append(
                {"name": name, "ms": 1e3 * seconds[f"peer:{name}"], "ratio": ratio, "target": target, "met": good}
            )
    return result | {
        "ours_ms": 1e3 * ours,
        "floor_ms": 1e3 * floor,
        "gigabytes_a_second": work.moved / ours / 1e9,
        "floor_gigabytes_a_second": work.moved / floor / 1e9,
        "fraction": floor / ours,
        "met": met,
        "peers": against,
        "samples_ms": {name: [round(1e3 * v, 6) for v in s] for name, s in samples.items()},
    }


def facts(device: torch.device) -> dict[str, Any]:
    """The device, and the library that computes on it."""
    found, p = resolve("cuda"), torch.cuda.get_device_properties(device)
    return {
        "device": p.name,
        "capability": f"{p.major}.{p.minor}",
        "memory_bytes": p.total_memory,
        "l2_bytes": getattr(p, "L2_cache_size", None),
        "cuda": torch.version.cuda,
        "how": found.how,
        "arithmetic": str(torch.ops.sinpe_ext.cuda_arithmetic.default()),
    }


def report(measured: Mapping[str, Any]) -> str:
    """The device, then one line per row, and one more for each further peer."""
    known = measured["facts"]
    about = f"{known['device']} (capability {known['capability']}), CUDA {known['cuda']}, {known['how']} kernels, "
    about += f"arithmetic: {known['arithmetic']}"
    rooflines = [entry for entry in measured["rows"] if entry["title"].startswith("roofline: ") and "ours_ms" in entry]
    if rooflines:
        each = (f"{entry['title'][10:]} {entry['floor_gigabytes_a_second']:.0f} GB/s" for entry in rooflines)
        about += "\nwhat torch's own calls reach, floors of the rows below: " + ", ".join(each)
    head = (
        "case",
        "floor",
        "floor ms",
        "ours ms",
        "GB/s",
        "of floor",
        "target",
        "peer",
        "peer ms",
        "peer/ours",
        "target",
    )
    lines: list[tuple[str, ...]] = []
    notes = []
    for entry in measured["rows"]:
        if "error" in entry:
            notes.append(f"{entry['title']}: FAILED, {entry['error']}")
            continue
        notes += [f"{entry['title']}: {name} cannot run here, {why}" for name, why in entry["peer_errors"].items()]
        of_ratio = entry["ratio_target"] is not None
        target = verdict(entry["met"], entry["ratio_target"] if of_ratio else entry["fraction_target"], "")
        own = (
            entry["title"],
            entry["floor"],
            number(entry["floor_ms"]),
            number(entry["ours_ms"]),
            f"{entry['gigabytes_a_second']:.0f}",
            f"{1 / entry['fraction']:.2f}x" if of_ratio else f"{100 * entry['fraction']:.0f} %",
            ("<=" if of_ratio else ">=") + target if entry["met"] is not None else "-",
        )
        against = [
            (peer["name"], number(peer["ms"]), f"{peer['ratio']:.2f}", verdict(peer["met"], peer["target"], ">="))
            for peer in entry["peers"]
        ] or [("-", "-", "-", "-")]
        lines += [(own if i == 0 else ("",) * len(own)) + peer for i, peer in enumerate(against)]
    return "\n".join(["", about, "", aligned([head, *lines], right={2, 3, 4, 5, 8, 9}), *notes])
