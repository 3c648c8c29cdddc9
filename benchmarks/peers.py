"""Other implementations of the encoding, with which the benchmark compares: transcriptions of published formulas.

Each has the operations and the precision of its library, so that its time and its error are that library's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sinpe_ext.reference.naive import BASE, naive_table


class NaiveModule(nn.Module):
    """The tutorial's module without dropout: a stored table, sliced and added."""

    pe: Tensor

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("pe", naive_table(torch.arange(max_len).float(), dim))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + self.pe[start : start + x.size(-2)]


def fairseq_table(length: int, dim: int) -> Tensor:
    """fairseq's builder: frequencies with half - 1 steps, sines then cosines, concatenated."""
    half = dim // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(BASE) / (half - 1)))
    angle = torch.arange(length, dtype=torch.float).unsqueeze(1) * frequency.unsqueeze(0)
    return torch.cat([angle.sin(), angle.cos()], dim=1).view(length, -1)


def diffusers_embedding(timesteps: Tensor, dim: int, shift: float = 1.0) -> Tensor:
    """diffusers' timestep embedding: float32 frequencies with half - shift steps, sines then cosines."""
    half = dim // 2
    exponent = -math.log(BASE) * torch.arange(half, dtype=torch.float32, device=timesteps.device)
    angle = timesteps[:, None].float() * torch.exp(exponent / (half - shift))[None, :]
    return torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)


def diffusers_table(length: int, dim: int) -> Tensor:
    return diffusers_embedding(torch.arange(length), dim)


def transformers_table(length: int, dim: int) -> Tensor:
    """The Marian builder of transformers: float64 angles in two nested Python loops, converted to float32."""
    import numpy as np

    angle = np.array([[p / np.power(10000, 2 * (j // 2) / dim) for j in range(dim)] for p in range(length)])
    half = (dim + 1) // 2
    out = torch.empty(length, dim)
    out[:, :half] = torch.from_numpy(np.sin(angle[:, 0::2])).float()
    out[:, half:] = torch.from_numpy(np.cos(angle[:, 1::2])).float()
    return out


def nerf(points: Tensor, octaves: int) -> Tensor:
    """The embedder of NeRF without its raw inputs."""
    return torch.cat([f(points * 2.0**k) for k in range(octaves) for f in (torch.sin, torch.cos)], -1)


def detr(mask: Tensor, dim: int) -> Tensor:
    """DETR's PositionEmbeddingSine without normalization, for a mask of (B, H, W): (B, dim, H, W) float32."""
    steps = torch.arange(dim // 2, dtype=torch.float32)
    timescale = BASE ** (2 * torch.div(steps, 2, rounding_mode="floor") / (dim // 2))
    parts = []
    for along in (1, 2):
        angle = (~mask).cumsum(along, dtype=torch.float32)[..., None] / timescale
        parts.append(torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], 4).flatten(3))
    return torch.cat(parts, 3).permute(0, 3, 1, 2)


# ---------------------------------------------------------------------------------------------------------- the checks


def exact_rows(positions: Tensor, dim: int, *, shift: float = 0.0, interleaved: bool = True) -> Tensor:
    """float64 rows (P, dim) with torch's float64 functions (absolute error below position * 2e-16)."""
    half = dim // 2
    frequency = torch.tensor([BASE ** (-i / (half - shift)) for i in range(half)], dtype=torch.float64)
    angle = positions.double().unsqueeze(1) * frequency
    parts = torch.sin(angle), torch.cos(angle)
    return torch.stack(parts, 2).flatten(1) if interleaved else torch.cat(parts, 1)


def exact_image(height: int, width: int, dim: int, *, channels_first: bool) -> Tensor:
    """float64 rows of an image: those of mae2d (H, W, dim), or those of detr2d (dim, H, W)."""
    first = int(channels_first)  # DETR counts from 1, and its first channels are those of the rows
    y, x = (
        exact_rows(torch.arange(first, first + size), dim // 2, interleaved=channels_first) for size in (height, width)
    )
    y, x = y[:, None].expand(-1, width, -1), x[None].expand(height, -1, -1)
    return torch.cat([y, x], -1).movedim(-1, 0) if channels_first else torch.cat([x, y], -1)


def agree(name: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Stop the benchmark if a result is wrong."""
    worst = float((got.detach().double() - expected.detach().double()).abs().max())
    if not worst <= tolerance:  # also catches NaN
        raise AssertionError(
            f"{name}: expected values within {tolerance:.1e} of the exact ones, got a difference of {worst:.1e}"
        )
