"""benchmarks/gpu_check.sh without a GPU, with stand-ins for Python and the GPU's tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
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


def gpu_check(
    folder: Path, *steps: str, fails: str = "nothing", alone: str = "nothing", **more: str
) -> subprocess.CompletedProcess[str]:
    settings = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHON": str(folder / "bin" / "python")}
    settings |= {"OUT": str(folder), "FAILS": fails, "PASSES_ALONE": alone, **more}
    return execute([SCRIPT, *steps], env={**os.environ, **settings}, status=None)


def results(folder: Path) -> dict[str, str]:
    """Step -> result."""
    lines = (folder / "gpu_check" / "summary.txt").read_text().splitlines()
    return {name: rest.split(",")[0] for name, rest in (line.split(": ", 1) for line in lines if ": " in line)}


def logs(folder: Path) -> dict[str, str]:
    return {name: (folder / "gpu_check" / f"{name}.log").read_text() for name in results(folder)}


def test_first_steps(folder: Path) -> None:
    done = gpu_check(folder, fails="test_cuda_runtime")
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = results(folder)
    assert " ".join(outcomes) == FIRST
    assert {name for name, result in outcomes.items() if result != "passed"} == {"tests"}, outcomes
    with tarfile.open(folder / "gpu_check.tar.gz") as packed:
        names = {Path(name).stem for name in packed.getnames()}
    assert names == {"gpu_check", "summary", "pytest", *FIRST.split()}
    log = logs(folder)
    every, alone = [line for line in log["tests"].splitlines() if "-m pytest" in line]
    assert every.count("tests/cuda/test_cuda_") == 7 and " -n 8 " in every
    assert alone.count("tests/cuda/test_cuda_") == 1 and " -n 8 " not in alone
    for test in every.split():  # the files exist
        assert not test.startswith("tests/") or (REPOSITORY / test.rstrip(",")).is_file()
    assert log["profile"].count("python -m benchmarks.one_row cuda_") == 18  # in the tool's command, and run
    assert set(re.findall(r"benchmarks\.one_row (\w+)", log["profile"])) <= {row.name for row in ROWS}
    assert "--kernel-name-base demangled -k regex:sinpe -c 3 --section SpeedOfLight " in log["profile"]
    assert "--tool memcheck --kernel-regex kns=sinpe" in log["memcheck"]
    assert "sanitizer_subset.py --count" in log["smoke"]


def test_test_that_fails_only_beside_others_passes(folder: Path) -> None:
    """After an illegal access by another test, for example, every test of that process fails."""
    done = gpu_check(folder, "tests", fails="test_cuda_runtime", alone="tests/cuda/test_cuda_runtime.py")
    assert done.returncode == 0 and "== again, alone: tests/cuda/test_cuda_runtime.py" in logs(folder)["tests"]


def test_profile_of_no_kernel_fails(folder: Path) -> None:
    (folder / "bin" / "ncu").write_text("#!/bin/sh\necho '==WARNING== No kernels were profiled.'\n")
    assert gpu_check(folder, "profile").returncode == 1


def test_failure_without_a_named_test_fails(folder: Path) -> None:
    (folder / "bin" / "python").write_text('#!/bin/sh\ncase "$*" in *pytest*) echo crashed; exit 1 ;; esac\n')
    assert gpu_check(folder, "tests").returncode == 1


def test_more_steps(folder: Path) -> None:
    done = gpu_check(folder, "more")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ".join(results(folder)) == MORE
    log = logs(folder)
    assert "arithmetic single" in log["single"] and "arithmetic single" in log["benchmark_single"]
    for tool in ("racecheck", "initcheck", "synccheck"):
        assert f"--tool {tool}" in log[tool]
    assert "sanitizer_subset.py --few" in log["initcheck"] and "kns=sinpe" not in log["initcheck"]


def test_some_steps_and_missing_tools(folder: Path) -> None:
    for tool in ("ncu", "compute-sanitizer"):
        (folder / "bin" / tool).unlink()
    if shutil.which("ncu") or shutil.which("compute-sanitizer"):
        pytest.skip("the tools are installed")
    done = gpu_check(folder, "profile", "memcheck")
    assert done.returncode == 0 and results(folder) == {"profile": "not checked", "memcheck": "not checked"}


def test_bad_arguments(folder: Path) -> None:
    done = gpu_check(folder, "build", "test")
    assert done.returncode == 2 and f"expected more, or steps out of {FIRST} {MORE}; got test" in done.stderr
    done = gpu_check(folder, fails="get_device_properties")
    assert done.returncode == 2 and "no CUDA device that torch can use" in done.stderr
    assert not (folder / "gpu_check").exists()
