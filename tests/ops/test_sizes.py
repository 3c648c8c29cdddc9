"""Sizes, lengths and starts that are symbolic in a graph stay so: one graph serves every length."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

D = 16
ENCODING = sinpe.Encoding(D)
GRID = sinpe.convention("mae2d", D)
LAYER = sinpe.SinusoidalPositionalEncoding(D, max_len=20_000).eval()
WEIGHT = torch.randn(9, D, generator=torch.Generator().manual_seed(1))


def ids_of(x: Tensor) -> Tensor:
    return (x[..., 0] * 0).long() + 3


# Each call takes x of shape (1, T, D) and uses T as a size, a length or a start.
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "positions.relative": lambda x: sinpe.encode(sinpe.positions.relative(x.size(1)), D),
    "positions.relative of a cache": lambda x: sinpe.positions.relative(x.size(1) + 7),
    "positions.from_padding_idx, past": lambda x: sinpe.positions.from_padding_idx(ids_of(x), 1, past=x.size(1))[0],
    "positions.packed, total": lambda x: sinpe.positions.packed(torch.tensor([0, 2]), total=x.size(1)),
    "positions.grid": lambda x: sinpe.positions.grid((x.size(1), 3)),
    "positions.grid, start": lambda x: sinpe.positions.grid((2, 3), start=x.size(1)),
    "table, length": lambda x: sinpe.table(x.size(1), ENCODING),
    "table, twice the length": lambda x: sinpe.table(2 * x.size(1) - 1, ENCODING, start=1 - x.size(1)),
    "table, start": lambda x: sinpe.table(4, ENCODING, start=x.size(1)),
    "table of a grid": lambda x: sinpe.table((x.size(1), 3), GRID),
    "table of a grid, start": lambda x: sinpe.table((2, 3), GRID, start=(x.size(1), 1)),
    "table, extra_tokens": lambda x: sinpe.table(4, ENCODING, extra_tokens=x.size(1)),
    "add": lambda x: sinpe.add(x, ENCODING),
    "add, start": lambda x: sinpe.add(x, ENCODING, start=x.size(1)),
    "add, dropout, start": lambda x: sinpe.add(x, ENCODING, start=x.size(1), dropout=0.5, seed=1),
    "add, sequence first": lambda x: sinpe.add(x.transpose(0, 1), ENCODING, seq_dim=0),
    "add of a grid": lambda x: sinpe.add(x.unsqueeze(1).expand(1, 3, -1, D), GRID),
    "add, grid_shape": lambda x: sinpe.add(x, GRID, grid_shape=(1, x.size(1))),
    "embed": lambda x: sinpe.embed(ids_of(x), WEIGHT, ENCODING),
    "embed, start": lambda x: sinpe.embed(ids_of(x), WEIGHT, ENCODING, start=x.size(1)),
    "embed, dropout, start": lambda x: sinpe.embed(ids_of(x), WEIGHT, ENCODING, start=x.size(1), dropout=0.5, seed=1),
    "add, scale": lambda x: sinpe.add(x, ENCODING, scale=x.size(1) ** 0.5),
    "add, scale an int": lambda x: sinpe.add(x, ENCODING, scale=x.size(1)),
    "add, alpha": lambda x: sinpe.add(x, ENCODING, alpha=1 / x.size(1)),
    "add_, scale and alpha": lambda x: sinpe.add_(x + 0, ENCODING, scale=x.size(1) / 4, alpha=x.size(1) ** 0.5),
    "add, dropout, alpha": lambda x: sinpe.add(x, ENCODING, alpha=x.size(1) ** 0.5, dropout=0.5, seed=1),
    "add of a grid, scale": lambda x: sinpe.add(x.unsqueeze(1), GRID, scale=x.size(1) ** 0.5, alpha=x.size(1) / 3),
    "layer with max_len, start": lambda x: LAYER(x, start=x.size(1)),
    "positions.from_mask_2d, scale": lambda x: sinpe.positions.from_mask_2d(
        x[..., :3] > 9, normalize=True, scale=x.size(1) / 2, eps=1 / x.size(1)
    ),
    "embed, scale": lambda x: sinpe.embed(ids_of(x), WEIGHT, ENCODING, scale=x.size(1) ** 0.5, alpha=x.size(1)),
    "encode, positions divided": lambda x: sinpe.encode(torch.arange(x.size(1)) / x.size(1), ENCODING),
}
# A number that an operator takes, or that is compared with others, would be fixed.
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "add, dropout, scale": (
        lambda x: sinpe.add(x, ENCODING, scale=x.size(1) ** 0.5, dropout=0.5, seed=1),
        "Constraints violated",
    ),
    "dropout": (
        lambda x: sinpe.add(x, ENCODING, dropout=1 / x.size(1), seed=1),
        "Constraints violated|dropout: expected a float, got SymFloat",
    ),
    "start": (lambda x: sinpe.add(x, ENCODING, start=x.size(1) / 2), "start: expected int|Unsupported"),
    "start of an encoding": (
        lambda x: sinpe.add(x, sinpe.convention("t2t", D, start=x.size(1))),
        "start: expected an int, got a symbolic size|Encoding: expected one that is made outside",
    ),
}


class Module(nn.Module):
    def __init__(self, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Any:
        return x + 0, self.call(x)


def check(run: Callable[[Tensor], Any], call: Callable[[Tensor], Any]) -> None:
    for length in (5, 6, 11):
        x = torch.randn(1, length, D, generator=torch.Generator().manual_seed(length))
        assert torch.equal(run(x)[1], call(x)), length


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_export_keeps_sizes(name: str, strict: bool) -> None:
    size = torch.export.Dim("T", min=2, max=9999)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Module(CALLS[name]), (torch.randn(1, 5, D),), dynamic_shapes=({1: size},), strict=strict
        )
    check(program.module(), CALLS[name])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_export_refuses_to_fix_sizes(name: str, strict: bool) -> None:
    call, message = REFUSED[name]
    with pytest.raises(Exception, match=message):
        torch.export.export(
            Module(call), (torch.randn(1, 5, D),), dynamic_shapes=({1: torch.export.Dim("T", min=2)},), strict=strict
        )


@pytest.mark.parametrize("name", CALLS)
def test_compiled_graph_serves_every_size(name: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(Module(CALLS[name]), backend=backend, dynamic=True, fullgraph=True)
    check(compiled, CALLS[name])
    assert len(graphs) == 1


REFUSED_BY_ONNX = {
    "positions.packed, total": "searchsorted",  # which torch's exporter does not know
    "add, dropout, start": "dropout: expected none",
    "embed, dropout, start": "dropout: expected none",
    "add, dropout, alpha": "dropout: expected none",
}


@pytest.mark.sampled(4, "each export takes a second")
@pytest.mark.parametrize("name", CALLS)
def test_onnx_keeps_sizes(name: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    call, size = CALLS[name], torch.export.Dim("T", min=2, max=9999)

    def export() -> Any:
        model, x = Module(call).eval(), torch.randn(1, 5, D)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=({1: size},), verbose=False)

    if name in REFUSED_BY_ONNX:
        with pytest.raises(torch.onnx.errors.OnnxExporterError) as refused:
            export()
        assert REFUSED_BY_ONNX[name] in f"{refused.value} {refused.value.__cause__}"
        return
    export().save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (given,) = session.get_inputs()
    for length in (5, 6, 11):
        x = torch.randn(1, length, D, generator=torch.Generator().manual_seed(length))
        got, want = torch.from_numpy(session.run(None, {given.name: x.numpy()})[1]), call(x)
        assert got.shape == want.shape and torch.allclose(got.double(), want.double(), atol=1e-6), length
