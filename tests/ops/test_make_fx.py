"""make_fx records the operators: the graph gives the function's values or an error, never x without the encoding."""

from __future__ import annotations

import pytest
import torch
from public_calls import CALLS, TENSORS
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

# torch's errors for constants under fake tensors, and for autograd functions under functionalize.
ERRORS = (
    (AssertionError, "Please convert all Tensors to FakeTensors first"),
    (RuntimeError, "NYI: Functionalize rule"),
)


FIRST = list({call: (call, tensor) for call, tensor in reversed(TENSORS)}.values())


@pytest.mark.sampled("values")
@pytest.mark.parametrize("mode", ["real", "symbolic"])
@pytest.mark.parametrize(("call", "tensor"), FIRST)
def test_graph_equals_function(call: str, tensor: str, mode: str) -> None:
    function, given = CALLS[call].of(tensor)[0], CALLS[call].tensors[tensor]
    want, made = function(given), 0
    for run in (function, torch.func.functionalize(function)):
        for constants in (True, False):
            try:
                graph = make_fx(run, tracing_mode=mode, _allow_non_fake_inputs=constants)(given)
            except (AssertionError, RuntimeError) as error:
                assert any(type(error) is kind and text in str(error) for kind, text in ERRORS)
            else:
                made += 1
                torch.testing.assert_close(graph(given), want, rtol=0, atol=0)
    assert made >= (2 if mode == "real" else 1)


@pytest.mark.sampled("values")
@pytest.mark.parametrize("pre_dispatch", [False, True])
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_graph_contains_the_gradient(call: str, tensor: str, pre_dispatch: bool) -> None:
    """Also with pre_dispatch, whose TorchFunctionMode is not active in the backward pass."""
    function, given = CALLS[call].of(tensor)[0], CALLS[call].tensors[tensor]

    def gradient(t: Tensor) -> Tensor:
        return torch.autograd.grad(function(t).pow(2).sum(), t)[0]

    traced, other = given.clone().requires_grad_(), (given * 0.5).requires_grad_()
    graph = make_fx(gradient, pre_dispatch=pre_dispatch)(traced)
    torch.testing.assert_close(graph(other), gradient(other), rtol=1e-9, atol=1e-9)
