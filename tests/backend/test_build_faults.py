"""Robustness of a build on first use: kills at any moment, damaged files, full and read-only disks, clocks, removal.

Each test is a process with a time limit; `child(work)` forks a child, in its own session, after importing torch. Most
tests use a finished library instead of running the compiler.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from build_driver import DRIVER, STEPS, mounted, needs_mounts
from build_support import needs_compiler, write_script, write_small_sources
from children import environment, execute, finish, forked, start_forked, until

pytestmark = [needs_compiler, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a driver process, with a library that replaces the compiler's output."""
    sources = write_small_sources(tmp_path_factory.mktemp("small"))
    cache = tmp_path_factory.mktemp("built") / "cache"
    env = environment(SMALL_SOURCES=str(sources), SINPE_EXT_CACHE_DIR=str(cache))
    forked(DRIVER + "cpp_extension.load = compile_really\nright()", env)
    (library,) = cache.glob("*/*.so")
    return {**env, "BUILT": str(library)}


@pytest.fixture
def env(built: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same with an empty cache."""
    (tmp_path / "home").mkdir(mode=0o700)
    return {**built, "SINPE_EXT_CACHE_DIR": str(tmp_path / "home" / "cache")}


# kills


@pytest.mark.builds
@pytest.mark.bad_input(26, "compiled", "eager")
def test_killed_at_any_step(env: dict[str, str]) -> None:
    code = """
def die():
    os.killpg(0, signal.SIGKILL)
for step in STEPS:
    assert child(lambda: (meet(step, die), right())) == -signal.SIGKILL, step
    assert child(right) == 0, step
    if step[:4] != (os, "rename", "after", 2):  # once it is complete no one looks for wreckage
        assert not list(cache.glob("*.build-*")), step
    compiled_since()
    assert child(right) == 0 and compiled_since() == 0, step
    shutil.rmtree(cache)
"""
    forked(DRIVER + STEPS + code, env)


@pytest.mark.builds
def test_killed_at_any_time_with_its_compilers(env: dict[str, str]) -> None:
    """Builds in one cache, killed one after the other; the modification times of the sources are years ahead."""
    code = """
for path in pathlib.Path(os.environ["SMALL_SOURCES"]).rglob("*.*"):
    os.utime(path, (4e9, 4e9))
cpp_extension.load = compile_really
for after in (0.05, 0.2, 0.5, 1.0, 1.8, 3.0):
    process = begin(right)
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    assert ended(process) in (-signal.SIGKILL, 0)
assert child(right) == 0
compiled_since()
assert child(right) == 0 and compiled_since() == 0
"""
    forked(DRIVER + code, env)


@pytest.mark.builds
def test_ctrl_c_ends_a_compiler_that_hangs(env: dict[str, str], tmp_path: Path) -> None:
    """The compiler has no time limit. Other processes wait for SINPE_EXT_LOCK_TIMEOUT and use eager."""
    compiler = write_script(
        tmp_path / "hanging-g++",
        f'for a in "$@"; do [ "$a" = -c ] && {{ echo $$ >>{tmp_path}/pids; exec sleep 1000; }}; done; exec c++ "$@"',
    )
    code = """
cpp_extension.load = compile_really
try:
    right()
except KeyboardInterrupt:
    assert not list(cache.glob("*.build-*"))
    print("interrupted", flush=True)
cpp_extension.load = compile_at_once
right()
"""
    process = start_forked(DRIVER + code, {**env, "CXX": str(compiler)})
    try:
        pids = tmp_path / "pids"
        until(lambda: pids.exists() and pids.read_text(), "the compiler has started", child=process)
        process.end(2)  # like a terminal: SIGINT to the process group
        out, _ = finish(process)
    finally:
        process.end()
        for pid in pids.read_text().split() if pids.exists() else ():  # ninja may exit before its compilers
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
    assert out.split() == ["interrupted"]


@pytest.mark.builds
def test_eight_processes_build_once(env: dict[str, str]) -> None:
    code = """
processes = [begin(right) for _ in range(8)]
assert [ended(process) for process in processes] == [0] * 8
assert compiled_since() == 1
"""
    forked(DRIVER + code, {**env, "PAUSE": "0.5"})


def test_stale_lock_file_does_not_lock(env: dict[str, str]) -> None:
    code = """
assert child(right) == 0
(lock,) = cache.glob("*.lock")
shutil.rmtree(library().parent)
lock.write_text("4711")
os.utime(lock, (0, 0))
assert child(right) == 0
"""
    forked(DRIVER + code, {**env, "SINPE_EXT_LOCK_TIMEOUT": "5"})


# other builds


@pytest.mark.bad_input(26, "compiled", "eager")
def test_build_for_another_torch_is_not_used(env: dict[str, str]) -> None:
    code = """
def other():
    torch.__version__ = "2.99.0+cpu"
def no_compiler():
    raise sources.BuildUnavailable("no C++ compiler was found")
def without_compiler(*changes):
    sources.find_compiler = no_compiler
    for change in changes:
        change()
assert child(right) == 0 and compiled_since() == 1
assert child(lambda: (without_compiler(), right())) == 0
assert child(lambda: (without_compiler(other), eager("no C++ compiler"))) == 0
assert child(lambda: (other(), right())) == 0 and compiled_since() == 1
assert len(list(cache.glob("*/*.so"))) == 2
"""
    forked(DRIVER + code, env)


def test_sources_are_compared_by_content_not_by_time(env: dict[str, str], tmp_path: Path) -> None:
    sources = shutil.copytree(env["SMALL_SOURCES"], tmp_path / "sources")
    code = """
source = pathlib.Path(os.environ["SMALL_SOURCES"]) / "cpu" / "table.cpp"
assert child(right) == 0 and compiled_since() == 1
os.utime(source, (4e9, 4e9))  # in 2096
assert child(right) == 0 and compiled_since() == 0
source.write_text(source.read_text() + "// changed")
os.utime(source, (0, 0))  # and older than the build
assert child(right) == 0 and compiled_since() == 1
"""
    forked(DRIVER + code, {**env, "SMALL_SOURCES": str(sources)})


# disks


def run_mounted(mount: str, code: str, env: dict[str, str]) -> None:
    program = Path(env["SINPE_EXT_CACHE_DIR"]).parent / "program.py"
    program.write_text(code)
    command = mounted(f'{mount}; exec "$0" "$1"')
    execute([*command, sys.executable, program], env=env)


@pytest.mark.bad_input(26, "compiled", "eager")
@needs_mounts
def test_read_only_cache_is_used_and_does_not_raise(env: dict[str, str]) -> None:
    cache = env["SINPE_EXT_CACHE_DIR"]
    forked(DRIVER + "right()", env)
    code = """
compilations = pathlib.Path(os.environ["COMPILATIONS"])
try:
    (cache / "probe").write_text("")
    raise SystemExit("the cache can be written to")
except OSError:
    pass
assert child(right) == 0 and compiled_since() == 0
def other():
    torch.__version__ = "2.99.0+cpu"
    eager("Read-only file system")
assert child(other) == 0
"""
    env["COMPILATIONS"] = f"{Path(cache).parent}/count"
    run_mounted(f"mount --bind {cache} {cache}; mount -o remount,ro,bind {cache}", DRIVER + code, env)


@pytest.mark.builds
@needs_mounts
def test_full_cache_is_eager_with_the_reason(env: dict[str, str]) -> None:
    cache = env["SINPE_EXT_CACHE_DIR"]
    Path(cache).mkdir(mode=0o700)
    code = """
compilations = pathlib.Path(os.environ["COMPILATIONS"])
def full(compile):
    cpp_extension.load = compile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager("No space left on device")
assert child(lambda: full(compile_at_once)) == 0
assert child(lambda: full(compile_really)) == 0
assert not list(cache.glob("*.build-*"))
"""
    env["COMPILATIONS"] = f"{Path(cache).parent}/count"
    run_mounted(f"mount -t tmpfs -o size=16k,mode=700 tmpfs {cache}", DRIVER + code, env)


@pytest.mark.builds
def test_file_size_limit_and_disk_full_after_loading(env: dict[str, str]) -> None:
    """Limit too small for the library, or disk full after it was compiled: eager, and the next process builds."""
    code = """
import errno, resource
def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    eager("File too large")
assert child(limited) == 0
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def filled():
    sources.write_json = full
    eager("the cache cannot be written to", "No space left on device")
compiled_since()
assert child(filled) == 0 and compiled_since() == 1
assert child(right) == 0 and compiled_since() == 1
assert child(right) == 0 and compiled_since() == 0
"""
    forked(DRIVER + code, env)


# removal


@pytest.mark.builds
def test_cache_removed_at_any_step(env: dict[str, str]) -> None:
    """Compiled, or eager with a reason, without exception; the next process builds."""
    code = """
def remove():
    shutil.rmtree(cache, ignore_errors=True)
def either():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = loader.resolve("cpu")
    if backend.backend == "compiled":
        right()
    else:
        assert backend.reason and backend.todo, backend
real_rmtree = shutil.rmtree
for step in STEPS:
    if step[1] != "rmtree":
        shutil.rmtree(cache, ignore_errors=True)
        assert child(lambda: (meet(step, remove), either())) == 0, step
        assert child(right) == 0, step
def removed_in_use():
    right()
    remove()
    right()
assert child(removed_in_use) == 0
"""
    forked(DRIVER + STEPS + code, env)


@pytest.mark.bad_input(26, "compiled", "eager")
def test_package_removed_in_use(env: dict[str, str], tmp_path: Path) -> None:
    """As by pip uninstall: loaded parts keep working, others name what is missing."""
    package = tmp_path / "site" / "sinpe_ext"
    shutil.copytree(_package(), package, ignore=shutil.ignore_patterns("*.so", "_build.json", "__py*"))
    shutil.copytree(env["SMALL_SOURCES"], package / "_csrc")
    code = """
import pathlib, shutil, sys, torch
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
import sinpe_ext
from sinpe_ext.backend import loader, sources, jit
rows = sinpe_ext.table(4, 6) if loader.use_backend("eager") else None
shutil.rmtree(pathlib.Path(sinpe_ext.__file__).parent)
assert torch.equal(sinpe_ext.table(4, 6), rows)
loader.use_backend("auto")
backend = loader.resolve("cpu")
assert backend.backend == "eager" and "the C++ sources are not installed" in backend.reason, backend
try:
    sinpe_ext.plot
    raise SystemExit("no error")
except ImportError as error:
    assert "sinpe_ext.plot" in str(error)
"""
    forked(code, {**env, "PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path)


def _package() -> Path:
    import sinpe_ext

    return Path(sinpe_ext.__file__).parent
