"""angle="float32_exp" and "float32_pow": bitwise equal to the naive formulas, computed here in PyTorch on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

LENGTH = 700  # there the float32 angles are off by 1e-5, and all rows differ from the exact ones
DIMS = [2, 6, 7, 64, 127, 320, 513]


def interleaved(sines: Tensor, cosines: Tensor, dim: int) -> Tensor:
    pe = torch.zeros(len(sines), dim)
    pe[:, 0::2] = torch.sin(sines)
    pe[:, 1::2] = torch.cos(cosines[:, : dim // 2])
    return pe


def exp_form(dim: int, position: Tensor, base: float = 10000.0) -> Tensor:
    """As in the PyTorch tutorial."""
    div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(base) / dim))
    angle = position.unsqueeze(1) * div_term
    return interleaved(angle, angle, dim)


def pow_form(dim: int, position: Tensor) -> Tensor:
    """As in "Attention is all you need", with pow."""
    even_i = torch.arange(0, dim, 2).float()
    angle = position.unsqueeze(1) / torch.pow(10000, even_i / dim)
    return interleaved(angle, angle, dim)


def own_index_pow_form(dim: int, position: Tensor) -> Tensor:
    """The cosine of a pair has a separate index."""
    even, odd = torch.arange(0, dim, 2).float(), torch.arange(1, dim + 1, 2).float()
    position = position.unsqueeze(1)
    return interleaved(position / torch.pow(10000, even / dim), position / torch.pow(10000, odd / dim), dim)


def fairseq_form(dim: int, position: Tensor) -> Tensor:
    half = dim // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / max(half - 1, 1)))
    angle = position.unsqueeze(1) * frequencies.unsqueeze(0)
    rows = torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)
    return torch.cat([rows, torch.zeros(len(rows), 1)], dim=1) if dim % 2 else rows


def halves(angle: Tensor, dim: int, cosines_first: bool = False) -> Tensor:
    rows = [angle.cos(), angle.sin()] if cosines_first else [angle.sin(), angle.cos()]
    return torch.cat([*rows, torch.zeros(len(angle), dim % 2)], dim=1)


def guided_diffusion_form(dim: int, t: Tensor, period: float = 10000.0, shift: float = 0.0) -> Tensor:
    """Multiplies before dividing: differs from exp(i * (-log(period) / half)) unless half is 2^k."""
    half = dim // 2
    frequencies = torch.exp(-math.log(period) * torch.arange(half, dtype=torch.float32) / (half - shift))
    return halves(t[:, None].float() * frequencies[None], dim, cosines_first=True)


def reciprocal_form(dim: int, position: Tensor, base: float = 10000.0) -> Tensor:
    """CTRL, timm, MONAI, positional-encodings: 1 / pow is rounded, then the product."""
    return position.float().unsqueeze(1) * (1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)))


@pytest.mark.parametrize("dim", DIMS)
def test_forms_in_halves(dim: int, backend: str) -> None:
    position = torch.arange(LENGTH)
    adm = sinpe.convention("adm", dim, angle="float32_exp")
    assert torch.equal(sinpe.table(LENGTH, adm), guided_diffusion_form(dim, position))
    t = torch.rand(200, generator=torch.Generator().manual_seed(1)) * 1000
    assert torch.equal(sinpe.encode(t, adm), guided_diffusion_form(dim, t))
    if dim > 3:
        got = sinpe.encode(t, adm.replace(shift=0.5, base=300))
        assert torch.equal(got, guided_diffusion_form(dim, t, 300.0, 0.5))
    flux = sinpe.convention("flux", dim, angle="float32_exp")
    assert torch.equal(sinpe.encode(t / 1000, flux), guided_diffusion_form(dim, (t / 1000) * 1000))
    if dim % 2 == 0:
        concat = sinpe.convention("paper_concat", dim, angle="float32_pow", base=500)
        assert torch.equal(sinpe.table(LENGTH, concat), halves(reciprocal_form(dim, position, 500.0), dim))
    rounded = sinpe.convention("multidim1d", dim, angle="float32_pow")
    width = dim + dim % 2
    angle = reciprocal_form(width, position)
    assert torch.equal(sinpe.table(LENGTH, rounded), interleaved(angle, angle, width)[:, :dim])
    if dim > 100:  # the two orders give different bits
        assert not torch.equal(sinpe.table(LENGTH, rounded), pow_form(dim, position))


def test_octaves_are_exact(backend: str) -> None:
    """Powers of two are exact: NeRF's 2.0 ** k * x."""
    x = torch.rand(50, generator=torch.Generator().manual_seed(2)) * 2 - 1
    angle = x[:, None] * 2.0 ** torch.arange(10)
    got = sinpe.encode(x, sinpe.convention("nerf", 20, angle="float32_pow"))
    assert torch.equal(got, interleaved(angle, angle, 20))


