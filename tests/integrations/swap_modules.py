"""Positional encodings as commonly written and as libraries have them: those that `integrations.swap` replaces."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sinpe_ext.reference.naive import naive_table

ROWS, DIM = 60, 16


def naive(rows: int = ROWS, dim: int = DIM) -> Tensor:
    return naive_table(torch.arange(float(rows)), dim)


def halves(rows: int = ROWS, dim: int = DIM, shift: int = 1, start: int = 0) -> Tensor:
    """All sines, then all cosines, of tensor2tensor's frequencies (shift=1), or of the paper's (shift=0)."""
    half = dim // 2
    frequency = torch.exp(torch.arange(half) * -(math.log(10000) / (half - shift)))
    angle = torch.arange(start, start + rows)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], 1)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


class BatchFirst(nn.Module):
    """As in The Annotated Transformer."""

    def __init__(self, p: float = 0.1, dim: int = DIM, rows: int = ROWS) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p)
        self.register_buffer("pe", naive(rows, dim).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)].requires_grad_(False))


class SequenceFirst(nn.Module):
    """As in PyTorch's tutorial."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=p)
        self.register_buffer("pe", naive().unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class Scaled(nn.Module):
    """x times sqrt(d), a table outside the state dict, and dropout under another name."""

    def __init__(self, d_model: int = DIM) -> None:
        super().__init__()
        self.d_model = d_model
        self.drop = nn.Dropout(0.2)
        self.register_buffer("positional_encoding", naive(ROWS, d_model), persistent=False)

    def forward(self, token_embedding: Tensor) -> Tensor:
        length = token_embedding.shape[1]
        return self.drop(token_embedding * math.sqrt(self.d_model) + self.positional_encoding[:length])


class Learned(nn.Module):
    """A learned factor of a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([0.7]))
        self.pos_table = nn.Parameter(naive()[None], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.pos_table[:, : x.size(1)]


class OneSequence(nn.Module):
    """(sequence, channels) only; a plain attribute whose name says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.b = naive()

    def forward(self, x: Tensor) -> Tensor:
        length, _ = x.shape
        return x + self.b[:length]


class Follows(nn.Module):
    """In the dtype of x, whatever the table's; the rows are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_of_rows = 0.25
        self.register_buffer("cache", naive())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight_of_rows * self.cache[: x.shape[-2]].to(x.dtype)


class Another(nn.Module):
    """Another convention: tensor2tensor's halves, from fairseq's position 2."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pos_enc", halves(start=2)[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_enc[:, : x.size(1)]


class Grows(nn.Module):
    """As in ESPnet: a plain attribute that is extended to the length of x, in the dtype of x."""

    def __init__(self, d_model: int = DIM, dropout_rate: float = 0.1) -> None:
        super().__init__()
        self.xscale = math.sqrt(d_model)
        self.dropout = nn.Dropout(p=dropout_rate)
        self.pe = naive(ROWS, d_model)[None]

    def forward(self, x: Tensor) -> Tensor:
        if self.pe.size(1) < x.size(1):
            self.pe = naive(x.size(1), x.size(2))[None]
        self.pe = self.pe.to(x)
        return self.dropout(x * self.xscale + self.pe[:, : x.size(1)])


class ChannelsFirst(nn.Module):
    """x and the table are (batch, channels, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", naive().T.contiguous()[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.buf[:, :, : x.size(2)]


class ChannelsFirstRows(nn.Module):
    """x is (batch, channels, time), the table is not; the sum is scaled and dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.register_buffer("buf", halves(shift=0))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(4.0 * x + self.buf[: x.shape[-1]].T)


class Inherits(nn.Embedding):
    """An nn.Embedding by inheritance, and a sum by its forward."""

    def __init__(self) -> None:
        super().__init__(ROWS, DIM, _weight=naive(), _freeze=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.size(1)]


class Sinusoids(nn.Module):
    """Like lucidrains' SinusoidalPosEmb: rows of timesteps without a table."""

    def __init__(self, dim: int = DIM, theta: float = 10000) -> None:
        super().__init__()
        self.dim, self.theta = dim, theta

    def forward(self, x: Tensor) -> Tensor:
        half = self.dim // 2
        frequency = torch.exp(torch.arange(half, device=x.device) * -(math.log(self.theta) / (half - 1)))
        angle = x[:, None] * frequency[None]
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class Timesteps(nn.Module):
    """Like diffusers' Timesteps."""

    def __init__(self, num_channels: int, flip_sin_to_cos: bool, downscale_freq_shift: float, scale: int = 1) -> None:
        super().__init__()
        self.num_channels, self.flip_sin_to_cos = num_channels, flip_sin_to_cos
        self.downscale_freq_shift, self.scale = downscale_freq_shift, scale

    def forward(self, timesteps: Tensor) -> Tensor:
        half = self.num_channels // 2
        exponent = -math.log(10000) * torch.arange(half, dtype=torch.float32) / (half - self.downscale_freq_shift)
        angle = self.scale * (timesteps[:, None].float() * exponent.exp()[None])
        parts = (angle.cos(), angle.sin()) if self.flip_sin_to_cos else (angle.sin(), angle.cos())
        return torch.cat(parts, dim=-1)


class Scales(nn.Module):
    """Like x-transformers' ScaledSinusoidalEmbedding."""

    def __init__(self, dim: int = DIM, theta: float = 10000) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1) * dim**-0.5)
        self.register_buffer("inv_freq", theta ** -(torch.arange(dim // 2).float() / (dim // 2)), persistent=False)

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int = 0
    ) -> Tensor:
        if pos is None:
            pos = torch.arange(x.shape[1], device=x.device) + offset
        if seq_start_pos is not None:
            pos = pos - seq_start_pos[..., None]
        angle = torch.einsum("i, j -> i j", pos, self.inv_freq)
        return torch.cat((angle.sin(), angle.cos()), -1) * self.scale


class SinusoidalFrequencies(nn.Module):
    """Like torch_geometric's PositionalEncoding: a stored buffer of frequencies."""

    frequency: Tensor

    def __init__(self, out_channels: int = DIM, base_freq: float = 1e-4, granularity: float = 1.0) -> None:
        super().__init__()
        self.out_channels, self.base_freq, self.granularity = out_channels, base_freq, granularity
        self.register_buffer("frequency", torch.logspace(0, 1, out_channels // 2, base_freq))

    def forward(self, x: Tensor) -> Tensor:
        angle = x.view(-1, 1) / self.granularity * self.frequency
        return torch.cat([angle.sin(), angle.cos()], -1)


class Odd(BatchFirst):
    """A module with the given forward, tensors and attributes; without dropout."""

    def __init__(self, forward: Any, **held: Any) -> None:
        super().__init__(0.0)
        self.does = forward
        for name, value in held.items():
            self.register_buffer(name, value) if type(value) is Tensor else setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


def rows(m: Any, x: Tensor, start: int = 0) -> Tensor:
    return m.pe[:, start : start + x.size(1)]
