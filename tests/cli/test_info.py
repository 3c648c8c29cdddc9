"""`python -m sinpe_ext info`: says what runs, why the kernels are not used, and the remedy."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
from children import environment, run

from sinpe_ext import __main__ as cli
from sinpe_ext.backend import loader
from sinpe_ext.backend.loader import DeviceBackend

NO_CUDA = DeviceBackend("cuda", "eager", "torch is a CPU build", todo="install a CUDA build of torch")
PREBUILT = DeviceBackend("cpu", "compiled", "built at install time", "prebuilt", "/lib.so")
NOT_TRIED = DeviceBackend(
    "cpu", "eager", "nothing was built at install time", todo="install g++ or clang++, or set CXX"
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Replaces the backends found in this process, and removes all settings."""

    def decide(cpu: DeviceBackend = PREBUILT, cuda: DeviceBackend = NO_CUDA, seen: bool = False, **set_: str) -> None:
        import torch

        for name in [name for name in os.environ if name.upper().startswith("SINPE")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
        for name, value in set_.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(loader, "_setting", None)
        monkeypatch.setattr(loader, "_backends", {"cpu": cpu, "cuda": cuda})
        monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
        monkeypatch.setattr("sinpe_ext.backend.info._fact", lambda _, name: "v3" if name == "cpu_isa" else None)

    return decide


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["info"]) == 0
    return capsys.readouterr().out


def steps(text: str) -> list[str]:
    return re.findall(r"^  - (.+)$", text, re.MULTILINE)


def test_prebuilt(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine()
    text = printed(capsys)
    assert "cpu: compiled (built at install time)" in text and "instruction set: v3" in text
    assert text.endswith("\nThe CPU runs the compiled kernels.\n") and not steps(text)


def test_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom sinpe_ext.__main__ import main\nmain(['info'])"
    text, _ = run(code, environment())
    assert "torch not installed" in text and "The CPU runs nothing (NumPy alone).\nTo change that:" in text
    assert steps(text) == ["pip install torch"]


def test_required_backend_is_missing(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine(NOT_TRIED, SINPE_EXT_BACKEND="compiled")
    text = printed(capsys)
    assert "Calls on the CPU raise BackendUnavailableError" in text and "eager PyTorch: the same" not in text
    assert steps(text) == [NOT_TRIED.todo]


def test_eager_by_setting(machine: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(SINPE_EXT_BACKEND="eager")
    text = printed(capsys)
    assert "cpu: eager (chosen by SINPE_EXT_BACKEND=eager)" in text
    assert steps(text) == ["unset SINPE_EXT_BACKEND"]
    monkeypatch.setattr(loader, "_setting", "eager")
    assert steps(printed(capsys)) == ['use_backend("auto")']


def test_setting_that_is_not_valid(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine(SINPE_EXT_BACKEND="fast")
    assert cli.main(["info"]) == 2
    assert "SINPE_EXT_BACKEND: expected one of auto" in capsys.readouterr().err


@pytest.mark.parametrize("compiled", [True, False])
def test_cuda_device(compiled: bool, machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ready = DeviceBackend("cuda", "compiled", "built at install time", "prebuilt", "/lib.so")
    missing = DeviceBackend("cuda", "eager", "nvcc was not found", todo="install the CUDA toolkit 13.x")
    machine(cuda=ready if compiled else missing, seen=True)
    text = printed(capsys)
    runs = "the compiled kernels" if compiled else "eager PyTorch: nvcc was not found"
    assert f"The CPU runs the compiled kernels.\nCUDA devices run {runs}.\n" in text
    assert steps(text) == ([] if compiled else ["install the CUDA toolkit 13.x"])


def test_json_contains_all_fields(machine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    machine(NOT_TRIED)
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"]["cpu"]["reason"] == NOT_TRIED.reason and facts["todo"] == [NOT_TRIED.todo]
    assert facts["conclusion"] == ["The CPU runs eager PyTorch: the same values, slower."]
    names = "version torch python platform setting devices instruction_set threads cache_dir core core_reason"
    assert set(names.split()) <= set(facts)
