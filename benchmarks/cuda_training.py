"""Rows of the CUDA benchmark with further gradients: the dense gradient of an embedding, a learned alpha."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import sinpe_ext as sinpe

from . import cuda_cases as cases
from . import peers as peer
from .cases import ROUNDING, Subjects
from .cuda_cases import P, Place, cuda_row


def with_gradients(run: Callable[[], Tensor], inputs: list[Tensor], grad: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """The call with its forward and backward pass."""

    def both() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(run(), inputs, grad)

    return both


def embed_backward(place: Place, dtype: torch.dtype, *, of_text: bool = False) -> Subjects:
    """embed + dropout and the dense gradient of weight, which is zeroed and summed; the floor is two copies."""
    batch, length, dim = place.shape()
    encoding, scale = sinpe.Encoding(dim), math.sqrt(dim)
    weight = (place.randn(cases.VOCABULARY, dim, dtype=dtype) / scale).requires_grad_()
    ids = place.ids(of_text=of_text)
    pe, seed = sinpe.table(length, encoding, dtype=dtype, device=place.device), torch.tensor(1, device=place.device)
    grad = place.randn(batch, length, dim, dtype=dtype)
    y = torch.empty_like(grad)

    def run() -> Tensor:
        return sinpe.embed(ids, weight, encoding, scale=scale, dropout=P, seed=seed)

    def eager() -> Tensor:
        return functional.dropout(functional.embedding(ids, weight) * scale + pe, P)

    def floor() -> None:
        y.copy_(grad)
        y.copy_(grad)

    ours = with_gradients(run, [weight], grad)

    def check() -> None:
        loud = torch.full_like(weight.detach(), 8)  # a constant, so that no 16-bit sum is 0 by chance
        dropped = sinpe.embed(ids, loud, encoding, scale=scale, dropout=P, seed=seed) == 0
        kept = torch.where(dropped, 0, grad).flatten(0, 1)
        some = torch.linspace(0, cases.VOCABULARY - 1, 7).long().tolist()
        want = torch.stack([kept[ids.flatten() == row].double().sum(0) for row in some])
        want *= scale * 65536 / (65536 - round(P * 65536))
        largest = 1 + float(want.abs().max())
        peer.agree("embed", ours()[0][some], want, largest * (8 * ROUNDING[dtype] + 2.0**-20))

    compiled = torch.compile(eager)
    peers = {
        "eager": with_gradients(eager, [weight], grad),
        "torch.compile": with_gradients(lambda: compiled(), [weight], grad),
    }
    return Subjects(ours, floor, peers, check, 4 * grad.numel() * grad.element_size())


def alpha_train(place: Place, dtype: torch.dtype) -> Subjects:
    """x + alpha * PE, dropout, and the gradients of x and of alpha (a sum over all elements)."""
    batch, length, dim = place.shape()
    encoding, x = sinpe.Encoding(dim), place.randn(batch, length, dim, dtype=dtype).requires_grad_()
    alpha = torch.full((1,), 0.5, device=place.device, dtype=dtype, requires_grad=True)
    pe, seed = sinpe.table(length, encoding, dtype=dtype, device=place.device), torch.tensor(1, device=place.device)
    grad = place.randn(batch, length, dim, dtype=dtype)
    y = torch.empty_like(grad)

    def run() -> Tensor:
        return sinpe.add(x, encoding, alpha=alpha, dropout=P, seed=seed)

    def eager() -> Tensor:
        return functional.dropout(x + alpha * pe, P)

    def floor() -> None:
        y.copy_(grad)
        y.copy_(grad)

    ours = with_gradients(run, [x, alpha], grad)

    def check() -> None:
        of_x, of_alpha = ours()
        scale = 65536 / (65536 - round(P * 65536))
        kept = of_x != 0
        cases.rows_agree("gradient of x", of_x[kept], grad[kept].double() * scale, dtype, 8.0)
        # The gradient of alpha is one sum over all elements of x; it is rounded once to dtype, PE once to float32.
        products = kept * grad.double() * sinpe.table(length, encoding, dtype=torch.float64, device=place.device)
        want, size = scale * products.sum(), scale * float(products.abs().sum())
        near = abs(float(want)) * 4 * ROUNDING[dtype] + size * 2.0**-22
        peer.agree("gradient of alpha", of_alpha, want.reshape(1), near)

    compiled = torch.compile(eager)
    peers = {
        "eager": with_gradients(eager, [x, alpha], grad),
        "torch.compile": with_gradients(lambda: compiled(), [x, alpha], grad),
    }
    return Subjects(ours, floor, peers, check, 4 * grad.numel() * grad.element_size())


TRAINING_ROWS = tuple(
    row
    for dtype, s in ((torch.float32, "f32"), (torch.bfloat16, "bf16"))
    for row in (
        cuda_row(
            f"cuda_embed_train_{s}",
            f"CUDA: embed + dropout, backward {s}",
            partial(embed_backward, dtype=dtype),
            "two copies",
            1.08 if s == "f32" else 1.3,
            {"eager": None, "torch.compile": 1.0},
        ),
        cuda_row(
            f"cuda_embed_train_text_{s}",
            f"CUDA: embed + dropout, ids of a text, backward {s}",
            partial(embed_backward, dtype=dtype, of_text=True),
            "two copies",
            1.1 if s == "f32" else 1.3,
            {"eager": None, "torch.compile": 1.0},
        ),
        cuda_row(
            f"cuda_alpha_train_{s}",
            f"CUDA: learned alpha, backward {s}",
            partial(alpha_train, dtype=dtype),
            "two copies",
            1.15 if s == "f32" else 1.2,
            {"eager": None, "torch.compile": 1.0},
        ),
    )
)
