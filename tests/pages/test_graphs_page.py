"""All Python blocks of docs/graphs.md run, one after the other."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pages
import pytest
import torch
from test_compile import needs_inductor


@pytest.mark.thorough("tests/ops/test_compile, test_export and test_onnx have each call of the page")
@needs_inductor
@pytest.mark.filterwarnings("ignore")  # from torch's exporters
@pytest.mark.parametrize("onnx", [False, True])
def test_all_blocks_run(onnx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ONNX block with the others, except for compilation."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if onnx and missing:
        pytest.skip(f"the ONNX block needs {', '.join(missing)}")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch._dynamo.reset()
    names: dict[str, Any] = {}
    codes = [block.code for block in pages.blocks(pages.text_of("docs/graphs.md"), "python")]
    assert sum("onnxruntime" in code for code in codes) == 1
    left_out = ("torch.compile", "_inductor") if onnx else ("onnxruntime",)
    for code in codes:
        if not any(word in code for word in left_out):
            exec(compile(code, "graphs.md", "exec"), names)
