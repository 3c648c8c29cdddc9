"""What is compiled, from which files, with which flags, and how a finished library is recognised.

``setup.py`` loads this file by its path and the JIT (``jit.py``) imports it, so it needs the standard library alone:
torch may be missing, and the package may not be importable yet. What concerns nvcc is in ``cuda_compiler.py``.
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
LIBRARY_NAMES = {"cpu": "_C_cpu", "cuda": "_C_cuda", "core": "_core"}  # what an install may hold

# What a library is made of: folders of csrc, less the files that match. parallel_standalone.cpp brings threads of its
# own; inside torch the kernels use torch's pool instead. Of torch/, cuda_* belongs to the CUDA library alone, every
# other .cpp to the CPU's, and the other headers to both. "emulated", for tests, is the CUDA library compiled as plain
# C++, which serves CPU tensors: the same kernels without a device.
_FOLDERS = {
    "cpu": ("core", "include", "cpu", "torch"),
    "core": ("core", "include", "cpu", "pybind"),
    "cuda": ("core", "include", "cuda", "torch"),
    "emulated": ("core", "include", "cuda", "torch"),
}
_LEFT_OUT = {
    "cpu": re.compile(r"cpu/parallel_standalone\.cpp|torch/cuda_.*"),
    "core": re.compile(r"(?!)"),  # nothing
    "cuda": re.compile(r"torch/(?!cuda_).*\.cpp"),
    "emulated": re.compile(r"torch/(?!cuda_).*\.cpp"),
}
_SUFFIXES = (".h", ".hpp", ".inl", ".inc", ".cpp", ".cu", ".cuh")


class BuildUnavailable(RuntimeError):
    """A library cannot be had here: why, what to do about it, and whether a compiler ran and failed."""

    def __init__(self, reason: str, todo: str = "", failed: bool = False):
        super().__init__(reason)
        self.reason = reason
        self.todo = todo
        self.failed = failed


def torch_target_version(version: tuple[int, int] = MIN_TORCH_COMPILED) -> int:
    """TORCH_TARGET_VERSION of the stable ABI; computed, because 0x0210... typed by hand is 2.16 and compiles."""
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
    """csrc: inside an installed package as _csrc, in a checkout or an editable install beside the package."""
    package = package or Path(__file__).resolve().parent.parent
    for root in (package / "_csrc", package.parent / "csrc"):
        if (root / "core").is_dir():
            return root
    return None


def _files(target: str, root: Path) -> list[Path]:
    """Every source and header that can reach the library, in a stable order."""
    found: list[Path] = []
    for folder in _FOLDERS[target]:
        found += [path for path in sorted((root / folder).rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    return [path for path in found if not _LEFT_OUT[target].fullmatch(path.relative_to(root).as_posix())]


def sources(target: str, root: Path) -> list[Path]:
    """The translation units of a library, in a stable order."""
    return [path for path in _files(target, root) if path.suffix in (".cpp", ".cu")]


def include_directories(root: Path) -> list[str]:
    return [str(root), str(root / "include")]


def source_hash(target: str, root: Path) -> str:
    """One hash over every source and header that can reach the library, with their names."""
    digest = hashlib.sha256()
    for path in _files(target, root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def compile_flags(target: str) -> list[str]:
    """No -std (torch chooses its own), no -march (clones choose at run time), no fast math; contraction is off so that
    every clone rounds alike. -fno-fast-math answers a CFLAGS of the user's that says otherwise."""
    flags = ["-O3", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-g0"]
    if target == "core":
        return [*flags, "-DSINPE_STANDALONE", "-pthread", *_sanitizers(target)]
    flags += ["-DSINPE_EMULATED"] if target == "emulated" else []
    return [*flags, f"-DTORCH_TARGET_VERSION=0x{torch_target_version():016x}", *_sanitizers(target)]


def _sanitizers(target: str) -> list[str]:
    """Of a library for tests, which loads only beside their runtimes (nox -s asan)."""
    if os.environ.get("SINPE_EXT_SANITIZE", "0") in ("", "0") or target == "cuda":
        return []
    return [*"-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined".split()]


def link_flags(target: str) -> list[str]:
    flags = ["-Wl,-s", "-Wl,--as-needed"] if sys.platform.startswith("linux") else []
    flags = _sanitizers(target) or flags
    return flags + (["-pthread"] if target in ("cpu", "core") and sys.platform != "darwin" else [])


# ---------------------------------------------------------------------------------------------- compiler, ninja, jobs


@dataclass(frozen=True)
class Compiler:
    command: tuple[str, ...]
    path: str
    version: str


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """The C++ compiler: CXX, else c++, g++ or clang++ on the PATH."""
    environ = os.environ if environ is None else environ
    search = environ.get("PATH")
    chosen = environ.get("CXX", "").strip()
    for candidate in [chosen] if chosen else ["c++", "g++", "clang++"]:
        whole = shutil.which(candidate, path=search)
        try:
            command = (whole,) if whole else tuple(shlex.split(candidate))
        except ValueError as error:  # a quotation without its end
            raise BuildUnavailable(f"CXX={chosen} cannot be read: {error}", "set CXX to a C++ compiler") from error
        path = shutil.which(command[0], path=search)
        if path:
            path = os.path.abspath(path)  # ninja and nvcc run in folders of their own
            return Compiler((path, *command[1:]), os.path.realpath(path), _compiler_version((path, *command[1:])))
    if chosen:
        raise BuildUnavailable(f"the C++ compiler CXX={chosen} was not found", "set CXX to a C++ compiler or unset it")
    raise BuildUnavailable(
        "no C++ compiler was found (looked for CXX, c++, g++, clang++)", "install g++ or clang++, or set CXX"
    )


def _compiler_version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, errors="replace"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({type(error).__name__})"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]


def find_ninja(environ: Mapping[str, str] | None = None) -> str | None:
    """ninja on the PATH, else beside this Python: a virtual environment's bin folder is often not on the PATH."""
    environ = os.environ if environ is None else environ
    beside = [os.path.dirname(os.path.abspath(sys.executable)), sysconfig.get_path("scripts")]
    return shutil.which("ninja", path=environ.get("PATH")) or shutil.which("ninja", path=os.pathsep.join(beside))


def default_jobs() -> int:
    """Cores this process may use, at most one job per 2 GiB of free memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return cores
    return max(1, min(cores, free // (2 << 30)))


@contextlib.contextmanager
def build_environment(ninja: str | None, cxx: str | None = None) -> Iterator[None]:
    """PATH with ninja, CXX, and MAX_JOBS where unset, for the time of a build only."""
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
    """Everything a library depends on. torch's own JIT key leaves out torch itself, headers and compiler."""
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
    """16 hex digits that name the build directory."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:16]


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_cut_short(path: Path) -> bool:
    """Whether an ELF file ends before what it says is to be loaded: to load it would kill the process (SIGBUS)."""
    content = path.read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian; the loader itself looks at any other
        return False
    try:
        (first,) = struct.unpack_from("<Q", content, 0x20)
        size, count = struct.unpack_from("<HH", content, 0x36)
        segments = [struct.unpack_from("<IIQQQQ", content, first + k * size) for k in range(count)]
    except struct.error:
        return True
    return any(offset + length > len(content) for _, _, offset, _, _, length in segments)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where the file is missing or damaged, which is then treated as absent."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Whole or not at all: a reader never sees half a file."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(scratch, path)


def last_lines(text: str, count: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-count:])
