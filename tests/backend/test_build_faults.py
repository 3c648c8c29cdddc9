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
from build_support import PREAMBLE, needs_compiler, write_script, write_small_sources
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
    if step[1] != "write_json":  # once it is marked no one looks for wreckage
        assert not list(cache.glob("*/build-*")) + list(cache.glob("*/done.json.*")), step
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
    assert not list(cache.glob("*/build-*"))
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


# damage


@pytest.mark.bad_input(26, "compiled", "eager")
def test_damaged_or_foreign_library_is_rebuilt(env: dict[str, str]) -> None:
    """Detected by its hash; with a matching hash, because it does not load or contains no kernels."""
    code = """
import _ctypes
assert child(right) == 0
good = library().read_bytes()
flipped = bytearray(good)
flipped[len(good) // 2] ^= 1
other_machine = bytearray(good)
other_machine[18:20] = (183 if good[18] != 183 else 62).to_bytes(2, "little")  # e_machine: AArch64, or x86-64
damaged = {
    "empty": (b"", False), "one bit": (bytes(flipped), False), "half": (good[: len(good) // 2], False),
    "another machine's": (bytes(other_machine), True), "text": (b"not a library", True),
    "no kernels": (pathlib.Path(_ctypes.__file__).read_bytes(), True),
}
compiled_since()
for name, (content, sealed) in damaged.items():
    library().write_bytes(content)
    if sealed:
        seal(library())
    assert child(right) == 0 and compiled_since() == 1, name
    assert library().read_bytes() == good, name
for text in ("", "{", "[]", '{"file": "gone.so", "sha256": ""}'):
    (library().parent / "done.json").write_text(text)
    assert child(right) == 0 and compiled_since() == 1, text
"""
    forked(DRIVER + code, env)


@pytest.mark.bad_input(26, "compiled", "eager")
def test_build_for_another_torch_is_not_used(env: dict[str, str]) -> None:
    code = """
def other():
    torch.__version__ = "2.99.0+cpu"
def no_compiler(environ=None):
    raise compilation.BuildUnavailable("no C++ compiler was found")
def without_compiler(*changes):
    compilation.find_compiler = no_compiler
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


# paths

# Folder names with characters that are special to a shell or to ninja.
ODD_NAMES = """
ODD = [*"$'#&;%()*?[~!<>=,@:+^{}`é日" + '"\\\\', "a b", " a", "a ", "a\\tb", "-x"]
ODD += ["$$", "$x", "${HOME}", "$(id)", "$:", "a$ b"]
"""


def odd_compiler(path: Path) -> Path:
    """A compiler that copies the finished library, and rejects paths that do not exist."""
    body = """
last=
for word in "$@"; do
  case "$last" in -o) out=$word;; -MF) deps=$word;; -isystem) [ -d "$word" ] || exit 3;; esac
  case "$word" in -I*) [ -d "${word#-I}" ] || exit 4;; *.cpp) [ -f "$word" ] || exit 5;; esac
  last=$word
done
case " $* " in
  *" --version "*|*" -v "*|*" -dumpfullversion "*) echo "g++ 12.2.0"; exit 0;;
  *" -c "*) : >"$out"; echo "$out:" >"$deps";;
  *) cp "$BUILT" "$out";;
esac"""
    return write_script(path, body)


@pytest.mark.builds
@pytest.mark.bad_input(26, "compiled", "eager")
def test_folders_with_any_characters(env: dict[str, str], tmp_path: Path) -> None:
    """Of the cache, the sources and the compiler. Names that ninja cannot represent: eager, with the reason."""
    compiler = odd_compiler(tmp_path / "odd-g++")
    code = """
