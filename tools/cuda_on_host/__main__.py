"""`make check-cuda-host`: PyTorch's CUDA build and our host code for CUDA on a machine without a GPU.

A stand-in for the CUDA runtime (runtime.c) makes host memory a device. Everything up to the launch of a kernel is what
runs on a GPU: PyTorch's allocator, streams, autograd threads and generators, and our binding. Our kernels are compiled
as C++ (csrc/cuda/on_host.h). CUDA graphs and torch.compile are not supported. Needs a CUDA build of torch, and nvcc for
its headers.

    python tools/cuda_on_host tests [PYTEST-ARGUMENTS]    tests/cuda
    python tools/cuda_on_host times [NAME ...]            host time of a call, ours / eager PyTorch's, without kernels
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils import cpp_extension

from sinpe_ext.backend import sources

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = ROOT / "build" / "cuda-on-host"
# Graphs and compilers; and tests of millions of values, which take minutes each.
LEFT_OUT = "not capture and not captured and not replay and not compile and not 16_bit_rows and not many_elements"


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}")
    return done.stdout


def defined(library: Path, begin: str, undefined: bool = False) -> set[str]:
    """The functions with this beginning that a library defines, or that it needs."""
    listed = run("nm", "-D", "--undefined-only" if undefined else "--defined-only", library).split("\n")
    names = {line.split()[-1].partition("@")[0] for line in listed if line}
    return {name for name in names if name.startswith(begin)}


def runtime(packages: Path) -> list[Path]:
    """Builds runtime.c with the names of the CUDA runtime and driver libraries of torch's packages."""
    (real,) = packages.glob("nvidia/cu*/lib/libcudart.so.*")
    nvrtc = packages / "torch" / "lib" / "libcaffe2_nvrtc.so"
    own = OUT / "runtime.o"
    run("nvcc", "-O1", "-Xcompiler", "-fPIC", "-c", HERE / "runtime.c", "-o", own)
    mine = set(run("nm", "--defined-only", own).split())
    libraries = []
    for name, needed in (
        (real.name, defined(real, "cuda") | defined(real, "__cuda")),
        ("libcuda.so.1", defined(nvrtc, "cu", undefined=True)),
    ):
        rest = OUT / f"{name}.c"
        rest.write_text("".join(f"int {f}(void) {{ return 0; }}\n" for f in sorted(needed - mine)))
        versions = OUT / f"{name}.map"
        versions.write_text(f"{name} {{ global: *; }};\n")
        script = [f"-Wl,--version-script={versions}"] if name == real.name else []
        run("gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", *script, "-o", OUT / name, rest, own)
        libraries.append(OUT / name)
    return libraries


def kernels() -> Path:
    """Builds the library of our kernels, with the binding for CUDA, if the sources have changed."""
    root = ROOT / "csrc"
    library = OUT / f"kernels-{sources.source_hash('cuda', root)[:16]}.so"
    if library.is_file():
        return library
    flags = [*sources.compile_flags("cuda"), "-O1"]  # -O3 takes twice as long to compile
    flags += [f"-I{path}" for path in (*sources.include_directories(root), *cpp_extension.include_paths())]

    def compiled(source: Path) -> Path:
        made = OUT / f"{source.name}.o"
        run("g++", "-std=c++17", "-fPIC", *flags, "-DUSE_CUDA", "-x", "c++", "-c", source, "-o", made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as jobs:
        objects = list(jobs.map(compiled, sources.sources("cuda", root)))
    of_torch = [f"-L{path}" for path in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    run("g++", "-shared", "-o", library, *objects, *of_torch)
    return library


def main() -> int:
    command, *arguments = sys.argv[1:] or ["tests"]
    if command not in ("tests", "times"):
        sys.exit(__doc__)
    if torch.version.cuda is None or not sys.platform.startswith("linux"):
        sys.exit(f"torch: expected a CUDA build on Linux, got {torch.__version__}; pip install torch from PyPI")
    OUT.mkdir(parents=True, exist_ok=True)
    preloaded = runtime(Path(torch.__file__).parent.parent)
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "CUDA_ON_HOST_LIBRARY": str(kernels()),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
    }
    if command == "times":
        environment["CUDA_ON_HOST_SKIPS_LAUNCHES"] = "1"
        return subprocess.call([sys.executable, str(HERE / "times.py"), *arguments], env=environment)
    tests = ["-m", "pytest", "-p", "operators", "tests/cuda", "--require-backend=cuda", "-k", LEFT_OUT, *arguments]
    return subprocess.call([sys.executable, *tests], env=environment, cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
