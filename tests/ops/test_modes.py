"""All public functions and layers under a dispatch mode, in a nested compiled region, and with arguments in buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from public_calls import CALLS, TENSORS, B, D, S
from torch import Tensor, nn
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


def gradient(f: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    t = t.clone().requires_grad_()
    return torch.autograd.grad(f(t).square().sum(), t)[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_selective_checkpoint(call: str, tensor: str, policy: str, backend: str) -> None:
    """What a policy saves is not computed again: no operator may leave its result in an argument."""
    f, _ = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]

    def choose(_ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return POLICIES[policy](str(op))

    contexts = functools.partial(create_selective_checkpoint_contexts, choose)
    got = gradient(lambda t: checkpoint(lambda t: f(t * 1), t, use_reentrant=False, context_fn=contexts), t)
    torch.testing.assert_close(got, gradient(f, t), rtol=1e-12, atol=1e-12)


class Written(TorchDispatchMode):
    """Records the operators of this library that write to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "sinpe_ext" and func._schema.is_mutable:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_no_operator_writes_to_an_argument_under_a_mode(call: str, tensor: str, contiguous: bool, backend: str) -> None:
    f, _ = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    t = t if contiguous else t.repeat_interleave(2, -1)[..., ::2]
    want = f(t)
    with Written() as written:
        got = f(t)
    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)  # the last bit of float64 is that of the backend
    assert written.names == []


@pytest.mark.thorough("test_nested_region, by another compiler")
@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_nested_region_of_inductor(call: str, tensor: str) -> None:
    """Values only: torch 2.13's own gradients of a region that is called twice are wrong in Inductor."""
    f, _ = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    region = torch.compiler.nested_compile_region(f)
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: region(t) + region(t * 0.5), fullgraph=True)
    torch.testing.assert_close(compiled(t), f(t) + f(t * 0.5), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("call", "tensor"), TENSORS)
def test_nested_region(call: str, tensor: str) -> None:
    f, _ = CALLS[call].of(tensor)
    t = CALLS[call].tensors[tensor]
    region = torch.compiler.nested_compile_region(f)
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: region(t) + region(t * 0.5), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(t), f(t) + f(t * 0.5), rtol=1e-12, atol=1e-12)
    got = gradient(compiled, t)
    torch.testing.assert_close(got, gradient(lambda t: f(t) + f(t * 0.5), t), rtol=1e-10, atol=1e-10)


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


STARTS, PLACES = torch.arange(B) * 7, torch.arange(B * S).reshape(B, S)
MASK, IDS = torch.arange(B * S).reshape(B, S) % 3 == 1, torch.arange(B * S).reshape(B, S) % 5
ROWS: dict[str, dict[str, Tensor]] = {
    "start ()": {"start": torch.tensor(5)},
    "start": {"start": STARTS},
    "positions": {"positions": PLACES},
    "positions (S,)": {"positions": PLACES[0]},
    "positions (1, S)": {"positions": PLACES[:1]},
    "fractions": {"positions": PLACES / 3},
    "mask": {"padding_mask": MASK},
    "mask (S,)": {"padding_mask": MASK[0]},
    "start, mask": {"start": STARTS, "padding_mask": MASK},
}
AXES: dict[str, dict[str, Tensor]] = {
    "start ()": {"start": torch.tensor(5)},
    "start": {"start": torch.stack([STARTS, STARTS], -1)},
    "positions": {"positions": torch.stack([PLACES, PLACES], -1)},
    "mask": {"padding_mask": MASK},
}
WEIGHT, LAYER = torch.randn(5, D), sinpe.SinusoidalPositionalEncoding(D, 0.0, max_len=50)
OF_ROWS: dict[str, Callable[..., Tensor]] = {
    "add": sinpe.add,
    "add, dropout": lambda x, **given: sinpe.add(x, dropout=0.5, seed=2, **given),
    "add_": lambda x, **given: sinpe.add_(x.clone(), **given),
    "embed": lambda x, **given: sinpe.embed(IDS, WEIGHT, **given),
    "layer": LAYER,
}
BUFFERS: dict[str, tuple[Callable[..., Tensor], dict[str, Tensor]]] = {
    **{f"{name}, {kind}": (call, given) for name, call in OF_ROWS.items() for kind, given in ROWS.items()},
    **{f"grid, {k}": (lambda x, **g: sinpe.add(x, "mae2d", grid_shape=(2, 2), **g), g) for k, g in AXES.items()},
    "alpha": (sinpe.add, {"alpha": torch.tensor([0.5])}),
    "seed": (lambda x, **given: sinpe.add(x, dropout=0.5, **given), {"seed": torch.tensor([4])}),
    "encode": (lambda x, at: x + sinpe.encode(at, D), {"at": torch.rand(B, S)}),
    "past": (
        lambda x, ids, past: x + helpers.from_padding_idx(ids, 1, past=past)[0].unsqueeze(-1),
        {"ids": IDS, "past": STARTS},
    ),
    "packed": (lambda x, ends: sinpe.add(x[0], positions=helpers.packed(ends, S)), {"ends": torch.tensor([0, 1, S])}),
}


class WithBuffers(nn.Module):
    def __init__(self, call: Callable[..., Tensor], given: dict[str, Tensor]) -> None:
        super().__init__()
        self.call, self.names = call, list(given)
        for name, value in given.items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, **{name: getattr(self, name) for name in self.names})


@pytest.mark.parametrize("name", BUFFERS)
def test_arguments_in_buffers_with_dynamic_sizes(name: str) -> None:
    """Sizes of buffers are fixed, those of x are symbols: each check compares them with ==, which guards."""
    model, x = WithBuffers(*BUFFERS[name]), torch.randn(B, S, D)
    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)
