"""The table of all public functions and layers, for tests of what must hold for each of them.

An entry makes valid arguments of any width, size, dtype and device. `formula` is the same calculation in torch
operations, in float64 and without dropout, to compare values and derivatives with. A new function joins by one entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer

B, S, D = 2, 4, 8
DROPOUT, SEED, VOCABULARY = 0.4, 6, 5


class Form(NamedTuple):
    """What arguments are made of. A grid has the lengths (2, length // 2)."""

    dim: int = D
    batch: int = B
    length: int = S
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    @property
    def lengths(self) -> tuple[int, int]:
        return 2, self.length // 2

    @property
    def halves(self) -> tuple[int, int]:
        return self.dim - self.dim // 2, self.dim // 2

    @property
    def factory(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.device}

    def grid(self) -> sinpe.GridEncoding:
        return sinpe.GridEncoding([sinpe.Encoding(half) for half in self.halves])

    def normal(self, *shape: int, seed: int = 4) -> Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(**self.factory)

    def whole(self, *shape: int, below: int, seed: int = 4) -> Tensor:
        return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed)).to(self.device)

    def alpha(self) -> Tensor:
        return torch.tensor([0.7]).to(**self.factory)

    def fractions(self, *shape: int) -> Tensor:
        """Positions with few bits, in float64 or float32."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return (self.whole(*shape, below=200) / 16 - 4).to(wide)

    def mask(self, *shape: int) -> Tensor:
        return self.whole(*shape, below=3) == 1


class Call(NamedTuple):
    """A call of a public function or layer.

    Attributes:
        function, reference: called with the arguments by name; `run` and `formula` call them with those given and the
            others.
        tensors: floating-point; the result is differentiable with respect to each of them.
        others: the other arguments: tensors, and the seed and the module if there is one.
        like: the tensor whose memory order the result has.
    """

    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    tensors: dict[str, Tensor]
    others: Mapping[str, Any] = {}
    like: str = ""

    @property
    def drops(self) -> bool:
        """Whether dropout is applied, with a given seed."""
        return "seed" in self.others

    def run(self, **given: Any) -> Tensor:
        return self.function(**{**self.tensors, **self.others, **given})

    def formula(self, **given: Any) -> Tensor:
        """Without dropout."""
        return self.reference(**{**self.tensors, **self.others, **given})

    def mask(self) -> Tensor | float:
        """The factor by which dropout multiplies each element; 1 without dropout."""
        threshold = round(DROPOUT * 65536)
        return (self.run() != 0).double() * (65536 / (65536 - threshold)) if self.drops else 1.0

    def of(self, name: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """`run` and `formula`, with dropout, as functions of the tensor `name`."""
        kept = self.mask()
        return lambda t: self.run(**{name: t}), lambda t: self.formula(**{name: t}) * kept


def rows(at: Tensor, dim: int) -> Tensor:
    angle = at.double()[..., None] * 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=at.device) / dim)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :dim]


def implicit(x: Tensor, at: int = -2) -> Tensor:
    return torch.arange(x.shape[at], device=x.device)


def grid_rows(at: Tensor, dim: int) -> Tensor:
    return torch.cat([rows(at[..., 0], dim - dim // 2), rows(at[..., 1], dim // 2)], -1)


def points(form: Form, *starts: int) -> Tensor:
    """(H, W, 2)"""
    places = zip(form.lengths, starts or (0, 0), strict=True)
    axes = [torch.arange(n, device=form.device) + start for n, start in places]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)


def moved_points(form: Form, start: Tensor) -> Tensor:
    """(B, H * W, 2)"""
    return (points(form) + start[:, None, None]).flatten(1, 2)


def apply_layer(module: torch.nn.Module, t: Tensor, parameters: dict[str, Tensor], **options: Any) -> Tensor:
    return torch.func.functional_call(module, parameters, (t,), options)


def sum_of(x: Tensor, alpha: Tensor | float, pe: Tensor, scale: float = 1.0) -> Tensor:
    return scale * x.double() + (alpha.double() if isinstance(alpha, Tensor) else alpha) * pe


def with_grid(make: Callable[[Form, sinpe.GridEncoding], Call]) -> Callable[[Form], Call]:
    """The encoding is made before the call, because a compiled function may not make one."""
    return lambda f: make(f, f.grid())


MAKERS: dict[str, Callable[[Form], Call]] = {
    "table": lambda f: Call(
        lambda: sinpe.table(f.length, f.dim, start=3, **f.factory),
        lambda: rows(torch.arange(f.length, device=f.device) + 3, f.dim),
        {},
    ),
    "table, grid": with_grid(
        lambda f, grid: Call(
            lambda: sinpe.table(f.lengths, grid, start=(2, 5), extra_tokens=1, **f.factory),
            lambda: pad(grid_rows(points(f, 2, 5), f.dim).flatten(0, 1), (0, 0, 1, 0)),
            {},
        )
    ),
    "encode": lambda f: Call(
        lambda at: sinpe.encode(at, f.dim, dtype=f.dtype),
        lambda at: rows(at, f.dim),
        {"at": f.fractions(f.batch, f.length)},
    ),
    "encode, whole": lambda f: Call(
        lambda at: sinpe.encode(at, f.dim, dtype=f.dtype),
        lambda at: rows(at, f.dim),
        {},
        {"at": f.whole(f.batch, f.length, below=500) - 250},
    ),
    "encode, grid": with_grid(
        lambda f, grid: Call(
            lambda at: sinpe.encode(at, grid, dtype=f.dtype),
            lambda at: grid_rows(at, f.dim),
            {"at": f.fractions(f.batch, *f.lengths, 2)},
        )
    ),
    "add": lambda f: Call(
        lambda x, alpha, at: sinpe.add(x, f.dim, alpha=alpha, positions=at, scale=2.0),
        lambda x, alpha, at: sum_of(x, alpha, rows(at, f.dim), 2.0),
        {"x": f.normal(f.batch, f.length, f.dim), "alpha": f.alpha(), "at": f.fractions(f.batch, f.length)},
        like="x",
    ),
    "add, dropout": lambda f: Call(
        lambda x, alpha, at, seed: sinpe.add(
            x, f.dim, alpha=alpha, positions=at, scale=2.0, dropout=DROPOUT, seed=seed
        ),
        lambda x, alpha, at, seed: sum_of(x, alpha, rows(at, f.dim), 2.0),
        {"x": f.normal(f.batch, f.length, f.dim), "alpha": f.alpha(), "at": f.fractions(f.batch, f.length)},
        {"seed": SEED},
        like="x",
    ),
    "add, mask": lambda f: Call(
        lambda x, alpha, start, mask: sinpe.add(x, f.dim, alpha=alpha, start=start, padding_mask=mask),
        lambda x, alpha, start, mask: sum_of(x, alpha, rows(implicit(x) + start[:, None], f.dim) * ~mask[..., None]),
        {"x": f.normal(f.batch, f.length, f.dim), "alpha": f.alpha()},
        {"start": f.whole(f.batch, below=50), "mask": f.mask(f.batch, f.length)},
        like="x",
    ),
    "add, whole positions": lambda f: Call(
        lambda x, at: sinpe.add(x, f.dim, positions=at),
        lambda x, at: sum_of(x, 1.0, rows(at, f.dim).unsqueeze(1)),
        {"x": f.normal(f.batch, 3, f.length, f.dim)},
        {"at": f.whole(f.batch, f.length, below=500) - 250},
        like="x",
    ),
    "add, sequence first": lambda f: Call(
        lambda x, alpha, seed: sinpe.add(x, f.dim, alpha=alpha, seq_dim=0, dropout=DROPOUT, seed=seed),
        lambda x, alpha, seed: sum_of(x, alpha, rows(implicit(x, 0), f.dim)[:, None]),
        {"x": f.normal(f.length, f.batch, f.dim), "alpha": f.alpha()},
        {"seed": SEED},
        like="x",
    ),
    "add, channels first": lambda f: Call(
        lambda x: sinpe.add(x, f.dim, seq_dim=-1, channel_dim=1, start=-7),
        lambda x: sum_of(x, 1.0, rows(implicit(x, -1) - 7, f.dim).T),
        {"x": f.normal(f.batch, f.dim, f.length)},
        like="x",
    ),
    "add, extra tokens": lambda f: Call(
        lambda x, alpha, seed: sinpe.add(x, f.dim, alpha=alpha, extra_tokens=1, dropout=DROPOUT, seed=seed),
        lambda x, alpha, seed: sum_of(x, alpha, pad(rows(implicit(x)[:-1], f.dim), (0, 0, 1, 0))),
        {"x": f.normal(f.batch, 1 + f.length, f.dim), "alpha": f.alpha()},
        {"seed": SEED},
        like="x",
    ),
    "add, grid": with_grid(
        lambda f, grid: Call(
            lambda x, alpha, seed: sinpe.add(x, grid, alpha=alpha, dropout=DROPOUT, seed=seed),
            lambda x, alpha, seed: sum_of(x, alpha, grid_rows(points(f), f.dim)),
            {"x": f.normal(f.batch, *f.lengths, f.dim), "alpha": f.alpha()},
            {"seed": SEED},
            like="x",
        )
    ),
    "add, grid, channels first": with_grid(
        lambda f, grid: Call(
            lambda x: sinpe.add(x, grid, channel_dim=1, scale=3.0),
            lambda x: sum_of(x, 1.0, grid_rows(points(f), f.dim).movedim(-1, 0), 3.0),
            {"x": f.normal(f.batch, f.dim, *f.lengths)},
            like="x",
        )
    ),
    "add, grid, coordinates": with_grid(
        lambda f, grid: Call(
            lambda x, at: sinpe.add(x, grid, positions=at),
            lambda x, at: sum_of(x, 1.0, grid_rows(at, f.dim)),
            {"x": f.normal(f.batch, *f.lengths, f.dim), "at": f.fractions(f.batch, *f.lengths, 2)},
            like="x",
        )
    ),
    "add, grid, flat": with_grid(
        lambda f, grid: Call(
            lambda x, start, mask: sinpe.add(
                x, grid, start=start, padding_mask=mask, grid_shape=f.lengths, extra_tokens=2
            ),
            lambda x, start, mask: sum_of(
                x, 1.0, pad(grid_rows(moved_points(f, start), f.dim) * ~mask[..., None], (0, 0, 2, 0))
            ),
            {"x": f.normal(f.batch, 2 + f.lengths[0] * f.lengths[1], f.dim)},
            {"start": f.whole(f.batch, 2, below=9), "mask": f.mask(f.batch, f.lengths[0] * f.lengths[1])},
            like="x",
        )
    ),
    "add_": lambda f: Call(
        lambda x, seed: sinpe.add_(x * 1, f.dim, alpha=0.5, dropout=DROPOUT, seed=seed),
        lambda x, seed: sum_of(x, 0.5, rows(implicit(x), f.dim)),
        {"x": f.normal(f.batch, f.length, f.dim)},
        {"seed": SEED},
    ),
    "embed": lambda f: Call(
        lambda weight, alpha, at, ids: sinpe.embed(ids, weight, f.dim, alpha=alpha, positions=at),
        lambda weight, alpha, at, ids: sum_of(weight[ids], alpha, rows(at, f.dim)),
        {"weight": f.normal(VOCABULARY, f.dim), "alpha": f.alpha(), "at": f.fractions(f.batch, f.length)},
        {"ids": f.whole(f.batch, f.length, below=VOCABULARY)},
    ),
    "embed, dropout": lambda f: Call(
        lambda weight, alpha, ids, seed: sinpe.embed(
            ids, weight, f.dim, alpha=alpha, scale=2.0, dropout=DROPOUT, seed=seed
        ),
        lambda weight, alpha, ids, seed: sum_of(weight[ids], alpha, rows(implicit(ids, -1), f.dim), 2.0),
        {"weight": f.normal(VOCABULARY, f.dim), "alpha": f.alpha()},
        {"ids": f.whole(f.batch, f.length, below=VOCABULARY), "seed": SEED},
    ),
    "embed, mask": lambda f: Call(
        lambda weight, ids, start, mask: sinpe.embed(
            ids, weight, f.dim, start=start, padding_mask=mask, padding_idx=4, encode_padding=False, seq_dim=0
        ),
        lambda weight, ids, start, mask: sum_of(
            weight[ids],
            1.0,
            (rows(implicit(ids, 0) + start[:, None], f.dim) * ~(mask | (ids == 4).T)[..., None]).transpose(0, 1),
        ),
        {},  # the gradient of weight, without that of padding, is not the derivative
        {
            "weight": f.normal(VOCABULARY, f.dim),
            "ids": f.whole(f.length, f.batch, below=VOCABULARY),
            "start": f.whole(f.batch, below=50),
            "mask": f.mask(f.batch, f.length),
        },
    ),
    "SinusoidalPositionalEncoding": lambda f: Call(
        lambda x, alpha, module, seed: apply_layer(module, x, {"alpha": alpha}, seed=seed),
        lambda x, alpha, module, seed: sum_of(x, alpha, rows(implicit(x), f.dim), 2.0),
        {"x": f.normal(f.batch, f.length, f.dim), "alpha": f.alpha()},
        {"seed": SEED, "module": Layer(f.dim, DROPOUT, learned_alpha=True, scale=2.0, **f.factory)},
        like="x",
    ),
    "SinusoidalPositionalEncoding, grid": with_grid(
        lambda f, grid: Call(
            lambda x, module, seed: module(x, seed=seed),
            lambda x, module, seed: sum_of(x, 1.0, grid_rows(points(f), f.dim)),
            {"x": f.normal(f.batch, *f.lengths, f.dim)},
            {"seed": SEED, "module": Layer(f.dim, DROPOUT, encoding=grid)},
            like="x",
        )
    ),
    "SinusoidalEmbedding": lambda f: Call(
        lambda weight, alpha, ids, module, seed: apply_layer(
            module, ids, {"weight": weight, "alpha": alpha}, seed=seed
        ),
        lambda weight, alpha, ids, module, seed: sum_of(weight[ids], alpha, rows(implicit(ids, -1), f.dim)),
        {"weight": f.normal(VOCABULARY, f.dim), "alpha": f.alpha()},
        {
            "ids": f.whole(f.batch, f.length, below=VOCABULARY),
            "seed": SEED,
            "module": sinpe.SinusoidalEmbedding(VOCABULARY, f.dim, dropout=DROPOUT, learned_alpha=True, **f.factory),
        },
    ),
    "TimestepEncoding": lambda f: Call(
        lambda t, module: module(t),
        lambda t, module: rows(t, f.dim),
        {"t": f.fractions(f.length)},
        {"module": sinpe.TimestepEncoding(f.dim, encoding="paper", dtype=f.dtype)},
    ),
}
CALLS: dict[str, Call] = {name: make(Form()) for name, make in MAKERS.items()}
TENSORS = [(name, tensor) for name, call in CALLS.items() for tensor in call.tensors]
