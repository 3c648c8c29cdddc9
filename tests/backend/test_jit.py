"""Compilation on first use: the cache folder, one build for all processes, and every fault during a build.

Most tests use a finished library in place of the compiler. `child(work)` forks a child, in a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, needs_nvcc, write_script, write_small_sources
from children import environment, execute, finish, forked, run, start_forked, until

import sinpe_ext
from sinpe_ext.backend import jit, sources
from sinpe_ext.backend.sources import BuildUnavailable

# the cache folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/h/.cache/sinpe_ext"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/sinpe_ext"),
        ({"XDG_CACHE_HOME": "x"}, "/h/.cache/sinpe_ext"),
        ({"XDG_CACHE_HOME": "/x", "SINPE_EXT_CACHE_DIR": "~/c"}, "/h/c"),
        ({"SINPE_EXT_CACHE_DIR": "/c"}, "/c"),
    ],
)
def test_location(variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SINPE_EXT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **variables}.items():
        monkeypatch.setenv(name, value)
    assert jit.cache_path() == Path(expected)


def test_folder_is_private(folder: Path, tmp_path: Path) -> None:
    """Created for the user alone, on demand; a symbolic link is checked by its target."""
    before = os.umask(0)
    try:
        with pytest.raises(BuildUnavailable, match="cannot be used"):
            jit.cache_directory(create=False)
        assert not folder.exists()
        assert jit.cache_directory(create=True) == folder and folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    folder.rename(tmp_path / "target")
    folder.symlink_to(tmp_path / "target")
    assert jit.cache_directory(create=True) == tmp_path / "target"


@pytest.mark.parametrize(
    ("of_parent", "of_folder", "refused"),
    [
        (0o755, 0o755, ""),
        (0o755, 0o777, "cache"),
        (0o755, 0o1777, "cache"),
        (0o777, 0o755, "shared"),
        (0o1777, 0o755, ""),
    ],
)
def test_folder_that_others_may_write_or_replace(of_parent, of_folder, refused, tmp_path, monkeypatch) -> None:
    """Without the sticky bit, any user may replace the folder."""
    cache = tmp_path / "shared" / "cache"
    cache.mkdir(parents=True)
    cache.chmod(of_folder)
    cache.parent.chmod(of_parent)
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(cache))
    expected = pytest.raises(BuildUnavailable, match=f"every user may write to .*/{refused}$")
    with expected if refused else contextlib.nullcontext():
        assert jit.cache_directory(create=False) == cache


def test_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root and the user themselves are trusted."""
    folder.mkdir()
    if folder.stat().st_uid == 0:
        os.chown(folder, 4711, -1)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(BuildUnavailable, match="belongs to another user"):
        jit.cache_directory(create=True)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid)
    assert jit.cache_directory(create=True) == folder


# builds of small sources

