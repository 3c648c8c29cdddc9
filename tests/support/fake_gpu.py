"""Replaces Python on a machine with a GPU: the calls of benchmarks/gpu_check.sh, as far as possible without one.

Benchmark rows are measured in small sizes on the CPU; the sanitizer's subset runs on the CPU; tests are collected, not
run. The build creates a file in FAKE_GPU, by which later calls find the library. FAKE_GPU_FAILS: calls with this word
fail.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

BUILT = Path(os.environ["FAKE_GPU"]) / "built"


def resolve() -> int:
    """Like check_build of gpu_check.sh: compiles if allowed."""
    if not BUILT.exists() and os.environ.get("SINPE_EXT_JIT") == "0":
        return 1
    BUILT.touch()
    print("cuda: compiled (simulated GPU)")
    return 0


def code(text: str, arguments: list[str]) -> int:
    if "get_device_capability" in text:
        print("9.0")
    elif "get_device_properties" in text:
        print("simulated GPU, capability 9.0, torch 2, CUDA 13.0")
    elif "loader.resolve" in text:
        return resolve()
    elif "import ROWS; print" in text:  # some of all rows
        rows = "copy grid dropout_train embed embed_text alpha_train fill"
        print(",".join(f"cuda_{row}_f32" for row in rows.split()))
    else:
        sys.argv = ["-c", *arguments]
        exec(text, {})
    return 0


def small() -> object:
    """Rows of the benchmark in test sizes."""
    import torch

    from benchmarks import cuda as cuda_run
    from benchmarks import cuda_cases

    for name, value in (("VOCABULARY", 64), ("LENGTH", 64), ("DIM", 32), ("ENCODED", 100)):
        setattr(cuda_cases, name, value)
    cuda_run.SAMPLE_SECONDS = 1e-4
    torch.compile = lambda function: function  # type: ignore[assignment]
    return cuda_cases.Place(torch.device("cpu"), 2**12)


def benchmark(arguments: list[str]) -> int:
    place = small()
    from benchmarks import cuda as cuda_run
    from benchmarks.machine import machine

    rows = cuda_run.chosen(arguments[arguments.index("--rows") + 1].split(","))
    measured = [cuda_run.measure(row, place, 1) for row in rows]  # type: ignore[arg-type]
    facts = {"device": "A Card", "capability": "9.0", "cuda": "13.0", "how": "jit", "arithmetic": "double"}
    run = {"machine": machine(), "cuda": {"facts": facts, "elements": 1, "rows": measured}}
    Path(arguments[arguments.index("-o") + 1]).write_text(json.dumps(run))
    print(cuda_run.report(run["cuda"]))
    return 1 if any("error" in row for row in measured) else 0


def module(name: str, arguments: list[str]) -> int:
    if name == "pip":
        return 0
    if name == "benchmarks":
        return benchmark(arguments)
    if name == "benchmarks.one_row":
        place = small()
        from benchmarks.one_row import main

        main(arguments[0], place)  # type: ignore[arg-type]
        return 0
    if name == "pytest":
        given = [text for text in arguments if not text.startswith("--require-backend")]
        return subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", *given]).returncode
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    return 0


def main(arguments: list[str]) -> int:
    fails = os.environ.get("FAKE_GPU_FAILS")
    if fails and any(fails in text for text in arguments):
        print("2 failed")
        return 1
    if arguments[0] == "-c":
        return code(arguments[1], arguments[2:])
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        return module(arguments[1], arguments[2:])
    if "--count" in arguments:
        print("sanitizer subset: 9 launches of 9 kernels of ours, 9 launches in all")
        return 0
    sys.argv = [arguments[0], "cpu"]
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main(sys.argv[1:]))
