"""Which backend is chosen, and why: settings, and every reason why the compiled one can be missing."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from build_support import PREAMBLE, cuda_torch, needs_compiler, write_nvcc, write_script, write_small_sources
from children import environment, forked, run

import sinpe_ext
from sinpe_ext.backend import loader, sources
from sinpe_ext.backend.loader import BackendUnavailableError, DeviceBackend, use_backend
from sinpe_ext.backend.sources import BuildUnavailable

# settings


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting, and no library to load."""
    monkeypatch.delenv("SINPE_EXT_BACKEND", raising=False)
    monkeypatch.setattr(loader, "_setting", None)
    monkeypatch.setattr(loader, "_backends", {"cpu": DeviceBackend("cpu", "compiled", "for this test")})
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())


def now() -> tuple[str, bool]:
    return loader.setting(), loader.compiled("cpu")


AUTO, EAGER, COMPILED = ("auto", True), ("eager", False), ("compiled", True)


def test_use_backend(unset: None) -> None:
    """The call sets the backend at once; the end of a block restores what was set before the call."""
    assert now() == AUTO
    with use_backend("eager") as inside:
        assert now() == EAGER and repr(inside) == "use_backend('eager')"
        with use_backend("compiled"):
            assert now() == COMPILED
        assert now() == EAGER
    assert now() == AUTO and not loader.chosen_in_code()
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), use_backend("eager"):
            raise error
        assert now() == AUTO
    use_backend("eager")
    assert now() == EAGER and loader.chosen_in_code()
    with pytest.raises(ValueError, match="name: expected one of auto, compiled, eager, got 'native'"):
        use_backend("native")

    def steps():
        with use_backend("auto"):
            yield now()

    generator = steps()
    assert next(generator) == AUTO
    generator.close()
    assert now() == EAGER
    assert not loader.compiled("meta")


def test_use_backend_object_is_reusable(unset: None) -> None:
    """Each block sets the backend again, whatever was set since the call, and restores what was set before it."""
    kept = use_backend("eager")
    for before in (AUTO, COMPILED):  # the first block is of the call, before which nothing was set
        use_backend("compiled")
        with kept:
            assert now() == EAGER
            use_backend("compiled")
            with kept, kept:
                assert now() == EAGER
            assert now() == COMPILED
        assert now() == before


def test_torch_compile_traces_use_backend(unset: None) -> None:
    def doubled(x):
        with use_backend("eager"):
            return 2 * x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.compile(doubled, backend="eager", fullgraph=True)(torch.ones(1)) == 2
    assert now() == AUTO


