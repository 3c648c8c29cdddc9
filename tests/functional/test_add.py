"""`add` and `add_`: all forms of positions, the order of rounding, padded rows.

What holds for every function: test_every_function.py; any order of the dimensions: test_fuzz.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracles import acc_of, same
from torch import Tensor
from ways import WAYS, use

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

B, S, D = 3, 7, 10
FAIRSEQ = sinpe.convention("fairseq", D)  # the first position is 2
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def formula(x: Tensor, rows: Tensor, scale: float = 1.0, alpha: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The documented order: scale and alpha rounded to acc, both products, their sum, one rounding to x's dtype.

    x is (B, *M, S, D); rows (S, D) or (B, S, D); mask (S,) or (B, S).
    """
    acc, middle = acc_of(x.dtype), (1,) * (x.dim() - 3)
    scaled = x.to(acc) * torch.tensor(scale, dtype=acc)
    rows = torch.tensor(alpha, dtype=acc) * rows.to(acc)
    total = scaled + (rows if rows.dim() == 2 else rows.reshape(rows.shape[0], *middle, *rows.shape[1:]))
    if mask is not None:
        padded = mask if mask.dim() == 1 else mask.reshape(mask.shape[0], *middle, mask.shape[1])
        total = torch.where(padded.unsqueeze(-1), scaled, total)
    return total.to(x.dtype)


ROW = torch.arange(S)
STARTS = torch.tensor([4, 0, -9])
FORMS: dict[str, tuple[dict[str, Any], Tensor]] = {  # arguments, final positions for FAIRSEQ
    "implicit": ({}, ROW + 2),
    "start": ({"start": 5}, ROW + 7),
    "start numpy": ({"start": np.int64(5)}, ROW + 7),
    "start 0-d": ({"start": torch.tensor(5)}, (ROW + 7)[None]),
    "start 0-d uint8": ({"start": torch.tensor(254, dtype=torch.uint8)}, (ROW + 256)[None]),
    "start (1,)": ({"start": torch.tensor([5])}, (ROW + 7)[None]),
    "start (B,)": ({"start": STARTS}, STARTS[:, None] + ROW + 2),
    "positions (S,)": ({"positions": ROW * 3}, ROW * 3),
    "positions (B, S)": ({"positions": STARTS[:, None] * ROW}, STARTS[:, None] * ROW),
    "positions int16": ({"positions": (ROW * 1000).short()}, ROW * 1000),
    "positions float32": ({"positions": ROW / 3}, ROW / 3),
    "positions float64": ({"positions": STARTS[:, None] + ROW.double() / 7}, STARTS[:, None] + ROW.double() / 7),
}
MASKS = (None, ROW > 4, torch.arange(B * S).reshape(B, S) % 3 == 1, (ROW > 4)[None])
FACTORS = ((1.0, 1.0), (0.1, 1.0), (1.0, -0.3), (3.7, 0.9))


@pytest.mark.parametrize("form", FORMS)
def test_add_equals_formula_bitwise(form: str, backend: str) -> None:
    arguments, final = FORMS[form]
    shapes = ((B, S, D), (B, 2, S, D), (B, 2, 1, S, D))
    for dtype, number in itertools.product(FLOATS, range(4)):
        rows = sinpe.encode(final, FAIRSEQ, dtype=acc_of(dtype)).expand(B, S, D)
        mask, (scale, alpha), x = MASKS[number], FACTORS[(number + 1) % 4], randn(*shapes[number % 3], dtype=dtype)
        before, want = x.clone(), formula(x, rows, scale, alpha, mask)
        named = {**arguments, "scale": scale, "padding_mask": mask}
        assert same(sinpe.add(x, FAIRSEQ, alpha=alpha, **named), want)
        assert same(sinpe.add(x, FAIRSEQ, alpha=torch.tensor([alpha], dtype=torch.float64), **named), want)
        assert torch.equal(x, before)
        out = torch.full_like(x, torch.nan)
        assert sinpe.add(x, FAIRSEQ, alpha=torch.tensor(alpha, dtype=torch.float64), out=out, **named) is out
        assert same(out, want)
        assert sinpe.add_(x, FAIRSEQ, alpha=alpha, **named) is x and same(x, want)
    if final.dim() == 1 or final.shape[0] == 1:  # without a batch
        x, rows = randn(S, D), sinpe.encode(final.reshape(S), FAIRSEQ)
        assert torch.equal(sinpe.add(x, FAIRSEQ, **arguments), x + rows)
        assert torch.equal(sinpe.add(x, FAIRSEQ, padding_mask=MASKS[3], **arguments), formula(x, rows, mask=MASKS[1]))
        assert torch.equal(sinpe.add(x.t(), FAIRSEQ, seq_dim=1, channel_dim=0, **arguments), (x + rows).t())


def test_encoding_argument_forms(backend: str) -> None:
    x = randn(B, S, D)
    for encoding in (None, D, np.int64(D), sinpe.Encoding(D), "paper", "Paper"):
        assert torch.equal(sinpe.add(x, encoding), x + sinpe.table(S, sinpe.Encoding(D)))
    for encoding in ("fairseq", FAIRSEQ, FAIRSEQ.replace(start=2)):
        assert torch.equal(sinpe.add(x, encoding), x + sinpe.table(S, FAIRSEQ))
    turned = sinpe.add(x.transpose(1, 2), "fairseq", seq_dim=2, channel_dim=1)
    assert torch.equal(turned.transpose(1, 2), sinpe.add(x, FAIRSEQ))