@pytest.mark.parametrize("dim", DIMS)
def test_usual_formulas(dim: int, backend: str) -> None:
    position = torch.arange(LENGTH)
    forms = {
        sinpe.Encoding(dim, angle="float32_exp"): exp_form(dim, position),
        sinpe.Encoding(dim, angle="float32_exp", base=500): exp_form(dim, position, 500.0),
        sinpe.Encoding(dim, angle="float32_pow"): pow_form(dim, position),
        sinpe.convention("own_index", dim, angle="float32_pow"): own_index_pow_form(dim, position),
        sinpe.convention("t2t", dim, angle="float32_exp"): fairseq_form(dim, position),
        sinpe.convention("fairseq", dim, angle="float32_exp"): fairseq_form(dim, position + 2),
    }
    for encoding, want in forms.items():
        assert torch.equal(sinpe.table(LENGTH, encoding), want), encoding
        first = encoding.start
        assert torch.equal(sinpe.encode(position + first, encoding), want)
        assert torch.equal(sinpe.table(5, encoding, start=90), want[90:95])
        assert torch.equal(sinpe.table(LENGTH, encoding, dtype=torch.bfloat16), want.bfloat16())
    if dim > 100:
        assert not torch.equal(sinpe.table(LENGTH, dim), exp_form(dim, position))
        assert torch.allclose(sinpe.table(LENGTH, dim), exp_form(dim, position), rtol=0, atol=1e-4)


def test_every_field() -> None:
    """Other fields change float32 angles as they change exact ones, to float32 accuracy at small positions."""
    for fields in (
        {"layout": "sin_cos"},
        {"layout": "cos_sin", "odd": "pad"},
        {"odd": "round", "amplitude": 0.25},
        {"cos_frequency": "own", "exponent_scale": 2, "exponent_dim": 30},
        {"unit": "half_turn", "position_scale": 0.01},
        {"unit": "turn", "position_scale": 0.01, "base": 3.0},
        {"frequencies": (1.0, -0.5, 0.25, 0.125, 2.0)},
        {"shift": 3.5},
        {"dim": 2, "shift": 1},  # one pair, whose exponent is 0 and not 0/0
    ):
        exact = sinpe.Encoding(**{"dim": 9, **fields})
        for angle in ("float32_exp", "float32_pow"):
            got = sinpe.table(9, exact.replace(angle=angle))
            assert torch.allclose(got, sinpe.table(9, exact), rtol=0, atol=2e-6), (fields, angle)


def test_gradients() -> None:
    encoding = sinpe.Encoding(2, angle="float32_exp")
    p = torch.rand(5, requires_grad=True)
    sinpe.encode(p, encoding).sum().backward()
    assert torch.allclose(p.grad, p.detach().cos() - p.detach().sin(), atol=1e-6)
    x, alpha = torch.zeros(5, 2), torch.ones(1, requires_grad=True)
    sinpe.add(x, encoding, alpha=alpha).sum().backward()
    assert torch.allclose(alpha.grad, sinpe.table(5, encoding).sum().reshape(1))
