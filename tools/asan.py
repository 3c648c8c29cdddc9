"""The test suite on libraries built with AddressSanitizer and UBSan: the second part of make asan.

    python tools/asan.py                      # all tests but those of builds and of the eager twin; the CUDA kernels as
                                              # plain C++ as well
    python tools/asan.py tests/functional/test_add.py    # these files
    python tools/asan.py --jobs 4
    python tools/asan.py --resume             # not the files that ended clean in the run before

Each file is a run of pytest of its own, with the sanitizers' runtimes loaded first (they come with g++), so a report
ends that run and no other; reports of child processes count too. First a planted overrun shows that the tool can see.
Run in an environment that has torch and what the tests need; the sources are a copy in build/sanitized.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environments import ROOT, Outcome, commit, environ, output, say, sources

FOLDER = ROOT / "build" / "sanitized"
REPORTS = FOLDER / "reports"
LIMIT = 2400  # seconds of one file
# Run with the kernels of the CUDA library in the place of the CPU's as well, as .ci/run does.
EMULATED = ROOT / "tests" / "emulated.txt"
NOT_THERE = "not an_id_that_is_no_row"  # a row of NaN there by contract, no IndexError
LEFT_OUT = "not builds"  # builds and installs: no kernel runs in them that does not run elsewhere
# The halves of tests that run the eager twin, where no code of ours is compiled, and tests of the fuzz tool itself.
NOT_OURS = "not [eager and not -eager and not test_fuzzing"

PLANTED = """
#include <cstdlib>
extern "C" int beyond(int n) {
  volatile int *array = static_cast<int *>(std::malloc(n * sizeof(int)));
  const int value = array[n];
  std::free(const_cast<int *>(array));
  return value;
}
extern "C" int overflow(int n) { return n * 65536; }
"""


def settings() -> dict[str, str]:
    """The environment of a run: the runtimes first, as Python itself was built without them."""
    runtimes = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):
        path = subprocess.run(
            ["g++", f"-print-file-name={name}"], text=True, capture_output=True, check=True
        ).stdout.strip()
        if not os.path.isabs(path):
            raise SystemExit(f"asan: g++ has no {name}: install the sanitizers' runtimes that belong to it")
        runtimes.append(path)
    # Without the leak check: Python keeps what it has at its end. PYTHONMALLOC: an allocation for each object.
    return environ(Path(sys.executable), FOLDER) | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": f"detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1:log_path={REPORTS}/report",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={REPORTS}/report",
        "PYTHONMALLOC": "malloc",
        "SINPE_EXT_SANITIZE": "1",
        "CXX": "g++",
    }


def sees(environment: dict[str, str]) -> bool:
    """Whether a read beyond an array and an overflow, planted in a library built alike, are each reported."""
    sys.path.insert(0, str(ROOT))
    os.environ["SINPE_EXT_SANITIZE"] = "1"
    from sinpe_ext.backend import compilation

    source, library = FOLDER / "planted.cpp", FOLDER / "planted.so"
    source.write_text(PLANTED)
    flags = [flag for flag in compilation.compile_flags("cpu") if not flag.startswith(("-D", "-fvisibility"))]
    subprocess.run(["g++", "-shared", "-fPIC", *flags, str(source), "-o", str(library)], check=True)
    for function in ("beyond", "overflow"):
        call = f"import ctypes; ctypes.CDLL({str(library)!r}).{function}(40000)"
        log = FOLDER / f"planted-{function}.log"
        with log.open("w") as stream:
            done = subprocess.run([sys.executable, "-c", call], env=environment, stdout=stream, stderr=stream)
        if done.returncode == 0 or not reported(log):
            return False
        log.unlink()
        for path in REPORTS.iterdir():
            path.unlink()
    return True


def reported(log: Path | None = None) -> list[Path]:
    """The reports: AddressSanitizer's are files of their own; UBSan's are in what was printed, whatever is set."""
    logs = [log] if log else FOLDER.glob("*-*.log")
    printed = [path for path in logs if "runtime error: " in path.read_text(errors="replace")]
    written = [path for path in REPORTS.iterdir() if "ERROR: " in path.read_text(errors="replace")]
    return sorted(written) + sorted(printed)


def clean_file(file: str, backend: str) -> Path:
    """Where a run of a file that ended clean leaves the commit it was run at."""
    return FOLDER / f"{Path(file).stem}-{backend}.clean"


def run(file: str, backend: str, environment: dict[str, str]) -> tuple[str, Outcome, int]:
    name = f"{Path(file).stem}-{backend}"
    report, log, clean = FOLDER / f"{name}.xml", FOLDER / f"{name}.log", clean_file(file, backend)
    if clean.is_file():
        outcome = Outcome()
        if report.is_file():
            outcome.read(report)
        return name, outcome, 0
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--require-backend={backend}"]
    command += ["-m", LEFT_OUT, "-k", NOT_OURS + (f" and {NOT_THERE}" if backend == "emulated" else "")]
    command += ["--capture=sys", f"--junitxml={report}", file]  # sys: what C++ prints goes to the log, also at an end
    started = time.monotonic()
    try:
        with log.open("w") as stream:
            status = subprocess.run(
                command, cwd=FOLDER / "source", env=environment, timeout=LIMIT, stdout=stream, stderr=stream
            ).returncode
    except subprocess.TimeoutExpired:
        status = -1
    outcome = Outcome()
    if report.is_file():
        outcome.read(report)
    say(f"{name}: {outcome}, exit code {status}, {time.monotonic() - started:.0f} s")
    if status in (0, 5):  # 5: no test of the file was wanted
        clean.write_text(commit())
        return name, outcome, 0
    return name, outcome, status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="*", help="test files (all)")
    parser.add_argument("--jobs", type=int, default=2, help="files at once (2)")
    parser.add_argument("--resume", action="store_true", help="leave out what ended clean in the run before")
    arguments = parser.parse_args()
    if not arguments.resume:
        shutil.rmtree(REPORTS, ignore_errors=True)
        for path in (*FOLDER.glob("*-*.log"), *FOLDER.glob("*.clean")):
            path.unlink()
    REPORTS.mkdir(parents=True, exist_ok=True)
    if reported():
        parser.error("--resume: expected an earlier run without reports, and there are some; run it whole")
    source = sources(FOLDER / "source")
    environment = settings()
    if not sees(environment):
        print("result: the planted overrun and overflow were not reported: nothing is shown")
        return 1
    files = arguments.file or sorted(
        path.relative_to(source).as_posix() for path in (source / "tests").glob("*/test_*.py")
    )
    runs = [(file, "compiled") for file in files]
    runs += [(file, "emulated") for file in EMULATED.read_text().split() if file in files]
    earlier = [path.read_text() for file, backend in runs if (path := clean_file(file, backend)).is_file()]
    total, bad, started = Outcome(), [], time.monotonic()
    say("building the library and the NumPy module (minutes)")
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    output(build, cwd=source, env=environment | {"SINPE_EXT_BUILD": "cpu", "LD_PRELOAD": ""})
    with ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        for name, outcome, status in pool.map(lambda each: run(*each, environment), runs):
            total.counts.update(outcome.counts)
            bad += [name] if status else []
            for failed in outcome.failed:
                say(f"failed: {failed} ({FOLDER / name}.log)")
    reports = reported()
    for path in reports:
        say(f"report: {path}")
    print(
        f"result: pytest, ASan + UBSan: {len(runs)} runs of files, {total}, {len(reports)} reports (a planted overrun "
        f"and a planted overflow were seen); {(time.monotonic() - started) / 60:.0f} min"
        + (f"; {len(earlier)} of the files in earlier runs, at {', '.join(sorted(set(earlier)))}" * bool(earlier))
        + (f"; not clean: {', '.join(bad)}" if bad else "")
    )
    return bool(bad or reports or not total.counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
