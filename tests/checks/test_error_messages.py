"""Error messages for common mistakes: each names the argument and what to write instead."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from children import execute
from torch import nn

import sinpe_ext as sinpe

D = 8
X = torch.zeros(2, 3, D)
IDS = torch.zeros(2, 3, dtype=torch.long)
WEIGHT = torch.zeros(5, D)
LAYER = sinpe.SinusoidalPositionalEncoding(D)
EMBEDDING = sinpe.SinusoidalEmbedding(5, D)

# Call, exception type, part of the message.
MESSAGES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a float for an encoding": (
        lambda: sinpe.table(5, 64.0),
        TypeError,
        "encoding: expected an Encoding, a name with dim= or an int (the dim), got float; pass Encoding(dim) or con",
    ),
    "a float for an encoding of x": (
        lambda: sinpe.add(X, 8.0),
        TypeError,
        "encoding: expected an Encoding, a convention's name or an int (the dim), got float; pass Encoding(dim)",
    ),
    "a module for weight": (
        lambda: sinpe.embed(IDS, nn.Embedding(5, D)),
        TypeError,
        "weight: expected a torch.Tensor, got Embedding; pass its .weight",
    ),
    "a layer for weight": (lambda: sinpe.embed(IDS, EMBEDDING), TypeError, "got SinusoidalEmbedding; pass its .weight"),
    "dtype as a string": (
        lambda: sinpe.table(5, D, dtype="float32"),
        TypeError,
        "dtype: expected torch.float32, float64, bfloat16 or float16, got 'float32'; pass torch.float32",
    ),
    "dtype by a short name": (lambda: sinpe.encode(IDS, D, dtype="bf16"), TypeError, "pass torch.bfloat16"),
    "torch's name as a string": (lambda: sinpe.encode(IDS, D, dtype="torch.half"), TypeError, "pass torch.float16"),
    "NumPy's dtype": (lambda: sinpe.table(5, D, dtype=np.float64), TypeError, "pass torch.float64"),
    "another dtype": (
        lambda: sinpe.table(5, D, dtype=torch.int32),
        TypeError,
        "got torch.int32; pass one of these and convert the result",
    ),
    "starts in a list": (
        lambda: sinpe.add(X, start=[0, 7]),
        TypeError,
        "start: expected an int or an integer tensor, got list; pass an int, or torch.tensor([0, 7]) of shape (2,)",
    ),
    "too many starts in a list": (
        lambda: sinpe.add(X, start=[0, 7, 2]),
        TypeError,
        "pass an int, or an int64 tensor of shape (2,) for one start per sample",
    ),
    "dtype of positions as a string": (
        lambda: sinpe.positions.from_mask_2d(X[..., 0] > 0, dtype="float32"),
        TypeError,
        "dtype: expected torch.float32 or torch.float64, got 'float32'; pass torch.float64",
    ),
    "16-bit positions": (
        lambda: sinpe.add(X, positions=torch.zeros(3, dtype=torch.float16)),
        TypeError,
        "positions: expected an integer dtype, float32 or float64, got torch.float16; float16 cannot hold integers",
    ),
    # Unknown keyword arguments.
    "offset": (lambda: sinpe.add(X, offset=3), TypeError, "offset: expected an argument of add, got a name it lacks; "),
    "offset means start": (lambda: sinpe.add(X, offset=3), TypeError, "use start=..."),
    "offset in place": (lambda: sinpe.add_(X.clone(), offset=3), TypeError, "an argument of add_, got a name"),
    "mask": (lambda: sinpe.add(X, mask=IDS), TypeError, "use padding_mask=..."),
    "attention_mask": (lambda: sinpe.add(X, attention_mask=IDS), TypeError, "use padding_mask=attention_mask == 0"),
    "p": (lambda: sinpe.add(X, p=0.1), TypeError, "use dropout=..."),
    "dim of a table": (lambda: sinpe.table(5, D, base=100), TypeError, "use encoding=Encoding(dim, base=...)"),
    "dim of embed": (lambda: sinpe.embed(IDS, WEIGHT, dim=D), TypeError, "use Encoding(dim), or convention(name, dim)"),
    "base": (lambda: sinpe.encode(IDS, D, base=100), TypeError, "use encoding=Encoding(dim, base=...)"),
    "theta": (lambda: sinpe.add(X, theta=100), TypeError, "use encoding=Encoding(dim, base=...)"),
    "max_len of a function": (lambda: sinpe.add(X, max_len=9), TypeError, "no such argument: no table is stored"),
    "batch_first of a function": (lambda: sinpe.add(X, batch_first=False), TypeError, "seq_dim=0"),
    "generator": (lambda: sinpe.add(X, generator=torch.Generator()), TypeError, "use seed=..."),
    "offset of encode, whose positions are final": (
        lambda: sinpe.encode(IDS, D, offset=2),
        TypeError,
        "positions are final, pass positions + offset",
    ),
    "called with base": (
        lambda: LAYER(X, base=100),
        TypeError,
        "it is a property of the layer, whose constructor takes encoding=Encoding(dim, ...)",
    ),
    "called with d_model": (lambda: EMBEDDING(IDS, d_model=D), TypeError, "it is a property of the layer"),
    "called with training": (lambda: LAYER(X, training=True), TypeError, "call train() or eval() of the layer"),
    "training of a function": (lambda: sinpe.add(X, training=True), TypeError, "use dropout=p if training else 0.0"),
    "training of a table": (lambda: sinpe.table(5, D, training=True), TypeError, "the arguments are length, encoding"),
    "attention_mask of encode": (
        lambda: sinpe.encode(IDS, D, attention_mask=IDS),
        TypeError,
        "the arguments are positions, encoding, dim, dtype, allow_16bit",
    ),
    "timesteps called with offset": (
        lambda: sinpe.TimestepEncoding(D)(X[0, 0], offset=1),
        TypeError,
        "offset: expected an argument of TimestepEncoding.forward, got a name it lacks",
    ),
    "in a graph": (
        lambda: torch.compile(lambda x: sinpe.add(x, offset=3), backend="eager", fullgraph=True)(X),
        Exception,
        "use start=...",
    ),
    "misspelt": (lambda: sinpe.add(X, positons=IDS), TypeError, "did you mean positions?"),
    "unlike any argument": (
        lambda: sinpe.encode(IDS, D, zzz=1),
        TypeError,
        "the arguments are positions, encoding, dim, dtype",
    ),
    "layer, p": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, p=0.1),
        TypeError,
        "p: expected an argument of SinusoidalPositionalEncoding, got a name it lacks; use dropout=...",
    ),
    "layer, dim": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, dim=D),
        TypeError,
        "use d_model, the first argument",
    ),
    "layer, base": (lambda: sinpe.SinusoidalPositionalEncoding(D, base=9), TypeError, "Encoding(dim, base=...)"),
    "layer, offset": (lambda: sinpe.SinusoidalPositionalEncoding(D, offset=9), TypeError, "Encoding(dim, start=...)"),
    "embedding, d_model": (
        lambda: sinpe.SinusoidalEmbedding(5, D, d_model=D),
        TypeError,
        "d_model: expected an argument of SinusoidalEmbedding, got a name it lacks; use embedding_dim=...",
    ),
    "embedding, p": (lambda: sinpe.SinusoidalEmbedding(5, D, p=0.1), TypeError, "use dropout=..."),
    "pretrained embedding, base": (
        lambda: sinpe.SinusoidalEmbedding.from_pretrained(WEIGHT, base=9),
        TypeError,
        "Encoding(dim, base=...)",
    ),
    "timesteps, scale": (lambda: sinpe.TimestepEncoding(D, scale=1000), TypeError, "use position_scale=..."),
    "called with offset": (
        lambda: LAYER(X, offset=3),
        TypeError,
        "offset: expected an argument of SinusoidalPositionalEncoding.forward, got a name it lacks; use start=...",
    ),
    "called with mask": (lambda: EMBEDDING(IDS, mask=IDS), TypeError, "SinusoidalEmbedding.forward, got a name it lac"),
    "called with a second argument": (
        lambda: LAYER(X, 3),
        TypeError,
        "SinusoidalPositionalEncoding: expected one argument by position, got 2; name the others. ",
    ),
    # TorchScript
    "script of a layer": (
        lambda: torch.jit.script(LAYER),
        NotImplementedError,
        "torch.jit.script cannot read sinpe_ext",
    ),
    "script of a model": (
        lambda: torch.jit.script(nn.Sequential(nn.Linear(D, D), EMBEDDING)),
        NotImplementedError,
        "use torch.jit.trace, torch.compile or torch.export",
    ),
    "script of timesteps": (
        lambda: torch.jit.script(sinpe.TimestepEncoding(D)),
        NotImplementedError,
        "torch.jit.script cannot read sinpe_ext",
    ),
    "script of a function": (
        lambda: torch.jit.script(sinpe.add),
        RuntimeError,
        "torch.jit.script cannot read sinpe_ext",
    ),
    "script of a caller": (lambda: torch.jit.script(caller), RuntimeError, "torch.jit.script cannot read sinpe_ext"),
    "TorchScript exporter": (
        lambda: torch.onnx.export(LAYER, (X,), io.BytesIO(), dynamo=False),
        TypeError,
        "torch.onnx.export(dynamo=False) names none: export torch.nn.Sequential(layer)",
    ),
}


def caller(x: torch.Tensor) -> torch.Tensor:
    return sinpe.add(x, None)


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:You are using the legacy TorchScript-based")
@pytest.mark.parametrize("name", MESSAGES)
def test_error_message(name: str, backend: str) -> None:
    call, error, message = MESSAGES[name]
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400 or error is Exception


def test_common_wrong_keywords_of_every_function_and_layer() -> None:
    for function in (sinpe.add, sinpe.add_, sinpe.embed, sinpe.encode, sinpe.table):
        for name in ("offset", "mask", "p", "dim", "base"):
            if name == "dim" and function in (sinpe.encode, sinpe.table):
                continue  # this one has the argument
            with pytest.raises(TypeError, match=f"^{name}: expected an argument of {function.__name__}, got"):
                function(X, X, **{name: 1})


def test_info_as_json_has_null() -> None:
    done = execute([sys.executable, "-m", "sinpe_ext", "info", "--json"])
    facts = json.loads(done.stdout)
    if facts["devices"]["cpu"]["backend"] == "compiled" and torch.version.cuda is None:
        assert facts["devices"]["cpu"]["build"]["cuda"] is None
    assert '"None"' not in done.stdout
