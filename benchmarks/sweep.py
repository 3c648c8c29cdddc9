"""The benchmark's sizes: time per element from one decode step to 2^28 elements, with the floor and the usual code.

`CASES` lists what is timed. A point is a case with a number of elements, a dtype and a number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import sinpe_ext as sinpe

from . import memory
from . import peers as peer
from .cases import CHECK_ROWS, FILL, ROUNDING, tolerance
from .report import plural, power
from .results_file import spread
from .timing import drifting, first_line, interleaved, on_threads, ratio, summary

DIM = 512
LENGTH = 2048  # largest length of a sequence; larger sizes have more sequences
SIZES = tuple(2**power for power in (9, 12, 15, 18, 20, 22, 24, 26, 28))
LARGEST = 2**36
MAX_THREADS = 4096
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDS, QUICK_ROUNDS = 7, 3
OURS, FLOOR, USUAL, READY, COMPILED = "ours", "floor", "naive float32 formula", "ready table", "torch.compile"
MEASURABLE = 2**24  # from this number of elements on, temporaries are allocated from the system and returned to it
SPARE = 2**29  # bytes reserved for the program itself
SIZE = 8.0  # magnitude of the largest sum, for the tolerance of the check
FLOAT32_ANGLES = 1e-4  # error of the naive float32 formula in the first CHECK_ROWS rows


@dataclass
class Work:
    """The calls of one point; each returns its result. kept: the tensors they read and write."""

    calls: dict[str, Callable[[], Tensor]]
    kept: list[Tensor] = field(default_factory=list)
    x: Tensor | None = None  # the tensor that the encoding is added to
    length: int = 0

    def compare(self, name: str, dtype: torch.dtype) -> None:
        """Stop if a result is wrong: ours anywhere, the naive formula where float32 angles are still accurate."""
        count, ours = min(self.length, CHECK_ROWS), name == OURS
        rows = torch.linspace(0, self.length - 1, count).long() if ours else torch.arange(count)
        want, bound = peer.exact_rows(rows, DIM), tolerance(dtype, self.length)
        if self.x is not None:
            want, bound = want + self.x[:, rows].double(), bound + ROUNDING[dtype] * SIZE
        peer.agree(name, self.calls[name]()[..., rows, :], want, bound if ours else 2 * bound + FLOAT32_ANGLES)


@dataclass(frozen=True)
class Case:
    """One operation. `build` takes elements, dtype and torch.compile's number of threads (None: without torch.compile).

    held: from the itemsize, the most bytes per element that it and the naive float32 formula need.
    """

    name: str
    title: str
    floor: str
    build: Callable[[int, torch.dtype, int | None], Work]
    held: Callable[[int], int]


def usual(position: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    return peer.usual_table(position, index).to(dtype)


def compiled(function: Callable[..., Tensor], threads: int) -> Callable[..., Tensor]:
    """torch.compile for these shapes and this number of threads, for which it generates its C++."""
    return torch.compile(function, dynamic=False, options={"cpp.threads": threads})


def table(elements: int, dtype: torch.dtype, threads: int | None) -> Work:
    """The paper's table, written into an existing one; the naive float32 formula allocates a new one."""
    rows = elements // DIM
    encoding, out = sinpe.Encoding(DIM), torch.empty(rows, DIM, dtype=dtype)
    position, index = peer.usual_parts(rows, DIM)
    calls: dict[str, Callable[[], Tensor]] = {
        FLOOR: lambda: out.fill_(1),
        OURS: lambda: sinpe.table(rows, encoding, dtype=dtype, out=out),
        USUAL: lambda: usual(position, index, dtype),
    }
    if threads is not None:
        fast = compiled(usual, threads)
        calls[COMPILED] = lambda: fast(position, index, dtype)
    return Work(calls, [out], length=rows)