DRIVER = (
    PREAMBLE
    + """
import contextlib, errno, json, shutil, signal, torch
from torch.utils import cpp_extension
from sinpe_ext import functional
compile_really = cpp_extension.load
def compile_at_once(name, build_directory, **options):
    shutil.copyfile(os.environ["BUILT"], f"{build_directory}/{name}.so")
cpp_extension.load = compile_at_once
cache = pathlib.Path(os.environ["SINPE_EXT_CACHE_DIR"])
compilations = cache.parent / "compilations"
printed = jit._print
def counted(text):
    if "compiling" in text:
        with contextlib.suppress(OSError), open(compilations, "a") as file:
            file.write("x")
    printed(text)
jit._print = counted
def compiled_since():
    count = compilations.stat().st_size if compilations.exists() else 0
    compilations.unlink(missing_ok=True)
    return count
def child(work):
    sys.stdout.flush()
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.setsid()
    try:
        work()
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
def right():
    before = dict(os.environ)
    backend = loader.resolve("cpu")
    assert backend.backend == "compiled" and backend.how == "jit" and dict(os.environ) == before, backend
    assert torch.ops.sinpe_ext.cpu_isa.default() == "small-7"
def eager(*reasons):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = loader.resolve("cpu")
    assert backend.backend == "eager" and all(text in backend.reason for text in reasons), backend
def library():
    (path,) = cache.glob("*/*.so")
    return path
"""
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment after two processes have compiled at the same time, with the library as BUILT."""
    small = write_small_sources(tmp_path_factory.mktemp("small"))
    cache = tmp_path_factory.mktemp("cache with a space") / "sinpe"
    env = environment(SMALL_SOURCES=str(small), SINPE_EXT_CACHE_DIR=str(cache))
    use = DRIVER + "cpp_extension.load = compile_really\nright()\nprint(loader.resolve('cpu').library)"
    outputs = [finish(process) for process in [start_forked(use, env) for _ in range(2)]]
    (library,) = cache.glob("*/*.so")
    assert [out.splitlines()[-1] for out, _ in outputs] == [str(library)] * 2
    (line,) = [line for _, err in outputs for line in err.splitlines() if line.startswith("sinpe_ext")]
    assert "compiling the cpu kernels once into" in line and "SINPE_EXT_JIT=0" in line and " done in " in line
    assert cache.stat().st_mode & 0o777 == 0o700 and library.parent.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in library.parent.iterdir()) == ["build.json", "sinpe_ext_cpu.so"]
    return {**env, "BUILT": str(library)}


@pytest.fixture
def env(built: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same with an empty cache."""
    (tmp_path / "home").mkdir(mode=0o700)
    return {**built, "SINPE_EXT_CACHE_DIR": str(tmp_path / "home" / "cache")}


@needs_compiler
@pytest.mark.bad_input(26, "compiled", "eager")
def test_a_build_is_used_if_nothing_has_changed(env: dict[str, str], tmp_path: Path) -> None:
    """Also without a compiler. Sources are compared by content, not by time; a truncated library is built again."""
    small = shutil.copytree(env["SMALL_SOURCES"], tmp_path / "sources")
    code = """
source = pathlib.Path(os.environ["SMALL_SOURCES"]) / "cpu" / "table.cpp"
def other_torch():
    torch.__version__ = "2.99.0+cpu"
def no_compiler():
    raise sources.BuildUnavailable("no C++ compiler was found")
def without_compiler(*changes):
    sources.find_compiler = no_compiler
    for change in changes:
        change()
def steps(*works):
    return [(child(work), compiled_since()) for work in works]
assert steps(right, right, lambda: (without_compiler(), right())) == [(0, 1), (0, 0), (0, 0)]
assert steps(lambda: (without_compiler(other_torch), eager("no C++ compiler"))) == [(0, 0)]
kept = library().read_bytes()
library().write_bytes(kept[:-1])
assert steps(lambda: (without_compiler(), eager("no C++ compiler")), right, right) == [(0, 0), (0, 1), (0, 0)]
library().write_bytes(b"x" * len(kept))
assert steps(lambda: eager("does not load: ")) == [(0, 0)]
shutil.rmtree(library().parent)
(lock,) = cache.glob("*.lock")
lock.write_text("4711")  # a stale lock file does not lock
os.utime(lock, (0, 0))
assert steps(right, lambda: (other_torch(), right())) == [(0, 1), (0, 1)]
assert len(list(cache.glob("*/*.so"))) == 2
os.utime(source, (4e9, 4e9))  # in 2096
assert steps(right) == [(0, 0)]
source.write_text(source.read_text() + "// changed")
os.utime(source, (0, 0))  # and older than the build
assert steps(right) == [(0, 1)]
def other_compiler():
    sources.find_compiler = lambda: ("/usr/bin/other", "other 1.0")
assert steps(lambda: (other_compiler(), right())) == [(0, 1)]
"""
    forked(DRIVER + code, {**env, "SMALL_SOURCES": str(small), "SINPE_EXT_LOCK_TIMEOUT": "60"})


@needs_compiler
@pytest.mark.bad_input(26, "compiled", "eager")
def test_jit_0_loads_a_finished_build(built: dict[str, str], tmp_path: Path) -> None:
    """That of this compiler before that of another, and any if there is no compiler; nothing of other sources or
    another torch, and nothing that is incomplete. Nothing is compiled or written."""
    cache = Path(shutil.copytree(Path(built["BUILT"]).parent.parent, tmp_path / "cache", copy_function=shutil.copy))
    small = shutil.copytree(built["SMALL_SOURCES"], tmp_path / "sources")
    code = """
source = pathlib.Path(os.environ["SMALL_SOURCES"]) / "cpu" / "table.cpp"
own = library()
others = [cache / f"cpu-{letter}" for letter in "az"]  # before and after it in the order of names
for other in others:
    shutil.copytree(own.parent, other)
    facts = json.loads((other / "build.json").read_text())
    (other / "build.json").write_text(json.dumps(facts | {"compiler": "/usr/bin/other"}))
shutil.copytree(own.parent, cache / f"{own.parent.name}.build-1")  # is being built
def no_compiler():
    raise sources.BuildUnavailable("no C++ compiler was found")
def uses(*folders):
    right()
    assert pathlib.Path(loader.resolve("cpu").library).parent in folders, loader.resolve("cpu")
def without_compiler():
    sources.find_compiler = no_compiler
    uses(*others)
def other_torch():
    torch.__version__ = "2.99.0+cpu"
    eager("SINPE_EXT_JIT=0", "for torch 2.99.0+cpu")
def files():
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
before = files()
assert child(lambda: uses(own.parent)) == 0 and child(other_torch) == 0
own.write_bytes(own.read_bytes()[:-1])
before[own] = own.stat().st_mtime_ns
assert child(lambda: uses(*others)) == 0 and child(without_compiler) == 0
source.write_text(source.read_text() + "// changed")
assert child(lambda: eager("SINPE_EXT_JIT=0", "no cpu build of these sources")) == 0
assert files() == before and compiled_since() == 0
"""
    env = {**built, "SINPE_EXT_CACHE_DIR": str(cache), "SMALL_SOURCES": str(small), "SINPE_EXT_JIT": "0"}
    forked(DRIVER + code, env)


def test_jit_0_with_other_architectures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA build serves if it has code for every visible device, or is of the architectures that are asked for."""
    for architectures in ("8.0", "9.0", "8.0 9.0"):
        (build := folder / f"cuda-{architectures.replace(' ', '-').replace('.', '')}").mkdir(parents=True)
        (build / "sinpe_ext_cuda.so").write_text("library")
        facts = {"torch": "2.13.0", "architectures": architectures, "size": len("library")}
        (build / "build.json").write_text(json.dumps(facts))

    def found(wanted: str, *devices: tuple[int, int], torch: str = "2.13.0") -> str:
        monkeypatch.setattr(sources, "device_capabilities", lambda: list(devices))
        facts = {"torch": torch, "architectures": wanted}
        path, built = jit.find_or_compile("cuda", facts, "", may_compile=False)
        assert path.parent.name == f"cuda-{built['architectures'].replace(' ', '-').replace('.', '')}"
        return built["architectures"]

    assert found("8.0") == "8.0" and found("9.0", (9, 0)) == "9.0"
    assert found("8.0 9.0", (8, 0), (9, 0)) == found("8.6 9.0", (8, 6), (9, 0)) == "8.0 9.0"
    for wanted, devices, torch in (("7.5", [(7, 5)], "2.13.0"), ("7.5", [], "2.13.0"), ("8.0", [(8, 0)], "2.14.0")):
        with pytest.raises(BuildUnavailable, match="no cuda build"):
            found(wanted, *devices, torch=torch)


@needs_compiler
def test_ninja_is_found_next_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a virtual environment that is not activated; the PATH is restored."""
    ninja = write_script(tmp_path / "ninja", "exit 0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ZeroDivisionError), jit._ninja_on_path():
        assert shutil.which("ninja") == str(ninja)
        raise ZeroDivisionError
    assert os.environ["PATH"] == "/nonexistent"


@needs_compiler
@pytest.mark.bad_input(26, "eager")
def test_lock_held_too_long_gives_eager_with_the_reason(env: dict[str, str]) -> None:
    code = """
from filelock import FileLock
assert child(right) == 0
(lock,) = cache.glob("*.lock")
shutil.rmtree(library().parent)
os.environ["SINPE_EXT_LOCK_TIMEOUT"] = "0.2"
with FileLock(str(lock)):
    assert child(lambda: eager("another process has held", "for more than 0 s")) == 0
os.environ["SINPE_EXT_LOCK_TIMEOUT"] = "soon"
right()
"""
    _, err = forked(DRIVER + code, env, status=1)
    assert err.strip().endswith("ValueError: SINPE_EXT_LOCK_TIMEOUT: expected a number of seconds, got 'soon'")


@needs_compiler
def test_build_errors(env: dict[str, str], tmp_path: Path) -> None:
    """The reason has the error, not the command, and names an undefined symbol; a full disk is not a failed build."""
    (tmp_path / "sources" / "cpu").mkdir(parents=True)
    source, library = tmp_path / "sources" / "cpu" / "table.cpp", tmp_path / "undefined.so"
    source.write_text("int missing_name(); int broken = missing_name();")
    execute([sources.find_compiler()[0], "-shared", "-fPIC", source, "-o", library])
    source.write_text("int broken = missing_name;")
    code = """
import ctypes
def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
def filled():
    sources.write_json = full
    warnings.simplefilter("error")
    backend = loader.resolve("cpu")
    assert "the cache cannot be written to" in backend.reason and "SINPE_EXT_CACHE_DIR" in backend.todo, backend
    eager("No space left on device")
def limited():
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    eager("File too large")
assert [child(filled), child(limited), child(right)] == [0, 0, 0]
shutil.rmtree(library().parent)
cpp_extension.load = compile_really
def reason():
    eager("the build failed", "missing_name", "FAILED: ")
    assert not {"-fPIC", "-std="} & set(loader.resolve("cpu").reason.split()), loader.resolve("cpu")
assert child(reason) == 0
cpp_extension.load = lambda *arguments, **options: ctypes.CDLL(os.environ["UNDEFINED"])  # as torch's own
assert child(lambda: eager("the build failed", "undefined symbol", "missing_name")) == 0
assert not list(cache.glob("*.build-*"))
"""
    forked(DRIVER + code, {**env, "SMALL_SOURCES": str(tmp_path / "sources"), "UNDEFINED": str(library)})


@pytest.mark.builds
@needs_compiler
@pytest.mark.bad_input(26, "compiled", "eager")
def test_killed_or_cache_removed_at_any_step(env: dict[str, str]) -> None:
    """The next process builds. With the cache removed: compiled, or eager with a reason, without exception."""
    code = """
STEPS = [  # owner, function, before or after its first or second call
    (jit, "cache_directory", "before", 1), (jit, "cache_directory", "after", 1), (jit, "_lock", "before", 1),
    (jit, "_compile", "before", 1), (cpp_extension, "load", "before", 1), (cpp_extension, "load", "after", 1),
    (sources, "write_json", "before", 1), (sources, "write_json", "after", 1), (os, "rename", "before", 2),
    (os, "rename", "after", 2), (shutil, "rmtree", "after", 1), (loader, "_load_library", "after", 1),
]
def meet(step, action):
    owner, name, when, number = step
    real, calls = getattr(owner, name), []
    def met(*arguments, **options):
        calls.append(name)
        if when == "before" and len(calls) == number:
            action()
        result = real(*arguments, **options)
        if when == "after" and len(calls) == number:
            action()
        return result
    setattr(owner, name, met)
def die():
    os.killpg(0, signal.SIGKILL)
remove = lambda: real_rmtree(cache, ignore_errors=True)
real_rmtree = shutil.rmtree
def either():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = loader.resolve("cpu")
    right() if backend.backend == "compiled" else eager()
    assert backend.backend == "compiled" or backend.reason and backend.todo, backend
for step in STEPS:
    assert child(lambda: (meet(step, die), right())) == -signal.SIGKILL, step
    assert child(right) == 0, step
    if step[:4] != (os, "rename", "after", 2):  # once it is complete no one looks for wreckage
        assert not list(cache.glob("*.build-*")), step
    compiled_since()
    assert child(right) == 0 and compiled_since() == 0, step
    remove()
    if step[1] != "rmtree":
        assert child(lambda: (meet(step, remove), either())) == 0, step
        assert child(right) == 0, step
        remove()
assert child(lambda: (right(), remove(), right())) == 0
"""
    forked(DRIVER + code, env)


@pytest.mark.builds
@needs_compiler
def test_killed_build_does_not_disturb_the_next(built: dict[str, str], tmp_path: Path) -> None:
    hold, cache = tmp_path / "hold", tmp_path / "cache"
    hold.write_text("")
    compiler = write_script(
        tmp_path / "waiting-g++",
        f'for a in "$@"; do [ "$a" = -c ] && while [ -e {hold} ]; do sleep 0.1; done; done; exec c++ "$@"',
    )
    env = {**built, "SINPE_EXT_CACHE_DIR": str(cache), "CXX": str(compiler)}
    really = DRIVER + "cpp_extension.load = compile_really\nright()"
    victim = start_forked(really, env)
    try:
        until(lambda: list(cache.glob("*.build-*/build.ninja")), "the build to start", child=victim)
        os.kill(victim.pid, signal.SIGKILL)  # but not its ninja
        finish(victim, status=-signal.SIGKILL)
        assert list(cache.glob("*.build-*/lock"))  # torch would wait for it forever
    finally:
        hold.unlink()  # the orphaned ninja continues to compile, concurrently with the next build
        if victim.poll() is None:
            os.kill(victim.pid, signal.SIGKILL)
    _, err = forked(really, env)
    assert " done in " in err and not list(cache.glob("*.build-*/lock"))


@pytest.mark.builds
@needs_compiler
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


@needs_compiler
@pytest.mark.bad_input(26, "compiled", "eager")
def test_read_only_cache_is_used_and_does_not_raise(env: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare, of util-linux, is not installed")
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if (done := execute([*mounted, "mount -t tmpfs tmpfs /mnt"], status=None)).returncode:
        pytest.skip(f"no mount namespace: {done.stderr}")
    cache = env["SINPE_EXT_CACHE_DIR"]
    forked(DRIVER + "right()", env)
    code = """
def other():
    torch.__version__ = "2.99.0+cpu"
    eager("Read-only file system")
compiled_since()
assert child(right) == 0 and compiled_since() == 0 and child(other) == 0
"""
    (tmp_path / "program.py").write_text(DRIVER + code)
    command = f'mount --bind {cache} {cache}; mount -o remount,ro,bind {cache}; exec "$0" "$1"'
    execute([*mounted, command, sys.executable, tmp_path / "program.py"], env=env)


# the real library, and one for CUDA


@pytest.mark.builds
@needs_compiler
def test_real_library_compiled_on_first_use_gives_the_same_bits(tmp_path: Path) -> None:
    code = """
import os
import sinpe_ext
from sinpe_ext.backend import loader, sources
def nothing_built(device):
    raise sources.BuildUnavailable("nothing was built at install time")
loader._load_prebuilt = nothing_built
if "SINPE_EXT_JIT" not in os.environ:
    loader.build()
assert loader.resolve("cpu").how == "jit" and "cpu: compiled (" in str(sinpe_ext.backend_info()), loader.resolve("cpu")
print(sinpe_ext.table(300, 64, start=10**6).numpy().tobytes().hex())
"""
    env = environment(SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"), MAX_JOBS=str(os.cpu_count()))
    with sinpe_ext.use_backend("eager"):
        expected = sinpe_ext.table(300, 64, start=10**6)
    for more in ({}, {"SINPE_EXT_JIT": "0", "CXX": "/nonexistent/c++"}):  # as a container is built, and run
        out, err = run(code, {**env, **more})
        assert out.split()[-1] == expected.numpy().tobytes().hex() and ("compiling" in err) == (not more)


@pytest.mark.builds
@needs_compiler
@needs_nvcc
def test_cuda_library_loads_without_a_device(built: dict[str, str], tmp_path: Path) -> None:
    """The next process does not compile, and a third has no compiler."""
    env = {**built, "TORCH_CUDA_ARCH_LIST": "9.0", "CUDA_HOME": str(Path(sources.find_nvcc()[0]).parent.parent)}
    env["SINPE_EXT_CACHE_DIR"] = str(tmp_path / "cache")
    code = PREAMBLE + "import json, torch\nbackend = loader.resolve('cuda')\n"
    code += "assert torch._C._dispatch_has_kernel_for_dispatch_key('sinpe_ext::table', 'CUDA'), backend\n"
    code += "assert not torch.cuda.is_initialized()\nprint(json.dumps([backend.how, backend.library, backend.build]))"
    reports = [forked(code, {**env, **more}) for more in ({}, {}, {"CXX": "/nonexistent/c++"})]
    assert ["compiling" in err for _, err in reports] == [True, False, False]
    (first, *_) = found = [json.loads(out) for out, _ in reports]
    assert first[0] == "jit" and {library for _, library, _ in found} == {first[1]}
    assert (first[2]["architectures"], first[2]["nvcc_version"]) == ("9.0", sources.find_nvcc()[1])
