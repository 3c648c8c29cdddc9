"""Calls on a device without float64, such as Apple's MPS: `single_device` in tests/support is one that is always there.

A child process makes each call on the CPU and on the device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from children import REPOSITORY, environment, run
from public_calls import MAKERS, Form
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import positions

GENERATOR = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(2, 6, 8, generator=GENERATOR), torch.randn(7, 8, generator=GENERATOR)
IDS = torch.tensor([[1, 2, 3, 0, 0, 5], [5, 5, 1, 0, 2, 2]])
MASK = torch.tensor([[False, False, False, False, True, True], [False] * 6])
MASK_2D = torch.arange(4).expand(2, 3, 4) > 2
ALPHA, TIMES = torch.tensor(0.3), X[0, 0].contiguous()
ROUNDED = sinpe.Encoding(8, angle="float32_exp")
DROPS = {"dropout": 0.3, "seed": 1}


def grads(call: Callable[..., Tensor], *tensors: Tensor, twice: bool = False) -> list[Tensor]:
    """The result and the gradients with respect to the tensors; `twice`: second derivatives as well."""
    given = [t.detach().clone().requires_grad_() for t in tensors]
    result = call(*given)
    upstream = torch.arange(result.numel(), device=result.device).remainder(7).reshape(result.shape).to(result) - 3
    gradients = torch.autograd.grad(result, given, upstream, create_graph=twice)
    if twice:
        total = sum((t * t).sum() for t in gradients if t.requires_grad)
        gradients += torch.autograd.grad(total, given, materialize_grads=True)
    return [result, *gradients]


def loaded(device: str, pe: Tensor) -> Tensor:
    layer = sinpe.SinusoidalPositionalEncoding(8, 0.0, max_len=6).to(device)
    layer.load_state_dict({"pe": pe}, strict=False)
    return layer(X.to(device))


def public(name: str, device: str) -> Any:
    call = MAKERS[name](Form(dtype=torch.float32, device=device))
    if not call.tensors:
        return call.run()
    run = lambda *given: call.run(**dict(zip(call.tensors, given, strict=True)))  # noqa: E731
    return grads(run, *call.tensors.values(), twice=bool({"at", "t"} & call.tensors.keys()))


OWN = (
    "SinusoidalPositionalEncoding",
    "SinusoidalEmbedding",
)  # torch's functional_call does not take the device's tensors
CALLS: dict[str, Callable[[str], Any]] = {name: partial(public, name) for name in MAKERS if name not in OWN} | {
    "table, out": lambda d: sinpe.table(5, 8, out=torch.empty(5, 8, dtype=torch.bfloat16, device=d)),
    "table, float32 angles": lambda d: sinpe.table(5, ROUNDED, device=d),
    "encode, float32 angles": lambda d: sinpe.encode(TIMES.to(d), ROUNDED),
    "add, scale and alpha": lambda d: sinpe.add(X.to(d).bfloat16(), alpha=0.3, scale=2.0),
    "add, out": lambda d: sinpe.add(X.to(d), alpha=0.5, out=torch.empty(2, 6, 8, device=d), **DROPS),
    "add, gradient of alpha": lambda d: grads(lambda x, a: sinpe.add(x, alpha=a), X.to(d), ALPHA.to(d)),
    "add, float32 angles": lambda d: grads(
        lambda x, alpha: sinpe.add(x, ROUNDED, alpha=alpha, **DROPS), X.to(d), ALPHA.to(d)
    ),
    "embed, gradients": lambda d: grads(
        lambda w, a: sinpe.embed(IDS.to(d), w, alpha=a, padding_idx=0, scale=3.0, **DROPS), WEIGHT.to(d), ALPHA.to(d)
    ),
    "embed, bfloat16": lambda d: grads(lambda w: sinpe.embed(IDS.to(d), w, **DROPS), WEIGHT.to(d).bfloat16()),
    "packed": lambda d: positions.packed(torch.tensor([0, 2, 5]).to(d), "fairseq"),
    "relative": lambda d: positions.relative(5, device=d),
    "from_padding_mask": lambda d: positions.from_padding_mask(MASK.to(d), "fairseq"),
    "from_padding_idx": lambda d: list(positions.from_padding_idx(IDS.to(d), 0)),
    "positions of a grid": lambda d: positions.grid((3, 4), "mae2d", device=d),
    "from_mask_2d": lambda d: positions.from_mask_2d(MASK_2D.to(d), "detr2d"),
    "from_mask_2d, normalized": lambda d: positions.from_mask_2d(MASK_2D.to(d), "detr2d", normalize=True).float(),
    "from_mask_2d, float32": lambda d: positions.from_mask_2d(
        MASK_2D.to(d), "detr2d", normalize=True, dtype=torch.float32
    ),
    "layer": lambda d: grads(sinpe.SinusoidalPositionalEncoding(8, 0.0, learned_alpha=True).to(d), X.to(d)),
    "embedding layer": lambda d: sinpe.SinusoidalEmbedding.from_pretrained(WEIGHT, dropout=0.0).to(d)(IDS.to(d)),
    "timesteps in float16": lambda d: sinpe.TimestepEncoding(8).half().to(d)(TIMES.to(d)),
    "checkpoint on the CPU": lambda d: loaded(d, sinpe.table(6, 8)),
    "checkpoint on the device": lambda d: loaded(d, sinpe.table(6, 8).to(d)),
    "saved table": lambda d: (
        sinpe.SinusoidalPositionalEncoding(8, max_len=6, persistent_table=True).to(d).state_dict()["pe"]
    ),
}


def compare(name: str) -> str:
    """What differs between the CPU and the device; "" if nothing does. (In the child.)"""
    tree = torch.utils._pytree
    try:
        ours, theirs = (tree.tree_leaves(CALLS[name](device)) for device in ("single", "cpu"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    # Sums over channels are rounded to float32 before those over rows.
    bound = 0.0 if len(theirs) == 1 else 2.0**-18
    for a, b in zip(ours, theirs, strict=True):
        if a.device.type != "single" or a.dtype != b.dtype:
            return f"{a.device}, {a.dtype} in place of {b.dtype}"
        if not torch.allclose(a.cpu(), b.detach(), rtol=bound, atol=bound * float(b.detach().float().abs().max())):
            return f"values: {a.cpu()}, {b}"
    return ""


CODE = """
import json, pytest, torch, single_device, test_no_float64 as tests
from sinpe_ext import positions
with pytest.raises(TypeError, match="no float64"):
    torch.zeros(3, device="single").double()
with pytest.raises(TypeError, match="dtype: expected torch.float32 on single, got torch.float64"):
    positions.from_mask_2d(torch.zeros(3, 4).bool().to("single"), "detr2d", normalize=True, dtype=torch.float64)
print(json.dumps({name: tests.compare(name) for name in tests.CALLS}))
"""


@pytest.fixture(scope="module")
def differences() -> dict[str, str]:
    paths = os.pathsep.join(str(REPOSITORY / "tests" / folder) for folder in ("support", "ops"))
    output, _ = run(CODE, environment(PYTHONPATH=paths))
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("name", CALLS)
def test_the_results_of_the_cpu(name: str, differences: dict[str, str]) -> None:
    """And float64 is refused, by the device and by from_mask_2d."""
    assert differences[name] == ""
