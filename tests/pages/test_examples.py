"""The examples run as their first lines say, with --quick in a subprocess, and print what they claim."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from example_runs import EXAMPLES, run, run_as_documented
from loading import module_at
from test_compile import needs_aoti_dtypes, needs_inductor
from torch.utils.cpp_extension import CUDA_HOME

import sinpe_ext

NUMBER = r"([-+]?\d+\.\d+)"
FELL = re.compile(rf"loss {NUMBER} -> {NUMBER}")


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as Python does for a script: one example imports another
    return module_at(EXAMPLES / f"{name}.py")


def without_library(library: str, folder: Path) -> Path:
    """A folder that makes the library fail to import."""
    (folder / f"{library}.py").write_text("raise ImportError('not here')\n")
    return folder


def numbers(line: str) -> list[float]:
    return [float(value) for value in re.findall(NUMBER, line)]


# digits_vit.py


@pytest.mark.processes
def test_digits() -> None:
    pytest.importorskip("sklearn", reason="pip install scikit-learn")
    printed = run("digits_vit.py", "--quick")
    assert "4 x 4 patches of 2 x 2 pixels, 6 passes over 1438 digits" in printed
    fell = FELL.findall(printed)
    assert len(fell) == 3 and all(float(after) < float(before) - 0.2 for before, after in fell)
    summary = printed[printed.index("accuracy on 359 held-out digits") :].splitlines()
    right = {line.split()[0]: numbers(line)[0] for line in summary[1:]}
    assert list(right) == ["mae2d", "learned", "none"]
    assert right["mae2d"] > 60 and right["mae2d"] > right["none"] + 10  # by chance: 10


def test_digits_names_a_missing_library(tmp_path: Path) -> None:
    printed = run("digits_vit.py", "--quick", status=1, first=without_library("sklearn", tmp_path))
    assert "scikit-learn, which has the digits, was not found (not here): pip install scikit-learn" in printed
    assert "Traceback" not in printed


def test_digits_without_encoding_is_invariant_to_patch_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kinds differ only in the encoding: same initial weights; only "none" ignores the order of patches."""
    example = load("digits_vit", monkeypatch)
    picture = torch.rand(1, 1, 8, 8)
    turned = picture.roll(4, 2)  # whole patches are permuted
    models = {}
    for kind in example.KINDS:
        torch.manual_seed(0)
        models[kind] = example.VisionTransformer(kind, 2).eval()
        moved = (models[kind](picture) - models[kind](turned)).abs().max()
        assert (moved < 1e-5) == (kind == "none"), kind
    shared = models["none"].state_dict()
    for kind in ("mae2d", "learned"):
        state = models[kind].state_dict()
        assert set(state) - set(shared) == ({"learned"} if kind == "learned" else set())
        assert all(torch.equal(state[name], value) for name, value in shared.items())


# diffusion_toy.py


@pytest.mark.processes
def test_diffusion(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("diffusion_toy", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    noise = example.energy_distance(torch.randn(1000, 2, generator=generator), example.spirals(1000, generator))
    printed = run("diffusion_toy.py", "--quick")
    fell = FELL.findall(printed)
    assert len(fell) == 3 and all(float(after) < float(before) for before, after in fell)
    summary = printed[printed.index("energy distance of 1000 samples") :].splitlines()
    distance = {line.split()[0]: numbers(line) for line in summary[1:]}
    assert list(distance) == ["data", "encoding", "number", "none"]
    (encoding,), (same, spread) = distance["encoding"], distance["data"]
    assert encoding < noise / 5  # noise: the starting distribution
    assert abs(same) < spread < noise / 20


def test_energy_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("diffusion_toy", monkeypatch)
    a, b = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    between = (1 + 5 + 18**0.5 + 10**0.5) / 4
    assert example.energy_distance(a, b) == pytest.approx(2 * between - 5 - 4, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    same = [example.energy_distance(*example.spirals(400, generator).split(200)) for _ in range(50)]
    error = (torch.tensor(same).std() / 50**0.5).item()
    assert abs(sum(same) / 50) < 4 * error < 0.01  # unbiased


# aoti_package.py


@pytest.mark.builds
@needs_inductor
@needs_aoti_dtypes
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake was not found: pip install cmake")
def test_aoti_package(tmp_path: Path) -> None:
    """The C++ program uses our kernels or standard operations, and no Python."""
    if sinpe_ext.backend_info().device("cpu").backend != "compiled":
        pytest.skip("the C++ program loads the compiled library")
    if torch.version.cuda and not Path(CUDA_HOME or "none", "include", "cuda_runtime.h").is_file():
        pytest.skip("the CMake package of a CUDA build of torch needs the CUDA toolkit")
    printed = run_as_documented("aoti_package.py", tmp_path)
    assert printed.count("under Python: True") == 4 and printed.count("Python in this process: no") == 2


# all examples


@pytest.mark.processes
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits_vit", ["--patch", "4", "--epochs", "1", "--seeds", "3"]),
        ("diffusion_toy", ["--steps", "3", "--samples", "50", "--seeds", "3"]),
    ],
)
def test_result_is_determined_by_the_seed(name, arguments, monkeypatch, capsys) -> None:
    if name == "digits_vit":
        pytest.importorskip("sklearn", reason="pip install scikit-learn")
    example = load(name, monkeypatch)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    printed = []
    for _ in range(2):
        torch.rand(3)  # earlier random numbers have no influence
        example.main()
        printed.append(re.sub(r"in \d+ s", "in a time", capsys.readouterr().out))
    assert printed[0] == printed[1] and "seed 3" in printed[0]


def test_first_ten_lines() -> None:
    code = (EXAMPLES / "jit_research.py").read_text()
    assert sum(bool(line) and not line.startswith(("import", "from", '"')) for line in code.splitlines()) <= 10
    backend = sinpe_ext.backend_info().device("cpu").backend
    assert f"(8, 128, 256) by the {backend} backend" in run("jit_research.py")


def test_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    scripts = [*EXAMPLES.glob("*.py"), EXAMPLES / "cpp"]
    assert len(scripts) == 7 and not [path.name for path in scripts if f"]({path.name})" not in page]
    for path in EXAMPLES.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert f"examples/{path.name}" in code.split('"""')[1] and len(code.splitlines()) < 200, path.name
