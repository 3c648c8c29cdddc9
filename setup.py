"""Builds the compiled libraries at install time; metadata is in pyproject.toml.

SINPE_EXT_BUILD determines what is built. auto (the default) builds what can be built; without a compiler or torch it
installs pure Python. cpu fails if the CPU library cannot be built, and omits CUDA. cuda fails if the CUDA library
cannot be built. none builds nothing. The CUDA kernels are compiled for the architectures in TORCH_CUDA_ARCH_LIST,
otherwise for the visible devices. What was built, or the reason why not, is recorded in _build.json in the package,
which sinpe_ext.backend_info() reads.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from pathlib import Path

import setuptools
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
CSRC = HERE / "csrc"
MIN_SETUPTOOLS = 77  # the first that accepts the license in pyproject.toml; older ones fail with an unclear error
if int(setuptools.__version__.split(".")[0]) < MIN_SETUPTOOLS:
    raise SystemExit(
        f"sinpe_ext: setuptools {setuptools.__version__} is older than {MIN_SETUPTOOLS}; "
        "run `pip install -U setuptools`, or leave --no-build-isolation away"
    )
MODE = os.environ.get("SINPE_EXT_BUILD") or "auto"
if MODE not in ("auto", "cpu", "cuda", "none"):
    raise SystemExit(f"SINPE_EXT_BUILD: expected auto, cpu, cuda or none, got {MODE!r}")

# By its path, because sinpe_ext itself may not be importable yet.
spec = importlib.util.spec_from_file_location("_sinpe_ext_sources", HERE / "sinpe_ext" / "backend" / "sources.py")
sources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sources)

REASONS = {"core": "core_reason", "cpu": "reason", "cuda": "cuda_reason"}  # manifest keys, in order of building
manifest: dict = {"mode": MODE, "libraries": {}}


def relative_sources(target: str) -> list[str]:
    return [path.relative_to(HERE).as_posix() for path in sources.sources(target, CSRC)]


def extension(target: str) -> Extension:
    """The library of a target. Raises BuildUnavailable if it cannot be built."""
    sources.find_compiler()
    prefixes = {CSRC: "csrc"}
    options: dict = {
        "include_dirs": sources.include_directories(CSRC),
        "extra_link_args": sources.link_flags(target),
        "optional": MODE != target,
    }
    if target == "core":
        make = Extension
        try:
            import pybind11
        except ImportError as error:
            raise sources.BuildUnavailable(f"pybind11 cannot be imported at build time: {error}") from error
        options["include_dirs"].append(pybind11.get_include())
        options["language"] = "c++"
    else:
        try:
            sources.check_torch(target)
            import torch
            from torch.utils.cpp_extension import CppExtension, CUDAExtension
        except ImportError as error:
            raise sources.BuildUnavailable(f"torch cannot be imported at build time: {error}") from error
        if target == "cuda":
            sources.architectures()
            options["extra_link_args"] += sources.cuda_library_flags()
        make = CUDAExtension if target == "cuda" else CppExtension
        prefixes[Path(torch.__file__).parent / "include"] = "torch"
        # Without libtorch_python: the library is not a Python module and works with every Python.
        options["py_limited_api"] = True
    # __FILE__ is the same on every machine. Not in the manifest, because these flags contain paths.
    names = [f"-ffile-prefix-map={folder}={name}" for folder, name in prefixes.items()]
    flags = {"cxx": sources.compile_flags(target) + names}
    flags["nvcc"] = sources.nvcc_flags() + [part for name in names for part in ("-Xcompiler", name)]
    options["extra_compile_args"] = flags if target == "cuda" else flags["cxx"]
    return make(f"sinpe_ext.{sources.LIBRARY_NAMES[target]}", relative_sources(target), **options)


def planned_extensions() -> list[Extension]:
    """The libraries that can be built here; for the others the reason is recorded."""
    if MODE == "none":
        manifest["reason"] = "installed without compiled libraries (SINPE_EXT_BUILD=none)"
        return []
    planned = []
    for target in REASONS:
        if target == "cuda" and MODE == "cpu":
            manifest["cuda_reason"] = "not built at install time (SINPE_EXT_BUILD=cpu)"
            continue
        try:
            planned.append(extension(target))
        except sources.BuildUnavailable as error:
            give_up(target, error.reason)
    return planned


def give_up(target: str, reason: str) -> None:
    """Records why a library is not built. Raises SystemExit if SINPE_EXT_BUILD requires it."""
    name = sources.LIBRARY_NAMES[target]
    if MODE == target:
        raise SystemExit(f"sinpe_ext: SINPE_EXT_BUILD={MODE}, but {name} cannot be built: {reason}")
    manifest[REASONS[target]] = f"not built at install time: {reason}"
    print(f"\nsinpe_ext: {name} is not built: {reason}\n", file=sys.stderr, flush=True)


# pip's commands that build nothing, one at a time: looking for torch would take a second in each.
METADATA_ONLY = sys.argv[1:2] in (["egg_info"], ["dist_info"]) and not {"bdist_wheel", "build_ext"} & set(sys.argv)
EXTENSIONS = [] if METADATA_ONLY else planned_extensions()
# ninja, which compiles in parallel, is next to this Python in a virtual environment that is not activated.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])
Builder = build_ext
if EXTENSIONS:
    with contextlib.suppress(ImportError):
        from torch.utils.cpp_extension import BuildExtension as Builder


class BuildLibraries(Builder):
    """Builds each library separately: if one fails, the others are still built, unless SINPE_EXT_BUILD requires it."""

    def run(self) -> None:
        super().run()
        write_manifest(Path(self.build_lib))
        if self.inplace or self.editable_mode:
            write_manifest(HERE)

    def build_extensions(self) -> None:
        planned = self.extensions
        for one in planned:
            target = next(t for t, name in sources.LIBRARY_NAMES.items() if one.name.endswith(name))
            library = Path(self.get_ext_fullpath(one.name))
            library.unlink(missing_ok=True)  # from an earlier build: it would hide a failure
            if target == "cpu" and "core" in manifest["libraries"]:
                self.link_kernels(one)
            self.extensions = [one]
            try:
                super().build_extensions()
                if not library.exists():  # setuptools only warns if one that is optional fails
                    raise RuntimeError("no library was linked")
                facts = sources.build_facts(target, CSRC) | sources.compiler_facts(target)
                manifest["libraries"][target] = {"file": library.name, **facts}
            except Exception as error:
                give_up(target, f"the build failed: {error} (pip install -v shows the compiler's output)")
        self.extensions = planned

    def link_kernels(self, cpu: Extension) -> None:
        """Links the object files of the kernels that were compiled for _core."""
        kernels = relative_sources("kernels")
        cpu.sources = [name for name in cpu.sources if name not in kernels]
        cpu.extra_objects = self.compiler.object_filenames(kernels, output_dir=self.build_temp)


class RecordBuild(build_py):
    """Writes the manifest if there is nothing to build, because build_ext does not run then."""

    def run(self) -> None:
        super().run()
        if not EXTENSIONS:
            write_manifest(Path(self.build_lib))
            if self.editable_mode:
                write_manifest(HERE)


def write_manifest(root: Path) -> None:
    """Writes _build.json, and removes libraries of earlier builds that it does not list."""
    folder = root / "sinpe_ext"
    folder.mkdir(parents=True, exist_ok=True)
    current = {library["file"] for library in manifest["libraries"].values()}
    for name in sources.LIBRARY_NAMES.values():
        for library in folder.glob(f"{name}.*"):
            if library.name not in current and library.suffix in (".so", ".pyd"):
                library.unlink()
    sources.write_json(folder / sources.MANIFEST, manifest)


setup(
    packages=[*find_packages(str(HERE), include=["sinpe_ext", "sinpe_ext.*"]), "sinpe_ext._csrc"],
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildLibraries, "build_py": RecordBuild},
)
