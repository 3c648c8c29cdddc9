"""What the compiled libraries are made of: sources, flags and compilers, and the facts that identify a build.

``setup.py`` loads this file by its path and ``jit.py`` imports it, so it imports torch only inside functions: torch may
be missing, and the package may not be importable yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MIN_TORCH_COMPILED = (2, 11)
MANIFEST = "_build.json"  # what setup.py built, in the package
LIBRARY_NAMES = {"cpu": "_C_cpu", "cuda": "_C_cuda", "core": "_core"}  # what an installation may contain

# The sources of a target: folders of csrc without the files that match _LEFT_OUT. "kernels" are those of the CPU, which
# setup.py compiles once for "core" and "cpu". parallel_standalone.cpp has its own threads; inside torch the kernels use
# torch's thread pool instead. In torch/, the files cuda_* belong to the CUDA library, the other .cpp files to the CPU
# library, and the other headers to both.
_FOLDERS = {
    "kernels": ("core", "include", "cpu"),
    "cpu": ("core", "include", "cpu", "torch"),
    "core": ("core", "include", "cpu", "pybind"),
    "cuda": ("core", "include", "cuda", "torch"),
}
_LEFT_OUT = {
    "kernels": re.compile(r"cpu/parallel_standalone\.cpp"),
    "cpu": re.compile(r"cpu/parallel_standalone\.cpp|torch/cuda_.*"),
    "core": re.compile(r"(?!)"),  # nothing
    "cuda": re.compile(r"torch/(?!cuda_).*\.cpp"),
}
_SUFFIXES = (".h", ".hpp", ".inl", ".inc", ".cpp", ".cu", ".cuh")


class BuildUnavailable(RuntimeError):
    """Raised if a library cannot be loaded or built here.

    Attributes:
        reason: why.
        todo: what to do about it, "" if nothing can be done.
        failed: whether a build was tried and failed.
    """

    def __init__(self, reason: str, todo: str = "", failed: bool = False):
        super().__init__(reason)
        self.reason = reason
        self.todo = todo
        self.failed = failed


def check_torch(target: str) -> None:
    """Raises BuildUnavailable if this torch cannot use the library "cpu" or "cuda", ImportError if there is none."""
    import torch
    from torch.torch_version import TorchVersion

    if sys.platform == "win32":
        raise BuildUnavailable("no kernels are built on Windows yet")
    oldest = ".".join(map(str, MIN_TORCH_COMPILED))
    if TorchVersion(str(torch.__version__)) < oldest:
        raise BuildUnavailable(
            f"torch {torch.__version__} is older than {oldest}, the oldest that the kernels run on",
            f'pip install "torch>={oldest}"',
        )
    if target == "cuda" and torch.version.hip:
        raise BuildUnavailable(f"torch {torch.__version__} is a ROCm build, for which there are no kernels")
    if target == "cuda" and not torch.version.cuda:
        raise BuildUnavailable(f"torch {torch.__version__} is a CPU build", "install a CUDA build of torch")


# ---------------------------------------------------------------------------------------------------- sources, flags


def source_root(package: Path | None = None) -> Path | None:
    """The folder csrc: in an installed package as _csrc, in a checkout or an editable install next to the package."""
    package = package or Path(__file__).resolve().parent.parent
    for root in (package / "_csrc", package.parent / "csrc"):
        if (root / "core").is_dir():
            return root
    return None


def _files(target: str, root: Path) -> list[Path]:
    """Every source and header of a library, in a stable order."""
    files: list[Path] = []
    for folder in _FOLDERS[target]:
        files += [path for path in sorted((root / folder).rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    return [path for path in files if not _LEFT_OUT[target].fullmatch(path.relative_to(root).as_posix())]


def sources(target: str, root: Path) -> list[Path]:
    """The translation units of a library, in a stable order; those that take the longest to compile come first.

    No two of a library have the same file name, by which torch names object files.
    """
    units = [path for path in _files(target, root) if path.suffix in (".cpp", ".cu")]
    return sorted(units, key=lambda path: not path.name.startswith("rows_"))


def include_directories(root: Path) -> list[str]:
    """The include directories of every library."""
    return [str(root), str(root / "include")]


def source_hash(target: str, root: Path) -> str:
    """SHA-256 of the names and contents of every source and header of a library."""
    digest = hashlib.sha256()
    for path in _files(target, root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def compile_flags(target: str) -> list[str]:
    """The flags of the C++ compiler for a target.

    No -std where torch's headers are included, because torch sets it, and no -march: the kernels of newer instruction
    sets name theirs in the source and are selected at run time. Contraction is off so that all of them round alike, and
    -fno-fast-math overrides a -ffast-math in CFLAGS.
    """
    flags = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-g0"]
    if target == "core":
        return ["-std=c++17", *flags, "-pthread", *_sanitizers(target)]
    major, minor = MIN_TORCH_COMPILED  # computed, because a mistyped 0x0210..., which is 2.16, would compile
    return [*flags, f"-DTORCH_TARGET_VERSION=0x{major << 56 | minor << 48:016x}", *_sanitizers(target)]


def nvcc_flags() -> list[str]:
    """The flags of nvcc, besides torch's. No fast math and no contraction: the kernels call fma explicitly."""
    host = "-fvisibility=hidden,-fvisibility-inlines-hidden,-ffp-contract=off,-fno-fast-math"
    return ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler", host]


