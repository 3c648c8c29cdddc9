"""All public functions and layers under dispatch modes, in a nested compiled region, and with arguments in buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from public_calls import CALLS, MAKERS, TENSORS, B, D, Form, S
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import sinpe_ext as sinpe
from sinpe_ext import positions as helpers

SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
POLICIES: dict[str, Callable[[str], CheckpointPolicy]] = {
    "saves ours": lambda name: SAVE if "sinpe_ext" in name else RECOMPUTE,
    "saves all others": lambda name: RECOMPUTE if "sinpe_ext" in name or "copy_" in name else SAVE,
    "saves none": lambda name: RECOMPUTE,
}
DIFFERENTIABLE = [name for name, call in CALLS.items() if call.tensors]


def gradients(run: Callable[..., Tensor], tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    given = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    return torch.autograd.grad(run(**given).square().sum(), [*given.values()])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_selective_checkpoint(name: str, backend: str) -> None:
    """What a policy saves is not computed again: no operator may leave its result in an argument."""
    run, tensors = CALLS[name].run, CALLS[name].tensors
    want = gradients(run, tensors)
    for policy in POLICIES.values():

        def choose(_ctx: Any, op: Any, *_args: Any, policy: Any = policy, **_kwargs: Any) -> CheckpointPolicy:
            return policy(str(op))

        contexts = functools.partial(create_selective_checkpoint_contexts, choose)

        def checkpointed(**given: Tensor) -> Tensor:
            def of_new_tensors(*tensors: Tensor) -> Tensor:
                return run(**{name: t * 1 for name, t in zip(given, tensors, strict=True)})

            return checkpoint(of_new_tensors, *given.values(), use_reentrant=False, context_fn=contexts)  # noqa: B023

        for got, one in zip(gradients(checkpointed, tensors), want, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-12, atol=1e-12)


class Written(TorchDispatchMode):
    """Records the operators of this library that write to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "sinpe_ext" and func._schema.is_mutable:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_no_operator_writes_to_an_argument_under_a_mode(call: str, tensor: str, backend: str) -> None:
    f, _ = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    for given in (t, t.repeat_interleave(2, -1)[..., ::2]):
        want = f(given)
        with Written() as written:
            got = f(given)
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)  # the last bit of float64 is the backend's
        assert written.names == []


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_fake_and_meta_tensors_have_gradients(name: str, backend: str) -> None:
    on_meta = MAKERS[name](Form(device="meta"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = {name: mode.from_tensor(t) for name, t in CALLS[name].tensors.items()}
        made = gradients(CALLS[name].run, fakes)
    made += gradients(on_meta.run, on_meta.tensors)
    for got, given in zip(made, (*fakes.values(), *on_meta.tensors.values()), strict=True):
        assert (got.shape, got.dtype, got.device) == (given.shape, given.dtype, given.device)


@pytest.mark.sampled(8, "test_compile has the graph of each call and of its gradients")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_nested_region(name: str) -> None:
    run, tensors = CALLS[name].run, CALLS[name].tensors
    region = torch.compiler.nested_compile_region(lambda **given: run(**given))
    torch._dynamo.reset()

    def twice(run: Callable[..., Tensor], given: dict[str, Tensor]) -> Tensor:
        return run(**given) + run(**{name: t * 0.5 for name, t in given.items()})

    compiled = torch.compile(lambda **given: twice(region, given), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**tensors), twice(run, tensors), rtol=1e-12, atol=1e-12)
    wants = gradients(lambda **given: twice(run, given), tensors)
    for got, want in zip(gradients(compiled, tensors), wants, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_more_constants_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph whose constant was removed is compiled again, and does not read another one's."""
    from sinpe_ext.operations import plans

    monkeypatch.setattr(plans, "MAX_CONSTANTS", 2)
    torch._dynamo.reset()
    encodings = [sinpe.Encoding(D, base=base) for base in (10.0, 20.0, 30.0, 40.0)]
    x = torch.zeros(S, D)
    functions = [torch.compile(lambda x, e=e: sinpe.add(x, e), backend="eager", fullgraph=True) for e in encodings]
    for _ in range(2):
        for compiled, encoding in zip(functions, encodings, strict=True):
            assert torch.equal(compiled(x), sinpe.add(x, encoding))
    assert len(vars(plans._constants)) == len(plans._names) <= 256


PLACES, MASK = torch.arange(B * S).reshape(B, S), torch.arange(B * S).reshape(B, S) % 3 == 1
Case = tuple[Callable[..., Any], dict[str, Any]]
OF_X: list[Case] = [
    (sinpe.add, {"start": torch.tensor(5)}),
    (sinpe.add, {"positions": PLACES[0]}),
    (sinpe.add, {"positions": PLACES[:1] / 3}),
    (sinpe.add, {"padding_mask": MASK[0]}),
    (functools.partial(sinpe.add, encoding="mae2d", grid_shape=(2, 2)), {"start": torch.tensor(5)}),
    (sinpe.SinusoidalPositionalEncoding(D, 0.0, max_len=50), {"start": PLACES[:, 0], "padding_mask": MASK}),
    (functools.partial(sinpe.add, dropout=0.5), {"seed": torch.tensor([4])}),
    (lambda x, ids, past: helpers.from_padding_idx(ids, 1, past=past)[0], {"ids": PLACES, "past": PLACES[:, 0]}),
    (lambda x, ends: sinpe.add(x[0], positions=helpers.packed(ends, None, total=S)), {"ends": torch.tensor([0, 1, S])}),
]
BUFFERS: dict[str, tuple[Tensor, list[Case]]] = {"x": (torch.randn(B, S, D), OF_X)} | {
    name: (call.tensors["x"], [(lambda x, call=call, **given: call.run(x=x, **given), {**call.others, **call.tensors})])
    for name, call in CALLS.items()
    if "x" in call.tensors
}


class WithBuffers(nn.Module):
    """Calls of x with the other tensors in buffers."""

    def __init__(self, cases: list[Case]) -> None:
        super().__init__()
        self.cases = []
        for k, (call, given) in enumerate(cases):
            names = {name: f"{k}_{name}" for name, t in given.items() if isinstance(t, Tensor) and name != "x"}
            self.cases.append((call, names))
            for name, at in names.items():
                self.register_buffer(at, given[name])

    def forward(self, x: Tensor) -> list[Tensor]:
        return [call(x, **{name: getattr(self, at) for name, at in given.items()}) for call, given in self.cases]


@pytest.mark.sampled(3, "a graph each; the first has the forms that the table of public calls has not")
@pytest.mark.parametrize("name", BUFFERS)
def test_arguments_in_buffers_with_dynamic_sizes(name: str) -> None:
    """Sizes of buffers are fixed, those of x are symbols: each check compares them with ==, which guards."""
    x, cases = BUFFERS[name]
    model = WithBuffers(cases)
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="eager")
    for got, want in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
