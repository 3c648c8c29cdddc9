"""Which backend is chosen, and why: settings, and every reason why the compiled one can be missing."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_script, write_small_sources
from children import environment, forked, run

import sinpe_ext
from sinpe_ext.backend import jit, loader, sources
from sinpe_ext.backend.loader import BackendUnavailableError, DeviceBackend, use_backend

REPORT = """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    answers = [loader.compiled("cpu") for _ in range(3)]
import json
print(json.dumps({"compiled": answers, "warnings": [str(w.message) for w in caught],
                  "info": sinpe_ext.backend_info().as_dict(), "text": str(sinpe_ext.backend_info())}))
"""


@pytest.fixture(scope="module")
def small_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_sources(tmp_path_factory.mktemp("small"))


@pytest.fixture
def env(small_sources: Path, tmp_path: Path) -> dict[str, str]:
    return environment(SMALL_SOURCES=str(small_sources), SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"))


def report(env: dict[str, str], before: str = "") -> dict:
    out, err = forked(PREAMBLE + before + REPORT, env)
    return {**json.loads(out.splitlines()[-1]), "stdout": out, "stderr": err}


def failing_report(env: dict[str, str], before: str = "") -> dict:
    result = report(env, before)
    assert result["compiled"] == [False] * 3
    assert result["info"]["devices"]["cpu"]["backend"] == "eager"
    return result


# setting


@pytest.mark.bad_input(26, "compiled", "eager")
def test_import_loads_nothing():
    code = """
import sys
import sinpe_ext.backend.loader
heavy = {"torch", "numpy", "setuptools", "filelock"} & set(sys.modules)
assert not heavy, heavy
"""
    run(code, environment())


def test_use_backend_is_a_setter_and_a_context_manager(monkeypatch):
    monkeypatch.delenv("SINPE_EXT_BACKEND", raising=False)
    monkeypatch.setattr(loader, "_setting", None)
    monkeypatch.setattr(loader, "_backends", {"cpu": DeviceBackend("cpu", "compiled", "for this test")})
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    assert loader.setting() == "auto" and loader.compiled("cpu")
    with use_backend("eager") as inside:
        assert not loader.compiled("cpu")
        assert repr(inside) == "use_backend('eager')"
        with use_backend("compiled"):
            assert loader.compiled("cpu")
        assert not loader.compiled("cpu")
    assert loader.setting() == "auto" and loader.compiled("cpu")
    use_backend("eager")
    assert loader.setting() == "eager" and not loader.compiled("cpu")
    use_backend("auto")
    assert loader.compiled("cpu")
    with pytest.raises(ZeroDivisionError), use_backend("eager"):
        raise ZeroDivisionError
    assert loader.setting() == "auto"


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting "auto", with no library to load for it."""
    monkeypatch.setattr(loader, "_setting", "auto")
    monkeypatch.setattr(loader, "_backends", {"cpu": DeviceBackend("cpu", "compiled", "for this test")})
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())


def test_use_backend_object_is_reusable(auto):
    kept = use_backend("eager")
    assert loader.setting() == "eager"
    with kept:
        use_backend("compiled")
        with kept, kept:
            assert loader.setting() == "eager"
        assert loader.setting() == "compiled"
    assert loader.setting() == "auto" and loader.compiled("cpu")
    for _ in range(2):
        with kept:
            assert loader.setting() == "eager" and not loader.compiled("cpu")
        assert loader.setting() == "auto" and loader.compiled("cpu")


def test_use_backend_in_every_kind_of_call(auto):
    with contextlib.ExitStack() as stack:
        stack.enter_context(use_backend("eager"))
        assert loader.setting() == "eager"
    with use_backend("eager") if loader.setting() == "auto" else contextlib.nullcontext():
        assert loader.setting() == "eager"
    with contextlib.nullcontext(), use_backend(name="eager"), functools.partial(use_backend, "auto")():
        assert loader.setting() == "auto"
    assert loader.setting() == "auto"

    def steps():
        with use_backend("eager"):
            yield loader.setting()

    assert list(steps()) == ["eager"]
    generator = steps()
    assert next(generator) == "eager"
    generator.close()
    assert loader.setting() == "auto"
    list(map(use_backend, ["eager"]))
    assert loader.setting() == "eager"

    def made():
        return use_backend("auto")

    for make in (made, lambda: use_backend("auto")):  # calls directly before the return
        with make():
            assert loader.setting() == "auto"
        assert loader.setting() == "eager"
    assert [use_backend("auto"), loader.setting()][1] == "auto"


