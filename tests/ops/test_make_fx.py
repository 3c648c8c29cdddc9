"""make_fx records the operators: the graph gives the function's values or an error, never x without the encoding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import sinpe_ext as sinpe

D = 16
X, WEIGHT, PLACES, POSITIONS = torch.randn(2, 8, D), torch.randn(20, D), torch.randn(2, 4, 4, D), torch.rand(8) * 100
IDS = torch.arange(16).reshape(2, 8)
LAYER = sinpe.SinusoidalPositionalEncoding(D).eval()
CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "table": (lambda x: x + sinpe.table(8, D), X),
    "encode": (lambda p: sinpe.encode(p, D), POSITIONS),
    "add": (lambda x: sinpe.add(x, start=3), X),
    "add, dropout": (lambda x: sinpe.add(x, dropout=0.5, seed=3), X),
    "add, positions": (lambda x: sinpe.add(x, positions=POSITIONS), X),
    "add_": (lambda x: sinpe.add_(x.clone()), X),
    "float32 angles": (lambda x: sinpe.add(x, sinpe.Encoding(D, angle="float32_exp")), X),
    "grid": (lambda x: sinpe.add(x, "mae2d"), PLACES),
    "embed": (lambda w: sinpe.embed(IDS, w), WEIGHT),
    "embed, dropout": (lambda w: sinpe.embed(IDS, w, dropout=0.5, seed=3), WEIGHT),
    "layer": (LAYER, X),
}
# torch's errors for constants under fake tensors, and for autograd functions under functionalize.
ERRORS = (
    (AssertionError, "Please convert all Tensors to FakeTensors first"),
    (RuntimeError, "NYI: Functionalize rule"),
)


@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize("name", CALLS)
def test_graph_equals_function(name: str, mode: str, backend: str) -> None:
    call, given = CALLS[name]
    want = call(given)
    for function in (call, torch.func.functionalize(call)):
        refused = function is not call and name in ("encode", "add, positions")  # functionalize, of float positions
        for constants in (True, False) if backend == "compiled" else (True,):
            try:
                graph = make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=constants)(given)
            except (AssertionError, RuntimeError) as error:
                assert any(type(error) is kind and text in str(error) for kind, text in ERRORS)
                assert refused or (mode != "real" and not constants)
            else:
                assert torch.equal(graph(given), want)


@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize("name", ["add", "add, dropout", "embed", "embed, dropout", "encode"])
def test_graph_contains_the_gradient(name: str, pre_dispatch: bool, backend: str) -> None:
    """Also with pre_dispatch, whose TorchFunctionMode is not active in the backward pass."""
    call, given = CALLS[name]

    def gradient(x: Tensor) -> Tensor:
        return torch.autograd.grad(call(x).pow(2).sum(), x)[0]

    traced, other = given.clone().requires_grad_(), torch.rand_like(given).requires_grad_()
    graph = make_fx(gradient, pre_dispatch=pre_dispatch)(traced)
    assert torch.allclose(graph(other), gradient(other), rtol=1e-6, atol=1e-6)
