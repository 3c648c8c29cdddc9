"""The sources, flags and compiler of each library, and the facts that identify a build.

``setup.py`` loads this file by its path and the JIT (``jit.py``) imports it, so it uses the standard library only:
torch may be missing, and the package may not be importable yet. Everything about nvcc is in ``cuda_compiler.py``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIN_TORCH_COMPILED = (2, 11)
MANIFEST = "_build.json"
LIBRARY_NAMES = {"cpu": "_C_cpu", "cuda": "_C_cuda", "core": "_core"}  # what an installation may contain

# The sources of a target: folders of csrc without the files that match _LEFT_OUT. "kernels" are those of the CPU, which
# setup.py compiles once for "core" and "cpu". parallel_standalone.cpp has its own threads; inside torch the kernels use
# torch's thread pool instead. In torch/, the files cuda_* belong to the CUDA library, the other .cpp files to the CPU
# library, and the other headers to both. "emulated", for tests, is the CUDA library compiled as plain C++ for CPU
# tensors: the same kernels without a device.
_FOLDERS = {
    "kernels": ("core", "include", "cpu"),
    "cpu": ("core", "include", "cpu", "torch"),
    "core": ("core", "include", "cpu", "pybind"),
    "cuda": ("core", "include", "cuda", "torch"),
    "emulated": ("core", "include", "cuda", "torch"),
}
_LEFT_OUT = {
    "kernels": re.compile(r"cpu/parallel_standalone\.cpp"),
    "cpu": re.compile(r"cpu/parallel_standalone\.cpp|torch/cuda_.*"),
    "core": re.compile(r"(?!)"),  # nothing
    "cuda": re.compile(r"torch/(?!cuda_).*\.cpp"),
    "emulated": re.compile(r"torch/(?!cuda_).*\.cpp"),
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


def torch_target_version(version: tuple[int, int] = MIN_TORCH_COMPILED) -> int:
    """TORCH_TARGET_VERSION of the stable ABI. Computed, because a mistyped 0x0210..., which is 2.16, would compile."""
    major, minor = version
    return major << 56 | minor << 48


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version such as 2.13.0+cpu or 2.14.0a0+git1234."""
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"version: expected MAJOR.MINOR..., got {text!r}")
    return int(match.group(1)), int(match.group(2))


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
    """The translation units of a library, in a stable order."""
    return [path for path in _files(target, root) if path.suffix in (".cpp", ".cu")]


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
    """The compiler flags of a target.

    No -std where torch's headers are included, because torch sets it, and no -march: function clones are selected at
    run time. Contraction is off so that all clones round alike, and -fno-fast-math overrides a -ffast-math in CFLAGS.
    """
    flags = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-g0"]
    if target == "core":
        return ["-std=c++17", *flags, "-pthread", *_sanitizers(target)]
    flags += ["-DSINPE_EMULATED", "-O1"] if target == "emulated" else []  # -O3 takes twice as long to compile
    return [*flags, f"-DTORCH_TARGET_VERSION=0x{torch_target_version():016x}", *_sanitizers(target)]


def _sanitizers(target: str) -> list[str]:
    """Flags of a library for tests with sanitizers; it loads only together with their runtimes (nox -s asan)."""
    if os.environ.get("SINPE_EXT_SANITIZE", "0") in ("", "0") or target == "cuda":
        return []
    return [*"-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined".split()]


def link_flags(target: str) -> list[str]:
    """The linker flags of a library."""
    flags = ["-Wl,-s", "-Wl,--as-needed"] if sys.platform.startswith("linux") else []
    flags = _sanitizers(target) or flags
    return flags + (["-pthread"] if target in ("cpu", "core") and sys.platform != "darwin" else [])


