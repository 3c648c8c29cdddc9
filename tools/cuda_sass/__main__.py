"""Executes the machine code of the CUDA kernels on the CPU and counts its instructions: part of `make check-cuda`.

First, small calls run the machine code for each architecture and the kernels compiled as C++. The results must have the
same bits, without data races, and removing any barrier must cause a race (check.py). Then each case (cases.py) is
called as a user would call it, its launch is intercepted, and some of its blocks are executed. The output has the
instructions per sine-cosine pair or per 16 elements, including set-up. These and the GPUs' rates (cards.py) give the
largest possible fraction of the speed of a copy or a fill of the same bytes. The exit status is 1 if a result differs
or a budget is exceeded.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from . import check, measure, report  # noqa: E402
from .cards import CARDS  # noqa: E402
from .cases import CASES, COUNTED_EXACT  # noqa: E402
from .launches import emulate  # noqa: E402


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cuda_sass", description=__doc__)
    parser.add_argument("cases", nargs="*", help="names or patterns of cases; default: all")
    parser.add_argument("--arch", default="80,89,90,100,120", metavar="A,B,...", help="default: %(default)s")
    parser.add_argument("--no-check", action="store_true", help="count only; do not compare results with C++")
    parser.add_argument("--no-budgets", action="store_true", help="exit status 0 whatever the budgets say")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/cuda.md")
    arguments = parser.parse_args()
    known = {str(card.architecture) for card in CARDS}
    given = arguments.arch.split(",")
    if unknown := [name for name in given if name not in known]:
        parser.error(f"--arch: expected some of {', '.join(sorted(known, key=int))}, got {', '.join(unknown)}")
    arguments.architectures = sorted(set(map(int, given)))
    arguments.whole = not arguments.cases and len(arguments.architectures) == len(known)
    if arguments.write and not arguments.whole:
        parser.error("--write: expected all cases and architectures, got some; docs/cuda.md has them all")
    patterns = arguments.cases or ["*"]
    arguments.chosen = [case for case in CASES if any(fnmatch.fnmatch(case.name, f"*{p}*") for p in patterns)]
    if not arguments.chosen:
        parser.error(f"cases: expected some of {'; '.join(case.name for case in CASES)}; got {', '.join(patterns)}")
    return arguments


def main() -> int:
    arguments = parsed()
    started = time.monotonic()
    first = {card.architecture: card for card in reversed(CARDS)}
    architectures, chosen = arguments.architectures, arguments.chosen
    folder = ROOT / "build" / "cuda-sass"
    measure.compile_cubins(folder, architectures)
    library = emulate()
    rows, exact, failures = [], [], []
    for architecture in architectures:
        card, machine = first[architecture], measure.Machine(folder, architecture)
        if not arguments.no_check:
            outcome = check.Outcome()
            for in_double in (True, False):
                check.same_bits(machine, library, in_double, outcome)
                check.barriers_matter(machine, library, in_double, outcome)
            outcome.left_out = sorted(set(machine.kernels) - outcome.kernels)
            failures += [f"sm_{architecture}: {failure}" for failure in outcome.failures]
            print(f"sm_{architecture} {outcome}", flush=True)
        for case in chosen:
            for dtype in case.dtypes:
                figures = measure.measure(library, machine, case, dtype, card.multiprocessors, card.in_double)
                rows.append(report.Row(case, dtype, architecture, figures))
                print(report.line(rows[-1]), flush=True)
        if architecture in (90, 89) and not arguments.cases:
            cost = measure.exact_cost(library, machine, card.in_double)
            for case in CASES:
                if case.name in COUNTED_EXACT:
                    units, found = measure.count_exact(library, case, card.in_double)
                    exact.append((case.name, "double" if card.in_double else "single", units, found, cost))
    text, over = "\n".join([*report.tables(rows), *report.exact_table(exact)]), report.all_missed(rows)
    by_architecture = "\n".join(report.by_architecture(rows))
    print(f"\n{text}\n{by_architecture}\n{time.monotonic() - started:.0f} s")
    if arguments.write:
        report.write(text)
    for title, lines in (("FAILED", failures), ("OVER BUDGET", [f"{one.row.title}: {one}" for one in over])):
        if lines:
            print(f"{title}:", *lines, sep="\n  ")
    return 1 if failures or (over and not arguments.no_budgets) else 0


if __name__ == "__main__":
    sys.exit(main())
