"""`python -m sinpe_ext info`: says what runs, why the kernels are not used, and the remedy."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch

import sinpe_ext
from sinpe_ext import __main__ as cli
from sinpe_ext.backend import loader
from sinpe_ext.backend.loader import DeviceBackend

NO_CUDA = DeviceBackend("cuda", "eager", "torch is a CPU build", todo="install a CUDA build of torch")
NO_NVCC = DeviceBackend("cuda", "eager", "nvcc was not found\nhere", todo="install the CUDA toolkit 13.x")
BUILT = {"compiler_version": "g++ 13", "nvcc_version": "13.0.1", "torch": "2.13.0", "architectures": "8.0 9.0"}
CUDA = DeviceBackend("cuda", "compiled", "built at install time", "prebuilt", "/lib.so", build=BUILT)
CPU = DeviceBackend("cpu", "compiled", "built at install time", "prebuilt", "/cpu.so", todo="unused")
NO_CPU = DeviceBackend("cpu", "eager", "nothing was built at install time", todo="install g++ or clang++, or set CXX")
SLOWER = "The CPU runs eager PyTorch: the same values, slower."
RAISES = "Calls on the CPU raise BackendUnavailableError: the compiled backend is required and not available."
KERNELS = "The CPU runs the compiled kernels."


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("SINPE")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(loader, "_setting", None)
    monkeypatch.setattr("sinpe_ext.backend.info._fact", lambda device, name: {"cpu_isa": "v3"}.get(name))


@pytest.mark.parametrize(
    ("cpu", "cuda", "seen", "setting", "conclusion", "steps"),
    [
        (CPU, NO_CUDA, False, "auto", [KERNELS], []),
        (NO_CPU, NO_CUDA, False, "auto", [SLOWER], [NO_CPU.todo]),
        (NO_CPU, NO_CUDA, False, "compiled", [RAISES], [NO_CPU.todo]),
        (CPU, NO_CUDA, False, "eager", [SLOWER], ["unset SINPE_EXT_BACKEND"]),
        (CPU, CUDA, True, "auto", [KERNELS, "CUDA devices run the compiled kernels."], []),
        (CPU, NO_NVCC, True, "auto", [KERNELS, "CUDA devices run eager PyTorch: nvcc was not found."], [NO_NVCC.todo]),
    ],
)
def test_conclusion_and_steps(cpu, cuda, seen, setting, conclusion, steps, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(loader, "_backends", {"cpu": cpu, "cuda": cuda})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    monkeypatch.setenv("SINPE_EXT_BACKEND", setting)
    monkeypatch.setenv("SINPE_EXT_CACHE_DIR", str(tmp_path / "cache"))
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["conclusion"], facts["todo"]) == (conclusion, steps)
    assert set(facts["devices"]) == {"cpu", "cuda"} and facts["setting"] == setting
    assert facts["instruction_set"] == "v3" and facts["cache_dir"] == str(tmp_path / "cache")
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    last = "\n".join([*conclusion, *(["To change that:"] if steps else []), *(f"  - {step}" for step in steps)])
    assert text.endswith(f"\nJIT cache: {tmp_path / 'cache'}\n\n{last}\n") and "instruction set: v3\n" in text
    if setting == "eager":
        assert "cpu: eager (chosen by SINPE_EXT_BACKEND=eager)\n" in text and "/cpu.so" not in text
    else:
        shown = f"cpu: {cpu.backend} ({cpu.reason})\n"
        shown += f"    library: {cpu.library}\n" if cpu is CPU else f"    to get the compiled backend: {cpu.todo}\n"
        assert shown in text and "unused" not in text
        assert ("built by g++ 13 and nvcc 13.0.1 for torch 2.13.0, architectures 8.0 9.0\n" in text) == (cuda is CUDA)


def test_backend_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that can be pickled, with a device type that was used; a setting made in code has another remedy."""
    monkeypatch.setattr(loader, "_backends", {"cpu": NO_CPU, "cuda": NO_CUDA})
    loader.resolve("mps")
    info = sinpe_ext.backend_info()
    assert [entry.device for entry in info.devices] == ["cpu", "cuda", "mps"] and info.device("cpu") is NO_CPU
    assert "xpu kernels" in info.device("xpu").reason and pickle.loads(pickle.dumps(info)) == info
    assert info.version == sinpe_ext.__version__ and info.torch == torch.__version__
    assert info.threads == torch.get_num_threads()
    monkeypatch.setattr(loader, "_setting", "eager")
    assert sinpe_ext.backend_info().device("cpu").todo == 'use_backend("auto")'


def test_invalid_setting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SINPE_EXT_BACKEND", "fast")
    assert cli.main(["info"]) == 2
    assert "SINPE_EXT_BACKEND: expected one of auto" in capsys.readouterr().err
