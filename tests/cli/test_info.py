"""`python -m sinpe_ext info`: names each reason why the kernels are not used, and the remedy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_nvcc, write_script, write_small_sources
from children import REPOSITORY, environment, forked, run

from sinpe_ext import __main__ as cli
from sinpe_ext.backend import compilation, loader, variables
from sinpe_ext.backend.build_cache import CACHE_TODO
from sinpe_ext.backend.loader import DeviceBackend
from sinpe_ext.cli import info as info_command

NO_CUDA = DeviceBackend("cuda", "eager", "torch is a CPU build", todo="install a CUDA build of torch")
PREBUILT = DeviceBackend("cpu", "compiled", "built at install time", "prebuilt", "/lib.so")
NOT_TRIED = DeviceBackend(
    "cpu", "eager", "nothing was built at install time", todo="install g++ or clang++, or set CXX"
)


def info(env: dict[str, str], before: str = "", begin: Callable[..., tuple[str, str]] = forked) -> str:
    """Output of the command in a subprocess, after running `before`."""
    code = f"{before}\nfrom sinpe_ext.__main__ import main\nraise SystemExit(main(['info']))"
    out, err = begin(code, env)
    assert "Traceback" not in err, err
    return out


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Environment with nothing prebuilt and an empty cache."""
    return environment(SINPE_EXT_CACHE_DIR=str(tmp_path / "cache"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Replaces the backends found in this process, and removes all settings."""

    def decide(cpu: DeviceBackend = PREBUILT, cuda: DeviceBackend = NO_CUDA, **settings: str) -> None:
        for name in [name for name in os.environ if name.upper().startswith("SINPE")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(loader, "_setting", None)
        monkeypatch.setattr(loader, "_backends", {"cpu": cpu, "cuda": cuda})
        monkeypatch.setattr(info_command, "has_nvidia_driver", lambda: False)
        monkeypatch.setattr("sinpe_ext.backend.info._instruction_set", lambda *_: "v3")
        monkeypatch.setattr("sinpe_ext.backend.info._cuda_arithmetic", lambda _: None)

    return decide


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["info"]) == 0
    return capsys.readouterr().out


def steps(text: str) -> list[str]:
    return re.findall(r"^  - (.+)$", text, re.MULTILINE)


# settings


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SINPE_EXT_BACKEND", "fast", "expected auto, compiled, eager, got 'fast'; every call raises ValueError"),
        ("SINPE_EXT_JIT", "false", "expected 0, 1, got 'false'; taken as 1: kernels are compiled on first use"),
        ("SINPE_EXT_CPU_ISA", "avx2", "expected default, v3, v4, got 'avx2'; ignored"),
        ("SINPE_EXT_POPULATE", "off", "expected 0, 1, got 'off'; taken as 1"),
        ("SINPE_EXT_NON_TEMPORAL_BYTES", "64M", "expected a number of bytes, got '64M'; ignored"),
        ("SINPE_EXT_CHECK", "no", "expected 0, 1, got 'no'; taken as 1"),
        ("SINPE_EXT_CUDA_ARITHMETIC", "half", "expected single, double, got 'half'; the first call on CUDA raises"),
        ("SINPE_EXT_LOCK_TIMEOUT", "5 min", "expected a number of seconds, got '5 min'; compiling on first use raises"),
        ("SINPE_EXT_BUILD", "gpu", "expected auto, cpu, cuda, none, got 'gpu'"),
        ("SINPE_EXT_JTI", "0", "SINPE_EXT_JTI=0 has no effect; did you mean SINPE_EXT_JIT?"),
        ("SINPE_JIT", "0", "did you mean SINPE_EXT_JIT?"),
        ("sinpe_ext_backend", "eager", "did you mean SINPE_EXT_BACKEND?"),
        ("SINPE_EXT_COLOUR", "1", "has no effect; expected one of SINPE_EXT_BACKEND, SINPE_EXT_JIT"),
    ],
)
def test_setting_without_effect_is_named(name, value, words, machine, capsys):
    (problem,) = variables.problems({name: value, "PATH": "/bin"})
    assert problem.name == name and words in problem.text
    machine(**{name: value})
    text = printed(capsys)
    assert f"warning: {problem.text}" in text and f"{name}={value}" in text
    assert ("With the settings above corrected: The CPU runs" in text) == problem.fatal
    assert os.environ[name] == value  # the setting is only ignored for the report
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == [problem.text]


def test_unsupported_instruction_set_is_named(machine, capsys):
    machine(SINPE_EXT_CPU_ISA="v4")  # the simulated CPU supports v3
    assert "warning: SINPE_EXT_CPU_ISA=v4: this CPU lacks it; v3 is taken\n" in printed(capsys)
    machine(SINPE_EXT_CPU_ISA="v3")
    assert "warning" not in printed(capsys)


@pytest.mark.parametrize(
    "environ",
    [
        {"SINPE_EXT_JIT": "0", "SINPE_EXT_CPU_ISA": "v4", "SINPE_EXT_CHECK": "1", "SINPE_EXT_BACKEND": "eager"},
        {"SINPE_EXT_JIT": "", "SINPE_EXT_BACKEND": "", "SINPE_EXT_LOCK_TIMEOUT": ""},
        {"SINPE_EXT_LOCK_TIMEOUT": "0.5", "SINPE_EXT_CACHE_DIR": "anything", "SINGULARITY_NAME": "x", "SINPEX": "1"},
    ],
)
def test_valid_settings_are_not_named(environ):
    assert variables.problems(environ) == []


def test_every_setting_that_is_read_is_in_the_table():
    """In Python, C++, shell and the Makefile: a name missing from the table would be reported as misspelt."""
    areas = ["sinpe_ext", "csrc", "tools", "benchmarks", "examples"]
    files = [path for area in areas for path in (REPOSITORY / area).rglob("*") if path.suffix in (".py", ".sh", ".cu")]
    files += [*(REPOSITORY / "csrc").rglob("*.cpp"), REPOSITORY / "setup.py", REPOSITORY / "Makefile"]
    read = set()
    for path in files:
        read |= set(re.findall(r"\bSINPE_EXT_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    assert read - {f"SINPE_EXT_{name}" for name in variables.SETTINGS} == set()
    assert {"SINPE_EXT_CPU_ISA", "SINPE_EXT_JIT", "SINPE_EXT_BUILD"} <= read


def test_empty_lock_timeout_is_the_default(monkeypatch):
    from sinpe_ext.backend import jit

    monkeypatch.setenv("SINPE_EXT_LOCK_TIMEOUT", "")
    assert jit._lock_timeout() == 300


# CPU backend


def test_prebuilt(machine, capsys):
    machine()
    text = printed(capsys)
    assert "cpu: compiled (built at install time)" in text and "instruction set: v3" in text
    assert text.endswith("\nThe CPU runs the compiled kernels.\n") and not steps(text)
    for line in ("device: ", "compiler: ", "nvcc: ", "ninja: ", "JIT cache: ", "    does not exist yet", "Python: "):
        assert f"\n{line}" in text
    assert "threads" in text.splitlines()[0] and str(loader.PACKAGE) in text


def test_all_obstacles_are_reported(env, tmp_path):
    """Without compiler, ninja and setuptools, and disabled: all reasons, not only the first."""
    (tmp_path / "empty").mkdir()
    env |= {"PATH": str(tmp_path / "empty"), "SINPE_EXT_JIT": "0"}
    env.pop("CXX", None)
    before = """
import importlib.util
from sinpe_ext.backend import loader, compilation
def nothing_built(device):
    raise compilation.BuildUnavailable("nothing was built at install time")
loader._load_prebuilt = nothing_built
compilation.find_ninja = lambda environ=None: None
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "setuptools" else find_spec(name, *rest)
"""
    text = info(env, before)
    assert "compiler: no C++ compiler was found" in text and "ninja: not found" in text
    assert "The CPU runs eager PyTorch: the same values, slower. To change that:" in text
    assert steps(text) == [
        "unset SINPE_EXT_JIT or reinstall with a C++ compiler",
        "install g++ or clang++, or set CXX",
        "pip install ninja",
        "pip install setuptools",
    ]


@needs_compiler
@pytest.mark.parametrize("case", ["broken compiler", "CXX that does not exist", "cache that is a file", "shared cache"])
def test_impossible_builds(case, env, tmp_path):
    env["SMALL_SOURCES"] = str(write_small_sources(tmp_path / "small"))
    compiler = write_script(tmp_path / "broken", 'echo "licence expired"; exit 1')
    (tmp_path / "file").write_text("")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    changes, reason, step = {
        "broken compiler": ({"CXX": str(compiler)}, "licence expired", "read the compiler's last lines above"),
        "CXX that does not exist": ({"CXX": "/nonexistent/c++"}, "CXX=/nonexistent/c++ was not found", "set CXX to"),
        "cache that is a file": ({"SINPE_EXT_CACHE_DIR": str(tmp_path / "file")}, "Not a directory", CACHE_TODO),
        "shared cache": ({"SINPE_EXT_CACHE_DIR": str(tmp_path / "shared")}, "every user may write", CACHE_TODO),
    }[case]
    text = info(env | changes, PREAMBLE)
    assert reason.lower() in text.lower()
    assert [line for line in steps(text) if line.startswith(step)], text
    assert len(steps(text)) == 1


def test_old_torch(env):
    text = info(env, 'import torch; torch.__version__ = "2.6.0+cpu"')
    assert "torch 2.6.0+cpu is older than 2.11" in text
    assert steps(text) == ['pip install "torch>=2.11"']  # a compiler would not help


def test_without_torch(env):
    text = info(env, "import sys; sys.modules['torch'] = None", run)
    assert "torch not installed" in text and "The CPU runs nothing (NumPy alone). To change that:" in text
    assert steps(text) == ["pip install torch"]


def test_required_backend_is_missing(machine, capsys):
    machine(NOT_TRIED, SINPE_EXT_BACKEND="compiled")
    text = printed(capsys)
    assert "Calls on the CPU raise BackendUnavailableError" in text and "eager PyTorch: the same" not in text
    assert NOT_TRIED.todo in steps(text)


def test_eager_by_setting(machine, capsys, monkeypatch):
    machine(SINPE_EXT_BACKEND="eager")
    text = printed(capsys)
    assert "cpu: eager (chosen by SINPE_EXT_BACKEND=eager)" in text
    assert steps(text) == ["unset SINPE_EXT_BACKEND"]
    monkeypatch.setattr(loader, "_setting", "eager")
    assert steps(printed(capsys)) == ['use_backend("auto")']


# CUDA and the cache


def test_cpu_build_of_torch_with_nvcc(machine, capsys, monkeypatch, tmp_path):
    import torch

    machine()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("CUDACXX", str(write_nvcc(tmp_path / "nvcc", version="12.8.61")))
    text = printed(capsys)
    assert "nvcc (12.8.61), not used: this torch is not a CUDA build" in text
    assert not steps(text)  # no device is known: nothing to do


@pytest.mark.parametrize(
    "chosen, devices, text",
    [
        ("", [(8, 6), (9, 0)], "compiles for 8.6 9.0 (the visible devices)"),
        ("", [], "compiles for 7.5 8.0 8.6 8.9 9.0 10.0+PTX (no device is visible; "),
        ("9.0", [(8, 6)], "compiles for 9.0 (TORCH_CUDA_ARCH_LIST)"),
        ("sm_90", [], "TORCH_CUDA_ARCH_LIST: expected compute capabilities"),
    ],
)
def test_architectures_that_a_build_compiles_for(chosen, devices, text, monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(info_command.cuda_compiler, "device_capabilities", lambda: devices)
    monkeypatch.setenv("CUDACXX", str(write_nvcc(tmp_path / "nvcc", version="12.8.61")))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", chosen)
    assert f"nvcc (12.8.61), {text}" in info_command.nvcc()


def test_cpu_build_of_torch_with_an_nvidia_driver(machine, capsys, monkeypatch):
    import torch

    machine()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(info_command, "has_nvidia_driver", lambda: True)
    text = printed(capsys)
    assert "device: an NVIDIA driver is loaded, and torch sees no CUDA device" in text
    assert "CUDA devices run eager PyTorch: torch is a CPU build." in text
    assert steps(text) == ["install a CUDA build of torch"]


def test_other_accelerator_is_named_without_loading_a_library(machine, capsys, monkeypatch):
    machine()
    monkeypatch.setattr(info_command, "accelerators", lambda: ["xpu", "cuda"])
    monkeypatch.setattr(loader, "_load", lambda device, verbose=False: pytest.fail(f"{device} was loaded"))
    assert "xpu: eager (there are no xpu kernels; eager PyTorch runs on the device)" in printed(capsys)


@pytest.mark.parametrize("compiled", [True, False])
def test_cuda_device(compiled, machine, capsys, monkeypatch):
    ready = DeviceBackend("cuda", "compiled", "built at install time", "prebuilt", "/lib.so")
    missing = DeviceBackend("cuda", "eager", "nvcc was not found", todo="install the CUDA toolkit 13.x")
    machine(cuda=ready if compiled else missing)
    monkeypatch.setattr(info_command, "cuda_devices", lambda: ["cuda:0 NVIDIA H200, compute capability 9.0"])
    text = printed(capsys)
    assert "device: cuda:0 NVIDIA H200" in text
    if compiled:
        assert "The CPU runs the compiled kernels. CUDA devices run the compiled kernels.\n" in text
    assert steps(text) == ([] if compiled else ["install the CUDA toolkit 13.x"])


def test_cache_is_described(machine, tmp_path):
    machine()
    assert info_command.cache() == "does not exist yet"
    for name in ("one", "two"):
        (tmp_path / "cache" / name).mkdir(parents=True)
        compilation.write_json(tmp_path / "cache" / name / "done.json", {"file": "x.so"})
    (tmp_path / "cache" / "unfinished").mkdir()
    assert info_command.cache() == "2 finished builds, writable"
    (tmp_path / "cache").chmod(0o777)
    assert "every user may write" in info_command.cache()


def test_json_contains_all_fields(machine, capsys):
    machine(NOT_TRIED)
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"]["cpu"]["reason"] == NOT_TRIED.reason and facts["todo"][0] == NOT_TRIED.todo
    keys = (
        "version torch python platform setting devices instruction_set threads cache_dir hardware cache compiler nvcc"
    )
    assert {*keys.split(), "ninja", "packages", "environment", "executable", "package", "problems"} <= set(facts)
