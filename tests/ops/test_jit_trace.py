"""torch.jit.trace, and the ONNX exporter built on it, are refused by every function and layer."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from public_calls import CALLS as PUBLIC
from public_calls import TENSORS
from test_compile import SIZED, D
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and warns about sizes
MESSAGE = r"^torch.jit.trace is not supported, .* use torch.export.export or torch.compile, and for ONNX .*dynamo=True"
X, IDS = torch.randn(2, 5, D), torch.randint(20, (2, 5))


def swapped() -> nn.Module:
    class PositionalEncoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("pe", sinpe.table(50, D)[None])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.pe[:, : x.size(1)]  # type: ignore[index]

    model = PositionalEncoding().eval()
    swap(model, strict=True)
    return model


CALLS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "table, out": (lambda x: sinpe.table(5, D, out=torch.empty_like(x[0])), X),
    "float32 angles": (lambda x: sinpe.add(x, sinpe.Encoding(D, angle="float32_exp")), X),
    "out": (lambda x: sinpe.add(x, out=torch.empty_like(x)), X),
    "layer": (sinpe.SinusoidalPositionalEncoding(D, max_len=9).eval(), X),
    "embedding": (sinpe.SinusoidalEmbedding(20, D).eval(), IDS),
    "timesteps": (sinpe.TimestepEncoding(D), X[:, 0, 0]),
    "a swapped module": (swapped(), X),
    **{name: (call, X) for name, call in SIZED.items() if not name.startswith("positions.from_")},
    **{f"{name}, {tensor}": (PUBLIC[name].of(tensor)[0], PUBLIC[name].tensors[tensor]) for name, tensor in TENSORS},
}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str, backend: str) -> None:
    call, given = CALLS[name]
    want = call(given.clone())  # also after a call that has filled every cache
    message = f"{MESSAGE}|stateless API"  # torch refuses functional_call by itself
    with torch.set_grad_enabled(backend == "compiled"), pytest.raises(RuntimeError, match=message):
        torch.jit.trace(call, given, check_trace=False)
    torch.testing.assert_close(call(given.clone()), want, rtol=0, atol=0)  # nothing remains of the refused call


@pytest.mark.parametrize("name", ["layer", "embedding", "timesteps", "a swapped module"])
def test_older_onnx_exporter_is_refused(name: str) -> None:
    pytest.importorskip("onnx")
    call, given = CALLS[name]
    with pytest.raises(RuntimeError, match=MESSAGE):
        torch.onnx.export(nn.Sequential(call).eval(), (given,), io.BytesIO(), dynamo=False)
