"""`make check-cuda`: compiles, links and loads the CUDA library without a device.

1. nvcc compiles every kernel for each architecture, without warnings and register spills.
2. The binding compiles against the headers of a CUDA build of torch, and the library links without undefined symbols.
   If this environment's torch is not a CUDA build, one is taken from a wheel, which is downloaded if none is given.
3. The library loads into this environment's torch, usually a CPU build, and registers a CUDA kernel for each operator.
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
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sinpe_ext.backend import sources
from sinpe_ext.backend.sources import BuildUnavailable

ROOT = Path(__file__).resolve().parent.parent

OUT = ROOT / "build" / "cuda-check"
ARCHITECTURES = "7.5 8.0 9.0 10.0 12.0"
TORCH = "2.12.0"  # a CUDA build to link with
LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so")
DISK = 2_500_000_000  # bytes: the wheel, what is unpacked of it, and the build
STREAM = "aoti_torch_get_current_cuda_stream"  # what the binding looks up in libtorch_cuda.so at run time
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# Functions that a header declares and only some of the including files use are not an error.
KERNEL_WARNINGS = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Wno-unused-function,-Wno-unknown-pragmas"]
KERNEL_WARNINGS += ["-Xptxas", "-warn-spills"]  # registers that are spilled to memory are an error, too
FORBIDDEN = ("libcudart", "libtorch_python", "libtorch_cuda", "libc10_cuda")

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


class Failure(Exception):
    """Raised if a check fails; the message is for the user."""


@dataclass
class Torch:
    """A torch to compile and link against."""

    folder: Path  # holds include and lib
    version: str
    cuda: str | None

    @property
    def include(self) -> list[str]:
        folders = (self.folder / "include", self.folder / "include" / "torch" / "csrc" / "api" / "include")
        return [part for folder in folders for part in ("-isystem", str(folder))]


def say(text: str) -> None:
    print(f"check-cuda: {text}", flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    started = time.monotonic()
    say(name)
    yield
    say(f"    {time.monotonic() - started:.1f} s")


def run(command: Sequence[object]) -> str:
    words = list(map(str, command))
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, **both, text=True, errors="replace", cwd=ROOT)
    if done.returncode:
        raise Failure(f"{' '.join(words)}\n{done.stdout}")
    return done.stdout


# -------------------------------------------------------------------------------------------------------------- torch


def environments_torch() -> Torch:
    import torch

    return Torch(Path(torch.__file__).parent, str(torch.__version__), torch.version.cuda)


def cuda_torch(wanted: str) -> Torch:
    """This environment's torch if it is a CUDA build, otherwise that of a wheel or version."""
    current = environments_torch()
    if current.cuda:
        return current
    unpacked = OUT / "wheel"
    done = unpacked / "done"  # names what was unpacked, if all of it was
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(unpacked, ignore_errors=True)
        free = shutil.disk_usage(OUT).free
        if free < DISK:
            raise Failure(f"{OUT}: expected {DISK / 1e9:.1f} GB of free disk for a CUDA torch, got {free / 1e9:.1f} GB")
        unpack(Path(wanted) if wanted.endswith(".whl") else downloaded(wanted), unpacked)
        done.write_text(wanted)
    fields = dict(re.findall(r"^(__version__|cuda)\b.*= '(.*)'$", (unpacked / "torch/version.py").read_text(), re.M))
    if "cuda" not in fields:
        raise Failure(f"torch {fields.get('__version__')} is no CUDA build: --torch WHEEL")
    return Torch(unpacked / "torch", fields["__version__"], fields["cuda"])


def downloaded(version: str) -> Path:
    say(f"    no CUDA build of torch here: downloading torch {version} (half a gigabyte) into {OUT}")
    shutil.rmtree(OUT / "download", ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    run([*pip, "-d", OUT / "download", f"torch==={version}"])  # ===: not the CPU build 2.12.0+cpu of another index
    (wheel,) = (OUT / "download").glob("*.whl")
    return wheel


def unpack(wheel: Path, folder: Path) -> None:
    if not wheel.is_file():
        raise Failure(f"--torch: expected a wheel of torch or a version, got {wheel}")
    wanted = ("torch/include/", "torch/version.py", *(f"torch/lib/{name}" for name in LIBRARIES))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(wanted)])


# ---------------------------------------------------------------------------------------------------------- the steps


def compile_kernels(nvcc: str, architectures: str) -> list[Path]:
    """Compiles every .cu file, as many at a time as there are cores, and returns the object files."""
    (OUT / "kernels").mkdir(parents=True, exist_ok=True)
    units = [source for source in sources.sources("cuda", ROOT / "csrc") if source.suffix == ".cu"]
    objects = [OUT / "kernels" / f"{source.name}.o" for source in units]
    flags = [*nvcc_flags(), *gencode(architectures), *KERNEL_WARNINGS, "-c"]
    commands = [[nvcc, *flags, source, "-o", made] for source, made in zip(units, objects, strict=True)]
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        try:
            list(pool.map(run, commands))
        except Failure:
            pool.shutdown(cancel_futures=True)
            raise
    return objects


def nvcc_flags() -> list[str]:
    folders = [*sources.include_directories(ROOT / "csrc"), str(ROOT / "tests" / "cpp")]
    return [*sources.nvcc_flags(), "-Xcompiler", "-fPIC", *(f"-I{folder}" for folder in folders)]


