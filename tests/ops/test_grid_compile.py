"""Grids under torch.compile, torch.export, on the meta device and with fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

GRID = sinpe.convention("mae2d", 32)
ENCODING = sinpe.convention("t2t", 32)
OCTAVES = sinpe.convention("nerf", 12, axes=2)
DROPOUT: Any = {"dropout": 0.5, "seed": 3}

CASES: dict[str, Callable[..., Tensor]] = {
    "table": lambda x, p, m, s: sinpe.table((3, 5), GRID),
    "table, flat": lambda x, p, m, s: sinpe.table((3, 5), GRID, extra_tokens=1, start=(2, 3)),
    "encode": lambda x, p, m, s: sinpe.encode(p, GRID),
    "encode, side by side": lambda x, p, m, s: sinpe.encode(p, OCTAVES),
    "add": lambda x, p, m, s: sinpe.add(x, GRID),
    "by name": lambda x, p, m, s: sinpe.add(x, "timm2d", scale=2.0, alpha=0.5),
    "flat": lambda x, p, m, s: sinpe.add(x.flatten(1, 2), GRID, grid_shape=(3, 5)),
    "channels first": lambda x, p, m, s: sinpe.add(x.movedim(-1, 1), GRID, channel_dim=1),
    "dropout": lambda x, p, m, s: sinpe.add(x, GRID, **DROPOUT),
    "extra tokens": lambda x, p, m, s: sinpe.add(
        x.flatten(1, 2), GRID, grid_shape=(2, 5), extra_tokens=5, scale=2.0, **DROPOUT
    ),
    "extra tokens of a sequence": lambda x, p, m, s: sinpe.add(x[:, 0], ENCODING, extra_tokens=1, **DROPOUT),
    "positions": lambda x, p, m, s: sinpe.add(x, GRID, positions=p),
    "padding": lambda x, p, m, s: sinpe.add(x, GRID, padding_mask=m),
    "start": lambda x, p, m, s: sinpe.add(x, GRID, start=(2, 3)),
    "starts": lambda x, p, m, s: sinpe.add(x, GRID, start=s),
    "one start": lambda x, p, m, s: sinpe.add(x, GRID, start=s[0]),
    "in place": lambda x, p, m, s: sinpe.add_(x.clone(), GRID),
    "out": lambda x, p, m, s: sinpe.add(x, GRID, out=torch.empty_like(x)),
}


def operands() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, p = torch.randn(2, 3, 5, 32, generator=generator), torch.rand(2, 3, 5, 2, generator=generator)
    return x, p, torch.rand(2, 3, 5, generator=generator) < 0.5, torch.tensor([[4, 7], [1, 2]])


@pytest.mark.sampled("values")
@pytest.mark.parametrize("compiler", ["eager", "inductor"])
@pytest.mark.parametrize("case", CASES)
def test_full_graph(backend: str, case: str, compiler: str) -> None:
    torch._dynamo.reset()
    function = CASES[case]
    graph = torch.compile(function, fullgraph=True, backend=compiler)
    for _ in range(2):
        assert torch.equal(graph(*operands()), function(*operands()))


def test_dynamic_shapes(backend: str) -> None:
    torch._dynamo.reset()
    counted = torch._dynamo.testing.CompileCounter()
    graph = torch.compile(lambda x: sinpe.add(x, GRID, **DROPOUT), fullgraph=True, dynamic=True, backend=counted)
    for shape in ((2, 3, 5, 32), (3, 4, 6, 32), (5, 9, 7, 32)):
        x = torch.randn(shape)
        assert torch.equal(graph(x), sinpe.add(x, GRID, **DROPOUT))
    assert counted.frame_count == 1


def test_gradients(backend: str) -> None:
    torch._dynamo.reset()

    def loss(x: Tensor, alpha: Tensor) -> Tensor:
        return sinpe.add(x, GRID, alpha=alpha, scale=2.0).sin().sum()

    x, alpha = operands()[0].requires_grad_(), torch.tensor([0.5], requires_grad=True)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True)(x, alpha), (x, alpha))
    want = torch.autograd.grad(loss(x, alpha), (x, alpha))
    assert torch.allclose(got[0], want[0], rtol=1e-6, atol=1e-6) and torch.allclose(got[1], want[1], rtol=1e-5)


class Patches(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return sinpe.add(x, GRID)


def test_export(backend: str) -> None:
    x = operands()[0]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("height"), 2: torch.export.Dim("width")}
    program = torch.export.export(Patches(), (x,), dynamic_shapes={"x": sizes})
    other = torch.randn(4, 7, 6, 32)
    assert torch.equal(program.module()(other), sinpe.add(other, GRID))


def test_meta_and_fake_tensors(backend: str) -> None:
    x, p, _, _ = (t.to("meta") for t in operands())
    assert sinpe.add(x, GRID).device.type == "meta" and sinpe.add(x, GRID).shape == x.shape
    assert sinpe.add(x, GRID, positions=p, dropout=0.5).shape == x.shape
    assert sinpe.table((3, 4), GRID, device="meta", extra_tokens=1).shape == (13, 32)
    assert sinpe.encode(p, GRID).shape == (2, 3, 5, 32)
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(operands()[0])
        assert sinpe.add(fake, GRID).shape == x.shape and sinpe.table((3, 4), GRID).shape == (3, 4, 32)
