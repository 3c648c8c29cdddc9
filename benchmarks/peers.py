"""Other implementations of the encoding: the formulas that the benchmark and the demo compare with.

Each is a short transcription of a library's published formula, with the same operations in the same precision, so
that time and error are that library's. They are named after their source.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sinpe_ext.naive import BASE as BASE
from sinpe_ext.naive import naive_table


def usual_parts(length: int, dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The inputs of `usual_table`: a column of positions, and the even channel indices."""
    return torch.arange(length, dtype=dtype).unsqueeze(1), torch.arange(0, dim, 2, dtype=dtype)


def usual_table(position: Tensor, index: Tensor) -> Tensor:
    """`naive_table` of a column of positions."""
    return naive_table(position.squeeze(1), 2 * index.numel())


def fairseq_table(length: int, dim: int) -> Tensor:
    """fairseq's builder: frequencies with half - 1 steps, sines then cosines, concatenated."""
    half = dim // 2
    frequency = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(BASE) / (half - 1)))
    angle = torch.arange(length, dtype=torch.float).unsqueeze(1) * frequency.unsqueeze(0)
    return torch.cat([angle.sin(), angle.cos()], dim=1).view(length, -1)


def diffusers_embedding(timesteps: Tensor, dim: int, shift: float = 1.0, scale: float = 1.0) -> Tensor:
    """diffusers' timestep embedding: float32 frequencies with half - shift steps, sines then cosines."""
    half = dim // 2
    exponent = -math.log(BASE) * torch.arange(half, dtype=torch.float32, device=timesteps.device)
    frequency = torch.exp(exponent / (half - shift))
    angle = scale * (timesteps[:, None].float() * frequency[None, :])
    return torch.cat([torch.sin(angle), torch.cos(angle)], dim=-1)


def transformers_table(length: int, dim: int) -> Tensor:
    """The Marian builder of transformers: float64 angles in two nested Python loops, converted to float32."""
    import numpy as np

    angle = np.array([[p / np.power(10000, 2 * (j // 2) / dim) for j in range(dim)] for p in range(length)])
    half = (dim + 1) // 2
    out = torch.empty(length, dim)
    out[:, :half] = torch.from_numpy(np.sin(angle[:, 0::2])).float()
    out[:, half:] = torch.from_numpy(np.cos(angle[:, 1::2])).float()
    return out


class UsualModule(nn.Module):
    """The tutorial's module without dropout: a stored table, sliced and added."""

    pe: Tensor

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("pe", usual_table(*usual_parts(max_len, dim)))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + self.pe[start : start + x.size(-2)]


def exact_rows(positions: Tensor, dim: int, *, shift: float = 0.0, interleaved: bool = True) -> Tensor:
    """float64 rows (P, dim) for checks, with torch's float64 functions (absolute error below position * 2e-16)."""
    half = dim // 2
    frequency = torch.tensor([BASE ** (-i / (half - shift)) for i in range(half)], dtype=torch.float64)
    angle = positions.double().unsqueeze(1) * frequency
    parts = torch.sin(angle), torch.cos(angle)
    return torch.stack(parts, 2).flatten(1) if interleaved else torch.cat(parts, 1)


def agree(name: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Stop the benchmark if a result is wrong."""
    worst = float((got.double() - expected.double()).abs().max())
    if not worst <= tolerance:  # also catches NaN
        raise AssertionError(
            f"{name}: expected values within {tolerance:.1e} of the exact ones, got a difference of {worst:.1e}"
        )