def test_torch_compile_traces_use_backend(auto):
    torch = pytest.importorskip("torch")

    def doubled(x):
        with use_backend("eager"):
            return 2 * x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.compile(doubled, backend="eager", fullgraph=True)(torch.ones(1)) == 2
    assert loader.setting() == "auto"


def test_block_has_its_backend_whatever_was_set_since_the_call(auto):
    kept = use_backend("eager")
    use_backend("auto")
    with kept:
        assert loader.setting() == "eager"
    assert loader.setting() == "auto"


def test_error_in_a_block_restores_the_setting(auto):
    with pytest.raises(KeyboardInterrupt), use_backend("eager"):
        assert loader.setting() == "eager"
        raise KeyboardInterrupt
    assert loader.setting() == "auto"


def test_use_backend_rejects_an_unknown_name():
    with pytest.raises(ValueError, match="name: expected one of auto, compiled, eager, got 'native'"):
        use_backend("native")


def test_unknown_cuda_arithmetic_is_rejected(monkeypatch):
    """Checked before the CUDA library is loaded, which reads the variable without checking it."""
    monkeypatch.setattr(sources, "check_torch", lambda device: None)
    monkeypatch.setenv("SINPE_EXT_CUDA_ARITHMETIC", "half")
    with pytest.raises(ValueError, match="^SINPE_EXT_CUDA_ARITHMETIC: expected single or double, got 'half'"):
        loader._load("cuda")


@pytest.mark.bad_input(26, "compiled", "eager")
def test_use_backend_overrides_the_environment_variable(monkeypatch):
    monkeypatch.setattr(loader, "_setting", None)
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    monkeypatch.setenv("SINPE_EXT_BACKEND", "eager")
    assert not loader.compiled("cpu")
    with use_backend("auto"):
        assert loader.setting() == "auto"
    assert loader.setting() == "eager"
    monkeypatch.setenv("SINPE_EXT_BACKEND", "fast")
    with pytest.raises(ValueError, match="SINPE_EXT_BACKEND: expected one of auto, compiled, eager, got 'fast'"):
        loader.setting()


def test_required_backend_missing_raises_with_reason_and_remedy(monkeypatch):
    monkeypatch.setattr(loader, "_setting", None)
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    missing = DeviceBackend("cpu", "eager", "no C++ compiler was found", todo="install g++")
    monkeypatch.setattr(loader, "_backends", {"cpu": missing})
    with pytest.raises(BackendUnavailableError, match="no C.. compiler was found; install g"):
        use_backend("compiled")
    assert loader.setting() != "compiled"
    monkeypatch.setenv("SINPE_EXT_BACKEND", "compiled")
    with pytest.raises(BackendUnavailableError, match="no C.. compiler was found"):
        loader.compiled("cpu")


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_device_without_kernels_is_eager_without_a_warning(device, monkeypatch, recwarn):
    monkeypatch.setattr(loader, "_setting", "auto")
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    assert not loader.compiled(device)
    assert "kernels" in loader.resolve(device).reason
    assert not recwarn.list
    monkeypatch.setattr(loader, "_setting", "compiled")
    monkeypatch.setattr(loader, "uses_kernels", loader.DeviceTypes())
    with pytest.raises(BackendUnavailableError, match=f"{device} devices have none"):
        loader.compiled(device)
    assert not loader.compiled("meta")


# the compiled backend is missing


@pytest.mark.bad_input(26, "eager")
def test_no_compiler_is_eager_with_the_same_values(env, tmp_path):
    code = """
import sinpe_ext
print(sinpe_ext.table(40, 8).numpy().tobytes().hex())
"""
    (tmp_path / "empty").mkdir()
    env.update(PATH=str(tmp_path / "empty"))
    env.pop("CXX", None)
    result = failing_report(env, code)
    assert "no C++ compiler was found" in result["info"]["devices"]["cpu"]["reason"]
    assert "install g++" in result["info"]["devices"]["cpu"]["todo"]
    assert result["warnings"] == [] and "Warning" not in result["stderr"]

    import sinpe_ext

    assert result["stdout"].split()[0] == sinpe_ext.table(40, 8).numpy().tobytes().hex()


def test_cxx_that_does_not_exist_is_named(env):
    result = failing_report({**env, "CXX": "/nonexistent/c++"})
    assert "no C++ compiler was found (CXX=/nonexistent/c++)" in result["info"]["devices"]["cpu"]["reason"]
    assert result["warnings"] == []


def test_jit_disabled(env):
    result = failing_report({**env, "SINPE_EXT_JIT": "0"})
    assert "SINPE_EXT_JIT=0" in result["info"]["devices"]["cpu"]["reason"]
    assert result["warnings"] == [] and "compiling" not in result["stderr"]