@pytest.mark.bad_input(18, "compiled", "eager")
@pytest.mark.parametrize("dtype", FLOATS)
def test_factors_of_zero_nan_and_inf(dtype: torch.dtype, backend: str) -> None:
    x, mask, rows = randn(B, S, D, dtype=dtype), ROW > 4, sinpe.table(S, D, dtype=acc_of(dtype))
    x[..., 0] = -0.0
    inf, nan = float("inf"), float("nan")
    for scale, alpha in (
        *((0.0, 1.0), (1.0, 0.0), (nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, -inf), (2, 3), (1e-300, 1e300)),
    ):
        want = formula(x, rows, scale, alpha, mask)
        for given in (alpha, torch.tensor([alpha], dtype=torch.float64)):
            assert same(sinpe.add(x, scale=scale, alpha=given, padding_mask=mask), want)
    for of_alpha in FLOATS:
        alpha = torch.tensor([0.3], dtype=of_alpha)
        assert same(sinpe.add(x, alpha=alpha), formula(x, rows, alpha=float(alpha)))


# Calls on x, or weight, of -0.0 whose rows are all padding. Every branch that adds rows: sequences and grids, with one
# sequence or several, positions, and where torch operations compute the sum.
ALL = torch.ones(2, 4, dtype=torch.bool)
GRID = sinpe.convention("mae2d", 8)
PADDED: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "add": ((2, 4, 8), lambda x: sinpe.add(x, padding_mask=ALL)),
    "positions": ((2, 4, 8), lambda x: sinpe.add(x, padding_mask=ALL, positions=torch.rand(2, 4))),
    "starts": ((2, 4, 8), lambda x: sinpe.add(x, padding_mask=ALL, start=torch.tensor([3, 5]))),
    "four dimensions": ((2, 3, 4, 8), lambda x: sinpe.add(x, padding_mask=ALL)),
    "channels first": ((2, 8, 4), lambda x: sinpe.add(x, padding_mask=ALL, seq_dim=2, channel_dim=1)),
    "float32 angle": ((2, 4, 8), lambda x: sinpe.add(x, sinpe.Encoding(8, angle="float32_exp"), padding_mask=ALL)),
    "grid": ((2, 2, 2, 8), lambda x: sinpe.add(x, GRID, padding_mask=ALL.view(2, 2, 2))),
    "grid, flat": ((2, 4, 8), lambda x: sinpe.add(x, GRID, padding_mask=ALL, grid_shape=(2, 2))),
    "grid, channels first": ((2, 8, 2, 2), lambda x: sinpe.add(x, GRID, padding_mask=ALL.view(2, 2, 2), channel_dim=1)),
    "grid, coordinates": ((2, 4, 8), lambda x: sinpe.add(x, GRID, padding_mask=ALL, positions=torch.rand(2, 4, 2))),
    "extra tokens": ((2, 7, 8), lambda x: sinpe.add(x, padding_mask=ALL, extra_tokens=3)),
    "embed": ((5, 8), lambda x: sinpe.embed(torch.ones(2, 4, dtype=torch.long), x, padding_mask=ALL)),
    "vmap": ((3, 2, 4, 8), torch.func.vmap(lambda x: sinpe.add(x, padding_mask=ALL))),
}


@pytest.mark.parametrize("name", PADDED)
def test_padded_rows_keep_negative_zero(name: str, need_kernels: None) -> None:
    """x + (-0.0) is x for every x; with +0.0, -0.0 would become +0.0."""
    shape, call = PADDED[name]
    for way, dtype in itertools.product(WAYS, FLOATS):
        with use(way):
            got = call(torch.full(shape, -0.0, dtype=dtype))
        assert bool((got == 0).all()) and bool(got.signbit().all()), (way, dtype)


@pytest.mark.bad_input(13, "compiled", "eager", "layer")
def test_result_never_aliases_x(backend: str) -> None:
    """Not even where there is nothing to add."""
    x, all_padding, layer = randn(B, S, D), torch.ones(S, dtype=torch.bool), sinpe.SinusoidalPositionalEncoding(D)
    for got in (sinpe.add(x, alpha=0.0), sinpe.add(x, padding_mask=all_padding), sinpe.add(x[:0]), layer.eval()(x)):
        assert got._base is None and (not got.numel() or got.untyped_storage().data_ptr() != x.data_ptr())


@pytest.mark.parametrize("at", [0, 5, 20, 40, 63, 66])
def test_nan_in_bfloat16_has_the_same_bits_everywhere(at: int) -> None:
    """Whatever its payload and its place in a vector. (torch's own depend on the processor.)"""
    bits = torch.zeros(2, 3, 67, dtype=torch.int16)
    bits[..., at] = torch.tensor([0x7FFF, -0x7F, 0x7F81], dtype=torch.int16)
    result = sinpe.add(bits.view(torch.bfloat16))
    assert bool(result.isnan().sum() == 6)
    if sinpe.backend_info().device("cpu").backend == "compiled":
        assert bool((result.view(torch.int16)[..., at] == 0x7FC0).all())
