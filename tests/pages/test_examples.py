"""The examples run as their first lines say, with --quick, and print what they claim."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pages
import pytest
import torch
from children import DEADLINE, execute, library_environment
from loading import module_at
from test_compile import needs_aoti_dtypes, needs_inductor
from torch.utils.cpp_extension import CUDA_HOME

import sinpe_ext

EXAMPLES = pages.ROOT / "examples"
NUMBER = r"[-+]?\d+\.\d+"
FELL = re.compile(rf"loss ({NUMBER}) -> ({NUMBER})")


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as Python does for a script: one example imports another
    return module_at(EXAMPLES / f"{name}.py")


def run(name: str, *arguments: str, cwd: Path | None = None) -> str:
    """The output of an example. Threads that share cores train much slower."""
    command = [sys.executable, EXAMPLES / name, *arguments]
    return execute(command, env=library_environment(), limit=2 * DEADLINE, cwd=cwd).stdout


def summary(printed: str, heading: str) -> dict[str, list[float]]:
    """The numbers of each line below a heading."""
    lines = printed[printed.index(heading) :].splitlines()[1:]
    return {line.split()[0]: [float(number) for number in re.findall(NUMBER, line)] for line in lines}


@pytest.mark.processes
def test_digits() -> None:
    pytest.importorskip("sklearn", reason="pip install scikit-learn")
    printed = run("digits_vit.py", "--quick")
    assert "4 x 4 patches of 2 x 2 pixels, 6 passes over 1438 digits" in printed
    fell = FELL.findall(printed)
    assert len(fell) == 3 and all(float(after) < float(before) - 0.2 for before, after in fell)
    right = {kind: shares[0] for kind, shares in summary(printed, "accuracy on 359 held-out digits").items()}
    assert list(right) == ["mae2d", "learned", "none"]
    assert right["mae2d"] > 60 and right["mae2d"] > right["none"] + 10  # by chance: 10


@pytest.mark.processes
def test_diffusion(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("diffusion_toy", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    noise = example.energy_distance(torch.randn(1000, 2, generator=generator), example.spirals(1000, generator))
    printed = run("diffusion_toy.py", "--quick")
    fell = FELL.findall(printed)
    assert len(fell) == 3 and all(float(after) < float(before) for before, after in fell)
    distance = summary(printed, "energy distance of 1000 samples")
    assert list(distance) == ["data", "encoding", "number", "none"]
    (encoding,), (same, spread) = distance["encoding"], distance["data"]
    assert encoding < noise / 5  # noise: the starting distribution
    assert abs(same) < spread < noise / 20


@pytest.mark.builds
@needs_inductor
@needs_aoti_dtypes
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake was not found: pip install cmake")
def test_aoti_package(tmp_path: Path) -> None:
    """The C++ program uses our kernels or standard operations, and no Python, and prints what the page shows."""
    if sinpe_ext.backend_info().device("cpu").backend != "compiled":
        pytest.skip("the C++ program loads the compiled library")
    if torch.version.cuda and not Path(CUDA_HOME or "none", "include", "cuda_runtime.h").is_file():
        pytest.skip("the CMake package of a CUDA build of torch needs the CUDA toolkit")
    printed = run("aoti_package.py", cwd=tmp_path)
    assert printed.count("under Python: True") == 4 and printed.count("Python in this process: no") == 2

    def without_numbers(text: str) -> list[str]:
        lines = [line for line in text.strip().splitlines() if not line.startswith("$ ")]
        return [" ".join(re.sub(r"\d+(?:\.\d+)*(?:\+\w+)?(?:e[-+]\d+)?", "#", line).split()) for line in lines]

    section = pages.text_of("examples/README.md").partition("\n## aoti_package.py\n")[2].partition("\n## ")[0]
    assert without_numbers(printed) in [without_numbers(block.code) for block in pages.blocks(section, "")], printed


def test_first_ten_lines_use_the_clone_without_installation(tmp_path: Path) -> None:
    """From any folder, and even if another copy is installed."""
    lines = (EXAMPLES / "jit_research.py").read_text(encoding="utf-8").splitlines()
    assert sum(bool(line) and not line.startswith(("import", "from", '"')) for line in lines) <= 10
    for name in ("sinpe_ext", "examples"):
        shutil.copytree(pages.ROOT / name, tmp_path / "clone" / name)
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(sys.modules['sinpe_ext'].__file__)"
    command = [sys.executable, "-c", code, tmp_path / "clone/examples/jit_research.py"]
    printed = execute(command, env=library_environment(PYTHONPATH=None), cwd=tmp_path).stdout
    backend = sinpe_ext.backend_info().device("cpu").backend
    assert f"(8, 128, 256) by the {backend} backend" in printed
    assert printed.splitlines()[-1] == str(tmp_path / "clone/sinpe_ext/__init__.py")


def test_page_lists_every_example() -> None:
    page = pages.text_of("examples/README.md")
    scripts = [*EXAMPLES.glob("*.py"), EXAMPLES / "cpp"]
    assert len(scripts) == 7 and not [path.name for path in scripts if f"]({path.name})" not in page]
    for path in EXAMPLES.glob("*.py"):
        assert f"examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1], path.name
