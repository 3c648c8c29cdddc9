"""Lists kernels, registers and spills per architecture from the output of `nvcc -Xptxas -v`.

python tools/ptxas_report.py FILE.log...; the exit status is 1 if a function spills registers to device memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
FUNCTION = re.compile(r"Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


@dataclass
class Function:
    """A kernel, or a device function that a kernel calls."""

    file: str
    architecture: str
    name: str
    kernel: bool = False
    registers: int = 0
    stack: int = 0
    stores: int = 0
    loads: int = 0

    @property
    def spills(self) -> int:
        return self.stores + self.loads


def functions(text: str, file: str) -> list[Function]:
    """The functions of each architecture, each once; ptxas repeats device functions after every kernel."""
    found: dict[tuple[str, str], Function] = {}
    architecture, entry, current = "", "", ""

    def of(name: str) -> Function:
        return found.setdefault((architecture, name), Function(file, architecture, name))

    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, architecture = match.groups()
            of(entry).kernel = True
        elif match := FUNCTION.search(line):
            current = match.group(1)
        elif match := STACK.search(line):
            stack, stores, loads = map(int, match.groups())
            function = of(current)
            function.stack, function.stores = max(function.stack, stack), max(function.stores, stores)
            function.loads = max(function.loads, loads)
        elif match := USED.search(line):
            of(entry).registers = int(match.group(1))
    return list(found.values())


def table(found: Iterable[Function]) -> list[str]:
    """Markdown, a row for each file and architecture."""
    groups: dict[tuple[str, int], list[Function]] = {}
    for function in found:
        groups.setdefault((function.file, int(re.sub(r"\D", "", function.architecture))), []).append(function)
    head = ("file", "architecture", "kernels", "most registers", "largest stack", "spilled")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for (file, number), members in sorted(groups.items()):
        kernels = [member for member in members if member.kernel]
        registers, stack = max(k.registers for k in kernels), max(m.stack for m in members)
        spilled = sum(member.spills > 0 for member in members)
        of = f"{spilled} of {len(members)} functions" if spilled else "none"
        lines.append(f"| {file} | sm_{number} | {len(kernels)} | {registers} | {stack} B | {of} |")
    return lines


def readable(names: list[str]) -> list[str]:
    """Demangled names, without parameters and without the namespaces of this library."""
    try:
        done = subprocess.run(["c++filt", "-p"], input="\n".join(names), stdout=subprocess.PIPE, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return names
    shown = re.sub(r"\b(_INTERNAL_\w+|sinpe|cuda)::|^void ", "", done.stdout, flags=re.M).splitlines()
    return shown if len(shown) == len(names) else names


def spilling(found: Iterable[Function]) -> list[str]:
    """A line for each function that spills, the worst first: bytes stored and loaded per architecture."""
    spilled = sorted((function for function in found if function.spills), key=lambda f: -f.spills)
    lines: dict[tuple[str, str], list[str]] = {}
    for function, name in zip(spilled, readable([function.name for function in spilled]), strict=True):
        counts = f"{function.architecture} {function.stores} + {function.loads} B"
        lines.setdefault((function.file, name), []).append(counts)
    return [f"{file} {name}: {', '.join(counts)}" for (file, name), counts in lines.items()]


def report(logs: Iterable[Path]) -> tuple[list[str], list[str]]:
    """(the lines of the table, a line for each spilling function) of logs named FILE.log."""
    found = [function for log in logs for function in functions(log.read_text(errors="replace"), log.stem)]
    return table(found), spilling(found)


def main(arguments: list[str]) -> int:
    rows, spilled = report(map(Path, arguments))
    print("\n".join(rows))
    if spilled:
        print(f"\n{len(spilled)} functions spill registers:", *spilled, sep="\n  ")
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
