"""All Python blocks of docs/graphs.md run, one after the other."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_compile import needs_inductor

PAGE = (Path(__file__).parent.parent.parent / "docs" / "graphs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
ONNX = ("onnx", "onnxscript", "onnxruntime")


@pytest.mark.thorough("tests/ops/test_compile, test_export and test_onnx have each call of the page")
@needs_inductor
@pytest.mark.filterwarnings("ignore")  # from torch's exporters
@pytest.mark.parametrize("onnx", [False, True])
def test_all_blocks_run(onnx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in ONNX if importlib.util.find_spec(name) is None]
    if onnx and missing:
        pytest.skip(f"the ONNX block needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch._dynamo.reset()
    names: dict[str, Any] = {}
    ran = [block for block in BLOCKS if onnx or "onnxruntime" not in block]
    assert len(ran) == len(BLOCKS) - (not onnx)
    if onnx:  # repeats the other blocks, except for compilation
        ran = [block for block in ran if "torch.compile" not in block and "_inductor" not in block]
    for block in ran:
        exec(compile(block, "graphs.md", "exec"), names)
