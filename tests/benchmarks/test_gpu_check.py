"""benchmarks/gpu_check.sh without a GPU, with stand-ins for Python and the GPU's tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from children import REPOSITORY, execute

SCRIPT = REPOSITORY / "benchmarks" / "gpu_check.sh"
STEPS = "build smoke memcheck benchmark profile tests single benchmark_single racecheck initcheck synccheck suite"
# Python logs its arguments and fails if one of them contains $FAILS.
PYTHON = """
echo "python $*, arithmetic ${SINPE_EXT_CUDA_ARITHMETIC:-double}"
case "$*" in *"$FAILS"*) exit 1 ;; esac"""
# Both tools run the program that follows their own options.
TOOL = 'echo "$0 $*"; while [ "${1#*python}" = "$1" ]; do shift; done; exec "$@"'

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not SCRIPT.is_file() or shutil.which("bash") is None, reason="needs a checkout and bash"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The stand-ins."""
    (tmp_path / "bin").mkdir()
    for name, text in {"python": PYTHON, "ncu": TOOL, "compute-sanitizer": TOOL, "nvidia-smi": "echo a card"}.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return tmp_path


def gpu_check(folder: Path, *steps: str, fails: str = "nothing", **more: str) -> subprocess.CompletedProcess[str]:
    settings = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHON": str(folder / "bin" / "python")}
    settings |= {"OUT": str(folder), "FAILS": fails, **more}
    return execute([SCRIPT, *steps], env={**os.environ, **settings}, status=None)


def results(folder: Path) -> dict[str, str]:
    """Step -> result."""
    lines = (folder / "gpu_check" / "summary.txt").read_text().splitlines()
    return {name: rest.split(",")[0] for name, rest in (line.split(": ", 1) for line in lines if ": " in line)}


def test_every_step(folder: Path) -> None:
    done = gpu_check(folder, fails="test_cuda_runtime")
    assert done.returncode == 1, done.stdout + done.stderr
    found = results(folder)
    assert " ".join(found) == STEPS
    assert {name for name, result in found.items() if result != "passed"} == {"tests"}, found
    with tarfile.open(folder / "gpu_check.tar.gz") as packed:
        names = {Path(name).stem for name in packed.getnames()}
    assert names == {"gpu_check", "summary", *STEPS.split()}
    logs = {name: (folder / "gpu_check" / f"{name}.log").read_text() for name in found}
    assert logs["tests"].count("-m pytest") == 7 and "test_cuda_bench.py" in logs["tests"].split("test_cuda_runtime")[1]
    assert "arithmetic single" in logs["single"] and "arithmetic single" in logs["benchmark_single"]
    assert logs["profile"].count("python -m benchmarks.one_row cuda_") == 12  # in the tool's command, and run
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        assert f"--tool {tool}" in logs[tool] and "sanitizer_subset.py --count" in logs[tool]
    for test in logs["tests"].split():  # the files exist
        assert not test.startswith("tests/") or (REPOSITORY / test.rstrip(",")).is_file()


def test_some_steps_and_missing_tools(folder: Path) -> None:
    for tool in ("ncu", "compute-sanitizer"):
        (folder / "bin" / tool).unlink()
    if shutil.which("ncu") or shutil.which("compute-sanitizer"):
        pytest.skip("the tools are installed")
    done = gpu_check(folder, "profile", "memcheck")
    assert done.returncode == 0 and results(folder) == {"profile": "not checked", "memcheck": "not checked"}


def test_bad_arguments(folder: Path) -> None:
    done = gpu_check(folder, "build", "test")
    assert done.returncode == 2 and f"expected steps out of {STEPS}; got test" in done.stderr
    done = gpu_check(folder, fails="get_device_properties")
    assert done.returncode == 2 and "no CUDA device that torch can use" in done.stderr
    assert not (folder / "gpu_check").exists()
