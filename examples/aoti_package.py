"""A model with this library's operators, compiled by AOTInductor and run by a C++ program without Python.

    python examples/aoti_package.py     needs CMake and a C++ compiler

The schemas of this library's operators are defined in Python, not in the library of kernels. So the schemas of the
operators that the model uses are saved as text next to the package, and the program (cpp/aoti/aoti_main.cpp) defines
them before it loads the kernels. The same model exported under `standard_operators` contains only torch's operators and
needs neither schemas nor kernels.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

import sinpe_ext as sinpe
from sinpe_ext.integrations import standard_operators

TOLERANCE = 1e-5  # difference of a LayerNorm's output, which Inductor sums in another order


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(1000, 64, padding_idx=0, dropout=0.1, scale=8.0)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 8)

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        return self.head(self.norm(self.tokens(ids, start=start)))


def write(model: Model, calls: list[list[Tensor]], folder: Path) -> None:
    """Writes the files that the program reads: the package, the schemas, the path of the library, the inputs."""
    folder.mkdir(exist_ok=True)
    batch, length = Dim("batch", min=2, max=64), Dim("length", min=2, max=4096)
    program = torch.export.export(model, tuple(calls[0]), dynamic_shapes=({0: batch, 1: length}, {0: batch}))
    torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))
    schemas = {str(node.target._schema) for node in program.graph.nodes if "sinpe_ext" in str(node.target)}
    (folder / "schemas.txt").write_text("".join(f"{schema}\n" for schema in sorted(schemas)))
    (folder / "library.txt").write_text(f"{library()}\n")
    torch.save(calls, folder / "inputs.pt")


def library() -> str:
    cpu = sinpe.backend_info().device("cpu")
    if cpu.library is None:
        raise SystemExit(f"the C++ program loads the compiled library, and there is none: {cpu.reason}")
    return cpu.library


def build(folder: Path) -> Path:
    source = Path(__file__).resolve().parent / "cpp" / "aoti"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # finds a cmake installed by pip
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for words in (["-S", source, "-B", folder, prefix, "-DCMAKE_BUILD_TYPE=Release"], ["--build", folder]):
        command = ["cmake", *map(str, words)]
        done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"cmake: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return folder / "aoti_main"


def check(folder: Path) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    first = [torch.randint(1000, (2, 16)), torch.tensor([0, 7])]
    far = [torch.randint(1000, (5, 300)), torch.tensor([0, 1, 2, 3, 2**40])]  # another length, and a large start
    program = build(folder / "build")
    for name, made_under in (("kernels", contextlib.nullcontext()), ("standard", standard_operators(float64=True))):
        with made_under:
            write(model, [first, far], folder / name)
        print(f"{name}:", flush=True)
        subprocess.run([program, folder / name], check=True)
        here = torch._inductor.aoti_load_package(str(folder / name / "model.pt2"))
        for call, output in zip((first, far), torch.load(folder / name / "outputs.pt"), strict=True):
            difference = float((output - model(*call)).abs().max())
            same = torch.equal(output, here(*call))
            print(f"  {tuple(call[0].shape)}: the package's bits under Python: {same}; from eager {difference:.1e}")
            assert same and difference <= TOLERANCE


@torch.no_grad()
def main() -> None:
    print(f"torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder))


if __name__ == "__main__":
    main()
