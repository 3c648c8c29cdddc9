"""benchmarks/gpu_check.sh, rehearsed without a card: stand-ins for Python on a machine with one (support/fake_card.py)
and for the card's tools; and what is made of the archive that it brings back."""

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
FAKE = Path(__file__).resolve().parents[1] / "support" / "fake_card.py"
FIRST = ["build", "info", "smoke", "memcheck", "core", "profile"]
ORDER = [*FIRST, "tests", "single", "bench", "racecheck", "initcheck", "synccheck", "bench_single", "suite"]
# Both tools run the program that comes after their own options.
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
def card(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with a card, as far as the script can tell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in TOOLS.items():
        script(folder / name, text)
    python = script(folder / "python", f'exec "{sys.executable}" "{FAKE}" "$@"')
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PYTHON": str(python), "PATH": path, "FAKE_CARD": str(tmp_path), "OUT": str(tmp_path / "out")}


def gpu_check(**environment: str) -> subprocess.CompletedProcess[str]:
    own = "STEPS LIMIT BUILD WHEELS DRY_RUN OUT PYTHON BENCH_ROWS VARIANT".split()
    own += ["SINPE_EXT_CUDA_ARITHMETIC", "SINPE_EXT_JIT"]
    settings = {name: value for name, value in os.environ.items() if name not in own}
    return execute([SCRIPT], env=settings | environment, status=None)


def results(out: Path) -> dict[str, str]:
    """Step -> the first word of its result, in the order of the steps."""
    lines = [line.split() for line in (out / "gpu_check" / "summary.txt").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and words[0] in [*ORDER, "variant"]}


@needs_bash
def test_the_figures_come_first_and_fit_ten_minutes(card: dict[str, str]) -> None:
    planned = gpu_check(**card, DRY_RUN="1", LIMIT="100000")
    assert planned.returncode == 0 and "--require-backend" not in planned.stdout
    steps = [line[1:].split(", ") for line in planned.stdout.splitlines()]
    assert [step[0] for step in steps] == ORDER
    for part in ("first", "second", "third"):
        some = gpu_check(**card, DRY_RUN="1", STEPS=part, LIMIT="100000")
        assert sum(int(line.split(", ")[1].split(" ")[0]) for line in some.stdout.splitlines()) <= 580


@needs_bash
@pytest.mark.processes
def test_rehearsal(card: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the whole suite, a failed step among it; then the results file and the tables from the archive."""
    out = Path(card["OUT"])
    steps = ",".join([*ORDER[:-1], "variant"])
    rows = "cuda_copy_f32,cuda_table_f32,cuda_embed_f32"
    variant = "-DSINPE_CUDA_WAVES=8"
    done = gpu_check(**card, STEPS=steps, BENCH_ROWS=rows, VARIANT=variant, FAKE_CARD_FAILS="cuda_runtime")
    found = results(out)
    assert done.returncode == 1 and list(found) == [*FIRST, "variant", *ORDER[6:-1]], done.stdout
    assert {name for name, result in found.items() if result != "PASS"} == {"tests"}, done.stdout + done.stderr
    summary = (out / "gpu_check" / "summary.txt").read_text()
    assert "commit " in summary and "2 failed" not in summary.split("single")[1]
    # The other files of tests ran all the same, each in a process of its own.
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
def test_a_call_without_a_library_builds_it_first(card: dict[str, str]) -> None:
    """A machine that was given back between two calls is bare again."""
    out = Path(card["OUT"])
    done = gpu_check(**card, STEPS="smoke")
    assert done.returncode == 0 and list(results(out)) == ["build", "smoke"], done.stdout
    (out / "gpu_check" / "summary.txt").unlink()
    gpu_check(**card, STEPS="smoke", LIMIT="0")
    assert results(out) == {"smoke": "INCOMPLETE"}


@needs_bash
@pytest.mark.processes
def test_figures_of_an_earlier_run_are_gone(card: dict[str, str], tmp_path: Path) -> None:
    out = Path(card["OUT"])
    rows = ",".join(f"cuda_{name}_f32" for name in "copy fill table add embed dropout encode".split())
    assert gpu_check(**card, STEPS="core", BENCH_ROWS=rows).returncode == 0
    assert (out / "gpu_check" / "core.2.json").exists()
    done = gpu_check(**card, STEPS="core", BENCH_ROWS="cuda_copy_f32", FAKE_CARD_FAILS="--device")
    assert done.returncode == 1 and not list((out / "gpu_check").glob("core.*.json"))
    assert gpu_results.main([str(out / "gpu_check.tar.gz")]) == 1


@needs_bash
def test_what_there_is_no_time_for(card: dict[str, str]) -> None:
    late = gpu_check(**card, STEPS=" info tests,,build", LIMIT="08")
    assert late.returncode == 3 and "INCOMPLETE" in late.stdout
    assert results(Path(card["OUT"])) == {"build": "INCOMPLETE", "info": "INCOMPLETE", "tests": "INCOMPLETE"}


@needs_bash
def test_what_is_refused(card: dict[str, str], tmp_path: Path) -> None:
    """Before any time is spent: an unknown step, a LIMIT that is no number, a Python without pytest, no device."""
    done = gpu_check(**card, STEPS="build,test")
    assert done.returncode == 2 and "STEPS: expected some of first,second,third,build,info," in done.stderr
    assert gpu_check(**card, LIMIT="ten").returncode == 2
    for nothing in (",", " ", " , "):
        assert "STEPS: expected some of" in gpu_check(**card, STEPS=nothing).stderr
    done = gpu_check(**card, STEPS="core", BENCH_ROWS="cuda_copy_f32, cuda_nope")
    assert done.returncode == 2 and "BENCH_ROWS: no row is named cuda_nope" in done.stderr
    lacks = script(
        tmp_path / "lacks", 'case "$*" in *sortedcontainers*) echo pygments ;; *capability*) echo 9.0 ;; esac'
    )
    done = gpu_check(**card | {"PYTHON": str(lacks)}, STEPS="info,tests")
    assert done.returncode == 2 and "missing Python modules: pygments (pass WHEELS=DIR)" in done.stdout
    none = script(tmp_path / "none", 'echo "Torch not compiled with CUDA enabled"; exit 1')
    done = gpu_check(**card | {"PYTHON": str(none)})
    assert done.returncode == 2 and "no CUDA device that torch can use: Torch not compiled" in done.stdout
    assert not (Path(card["OUT"]) / "gpu_check" / "summary.txt").exists()


def test_an_archive_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
