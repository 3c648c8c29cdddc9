"""The layouts of other models: the bits of eager PyTorch, at sizes for which kernels divide rows and channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

pytestmark = pytest.mark.usefixtures("need_kernels")

# (batch, length, dim): several tiles and strips of channels, more than 2048 positions, more than 256 slices, odd widths
SHAPES = [(3, 70, 96), (2, 2101, 34), (300, 5, 66), (1, 130, 519), (4, 33, 7)]
LAYOUTS = {
    "sequence first": lambda x: (x.transpose(0, 1).contiguous(), {"seq_dim": 0}),
    "channels first": lambda x: (x.transpose(1, 2).contiguous(), {"seq_dim": 2, "channel_dim": 1}),
    "transposed view": lambda x: (x.transpose(1, 2).contiguous().transpose(1, 2), {}),
    "sequence inside": lambda x: (x.movedim(0, 2).contiguous().movedim(2, 0), {}),
    "part of a wider tensor": lambda x: (torch.cat([x, x], -1)[..., : x.shape[-1]], {}),
    "every second channel": lambda x: (x.repeat_interleave(2, -1)[..., ::2], {}),
    "four dimensions": lambda x: (torch.stack([x, -x], 2).transpose(1, 2), {}),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"start": 1000},
    "alpha": {"alpha": 0.3, "scale": 1.7},
    "starts": {"start": "starts", "scale": -2.0},
    "mask": {"padding_mask": "mask", "scale": 3.0},
    "positions": {"positions": "positions"},
    "dropout": {"dropout": 0.3, "seed": 11},
    "dropout, mask, starts": {"dropout": 0.5, "seed": 3, "padding_mask": "mask", "start": "starts"},
}


def operands(batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "starts": torch.randint(-5, 10**6, (batch,), generator=generator),
        "mask": torch.rand(batch, length, generator=generator) < 0.3,
        "positions": torch.randint(0, 2**31, (batch, length), generator=generator),
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_has_the_bits_of_eager(shape: tuple[int, int, int], layout: Any, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    given = operands(shape[0], shape[1], generator)
    for dtype, name in ((torch.float32, "paper"), (torch.bfloat16, "t2t"), (torch.float64, "paper")):
        x, where = layout(torch.randn(shape, generator=generator).to(dtype))
        options = {key: given.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
        ours = sinpe.add(x, name, **options, **where)
        into = torch.full_like(x, float("nan"))
        sinpe.add(x, name, **options, **where, out=into)
        with sinpe.use_backend("eager"):
            wanted = sinpe.add(x, name, **options, **where)
        assert ours.stride() == torch.empty_like(x).stride()
        if dtype == torch.float64:  # rows of either backend are within 1 ULP, and sums of up to 20 are rounded
            torch.testing.assert_close(ours, wanted, rtol=1e-15, atol=4e-15)
        else:
            assert torch.equal(ours, wanted)
        assert torch.equal(into, ours)
        sinpe.add_(x, name, **options, **where)
        assert torch.equal(x, ours)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_gradients_are_those_of_eager(layout: Any) -> None:
    x, where = layout(torch.randn(16, 70, 128))
    grad = torch.empty_like(x).normal_()

    def gradients() -> list[Tensor]:
        leaf, alpha = x.clone().requires_grad_(), torch.tensor(0.7, requires_grad=True)
        sinpe.add(leaf, alpha=alpha, dropout=0.2, seed=5, **where).backward(grad)
        assert leaf.grad is not None and alpha.grad is not None
        return [leaf.grad, alpha.grad]

    ours = gradients()
    with sinpe.use_backend("eager"):
        wanted = gradients()
    assert torch.equal(ours[0], wanted[0])
    torch.testing.assert_close(ours[1], wanted[1])


@pytest.mark.parametrize("batch", [3, 300])
def test_embed_with_the_sequence_first(batch: int) -> None:
    ids, weight = torch.randint(0, 50, (21, batch)), torch.randn(50, 40)
    mask = torch.rand(batch, 21) < 0.3
    for options in ({}, {"dropout": 0.25, "seed": 2}, {"padding_mask": mask}, {"start": torch.arange(batch)}):
        ours = sinpe.embed(ids, weight, scale=2.0, seq_dim=0, **options)
        with sinpe.use_backend("eager"):
            assert torch.equal(ours, sinpe.embed(ids, weight, scale=2.0, seq_dim=0, **options))


@pytest.mark.parametrize("shape", [(20011, 1), (3, 4001, 2), (2, 1000, 16)], ids=str)
def test_gradients_of_expanded_and_strided_gradients(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).requires_grad_()
    for grad in (torch.ones(()).expand(shape), torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]):
        gradients = []
        for contiguous in (grad, grad.clone(memory_format=torch.contiguous_format)):
            (of_x,) = torch.autograd.grad(sinpe.add(x, shape[-1], dropout=0.5, seed=1), x, contiguous)
            gradients.append(of_x)
        assert torch.equal(*gradients)


def test_channel_without_encoding_has_the_sign_of_alpha() -> None:
    x = -torch.zeros(2, 40, 3)
    expected = sinpe.add(x, "t2t", alpha=-1.0)
    in_channels = sinpe.add(x.transpose(1, 2).contiguous().transpose(1, 2), "t2t", alpha=-1.0)
    assert expected[0, 0, -1].signbit()
    assert torch.equal(in_channels.contiguous().view(torch.int32), expected.view(torch.int32))
