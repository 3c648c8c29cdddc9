"""Compiles a library on first use, once per machine, with torch.utils.cpp_extension.

Targets: "cpu", "cuda" (nvcc compiles the kernels first) and, for tests, "emulated" (see ``compilation.py``).
A finished build is ``<cache>/<key>/sinpe_ext_cpu.so`` with ``done.json`` next to it. Each attempt compiles in its own
directory and moves the library into place at the end. A killed build therefore leaves nothing that disturbs a later
one: neither torch's ``lock`` file, for which torch waits without end, nor objects that an orphaned ninja still writes.
A file lock with a time-out lets one process build at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from . import build_cache, compilation, cuda_compiler
from .compilation import BuildUnavailable

_TITLES = {"cpu": "the CPU kernels", "cuda": "the CUDA kernels", "emulated": "the CUDA kernels as plain C++"}
_SCRIPT = "cxx"
_QUIET_WAIT = 20.0  # seconds to wait for the build of another process before a message says so


def _torch_facts() -> dict[str, str]:
    """What a library depends on of torch."""
    import torch

    return {
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version),
        "cuda": str(torch.version.cuda),
    }


@dataclass(frozen=True)
class _Tools:
    """The compilers of a library, and for CUDA the architectures that it is compiled for."""

    compiler: compilation.Compiler
    nvcc: cuda_compiler.Nvcc | None
    architectures: tuple[str, ...]


def _tools(target: str) -> _Tools:
    """The compilers that were found for a target. Raises BuildUnavailable."""
    compiler = compilation.find_compiler()
    if target != "cuda":
        return _Tools(compiler, None, ())
    import torch

    missing = cuda_compiler.no_cuda_torch(str(torch.__version__), torch.version.cuda, torch.version.hip)
    if missing:
        raise missing
    nvcc = cuda_compiler.find_nvcc(str(torch.version.cuda))
    return _Tools(compiler, nvcc, cuda_compiler.cuda_architectures(nvcc, cuda_compiler.device_capabilities()))


def _facts(target: str, root: Path, tools: _Tools | None) -> dict[str, str]:
    """The facts that identify a build; without `tools`, those of its compilers are empty."""
    try:
        facts = compilation.build_facts(target, root, tools.compiler if tools else None, _torch_facts())
    except OSError as error:
        raise BuildUnavailable(f"the C++ sources cannot be read: {error}", "reinstall sinpe_ext") from error
    if target != "cuda":
        return facts
    devices = cuda_compiler.device_capabilities()
    architectures = tools.architectures if tools else cuda_compiler.cuda_architectures(None, devices)
    return {**facts, **cuda_compiler.cuda_facts(tools.nvcc if tools else None, architectures)}


def library(target: str, load: Callable[[Path], None], verbose: bool = False) -> tuple[Path, dict[str, str]]:
    """Loads a library from the cache, or compiles it; returns its path and its build facts.

    ``load`` loads a file and raises OSError or BuildUnavailable if that fails. Raises BuildUnavailable.
    """
    root = compilation.source_root()
    if root is None or not compilation.sources(target, root):
        raise BuildUnavailable("the C++ sources are not installed", "reinstall sinpe_ext")
    try:
        tools = _tools(target)
    except BuildUnavailable:
        facts = _facts(target, root, None)
        cache = build_cache.checked(create=False)
        path = build_cache.finished_without_compiler(cache, facts) if cache else None
        if path is None:
            raise
        _load_cached(path, load)
        return path, facts
    facts = _facts(target, root, tools)
    cache = build_cache.checked(create=True)
    assert cache is not None
    folder = cache / compilation.build_key(facts)
    path = build_cache.finished(folder)
    if path:
        with contextlib.suppress(OSError, BuildUnavailable):
            load(path)
            return path, facts
        try:
            path.unlink(missing_ok=True)  # complete, but it does not load: build it again
        except OSError as error:
            raise BuildUnavailable(
                f"{path} does not load and cannot be replaced: {error}", build_cache.CACHE_TODO
            ) from error
    with _build_lock(cache, folder):
        path = build_cache.finished(folder)  # another process may have built it while this one waited
        if path:
            _load_cached(path, load)
        else:
            path = _compile(target, root, folder, tools, facts, load, verbose)
    return path, facts


def _load_cached(path: Path, load: Callable[[Path], None]) -> None:
    """Loads a library of the cache. Raises BuildUnavailable."""
    try:
        load(path)
    except OSError as error:
        raise BuildUnavailable(f"{path} does not load: {error}", f"delete {path.parent} and try again") from error


@contextlib.contextmanager
def _build_lock(cache: Path, folder: Path) -> Iterator[None]:
    """Holds the file lock of a build directory; the operating system releases it if the process dies."""
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise BuildUnavailable("filelock, which torch requires, is not installed", "pip install filelock") from error
    limit = _lock_timeout()
    lock = FileLock(str(folder) + ".lock")
    try:
        try:
            lock.acquire(timeout=min(limit, _QUIET_WAIT))
        except Timeout:
            if limit <= _QUIET_WAIT:
                raise
            _say(f"sinpe_ext: waiting for another process to compile in {folder} (up to {limit:.0f} s)\n")
            lock.acquire(timeout=limit - _QUIET_WAIT)
    except Timeout as error:
        raise BuildUnavailable(
            f"another process has held {folder}.lock for more than {limit:.0f} s",
            "wait for it, or raise SINPE_EXT_LOCK_TIMEOUT (seconds)",
        ) from error
    except (OSError, NotImplementedError) as error:
        raise BuildUnavailable(
            f"the cache {cache} cannot be locked: {error}", "set SINPE_EXT_CACHE_DIR to a folder on a local disk"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _lock_timeout() -> float:
    """The value of SINPE_EXT_LOCK_TIMEOUT in seconds. Raises ValueError."""
    text = os.environ.get("SINPE_EXT_LOCK_TIMEOUT") or "300"
    try:
        return max(0.0, float(text))
    except ValueError:
        raise ValueError(f"SINPE_EXT_LOCK_TIMEOUT: expected a number of seconds, got {text!r}") from None


def _compile(
    target: str,
    root: Path,
    folder: Path,
    tools: _Tools,
    facts: dict[str, str],
    load: Callable[[Path], None],
    verbose: bool,
) -> Path:
    """Compiles and loads a library, moves it into place and writes the marker. The lock of ``folder`` is held."""
    ninja = compilation.find_ninja()
    if ninja is None:
        raise BuildUnavailable("ninja, which torch compiles with, was not found", "pip install ninja")
    try:
        from torch.utils import cpp_extension
    except ImportError as error:
        raise BuildUnavailable(f"torch.utils.cpp_extension: {error}", "pip install setuptools") from error
    except OSError as error:  # setuptools reads the current directory, which may have been deleted
        raise BuildUnavailable(f"torch.utils.cpp_extension: {error}", "change to a folder that exists") from error

    name = f"sinpe_ext_{target}"
    work = folder / f"build-{os.getpid()}-{time.monotonic_ns()}"
    done = folder / f"{name}.so"
    started = time.monotonic()
    _say(f"sinpe_ext: compiling {_TITLES[target]} once into {folder} (SINPE_EXT_JIT=0 turns this off) ...")
    outcome = "failed"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / build_cache.DONE).unlink(missing_ok=True)
        for stale in folder.glob("build-*"):  # left by killed builds: the lock is held, so no process uses them
            shutil.rmtree(stale, ignore_errors=True)
        for scratch in folder.glob(f"{build_cache.DONE}.*"):
            scratch.unlink(missing_ok=True)
        work.mkdir(mode=0o700)
        with compilation.build_environment(ninja, _single_command(tools.compiler, work)):
            link_flags = compilation.link_flags(target)
            if tools.nvcc:
                kernels = cuda_compiler.compile_kernels(tools.nvcc, root, work, tools.architectures, tools.compiler)
                # Relative to where ninja runs: torch does not quote these paths either (_linked_torch_libraries).
                flags = cuda_compiler.link_flags(tools.nvcc, [path.relative_to(work) for path in kernels])
                link_flags += map(shlex.quote, flags)
            with _linked_torch_libraries(cpp_extension, work), _escaped_for_ninja(cpp_extension), _open_streams():
                cpp_extension.load(
                    name=name,
                    sources=_forwarding_sources(target, root, work),
                    extra_cflags=compilation.compile_flags(target),
                    extra_ldflags=link_flags,
                    extra_include_paths=compilation.include_directories(root),
                    build_directory=str(work),
                    verbose=verbose,
                    is_python_module=False,
                )
        (built,) = work.glob(f"{name}*.so")
        load(built)
        try:
            os.replace(built, done)
            record = {"file": done.name, "sha256": compilation.file_hash(done), "facts": facts}
            compilation.write_json(folder / build_cache.DONE, record)
            outcome = "done"
        except OSError as error:  # the library is loaded in this process, but not in the cache
            outcome = f"done, for this process alone ({error}),"
    except BuildUnavailable:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        _say(f" {outcome} in {time.monotonic() - started:.1f} s\n")
    return done


@contextlib.contextmanager
def _linked_torch_libraries(cpp_extension: ModuleType, work: Path) -> Iterator[None]:
    """Links torch's library folder into `work` if its path needs quoting in a shell.

    torch (2.11 to 2.15) does not quote that path in the command of the linker.
    """
    libraries = getattr(cpp_extension, "TORCH_LIB_PATH", "")
    if shlex.quote(libraries) == libraries:
        yield
        return
    link = work / "torch_lib"
    link.symlink_to(libraries, target_is_directory=True)
    cpp_extension.TORCH_LIB_PATH = link.name  # type: ignore[attr-defined]
    try:
        yield
    finally:
        cpp_extension.TORCH_LIB_PATH = libraries  # type: ignore[attr-defined]


@contextlib.contextmanager
def _escaped_for_ninja(cpp_extension: ModuleType) -> Iterator[None]:
    """Escapes `$` and `:` in the ninja file; torch (2.11 to 2.15) escapes only spaces, and 2.11 does not escape CXX.

    While torch writes the file, BuildUnavailable is raised for paths that a ninja file cannot contain.
    """
    write = getattr(cpp_extension, "_write_ninja_file", None)
    if write is None:
        yield
        return

    def write_escaped(*arguments: Any, **named: Any) -> Any:
        for name in ("cflags", "ldflags"):
            if named.get(name):
                named[name] = [_escaped(text) for text in named[name]]
        if named.get("sources"):
            named["sources"] = [_escaped(text, "|").replace(":", "$:") for text in named["sources"]]
        plain = shlex.quote(os.environ["CXX"]) == os.environ["CXX"]
        with compilation.build_environment(None, None if plain else f"./{_SCRIPT}"):  # from where ninja runs
            return write(*arguments, **named)

    cpp_extension._write_ninja_file = write_escaped  # type: ignore[attr-defined]
    try:
        yield
    finally:
        cpp_extension._write_ninja_file = write  # type: ignore[attr-defined]


def _escaped(text: str, also_impossible: str = "") -> str:
    """Escapes a text for a ninja file. Raises BuildUnavailable for characters that it cannot contain: line breaks, text
    that is not UTF-8, and those of `also_impossible`."""
    if re.search(rf"[\r\n\ud800-\udfff{also_impossible}]", text):
        raise BuildUnavailable(f"a ninja file cannot hold the path in {text!r}", build_cache.CACHE_TODO)
    return text.replace("$", "$$")


@contextlib.contextmanager
def _open_streams() -> Iterator[None]:
    """Replaces sys.stdout and sys.stderr if they are None, as in a process started without them: torch flushes them."""
    with contextlib.ExitStack() as stack:
        if sys.stdout is None:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        if sys.stderr is None:
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(os.devnull, "w"))))
        yield


def _single_command(compiler: compilation.Compiler, work: Path) -> str:
    """The compiler as one file name, as torch requires of CXX. A command of several words ("ccache g++"), or one that
    needs quoting, is wrapped in a script in `work`."""
    if [shlex.join(compiler.command)] == [*compiler.command]:
        return compiler.command[0]
    script = work / _SCRIPT
    script.write_bytes(os.fsencode(f'#!/bin/sh\nexec {shlex.join(compiler.command)} "$@"\n'))
    script.chmod(0o700)
    return str(script)


def _forwarding_sources(target: str, root: Path, work: Path) -> list[str]:
    """Writes a source with a unique file name for each source of a target, which includes it, and returns their paths.

    torch names object files by the file name only, so sources of the same name in two folders would collide. A .cu
    file of the target "cuda" is left out, as nvcc compiles it; of "emulated" it is compiled as C++.
    """
    forwarded = []
    for source in compilation.sources(target, root):
        if source.suffix == ".cu" and target == "cuda":
            continue
        unit = work / f"{source.parent.name}_{source.name.replace('.cu', '_cu.cpp')}"
        unit.write_text(f'#include "{source.relative_to(root).as_posix()}"\n', encoding="utf-8")  # by -I of root
        forwarded.append(str(unit))
    return forwarded


def _failure(error: BaseException) -> BuildUnavailable:
    """The BuildUnavailable of an exception during a build. It counts as a failed build, which warns, unless the reason
    is a directory that cannot be written to."""
    if isinstance(error, OSError) and error.errno is not None:
        return BuildUnavailable(f"the cache cannot be written to: {error}", build_cache.CACHE_TODO)
    output = error.output if isinstance(error, subprocess.CalledProcessError) else None
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")
    if isinstance(error, OSError) and error.__cause__:  # a library that does not load: the reason is in the cause
        text = str(error.__cause__)
    said = str(error)
    tail = compilation.last_lines(_without_commands(said if text in said else f"{said}\n{text}"))
    return BuildUnavailable(
        f"the build failed: {tail}", "read the compiler's last lines above; SINPE_EXT_JIT=0 stops trying", failed=True
    )


def _without_commands(printed: str) -> str:
    """The output of the compilers from the output of ninja, without the commands that ninja prints."""
    kept, after_failed = [], False
    for line in printed.splitlines():
        shown = re.sub(r"\[\d+/\d+\] .*", "", line)
        if (shown or not line) and not after_failed:
            kept.append(shown)
        after_failed = line.startswith("FAILED: ")
    return "\n".join(kept)


def _say(text: str) -> None:
    """Writes a progress message to standard error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed or None
        sys.stderr.write(text)
        sys.stderr.flush()
