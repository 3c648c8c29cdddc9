"""Compiles a library on first use, once per machine and torch version, with torch.utils.cpp_extension.

A build is the folder ``<cache>/<target>-<facts>-<compilers>`` with the library and ``build.json``, its facts. It is
compiled in a folder of its own, which is renamed at the end: a folder of that name is complete, and a killed build
leaves nothing that disturbs a later one, neither torch's ``lock`` file, for which torch waits without end, nor objects
that an orphaned ninja still writes. A file lock with a time-out lets one process build at a time.

Where there is no compiler, or SINPE_EXT_JIT=0 forbids compiling, a build by any compiler serves, as in a container
image that has a compiler only while it is built.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import sources
from .sources import BuildUnavailable

CACHE_TODO = "set SINPE_EXT_CACHE_DIR to a writable folder of your own"


def library(target: str, because: str, may_compile: bool = True, verbose: bool = False) -> tuple[Path, dict[str, Any]]:
    """Finds the library "cpu" or "cuda" in the cache or compiles it; returns its path and the facts of its build.

    `because` says why no library of the installation serves. Raises BuildUnavailable.
    """
    root = sources.source_root()
    if root is None:
        raise BuildUnavailable("the C++ sources are not installed", "reinstall sinpe_ext")
    options = {"extra_ldflags": sources.link_flags(target)}
    with contextlib.suppress(BuildUnavailable):  # raised again where a compiler is needed
        options["extra_ldflags"] += sources.cuda_library_flags() if target == "cuda" else []
    return find_or_compile(
        target,
        sources.build_facts(target, root),
        sources=[str(path) for path in sources.sources(target, root)],
        extra_include_paths=sources.include_directories(root),
        extra_cflags=sources.compile_flags(target),
        extra_cuda_cflags=sources.nvcc_flags(),
        because=because,
        may_compile=may_compile,
        verbose=verbose,
        **options,
    )


def find_or_compile(
    name: str, facts: dict[str, str], because: str, may_compile: bool = True, **options: Any
) -> tuple[Path, dict[str, Any]]:
    """The library that `torch.utils.cpp_extension.load` compiles with these options; `facts` distinguishes it from
    others of the same name. Raises BuildUnavailable."""
    try:
        compilers = sources.compiler_facts(name)
    except BuildUnavailable:
        if may_compile:
            with contextlib.suppress(BuildUnavailable):
                return _find(name, facts, {})
            raise
        compilers = {}
    if not may_compile:
        try:
            return _find(name, facts, compilers)
        except BuildUnavailable as error:
            raise BuildUnavailable(f"switched off (SINPE_EXT_JIT=0), and {error.reason}", error.todo) from None
    folder = cache_directory(create=True) / f"{name}-{_hash(facts)}-{_hash(compilers)}"
    facts, library_name = {**facts, **compilers}, f"sinpe_ext_{name}.so"
    if not _is_whole(folder / library_name):
        with _lock(folder):
            if not _is_whole(folder / library_name):  # another process may have built it while this one waited
                shutil.rmtree(folder, ignore_errors=True)
                _compile(name, facts, folder, because, options)
    return folder / library_name, facts


def _find(name: str, facts: dict[str, str], compilers: dict[str, str]) -> tuple[Path, dict[str, Any]]:
    """A complete build with these facts, by these compilers if there is one, otherwise by any. Compiles nothing, and
    does not create the cache. Raises BuildUnavailable."""
    cache, found = cache_path(), []
    if os.path.isdir(cache):
        for path in sorted(cache_directory(create=False).glob(f"{name}-*/sinpe_ext_{name}.so")):
            built = sources.read_json(path.with_name("build.json"))
            if not path.parent.suffix and _is_whole(path) and _serves(built, facts):  # a suffix: it is being built
                found.append((path, built))
    if not found:
        raise BuildUnavailable(
            f"the cache {cache} has no {name} build of these sources for torch {facts.get('torch')}",
            "run `python -m sinpe_ext build`, or reinstall sinpe_ext where torch and a compiler are",
        )
    wanted = {**facts, **compilers}
    return max(found, key=lambda one: sum(one[1].get(name) == value for name, value in wanted.items()))


def _serves(built: dict[str, Any], facts: dict[str, str]) -> bool:
    """Whether a build has these facts; other CUDA architectures serve if they have code for every visible device."""
    if any(built.get(name) != value for name, value in facts.items() if name != "architectures"):
        return False
    if built.get("architectures") == facts.get("architectures"):
        return True
    devices = sources.device_capabilities()
    return bool(devices) and all(sources.has_code_for(str(built.get("architectures")), one) for one in devices)


def _is_whole(library: Path) -> bool:
    """Whether a library was built and has its size; one that was truncated would end the process."""
    try:
        return library.stat().st_size == sources.read_json(library.with_name("build.json")).get("size")
    except OSError:  # missing, or in a private folder of another user
        return False


def _hash(facts: dict[str, str]) -> str:
    """12 hexadecimal digits that identify these facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


# --------------------------------------------------------------------------------------------------------- the cache


