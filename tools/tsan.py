"""The C++ library and its tests under ThreadSanitizer: make tsan.

    python tools/tsan.py           # every test whose calls use threads (std::thread's), three numbers of them
    python tools/tsan.py --core    # test_threads alone, which calls everything from many threads at once

The compiler is CXX, else the first of clang++, clang++-19 .. clang++-14 and g++ whose ThreadSanitizer runs here and
finds a race that is there. Standard library alone; needs cmake.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tsan"
COMPILERS = ("clang++", *(f"clang++-{version}" for version in range(19, 13, -1)), "g++")
CORE = ["test_threads"]
TESTS = [*CORE, "test_add", "test_backward", "test_embed", "test_grid", "test_rows"]  # the others use one thread
EXIT_CODE = 66
REPORT = "WARNING: ThreadSanitizer"
# Two threads write one number: what every ThreadSanitizer must find, or its silence means nothing.
RACE = """
#include <thread>
int number = 0;
int main() {
  std::thread other([] { for (int k = 0; k < 1000; ++k) ++number; });
  for (int k = 0; k < 1000; ++k) ++number;
  other.join();
}
"""


class Tool(NamedTuple):
    compiler: str
    version: str
    prefix: list[str]  # in front of a program: without address randomisation, where that is what it takes


def fail(text: str) -> int:
    print(f"tsan: {text}")
    return 1


def options(**more: object) -> dict[str, str]:
    settings = {"exitcode": EXIT_CODE, "halt_on_error": 0, **more}
    return {**os.environ, "TSAN_OPTIONS": " ".join(f"{name}={value}" for name, value in settings.items())}


def find() -> Tool | str:
    """The compiler, or why there is none."""
    chosen = os.environ.get("CXX", "").strip()
    why = [f"CXX={chosen} was not found" if chosen else "no compiler was found (looked for clang++, g++)"]
    for name in [chosen] if chosen else COMPILERS:
        compiler = shutil.which(name)
        if compiler is None:
            continue
        (BUILD / "race.cpp").write_text(RACE)
        race = BUILD / "race"
        command = [compiler, "-std=c++17", "-g", "-O1", "-pthread", "-fsanitize=thread", f"{race}.cpp", "-o", str(race)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            why.append(f"{name} has none: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
            continue
        said = ""
        for prefix in ([], ["setarch", platform.machine(), "-R"]):
            if prefix and shutil.which(prefix[0]) is None:
                continue
            ran = subprocess.run([*prefix, str(race)], capture_output=True, text=True, env=options(), timeout=120)
            if ran.returncode == EXIT_CODE and REPORT in ran.stderr:
                version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
                return Tool(compiler, version.splitlines()[0], prefix)
            said = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}, no report"])[0]
        why.append(f"{name}: did not find the race that it was given: {said}")
    return why[-1]


def run(command: list[str], environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", action="store_true", help="test_threads alone")
    core = parser.parse_args().core
    BUILD.mkdir(parents=True, exist_ok=True)
    if shutil.which("cmake") is None:
        return fail("cmake was not found: pip install cmake")
    tool = find()
    if isinstance(tool, str):
        return fail(f"no ThreadSanitizer: {tool}; install clang++ or g++ with libtsan, or set CXX")

    folder = BUILD / Path(tool.compiler).name  # CMake keeps to a compiler
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    settings = ["-DSINPE_SANITIZE=thread", "-DSINPE_BUILD_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=Debug"]
    settings += ["-DCMAKE_CXX_FLAGS=-O1", f"-DCMAKE_CXX_COMPILER={tool.compiler}"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), *settings]
    tests = CORE if core else TESTS
    build = ["cmake", "--build", str(folder), "--parallel", jobs, "--target", *tests]
    for command in (configure, build):
        done = run(command)
        if done.returncode != 0:
            return fail(f"{' '.join(command[:2])} failed\n{done.stdout[-4000:]}")

    for old in folder.glob("report.*"):
        old.unlink()
    pattern = f"^({'|'.join(tests)})(_threads_[0-9]+)?$"
    command = [*tool.prefix, "ctest", "--test-dir", str(folder), "--output-on-failure", "-R", pattern]
    done = run(command, options(log_path=folder / "report"))
    print(done.stdout, end="")
    reports = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("report.*")))
    print(reports, end="")
    # "100% tests passed out of 3", of older ones "100% tests passed, 0 tests failed out of 3".
    summary = re.search(r"tests passed(?:, (\d+) tests? failed)? out of (\d+)", done.stdout)
    failed, count = (int(summary[1] or 0), int(summary[2])) if summary else (-1, 0)
    found = reports.count(REPORT)
    print(f"result: {count} C++ tests under ThreadSanitizer ({tool.version}), {failed} failed, {found} reports")
    return 0 if done.returncode == 0 and count > 0 and failed == 0 and found == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
