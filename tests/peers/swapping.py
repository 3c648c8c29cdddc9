"""Checks that hold for all models after `swap`, from any library."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from agreement import ANGLE, VALUE
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations.replace import Swapped

# Ratio of a difference in the output to one in the rows: a few layers of random weights, each after a LayerNorm. Small
# enough that halving the rows exceeds the bound, which `outputs` checks.
GAIN = 16.0
Run = Callable[[nn.Module], Tensor]


def bound(position: float) -> float:
    """Difference of a model's output explained by the float32 angles of rows up to a position."""
    return GAIN * (position * ANGLE + VALUE)


def drop_ins(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Swapped)]


def outputs(model: nn.Module, run: Run, position: float, *, same_bits: bool = True) -> nn.Module:
    """Compares the output of the swapped copy of a model in both modes; the model itself is unchanged."""
    model.eval()
    with torch.no_grad():
        before = run(model)
        imitated = sinpe.integrations.swap(model, inplace=False, strict=True, angle="float32").model
        if same_bits:
            assert torch.equal(run(imitated), before)
        report = sinpe.integrations.swap(model, inplace=False, strict=True)
        swapped = report.model
        assert report.swapped and report.difference <= bound(position) / GAIN * 2
        assert not drop_ins(model) and torch.equal(run(model), before)  # inplace=False
        assert not swapped.training
        assert float((run(swapped) - before).abs().max()) <= bound(position)
        other = copy.deepcopy(swapped)
        for module in drop_ins(other):
            _halve(module)
        assert float((run(other) - before).abs().max()) > bound(position), "the test would not detect wrong rows"
    return swapped


def _halve(module: Any) -> None:
    encoding = module._sinpe_encoding
    change = encoding.with_axes if isinstance(encoding, sinpe.GridEncoding) else encoding.replace
    module.__dict__["_sinpe_encoding"] = change(amplitude=0.5)


def checkpoints(model: nn.Module, swapped: nn.Module, run: Run, position: float) -> None:
    """The same keys, and strict loading in both directions, which changes no output beyond the bound."""
    old, new = model.state_dict(), swapped.state_dict()
    assert list(old) == list(new)
    assert all(old[name].shape == new[name].shape and old[name].dtype == new[name].dtype for name in old)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in swapped.named_parameters()]
    with torch.no_grad():
        before, after = run(model), run(swapped)
        for assign in (False, True):
            other = copy.deepcopy(swapped)
            given = {name: value.clone() for name, value in old.items()}
            other.load_state_dict(given, strict=True, assign=assign)
            assert all(torch.equal(value, old[name]) for name, value in given.items())  # nothing was added
            assert torch.equal(run(other), after)
            for name in new:
                assert torch.equal(other.state_dict()[name], new[name])
        other = copy.deepcopy(model)
        other.load_state_dict(new, strict=True)
        assert not drop_ins(other) and float((run(other) - before).abs().max()) <= bound(position)


def copies(swapped: nn.Module, run: Run) -> None:
    """deepcopy, pickle and casts."""
    with torch.no_grad():
        after = run(swapped)
        for other in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
            assert len(drop_ins(other)) == len(drop_ins(swapped))
            assert [type(a) for a in drop_ins(other)] == [type(a) for a in drop_ins(swapped)]
            assert torch.equal(run(other), after)
            for half in (torch.bfloat16, torch.float64):
                other = other.to(half)
                tables = [module._sinpe_tables for module in drop_ins(other)]
                assert tables == [module._sinpe_tables for module in drop_ins(swapped)]


def step(model: nn.Module, swapped: nn.Module, loss: Run, position: float) -> None:
    """One training step with the same dropout: the same parameters get a gradient, and nearly the same one."""
    gradients = []
    for each in (copy.deepcopy(model).train(), copy.deepcopy(swapped).train()):
        torch.manual_seed(5)
        value = loss(each)
        value.backward()
        gradients.append({name: p.grad for name, p in each.named_parameters() if p.grad is not None})
        torch.optim.SGD([p for p in each.parameters() if p.requires_grad], 0.01).step()
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, old in gradients[0].items():
        # Relative to the gradient's size, since losses differ in scale.
        limit = bound(position) * max(1.0, float(old.abs().max()))
        assert float((gradients[1][name] - old).abs().max()) <= limit, name
