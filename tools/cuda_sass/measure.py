"""Executes the machine code of some blocks of a case's launch, and scales the counts to the whole launch."""

from __future__ import annotations

import fnmatch
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from . import cubin
from .block import Block, Counts, Program
from .cards import Card, Prediction, Work, pipe_of, predict
from .cases import Call, Case
from .launches import Launch, counters, intercepted
from .operations import bytes_of

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("table", "encode", "add", "add_grid", "dropout", "embed", "embed_backward", "row_dots")


@dataclass(frozen=True)
class Figures:
    """The results for one case and one architecture."""

    launches: list[Work]
    call: Call
    values: dict[str, float]  # by the names that budgets use
    phases: list[float]  # instructions per unit before, between and after the barriers

    @property
    def work(self) -> Work:
        """The work of the launch with the most instructions."""
        return max(self.launches, key=lambda work: work.issued)

    def predicted(self, card: Card) -> Prediction:
        """The estimated time of all launches in sequence; the bytes are divided in proportion to their accesses."""
        accesses = sum(work.by_pipe["memory"] for work in self.launches)
        each = []
        for work in self.launches:
            share = work.by_pipe["memory"] / accesses
            each.append(predict(replace(work, read=work.read * share), self.call.moved * share, card))
        return Prediction(sum(one.seconds for one in each), max(each, key=lambda one: one.seconds).by)


def compile_cubins(folder: Path, architectures: Iterable[int], sources: Iterable[str] = SOURCES) -> None:
    """Compiles each SOURCE.ARCHITECTURE.cubin that is missing or older than csrc, two at a time.

    library.py leaves those of its architectures there.
    """
    from sinpe_ext.backend import cuda_compiler

    nvcc = cuda_compiler.find_nvcc(None)
    csrc = ROOT / "csrc"
    newest = max(path.stat().st_mtime for path in csrc.rglob("*.*"))
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(job: tuple[str, int]) -> None:
        source, architecture = job
        result = folder / f"{source}.{architecture}.cubin"
        if result.exists() and result.stat().st_mtime > newest:
            return
        flags = [*cuda_compiler.compile_flags(), f"-I{csrc}", f"-I{csrc / 'include'}"]
        command = [nvcc.path, "-cubin", f"-arch=sm_{architecture}", *flags, str(csrc / "cuda" / f"{source}.cu")]
        partial = result.with_suffix(".part")
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run([*command, "-o", str(partial)], **both, text=True)
        if done.returncode:
            sys.exit(f"cuda-sass: {' '.join(command)}\n{done.stdout}")
        partial.replace(result)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, [(source, a) for a in architectures for source in sources]))


class Machine:
    """The kernels of one architecture."""

    def __init__(self, folder: Path, architecture: int, sources: Iterable[str] = SOURCES):
        self.architecture = architecture
        found = [kernel for source in sources for kernel in cubin.kernels(folder / f"{source}.{architecture}.cubin")]
        self.kernels = {kernel.name: kernel for kernel in found}

    @lru_cache(None)  # noqa: B019
    def program(self, name: str) -> Program:
        return Program(self.kernels[name], self.architecture)

    def barriers(self, name: str) -> int:
        return sum(i.base == "BAR" for i in self.kernels[name].code)

    def run(self, launch: Launch, blocks: Iterable[int], drop_barrier: int | None = None) -> tuple[Counts, set[str]]:
        """Executes these blocks of a launch; returns their counts and the races that were detected."""
        program = self.program(launch.name)
        counts, races = Counts.of(program.kernel), set()
        for index in blocks:
            block = Block(program, launch.body, index, launch.threads, counts, drop_barrier)
            block.run()
            races |= block.races
        return counts, races


def count_exact(library: str, case: Case, in_double: bool) -> tuple[int, int]:
    """(number of pairs, number of values recomputed in exact arithmetic) of a whole case, counted in C++."""
    call, before = case.build(torch.float32), counters(library)
    with intercepted(library, lambda launch: False, 132, in_double):
        call.run()
    return call.units, counters(library).careful_rows - before.careful_rows


def exact_cost(library: str, machine: Machine, in_double: bool) -> float:
    """Warp instructions for one value recomputed in exact arithmetic, its loop included.

    Measured as the difference between a row whose position is outside the range of the fast phase and another row. The
    integer phase decides nearly all of these values; one in millions needs double-double arithmetic, ten times as long.
    """
    import sinpe_ext as sinpe

    positions = torch.tensor([2**60])
    totals: list[int] = []

    def take(launch: Launch) -> bool:
        counts, _ = machine.run(launch, [0])
        totals.append(counts.longest)
        return True

    with intercepted(library, take, 132, in_double):
        sinpe.encode(positions, 64)
        sinpe.encode(positions % 8 + 7, 64)
    return (totals[0] - totals[1]) / 4  # values of a thread


