"""Error messages for common mistakes: each names the argument and what to write instead."""

from __future__ import annotations

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
    # Unknown arguments: Python's own messages, and those of fields.
    "unknown argument": (
        lambda: sinpe.add(X, offset=3),
        TypeError,
        "add() got an unexpected keyword argument 'offset'",
    ),
    "unknown argument of a layer": (
        lambda: sinpe.SinusoidalPositionalEncoding(D, p=0.1),
        TypeError,
        "got an unexpected keyword argument 'p'",
    ),
    "unknown argument of a call": (
        lambda: LAYER(X, offset=3),
        TypeError,
        "got an unexpected keyword argument 'offset'",
    ),
    "second argument of a call": (lambda: LAYER(X, 3), TypeError, "takes 2 positional arguments but 3 were given"),
    "timesteps, scale": (
        lambda: sinpe.TimestepEncoding(D, scale=9),
        TypeError,
        "scale: expected a field of Encoding",
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
        "use torch.compile or torch.export",
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


def test_info_as_json_of_a_cpu_build() -> None:
    done = execute([sys.executable, "-m", "sinpe_ext", "info", "--json"])
    facts = json.loads(done.stdout)
    if facts["devices"]["cpu"]["backend"] == "compiled" and torch.version.cuda is None:
        assert facts["devices"]["cpu"]["build"]["cuda"] == "none"
    assert '"None"' not in done.stdout
