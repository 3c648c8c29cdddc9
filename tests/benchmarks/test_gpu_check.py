"""benchmarks/gpu_check.sh without a GPU, with substitutes for Python (support/fake_gpu.py) and the GPU tools; and the
processing of its archive.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from children import REPOSITORY, execute

from benchmarks import gpu_results

SCRIPT = REPOSITORY / "benchmarks" / "gpu_check.sh"
FAKE = Path(__file__).resolve().parents[1] / "support" / "fake_gpu.py"
FIRST = ["build", "info", "smoke", "memcheck", "core", "profile"]
ORDER = [*FIRST, "tests", "single", "bench", "racecheck", "initcheck", "synccheck", "bench_single", "suite"]
# Both tools run the program that follows their own options.
PROGRAM = 'while [ "${1#*python}" = "$1" ]; do shift; done'
TOOLS = {
    "nvidia-smi": "echo a card",
    "compute-sanitizer": f'case $1 in --help) echo --kernel-regex; exit ;; esac\n{PROGRAM}\nexec "$@"',
    "ncu": f'{PROGRAM}\n"$@" || exit\necho "    Duration   us   12.5"\necho "    Executed Ipc Active   2.1"',
}

needs_bash = pytest.mark.skipif(
    not SCRIPT.is_file() or shutil.which("bash") is None or os.name != "posix", reason="needs a checkout and bash"
)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def gpu_environment(tmp_path: Path) -> dict[str, str]:
    """An environment that looks to the script like a machine with a GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in TOOLS.items():
        script(folder / name, text)
    python = script(folder / "python", f'exec "{sys.executable}" "{FAKE}" "$@"')
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PYTHON": str(python), "PATH": path, "FAKE_GPU": str(tmp_path), "OUT": str(tmp_path / "out")}


def gpu_check(**environment: str) -> subprocess.CompletedProcess[str]:
    own = "STEPS LIMIT BUILD WHEELS DRY_RUN OUT PYTHON BENCH_ROWS VARIANT".split()
    own += ["SINPE_EXT_CUDA_ARITHMETIC", "SINPE_EXT_JIT"]
    settings = {name: value for name, value in os.environ.items() if name not in own}
    return execute([SCRIPT], env=settings | environment, status=None)


def results(out: Path) -> dict[str, str]:
    """Step -> first word of its result, in the order of the steps."""
    lines = [line.split() for line in (out / "gpu_check" / "summary.txt").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and words[0] in [*ORDER, "variant"]}


@needs_bash
def test_measurements_come_first_and_fit_in_ten_minutes(gpu_environment: dict[str, str]) -> None:
    planned = gpu_check(**gpu_environment, DRY_RUN="1", LIMIT="100000")
    assert planned.returncode == 0 and "--require-backend" not in planned.stdout
    steps = [line[1:].split(", ") for line in planned.stdout.splitlines()]
    assert [step[0] for step in steps] == ORDER
    for part in ("first", "second", "third"):
        some = gpu_check(**gpu_environment, DRY_RUN="1", STEPS=part, LIMIT="100000")
        assert sum(int(line.split(", ")[1].split(" ")[0]) for line in some.stdout.splitlines()) <= 580


