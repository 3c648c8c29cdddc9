"""Checks the CUDA kernels without a device: `make check-cuda`.

First, the library is compiled, linked and loaded (library.py). Then small calls run the machine code for each
architecture on the CPU, and the kernels compiled as C++. The results must have the same bits, without data races, and
removing any barrier must cause a race (check.py). Then each case (cases.py) is called as a user would call it, its
launch is intercepted, and some of its blocks are executed. The output has the instructions per sine-cosine pair or per
16 elements, including set-up. These and the GPUs' rates (cards.py) give the largest possible fraction of the speed of a
copy or a fill of the same bytes. The exit status is 1 if a step fails, a result differs or a budget is exceeded.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path

from sinpe_ext.backend.compilation import BuildUnavailable

from . import check, library, measure, report
from .cards import CARDS
from .cases import CASES, COUNTED_EXACT
from .launches import emulate

ROOT = Path(__file__).resolve().parents[2]
RELEASED = "7.5 8.0 9.0 10.0 12.0"  # compiled unless --arch is given


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make check-cuda ARGS=", description=__doc__)
    parser.add_argument("cases", nargs="*", help="only count these, names or patterns; default: everything")
    parser.add_argument("--arch", default="80,89,90,100,120", metavar="A,B,...", help="default: %(default)s")
    wanted = "CUDA build to link with if this environment's torch is none; a version is downloaded, half a gigabyte"
    parser.add_argument("--torch", default="2.12.0", metavar="WHEEL|VERSION", help=f"{wanted} (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="do not delete the downloaded wheel")
    parser.add_argument(
        "--offline", action="store_true", help="without a CUDA build, link with this environment's torch"
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare results with C++")
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


def library_failures(arguments: argparse.Namespace) -> list[str]:
    """Compiles, links and loads the library; returns what failed or, without --offline, could not be checked."""
    chosen = " ".join(f"{a // 10}.{a % 10}" for a in arguments.architectures)
    try:
        skipped = library.check(RELEASED if arguments.whole else chosen, arguments.torch)
    except (library.Failure, BuildUnavailable) as error:
        todo = f"; {error.todo}" if isinstance(error, BuildUnavailable) and error.todo else ""
        return [f"{error}{todo}"]
    finally:
        if not arguments.keep:
            library.remove_downloads()
    for line in skipped:
        print(f"check-cuda: NOT CHECKED: {line}")
    return [] if arguments.offline else [f"{line}; --offline lets this pass" for line in skipped]


def main() -> int:
    arguments = parsed()
    started = time.monotonic()
    if not arguments.cases and (failures := library_failures(arguments)):
        print("FAILED:", *failures, sep="\n  ")
        return 1
    first = {card.architecture: card for card in reversed(CARDS)}
    architectures, chosen = arguments.architectures, arguments.chosen
    folder = ROOT / "build" / "cuda-sass"
    measure.compile_cubins(folder, architectures)
    on_host = emulate()
    rows, exact, failures = [], [], []
    for architecture in architectures:
        card, machine = first[architecture], measure.Machine(folder, architecture)
        if not arguments.no_check:
            outcome = check.Outcome()
            for in_double in (True, False):
                check.same_bits(machine, on_host, in_double, outcome)
                check.barriers_matter(machine, on_host, in_double, outcome)
            outcome.left_out = sorted(set(machine.kernels) - outcome.kernels)
            failures += [f"sm_{architecture}: {failure}" for failure in outcome.failures]
            print(f"sm_{architecture} {outcome}", flush=True)
        for case in chosen:
            for dtype in case.dtypes:
                figures = measure.measure(on_host, machine, case, dtype, card.multiprocessors, card.in_double)
                rows.append(report.Row(case, dtype, architecture, figures))
                print(report.line(rows[-1]), flush=True)
        if architecture in (90, 89) and not arguments.cases:
            cost = measure.exact_cost(on_host, machine, card.in_double)
            for case in CASES:
                if case.name in COUNTED_EXACT:
                    units, found = measure.count_exact(on_host, case, card.in_double)
                    exact.append((case.name, "double" if card.in_double else "single", units, found, cost))
    text, over = "\n".join([*report.tables(rows), *report.exact_table(exact)]), report.all_missed(rows)
    by_architecture = "\n".join(report.by_architecture(rows))
    print(f"\n{text}\n{by_architecture}\n{time.monotonic() - started:.0f} s")
    if arguments.write:
        report.write(text)
    for title, lines in (("FAILED", failures), ("OVER BUDGET", [f"{one.row.title}: {one}" for one in over])):
        if lines:
            print(f"{title}:", *lines, sep="\n  ")
    listed = ", ".join(f"sm_{architecture}" for architecture in architectures)
    print(f"result: {listed}: {len(rows)} counts, {len(over)} over budget, {len(failures)} differences from C++")
    return 1 if failures or (over and not arguments.no_budgets) else 0


if __name__ == "__main__":
    sys.exit(main())