def measure(
    library: str, machine: Machine, case: Case, dtype: torch.dtype, multiprocessors: int, in_double: bool
) -> Figures:
    """The figures of a case, from the launches and blocks that it selects."""
    call = case.build(dtype)
    found: list[_Measured] = []
    names: list[str] = []

    def take(launch: Launch) -> bool:  # measured here, because the memory of the launch is valid only now
        names.append(launch.name)
        if any(fnmatch.fnmatchcase(launch.name, kernel) for kernel in case.kernels):
            found.append(_measured(machine, case, call, launch))
        return launch.name != case.followed

    with intercepted(library, take, multiprocessors, in_double):
        call.run()
    if len(found) != case.launches:
        kernels = " or ".join(case.kernels)
        raise RuntimeError(f"{case.name}: expected {case.launches} launches of {kernels}, got {', '.join(names)}")
    most = max(found, key=lambda one: one.work.issued)
    each, shares = 32 / call.units, sum((Counter(one.shares) for one in found), Counter())
    values = {
        "instructions": sum(one.work.issued for one in found) * each,
        "fp64": shares["fp64"] * each,
        "alu": shares["alu"] * each,
        "fma": (shares["imad"] + shares["fma"]) * each,
        "memory": shares["memory"] * each,
        "other": (shares["other"] + shares["special"] + shares["convert64"]) * each,
        "in flight": most.work.in_flight,
        "ahead": most.ahead,
        "waits": sum(one.waits for one in found) / call.units,
        "sectors": most.work.sectors,
    }
    phases = [n * each for n in most.phases if n]
    return Figures([one.work for one in found], call, values, phases)


@dataclass(frozen=True)
class _Measured:
    """The results for one launch."""

    work: Work
    shares: dict[str, float]  # instructions of a warp, by pipe
    phases: list[float]
    ahead: float
    waits: float  # of all threads


def _measured(machine: Machine, case: Case, call: Call, launch: Launch) -> _Measured:
    runs = []
    for blocks, stand_for in _sampled(launch.blocks, case.blocks, call.heaviest is not None):
        counts, races = machine.run(launch, blocks)
        runs.append((counts, stand_for / len(blocks)))
        if races:
            raise RuntimeError(f"{case.name}: threads race: {'; '.join(sorted(races))}")
    slowest = runs[0][0] if call.heaviest is None else machine.run(launch, [call.heaviest])[0]
    kernel = machine.kernels[launch.name]
    # Loads that were issued together arrive together: the longest warp waits once for them.
    apart, far = np.array(slowest.apart, bool), np.array(slowest.far, bool)
    ahead, in_flight, waits = [], [], 0.0
    shares: dict[str, float] = defaultdict(float)
    pipes: dict[str, float] = defaultdict(float)
    phases = np.zeros(len(runs[0][0].by_phase))
    for some, scale in runs:
        phases += some.by_phase.sum(1) * scale
        waits += sum(np.logical_and(some.far, some.apart)) * scale * launch.threads
        ahead += [n for n, is_far in zip(some.ahead, some.far, strict=True) if is_far]
        in_flight += [n for n, is_far in zip(some.in_flight, some.far, strict=True) if is_far]
        for i, issued in zip(kernel.code, some.issued.tolist(), strict=True):
            pipe = pipe_of(i.opcode)
            shares[pipe] += issued * scale
            pipes[pipe] += issued * scale * (max(1, bytes_of(i) // 4) if pipe == "memory" else 1)
    work = Work(
        launch.blocks,
        launch.threads,
        kernel.registers,
        kernel.shared,
        issued=float(phases.sum()),
        by_pipe=dict(pipes),
        in_flight=mean(in_flight) if in_flight else 0.0,
        longest=slowest.longest,
        far=np.count_nonzero(apart & far) / slowest.blocks,
        near=np.count_nonzero(apart & ~far) / slowest.blocks,
        read=call.read,
        sectors=sum(some.touched * scale for some, scale in runs) / sum(some.asked * scale for some, scale in runs),
    )
    return _Measured(work, dict(shares), phases.tolist(), median(ahead or [0]), waits)


def _sampled(blocks: int, wanted: int, falls: bool) -> list[tuple[list[int], int]]:
    """Groups of blocks to execute, each with the number of blocks that it represents.

    They are evenly spaced. If the work decreases with the block's index, they are chosen from four ranges, the first of
    which is small.
    """
    ends = [0, blocks // 400, blocks // 40, blocks // 4, blocks] if falls else [0, blocks]
    parts = []
    for first, last in pairwise(ends):
        count = min(wanted // (len(ends) - 1), last - first)
        if count == 0:
            continue
        step = (last - first) / count
        parts.append((sorted({first + int((k + 0.5) * step) for k in range(count)}), last - first))
    return parts
