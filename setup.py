"""Builds the compiled libraries at install time; metadata is in pyproject.toml.

SINPE_EXT_BUILD says what has to succeed: auto (the default) builds what can be built and installs pure Python where
there is no compiler or no torch; cpu fails where the CPU library does; none builds nothing. What was built, or why
not, is written beside the package as _build.json, where sinpe_ext.backend_info() finds it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent


def load_build_module():
    """sinpe_ext/_build.py by its path: the package itself need not be importable while it is being installed."""
    spec = importlib.util.spec_from_file_location("_sinpe_ext_build", HERE / "sinpe_ext" / "_build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_build = load_build_module()
CSRC = HERE / "csrc"
manifest: dict = {"libraries": {}}


def say(text: str) -> None:
    print(f"\nsinpe_ext: {text}\n", file=sys.stderr, flush=True)


def build_mode() -> str:
    mode = os.environ.get("SINPE_EXT_BUILD") or "auto"
    if mode == "cuda":
        raise SystemExit("SINPE_EXT_BUILD: this version has no CUDA kernels; use auto, cpu or none")
    if mode not in ("auto", "cpu", "none"):
        raise SystemExit(f"SINPE_EXT_BUILD: expected auto, cpu, cuda or none, got {mode!r}")
    return mode


def relative_sources(target: str) -> list[str]:
    return [path.relative_to(HERE).as_posix() for path in _build.sources(target, CSRC)]


def torch_extension() -> Extension:
    try:
        import torch
        from torch.utils.cpp_extension import CppExtension
    except ImportError as error:
        raise _build.BuildUnavailable(f"torch cannot be imported at build time: {error}") from error
    if _build.parse_version(str(torch.__version__)) < _build.MIN_TORCH_COMPILED:
        oldest = ".".join(map(str, _build.MIN_TORCH_COMPILED))
        raise _build.BuildUnavailable(f"torch {torch.__version__} at build time is older than {oldest}")
    # py_limited_api keeps libtorch_python out of the link: the library is no Python module and suits every Python.
    return CppExtension(
        "sinpe_ext._C_cpu",
        relative_sources("cpu"),
        include_dirs=_build.include_directories(CSRC),
        extra_compile_args=_build.compile_flags("cpu"),
        extra_link_args=_build.link_flags("cpu"),
        py_limited_api=True,
    )


def core_extension() -> Extension:
    try:
        import pybind11
    except ImportError as error:
        raise _build.BuildUnavailable(f"pybind11 cannot be imported at build time: {error}") from error
    return Extension(
        "sinpe_ext._core",
        relative_sources("core"),
        include_dirs=[*_build.include_directories(CSRC), pybind11.get_include()],
        extra_compile_args=_build.compile_flags("core"),
        extra_link_args=_build.link_flags("core"),
        language="c++",
    )


def planned_extensions(mode: str) -> list[Extension]:
    """What can be tried here. What cannot is recorded with its reason, or fatal if SINPE_EXT_BUILD asks for it."""
    if mode == "none":
        manifest["reason"] = "installed without compiled libraries (SINPE_EXT_BUILD=none)"
        return []
    planned = []
    try:
        if sys.platform == "win32":
            raise _build.BuildUnavailable("no kernels are built on Windows yet")
        manifest["compiler"] = _build.find_compiler()
    except _build.BuildUnavailable as error:
        give_up("cpu", error.reason, mode)
        manifest["core_reason"] = error.reason
        return []
    for target, extension in (("cpu", torch_extension), ("core", core_extension)):
        try:
            planned.append(extension())
        except _build.BuildUnavailable as error:
            give_up(target, error.reason, mode)
    return planned


def give_up(target: str, reason: str, mode: str) -> None:
    name = _build.LIBRARY_NAMES[target]
    if mode == "cpu" and target == "cpu":
        raise SystemExit(f"sinpe_ext: SINPE_EXT_BUILD=cpu, but {name} cannot be built: {reason}")
    manifest["reason" if target == "cpu" else "core_reason"] = f"not built at install time: {reason}"
    fallback = "compiles on first use or runs eager PyTorch" if target == "cpu" else "sinpe_ext.numpy uses NumPy alone"
    say(f"WARNING: {name} is not built, {fallback}. Reason: {reason}")


@contextlib.contextmanager
def kept_output(kept: list[str]) -> Iterator[None]:
    """Pass the compiler's output on, and keep it: torch's ninja writes to file descriptor 1 itself."""
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
EXTENSIONS = planned_extensions(MODE)
COMPILER = manifest.pop("compiler", None)


class BuildLibraries(torch_build_ext() if EXTENSIONS else build_ext):
    """Each library for itself: a failing one does not take the other along, unless SINPE_EXT_BUILD asks for it."""

    def run(self) -> None:
        cxx = COMPILER.command[0] if COMPILER and len(COMPILER.command) == 1 else None
        with _build.build_environment(_build.find_ninja(), cxx):
            super().run()
        write_manifest(Path(self.build_lib) / "sinpe_ext")
        if self.inplace or self.editable_mode:
            write_manifest(HERE / "sinpe_ext")

    def build_extension(self, ext: Extension) -> None:
        target = next(t for t, name in _build.LIBRARY_NAMES.items() if ext.name.endswith(name))
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # of an earlier build; its stale presence would hide a failure
        self.build_temp, shared = os.path.join(self.build_temp, target), self.build_temp
        kept: list[str] = []
        try:
            with kept_output(kept):
                super().build_extension(ext)
        except Exception as error:
            reason = f"the build failed: {error}\n{_build.last_lines(''.join(kept))}"
            give_up(target, reason, MODE)
            ext._sinpe_failed = True
            return
        finally:
            self.build_temp = shared
        facts = _build.build_facts(target, CSRC, COMPILER, torch_facts() if target == "cpu" else {})
        manifest["libraries"][target] = {"file": library.name, **facts}

    def copy_extensions_to_source(self) -> None:
        built, self.extensions = self.extensions, [e for e in self.extensions if not hasattr(e, "_sinpe_failed")]
        super().copy_extensions_to_source()
        self.extensions = built

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if os.path.exists(path)]


class RecordBuild(build_py):
    """Leaves the reason behind where there is nothing to build and build_ext therefore never runs."""

    def run(self) -> None:
        super().run()
        if not EXTENSIONS:
            write_manifest(Path(self.build_lib) / "sinpe_ext")
            if self.editable_mode:
                write_manifest(HERE / "sinpe_ext")


def torch_facts() -> dict[str, str]:
    import torch

    return {"torch": str(torch.__version__), "torch_git": str(torch.version.git_version)}


def write_manifest(folder: Path) -> None:
    """Say what was built, and leave no library of an earlier build beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    current = {library["file"] for library in manifest["libraries"].values()}
    for name in _build.LIBRARY_NAMES.values():
        for library in folder.glob(f"{name}.*"):
            if library.name not in current and library.suffix in (".so", ".pyd"):
                library.unlink()
    _build.write_json(folder / _build.MANIFEST, {"mode": MODE, **manifest})


setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": BuildLibraries, "build_py": RecordBuild})