cpp_extension.load = compile_really
def in_folders(name, check):
    top = cache.parent / "odd" / name
    top.mkdir(parents=True)
    shutil.copytree(os.environ["SMALL_SOURCES"], top / "csrc")
    shutil.copy(os.environ["COMPILER"], top / "g++")
    os.environ.update(SMALL_SOURCES=str(top / "csrc"), CXX=str(top / "g++"), SINPE_EXT_CACHE_DIR=str(top / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check()
failed = [name for name in ODD if child(lambda: in_folders(name, right))]
assert not failed, failed
for name in ("a\\nb", "a\\rb", "a|b", "\\udcff"):
    assert child(lambda: in_folders(name, lambda: eager("a ninja file cannot hold the path"))) == 0, name
"""
    forked(DRIVER + ODD_NAMES + code, {**env, "COMPILER": str(compiler)})


@pytest.mark.builds
def test_no_standard_streams_and_no_current_folder(env: dict[str, str], tmp_path: Path) -> None:
    code = """
cpp_extension.load = compile_really
def without_streams():
    streams, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), None, None
    right()
    assert (sys.stdout, sys.stderr) == (None, None)
    sys.stdout, sys.stderr = streams
def without_folder():
    folder = cache.parent / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
def in_relative_cache():
    os.environ["SINPE_EXT_CACHE_DIR"] = "relative"
    eager("the cache relative cannot be used: ")
assert child(without_streams) == 0 and compiled_since() == 1
shutil.rmtree(cache)
assert child(lambda: (without_folder(), right())) == 0 and compiled_since() == 1
assert child(lambda: (without_folder(), in_relative_cache())) == 0
"""
    env["CXX"] = str(odd_compiler(tmp_path / "odd-g++"))
    forked(DRIVER + code, env)
    shutil.rmtree(env["SINPE_EXT_CACHE_DIR"])
    code = """
import torch
folder = pathlib.Path(os.environ["SINPE_EXT_CACHE_DIR"]).parent / "gone"
folder.mkdir()
os.chdir(folder)
folder.rmdir()
backend = loader.resolve("cpu")  # which imports setuptools
assert backend.backend == "compiled" or backend.todo == "change to a folder that exists", backend
"""
    forked(PREAMBLE + code, env)


@pytest.mark.builds
def test_real_build_in_a_folder_with_any_characters(env: dict[str, str], tmp_path: Path) -> None:
    code = """
cpp_extension.load = compile_really
odd = "".join(name for name in ODD if len(name) == 1) + "a b"
top = cache.parent / odd
top.mkdir()
link = top / "torch"
link.symlink_to(cpp_extension.TORCH_LIB_PATH)
cpp_extension.TORCH_LIB_PATH = str(link)
shutil.copytree(os.environ["SMALL_SOURCES"], top / "csrc")
compiler = top / "g++"
compiler.write_text('#!/bin/sh\\nexec c++ "$@"\\n')
compiler.chmod(0o700)
os.environ.update(SMALL_SOURCES=str(top / "csrc"), CXX=str(compiler), SINPE_EXT_CACHE_DIR=str(top / "cache"))
assert child(right) == 0
assert (top / "cache").is_dir()
"""
    forked(DRIVER + ODD_NAMES + code, env)


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
def damaged():
    real = loader._load_library
    def load(path, device="cpu"):
        raise OSError("it does not load")
    loader._load_library = load
    eager("cannot be replaced", "Read-only file system")
assert child(damaged) == 0
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
assert not list(cache.glob("*/build-*"))
"""
    env["COMPILATIONS"] = f"{Path(cache).parent}/count"
    run_mounted(f"mount -t tmpfs -o size=16k,mode=700 tmpfs {cache}", DRIVER + code, env)


@pytest.mark.builds
def test_file_size_limit_and_disk_full_after_loading(env: dict[str, str]) -> None:
    """Limit too small for the library: eager. Disk full after the library was loaded: this process uses it."""
    code = """
import errno, resource
def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    eager("File too large")
assert child(limited) == 0
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def filled():
    compilation.write_json = full
    right()
compiled_since()
assert child(filled) == 0 and compiled_since() == 1
assert child(right) == 0 and compiled_since() == 1
assert child(right) == 0 and compiled_since() == 0
"""
    _, err = forked(DRIVER + code, env)
    assert "done, for this process alone" in err and "No space left on device" in err


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
from sinpe_ext.backend import loader, compilation, jit, build_cache
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
