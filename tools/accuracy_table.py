"""Prints the accuracy table of docs/accuracy.md as Markdown: python tools/accuracy_table.py [--write]

Results are compared with mpmath (tests/support/ulp.py). Long runs are compared with a float64 evaluation of an exactly
reduced phase, which is checked against mpmath. Neither uses sinpe_ext. Needs mpmath and NumPy; takes half a minute.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

import numpy as np  # noqa: E402
import page_parts  # noqa: E402
import torch  # noqa: E402
import ulp  # noqa: E402
from environments import commit  # noqa: E402

import sinpe_ext as sinpe  # noqa: E402
from sinpe_ext.reference.naive import naive_table  # noqa: E402

DIM = 512
PAGE = ROOT / "docs" / "accuracy.md"
PART = "python tools/accuracy_table.py --write"
LONG = 65536  # rows of the table of which every entry is compared
ROWS = 4096  # rows compared at a time

WINDOW = 32
RANGES: dict[str, list[float]] = {
    "0 to 31": list(range(WINDOW)),
    **{f"{last:,} and 31 before": list(range(last - 31, last + 1)) for last in (1000, 1_000_000)},
    "2^31 - 1 and 31 before": list(range(2**31 - 32, 2**31)),
    "closest to a zero (4)": [position for dim, position, _ in ulp.CLOSEST if dim == DIM],
    "32 fractions in 0 to 1000": np.random.default_rng(0).uniform(0, 1000, WINDOW).astype(np.float32).tolist(),
}
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def naive(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tutorial's formula in float32, cast to `dtype`; in float64 for dtype float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return naive_table(positions.to(wide), DIM).to(dtype)


def backends() -> list[str]:
    try:
        sinpe.use_backend("compiled").__exit__(None, None, None)
    except sinpe.BackendUnavailableError as error:
        print(f"no compiled backend: {error}", file=sys.stderr)
        return ["eager"]
    return ["compiled", "eager"]


def merged(reports: list[ulp.Report]) -> ulp.Report:
    worst = max(reports, key=lambda r: r.worst)
    entries = sum(r.entries for r in reports)
    correct = sum(r.correct * r.entries for r in reports) / entries
    return ulp.Report(entries, worst.worst, worst.where, correct, max(r.absolute for r in reports))


def every_entry(make: Callable[[int], torch.Tensor]) -> ulp.Report:
    """Compares all entries of LONG rows; `make(first)` returns ROWS float32 rows from position `first` on."""
    truth, reports = ulp.PaperTruth(DIM), []
    channels = np.broadcast_to(np.arange(DIM), (ROWS, DIM))
    for first in range(0, LONG, ROWS):
        positions, got = range(first, first + ROWS), make(first).double().numpy()
        reports.append(ulp.report(got, truth.rows(first, ROWS), 0.0, "float32", positions, channels))
    return merged(reports)


def cell(report: ulp.Report) -> str:
    worst = f"{report.worst:.4f}" if report.worst < 100 else f"{report.worst:.1e}"
    share = 100 * report.correct
    return f"{worst} | {'100' if share == 100 else f'{share:.4g}'} % | {report.absolute:.1e}"


def table() -> Iterator[str]:
    names = [*backends(), "naive float32 formula"]
    head = " | ".join(f"{name}, ULP | correctly rounded | absolute" for name in names)
    yield f"| output | positions | entries | {head} |"
    yield "|---" * (3 + 3 * len(names)) + "|"
    for dtype in TYPES:
        short = str(dtype).removeprefix("torch.")
        for name, positions in RANGES.items():
            whole = all(isinstance(p, int) for p in positions)
            at = torch.tensor(positions, dtype=torch.int64 if whole else torch.float32)
            cells = []
            for backend in names[:-1]:
                with sinpe.use_backend(backend):
                    cells.append(ulp.compare(sinpe.encode(at, DIM, dtype=dtype), sinpe.Encoding(DIM), positions))
            cells.append(ulp.compare(naive(at, dtype), sinpe.Encoding(DIM), positions))
            yield f"| {short} | {name} | {cells[0].entries:,} | {' | '.join(map(cell, cells))} |"
        if dtype == torch.float32:
            reports = []
            for backend in names[:-1]:
                with sinpe.use_backend(backend):
                    reports.append(every_entry(lambda first: sinpe.table(ROWS, DIM, start=first)))
            reports.append(every_entry(lambda first: naive(torch.arange(first, first + ROWS), torch.float32)))
            yield f"| {short} | all below {LONG:,} | {reports[0].entries:,} | {' | '.join(map(cell, reports))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also write the table to docs/accuracy.md")
    write = parser.parse_args().write
    info = sinpe.backend_info()
    facts = f"{datetime.date.today()}, commit {commit()}, torch {info.torch}, {DIM} channels, "
    facts += f"instruction set {info.instruction_set}."
    text = "\n".join([f"Produced by `python tools/accuracy_table.py` on {facts}", "", *table()])
    print(text)
    if write:
        PAGE.write_text(page_parts.replace(PAGE.read_text(encoding="utf-8"), {PART: text}), encoding="utf-8")


if __name__ == "__main__":
    main()
