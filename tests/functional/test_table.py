"""`table`: `out`, `dtype` and `device`; `table` and `encode` by the name of a convention and `dim`.

What holds for every function: test_every_function.py; values: tests/reference; wrong arguments: tests/checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# length, encoding, further arguments, shape of the result
CALLS: dict[str, tuple[Any, Any, dict[str, Any], tuple[int, ...]]] = {
    "rows": (5, 8, {"start": 3}, (5, 8)),
    "grid": ((2, 3), sinpe.convention("mae2d", 8), {}, (2, 3, 8)),
    "behind a token": (5, 8, {"extra_tokens": 1}, (6, 8)),
    "grid, flat": ((2, 3), sinpe.convention("mae2d", 8), {"flatten": True}, (6, 8)),
}
DIM = 48  # supported by all conventions


@pytest.mark.parametrize("name", CALLS)
def test_default_dtype_is_that_of_out_else_float32(name: str, backend: str) -> None:
    length, encoding, more, shape = CALLS[name]
    assert sinpe.table(length, encoding, **more).dtype == torch.float32
    for dtype in DTYPES:
        want = sinpe.table(length, encoding, dtype=dtype, **more)
        assert want.dtype == dtype and want.shape == shape
        for said in ({}, {"dtype": dtype}, {"device": "cpu"}, {"dtype": dtype, "device": "cpu:0"}):
            out = torch.full(shape, torch.nan, dtype=dtype)
            assert sinpe.table(length, encoding, out=out, **said, **more) is out and torch.equal(out, want)


@pytest.mark.parametrize("name", CALLS)
def test_arguments_contradicting_out_write_nothing(name: str, backend: str) -> None:
    length, encoding, more, shape = CALLS[name]
    for said in ({"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"device": "meta"}, {"device": "cuda:1"}):
        out = torch.full(shape, 7.0)
        with pytest.raises(RuntimeError, match=f"{next(iter(said))}: expected .* that of out"):
            sinpe.table(length, encoding, out=out, **said, **more)
        assert bool((out == 7.0).all()) and out._version == 0


def test_out_in_a_graph(backend: str, reset_dynamo: None) -> None:
    want, out = sinpe.table(5, 8, dtype=torch.bfloat16), torch.empty(5, 8, dtype=torch.bfloat16)
    compiled = torch.compile(lambda out: sinpe.table(5, 8, out=out) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(out), want * 2) and torch.equal(out, want)


@pytest.mark.parametrize("name", sinpe.conventions())
def test_name_and_dim_equal_encoding(name: str, backend: str) -> None:
    encoding: Any = sinpe.convention(name, DIM)
    axes = encoding.ndim if isinstance(encoding, sinpe.GridEncoding) else None
    length = 9 if axes is None else (3,) * axes
    at = torch.rand((7,) if axes is None else (7, axes), generator=torch.Generator().manual_seed(0)) * 100
    table, rows = sinpe.table(length, encoding), sinpe.encode(at, encoding)
    assert torch.equal(sinpe.table(length, name, DIM), table)
    assert torch.equal(sinpe.table(length, name.upper(), dim=np.int64(DIM), out=torch.empty_like(table)), table)
    assert torch.equal(sinpe.encode(at, name, DIM), rows)
    if axes is not None or encoding.angle == "exact":
        assert np.array_equal(sinpe.numpy.table(length, name, DIM), table.numpy())
        assert np.array_equal(sinpe.numpy.encode(at.numpy(), name, DIM), rows.numpy())


def test_dim_without_encoding_is_paper(backend: str) -> None:
    assert torch.equal(sinpe.table(9, dim=8, start=3), sinpe.table(9, 8, start=3))
    assert torch.equal(sinpe.encode(torch.arange(5), dim=7), sinpe.encode(torch.arange(5), 7))
    assert np.array_equal(sinpe.numpy.table(9, dim=8), sinpe.table(9, 8).numpy())


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x + sinpe.table((1, x.shape[0]), "mae2d", dim=x.shape[1], flatten=True),
        lambda x: x + sinpe.encode(x[:, 0], "ddpm", dim=x.shape[1]),
    ],
    ids=["table of a grid", "encode"],
)
def test_names_and_symbolic_dims_in_a_graph(run: Callable[[Tensor], Tensor], reset_dynamo: None) -> None:
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for shape in ((3, 8), (4, 12), (9, 8)):
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(compiled(x), run(x), rtol=0, atol=1e-6)
