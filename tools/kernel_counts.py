"""Counts the instructions per element of the CUDA kernels' loops: python tools/kernel_counts.py FILE [ARCH] [NAME].

FILE: a library, object or cubin with the kernels (`make check-cuda` leaves build/cuda-check/_C_cuda.so). ARCH: sm_90 or
another it was compiled for. NAME: a regular expression that selects kernels. Needs cuobjdump and c++filt.

Of each kernel's innermost loops, it prints the one that writes the results (to global memory) and, if rows are computed
in shared memory first, the one that does so, each with the fewest instructions per element: those for an amplitude, a
scale and an alpha of 1. Columns: instructions for float64; conversions and special functions, for which a
multiprocessor has a pipe of 16 lanes; all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

SIZES = {"float": 4, "double": 8, "float16": 2, "bfloat16": 2}


def functions(file: str, arch: str) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """The kernels: name, and address and text of each instruction."""
    command = ["cuobjdump", "--dump-sass", "-arch", arch, file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in text.split("\t\tFunction : ")[1:]:
        mangled = part.partition("\n")[0]
        name = re.search(r"kernel<(.*)>\(", subprocess.run(["c++filt", mangled], capture_output=True, text=True).stdout)
        code = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?) *;", part)
        if name:
            short = re.sub(r"sinpe::|cuda::|\(anonymous namespace\)::|\(\w+\)(?=\d)", "", name[1])
            yield short, [(int(at, 16), line) for at, line in code]


def loops(code: list[tuple[int, str]]) -> Iterator[list[str]]:
    """The bodies of the innermost loops."""
    ends = [(int(m[1], 16), at) for at, line in code if (m := re.search(r"\bBRA\b.*?(?:0x)([0-9a-f]+)$", line))]
    back = [(first, last) for first, last in ends if first < last]
    for first, last in back:
        if not any(first <= f and s <= last and (f, s) != (first, last) for f, s in back):
            yield [re.sub(r"^@\S+ ", "", line) for at, line in code if first <= at <= last]


def counts(body: list[str], where: str, size: int) -> tuple[float, float, float] | None:
    """Instructions per element, or None if this is not a loop that computes elements and writes them there."""
    stores = [line for line in body if line.startswith("STS" if where == "shared" else "STG")]
    bytes_of = [int(m[1]) // 8 if (m := re.search(r"\.(64|128)\b", line)) else 4 for line in stores]
    n = sum(bytes_of) / size
    computes = any(re.match(r"[DF]FMA|LDG", line) for line in body) if where == "shared" else 16 in bytes_of
    doubles = sum(re.match(r"D(FMA|ADD|MUL|SETP|MNMX)", line) is not None for line in body)
    special = sum(re.match(r"(F2F|F2I|I2F|FRND|MUFU)\b", line) is not None for line in body)
    return (doubles / n, special / n, len(body) / n) if n and computes else None


def main() -> None:
    file, arch, select = (sys.argv[1:] + ["", "sm_90", ""][len(sys.argv) - 1 :])[:3]
    for name, code in functions(file, arch):
        if not re.search(select, name):
            continue
        element = SIZES.get(name.partition("<")[2].partition(",")[0], 8)
        in_tiles = ("shared", 8 if "double" in name else 4)
        for where, size in (("global", element), in_tiles)[: 2 if name.startswith(("Apply", "RowDots")) else 1]:
            found = [c for body in loops(code) if (c := counts(body, where, size))]
            if found:
                print(f"{name:58} {where}  " + " ".join(f"{x:6.2f}" for x in min(found, key=lambda c: c[2])))


if __name__ == "__main__":
    main()
