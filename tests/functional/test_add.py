"""`add` and `add_`: all forms of positions, dimension orders, the order of rounding, in-place writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

B, S, D = 3, 7, 10
FAIRSEQ = sinpe.convention("fairseq", D)  # the first position is 2
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
EMPTY: dict[str, Any] = {}


def acc_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


def formula(x: Tensor, rows: Tensor, scale: float = 1.0, alpha: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """The documented order: scale and alpha rounded to acc, both products, their sum, one rounding to x's dtype.

    x is (B, *M, S, D); rows (S, D) or (B, S, D); mask (S,) or (B, S).
    """
    acc = acc_of(x.dtype)
    shape = x.shape if rows.dim() == 2 else (x.shape[0], *(1,) * (x.dim() - 3), *x.shape[-2:])
    scaled = x.to(acc) * torch.tensor(scale, dtype=acc)
    total = scaled + (torch.tensor(alpha, dtype=acc) * rows.to(acc)).expand(rows.shape).reshape(
        rows.shape if rows.dim() == 2 else shape
    )
    if mask is not None:
        padded = mask if mask.dim() == 1 else mask.reshape(mask.shape[0], *(1,) * (x.dim() - 3), mask.shape[1])
        total = torch.where(padded.unsqueeze(-1), scaled, total)
    return total.to(x.dtype)


ROW = torch.arange(S)
STARTS = torch.tensor([4, 0, -9])
FORMS: dict[str, tuple[dict[str, Any], Tensor]] = {  # arguments, final positions for FAIRSEQ
    "implicit": ({}, ROW + 2),
    "start": ({"start": 5}, ROW + 7),
    "start negative": ({"start": -100}, ROW - 98),
    "start numpy": ({"start": np.int64(5)}, ROW + 7),
    "start 0-d": ({"start": torch.tensor(5)}, (ROW + 7)[None]),
    "start 0-d uint8": ({"start": torch.tensor(254, dtype=torch.uint8)}, (ROW + 256)[None]),
    "start 0-d int32": ({"start": torch.tensor(2**31 - 1, dtype=torch.int32)}, (ROW + 2**31 + 1)[None]),
    "start (1,)": ({"start": torch.tensor([5])}, (ROW + 7)[None]),
    "start (B,)": ({"start": STARTS}, STARTS[:, None] + ROW + 2),
    "positions (S,)": ({"positions": ROW * 3}, ROW * 3),
    "positions (1, S)": ({"positions": (ROW * 3)[None]}, (ROW * 3)[None]),
    "positions (B, S)": ({"positions": STARTS[:, None] * ROW}, STARTS[:, None] * ROW),
    "positions int16": ({"positions": (ROW * 1000).short()}, ROW * 1000),
    "positions float32": ({"positions": ROW / 3}, ROW / 3),
    "positions float64": ({"positions": STARTS[:, None] + ROW.double() / 7}, STARTS[:, None] + ROW.double() / 7),
}


@pytest.mark.sampled("pairs")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_add_equals_formula_bitwise(form: str, dtype: torch.dtype, backend: str) -> None:
    arguments, final = FORMS[form]
    rows = sinpe.encode(final, FAIRSEQ, dtype=acc_of(dtype))
    masks = (None, ROW > 4, torch.arange(B * S).reshape(B, S) % 3 == 1)
    factors = ((1.0, 1.0), (0.1, 1.0), (1.0, -0.3), (3.7, 0.9))
    for shape, mask, (scale, alpha) in itertools.product(((B, S, D), (B, 2, S, D), (B, 2, 1, S, D)), masks, factors):
        x = randn(*shape, dtype=dtype)
        before = x.clone()
        want = formula(x, rows.expand(B, S, D), scale, alpha, mask)
        named = {**arguments, "scale": scale, "padding_mask": mask}
        got = sinpe.add(x, FAIRSEQ, alpha=alpha, **named)
        assert torch.equal(got, want) and got.dtype == dtype
        assert torch.equal(sinpe.add(x, FAIRSEQ, alpha=torch.tensor([alpha], dtype=torch.float64), **named), want)
        assert torch.equal(x, before)
        out = torch.full_like(x, torch.nan)
        assert sinpe.add(x, FAIRSEQ, alpha=torch.tensor(alpha, dtype=torch.float64), out=out, **named) is out
        assert torch.equal(out, want)
        assert sinpe.add_(x, FAIRSEQ, alpha=alpha, **named) is x and torch.equal(x, want)


@pytest.mark.parametrize("form", ["implicit", "start", "start 0-d", "positions (S,)", "positions (1, S)"])
def test_add_without_batch_dimension(form: str, backend: str) -> None:
    arguments, final = FORMS[form]
    x = randn(S, D)
    mask = ROW > 4
    rows = sinpe.encode(final.reshape(S), FAIRSEQ)
    assert torch.equal(sinpe.add(x, FAIRSEQ, **arguments), x + rows)
    assert torch.equal(sinpe.add(x, FAIRSEQ, padding_mask=mask[None], **arguments), formula(x, rows, mask=mask))
    assert torch.equal(sinpe.add(x.t(), FAIRSEQ, seq_dim=1, channel_dim=0, **arguments), (x + rows).t())


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_seq_dim_and_channel_dim_may_be_any_dimension(rank: int, backend: str) -> None:
    """positions, start and mask remain batch-first: the batch is the first dimension that is neither."""
    sizes = (*(B, 2, 3)[: rank - 2], S, D)
    canonical = randn(*sizes)
    batch = sizes[0] if rank > 2 else 1
    positions = torch.arange(batch * S).reshape(batch, S) * 5
    mask = positions % 4 == 1
    cases: tuple[dict[str, Any], ...] = (
        {"start": 3},
        {"start": torch.arange(batch)},
        {"positions": positions, "padding_mask": mask, "scale": 0.5},
    )
    for rows_at, channels_at in itertools.permutations(range(rank), 2):
        order = [d for d in range(rank) if d not in (rows_at, channels_at)]
        places = [*order, rows_at, channels_at]  # canonical dimension at each dimension of x
        x = canonical.permute(*(places.index(d) for d in range(rank)))
        for named in cases:
            want = sinpe.add(canonical, FAIRSEQ, **named).permute(*(places.index(d) for d in range(rank)))
            got = sinpe.add(x, FAIRSEQ, seq_dim=rows_at, channel_dim=channels_at, **named)
            assert torch.equal(got, want) and got.shape == x.shape
            negative = {"seq_dim": rows_at - rank, "channel_dim": channels_at - rank}
            assert torch.equal(sinpe.add_(x.clone(), FAIRSEQ, **negative, **named), want)
            assert torch.equal(sinpe.add(x, FAIRSEQ, out=torch.empty_like(x), **negative, **named), want)


def test_encoding_argument_forms(backend: str) -> None:
    x = randn(B, S, D)
    paper = x + sinpe.table(S, sinpe.Encoding(D))
    for encoding in (None, D, np.int64(D), sinpe.Encoding(D), "paper", "Paper"):
        assert torch.equal(sinpe.add(x, encoding), paper)
    for encoding in ("fairseq", FAIRSEQ, FAIRSEQ.replace(start=2)):
        assert torch.equal(sinpe.add(x, encoding), x + sinpe.table(S, FAIRSEQ))
    assert torch.equal(
        sinpe.add(x.transpose(1, 2), "fairseq", seq_dim=2, channel_dim=1).transpose(1, 2), sinpe.add(x, FAIRSEQ)
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_scale_and_alpha_of_zero_nan_and_inf(dtype: torch.dtype, backend: str) -> None:
    x, mask = randn(B, S, D, dtype=dtype), ROW > 4
    x[..., 0] = -0.0
    inf, nan = float("inf"), float("nan")
    rows = sinpe.table(S, D, dtype=acc_of(dtype))
    for scale, alpha in (
        (0.0, 1.0),
        (1.0, 0.0),
        (nan, 1.0),
        (1.0, nan),
        (inf, 1.0),
        (1.0, -inf),
        (2, 3),
        (1e-300, 1e300),
    ):
        want = formula(x, rows, scale, alpha, mask)
        for given in (alpha, torch.tensor([alpha], dtype=torch.float64)):
            got = sinpe.add(x, scale=scale, alpha=given, padding_mask=mask)
            assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
            assert torch.equal(got.signbit()[~want.isnan()], want.signbit()[~want.isnan()])


def test_alpha_tensor_of_any_float_dtype(backend: str) -> None:
    x = randn(B, S, D)
    rows = sinpe.table(S, D)
    for dtype in FLOATS:
        alpha = torch.tensor([0.3], dtype=dtype)
        assert torch.equal(sinpe.add(x, alpha=alpha), x + rows * alpha.float())
        assert torch.equal(
            sinpe.add(x.double(), alpha=alpha),
            formula(x.double(), sinpe.table(S, D, dtype=torch.float64), 1.0, float(alpha)),
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: sinpe.add(x),
        lambda x: sinpe.add(x, scale=1.0, alpha=0.0),
        lambda x: sinpe.add(x, padding_mask=torch.ones(S, dtype=torch.bool)),
        lambda x: sinpe.add(x[:0]),
        lambda x: sinpe.SinusoidalPositionalEncoding(D, 0.0)(x),
        lambda x: sinpe.SinusoidalPositionalEncoding(D).eval()(x),
        lambda x: sinpe.SinusoidalPositionalEncoding(D, learned_alpha=True).eval()(x),
    ],
)
def test_result_never_aliases_x(call: Callable[[Tensor], Tensor], backend: str) -> None:
    x = randn(B, S, D)
    before = x.clone()
    got = call(x)
    assert got is not x and got._base is None
    assert not got.numel() or got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert torch.equal(x, before) and x._version == 0


def test_writes_increment_version_counter(backend: str) -> None:
    """Autograd sees each write: a backward pass that needs the overwritten value raises."""
    x = randn(B, S, D)
    writes: list[Callable[[Tensor], Tensor]] = [
        lambda t: sinpe.add_(t),
        lambda t: sinpe.add_(t[:, ::2]),
        lambda t: sinpe.add_(t, start=STARTS),
        lambda t: sinpe.add(x, out=t),
        lambda t: sinpe.table(S, D, out=t[0]),
        lambda t: sinpe.table(S, D, out=t.transpose(1, 2)[0].t()),
    ]
    for write in writes:
        weight = torch.ones(1, requires_grad=True)
        target = x.clone()
        loss = (weight * target).sum()
        version = target._version
        write(target)
        assert target._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_inference_mode(backend: str) -> None:
    x = randn(B, S, D)
    want = sinpe.add(x, FAIRSEQ)
    with torch.inference_mode():
        inside = x.clone()
        assert torch.equal(sinpe.add(inside, FAIRSEQ), want) and torch.equal(sinpe.add(x, FAIRSEQ), want)
        assert torch.equal(sinpe.add_(inside, FAIRSEQ), want)
        rows = sinpe.table(S, sinpe.Encoding(D, base=77.0))  # first use of this encoding; used again outside below
    assert torch.equal(sinpe.add(inside, FAIRSEQ), sinpe.add(want, FAIRSEQ))
    assert torch.equal(sinpe.add(x.requires_grad_(), sinpe.Encoding(D, base=77.0)).detach(), x.detach() + rows)


def test_meta_tensors(backend: str) -> None:
    x = torch.empty(B, S, D, device="meta", dtype=torch.bfloat16)
    for arguments, _ in FORMS.values():
        named = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in arguments.items()}
        got = sinpe.add(x, FAIRSEQ, scale=2.0, **named)
        assert got.shape == x.shape and got.dtype == x.dtype and got.is_meta
        assert sinpe.add_(x, FAIRSEQ, **named) is x
    assert sinpe.table(4, D, device="meta").is_meta and sinpe.encode(torch.empty(2, 3, device="meta"), D).shape == (
        2,
        3,
        D,
    )