def link_flags(target: str) -> list[str]:
    """The linker flags of a library."""
    flags = ["-Wl,-s", "-Wl,--as-needed"] if sys.platform.startswith("linux") else []
    flags = _sanitizers(target) or flags
    return flags + (["-pthread"] if target in ("cpu", "core") and sys.platform != "darwin" else [])


def _sanitizers(target: str) -> list[str]:
    """Flags of a library for tests with sanitizers; it loads only together with their runtimes (nox -s asan)."""
    if os.environ.get("SINPE_EXT_SANITIZE", "0") in ("", "0") or target == "cuda":
        return []
    return [*"-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined".split()]


# --------------------------------------------------------------------------------------------------------- compilers


def find_compiler() -> tuple[str, str]:
    """(path, first line of its version) of the C++ compiler that torch uses. Raises BuildUnavailable."""
    chosen = os.environ.get("CXX", "").strip() or "c++"
    path = shutil.which(chosen)
    if path is None:
        given = f"CXX={chosen}" if os.environ.get("CXX") else f"looked for CXX and {chosen}"
        raise BuildUnavailable(
            f"no C++ compiler was found ({given})", "install g++ or clang++, or set CXX to the command of one"
        )
    return path, (_output(path, "--version").strip().splitlines() or ["unknown"])[0]


def find_nvcc() -> tuple[str, str]:
    """(path, version) of the nvcc that torch uses. Raises BuildUnavailable.

    Its CUDA major version must be that of torch, because two major versions of the CUDA runtime in one process may need
    different drivers.
    """
    import torch

    try:
        from torch.utils.cpp_extension import CUDA_HOME
    except ImportError as error:
        raise BuildUnavailable(f"torch.utils.cpp_extension: {error}", "pip install setuptools") from error
    wanted = str(torch.version.cuda).partition(".")[0]
    todo = f"install the CUDA toolkit {wanted}.x or set CUDA_HOME to one"
    path = shutil.which("nvcc", path=os.path.join(CUDA_HOME, "bin")) if CUDA_HOME else None
    if path is None:
        looked = f"CUDA_HOME={CUDA_HOME}" if CUDA_HOME else "CUDA_HOME, CUDA_PATH, the PATH, /usr/local/cuda"
        raise BuildUnavailable(f"nvcc was not found (looked in {looked})", todo)
    match = re.search(r"\bV(\d+)(\.[\d.]+)", _output(path, "--version"))
    version = match[1] + match[2] if match else "unknown"
    if match and match[1] != wanted:
        raise BuildUnavailable(
            f"nvcc {path} is of CUDA {version}, and torch is built for CUDA {torch.version.cuda}", todo
        )
    return path, version


