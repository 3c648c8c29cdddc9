"""The examples that need a library: each checks its claims, and prints what examples/README.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import installed
from example_runs import run_as_documented

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("name", "libraries", "said"),
    [
        ("accelerate_meta", ["accelerate"], "include_buffers=True   layers on the disk: same bits True"),
        ("lightning_module", ["lightning"], "largest difference 0.0e+00, same weights: True"),
        ("diffusers_pipeline", ["diffusers"], "1 swapped, 0 left alone"),
    ],
)
def test_example(name: str, libraries: list[str], said: str, tmp_path: Path) -> None:
    for library in libraries:
        installed(library)
    assert said in run_as_documented(f"{name}.py", tmp_path)
