"""The reference implementation of add: order of rounding, forms of positions, no side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sinpe_ext import reference
from sinpe_ext.encodings.encoding import Encoding
from sinpe_ext.encodings.plan import plan
from sinpe_ext.records import Add
from sinpe_ext.reference import apply

B, S, D = 3, 7, 10
PLAN = plan(Encoding(D))
WORDS = torch.empty(0, dtype=torch.int64)  # placeholder for the packed plan
STARTS = torch.tensor([[0], [100], [-3]])
FORMS = {
    "implicit": (None, torch.arange(5, 5 + S)),
    "shared": (torch.arange(S) * 3, torch.arange(S) * 3),
    "per_sample": (torch.arange(B * S).reshape(B, S), torch.arange(B * S).reshape(B, S)),
    "one_row": (torch.arange(S)[None], torch.arange(S)[None]),
    "start_per_sample": (STARTS, STARTS + torch.arange(S)),
    "fractional": (torch.arange(S) / 3, torch.arange(S) / 3),
}


def add(
    of: Any, x: Tensor, positions: Any, start: int, scale: float, alpha: Any, mask: Any, out: Tensor | None = None
) -> Tensor:
    return apply.add(of, Add(x, WORDS, positions, mask, alpha, start=start, scale=scale), out)


def expected(x: torch.Tensor, rows: torch.Tensor, scale: float, alpha: float) -> torch.Tensor:
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale, alpha = torch.tensor(scale, dtype=acc), torch.tensor(alpha, dtype=acc)
    while rows.dim() > 2 and rows.dim() < x.dim():
        rows = rows.unsqueeze(1)
    return (scale * x.to(acc) + alpha * rows).to(x.dtype)


@pytest.mark.parametrize("scale, alpha", [(1.0, 1.0), (0.1, 1.0), (1.0, -0.3), (3.7, 0.9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_add(form: str, dtype: torch.dtype, scale: float, alpha: float) -> None:
    positions, final = FORMS[form]
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    for shape in ((B, S, D), (B, 2, S, D)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        want = expected(x, reference.encode(PLAN, final, acc), scale, alpha)
        kept = x.clone()
        assert torch.equal(add(PLAN, x, positions, 5, scale, alpha, None), want)
        assert torch.equal(add(PLAN, x, positions, 5, scale, torch.tensor([alpha], dtype=acc), None), want)
        assert torch.equal(add(PLAN, x, positions, 5, scale, torch.tensor(alpha, dtype=acc), None), want)
        assert torch.equal(x, kept)
        out = torch.full_like(x, torch.nan)
        assert add(PLAN, x, positions, 5, scale, alpha, None, out) is out and torch.equal(out, want)
        assert add(PLAN, x, positions, 5, scale, alpha, None, x) is x and torch.equal(x, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_padded_rows_get_no_encoding(form: str, dtype: torch.dtype) -> None:
    mask = torch.rand((B, S), generator=torch.Generator().manual_seed(3)) < 0.4
    x = torch.randn(B, 2, S, D, generator=torch.Generator().manual_seed(4)).to(dtype)
    x[..., 0] = -0.0
    got = add(PLAN, x, FORMS[form][0], 5, 1.3, 0.7, mask)
    plain = add(PLAN, x, FORMS[form][0], 5, 1.3, 0.7, None)
    rows = mask[:, None, :, None].expand(x.shape)
    scaled = (x.float() * 1.3).to(dtype)
    assert torch.equal(got, torch.where(rows, scaled, plain))
    assert torch.equal(got.signbit()[rows], scaled.signbit()[rows])


def test_without_batch_dimension_and_empty_inputs() -> None:
    x = torch.randn(S, D)
    want = expected(x, reference.table(PLAN, S, 2, torch.float32), 1.0, 1.0)
    assert torch.equal(add(PLAN, x, None, 2, 1.0, 1.0, None), want)
    assert torch.equal(add(PLAN, x, torch.arange(2, 2 + S), 0, 1.0, 1.0, None), want)
    assert torch.equal(add(PLAN, x, torch.tensor([[2]]), 0, 1.0, 1.0, None), want)
    assert torch.equal(add(PLAN, x, None, 2, 1.0, 1.0, torch.ones(1, S, dtype=torch.bool)), x)
    for shape in ((0, S, D), (B, 0, D), (0, D)):
        assert add(PLAN, torch.empty(shape), None, 0, 2.0, 1.0, None).shape == shape


def test_strides_follow_empty_like_and_no_gradient_is_recorded() -> None:
    dense = torch.randn(S, B, D).transpose(0, 1)
    for x in (dense, torch.randn(B, S, 2 * D)[..., ::2], torch.randn(1, S, D).expand(B, S, D)):
        got = add(PLAN, x, None, 0, 1.0, 1.0, None)
        assert got.stride() == torch.empty_like(x).stride()
        assert torch.equal(got, add(PLAN, x.contiguous(), None, 0, 1.0, 1.0, None))
    x, alpha = torch.randn(B, S, D, requires_grad=True), torch.ones(1, requires_grad=True)
    assert not add(PLAN, x, None, 0, 2.0, alpha, None).requires_grad


def test_result_is_never_the_input() -> None:
    x = torch.randn(B, S, D)
    mask = torch.ones(B, S, dtype=torch.bool)
    got = add(PLAN, x, None, 0, 1.0, 0.0, mask)
    assert torch.equal(got, x) and got.data_ptr() != x.data_ptr()
