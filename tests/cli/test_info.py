"""`python -m sinpe_ext info`: names each reason why the kernels are not used, and the remedy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from build_support import PREAMBLE, needs_compiler, write_script, write_small_sources
from children import environment, forked, run

from sinpe_ext import __main__ as cli
from sinpe_ext.backend import loader
from sinpe_ext.backend.jit import CACHE_TODO
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
        monkeypatch.setattr(info_command, "has_cuda", lambda report: False)
        monkeypatch.setattr("sinpe_ext.backend.info._fact", lambda device, name: "v3" if name == "cpu_isa" else None)

    return decide


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["info"]) == 0
    return capsys.readouterr().out


def steps(text: str) -> list[str]:
    return re.findall(r"^  - (.+)$", text, re.MULTILINE)


# CPU backend


def test_prebuilt(machine, capsys):
    machine()
    text = printed(capsys)
    assert "cpu: compiled (built at install time)" in text and "instruction set: v3" in text
    assert text.endswith("\nThe CPU runs the compiled kernels.\n") and not steps(text)
    assert "\nJIT cache: " in text and "threads" in text.splitlines()[0]


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
        "CXX that does not exist": ({"CXX": "/nonexistent/c++"}, "(CXX=/nonexistent/c++)", "install g++"),
        "cache that is a file": ({"SINPE_EXT_CACHE_DIR": str(tmp_path / "file")}, "File exists", CACHE_TODO),
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
    assert "torch not installed" in text and "The CPU runs nothing (NumPy alone).\nTo change that:" in text
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


# CUDA


@pytest.mark.parametrize("compiled", [True, False])
def test_cuda_device(compiled, machine, capsys, monkeypatch):
    ready = DeviceBackend("cuda", "compiled", "built at install time", "prebuilt", "/lib.so")
    missing = DeviceBackend("cuda", "eager", "nvcc was not found", todo="install the CUDA toolkit 13.x")
    machine(cuda=ready if compiled else missing)
    monkeypatch.setattr(info_command, "has_cuda", lambda report: True)
    text = printed(capsys)
    assert ("CUDA devices run the compiled kernels.\n" in text) is compiled
    assert steps(text) == ([] if compiled else ["install the CUDA toolkit 13.x"])


def test_json_contains_all_fields(machine, capsys):
    machine(NOT_TRIED)
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"]["cpu"]["reason"] == NOT_TRIED.reason and facts["todo"][0] == NOT_TRIED.todo
    keys = "version torch python platform setting devices instruction_set threads cache_dir conclusion todo"
    assert {*keys.split()} <= set(facts)
