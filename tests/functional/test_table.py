"""`table`: combinations of `out`, `dtype` and `device`; values are tested in test_accuracy.py and test_parity.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sinpe_ext as sinpe

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# length, encoding, further arguments, shape of the result
CALLS: dict[str, tuple[Any, Any, dict[str, Any], tuple[int, ...]]] = {
    "rows": (5, 8, {"start": 3}, (5, 8)),
    "grid": ((2, 3), sinpe.convention("mae2d", 8), {}, (2, 3, 8)),
    "behind a token": (5, 8, {"extra_tokens": 1}, (6, 8)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_default_dtype_is_that_of_out_else_float32(name: str, dtype: torch.dtype, backend: str) -> None:
    length, encoding, more, shape = CALLS[name]
    assert sinpe.table(length, encoding, **more).dtype == torch.float32
    want = sinpe.table(length, encoding, dtype=dtype, **more)
    assert want.dtype == dtype and want.shape == shape
    for said in ({}, {"dtype": dtype}, {"device": "cpu"}, {"dtype": dtype, "device": "cpu:0"}):
        out = torch.full(shape, torch.nan, dtype=dtype)
        assert sinpe.table(length, encoding, out=out, **said, **more) is out and torch.equal(out, want)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dtype": torch.bfloat16}, "dtype: expected torch.float32, that of out, got torch.bfloat16; leave dtype out"),
        ({"dtype": torch.float64}, "dtype: expected torch.float32, that of out, got torch.float64; leave dtype out"),
        ({"device": "meta"}, "device: expected cpu, that of out, got meta; leave device out"),
        ({"device": "cuda:1"}, "device: expected cpu, that of out, got cuda:1; leave device out"),
    ],
)
def test_arguments_contradicting_out_are_rejected(name: str, said: dict[str, Any], message: str, backend: str) -> None:
    length, encoding, more, shape = CALLS[name]
    out = torch.full(shape, 7.0)
    with pytest.raises(RuntimeError) as caught:
        sinpe.table(length, encoding, out=out, **said, **more)
    assert message in str(caught.value) and bool((out == 7.0).all()) and out._version == 0
    with pytest.raises(RuntimeError):  # as in torch
        torch.arange(5, out=torch.empty(5), dtype=torch.float64)


def test_in_a_graph(backend: str) -> None:
    def into(out: torch.Tensor) -> torch.Tensor:
        return sinpe.table(5, 8, out=out) * 2

    torch._dynamo.reset()
    want = sinpe.table(5, 8, dtype=torch.bfloat16)
    out = torch.empty(5, 8, dtype=torch.bfloat16)
    assert torch.equal(torch.compile(into, backend="eager", fullgraph=True)(out), want * 2) and torch.equal(out, want)
    torch._dynamo.reset()