def gencode(architectures: str) -> list[str]:
    """The flags of nvcc for architectures such as "9.0 12.0"."""
    numbers = [item.replace(".", "") for item in architectures.replace(";", " ").split()]
    if not all(re.fullmatch(r"\d+[af]?", number) for number in numbers) or not numbers:
        raise Failure(f'--arch: expected compute capabilities such as "8.0 9.0", got {architectures!r}')
    return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]


def link(kernels: list[Path], torch: Torch, nvcc: str, compiler: str) -> Path:
    """Links the library without torch's CUDA libraries, so that it loads into a CPU build, too."""
    root, objects = ROOT / "csrc", list(kernels)
    include = [f"-I{folder}" for folder in sources.include_directories(root)]
    for source in sources.sources("cuda", root):
        if source.suffix == ".cpp":
            objects.append(OUT / f"{source.name}.o")
            flags = ["-std=c++20", "-fPIC", *sources.compile_flags("cuda"), *WARNINGS]
            run([compiler, *flags, *include, *torch.include, "-c", source, "-o", objects[-1]])
    library = OUT / "_C_cuda.so"
    names = [name for name in LIBRARIES if (torch.folder / "lib" / name).exists()]
    strict = ["--as-needed", "--no-undefined", "--allow-shlib-undefined"]
    linker = [part for flag in [*strict, *(f"-l:{name}" for name in names)] for part in ("-Xlinker", flag)]
    run([nvcc, "-shared", "-o", library, *objects, f"-L{torch.folder / 'lib'}", *linker])  # with the static runtime
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", library]))
    wrong = [name for name in needed if name.startswith(FORBIDDEN)]
    if wrong:
        raise Failure(f"{library} needs {', '.join(wrong)}, without which it must load")
    exported = ["nm", "-D", "--defined-only", torch.folder / "lib" / "libtorch_cuda.so"]
    if torch.cuda and STREAM not in run(exported).split():
        raise Failure(f"libtorch_cuda.so of torch {torch.version} has no {STREAM}, which the binding looks up")
    say(f"    {library.stat().st_size / 1e6:.1f} MB, needs {' '.join(needed)}")
    return library


def check(architectures: str, torch_wanted: str) -> list[str]:
    """Runs all checks and returns what was skipped. Raises Failure, BuildUnavailable.

    architectures: compute capabilities.   torch_wanted: a CUDA build of torch, the path of a wheel or a version.
    """
    skipped = []
    OUT.mkdir(parents=True, exist_ok=True)
    (compiler, _), nvcc = sources.find_compiler(), shutil.which("nvcc", path=nvcc_path())
    if nvcc is None:
        raise Failure("nvcc was not found (looked in CUDA_HOME, the PATH, /usr/local/cuda)")
    names = [path.name for path in sources.sources("cuda", ROOT / "csrc")]
    with step(f"1. nvcc compiles {' '.join(n for n in names if n.endswith('.cu'))} for {architectures}"):
        kernels = compile_kernels(nvcc, architectures)
    with step("2a. a CUDA build of torch"):
        try:
            torch = cuda_torch(torch_wanted)
        except Failure as missing:
            torch = environments_torch()
            skipped.append(f"no link against a CUDA build of torch, but against torch {torch.version}: {missing}")
            say(f"    SKIPPED: {missing}")
        say(f"    torch {torch.version}, CUDA {torch.cuda}")
    with step("2b. the binding compiles and links against it"):
        library = link(kernels, torch, nvcc, compiler)
    with step("3. the library loads into this environment's torch"):
        print(run([sys.executable, "-c", LOADS, library]), end="", flush=True)
    with step("4. the benchmark of the kernels compiles and links with them"):
        benchmark = ROOT / "benchmarks" / "cuda_kernels.cu"
        run([nvcc, *nvcc_flags(), *gencode(architectures)[:1], benchmark, *kernels, "-o", OUT / "time_cuda_kernels"])
    return skipped


def nvcc_path() -> str:
    homes = [os.path.join(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return os.pathsep.join([*homes, os.environ.get("PATH", ""), "/usr/local/cuda/bin"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make check-cuda ARGS=", description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default=ARCHITECTURES, help='compute capabilities (default: "%(default)s")')
    wanted = "CUDA build to link with if this environment's torch is none; a version is downloaded, half a gigabyte"
    parser.add_argument("--torch", default=TORCH, metavar="WHEEL|VERSION", help=f"{wanted} (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="do not delete the downloaded wheel")
    parser.add_argument(
        "--offline", action="store_true", help="without a CUDA build, link with this environment's torch"
    )
    options = parser.parse_args()
    try:
        skipped = check(options.arch, options.torch)
    except (Failure, BuildUnavailable) as error:
        todo = f"; {error.todo}" if isinstance(error, BuildUnavailable) and error.todo else ""
        say(f"FAILED: {error}{todo}")
        return 1
    finally:
        if not options.keep:
            for folder in ("wheel", "download"):
                shutil.rmtree(OUT / folder, ignore_errors=True)
    for line in skipped:
        say(f"NOT CHECKED: {line}")
    if skipped and not options.offline:
        say("FAILED: --offline lets this pass")
        return 1
    say(f"all kernels for {options.arch} without spilled registers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