def cuda_library_flags() -> list[str]:
    """The linker flags for the CUDA runtime's folder. nvcc is asked, because the nvcc on the PATH may be a script
    outside of its toolkit, whose folder torch then does not find. Raises BuildUnavailable without nvcc."""
    output = _output(find_nvcc()[0], "--dryrun", "-E", "-x", "cu", os.devnull)
    folders = [os.path.normpath(folder) for folder in re.findall(r'"-L([^"]+)"', output)]
    return [f"-L{folder}" for folder in folders if os.path.isdir(folder)]


def _output(*command: str) -> str:
    """What a command prints; the name of the error if it cannot be run."""
    try:
        both = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, text=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    return both.stdout


# ----------------------------------------------------------------------------------------------------- architectures


def architectures() -> str:
    """The CUDA architectures that torch compiles for: TORCH_CUDA_ARCH_LIST, otherwise those of the visible devices.

    Raises BuildUnavailable if there is neither.
    """
    names = re.split(r"[\s,;]+", os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" \t\n,;"))
    if names == [""]:
        names = ["{}.{}".format(*capability) for capability in device_capabilities()]
    if not names:
        raise BuildUnavailable(
            "no CUDA device is visible, and TORCH_CUDA_ARCH_LIST names none to compile for",
            "make a device visible or set TORCH_CUDA_ARCH_LIST",
        )
    return " ".join(names)


def device_capabilities() -> list[tuple[int, int]]:
    """The compute capabilities of the visible CUDA devices, ascending; none if a device cannot be used. Initializes
    CUDA only if there is a device."""
    import torch

    if not torch.cuda.is_available():
        return []
    try:
        return sorted({torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())})
    except RuntimeError:  # such as a device in a state of error: no reason to end an installation
        return []


def has_code_for(built: str, device: tuple[int, int]) -> bool:
    """Whether a library for these architectures ("8.0 9.0a 12.0+PTX") runs on a device of this compute capability.

    It does if one has the same major and no higher minor version, or is older and PTX; "a": only if it is the same.
    """
    for major, minor, suffix, ptx in re.findall(r"(\d+)\.(\d)([af]?)(\+PTX)?", built):
        capability = int(major), int(minor)
        newer = capability <= device and suffix != "a" and (capability[0] == device[0] or (ptx and not suffix))
        if capability == device or newer:
            return True
    return built[:1].isalpha()  # names such as "Ampere"


# --------------------------------------------------------------------------------------------------- facts of a build


def build_facts(target: str, root: Path) -> dict[str, str]:
    """Everything that a library depends on besides the compilers. The key of torch's own JIT omits torch itself, the
    headers and the compiler. Raises BuildUnavailable for "cuda" without an architecture to compile for."""
    facts = {
        "target": target,
        "sources": source_hash(target, root),
        "flags": " ".join(compile_flags(target) + link_flags(target)),
        "python": str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
        "machine": f"{sys.platform}-{platform.machine()}",
    }
    if target != "core":
        import torch

        facts["torch"], facts["torch_git"] = str(torch.__version__), str(torch.version.git_version)
        facts["cuda"] = torch.version.cuda or "none"
    if target == "cuda":
        facts |= {"cuda_flags": " ".join(nvcc_flags()), "architectures": architectures()}
    return facts


def compiler_facts(target: str) -> dict[str, str]:
    """The compilers of a library. Raises BuildUnavailable if one is missing."""
    path, version = find_compiler()
    facts = {"compiler": os.path.realpath(path), "compiler_version": version}
    if target == "cuda":
        path, version = find_nvcc()
        facts |= {"nvcc": os.path.realpath(path), "nvcc_version": version}
    return facts


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty dict if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
