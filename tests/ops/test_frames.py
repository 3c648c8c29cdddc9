"""torch.compile where it gives up the calling function: around graph breaks that it cannot resume from, and under
torch.func. It must not compile functions inside of this library one by one."""

from __future__ import annotations

import pytest
import torch
from children import run
from public_calls import CALLS, TENSORS
from torch import Tensor

import sinpe_ext as sinpe

COLD = """
import torch, sinpe_ext as sinpe

class Guard:
    def __enter__(self): print("a graph break")
    def __exit__(self, *_): pass

def call(x):
    with Guard():
        return x + sinpe.{call}

x = torch.zeros(4, 6)
compiled = torch.compile(call, backend="eager")
got = compiled(x)
assert torch.equal(compiled(x), got) and torch.equal(got, call(x))
"""


@pytest.mark.parametrize("call", ["table(x.size(0), 6)", "add(x)", "identify(sinpe.table(40, 6))[0].max_error"])
def test_first_call_of_a_process(call: str) -> None:
    """Nothing is cached, and the library itself is imported in the function."""
    _, err = run(COLD.replace("{call}", call))
    assert "recompile_limit" not in err and "sinpe_ext" not in err, err


@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_function_that_is_not_compiled(call: str, tensor: str) -> None:
    f, formula = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]

    def interrupted(t: Tensor) -> Tensor:
        try:
            torch._dynamo.graph_break()
            return f(t)
        finally:
            pass

    torch._dynamo.reset()
    compiled = torch.compile(interrupted, backend="eager")
    for at in (t, t * 0.5):
        torch.testing.assert_close(compiled(at), formula(at), rtol=1e-9, atol=1e-9)
        given = at.clone().requires_grad_()
        got = torch.autograd.grad(compiled(given).square().sum(), given)[0]
        want = torch.autograd.grad(formula(given).square().sum(), given)[0]
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_compiled_function_works_after_transforms_of_it(call: str, tensor: str) -> None:
    f, formula = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="eager")
    got = torch.func.jvp(compiled, (t,), (torch.ones_like(t),))[1]
    torch.testing.assert_close(got, torch.func.jvp(formula, (t,), (torch.ones_like(t),))[1], rtol=1e-9, atol=1e-9)
    try:
        got = torch.func.grad(lambda t: compiled(t).square().sum())(t)
    except AssertionError:
        assert call == "add_"  # torch cannot compile a function that writes to a tensor of torch.func
    else:
        torch.testing.assert_close(got, torch.func.grad(lambda t: formula(t).square().sum())(t), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.func.vmap(compiled)(t[None])[0], formula(t), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(compiled(t), formula(t), rtol=1e-9, atol=1e-9)
    given = t.clone().requires_grad_()
    torch.autograd.grad(compiled(given).sum(), given)


def test_functions_can_be_compiled_by_themselves() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x, ids, weight = torch.zeros(2, 4, 8), torch.tensor([[0, 1]]), torch.ones(3, 8)
    for call in (
        lambda c: c(sinpe.add)(x),
        lambda c: c(sinpe.encode)(x[0, 0], 8),
        lambda c: c(sinpe.embed)(ids, weight),
        lambda c: c(sinpe.SinusoidalPositionalEncoding(8))(x),
        lambda c: c(sinpe.TimestepEncoding(8))(x[0, 0]),
    ):
        torch._dynamo.reset()
        graphs.clear()
        call(lambda f: torch.compile(f, backend=keep, fullgraph=True))
        assert len(graphs) == 1