@needs_compiler
def test_missing_ninja_is_named(env):
    before = "from torch.utils import cpp_extension; cpp_extension.is_ninja_available = lambda: False\n"
    assert "pip install ninja" in failing_report(env, before)["info"]["devices"]["cpu"]["reason"]


def test_build_finds_ninja_next_to_python_and_restores_the_path(tmp_path, monkeypatch):
    ninja = write_script(tmp_path / "ninja", "exit 0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nonexistent")
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), jit._ninja_on_path():
        assert shutil.which("ninja") == str(ninja)
        raise ZeroDivisionError
    assert dict(os.environ) == before


def test_invalid_jit_setting_is_rejected(monkeypatch):
    monkeypatch.setenv("SINPE_EXT_JIT", "false")
    with pytest.raises(ValueError, match="SINPE_EXT_JIT: expected 0 or 1, got 'false'"):
        loader._load("cpu")


def test_old_torch_runs_eager_with_the_reason(env):
    result = failing_report(env, 'import torch; torch.__version__ = "2.10.1+cpu"\n')
    assert "torch 2.10.1+cpu is older than 2.11" in result["info"]["devices"]["cpu"]["reason"]
    assert result["warnings"] == []


@pytest.mark.bad_input(26, "eager")
@needs_compiler
def test_failing_compiler_warns_once_with_its_last_lines(env, tmp_path):
    compiler = write_script(
        tmp_path / "failing-g++",
        'for a in "$@"; do [ "$a" = -c ] && { seq -f "fault %g" 1 40; exit 1; }; done; exec c++ "$@"',
    )
    result = failing_report({**env, "CXX": str(compiler)})
    reason = result["info"]["devices"]["cpu"]["reason"]
    assert "the build failed" in reason and "fault 40" in reason and "fault 2\n" not in reason
    assert len(result["warnings"]) == 1 and "fault 40" in result["warnings"][0]
    assert result["stderr"].count("sinpe_ext: compiling") == 1 and " failed in " in result["stderr"]


@needs_compiler
def test_compiler_that_always_fails_is_reported(env, tmp_path):
    compiler = write_script(tmp_path / "broken", 'echo "licence expired"; exit 1')
    result = failing_report({**env, "CXX": str(compiler)})
    assert "licence expired" in result["info"]["devices"]["cpu"]["reason"]
    assert len(result["warnings"]) == 1


@needs_compiler
def test_unwritable_cache_is_eager_without_a_warning(env, tmp_path):
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "below"
    result = failing_report({**env, "SINPE_EXT_CACHE_DIR": str(cache)})
    assert str(cache) in result["info"]["devices"]["cpu"]["reason"]
    assert "SINPE_EXT_CACHE_DIR" in result["info"]["devices"]["cpu"]["todo"]
    assert result["warnings"] == []


@needs_compiler
def test_world_writable_cache_is_rejected(env, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    result = failing_report(env)
    assert "is not safe: every user may write" in result["info"]["devices"]["cpu"]["reason"]


# reporting


def test_backend_info_without_torch():
    code = """
import sys
sys.modules["torch"] = None
import sinpe_ext
from sinpe_ext.backend import loader
info = sinpe_ext.backend_info()
assert info.torch is None and info.device("cpu").backend == "none" and "torch" in info.device("cpu").reason
assert "not installed" in str(info)
assert not loader.compiled("cpu")
"""
    run(code, environment())


def test_backend_info_is_picklable_and_readable():
    info = sinpe_ext.backend_info()
    fields = json.loads(json.dumps(info.as_dict()))
    assert {"version", "torch", "setting", "devices", "instruction_set", "threads", "cache_dir"} <= set(fields)
    assert {"cpu", "cuda"} <= set(fields["devices"])
    for line in ("cpu: ", "cuda: ", "JIT cache: "):
        assert line in str(info)


@pytest.mark.bad_input(22, "compiled")
def test_concurrent_first_use_loads_once(env):
    code = """
calls = []
def slow_load(device, verbose=False):
    calls.append(device)
    time.sleep(0.3)
    return loader.DeviceBackend("cpu", "compiled", "for this test")
loader._load = slow_load
answers = []
start = threading.Barrier(8)
def use():
    start.wait()
    answers.append(loader.compiled("cpu"))
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(500)
assert answers == [True] * 8 and len(calls) == 1, (answers, calls)
"""
    forked(PREAMBLE + code, env)


@pytest.mark.bad_input(21, "compiled")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_child_forked_during_first_use_does_not_deadlock(env):
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
    forked(PREAMBLE + code, env)
