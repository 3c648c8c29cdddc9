"""Training under torch.compile: gradients, dropout, several encodings in a graph; and AOTInductor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_compile import (
    ALPHA,
    EVERY_BACKEND,
    FLOAT32,
    GRADIENT,
    IDS,
    MASK,
    REAL,
    SEED,
    T2T,
    B,
    D,
    needs_aoti_dtypes,
    needs_inductor,
    x,
)
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit.script"), pytest.mark.usefixtures("reset_dynamo")]


@pytest.mark.parametrize("backend_name", EVERY_BACKEND)
def test_two_encodings_in_one_graph(backend_name: str) -> None:
    """Each is a separate constant of the graph."""

    def call(given: Tensor, start: int) -> Tensor:
        y = sinpe.add(sinpe.add(given, T2T, start=start, alpha=ALPHA), "paper", dropout=0.2, seed=3)
        return sinpe.add(y, FLOAT32, dropout=0.2, seed=4)

    compiled = torch.compile(call, fullgraph=True, backend=backend_name)
    for length, start in ((5, 0), (6, 3), (7, 4)):
        mine, theirs = x(B, length, D).requires_grad_(), x(B, length, D).requires_grad_()
        got, want = compiled(mine, start), call(theirs, start)
        assert torch.allclose(got, want, **GRADIENT) and torch.equal(got == 0, want == 0)
        got.sin().sum().backward()
        want.sin().sum().backward()
        assert torch.allclose(mine.grad, theirs.grad, **GRADIENT)


@pytest.mark.sampled("values")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend_name", EVERY_BACKEND)
def test_gradients(backend_name: str, dtype: torch.dtype) -> None:
    def loss(given: Tensor, alpha: Tensor, positions: Tensor | None) -> Tensor:
        masked = sinpe.add(given * 2, T2T, alpha=alpha, positions=positions, padding_mask=MASK)
        return (masked.float() * 3).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend_name)
    for positions in (None, REAL.float().requires_grad_()):
        inputs = [t for t in (x(dtype=dtype).requires_grad_(), torch.tensor([0.7], requires_grad=True), positions)]
        wanted = [t for t in inputs if t is not None]
        want = torch.autograd.grad(loss(*inputs), wanted)
        got = torch.autograd.grad(compiled(*inputs), wanted)
        for mine, theirs in zip(got, want, strict=True):
            if dtype == torch.bfloat16 and backend_name == "inductor":  # keeps x * 2 in float32
                assert torch.allclose(mine.float(), theirs.float(), rtol=0.05, atol=0.5)
            else:
                assert torch.allclose(mine, theirs, **GRADIENT)


@pytest.mark.parametrize("backend_name", EVERY_BACKEND)
def test_gradients_under_dropout(backend_name: str) -> None:
    """The backward graph recomputes the mask from the seed of the forward graph."""

    def loss(weight: Tensor, given: Tensor, alpha: Tensor, positions: Tensor | None) -> Tensor:
        tokens = sinpe.embed(IDS, weight, T2T, alpha=alpha, positions=positions, dropout=0.4, scale=2.0, padding_idx=2)
        return (sinpe.add(given + tokens, alpha=alpha, dropout=0.4, padding_mask=MASK) * 3).sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend_name)
    for positions in (None, REAL.float().requires_grad_()):
        inputs = [x()[0].requires_grad_(), x().requires_grad_(), torch.tensor([0.7], requires_grad=True), positions]
        wanted = [t for t in inputs if t is not None]
        torch.manual_seed(3)
        want = torch.autograd.grad(loss(*inputs), wanted)
        torch.manual_seed(3)
        got = torch.autograd.grad(compiled(*inputs), wanted)
        for mine, theirs in zip(got, want, strict=True):
            assert torch.allclose(mine, theirs, **GRADIENT)


def test_compiled_training_equals_eager() -> None:
    torch.manual_seed(0)
    front = sinpe.SinusoidalEmbedding(9, D, 0, dropout=0.2, learned_alpha=True)
    model = nn.Sequential(front, Layer(D, 0.2, learned_alpha=True), nn.LayerNorm(D), nn.Linear(D, 1))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for run in (model, compiled):
        model.zero_grad()
        torch.manual_seed(4)
        run(IDS).square().sum().backward()
        if run is model:
            want = [p.grad.clone() for p in model.parameters()]
    for got, expected in zip(model.parameters(), want, strict=True):
        assert torch.allclose(got.grad, expected, **GRADIENT)


def test_torch_func_gradients_in_a_graph() -> None:
    weight = x()[0]

    def loss(w: Tensor, given: Tensor) -> Tensor:
        tokens = sinpe.embed(IDS, w, T2T, dropout=0.4, seed=5, scale=2.0)
        return (sinpe.add(given + tokens, dropout=0.4, seed=SEED, alpha=0.5) * 3).sin().sum()

    grad = torch.func.grad(loss)
    compiled = torch.compile(grad, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(weight, x()), grad(weight, x()), **GRADIENT)


EXPORTED: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: Layer(D, 0.1).eval(),
    "dropout": lambda: Seeded(Layer(D, 0.3)),
    "embedding": lambda: sinpe.SinusoidalEmbedding(300, D, dropout=0.1, scale=2.0).eval(),
    "embedding in training": lambda: Seeded(sinpe.SinusoidalEmbedding(300, D, dropout=0.3)),
    "sequence first": lambda: Seeded(Layer(D, 0.3, batch_first=False)),
}


class Seeded(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: Tensor) -> Tensor:
        return self.layer(given, seed=3)


@pytest.mark.builds
@needs_inductor
@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_aoti_dtypes if n == "layer" else ()) for n in EXPORTED])
def test_export_and_aot_inductor(name: str, tmp_path: Path) -> None:
    """Run at other sizes than those of the example."""
    model = EXPORTED[name]()
    ids = torch.arange(B * 6).reshape(B, 6) * 3
    one, other = (ids, ids.repeat(1, 5)) if "embedding" in name else (x(B, 6, D), x(B, 30, D))
    length = torch.export.Dim("length", min=2, max=1000)
    program = torch.export.export(model, (one,), dynamic_shapes=({1: length},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for given in (one, other):
        assert torch.equal(program.module()(given), model(given))
        assert torch.equal(run(given), model(given))
