"""The examples run as their first lines say, with --quick in a subprocess, and print what they claim."""

from __future__ import annotations

import re
import shutil
import sys
from argparse import Namespace
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


# extrapolation.py


@pytest.mark.processes
def test_extrapolation() -> None:
    printed = run("extrapolation.py", "--quick")
    fell = [(float(before), float(after)) for before, after in FELL.findall(printed)]
    assert len(fell) == 3 and all(after < before - 1 for before, after in fell)
    header, *rows = printed[printed.index("positions") :].splitlines()
    assert header.split() == ["positions", "16", "32", "64", "128", "256"]
    assert [re.split(r"\s{2,}", row)[0] for row in rows] == ["from 0", "random start", "none"]
    for row in rows:
        losses = numbers(row)[::2]
        assert len(losses) == 5 and all(2 < loss < 4 for loss in losses)  # 103 characters by chance: 4.6


def test_extrapolation_predicts_the_same_characters_at_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("extrapolation", monkeypatch)
    data = torch.randint(7, (500,), generator=torch.Generator().manual_seed(0))
    logits = torch.randn(7, 7, generator=torch.Generator().manual_seed(1))
    options = Namespace(length=8, evaluate_lengths=[8, 16, 64], windows=20)
    seen = []

    def of_the_last_character(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids.shape[1])
        return logits[ids]

    losses = [example.loss_at(of_the_last_character, data, n, options) for n in options.evaluate_lengths]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and losses[0] == pytest.approx(losses[2], rel=1e-6)
    assert sorted(set(seen)) == [8, 16, 64] and losses[0] > 0.5


def test_extrapolation_trains_at_random_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("extrapolation", monkeypatch)
    starts: dict[str, list[torch.Tensor]] = {kind: [] for kind in example.KINDS}
    forward = example.AnyLength.forward
    data = torch.randint(7, (500,))
    options = Namespace(length=8, evaluate_lengths=[8, 64], steps=20)
    for kind in example.KINDS:

        def watched(self, ids, start=0, kind=kind):
            starts[kind].append(torch.as_tensor(start))
            return forward(self, ids, start)

        monkeypatch.setattr(example.AnyLength, "forward", watched)
        example.train(kind, data, 7, 0, options)
    drawn = torch.cat(starts["random start"])
    assert drawn.shape == (20 * example.BATCH,) and drawn.min() == 0 and drawn.max() == 64 - 8
    assert not any(start.any() for start in (*starts["from 0"], *starts["none"]))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--length", "16", "--evaluate-lengths", "8"], "--evaluate-lengths: expected 16"),
        (["--text", "short.txt"], "--text: expected more than 10240 characters, got 3"),
    ],
)
def test_extrapolation_rejects(arguments, said, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("abc")
    monkeypatch.setattr(sys, "argv", ["extrapolation.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        load("extrapolation", monkeypatch).main()
    assert stopped.value.code == 2 and said in capsys.readouterr().err


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


@pytest.mark.processes
def test_diffusion_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "samples.png"
    options = ["--steps", "3", "--samples", "50", "--seeds", "0", "--plot", str(picture)]
    assert f"{picture}: data, encoding, number, none" in run("diffusion_toy.py", *options)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 2000


def test_energy_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("diffusion_toy", monkeypatch)
    a, b = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    between = (1 + 5 + 18**0.5 + 10**0.5) / 4
    assert example.energy_distance(a, b) == pytest.approx(2 * between - 5 - 4, abs=1e-5)
    generator = torch.Generator().manual_seed(0)
    same = [example.energy_distance(*example.spirals(400, generator).split(200)) for _ in range(50)]
    error = (torch.tensor(same).std() / 50**0.5).item()
    assert abs(sum(same) / 50) < 4 * error < 0.01  # unbiased


# scripts that check their claims


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore")
def test_onnx_session(tmp_path: Path) -> None:
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason=f"pip install {library}")
    printed = run_as_documented("onnx_session.py", tmp_path)
    assert printed.count("tokens + rows: 0.0e+00") >= 4  # one rounding in 2^24 may differ


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
        ("extrapolation", ["--length", "8", "--steps", "2", "--windows", "4", "--seeds", "3"]),
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
    assert len(scripts) >= 7 and not [path.name for path in scripts if f"]({path.name})" not in page]
    for path in EXAMPLES.glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert f"examples/{path.name}" in code.split('"""')[1] and len(code.splitlines()) < 200, path.name