@pytest.mark.bad_input(26, "compiled", "eager")
def test_environment_variables(unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """use_backend overrides; another value is an error, also where the library that reads it is not loaded yet."""
    monkeypatch.setenv("SINPE_EXT_BACKEND", "eager")
    assert now() == EAGER
    with use_backend("auto"):
        assert now() == AUTO
    monkeypatch.setattr(sources, "check_torch", lambda device: None)
    for name, value, words, use in (
        ("BACKEND", "fast", "auto, compiled, eager", loader.setting),
        ("JIT", "false", "0 or 1", lambda: loader._load("cpu")),
        ("CUDA_ARITHMETIC", "half", "single or double", lambda: loader._load("cuda")),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"SINPE_EXT_{name}", value)
            with pytest.raises(ValueError, match=f"^SINPE_EXT_{name}: expected .*{words}, got '{value}'"):
                use()


def test_an_explicit_build_compiles_with_jit_0(unset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m sinpe_ext build` in an image that sets SINPE_EXT_JIT=0 for its user."""
    allowed = []

    def library(target: str, because: str, may_compile: bool, verbose: bool) -> Any:
        allowed.append(may_compile)
        raise BuildUnavailable("no compiler")

    monkeypatch.setenv("SINPE_EXT_JIT", "0")
    monkeypatch.setattr(loader, "_backends", {})
    monkeypatch.setattr(loader, "_load_prebuilt", lambda device: library("", "", False, False))
    monkeypatch.setattr(loader.jit, "library", library)
    assert not loader.compiled("cpu")
    with pytest.raises(BackendUnavailableError):
        loader.build("cpu")
    assert allowed == [False, False, False, True]


def test_required_backend_missing(unset: None, monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    """An error with reason and remedy, at once or at the first call; devices without kernels do not warn otherwise."""
    missing = DeviceBackend("cpu", "eager", "no C++ compiler was found", todo="install g++")
    monkeypatch.setattr(loader, "_backends", {"cpu": missing})
    with pytest.raises(BackendUnavailableError, match="no C.. compiler was found; install g"):
        use_backend("compiled")
    assert loader.setting() == "auto" and not loader.compiled("cpu")
    for device in ("mps", "xpu"):
        assert not loader.compiled(device) and f"no {device} kernels" in loader.resolve(device).reason
    monkeypatch.setenv("SINPE_EXT_BACKEND", "compiled")
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    for device, words in (
        ("cpu", "no C.. compiler was found; install g"),
        ("mps", "mps devices have none.*; use_backend"),
    ):
        with pytest.raises(BackendUnavailableError, match=words):
            loader.compiled(device)
    assert not loader.compiled("meta") and not recwarn.list


# the compiled backend is missing

REPORT = """
import json, torch
if DEVICE == "cuda":
    loader._backends["cpu"] = loader.DeviceBackend("cpu", "eager", "not compiled by this test")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answers = [loader.compiled(DEVICE) for _ in range(3)]
backend = loader.resolve(DEVICE)
assert answers == [False] * 3 and backend.backend == "eager" and not torch.cuda.is_initialized(), backend
assert f"{DEVICE}: eager (" in str(sinpe_ext.backend_info())
digest = sinpe_ext.table(40, 8).numpy().tobytes().hex()
print(json.dumps([backend.reason, backend.todo, [str(w.message) for w in caught], digest]))
"""
FAULTS = 'seq -f "fault %g" 1 40; exit 1'
FAILING = f'for a in "$@"; do [ "$a" = -c ] && {{ {FAULTS}; }}; done; exec c++ "$@"'
NO_HOME = {"HOME": "/proc/self/nowhere", "SINPE_EXT_CACHE_DIR": "", "XDG_CACHE_HOME": "", "TMPDIR": "{tmp}/empty"}
NO_NINJA = "from torch.utils import cpp_extension; cpp_extension.is_ninja_available = lambda: False\n"


def torch_is(version: str, **attributes: str | None) -> str:
    set_ = [f"torch.version.{name} = {value!r}" for name, value in attributes.items()]
    return "\n".join(["import torch", f"torch.__version__ = {version!r}", *set_, ""])


# device, environment ({tmp}: a folder), code before, words of the reason, words of the remedy
MISSING: dict[str, tuple[str, dict[str, str], str, str, str]] = {
    "no compiler": ("cpu", {"PATH": "{tmp}/empty"}, "", "no C++ compiler was found (looked for CXX", "install g++"),
    "no CXX": ("cpu", {"CXX": "/nonexistent/c++"}, "", "no C++ compiler was found (CXX=/nonexistent/c++)", "install"),
    "JIT off, open cache": (
        "cpu",
        {"SINPE_EXT_JIT": "0", "SINPE_EXT_CACHE_DIR": "{tmp}/open"},
        "",
        "every user may write",
        "SINPE_EXT_CACHE_DIR",
    ),
    "JIT off": ("cpu", {"SINPE_EXT_JIT": "0"}, "", "(SINPE_EXT_JIT=0)", "python -m sinpe_ext build"),
    "no ninja": ("cpu", {}, NO_NINJA, "pip install ninja", ""),
    "old torch": ("cpu", {}, torch_is("2.10.1+cpu"), "torch 2.10.1+cpu is older than 2.11", '"torch>=2.11"'),
    "unwritable cache": ("cpu", {"SINPE_EXT_CACHE_DIR": "{tmp}/file/c"}, "", "{tmp}/file/c", "SINPE_EXT_CACHE_DIR"),
    "open cache": ("cpu", {"SINPE_EXT_CACHE_DIR": "{tmp}/open"}, "", "every user may write", "SINPE_EXT_CACHE_DIR"),
    "no home": ("cpu", NO_HOME, "", "/proc/self/nowhere/.cache/sinpe_ext cannot be used", "SINPE_EXT_CACHE_DIR"),
    "no user": ("cpu", {"SINPE_EXT_CACHE_DIR": "~nobody-of-that-name"}, "", "no home directory", "SINPE_EXT_CACHE_DIR"),
    "failing compiler": ("cpu", {"CXX": "{tmp}/failing"}, "", "the build failed", "SINPE_EXT_JIT=0"),
    "broken compiler": ("cpu", {"CXX": "{tmp}/broken"}, "", "licence expired", "SINPE_EXT_JIT=0"),
    "CPU torch": ("cuda", {}, torch_is("2.13.0+cpu", cuda=None), "torch 2.13.0+cpu is a CPU build", "a CUDA build"),
    "ROCm torch": ("cuda", {}, torch_is("2.13.0+rocm7.0", hip="7.0"), "torch 2.13.0+rocm7.0 is a ROCm build", ""),
    "no device": ("cuda", {"TORCH_CUDA_ARCH_LIST": " ; ,"}, cuda_torch(), "no CUDA device is visible", "ARCH_LIST"),
    "CUDA JIT off": ("cuda", {"SINPE_EXT_JIT": "0"}, cuda_torch(), "(SINPE_EXT_JIT=0)", "python -m sinpe_ext build"),
    "other nvcc": ("cuda", {}, cuda_torch("13.0"), "of CUDA 12.8.61, and torch is built for CUDA 13.0", "toolkit 13.x"),
    "newer nvcc": ("cuda", {}, cuda_torch("11.8"), "of CUDA 12.8.61, and torch is built for CUDA 11.8", "toolkit 11.x"),
    "no nvcc": ("cuda", {"CUDA_HOME": "/none"}, cuda_torch(), "was not found (looked in CUDA_HOME=", "toolkit 12.x"),
    "bad list": ("cuda", {"TORCH_CUDA_ARCH_LIST": "sm_80"}, cuda_torch(), "Unknown CUDA arch (sm_80)", "SINPE_EXT_JIT"),
    "failing nvcc": ("cuda", {"CXX": "{tmp}/quick"}, cuda_torch(), "the build failed", "SINPE_EXT_JIT=0"),
}
WARN = {"no ninja", "failing compiler", "broken compiler", "bad list", "failing nvcc"}  # once; others are only reasons


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small sources, compilers that fail, and caches that cannot be used."""
    tmp = tmp_path_factory.mktemp("missing")
    write_small_sources(tmp / "csrc")
    (tmp / "empty").mkdir()
    (tmp / "open").mkdir()
    (tmp / "open").chmod(0o777)
    (tmp / "file").write_text("")
    write_script(tmp / "failing", FAILING)
    write_script(tmp / "broken", 'echo "licence expired"; exit 1')
    write_script(tmp / "quick", 'for a in "$@"; do [ "$a" = -c ] && exit 0; done; exec c++ "$@"')
    write_nvcc(tmp / "cuda" / "bin" / "nvcc", FAULTS)
    return tmp


@pytest.mark.bad_input(26, "eager")
@needs_compiler
@pytest.mark.parametrize("case", MISSING)
def test_missing_backend_is_eager_with_the_reason(case: str, folder: Path, tmp_path: Path) -> None:
    """And the same bits. Only a build that fails warns, once, with the compiler's last lines."""
    device, changes, before, reason, todo = MISSING[case]
    settings = {"CUDA_HOME": str(folder / "cuda"), "TORCH_CUDA_ARCH_LIST": "8.0", "CXX": None, **changes}
    settings = {name: value and value.format(tmp=folder) for name, value in settings.items()}
    cache = {"SINPE_EXT_CACHE_DIR": str(tmp_path / "cache"), "SMALL_SOURCES": str(folder / "csrc")}
    code = f"DEVICE = {device!r}\n{PREAMBLE}{before}{REPORT}"
    out, err = forked(code, environment(**{**cache, **settings}), cwd=folder / "empty")
    assert not list((folder / "empty").iterdir())  # the working directory, and that for temporary files
    got_reason, got_todo, warned, digest = json.loads(out.splitlines()[-1])
    assert reason.format(tmp=folder) in got_reason and todo in got_todo, (got_reason, got_todo)
    assert len(warned) == (case in WARN) and "Warning" not in err
    assert digest == sinpe_ext.table(40, 8).numpy().tobytes().hex()
    if warned:
        assert err.count(f"sinpe_ext: compiling the {device} kernels once") == 1 and " failed in " in err
        assert got_reason.partition("the build failed: ")[2] in warned[0] and got_todo in warned[0]
        assert not list((tmp_path / "cache").glob("*.build-*"))
    else:
        assert "compiling the" not in err
        assert "SINPE_EXT_JIT" not in changes or not (tmp_path / "cache").exists()
    if case.startswith("failing"):
        assert "fault 40" in got_reason and "fault 2\n" not in got_reason and "-fPIC" not in got_reason


# prebuilt libraries


CUDA = {"cuda": "12.8", "architectures": "8.0 9.0+PTX", "torch": "2.13.0"}


@pytest.mark.bad_input(26, "compiled", "eager")
@pytest.mark.parametrize(
    ("device", "manifest", "reason"),
    [
        ("cpu", None, "nothing was built at install time"),
        ("cpu", {"reason": "no compiler, that day"}, "no compiler, that day"),
        ("cpu", {"file": "gone.so"}, "does not exist"),
        ("cpu", {"sources": "0"}, "built from other sources"),
        ("cpu", {"torch": "9.9"}, r"\(built for torch 9.9\) fails: .*old.so"),
        ("cuda", {"reason": "no compiler"}, "no compiler"),
        ("cuda", {"reason": "no compiler", "cuda_reason": "no nvcc, that day"}, "no nvcc, that day"),
        ("cuda", {**CUDA, "cuda": "13.0"}, "of CUDA 13.0, and torch of CUDA 12.8"),
        ("cuda", {**CUDA, "architectures": "9.0"}, "no code for a device of compute capability 8.6, but for 9.0"),
        ("cuda", CUDA, r"\(built for torch 2.13.0\) fails: .*old.so"),
    ],
)
def test_unusable_prebuilt_library(
    device: str, manifest: dict | None, reason: str, tmp_path: Path, monkeypatch
) -> None:
    package = tmp_path / "sinpe_ext"
    package.mkdir()
    root = write_small_sources(tmp_path / "csrc")
    (package / "old.so").write_bytes(b"not a library")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(sources, "device_capabilities", lambda: [(8, 6), (9, 0)])
    if manifest is not None:
        built = {"file": "old.so", "sources": sources.source_hash(device, root), **manifest}
        text = manifest if "reason" in manifest else {"libraries": {device: built}}
        (package / sources.MANIFEST).write_text(json.dumps(text))
    with pytest.raises(BuildUnavailable, match=reason):
        loader._load_prebuilt(device, package)


def test_core_module_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_core` of other sources is not used, by NumPy nor for repeated calls."""
    monkeypatch.setattr(sources, "read_json", lambda path: {"libraries": {"core": {"sources": "0"}}})
    module, reason = loader.core_module()
    assert module is None and "built from other sources; reinstall" in reason
    monkeypatch.setattr(sources, "read_json", lambda path: {"core_reason": "no pybind11, that day"})
    assert loader.core_module() == (None, "no pybind11, that day")


@pytest.mark.bad_input(27, "compiled", "NumPy")
def test_dynamic_dependencies_of_built_libraries() -> None:
    """None of libtorch_python, which is of one Python, OpenMP, of which there must be one, or the CUDA runtime."""
    libraries = sources.read_json(loader.PACKAGE / sources.MANIFEST).get("libraries", {})
    if not libraries:
        pytest.skip("nothing was built at install time")
    every = {"cpu": (b"libtorch_python", b"libgomp"), "core": (b"libtorch", b"libgomp"), "cuda": (b"libcudart.so",)}
    for target in libraries:
        content = (loader.PACKAGE / libraries[target]["file"]).read_bytes()
        assert not [name for name in every[target] if name in content], target


# imports, threads, processes

AT_IMPORT = """
import sys, os
sys.modules["torch"] = None  # not installed
import sinpe_ext
assert not {"numpy", "setuptools", "filelock"} & set(sys.modules)
from sinpe_ext.backend import loader
info = sinpe_ext.backend_info()
assert info.torch is None and info.device("cpu").backend == "none" and "torch" in info.device("cpu").reason
assert not loader.compiled("cpu")
with loader.use_backend("eager"):
    assert sinpe_ext.backend_info().device("cpu").backend == "none"
loader._backends.clear()
del sys.modules["torch"]
import torch, numpy
seen = []
FORBIDDEN = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn",
             "os.mkdir", "os.rename", "os.remove", "ctypes.dlopen", "socket.connect", "_thread.start_new_thread")
def hook(event, arguments):
    if event.startswith(FORBIDDEN) or event == "open" and isinstance(arguments[2], int) and arguments[2] & 3:
        seen.append((event, str(arguments)[:200]))
sys.addaudithook(hook)
for name in dir(sinpe_ext):
    if name != "plot":  # matplotlib
        getattr(sinpe_ext, name)
layers = [sinpe_ext.SinusoidalPositionalEncoding(8), sinpe_ext.SinusoidalEmbedding(5, 8, encoding="t2t")]
assert not seen and not loader.backends(), seen
open(os.devnull, "w").close()
os.system("true")
assert [event for event, _ in seen] == ["open", "os.system"]
"""


@pytest.mark.bad_input(26, "compiled", "eager")
def test_import_loads_nothing_starts_no_process_and_writes_nothing() -> None:
    """Nor does constructing a layer; the package is usable without torch."""
    run(AT_IMPORT, environment(PYTHONDONTWRITEBYTECODE="1"))


@pytest.mark.bad_input(22, "compiled")
def test_concurrent_first_use_loads_once() -> None:
    code = """
calls, answers, start = [], [], threading.Barrier(8)
def slow_load(device, verbose=False):
    calls.append(device)
    time.sleep(0.3)
    return loader.DeviceBackend("cpu", "compiled", "for this test")
loader._load = slow_load
def use():
    start.wait()
    answers.append(loader.compiled("cpu"))
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(500)
assert answers == [True] * 8 and len(calls) == 1, (answers, calls)
"""
    forked(PREAMBLE + code, environment(SMALL_SOURCES="unused"))


@pytest.mark.bad_input(21, "compiled")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_child_forked_during_first_use_does_not_deadlock() -> None:
    code = """
import signal
holder = threading.Thread(target=loader._lock.acquire)
holder.start()
holder.join()
pid = os.fork()
if pid == 0:
    signal.alarm(500)  # a child that waits is ended
    os._exit(0 if loader.resolve("mps").backend == "eager" else 1)
assert os.waitpid(pid, 0)[1] == 0
os._exit(0)
"""
    forked(PREAMBLE + code, environment(SMALL_SOURCES="unused"))
