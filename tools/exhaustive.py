"""Checks the rounding of every float32 entry of 512 channels below position 2^20, and of samples of other encodings and
larger positions, against double-double arithmetic: make check-exhaustive.

    python tools/exhaustive.py            # builds and runs tests/cpp/exhaustive.cpp; checks its arithmetic with mpmath
    python tools/exhaustive.py --write    # also writes the table to docs/accuracy.md
    python tools/exhaustive.py --bits 23  # all ranges 8 times as long

Needs cmake, a C++ compiler and mpmath; takes some minutes on two cores. The exit status is 1 if an entry is not
correctly rounded.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

import numpy as np  # noqa: E402
import page_parts  # noqa: E402
import truth_file  # noqa: E402
import ulp  # noqa: E402
from environments import commit  # noqa: E402

from sinpe_ext import Encoding, convention  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
PART = "python tools/exhaustive.py --write"
INSTRUCTION_SETS = ("default", "v3", "v4")
PROGRAMS = ROOT / "build" / "cpp" / "default" / "tests" / "cpp"
NAMED = ("worst", "nearest_tie", "smallest")  # entries that the C++ program reports for each scan
HEAD = (
    "| encoding | positions | entries | largest error, ULP | not correctly rounded | above 1 ULP "
    "| near ties, nearest | absolute | closest to 0 (position, channel) |",
    "|---" * 9 + "|",
)
RANDOM = 1000  # random entries of each scan that mpmath also computes, in addition to the reported ones


class Scan(NamedTuple):
    name: str
    encoding: Encoding
    what: str
    runs: list[tuple[int, int, int]]  # first, count, step


def scans(bits: int) -> list[Scan]:
    """All ranges. Their lengths are proportional to 2^bits; those in docs/accuracy.md have bits = 20."""

    def rows(log2: int) -> int:
        return 1 << max(log2 + bits - 20, 6)

    def below(log2: int, name: str, encoding: Encoding) -> Scan:
        return Scan(name, encoding, f"0 to 2^{rows(log2).bit_length() - 1}", [(0, rows(log2), 1)])

    paper, ends, stride = Encoding(512), rows(13), int(4098 * 2.0 ** (20 - bits)) | 1
    powers = [(sign * 2**k - ends // 2, ends, 1) for k in range(20, 63) for sign in (1, -1)]
    special = [(sign * 2**k - 64, 128, 1) for k in (40, 53, 62) for sign in (1, -1)]
    at_ends = [(-(2**63), ends, 1), (2**63 - ends, ends, 1), *special]
    closest: dict[int, list[tuple[int, int, int]]] = {}
    for dim, position, _ in ulp.CLOSEST:
        closest.setdefault(dim, []).append((position - 200, 400, 1))
    made = [
        below(20, "paper 512", paper),
        Scan("paper 512", paper, f"each {stride:,}th to 2^31", [(0, 2**31 // stride + 1, stride)]),
        Scan("paper 512", paper, f"last {rows(16):,} below 2^31", [(2**31 - rows(16), rows(16), 1)]),
        Scan("paper 512", paper, f"{ends:,} around 2^20 .. 2^62, -2^20 .. -2^62", powers),
        Scan("paper 512", paper, f"-{rows(16):,} to 0", [(-rows(16), rows(16), 1)]),
        Scan("paper 512", paper, "ends of int64; around 2^40, 2^53, 2^62", at_ends),
    ]
    made += [Scan(f"paper {d}", Encoding(d), "closest to a zero", runs) for d, runs in closest.items()]
    made += [below(18, f"paper {d}", Encoding(d)) for d in (64, 128, 256, 768, 1024)]
    made += [below(16, f"base {base:,}", Encoding(512, base=base)) for base in (100, 500_000, 1_000_000)]
    made += [below(16, f"{name} {d}", convention(name, d)) for name, d in (("t2t", 512), ("ddpm", 320))]
    return [*made, below(16, "own frequencies 129", Encoding(129, cos_frequency="own", odd="pad"))]


def build() -> None:
    for step in ([], ["--build"]):
        targets = ["--target", "exhaustive", "judge"] if step else []
        done = subprocess.run(["cmake", *step, "--preset", "default", *targets], cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"exhaustive: cmake {' '.join(step)} failed")


def program(mode: str, truth: Path, scan: Scan, isa: str = "") -> dict[str, Any]:
    """The output of the C++ program. The program has its own threads, so the library uses one thread per call."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "SINPE_EXT_CPU_ISA": isa}
    command = [str(PROGRAMS / "exhaustive"), mode, str(truth), *(":".join(map(str, run)) for run in scan.runs)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"exhaustive: {' '.join(command)} ended with status {done.returncode}")
    return {**json.loads(done.stdout), "right": done.returncode == 0}


