"""The C++ library compiled for arm64 and its tests under qemu-user: make arm64.

    python tools/arm64.py           # all tests but those of LEFT_OUT
    python tools/arm64.py --core    # test_sha256 and the tests of the arithmetic, of the row kernels and of add

The compiler is CXX where that compiles for arm64, else aarch64-linux-gnu-g++, else `python -m ziglang c++` (the ziglang
wheel, with musl). Without a compiler or without qemu-aarch64 the tests are SKIPPED, which is no failure. qemu shows
which bits come out, and nothing about time. Standard library alone; needs cmake.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "arm64"
GNU = "aarch64-linux-gnu-g++"
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl"]
QEMU = ("qemu-aarch64", "qemu-aarch64-static")
INSTALL = "apt-get install g++-aarch64-linux-gnu qemu-user (or pip install ziglang for the compiler)"
CORE = ["test_sha256", "test_core", "test_philox", "test_rows", "test_add"]
LEFT_OUT = {
    "test_cuda.*": "the CUDA kernels as plain C++ take minutes under emulation and have no path of arm64's own",
    "test_fork": "qemu-user 7.2 aborts when a child of fork starts a thread",
    "test_sha256_SINPE_EXT_CPU_ISA.*": "arm64 has one set of row kernels, which test_sha256 runs",
}


class Compiler(NamedTuple):
    command: list[str]
    version: str


def say(text: str) -> None:
    print(f"arm64: {text}", flush=True)


def output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def compiler() -> Compiler | None:
    candidates = []
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        machine = output([*chosen, "-dumpmachine"])
        if machine.startswith(("aarch64", "arm64")):
            candidates.append(chosen)
        else:
            say(f"CXX={shlex.join(chosen)} compiles for {machine or 'another machine'}, so it is not used")
    if shutil.which(GNU) is not None:
        candidates.append([GNU])
    if importlib.util.find_spec("ziglang") is not None:
        candidates.append(ZIG)
    for command in candidates:
        version = output([*command, "--version"])
        if version:
            return Compiler(command, version.splitlines()[0])
    return None


def run(command: list[str]) -> bool:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        say(f"{' '.join(command[:2])} failed\n{done.stdout[-4000:]}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", action="store_true", help=f"these alone: {', '.join(CORE)}")
    core = parser.parse_args().core
    qemu = next(filter(None, map(shutil.which, QEMU)), None)
    tool = compiler()
    missing = [] if tool else ["C++ compiler for arm64"]
    missing += [] if qemu else ["qemu-aarch64"]
    if tool is None or qemu is None:
        say(f"SKIPPED: no {' and no '.join(missing)} was found; {INSTALL}")
        return 0
    if shutil.which("cmake") is None:
        say("cmake was not found: pip install cmake")
        return 1

    folder = BUILD / ("zig" if tool.command is ZIG else Path(tool.command[0]).name)  # CMake keeps to a compiler
    settings = [f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'arm64.cmake'}", f"-DSINPE_QEMU={qemu}", "-DSINPE_WERROR=ON"]
    settings += [f"-DCMAKE_CXX_COMPILER={';'.join(tool.command)}"]
    if not run(["cmake", "-S", str(ROOT), "-B", str(folder), *settings]):
        return 1
    listed = output(["ctest", "--test-dir", str(folder), "--show-only"])
    names = re.findall(r"Test +#\d+: (\S+)", listed)
    why = {name: reason for pattern, reason in LEFT_OUT.items() for name in names if re.fullmatch(pattern + ".*", name)}
    chosen = [name for name in names if name not in why and (not core or name in CORE)]
    targets = {re.sub(r"_threads_\d+$|_OMP_.*$|_sampled$", "", name) for name in chosen}
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(min(2, os.cpu_count() or 1)))
    if not run(["cmake", "--build", str(folder), "--parallel", jobs, "--target", *sorted(targets)]):
        return 1

    say(f"{tool.version}; {output([qemu, '--version']).splitlines()[0]}")
    for pattern, reason in LEFT_OUT.items():
        say(f"left out: {pattern}: {reason}")
    command = ["ctest", "--test-dir", str(folder), "--output-on-failure", "--parallel", jobs]
    command += ["-R", f"^({'|'.join(map(re.escape, chosen))})$"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    # "100% tests passed out of 3", of older ones "100% tests passed, 0 tests failed out of 3".
    summary = re.search(r"tests passed(?:, (\d+) tests? failed)? out of (\d+)", done.stdout)
    failed, count = (int(summary[1] or 0), int(summary[2])) if summary else (-1, 0)
    print(f"result: {count} of {len(names)} C++ tests on arm64 under qemu, {failed} failed")
    return 0 if done.returncode == 0 and failed == 0 and count == len(chosen) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
