"""CUDA cases of the bad-input catalogue: values out of range; the device stays usable."""

from __future__ import annotations

import pytest
import torch
from cuda_support import leaf, randn

import sinpe_ext as sinpe

D, V, P = 128, 50, 0.3
BAD = torch.tensor([[0, V, 1], [-1, 2**62, V - 1]])


@pytest.mark.bad_input(1, "CUDA", "embedding")
def test_id_out_of_range_gives_a_row_of_nan_and_no_gradient(cuda: torch.device) -> None:
    ids, weight = BAD.to(cuda), leaf(randn(V, D), cuda)
    bad = (BAD < 0) | (BAD >= V)
    for drop in (0.0, P):
        got = sinpe.embed(ids, weight, dropout=drop, seed=1)
        finite = sinpe.embed(ids.clamp(0, V - 1), weight, dropout=drop, seed=1)
        assert torch.equal(got.cpu()[~bad], finite.cpu()[~bad])
        kept = got.detach().cpu()[bad]
        assert bool((kept.isnan() | (kept == 0)).all() if drop else kept.isnan().all())
        (of_weight,) = torch.autograd.grad(got, weight, torch.ones_like(got))
        touched = sorted(set(of_weight.abs().sum(1).nonzero().flatten().tolist()))
        assert touched == sorted({0, 1, V - 1}) and bool(of_weight.isfinite().all())
    layer = sinpe.SinusoidalEmbedding(V, D, dropout=0.0, device=cuda).eval()
    with torch.no_grad():
        assert bool(layer(ids)[torch.as_tensor(bad)].isnan().all())
    torch.cuda.synchronize()  # the context is still valid
    assert float(torch.ones(3, device=cuda).sum()) == 3.0


def test_checked_ids(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINPE_EXT_CHECK", "1")
    ids, weight = BAD.to(cuda), torch.ones(V, D, device=cuda)
    layer = sinpe.SinusoidalEmbedding(V, D, dropout=0.0, device=cuda).eval()
    for call in (lambda: sinpe.embed(ids, weight), lambda: sinpe.embed(ids, weight, dropout=P), lambda: layer(ids)):
        with pytest.raises(IndexError, match=f"ids: expected 0 to {V - 1}, rows of weight, got {V} "):
            call()
    assert torch.equal(sinpe.embed(ids[:, :1].clamp(0), weight), sinpe.embed(ids[:, :1].clamp(0), weight))
    with pytest.raises(ValueError, match="start: expected every position .* within int64"):
        sinpe.add(torch.ones(2, 3, 8, device=cuda), start=torch.tensor(2**63 - 1, device=cuda))


@pytest.mark.bad_input(1, "CUDA", "layer")
def test_max_len_raises_without_a_device_assertion(cuda: torch.device) -> None:
    layer = sinpe.SinusoidalPositionalEncoding(8, 0.0, 10).to(cuda)
    x = torch.ones(2, 5, 8, device=cuda)
    for named in ({"positions": torch.tensor([0, 1, 2, 3, 10], device=cuda)}, {"start": torch.tensor(6, device=cuda)}):
        with pytest.raises(IndexError, match="expected .*0 to 9, .*max_len allows, got 10; raise"):
            layer(x, **named)
    assert layer(x, start=torch.tensor(5, device=cuda)).isfinite().all()
    torch.cuda.synchronize()