def added(elements: int, dtype: torch.dtype, threads: int | None, *, inplace: bool) -> Work:
    """x + PE, into y or in place; the naive formula computes the table at each call, "ready table" stores it."""
    rows = elements // DIM
    length = min(rows, LENGTH)
    encoding, x = sinpe.Encoding(DIM), torch.empty(rows // length, length, DIM, dtype=dtype).uniform_(-1, 1)
    position, index = peer.usual_parts(length, DIM)
    y = x if inplace else torch.empty_like(x)
    pe = sinpe.table(length, encoding, dtype=dtype)

    def formula(x: Tensor, y: Tensor, position: Tensor, index: Tensor) -> Tensor:
        rows = usual(position, index, x.dtype)
        return x.add_(rows) if inplace else torch.add(x, rows, out=y)

    calls: dict[str, Callable[[], Tensor]] = {
        FLOOR: lambda: x.mul_(1.0) if inplace else y.copy_(x),
        OURS: lambda: sinpe.add_(x, encoding) if inplace else sinpe.add(x, encoding, out=y),
        READY: lambda: x.add_(pe) if inplace else torch.add(x, pe, out=y),
        USUAL: lambda: formula(x, y, position, index),
    }
    if threads is not None:
        fast = compiled(formula, threads)
        calls[COMPILED] = lambda: fast(x, y, position, index)
    return Work(calls, [x, y], x, length)


CASES = (
    Case("table", "table, out=", FILL, table, lambda itemsize: 2 * itemsize + 8),
    Case("add_out", "add, out=", "y.copy_(x)", lambda *at: added(*at, inplace=False), lambda itemsize: 2 * itemsize),
    Case("add_inplace", "add_", "x.mul_(1.0)", lambda *at: added(*at, inplace=True), lambda itemsize: itemsize),
)


@dataclass(frozen=True)
class Point:
    case: Case
    dtype: str
    threads: int
    elements: int

    @property
    def title(self) -> str:
        return f"{self.case.title} {self.dtype}, {plural(self.threads, 'thread')}, {power(self.elements)} elements"


def points(sizes: Sequence[int], threads: Sequence[int]) -> list[Point]:
    return [
        Point(case, dtype, count, elements)
        for case in CASES
        for count in threads
        for dtype in DTYPES
        for elements in sizes
    ]


def measure(point: Point, rounds: int, *, best: bool = False, compile: bool = True) -> dict[str, Any]:
    """Check one point's results, then time the calls, then measure their memory."""
    case, dtype = point.case, DTYPES[point.dtype]
    result: dict[str, Any] = {"case": case.name, "title": case.title, "floor": case.floor}
    result |= {"dtype": point.dtype, "threads": point.threads, "elements": point.elements}
    need, there = case.held(dtype.itemsize) * point.elements + SPARE, memory.available()
    if there is not None and need > there:
        return {**result, "skipped": f"takes about {need / 2**30:.1f} GiB, {there / 2**30:.1f} are available"}
    failed: dict[str, str] = {}
    try:
        with on_threads(point.threads), torch.no_grad():
            work = case.build(point.elements, dtype, point.threads if compile else None)
            for name in [name for name in work.calls if name != FLOOR]:
                try:
                    work.compare(name, dtype)
                except Exception as error:
                    if name != COMPILED or isinstance(error, AssertionError):
                        raise
                    failed[name] = first_line(error)  # for example without a C++ compiler
                    del work.calls[name]
            unsteady: list[str] = []
            samples = interleaved(work.calls, rounds, point.threads, unsteady.append)
            if point.elements >= MEASURABLE:
                beyond = {name: memory.beyond(call, work.kept) for name, call in work.calls.items()}
                result["memory_mib"] = {name: round(v / 2**20, 1) for name, v in beyond.items() if v is not None}
    except Exception as error:  # as in run.measure: reported, and fails the run
        return {**result, "error": first_line(error)}
    finally:
        if compile:
            torch.compiler.reset()
    ms = {name: 1e3 * seconds for name, seconds in summary(samples, best=best).items()}
    return {
        **result,
        "ms": ms,
        "ratio": ratio(samples, OURS, FLOOR, best=best),
        "unsteady": list(dict.fromkeys([*unsteady, *drifting(samples)])),
        "peer_errors": failed,
        "spread": {name: spread(s) for name, s in samples.items()},
    }


def read_sizes(text: str) -> tuple[int, ...]:
    """Parse sizes such as "2^9,2**20,4096"; SIZES if empty; in increasing order."""
    sizes = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        match = re.fullmatch(r"2(?:\^|\*\*)(\d{1,2})|(\d{1,12})", part)
        size = 0 if not match else 2 ** int(match[1]) if match[1] else int(match[2])
        if not DIM <= size <= LARGEST or size & (size - 1):
            raise ValueError(
                f"sizes: expected powers of two from {DIM} (one decode step) to {power(LARGEST)}, got {part!r}; write "
                "2^9,2^20, say"
            )
        sizes.add(size)
    return tuple(sorted(sizes)) or SIZES


def read_threads(text: str) -> tuple[int, ...]:
    """Parse numbers of threads such as "1,2"; in increasing order."""
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and 0 < int(part) <= MAX_THREADS for part in parts):
        raise ValueError(f"threads: expected numbers from 1 to {MAX_THREADS} with commas, got {text!r}; write 1,2, say")
    return tuple(sorted({int(part) for part in parts}))