def cache_path() -> Path:
    """The folder of the builds: SINPE_EXT_CACHE_DIR, otherwise sinpe_ext in XDG_CACHE_HOME or ~/.cache.

    Raises BuildUnavailable for a user without a home directory, because a folder shared with others would not be safe
    for code.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore relative paths
        base = os.path.join("~", ".cache")
    path = os.path.expanduser(os.environ.get("SINPE_EXT_CACHE_DIR") or os.path.join(base, "sinpe_ext"))
    if path.startswith("~"):
        raise BuildUnavailable(f"there is no home directory for the cache {path}", CACHE_TODO)
    return Path(path)


def cache_directory(create: bool) -> Path:
    """`cache_path`, checked to be safe to load code from. Raises BuildUnavailable if it is not, or cannot be used."""
    cache = cache_path()
    try:
        if create:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache = cache.resolve(strict=True)
        owner = cache.stat().st_uid
        if owner not in (os.geteuid(), 0):
            raise BuildUnavailable(f"the cache {cache} belongs to another user (uid {owner})", CACHE_TODO)
        for folder in (cache, *cache.parents):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and (folder == cache or not mode & stat.S_ISVTX):
                raise BuildUnavailable(f"the cache {cache} is not safe: every user may write to {folder}", CACHE_TODO)
    except OSError as error:
        raise BuildUnavailable(f"the cache {cache} cannot be used: {error}", CACHE_TODO) from error
    return cache


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Holds the file lock of a build; the operating system releases it if the process dies."""
    from filelock import FileLock, Timeout  # torch requires it

    text = os.environ.get("SINPE_EXT_LOCK_TIMEOUT") or "300"
    try:
        limit = max(0.0, float(text))
    except ValueError:
        raise ValueError(f"SINPE_EXT_LOCK_TIMEOUT: expected a number of seconds, got {text!r}") from None
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=limit)
    except Timeout as error:
        raise BuildUnavailable(
            f"another process has held {folder}.lock for more than {limit:.0f} s",
            "wait for it, or raise SINPE_EXT_LOCK_TIMEOUT (seconds)",
        ) from error
    except (OSError, NotImplementedError) as error:
        raise BuildUnavailable(f"the cache {folder.parent} cannot be used: {error}", CACHE_TODO) from error
    try:
        yield
    finally:
        lock.release()


# ---------------------------------------------------------------------------------------------------------- compiling


def _compile(name: str, facts: dict[str, str], folder: Path, because: str, options: dict[str, Any]) -> None:
    """Compiles a library and moves its folder into place. The lock of `folder` is held. Raises BuildUnavailable."""
    started, outcome, work = time.monotonic(), "failed", None
    why = f"{because}; SINPE_EXT_JIT=0 turns this off"
    _print(f"sinpe_ext: compiling the {name} kernels once into {folder} ({why}) ...")
    try:
        for stale in folder.parent.glob(f"{folder.name}.build-*"):  # of killed builds: the lock is held
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.build-", dir=folder.parent))
        work.chmod(0o755)  # another user may load what root has built, as in a container, if the cache is readable
        with _ninja_on_path():
            from torch.utils import cpp_extension

            cpp_extension.load(f"sinpe_ext_{name}", build_directory=str(work), is_python_module=False, **options)
        for path in work.iterdir():
            if path.suffix == ".so":  # named ..._v1.so if this process has tried before
                path.rename(work / f"sinpe_ext_{name}.so")
            else:
                path.unlink()
        size = (work / f"sinpe_ext_{name}.so").stat().st_size
        sources.write_json(work / "build.json", {**facts, "size": size})
        os.rename(work, folder)
        outcome = "done"
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise BuildUnavailable(f"the cache cannot be written to: {error}", CACHE_TODO) from error
        raise BuildUnavailable(
            f"the build failed: {_last_lines(error)}",
            "read the compiler's last lines above; SINPE_EXT_JIT=0 stops trying",
            failed=True,
        ) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        _print(f" {outcome} in {time.monotonic() - started:.1f} s\n")


@contextlib.contextmanager
def _ninja_on_path() -> Iterator[None]:
    """Appends the folder of this Python to the PATH, where ninja is in a virtual environment that is not activated."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([before, os.path.dirname(os.path.abspath(sys.executable))])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _last_lines(error: BaseException, count: int = 20) -> str:
    """The end of an error's message, with the compiler's output but without the commands that ninja prints."""
    text = str(error.__cause__ if isinstance(error, OSError) and error.__cause__ else error)  # of a failed dlopen
    if isinstance(error, subprocess.CalledProcessError):
        text += f"\n{(error.output or b'').decode(errors='replace')}"
    text = re.sub(r"(?m)^(FAILED: .*\n).*\n", r"\1", text)
    text = re.sub(r"\[\d+/\d+\] .*\n?", "", text)
    return "\n".join(text.strip().splitlines()[-count:])


def _print(text: str) -> None:
    """Writes a progress message to standard error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed or None
        sys.stderr.write(text)
        sys.stderr.flush()
