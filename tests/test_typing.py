"""What a type checker knows of the public API: a right program passes `mypy --strict`, a wrong one does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None, reason="mypy is not installed; pip install -e .[lint]"
)

RIGHT = """
import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding

assert_type(sinpe.convention("t2t", 512), Encoding)
assert_type(sinpe.convention("mae2d", 768), GridEncoding)
assert_type(sinpe.convention("nerf", 60, axes=3), GridEncoding)
assert_type(sinpe.Encoding(100, cos_frequency="own").timescales(), tuple[float, ...])
assert_type(sinpe.table(16, 8), Tensor)
assert_type(sinpe.table((4, 4), sinpe.convention("mae2d", 8)), Tensor)
assert_type(sinpe.encode(torch.arange(3), 8), Tensor)
x = torch.zeros(2, 4, 8)
assert_type(sinpe.add(x, "t2t", start=3, scale=2.0, dropout=0.1, seed=7), Tensor)
assert_type(sinpe.add_(x, positions=torch.arange(4)), Tensor)
assert_type(sinpe.embed(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(9, 8)), Tensor)
assert_type(sinpe.identify(sinpe.table(64, 8))[0].name, str)
assert_type(sinpe.conventions(), dict[str, str])
assert_type(sinpe.positions.packed(torch.tensor([0, 2])), Tensor)
print(sinpe.backend_info(), sinpe.__version__)
with sinpe.use_backend("eager"):
    pass


class Front(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(10, 8, padding_idx=0, dropout=0.1)
        self.encoding = sinpe.SinusoidalPositionalEncoding(8, encoding="own_index")
        self.timestep = sinpe.TimestepEncoding(8, encoding="adm")


front = Front()
assert_type(front.tokens.weight, Tensor)
array: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]" = sinpe.numpy.table(16, 8)
"""
WRONG = {
    "sinpe.tabel(4, 8)": "has no attribute",
    "sinpe.Encoding(8, bass=2.0)": "Unexpected keyword argument",
    'sinpe.table("4", 8)': "incompatible type",
    "sinpe.add(x, stat=3)": "Unexpected keyword argument",
    "sinpe.positions.pakced(x)": "has no attribute",
    "sinpe.SinusoidalPositionalEncoding(dim=8)": "Unexpected keyword argument",
}


def checked(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    call = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache")]
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    # From elsewhere: the package's own settings in pyproject.toml are not those of who uses it.
    return subprocess.run(
        [*call, "--follow-imports=silent", "program.py"], cwd=folder, env=env, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_program_that_uses_the_api(tmp_path: Path) -> None:
    lines = RIGHT.splitlines()
    done = checked("\n".join([*lines, *WRONG]), tmp_path)
    said = [line.split(": ", 2) for line in done.stdout.splitlines() if ": error: " in line]
    errors = {int(place.split(":")[1]): text for place, _, text in said}
    assert {n: text for n, text in errors.items() if n <= len(lines)} == {}, done.stdout + done.stderr
    for number, (line, reason) in enumerate(WRONG.items(), start=len(lines) + 1):
        assert reason in errors.get(number, "no error"), (line, done.stdout)
