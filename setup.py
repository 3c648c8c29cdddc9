"""Builds the compiled libraries at install time; metadata is in pyproject.toml.

SINPE_EXT_BUILD determines what is built. auto (the default) builds what can be built; without a compiler or torch it
installs pure Python. cpu fails if the CPU library cannot be built, and omits CUDA. cuda fails if the CUDA library
cannot be built. none builds nothing. The CUDA kernels are compiled for the visible devices, or for the architectures in
TORCH_CUDA_ARCH_LIST, which a wheel or an image needs. What was built, or the reason why not, is recorded in _build.json
in the package, which sinpe_ext.backend_info() reads.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import setuptools
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
MIN_SETUPTOOLS = 77  # the first that accepts the license in pyproject.toml; older ones fail with an unclear error
if int(setuptools.__version__.split(".")[0]) < MIN_SETUPTOOLS:
    raise SystemExit(
        f"sinpe_ext: setuptools {setuptools.__version__} is older than {MIN_SETUPTOOLS}; "
        "run `pip install -U setuptools`, or leave --no-build-isolation away"
    )


def build_modules() -> list[types.ModuleType]:
    """Imports compilation.py and cuda_compiler.py of sinpe_ext/backend under another package name, because sinpe_ext
    itself may not be importable yet."""
    package = types.ModuleType("_sinpe_ext_build")
    package.__path__ = [str(HERE / "sinpe_ext" / "backend")]
    sys.modules[package.__name__] = package
    return [importlib.import_module(f"{package.__name__}.{name}") for name in ("compilation", "cuda_compiler")]


compilation, cuda_compiler = build_modules()
CSRC = HERE / "csrc"
REASONS = {"core": "core_reason", "cpu": "reason", "cuda": "cuda_reason"}  # manifest keys, in order of building
FALLBACKS = {
    "cpu": "compiles on first use or runs eager PyTorch",
    "cuda": "compiles on first use of a device or runs eager PyTorch there",
    "core": "sinpe_ext.numpy uses NumPy alone",
}
manifest: dict = {"libraries": {}}


def say(text: str) -> None:
    print(f"\nsinpe_ext: {text}\n", file=sys.stderr, flush=True)


def build_mode() -> str:
    mode = os.environ.get("SINPE_EXT_BUILD") or "auto"
    if mode not in ("auto", "cpu", "cuda", "none"):
        raise SystemExit(f"SINPE_EXT_BUILD: expected auto, cpu, cuda or none, got {mode!r}")
    return mode


def relative_sources(target: str) -> list[str]:
    """The sources that the C++ compiler compiles, without the .cu files, which nvcc compiles."""
    return [path.relative_to(HERE).as_posix() for path in compilation.sources(target, CSRC) if path.suffix == ".cpp"]


def torch_extension(target: str) -> Extension:
    try:
        import torch
        from torch.utils.cpp_extension import CppExtension
    except ImportError as error:
        raise compilation.BuildUnavailable(f"torch cannot be imported at build time: {error}") from error
    if compilation.parse_version(str(torch.__version__)) < compilation.MIN_TORCH_COMPILED:
        oldest = ".".join(map(str, compilation.MIN_TORCH_COMPILED))
        raise compilation.BuildUnavailable(f"torch {torch.__version__} at build time is older than {oldest}")
    if target == "cuda":
        find_cuda(torch)
    # With py_limited_api libtorch_python is not linked: the library is not a Python module and works with every Python.
    # Not torch's CUDAExtension: see backend/cuda_compiler.py.
    return CppExtension(
        f"sinpe_ext.{compilation.LIBRARY_NAMES[target]}",
        [name for name in relative_sources(target) if name not in relative_sources("kernels")],
        include_dirs=compilation.include_directories(CSRC),
        extra_compile_args=compilation.compile_flags(target)
        + names_without_paths({CSRC: "csrc", Path(torch.__file__).parent / "include": "torch"}),
        extra_link_args=compilation.link_flags(target),
        py_limited_api=True,
    )


def names_without_paths(folders: dict[Path, str]) -> list[str]:
    """Flags that make __FILE__ the same on every machine. They are not in the manifest, because they contain paths."""
    return [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]


def find_cuda(torch: types.ModuleType) -> None:
    """Stores nvcc and its architectures in the manifest, from which they are removed before the build."""
    missing = cuda_compiler.no_cuda_torch(str(torch.__version__), torch.version.cuda, torch.version.hip)
    if missing:
        raise missing
    nvcc = cuda_compiler.find_nvcc(str(torch.version.cuda))
    manifest["nvcc"] = nvcc, cuda_compiler.cuda_architectures(nvcc, cuda_compiler.device_capabilities())


def core_extension() -> Extension:
    try:
        import pybind11
    except ImportError as error:
        raise compilation.BuildUnavailable(f"pybind11 cannot be imported at build time: {error}") from error
    return Extension(
        "sinpe_ext._core",
        relative_sources("core"),
        include_dirs=[*compilation.include_directories(CSRC), pybind11.get_include()],
        extra_compile_args=compilation.compile_flags("core") + names_without_paths({CSRC: "csrc"}),
        extra_link_args=compilation.link_flags("core"),
        language="c++",
    )


def planned_extensions(mode: str) -> list[Extension]:
    """The libraries that can be built here. For the others the reason is recorded, or the installation fails if
    SINPE_EXT_BUILD requires them."""
    if mode == "none":
        manifest["reason"] = "installed without compiled libraries (SINPE_EXT_BUILD=none)"
        return []
    planned = []
    try:
        if sys.platform == "win32":
            raise compilation.BuildUnavailable("no kernels are built on Windows yet")
        manifest["compiler"] = compilation.find_compiler()
    except compilation.BuildUnavailable as error:
        for target in REASONS:
            give_up(target, error.reason, mode, quiet=target != "cpu")
        return []
    for target in REASONS:
        if target == "cuda" and mode == "cpu":
            manifest["cuda_reason"] = "not built at install time (SINPE_EXT_BUILD=cpu)"
            continue
        try:
            planned.append(core_extension() if target == "core" else torch_extension(target))
        except compilation.BuildUnavailable as error:
            give_up(target, error.reason, mode, quiet=target == "cuda" and not has_cuda_torch())
    return planned


def has_cuda_torch() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None


def give_up(target: str, reason: str, mode: str, quiet: bool = False) -> None:
    name = compilation.LIBRARY_NAMES[target]
    if mode == target:
        raise SystemExit(f"sinpe_ext: SINPE_EXT_BUILD={mode}, but {name} cannot be built: {reason}")
    manifest[REASONS[target]] = f"not built at install time: {reason}"
    if not quiet:
        say(f"WARNING: {name} is not built, {FALLBACKS[target]}. Reason: {reason}")


@contextlib.contextmanager
def kept_output(kept: list[str]) -> Iterator[None]:
    """Context manager: shows the compiler's output and also appends it to a list; ninja writes to file descriptor 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as scratch:
        saved = [os.dup(1), os.dup(2)]
        try:
            os.dup2(scratch.fileno(), 1)
            os.dup2(scratch.fileno(), 2)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, original in zip((1, 2), saved, strict=True):
                os.dup2(original, number)
                os.close(original)
            scratch.seek(0)
            kept.append(scratch.read().decode(errors="replace"))
            sys.stderr.write(kept[-1])


