"""Known bugs of other implementations, and of caches, that no other test states."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

import sinpe_ext as sinpe

FLOAT64 = 1e-13  # for float64 formulas written here, at positions below 100


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("name", ["t2t", "fairseq", "ctranslate2", "ddpm", "musicgen"])
def test_single_timescale_has_frequency_1(name: str, dim: int, backend: str) -> None:
    """h - 1 = 0: ZeroDivisionError in fairseq and M2M100, NaN in diffusers."""
    p = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    got = sinpe.encode(p, sinpe.convention(name, dim), dtype=torch.float64)
    pair = [p.cos(), p.sin()] if name == "musicgen" else [p.sin(), p.cos()]
    want = torch.stack(pair + [torch.zeros(3, dtype=torch.float64)] * (dim - 2), 1)
    assert torch.allclose(got, want, rtol=0, atol=FLOAT64)
    got.sum().backward()
    assert torch.isfinite(p.grad).all()
    for angle in ("float32_exp", "float32_pow"):
        rounded = sinpe.encode(p.detach(), sinpe.convention(name, dim, angle=angle))
        assert torch.allclose(rounded.double(), want.detach(), rtol=0, atol=1e-6)
    if name == "t2t":  # of a grid
        places = sinpe.positions.grid((3, 4)).double()
        want = torch.cat(
            [places[..., :1].sin(), places[..., :1].cos(), places[..., 1:].sin(), places[..., 1:].cos()], -1
        )
        got = sinpe.table((3, 4), sinpe.convention("t2t2d", 2 * dim + dim % 2), dtype=torch.float64)
        assert torch.allclose(got[..., :4], want, rtol=0, atol=FLOAT64) and not got[..., 4:].any()


def test_batch_is_not_the_sequence(backend: str) -> None:
    """speechbrain's dual path and many copies of the tutorial index the table by the batch dimension."""
    x = torch.zeros(4, 7, 6)
    assert torch.equal(sinpe.add(x), sinpe.table(7, 6).expand(4, 7, 6))
    assert torch.equal(sinpe.add(x, seq_dim=0), sinpe.table(4, 6)[:, None].expand(4, 7, 6))


def test_grid_coordinates_are_rows_then_columns(backend: str) -> None:
    """numpy.meshgrid's default, "xy", gives the reverse order."""
    grid = sinpe.convention("hf2d", 8)
    ij = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), -1)
    assert torch.equal(sinpe.encode(torch.from_numpy(ij), grid), sinpe.table((3, 4), grid))


def test_numbers_in_tensors_may_change(backend: str) -> None:
    """What is cached by value does not keep the value of a tensor that is used as a number."""
    encoding, grid = sinpe.Encoding(8), sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(4)))
    x, ids, weight = torch.zeros(3, 4, 8), torch.zeros(3, 4, dtype=torch.long), torch.ones(2, 8)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (lambda n: sinpe.add(torch.zeros(1, 5, 8), encoding, extra_tokens=n), (1, 3, 0)),
        (lambda n: sinpe.add(torch.zeros(1, 8, 8, 8), grid, channel_dim=n), (-1, 1)),
        (lambda n: sinpe.add(torch.zeros(1, 16, 8), grid, grid_shape=(n, 16 // int(n))), (4, 2, 8)),
        (lambda n: sinpe.add(x, encoding, seq_dim=n), (0, 1)),
        (lambda n: sinpe.embed(ids, weight, seq_dim=n), (0, 1)),
    ]
    number = torch.tensor(1)
    for call, values in calls:
        for value in values:
            assert torch.equal(call(number.fill_(value)), call(value))


def test_functional_tensors_reach_the_dispatcher(backend: str) -> None:
    """The tensors of functionalization have no memory of their own, and no mode reports them."""
    x, encoding = torch.ones(1, 3, 8), sinpe.Encoding(8)
    torch._enable_functionalization(reapply_views=True)
    try:
        wrapped = sinpe.add(torch._to_functional_tensor(x), encoding)
        torch._sync(wrapped)
    finally:
        torch._disable_functionalization()
    assert torch.equal(torch._from_functional_tensor(wrapped), sinpe.add(x, encoding))


def test_names_of_other_libraries_do_not_change_the_signature() -> None:
    for layer in (sinpe.SinusoidalPositionalEncoding, sinpe.SinusoidalEmbedding):
        parameters = inspect.signature(layer).parameters
        assert "dropout" in parameters and all(p.kind is not p.VAR_KEYWORD for p in parameters.values())
