"""docs/migrating.md: its adapters, recorded calls, and the libraries' results for them.

`library_calls.json` has, for each heading of the page, the library's version, files, and calls with the library's
names. An adapter has the same names and signatures, so a call runs on the adapter and is compared with the recorded
result (tests/pages/test_migrating.py), and on the library if it is installed (tests/peers/test_migrating_calls.py).

The values were computed by the named files on 2026-11-24 on an x86-64 CPU with torch 2.13.0. float32 values have the
fewest digits that restore them.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pages
import torch
from torch import Tensor

PAGE = "docs/migrating.md"
CALLS = Path(__file__).parent / "library_calls.json"
WHAT_CALLS_NAME = {"torch": torch, "math": math, "np": np, "SimpleNamespace": SimpleNamespace, "array": np.array}

# Error of a library's float32 angle, and so of its sine: p w (3 |log w| + 3) 2^-24 <= p 2^-22 for w <= 1
# (tests/peers/agreement.py); all angles are below 32. 2^-21 for the roundings of values and sums below 4.
LARGEST_ANGLE = 32.0
TOLERANCE = LARGEST_ANGLE * 2.0**-22 + 2.0**-21

# Attributes that other code reads of a layer: heading, layer, expression, value, and the code that reads it.
ATTRIBUTES: list[tuple[str, str, str, Any, str]] = [
    ("The PyTorch tutorial", "PositionalEncoding(8, max_len=9)", "layer.pe.shape", (9, 1, 8),
     "checkpoints, and code that slices pe"),
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", "min(1024, layer.max_positions)", 1024,
     "fairseq/models/transformer/transformer_encoder.py"),
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", "layer.padding_idx, layer.embedding_dim", (1, 8),
     "code that initializes weights on the meta device"),
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", "layer.get_embedding(9, 8, 1)[1].any().item()", False,
     "TensorRT-LLM: examples/enc_dec/convert_checkpoint.py"),
    ("fairseq", "SinusoidalPositionalEmbedding(8, None)", "layer.padding_idx", 0,
     "the constructor: None means 0"),
    ("ESPnet", "PositionalEncoding(8, 0.1)", "layer.xscale, layer.d_model, layer.reverse", (8**0.5, 8, False),
     "espnet_onnx/export/asr/models/layers/embed.py"),
    ("ESPnet", "StreamPositionalEncoding(8, 0.1)", "layer.xscale, layer.d_model", (8**0.5, 8),
     "espnet_onnx/export/asr/models/encoders/contextual_block_xformer.py"),
    ("ESPnet", "RelPositionalEncoding(8, 0.1)", "layer.xscale, layer.d_model", (8**0.5, 8),
     "espnet_onnx/export/asr/models/layers/embed.py"),
    ("ESPnet", "ScaledPositionalEncoding(8, 0.1)", "layer.alpha.data.item()", 1.0,
     "espnet2/tts/fastspeech/fastspeech.py, of embed[-1]"),
    ("diffusers", "Timesteps(32, True, 0)",
     "layer.num_channels, layer.flip_sin_to_cos, layer.downscale_freq_shift, layer.scale", (32, True, 0, 1),
     "conversions of the time embedding for other devices"),
    ("nerfstudio", "NeRFEncoding(3, 4, 0.0, 3.0, True)",
     "layer.get_out_dim(), layer.in_dim, layer.num_frequencies", (27, 3, 4),
     "nerfstudio/fields/vanilla_nerf_field.py, and fields made after it"),
    ("nerfstudio", "NeRFEncoding(3, 4, 0.0, 3.0)", "layer(torch.ones(2, 3), covs=None).shape", (2, 24),
     "nerfstudio/fields/vanilla_nerf_field.py"),
]  # fmt: skip

# Layer, call with x (float16), ids and steps, and the dtype of the result: after half(), and of the float32 layer.
HALF, SINGLE = torch.float16, torch.float32
DTYPES = [
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", "layer(ids)", HALF, SINGLE),
    ("fairseq", "SinusoidalPositionalEmbedding(8, 1)", "layer(ids, incremental_state={})", HALF, SINGLE),
    ("diffusers", "Timesteps(8, True, 0)", "layer(steps)", SINGLE, SINGLE),
    ("nerfstudio", "NeRFEncoding(8, 4, 0.0, 3.0, True)", "layer(x)", SINGLE, SINGLE),
]


def given() -> dict[str, Any]:
    """The inputs that DTYPES names."""
    ids = torch.tensor([[5, 6, 7], [5, 6, 1]])
    return {"torch": torch, "x": torch.ones(2, 3, 8, dtype=HALF), "ids": ids, "steps": torch.arange(3, dtype=HALF)}


def sections(text: str) -> dict[str, str]:
    """Heading -> text of its section."""
    parts = text.split("\n## ")
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts[1:]}


def adapters(text: str | None = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Heading -> code of its blocks, and the names that it defines; the page's first block runs before each."""
    text = pages.text_of(PAGE) if text is None else text
    imports = pages.blocks(text[: text.index("\n## ")], "python")[0].code
    by_heading = {}
    for heading, section in sections(text).items():
        code = "\n".join(block.code for block in pages.blocks(section, "python"))
        if code:
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(f"{imports}\n{code}", f"{PAGE} {heading}", "exec"), names)
            by_heading[heading] = code, names
    return by_heading


def recorded() -> dict[str, Any]:
    calls: dict[str, Any] = json.loads(CALLS.read_text(encoding="utf-8"))
    return calls


def result(call: str, names: dict[str, Any]) -> Tensor:
    """The result of a call as a tensor on the CPU."""
    given = eval(call, {**WHAT_CALLS_NAME, **names})
    return given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.array(given))


def definitions(file: Path, names: Iterable[str], scope: dict[str, Any]) -> None:
    """Runs classes, functions and constants of a library's file, without importing the library or its dependencies.

    Decorators, which register or compile, are removed.
    scope: global names that they use; the definitions are added to it.
    """
    wanted = set(names)
    body = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if _name(node) in wanted]
    assert {_name(node) for node in body} == wanted, f"{file} has {[_name(node) for node in body]} of {sorted(wanted)}"
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            node.decorator_list = []
    flag = annotations.compiler_flag  # annotations are not evaluated
    exec(compile(ast.Module(body, []), str(file), "exec", flag, dont_inherit=True), scope)


def _name(node: ast.stmt) -> str:
    """The name that a statement defines."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")
