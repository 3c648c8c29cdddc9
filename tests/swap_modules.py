"""Positional encodings as people write them, for `integrations.swap`; those that it must leave alone stand last."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS, DIM = 60, 16


def usual(rows: int = ROWS, dim: int = DIM, base: float = 10000.0) -> Tensor:
    """The tutorials' table, its angles rounded to float32."""
    position = torch.arange(rows).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, dim, 2) * (-math.log(base) / dim))
    table = torch.zeros(rows, dim)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : dim // 2]
    return table


class BatchFirst(nn.Module):
    """The Annotated Transformer's."""

    def __init__(self, p: float = 0.1, dim: int = DIM, rows: int = ROWS) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p)
        self.register_buffer("pe", usual(rows, dim).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.pe[:, : x.size(1)].requires_grad_(False))


class SequenceFirst(nn.Module):
    """PyTorch's tutorial's."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.dropout = nn.Dropout(p=p)
        self.register_buffer("pe", usual().unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class Scaled(nn.Module):
    """x times sqrt(d), a table that is no part of the state dict, and a dropout under another name."""

    def __init__(self, d_model: int = DIM) -> None:
        super().__init__()
        self.d_model = d_model
        self.drop = nn.Dropout(0.2)
        self.register_buffer("positional_encoding", usual(ROWS, d_model), persistent=False)

    def forward(self, token_embedding: Tensor) -> Tensor:
        length = token_embedding.shape[1]
        return self.drop(token_embedding * math.sqrt(self.d_model) + self.positional_encoding[:length])


class Learned(nn.Module):
    """A learned factor of a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([0.7]))
        self.pos_table = nn.Parameter(usual()[None], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.pos_table[:, : x.size(1)]


class Attribute(nn.Module):
    """A table that is a plain attribute, and a forward that gives its rows for token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = usual()
        self.encoding.requires_grad = False

    def forward(self, x: Tensor) -> Tensor:
        _, length = x.size()
        return self.encoding[:length, :]


class Gives(nn.Module):
    """BERT-pytorch's: rows in a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", usual().unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.pe[:, : x.size(1)]


class OneSequence(nn.Module):
    """(sequence, channels) alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", usual())

    def forward(self, x: Tensor) -> Tensor:
        length, _ = x.shape
        return x + self.pe[:length]


class Follows(nn.Module):
    """In the dtype of x, whatever the table's; weak, so that the rows have a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_of_rows = 0.25
        self.register_buffer("pe", usual())

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
    """ESPnet's: a plain attribute that is made as long as x needs it, in the dtype of x."""

    def __init__(self, d_model: int = DIM, dropout_rate: float = 0.1) -> None:
        super().__init__()
        self.xscale = math.sqrt(d_model)
        self.dropout = nn.Dropout(p=dropout_rate)
        self.pe = usual(ROWS, d_model)[None]

    def forward(self, x: Tensor) -> Tensor:
        if self.pe.size(1) < x.size(1):
            self.pe = usual(x.size(1), x.size(2))[None]
        self.pe = self.pe.to(x)
        return self.dropout(x * self.xscale + self.pe[:, : x.size(1)])


# --------------------------------------------------------------------------------------------- to be left alone


class Odd(BatchFirst):
    """A forward that does something else, by what it is made with."""

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
        self.pe = nn.Parameter(usual()[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.size(1)]


class Picture(nn.Module):
    """The table of a grid."""

    def __init__(self) -> None:
        super().__init__()
        half = usual(6, DIM // 2)
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
