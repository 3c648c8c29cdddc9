"""benchmarks/gpu_check.sh without a GPU, with stand-ins for Python and the GPU's tools."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from build_support import write_script
from children import REPOSITORY, execute

from benchmarks.rows import ROWS

SCRIPT = REPOSITORY / "benchmarks" / "gpu_check.sh"
FIRST = "build smoke benchmark tests memcheck profile"
MORE = "single racecheck synccheck initcheck benchmark_single suite"
# Python logs its arguments and fails if one of them contains $FAILS: as pytest does with several files, which names the
# failed test, and with one file unless it is $PASSES_ALONE.
PYTHON = """
echo "python $*, arithmetic ${SINPE_EXT_CUDA_ARITHMETIC:-double}"
case "$*" in *"-m pytest"*"$PASSES_ALONE") exit 0 ;; esac
case "$*" in *"-m pytest"*"$FAILS"*) echo "FAILED tests/cuda/$FAILS.py::test_x[a b] - RuntimeError: a"; exit 1 ;; esac
case "$*" in *"$FAILS"*) exit 1 ;; esac"""
# Both tools run the program that follows their own options.
TOOL = 'echo "$0 $*"; while [ "${1#*python}" = "$1" ]; do shift; done; exec "$@"'
NO_KERNELS = "echo '==WARNING== No kernels were profiled.'"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not SCRIPT.is_file() or shutil.which("bash") is None, reason="needs a checkout and bash"),
]


def gpu_check(folder: Path, *steps: str, status: int = 0, tools: dict[str, str] | None = None, **more: str):
    """The result and the log of each step, and the output."""
    given = {"python": PYTHON, "ncu": TOOL, "compute-sanitizer": TOOL, "nvidia-smi": "echo a card", **(tools or {})}
    for name, text in given.items():  # "": the tool is missing
        if text:
            write_script(folder / "bin" / name, text)
    settings = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHON": str(folder / "bin" / "python")}
    settings |= {"OUT": str(folder), "FAILS": "nothing", "PASSES_ALONE": "nothing", **more}
    done = execute([SCRIPT, *steps], env={**os.environ, **settings}, status=status)
    out = folder / "gpu_check"
    lines = (out / "summary.txt").read_text().splitlines() if out.exists() else []
    results = {name: rest.split(",")[0] for name, rest in (line.split(": ", 1) for line in lines if ": " in line)}
    return results, {name: (out / f"{name}.log").read_text() for name in results}, done.stdout + done.stderr


def test_steps(tmp_path: Path) -> None:
    results, log, _ = gpu_check(tmp_path, FAILS="test_cuda_runtime", status=1)
    assert " ".join(results) == FIRST and {name for name in results if results[name] != "passed"} == {"tests"}
    with tarfile.open(tmp_path / "gpu_check.tar.gz") as packed:
        names = {Path(name).stem for name in packed.getnames()}
    assert names == {"gpu_check", "summary", "pytest", *FIRST.split()}
    every, alone = [line for line in log["tests"].splitlines() if "-m pytest" in line]
    assert every.count("tests/cuda/test_cuda_") > 1 == alone.count("tests/cuda/test_cuda_")
    for test in every.split():  # the files exist
        assert not test.startswith("tests/") or (REPOSITORY / test.rstrip(",")).is_file()
    rows = re.findall(r"python -m benchmarks\.one_row (\w+)", log["profile"])
    assert len(rows) == 18 and set(rows) <= {row.name for row in ROWS}  # in the tool's command, and run
    assert "--kernel-name-base demangled -k regex:sinpe" in log["profile"]
    assert "--tool memcheck --kernel-regex kns=sinpe" in log["memcheck"]
    assert "sanitizer_subset.py --count" in log["smoke"]
    results, log, _ = gpu_check(tmp_path / "more", "more")
    assert " ".join(results) == MORE
    assert "arithmetic single" in log["single"] and "arithmetic single" in log["benchmark_single"]
    assert all(f"--tool {tool}" in log[tool] for tool in ("racecheck", "initcheck", "synccheck"))


def test_failures_and_what_cannot_be_checked(tmp_path: Path) -> None:
    """A test passes if it fails beside others only: after an illegal access by another, all of a process fail."""
    alone = {"FAILS": "test_cuda_runtime", "PASSES_ALONE": "tests/cuda/test_cuda_runtime.py"}
    _, log, _ = gpu_check(tmp_path / "alone", "tests", **alone)
    assert "== again, alone: tests/cuda/test_cuda_runtime.py" in log["tests"]
    gpu_check(tmp_path / "none", "profile", tools={"ncu": NO_KERNELS}, status=1)
    if not shutil.which("ncu") and not shutil.which("compute-sanitizer"):
        missing = {"ncu": "", "compute-sanitizer": ""}
        results, _, _ = gpu_check(tmp_path / "tools", "profile", "memcheck", tools=missing)
        assert results == {"profile": "not checked", "memcheck": "not checked"}
    results, _, said = gpu_check(tmp_path / "device", FAILS="get_device_properties", status=2)
    assert "no CUDA device that torch can use" in said and not results
