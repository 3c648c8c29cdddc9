"""Positional encodings as commonly written, for `integrations.swap`; those that must not be replaced come last."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sinpe_ext.naive import naive_table

ROWS, DIM = 60, 16


def naive(rows: int = ROWS, dim: int = DIM, base: float = 10000.0) -> Tensor:
    return naive_table(torch.arange(float(rows)), dim, base)


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


class Attribute(nn.Module):
    """A plain attribute as table, and a forward that returns its rows for token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = naive()
        self.encoding.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        _, length = x.size()
        return self.encoding[:length, :]


class Gives(nn.Module):
    """As in BERT-pytorch: rows with a batch dimension of one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", naive().unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.pe[:, : x.size(1)]


class OneSequence(nn.Module):
    """(sequence, channels) only."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", naive())

    def forward(self, x: Tensor) -> Tensor:
        length, _ = x.shape
        return x + self.pe[:length]


class Follows(nn.Module):
    """In the dtype of x, whatever the table's; the rows are scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_of_rows = 0.25
        self.register_buffer("pe", naive())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight_of_rows * self.pe[: x.shape[-2]].to(x.dtype)


class Another(nn.Module):
    """Another convention: tensor2tensor's halves, from fairseq's position 2."""

    def __init__(self) -> None:
        super().__init__()
        angle = torch.arange(2, 2 + ROWS)[:, None] * torch.exp(torch.arange(8) * -(math.log(10000.0) / 7))
        self.register_buffer("pos_enc", torch.cat([angle.sin(), angle.cos()], 1)[None])

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


# with other names, and of libraries


def halves(rows: int = ROWS, dim: int = DIM, shift: int = 1, start: int = 0) -> Tensor:
    """All sines, then all cosines, of tensor2tensor's frequencies (shift=1), or of the paper's (shift=0)."""
    half = dim // 2
    angle = torch.arange(start, start + rows)[:, None] * torch.exp(
        torch.arange(half) * -(math.log(10000) / (half - shift))
    )
    return torch.cat([angle.sin(), angle.cos()], 1)


class Foo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", naive()[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cache[:, : x.size(1)]


class Bar(nn.Module):
    """The same with a frozen parameter, and a trained one that is not a table."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(halves(), requires_grad=False)
        self.gain = nn.Parameter(torch.tensor([0.7]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.weights[: x.size(1)]


class Baz(nn.Module):
    """A plain attribute, sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.table = naive()[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: len(x)]


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


class ChannelsFirstGives(ChannelsFirst):
    """Rows only, (1, channels, time)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.buf[..., : x.size(-1)]


class GPT(nn.Module):
    """Token and position embeddings, the latter a frozen table."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.wte = nn.Embedding(40, table.shape[1])
        self.wpe = nn.Embedding.from_pretrained(table)
        self.ln = nn.LayerNorm(table.shape[1])

    def forward(self, ids: Tensor) -> Tensor:
        return self.ln(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))


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


class Frequencies(nn.Module):
    """Like torch_geometric's PositionalEncoding: a stored buffer of frequencies."""

    frequency: Tensor

    def __init__(self, out_channels: int, base_freq: float = 1e-4, granularity: float = 1.0) -> None:
        super().__init__()
        self.out_channels, self.base_freq, self.granularity = out_channels, base_freq, granularity
        self.register_buffer("frequency", torch.logspace(0, 1, out_channels // 2, base_freq))

    def forward(self, x: Tensor) -> Tensor:
        angle = x.view(-1, 1) / self.granularity * self.frequency
        return torch.cat([angle.sin(), angle.cos()], -1)


class Tokens(nn.Module):
    """Like fairseq's SinusoidalPositionalEmbedding; old: the table is a plain attribute, converted at each call."""

    def __init__(self, embedding_dim: int, padding_idx: int | None, init_size: int = ROWS, old: bool = False) -> None:
        super().__init__()
        self.embedding_dim, self.old = embedding_dim, old
        self.padding_idx = 0 if padding_idx is None else padding_idx
        made = self.get_embedding(init_size, embedding_dim, padding_idx)
        if old:
            self.weights = made
            self.register_buffer("_float_tensor", torch.zeros(1))
        else:
            self.register_buffer("weights", made, persistent=False)
        self.onnx_trace = False

    @staticmethod
    def get_embedding(number: int, dim: int, padding_idx: int | None = None) -> Tensor:
        rows = F.pad(halves(number, dim), (0, dim % 2))
        if padding_idx is not None:
            rows[padding_idx] = 0
        return rows

    def forward(
        self, input: Tensor, incremental_state: Any = None, timestep: Tensor | None = None, positions: Any = None
    ) -> Tensor:
        batch, length = input.shape
        most = self.padding_idx + 1 + length
        if most > len(self.weights):
            self.weights = Tokens.get_embedding(most, self.embedding_dim, self.padding_idx).to(self.weights)
        if self.old:
            self.weights = self.weights.to(self._float_tensor)
        if incremental_state is not None:
            step = length if timestep is None else timestep.view(-1)[0] + 1
            return self.weights[self.padding_idx + step].expand(batch, 1, -1)
        there = input.ne(self.padding_idx).int()
        places = (there.cumsum(1).type_as(there) * there).long() + self.padding_idx
        return self.weights.index_select(0, places.view(-1)).view(batch, length, -1).detach()


class Autoencoder(nn.Module):
    """Like MAE: two frozen grids inside a forward with other layers."""

    def __init__(self, dim: int = DIM, side: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(self.grid(dim, side), requires_grad=False)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, 2, 32, batch_first=True) for _ in range(2))
        self.decoder_pos_embed = nn.Parameter(self.grid(8, side), requires_grad=False)
        self.head = nn.Linear(dim, 8)

    @staticmethod
    def grid(dim: int, side: int) -> Tensor:
        line = halves(side, dim // 2, shift=0)
        columns, rows = line[None].expand(side, side, -1), line[:, None].expand(side, side, -1)
        return torch.cat([torch.zeros(1, dim), torch.cat([columns, rows], -1).reshape(-1, dim)])[None]

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT + self.pos_embed[:, 1:]
        x = torch.cat([(self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x) + self.decoder_pos_embed


# not to be replaced


class Odd(BatchFirst):
    """A module with the given forward."""

    def __init__(self, forward: Any) -> None:
        super().__init__(0.0)
        self.does = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self, x)


class Layered(BatchFirst):
    def __init__(self) -> None:
        super().__init__(0.0)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x) + self.pe[:, : x.size(1)]


class Offset(BatchFirst):
    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return self.dropout(x + self.pe[:, start : start + x.size(1)])


class Functional(BatchFirst):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x + self.pe[:, : x.size(1)], 0.1, self.training)


class Before(BatchFirst):
    """Dropout of the rows, not of the sum."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.pe[:, : x.size(1)])


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pe = nn.Parameter(naive()[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.size(1)]


class Picture(nn.Module):
    """The table of a grid."""

    def __init__(self) -> None:
        super().__init__()
        half = naive(6, DIM // 2)
        rows, columns = half[:, None].expand(6, 6, -1), half[None].expand(6, 6, -1)
        self.register_buffer("pos_embed", torch.cat([rows, columns], -1).reshape(1, 36, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pos_embed


class SinusoidalNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(1)]