def torch_build_ext() -> type[build_ext]:
    try:
        from torch.utils.cpp_extension import BuildExtension
    except ImportError:
        return build_ext
    return BuildExtension


MODE = build_mode()
# pip's commands that build nothing, one at a time: looking for torch would take a second in each.
METADATA_ONLY = sys.argv[1:2] in (["egg_info"], ["dist_info"]) and not {"bdist_wheel", "build_ext"} & set(sys.argv)
EXTENSIONS = [] if METADATA_ONLY else planned_extensions(MODE)
COMPILER = manifest.pop("compiler", None)
NVCC, ARCHITECTURES = manifest.pop("nvcc", (None, ()))


class BuildLibraries(torch_build_ext() if EXTENSIONS else build_ext):
    """Builds each library separately: if one fails, the others are still built, unless SINPE_EXT_BUILD requires it.

    _C_cpu links the object files of the kernels that _core was built from. nvcc works while these two are built.
    """

    cuda_kernels: Future[list[Path]] | None = None

    def run(self) -> None:
        cxx = COMPILER.command[0] if COMPILER and len(COMPILER.command) == 1 else None
        with compilation.build_environment(compilation.find_ninja(), cxx), ThreadPoolExecutor(1) as background:
            if NVCC:
                say(f"nvcc {NVCC.version} compiles the CUDA kernels for {' '.join(ARCHITECTURES)}")
                folder = Path(self.build_temp).absolute() / "cuda"
                self.cuda_kernels = background.submit(
                    cuda_compiler.compile_kernels, NVCC, CSRC, folder, ARCHITECTURES, COMPILER
                )
            super().run()
        write_manifest(Path(self.build_lib) / "sinpe_ext")
        if self.inplace or self.editable_mode:
            write_manifest(HERE / "sinpe_ext")

    def build_extension(self, ext: Extension) -> None:
        target = next(t for t, name in compilation.LIBRARY_NAMES.items() if ext.name.endswith(name))
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # from an earlier build: it would hide a failure
        kept: list[str] = []
        try:
            with kept_output(kept):
                if target == "cuda":
                    ext.extra_link_args += cuda_compiler.link_flags(NVCC, self.compiled_cuda_kernels())
                elif target == "cpu":
                    ext.extra_objects = self.compiled_kernels()
                super().build_extension(ext)
        except Exception as error:
            reason = f"the build failed: {error}\n{compilation.last_lines(''.join(kept))}"
            give_up(target, reason, MODE)
            ext._sinpe_failed = True
            return
        facts = compilation.build_facts(target, CSRC, COMPILER, {} if target == "core" else torch_facts())
        if target == "cuda":
            facts.update(cuda_compiler.cuda_facts(NVCC, ARCHITECTURES))
        manifest["libraries"][target] = {"file": library.name, **facts}

    def compiled_kernels(self) -> list[str]:
        """The object files of the CPU's kernels: those of _core, or if it was not built, compiled now."""
        if "core" in manifest["libraries"]:
            return self.compiler.object_filenames(relative_sources("kernels"), output_dir=self.build_temp)
        return self.compiler.compile(
            relative_sources("kernels"),
            output_dir=self.build_temp,
            include_dirs=compilation.include_directories(CSRC),
            extra_postargs=compilation.compile_flags("core") + names_without_paths({CSRC: "csrc"}),
        )

    def compiled_cuda_kernels(self) -> list[Path]:
        assert self.cuda_kernels is not None
        try:
            return self.cuda_kernels.result()
        except subprocess.CalledProcessError as error:
            print(error.output.decode(errors="replace"), flush=True)
            raise

    def copy_extensions_to_source(self) -> None:
        built, self.extensions = self.extensions, [e for e in self.extensions if not hasattr(e, "_sinpe_failed")]
        super().copy_extensions_to_source()
        self.extensions = built

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if os.path.exists(path)]


class RecordBuild(build_py):
    """Writes the manifest if there is nothing to build, because build_ext does not run then."""

    def run(self) -> None:
        super().run()
        if not EXTENSIONS:
            write_manifest(Path(self.build_lib) / "sinpe_ext")
            if self.editable_mode:
                write_manifest(HERE / "sinpe_ext")


def torch_facts() -> dict[str, str]:
    import torch

    version = torch.version
    return {"torch": str(torch.__version__), "torch_git": str(version.git_version), "cuda": str(version.cuda)}


def write_manifest(folder: Path) -> None:
    """Writes _build.json, and removes libraries of earlier builds that it does not list."""
    folder.mkdir(parents=True, exist_ok=True)
    current = {library["file"] for library in manifest["libraries"].values()}
    for name in compilation.LIBRARY_NAMES.values():
        for library in folder.glob(f"{name}.*"):
            if library.name not in current and library.suffix in (".so", ".pyd"):
                library.unlink()
    compilation.write_json(folder / compilation.MANIFEST, {"mode": MODE, **manifest})


setup(
    packages=[*find_packages(str(HERE), include=["sinpe_ext", "sinpe_ext.*"]), "sinpe_ext._csrc"],
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildLibraries, "build_py": RecordBuild},
)
