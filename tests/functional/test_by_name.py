"""`table` and `encode` with a convention's name and `dim` equal those with the object that `convention` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe
import sinpe_ext.numpy

DIM = 48  # supported by all conventions
NAMES = list(sinpe.conventions())


def make(name: str) -> Any:
    return sinpe.convention(name, DIM)


def lengths(encoding: Any) -> Any:
    return (3,) * encoding.ndim if isinstance(encoding, sinpe.GridEncoding) else 9


def positions(encoding: Any) -> Tensor:
    shape = (7, encoding.ndim) if isinstance(encoding, sinpe.GridEncoding) else (7,)
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 100


@pytest.mark.parametrize("name", NAMES)
def test_name_and_dim_equal_encoding(name: str, backend: str) -> None:
    encoding = make(name)
    at, places = positions(encoding), lengths(encoding)
    table, rows = sinpe.table(places, encoding), sinpe.encode(at, encoding)
    assert torch.equal(sinpe.table(places, name, dim=DIM), table)
    assert torch.equal(sinpe.table(places, name.upper(), dim=np.int64(DIM), out=torch.empty_like(table)), table)
    assert torch.equal(sinpe.encode(at, name, dim=DIM), rows)
    if encoding.angle == "exact" if isinstance(encoding, sinpe.Encoding) else True:
        assert np.array_equal(sinpe_ext.numpy.table(places, name, dim=DIM), table.numpy())
        assert np.array_equal(sinpe_ext.numpy.encode(at.numpy(), name, dim=DIM), rows.numpy())


def test_dim_without_encoding_is_paper(backend: str) -> None:
    assert torch.equal(sinpe.table(9, dim=8, start=3), sinpe.table(9, 8, start=3))
    assert torch.equal(sinpe.encode(torch.arange(5), dim=7), sinpe.encode(torch.arange(5), 7))
    assert np.array_equal(sinpe_ext.numpy.table(9, dim=8), sinpe.table(9, 8).numpy())


def test_names_in_compiled_and_exported_graphs(backend: str) -> None:
    def sums(at: Tensor, places: Tensor) -> Tensor:
        rows = sinpe.encode(at, "ddpm", dim=8) + sinpe.table(7, "t2t", dim=8) + sinpe.table(7, dim=8)
        return rows + sinpe.encode(places, "mae2d", dim=8) + sinpe.table((7, 1), "mae2d", dim=8, flatten=True)

    at, places = torch.rand(7), torch.rand(7, 2)
    want = sums(at, places)
    torch.testing.assert_close(torch.compile(sums, fullgraph=True)(at, places), want, rtol=0, atol=1e-6)

    class Module(torch.nn.Module):
        def forward(self, at: Tensor, places: Tensor) -> Tensor:
            return sums(at, places)

    exported = torch.export.export(Module(), (at, places), strict=True).module()
    torch.testing.assert_close(exported(at, places), want, rtol=0, atol=1e-6)


# Calls on x of shape (B, C) whose length and dim are symbolic in the graph.
SYMBOLIC_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "table": lambda x: x + sinpe.table(x.shape[0], "t2t", dim=x.shape[1]),
    "table of a grid": lambda x: x + sinpe.table((1, x.shape[0]), "mae2d", dim=x.shape[1], flatten=True),
    "dim alone": lambda x: x + sinpe.table(x.shape[0], dim=x.shape[1]),
    "encode": lambda x: x + sinpe.encode(x[:, 0], "ddpm", dim=x.shape[1]),
    "encode of a grid": lambda x: x + sinpe.encode(x[:, :2], "mae2d", dim=x.shape[1]),
}


@pytest.mark.parametrize("name", SYMBOLIC_SIZES)
def test_symbolic_dim_in_a_graph(name: str, backend: str) -> None:
    torch._dynamo.reset()
    run = SYMBOLIC_SIZES[name]
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for shape in ((3, 8), (4, 12), (5, 16), (9, 8)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(compiled(x), run(x), rtol=0, atol=1e-6)


T = torch.arange(5)
ERRORS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "neither": (
        lambda: sinpe.table(4),
        TypeError,
        "dim: expected the number of channels with encoding=None, got None; pass it",
    ),
    "no dim": (
        lambda: sinpe.encode(T, "t2t"),
        TypeError,
        r'no dim to go with it; pass dim=, or convention\("t2t", dim\)',
    ),
    "no dim of a grid": (lambda: sinpe.table((4, 4), "mae2d"), TypeError, "no dim to go with it; pass dim=, or conv"),
    "an int has one": (
        lambda: sinpe.table(4, 8, dim=8),
        TypeError,
        "dim: expected None, because int as encoding has its own",
    ),
    "an Encoding has one": (lambda: sinpe.encode(T, sinpe.Encoding(8), dim=8), TypeError, "None, because Encoding as"),
    "a grid has one": (lambda: sinpe.table((2, 2), make("mae2d"), dim=8), TypeError, "None, because GridEncoding as"),
    "0": (lambda: sinpe.table(4, "t2t", dim=0), ValueError, "dim: expected an int in 1..16777216, got 0"),
    "a word": (lambda: sinpe.encode(T, "t2t", dim="8"), TypeError, "dim: expected int, got str"),  # type: ignore[arg-type]
    "no such name": (lambda: sinpe.table(4, "ddqm", dim=8), ValueError, "expected the name of a convention, got"),
    "NumPy": (
        lambda: sinpe_ext.numpy.encode([1, 2], sinpe.Encoding(8), dim=8),
        TypeError,
        "dim: expected None, because Encoding",
    ),
    "NumPy, neither": (
        lambda: sinpe_ext.numpy.table(4),
        TypeError,
        "dim: expected the number of channels with encoding=None, got None; pass it",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_bad_arguments(case: str, backend: str) -> None:
    call, error, message = ERRORS[case]
    with pytest.raises(error, match=message):
        call()
