"""`make check-cuda`: compiles, links and loads the CUDA library without a device. Needs nvcc.

1. nvcc compiles every kernel for each architecture, without warnings and register spills.
2. The binding compiles against this environment's torch, also a CPU build, and links without undefined symbols.
3. The library loads there and registers a CUDA kernel for each operator.
4. The benchmark of the kernels without torch compiles and links with them.

The results are in build/cuda-check: the object files, the library and the benchmark.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from sinpe_ext.backend import sources

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
OUT = ROOT / "build" / "cuda-check"
ARCHITECTURES = "7.5 8.0 9.0 10.0 12.0"
INCLUDE = [f"-I{folder}" for folder in sources.include_directories(CSRC)]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# Functions that a header declares and only some of the including files use are not an error.
KERNEL_WARNINGS = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Wno-unused-function,-Wno-unknown-pragmas"]
KERNEL_WARNINGS += ["-Xptxas", "-warn-spills"]  # registers that are spilled to memory are an error, too
LIBRARIES = ("torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")  # those that this torch has
FORBIDDEN = ("libcudart", "libtorch_python", "libtorch_cuda", "libc10_cuda")  # it loads without them

LOADS = """
import sys, torch
import sinpe_ext.functional
from sinpe_ext.operator import OPERATORS
has = torch._C._dispatch_has_kernel_for_dispatch_key
names = [n for n in OPERATORS if not n.startswith("plan_") and n != "draw_seed"]
assert not [n for n in names if has("sinpe_ext::" + n, "CUDA")], "registered before the library is loaded"
torch.ops.load_library(sys.argv[1])
missing = [n for n in names if not has("sinpe_ext::" + n, "CUDA")]
assert not missing, f"no CUDA kernel for {', '.join(missing)}"
assert torch.version.cuda or not torch.cuda.is_initialized()
print(f"torch {torch.__version__}: {len(names)} operators have a CUDA kernel")
"""


def run(*command: object) -> str:
    """The output of a command; ends the program with it if the command fails."""
    words = list(map(str, command))
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"check-cuda: FAILED: {' '.join(words)}\n{done.stdout}")
    return done.stdout


def compile_kernels(nvcc: str, architectures: list[str]) -> list[Path]:
    numbers = [name.replace(".", "") for name in architectures]
    flags = [*sources.nvcc_flags(), "-Xcompiler", "-fPIC", *INCLUDE, *KERNEL_WARNINGS]
    flags += [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]

    def compiled(source: Path) -> Path:
        run(nvcc, *flags, "-c", source, "-o", made := OUT / f"{source.name}.o")
        return made

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        return list(pool.map(compiled, kernel_sources(".cu")))


def kernel_sources(suffix: str) -> list[Path]:
    return [path for path in sources.sources("cuda", CSRC) if path.suffix == suffix]


def link(nvcc: str, kernels: list[Path]) -> Path:
    """Compiles the binding, and links the library with nvcc's static CUDA runtime: this torch may have none."""
    folder, objects = Path(torch.__file__).parent, list(kernels)
    headers = [folder / "include", folder / "include" / "torch" / "csrc" / "api" / "include"]
    flags = ["-std=c++20", "-fPIC", *sources.compile_flags("cuda"), *WARNINGS, *INCLUDE]
    for source in kernel_sources(".cpp"):
        objects.append(OUT / f"{source.name}.o")
        run(
            os.environ.get("CXX", "c++"),
            *flags,
            *(f"-isystem{path}" for path in headers),
            "-c",
            source,
            "-o",
            objects[-1],
        )
    library = OUT / "_C_cuda.so"
    against = [f"-L{folder / 'lib'}", *(f"-l{name}" for name in LIBRARIES if list(folder.glob(f"lib/lib{name}.so")))]
    strict = "-Xlinker=--no-undefined,--allow-shlib-undefined,--as-needed,--exclude-libs,ALL"
    run(nvcc, "-shared", "-o", library, *objects, strict, *against)
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    if wrong := [name for name in needed if name.startswith(FORBIDDEN)]:
        sys.exit(f"check-cuda: FAILED: {library} needs {', '.join(wrong)}, without which it must load")
    return library


def main() -> None:
    parser = argparse.ArgumentParser(prog="make check-cuda ARGS=", description=__doc__.partition("\n")[0])
    text = 'compute capabilities (default: "%(default)s")'
    parser.add_argument("--arch", default=ARCHITECTURES, metavar="LIST", help=text)
    architectures = parser.parse_args().arch.split()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(os.environ.get("CUDA_HOME", ""), "bin"))
    if nvcc is None:
        sys.exit("check-cuda: nvcc was not found; add it to PATH or set CUDA_HOME")
    OUT.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    kernels = compile_kernels(nvcc, architectures)
    print(f"check-cuda: {len(kernels)} files compiled for {' '.join(architectures)}, {time.monotonic() - begin:.0f} s")
    library = link(nvcc, kernels)
    print(f"check-cuda: linked with torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    print(run(sys.executable, "-c", LOADS, library), end="")
    first = architectures[0].replace(".", "")
    flags = [*sources.nvcc_flags(), *INCLUDE, f"-I{ROOT / 'tests' / 'cpp'}", f"-arch=sm_{first}"]
    run(nvcc, *flags, ROOT / "benchmarks" / "cuda_kernels.cu", *kernels, "-o", OUT / "time_cuda_kernels")
    print(f"check-cuda: all kernels for {' '.join(architectures)} without spilled registers")


if __name__ == "__main__":
    main()
