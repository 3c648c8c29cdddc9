"""A table of all public functions and layers that take tensors, for tests of what must hold for each of them.

A new function joins by one line. `formula` is the same calculation in torch operations, in float64 and without dropout,
to compare values and derivatives with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import sinpe_ext as sinpe

B, S, D = 2, 4, 8
LENGTHS = 2, 2
SEED = {"dropout": 0.4, "seed": 6}
PAPER, FLOAT32 = sinpe.Encoding(D), sinpe.Encoding(D, angle="float32_exp")
GRID = sinpe.GridEncoding((sinpe.Encoding(D // 2), sinpe.Encoding(D // 2)))
MASK = torch.tensor([[False, True, False, False], [True, False, False, True]])
STARTS = torch.tensor([3, 40])
IDS = torch.tensor([[0, 3, 2, 3], [1, 1, 4, 0]])


class Call(NamedTuple):
    """A call of a public function or layer.

    Attributes:
        run: called with the tensors by name.
        formula: the same in torch operations, without dropout.
        tensors: float64; the result is differentiable with respect to each of them.
        drops: whether dropout is applied, with a given seed.
    """

    run: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    tensors: dict[str, Tensor]
    drops: bool = False

    def of(self, name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """`run` and `formula`, with dropout, as functions of the tensor `name`."""
        others = {other: t for other, t in self.tensors.items() if other != name}
        kept: Tensor | float = 1.0
        if self.drops:
            threshold = round(SEED["dropout"] * 65536)
            kept = (self.run(**self.tensors) != 0).double() * (65536 / (65536 - threshold))
        return lambda t: self.run(**others, **{name: t}), lambda t: self.formula(**others, **{name: t}) * kept


def rows(positions: Tensor, dim: int = D) -> Tensor:
    angle = positions.double()[..., None] * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def grid_rows(positions: Tensor) -> Tensor:
    return torch.cat([rows(positions[..., 0], D // 2), rows(positions[..., 1], D // 2)], -1)


def data(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


IMPLICIT = torch.arange(S)
COORDINATES = sinpe.positions.grid(LENGTHS)
X, FIRST, IMAGE = data(B, S, D), data(S, B, D), data(B, *LENGTHS, D)
TOKENS = data(B, 1 + S, D)
ALPHA, WEIGHT = torch.tensor([0.7], dtype=torch.float64), data(5, D)
AT = torch.tensor([[0.0, 0.75, -2.5, 3.0], [1.0, 0.1, 0.2, 9.5]], dtype=torch.float64)
POINTS = data(B, *LENGTHS, 2)

LAYER = sinpe.SinusoidalPositionalEncoding(D, 0.4, learned_alpha=True, scale=2.0, dtype=torch.float64)
PICTURE = sinpe.SinusoidalPositionalEncoding(D, 0.4, encoding=GRID)
TOKEN_LAYER = sinpe.SinusoidalEmbedding(5, D, dropout=0.4, learned_alpha=True, dtype=torch.float64)
STEPS = sinpe.TimestepEncoding(D, encoding="paper", dtype=torch.float64)


def layer(module: torch.nn.Module, t: Tensor, parameters: dict[str, Tensor], **options: Any) -> Tensor:
    return torch.func.functional_call(module, parameters, (t,), options)


def sum_of(x: Tensor, alpha: Tensor, pe: Tensor, scale: float = 1.0) -> Tensor:
    return scale * x + alpha * pe


CALLS: dict[str, Call] = {
    "encode": Call(lambda at: sinpe.encode(at, PAPER, dtype=torch.float64), lambda at: rows(at), {"at": AT}),
    "encode, grid": Call(
        lambda at: sinpe.encode(at, GRID, dtype=torch.float64), lambda at: grid_rows(at), {"at": POINTS}
    ),
    "add": Call(
        lambda x, alpha, at: sinpe.add(x, PAPER, alpha=alpha, positions=at, scale=2.0),
        lambda x, alpha, at: sum_of(x, alpha, rows(at), 2.0),
        {"x": X, "alpha": ALPHA, "at": AT},
    ),
    "add, dropout": Call(
        lambda x, alpha, at: sinpe.add(x, PAPER, alpha=alpha, positions=at, scale=2.0, **SEED),
        lambda x, alpha, at: sum_of(x, alpha, rows(at), 2.0),
        {"x": X, "alpha": ALPHA, "at": AT},
        drops=True,
    ),
    "add, mask": Call(
        lambda x, alpha: sinpe.add(x, PAPER, alpha=alpha, start=STARTS, padding_mask=MASK),
        lambda x, alpha: sum_of(x, alpha, rows(IMPLICIT + STARTS[:, None]) * ~MASK[..., None]),
        {"x": X, "alpha": ALPHA},
    ),
    "add, sequence first": Call(
        lambda x, alpha: sinpe.add(x, PAPER, alpha=alpha, seq_dim=0, **SEED),
        lambda x, alpha: sum_of(x, alpha, rows(IMPLICIT)[:, None]),
        {"x": FIRST, "alpha": ALPHA},
        drops=True,
    ),
    "add, extra tokens": Call(
        lambda x, alpha: sinpe.add(x, PAPER, alpha=alpha, extra_tokens=1),
        lambda x, alpha: sum_of(x, alpha, torch.nn.functional.pad(rows(IMPLICIT), (0, 0, 1, 0))),
        {"x": TOKENS, "alpha": ALPHA},
    ),
    "add, grid": Call(
        lambda x, alpha: sinpe.add(x, GRID, alpha=alpha, **SEED),
        lambda x, alpha: sum_of(x, alpha, grid_rows(COORDINATES)),
        {"x": IMAGE, "alpha": ALPHA},
        drops=True,
    ),
    "add, grid, channels first": Call(
        lambda x: sinpe.add(x, GRID, channel_dim=1, scale=3.0),
        lambda x: 3.0 * x + grid_rows(COORDINATES).movedim(-1, 0),
        {"x": data(B, D, *LENGTHS)},
    ),
    "add, grid, coordinates": Call(
        lambda x, at: sinpe.add(x, GRID, positions=at),
        lambda x, at: x + grid_rows(at),
        {"x": IMAGE, "at": POINTS},
    ),
    "add_": Call(
        lambda x: sinpe.add_(x * 1, PAPER, alpha=0.5, **SEED),
        lambda x: sum_of(x, ALPHA.new_tensor(0.5), rows(IMPLICIT)),
        {"x": X},
        drops=True,
    ),
    "embed": Call(
        lambda weight, alpha, at: sinpe.embed(IDS, weight, PAPER, alpha=alpha, positions=at),
        lambda weight, alpha, at: sum_of(weight[IDS], alpha, rows(at)),
        {"weight": WEIGHT, "alpha": ALPHA, "at": AT},
    ),
    "embed, dropout": Call(
        lambda weight, alpha: sinpe.embed(IDS, weight, PAPER, alpha=alpha, scale=2.0, **SEED),
        lambda weight, alpha: sum_of(weight[IDS], alpha, rows(IMPLICIT), 2.0),
        {"weight": WEIGHT, "alpha": ALPHA},
        drops=True,
    ),
    "SinusoidalPositionalEncoding": Call(
        lambda x, alpha: layer(LAYER, x, {"alpha": alpha}, seed=6),
        lambda x, alpha: sum_of(x, alpha, rows(IMPLICIT), 2.0),
        {"x": X, "alpha": ALPHA},
        drops=True,
    ),
    "SinusoidalPositionalEncoding, grid": Call(
        lambda x: PICTURE(x, seed=6), lambda x: x + grid_rows(COORDINATES), {"x": IMAGE}, drops=True
    ),
    "SinusoidalEmbedding": Call(
        lambda weight, alpha: layer(TOKEN_LAYER, IDS, {"weight": weight, "alpha": alpha}, seed=6),
        lambda weight, alpha: sum_of(weight[IDS], alpha, rows(IMPLICIT)),
        {"weight": WEIGHT, "alpha": ALPHA},
        drops=True,
    ),
    "TimestepEncoding": Call(lambda t: STEPS(t), lambda t: rows(t), {"t": AT[0]}),
}
TENSORS = [(name, tensor) for name, call in CALLS.items() for tensor in call.tensors]