@needs_bash
@pytest.mark.processes
def test_rehearsal(gpu_environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All steps except the whole suite, one of them failing; then the results file and tables from the archive."""
    out = Path(gpu_environment["OUT"])
    steps = ",".join([*ORDER[:-1], "variant"])
    rows = "cuda_copy_f32,cuda_table_f32,cuda_embed_f32"
    variant = "-DSINPE_CUDA_WAVES=8"
    done = gpu_check(**gpu_environment, STEPS=steps, BENCH_ROWS=rows, VARIANT=variant, FAKE_GPU_FAILS="cuda_runtime")
    found = results(out)
    assert done.returncode == 1 and list(found) == [*FIRST, "variant", *ORDER[6:-1]], done.stdout
    assert {name for name, result in found.items() if result != "PASS"} == {"tests"}, done.stdout + done.stderr
    summary = (out / "gpu_check" / "summary.txt").read_text()
    assert "commit " in summary and "2 failed" not in summary.split("single")[1]
    # The other test files run nevertheless, each in a separate process.
    log = (out / "gpu_check" / "tests.log").read_text()
    assert log.count("== tests/cuda/") == 7 and "test_cuda_bench.py" in log.split("2 failed")[1]

    archive = out / "gpu_check.tar.gz"
    with tarfile.open(archive) as packed:
        names = {Path(name).name for name in packed.getnames()}
    assert {"core.1.json", "double.1.json", "double.2.json", "single.1.json", "variant.1.json", "memcheck.raw"} <= names
    assert len([name for name in names if name.startswith("profile_")]) == 3 and archive.stat().st_size < 2**24
    page = tmp_path / "page.md"
    marked = ["\nold\n".join(marks) for marks in (gpu_results.MARKS, gpu_results.STATE)]
    page.write_text("before\n" + "\nafter\n".join(marked))
    assert gpu_results.main([str(archive), "--write"], tmp_path, page) == 0
    printed = capsys.readouterr().out
    assert "with -DSINPE_CUDA_WAVES=8, beside the usual library:" in printed
    (kept,) = tmp_path.glob("*-a-card-cuda.json")
    whole = json.loads(kept.read_text())
    assert list(whole["runs"]) == ["single", "variant", "double"] and whole["commit"]
    of_double = [row["name"] for row in whole["runs"]["double"]["cuda"]["rows"]]
    assert of_double[:3] == rows.split(",") and "cuda_alpha_train_f32" in of_double
    assert len(set(of_double)) == len(of_double)
    text = page.read_text()
    assert text.startswith("before\n") and "\nafter\n" in text and "old" not in text and "| table f32 |" in text
    missed = [row for row in whole["runs"]["double"]["cuda"]["rows"] if row["met"] is False]
    profiled = [row["name"] for row in missed if f"profile_{row['name']}.txt" in names]
    assert all(f"{name}, as the profiler saw it:\n  Duration   us   12.5" in printed for name in profiled)


@needs_bash
@pytest.mark.processes
def test_missing_library_is_built_first(gpu_environment: dict[str, str]) -> None:
    """A machine that was replaced between two calls has no library."""
    out = Path(gpu_environment["OUT"])
    done = gpu_check(**gpu_environment, STEPS="smoke")
    assert done.returncode == 0 and list(results(out)) == ["build", "smoke"], done.stdout
    (out / "gpu_check" / "summary.txt").unlink()
    gpu_check(**gpu_environment, STEPS="smoke", LIMIT="0")
    assert results(out) == {"smoke": "INCOMPLETE"}


@needs_bash
@pytest.mark.processes
def test_results_of_an_earlier_run_are_removed(gpu_environment: dict[str, str], tmp_path: Path) -> None:
    out = Path(gpu_environment["OUT"])
    rows = ",".join(f"cuda_{name}_f32" for name in "copy fill table add embed dropout encode".split())
    assert gpu_check(**gpu_environment, STEPS="core", BENCH_ROWS=rows).returncode == 0
    assert (out / "gpu_check" / "core.2.json").exists()
    done = gpu_check(**gpu_environment, STEPS="core", BENCH_ROWS="cuda_copy_f32", FAKE_GPU_FAILS="--device")
    assert done.returncode == 1 and not list((out / "gpu_check").glob("core.*.json"))
    assert gpu_results.main([str(out / "gpu_check.tar.gz")]) == 1


@needs_bash
def test_steps_beyond_the_time_limit_are_skipped(gpu_environment: dict[str, str]) -> None:
    late = gpu_check(**gpu_environment, STEPS=" info tests,,build", LIMIT="08")
    assert late.returncode == 3 and "INCOMPLETE" in late.stdout
    assert results(Path(gpu_environment["OUT"])) == {"build": "INCOMPLETE", "info": "INCOMPLETE", "tests": "INCOMPLETE"}


@needs_bash
def test_bad_arguments(gpu_environment: dict[str, str], tmp_path: Path) -> None:
    """Checked first: an unknown step, an invalid LIMIT, a Python without pytest, no device."""
    done = gpu_check(**gpu_environment, STEPS="build,test")
    assert done.returncode == 2 and "STEPS: expected some of first,second,third,build,info," in done.stderr
    assert gpu_check(**gpu_environment, LIMIT="ten").returncode == 2
    for nothing in (",", " ", " , "):
        assert "STEPS: expected some of" in gpu_check(**gpu_environment, STEPS=nothing).stderr
    done = gpu_check(**gpu_environment, STEPS="core", BENCH_ROWS="cuda_copy_f32, cuda_nope")
    assert done.returncode == 2 and "BENCH_ROWS: no row is named cuda_nope" in done.stderr
    lacks = script(
        tmp_path / "lacks", 'case "$*" in *sortedcontainers*) echo pygments ;; *capability*) echo 9.0 ;; esac'
    )
    done = gpu_check(**gpu_environment | {"PYTHON": str(lacks)}, STEPS="info,tests")
    assert done.returncode == 2 and "missing Python modules: pygments (pass WHEELS=DIR)" in done.stdout
    none = script(tmp_path / "none", 'echo "Torch not compiled with CUDA enabled"; exit 1')
    done = gpu_check(**gpu_environment | {"PYTHON": str(none)})
    assert done.returncode == 2 and "no CUDA device that torch can use: Torch not compiled" in done.stdout
    assert not (Path(gpu_environment["OUT"]) / "gpu_check" / "summary.txt").exists()


def test_invalid_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_results.main([str(tmp_path / "none.tar.gz")]) == 1
    assert "expected gpu_check.sh's gpu_check.tar.gz" in capsys.readouterr().err
    empty = tmp_path / "gpu_check.tar.gz"
    (tmp_path / "summary.txt").write_text("build PASS\n")
    with tarfile.open(empty, "w:gz") as packed:
        packed.add(tmp_path / "summary.txt", "gpu_check/summary.txt")
    assert gpu_results.main([str(empty)]) == 1
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(empty.read_bytes()[:60])
    assert gpu_results.main([str(broken)]) == 1
    assert "expected the figures of a benchmark" in capsys.readouterr().err
