"""A table of calls of every kind, of tensors on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cuda_support import randn
from torch import Tensor

import sinpe_ext as sinpe

B, S, D, V = 4, 64, 128, 50
P = 0.3
FULL = sinpe.GridEncoding((sinpe.Encoding(D // 2), sinpe.Encoding(D // 2)))
PART = sinpe.GridEncoding((sinpe.Encoding(3), sinpe.Encoding(4)), dim=D)


def tensors(place: torch.device) -> dict[str, Tensor]:
    return {
        "x": randn(B, S, D).to(place),
        "ids": (torch.arange(B * S) % V).reshape(B, S).to(place),
        "weight": randn(V, D).to(place),
        "positions": torch.arange(S).to(place),
        "starts": torch.arange(B).to(place),
        "corner": torch.tensor([5, 6], device=place),
        "mask": (torch.arange(S) > 50).to(place),
        "alpha": torch.tensor([0.7], device=place),
        "seed": torch.tensor(5, device=place),
        "grad": torch.ones(B, S, D, device=place),
    }


def image(t: dict[str, Tensor]) -> Tensor:
    return t["x"].view(B, 8, 8, D)


def places(t: dict[str, Tensor]) -> Tensor:
    return torch.stack([t["positions"] % 8, t["positions"] // 8], -1)


def corners(t: dict[str, Tensor]) -> Tensor:
    return t["starts"].unsqueeze(1).expand(B, 2)


def gradients(t: dict[str, Tensor], d: Any) -> Any:
    x, alpha = t["x"].detach().requires_grad_(), t["alpha"].detach().requires_grad_()
    positions = t["positions"].float().requires_grad_()
    out = sinpe.add(x, alpha=alpha, positions=positions, dropout=P, seed=t["seed"], padding_mask=t["mask"])
    return torch.autograd.grad(out, (x, alpha, positions), t["grad"])


def gradients_of_a_grid(t: dict[str, Tensor], d: Any) -> Any:
    x, alpha = image(t).detach().requires_grad_(), t["alpha"].detach().requires_grad_()
    out = sinpe.add(x, "mae2d", alpha=alpha, dropout=P, seed=t["seed"])
    return torch.autograd.grad(out, (x, alpha), t["grad"].view_as(x))


def gradient_of_an_embedding(t: dict[str, Tensor], d: Any) -> Any:
    weight = t["weight"].detach().requires_grad_()
    out = sinpe.embed(t["ids"], weight, scale=2.0, dropout=P, seed=3, padding_idx=0, encode_padding=False)
    return out, torch.autograd.grad(out, weight, t["grad"])[0]


CALLS: dict[str, Callable[[dict[str, Tensor], Any], Any]] = {
    "table": lambda t, d: sinpe.table(S, D, start=3, device=d),
    "table out": lambda t, d: sinpe.table(S, D, out=torch.empty(S, D, device=d)),
    "encode": lambda t, d: sinpe.encode(t["ids"], sinpe.convention("fairseq", D), dtype=torch.bfloat16),
    "encode float": lambda t, d: sinpe.encode(t["positions"].float(), D),
    "add": lambda t, d: sinpe.add(t["x"], scale=2.0),
    "add alpha": lambda t, d: sinpe.add(t["x"], alpha=t["alpha"]),
    "add alpha out": lambda t, d: sinpe.add(t["x"], alpha=t["alpha"], out=torch.empty_like(t["x"])),
    "add out": lambda t, d: sinpe.add(t["x"], out=torch.empty_like(t["x"])),
    "add starts": lambda t, d: sinpe.add(t["x"], "fairseq", start=t["starts"], padding_mask=t["mask"]),
    "add positions": lambda t, d: sinpe.add(t["x"], positions=t["positions"], dropout=P, seed=5),
    "add seed": lambda t, d: sinpe.add(t["x"], dropout=P, seed=t["seed"]),
    "add CPU seed": lambda t, d: sinpe.add(t["x"], dropout=P, seed=torch.tensor(5)),
    "add nothing kept": lambda t, d: sinpe.add(t["x"], dropout=1.0),
    "add channels first": lambda t, d: sinpe.add(t["x"].mT, seq_dim=2, channel_dim=1, dropout=P, seed=5),
    "add_": lambda t, d: sinpe.add_(t["x"].clone(), dropout=P, seed=5),
    "add_ alpha": lambda t, d: sinpe.add_(t["x"].clone(), alpha=t["alpha"], dropout=P, seed=5),
    "float32 angle": lambda t, d: sinpe.add(t["x"], sinpe.Encoding(D, angle="float32_exp"), padding_mask=t["mask"]),
    "grid": lambda t, d: sinpe.add(image(t), PART, start=(2, 5), dropout=P, seed=5),
    "grid channels first": lambda t, d: sinpe.add(t["x"].view(B, D, 8, 8), "mae2d", channel_dim=1),
    "grid alpha": lambda t, d: sinpe.add(image(t), "mae2d", alpha=t["alpha"]),
    "grid padding": lambda t, d: sinpe.add(image(t), PART, padding_mask=t["mask"].view(8, 8)),
    "grid start": lambda t, d: sinpe.add(image(t), "mae2d", start=t["corner"]),
    "grid starts": lambda t, d: sinpe.add(image(t), FULL, start=corners(t), dropout=P, seed=5),
    "grid positions": lambda t, d: sinpe.add(t["x"], "mae2d", positions=places(t).float()),
    "grid positions alpha": lambda t, d: sinpe.add(t["x"], FULL, positions=places(t), alpha=t["alpha"]),
    "grid tokens": lambda t, d: sinpe.add(t["x"], PART, grid_shape=(7, 9), extra_tokens=1),
    "grid_": lambda t, d: sinpe.add_(image(t).clone(), "mae2d", seed=5, dropout=P),
    "grid out": lambda t, d: sinpe.add(image(t), "mae2d", out=torch.empty(B, 8, 8, D, device=d)),
    "grid table": lambda t, d: sinpe.table((8, 8), PART, device=d),
    "grid encode": lambda t, d: sinpe.encode(places(t).double(), FULL),
    "embed": lambda t, d: sinpe.embed(t["ids"], t["weight"]),
    "embed padding": lambda t, d: sinpe.embed(
        t["ids"], t["weight"], dropout=P, seed=5, padding_idx=1, encode_padding=False, start=t["starts"]
    ),
    "layer": lambda t, d: sinpe.SinusoidalPositionalEncoding(D, P).eval()(t["x"], start=t["starts"]),
    "layer in training": lambda t, d: sinpe.SinusoidalPositionalEncoding(D, P)(t["x"], seed=5),
    "packed positions": lambda t, d: sinpe.positions.packed(t["starts"], "fairseq", total=S),
}
TRAINED = {
    "gradients": gradients,
    "gradients of a grid": gradients_of_a_grid,
    "gradient of an embedding": gradient_of_an_embedding,
}
EVERY = {**CALLS, **TRAINED}