# ---------------------------------------------------------------------------------------------- compiler, ninja, jobs


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that calls it, its resolved path, and the first line of its version."""

    command: tuple[str, ...]
    path: str
    version: str


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """Finds the C++ compiler: CXX, otherwise c++, g++ or clang++ on the PATH. Raises BuildUnavailable."""
    environ = os.environ if environ is None else environ
    search = environ.get("PATH")
    chosen = environ.get("CXX", "").strip()
    for candidate in [chosen] if chosen else ["c++", "g++", "clang++"]:
        whole = shutil.which(candidate, path=search)
        try:
            command = (whole,) if whole else tuple(shlex.split(candidate))
        except ValueError as error:  # an unterminated quotation
            raise BuildUnavailable(f"CXX={chosen} cannot be read: {error}", "set CXX to a C++ compiler") from error
        path = shutil.which(command[0], path=search)
        if path:
            path = os.path.abspath(path)  # ninja and nvcc run in other directories
            return Compiler((path, *command[1:]), os.path.realpath(path), _compiler_version((path, *command[1:])))
    if chosen:
        raise BuildUnavailable(f"the C++ compiler CXX={chosen} was not found", "set CXX to a C++ compiler or unset it")
    raise BuildUnavailable(
        "no C++ compiler was found (looked for CXX, c++, g++, clang++)", "install g++ or clang++, or set CXX"
    )


def _compiler_version(command: tuple[str, ...]) -> str:
    """The first line that a compiler prints for --version."""
    try:
        done = subprocess.run(
            [*command, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]


def find_ninja(environ: Mapping[str, str] | None = None) -> str | None:
    """ninja on the PATH, otherwise next to this Python, as the bin folder of a virtual environment may not be on it."""
    environ = os.environ if environ is None else environ
    beside = [os.path.dirname(os.path.abspath(sys.executable)), sysconfig.get_path("scripts")]
    return shutil.which("ninja", path=environ.get("PATH")) or shutil.which("ninja", path=os.pathsep.join(beside))


def default_jobs() -> int:
    """Number of compiler jobs: the cores that this process may use, at most one job per 2 GiB of free memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return cores
    return max(1, min(cores, free // (2 << 30)))


@contextlib.contextmanager
def build_environment(ninja: str | None, cxx: str | None = None) -> Iterator[None]:
    """Sets PATH (with ninja), CXX, and MAX_JOBS if it is unset, and restores them after the build."""
    changes: dict[str, str] = {}
    if ninja and shutil.which("ninja") is None:
        changes["PATH"] = os.pathsep.join([*filter(None, [os.environ.get("PATH")]), os.path.dirname(ninja)])
    if cxx:
        changes["CXX"] = cxx
    if "MAX_JOBS" not in os.environ:
        changes["MAX_JOBS"] = str(default_jobs())
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# ----------------------------------------------------------------------------------------------- identity of a build


def build_facts(target: str, root: Path, compiler: Compiler | None, torch_facts: Mapping[str, str]) -> dict[str, str]:
    """Everything a library depends on. The key of torch's own JIT omits torch itself, the headers and the compiler."""
    return {
        "target": target,
        "sources": source_hash(target, root),
        "flags": " ".join(compile_flags(target) + link_flags(target)),
        "compiler": compiler.path if compiler else "",
        "compiler_version": compiler.version if compiler else "",
        "compiler_command": shlex.join(compiler.command[1:]) if compiler else "",
        "python": str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
        "machine": f"{sys.platform}-{platform.machine()}",
        **torch_facts,
    }


def build_key(facts: Mapping[str, str]) -> str:
    """The name of the build directory, 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """SHA-256 of the content of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_truncated(path: Path) -> bool:
    """Whether an ELF file ends before its last segment: loading it would kill the process (SIGBUS)."""
    content = path.read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":  # only 64-bit little-endian ELF is checked here
        return False
    try:
        (first,) = struct.unpack_from("<Q", content, 0x20)
        size, count = struct.unpack_from("<HH", content, 0x36)
        segments = [struct.unpack_from("<IIQQQQ", content, first + k * size) for k in range(count)]
    except struct.error:
        return True
    return any(offset + length > len(content) for _, _, offset, _, _, length in segments)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty dict if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a JSON file atomically: a reader never sees an incomplete file."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(scratch, path)


def last_lines(text: str, count: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-count:])