def checked_by_mpmath(scan: Scan, truth: Path, result: dict[str, Any]) -> tuple[float, int, int]:
    """(largest relative error of the double-double arithmetic, number of entries, number of wrong roundings), all
    according to mpmath."""
    named = [entry for kind in NAMED for entry in result[kind]]
    formula, wrong = ulp.truth(scan.encoding), 0
    for _, position, channel, got in named:
        want = formula.entry(position, channel)
        high = float(want)
        unit = ulp.units(np.array(high), np.array(float(want - high)), "float32")
        wrong += not abs(float.fromhex(got) - want) <= float(unit) / 2
    draw, entries = random.Random(scan.what), [(position, channel) for _, position, channel, _ in named]
    for _ in range(RANDOM):
        first, count, step = draw.choice(scan.runs)
        entries.append((first + step * draw.randrange(count), draw.randrange(scan.encoding.dim)))
    return truth_file.judge_error(PROGRAMS / "judge", truth, scan.encoding, entries), len(entries), wrong


def checked(scan: Scan) -> tuple[str, dict[str, Any], list[str]]:
    """A line of the table, the facts that `main` sums up, and what is wrong."""
    truth = PROGRAMS / "scan.truth"
    truth.write_text(truth_file.text(scan.encoding), encoding="ascii")
    result = program("check", truth, scan)
    error, compared, wrong = checked_by_mpmath(scan, truth, result)
    sets, faults = {result["isa"]}, []
    for isa in INSTRUCTION_SETS:
        if isa != result["isa"]:
            other = program("digest", truth, scan, isa)
            sets.add(other["isa"])  # not `isa` if this CPU does not support it
            if other["digest"] != result["digest"] or not other["right"]:
                faults.append(f"other bits on {other['isa']} than on {result['isa']}")
    for kind in ("above_half", "above_one", "undecided", "rows_differ"):
        if result[kind]:
            faults.append(f"{kind} {result[kind]:,}, for instance {result['worst'][0]}")
    if not result["right"] and not result["rows_differ"]:
        faults.append(f"beyond 0.5001 ULP: {result['worst'][0]}")
    if wrong or error > truth_file.JUDGE:
        faults.append(f"mpmath finds {wrong} entries rounded wrongly, the double-double arithmetic off by {error:.1e}")
    largest, nearest, small = -result["worst"][0][0], result["nearest_tie"][0], result["smallest"][0]
    line = (
        f"| {scan.name} | {scan.what} | {result['entries']:,} | {largest:.4f} | {result['above_half']:,} "
        f"| {result['above_one']:,} | {result['ties']:,}, {nearest[0]:.1e} | {result['absolute']:.1e} "
        f"| {small[0]:.1e} ({small[1]:,}, {small[2]}) |"
    )
    facts = {"entries": result["entries"], "largest": largest, "by_mpmath": compared, "error": error, "sets": sets}
    return line, facts, [f"{scan.name}, {scan.what}: {fault}" for fault in faults]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also write the table to docs/accuracy.md")
    text = "scan positions 0 to 2^N, other ranges in proportion (default: 20)"
    parser.add_argument("--bits", type=int, default=20, choices=range(10, 25), metavar="N", help=text)
    arguments = parser.parse_args()
    if arguments.write and arguments.bits != 20:
        parser.error("--write: the page has the ranges of --bits 20, leave it out")
    made_of = commit()
    build()
    lines, facts, faults = [*HEAD], [], []
    print("\n".join(lines), flush=True)
    for scan in scans(arguments.bits):
        line, found, wrong = checked(scan)
        print(line, flush=True)
        lines.append(line)
        facts.append(found)
        faults += wrong
    total, compared = (sum(found[name] for found in facts) for name in ("entries", "by_mpmath"))
    largest, error = (max(found[name] for found in facts) for name in ("largest", "error"))
    said = (
        f"{total:,} entries, {'all correctly rounded' if not faults else 'NOT CLEAN'}, largest error {largest:.4f} "
        f"ULP; the same bits from table and encode on {', '.join(sorted(set.union(*(f['sets'] for f in facts))))}; "
        f"judge within 2^{math.log2(error):.1f} of mpmath over {compared:,} entries"
    )
    print("\n".join([*(f"exhaustive: {fault}" for fault in faults), f"result: {said}"]))
    if arguments.write:
        head = f"Produced by `make check-exhaustive` on {datetime.date.today()}, commit {made_of}: {said}."
        page = page_parts.replace(PAGE.read_text(encoding="utf-8"), {PART: "\n".join([head, "", *lines])})
        PAGE.write_text(page, encoding="utf-8")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
