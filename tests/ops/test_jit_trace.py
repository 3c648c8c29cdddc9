"""torch.jit.trace, and the ONNX exporter built on it, are refused by every function and layer."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from public_calls import CALLS as PUBLIC
from public_calls import TENSORS
from torch import nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and warns about sizes
MESSAGE = r"^torch.jit.trace: expected .* use torch.export.export or torch.compile, and for ONNX .*dynamo=True"
D = 12
GRID = sinpe.convention("mae2d", D)
X, IMAGE, IDS = torch.randn(2, 5, D), torch.randn(2, 3, 4, D), torch.randint(20, (2, 5))


def swapped() -> nn.Module:
    class PositionalEncoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pe", sinpe.table(50, D)[None])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.pe[:, : x.size(1)]  # type: ignore[index]

    model = PositionalEncoding().eval()
    swap(model, strict=True)
    return model


CALLS: dict[str, tuple[Callable[[], Callable[..., Any]], torch.Tensor]] = {
    "table": (lambda: lambda x: x + sinpe.table(x.size(1), D), X),
    "table, start": (lambda: lambda x: x + sinpe.table(5, D, start=x.size(1)), X),
    "table, out": (lambda: lambda x: sinpe.table(5, D, out=torch.empty_like(x[0])), X),
    "table of a grid": (lambda: lambda x: x + sinpe.table((3, 4), GRID), IMAGE),
    "float32 angles": (lambda: lambda x: sinpe.add(x, sinpe.Encoding(D, angle="float32_exp")), X),
    "out": (lambda: lambda x: sinpe.add(x, out=torch.empty_like(x)), X),
    "positions.relative": (lambda: lambda x: sinpe.positions.relative(x.size(1)), X),
    "positions.grid": (lambda: lambda x: sinpe.positions.grid((x.size(1), 2)), X),
    "positions.packed": (lambda: lambda ends: sinpe.positions.packed(ends), torch.tensor([0, 3, 5])),
    "layer": (lambda: sinpe.SinusoidalPositionalEncoding(D, max_len=9).eval(), X),
    "embedding": (lambda: sinpe.SinusoidalEmbedding(20, D).eval(), IDS),
    "timesteps": (lambda: sinpe.TimestepEncoding(D), X[:, 0, 0]),
    "a swapped module": (swapped, X),
    **{
        f"{name}, {tensor}": (lambda name=name, tensor=tensor: PUBLIC[name].of(tensor)[0], PUBLIC[name].tensors[tensor])
        for name, tensor in TENSORS
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str, backend: str) -> None:
    make, given = CALLS[name]
    call = make()
    want = call(given.clone())  # also after a call that has filled every cache
    message = f"{MESSAGE}|stateless API"  # torch refuses functional_call by itself
    with torch.set_grad_enabled(backend == "compiled"), pytest.raises(RuntimeError, match=message):
        torch.jit.trace(call, given, check_trace=False)
    torch.testing.assert_close(call(given.clone()), want, rtol=0, atol=0)  # nothing remains of the refused call


@pytest.mark.parametrize("name", ["layer", "embedding", "timesteps", "a swapped module"])
def test_older_onnx_exporter_is_refused(name: str) -> None:
    pytest.importorskip("onnx")
    make, given = CALLS[name]
    model = nn.Sequential(make())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=MESSAGE):
        torch.onnx.export(model.eval(), (given,), io.BytesIO(), dynamo=False)
