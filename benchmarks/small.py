"""Rows of little data on one thread: a decoding step, where a call costs more than its arithmetic, and sums inside the
cache, against the same work in eager PyTorch with a stored table. On a device, the time until the host has queued the
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

from . import peers as peer
from .cases import KEPT_SCALE, ROUNDING, Calls, P, Place, Row, gradients

WORDS, START = 1000, 7
HEIGHT, WIDTH, CHANNELS = 4, 4, 64


class Tensors:
    """The tensors of a row, x of shape (batch, length, channels), and what eager code adds."""

    def __init__(self, place: Place, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        batch, length, dim = shape
        device = place.device
        self.length, self.stop = length, START + length
        self.x, self.grad = place.randn(shape, dtype), place.randn(shape, dtype)
        self.y, self.x_first = torch.empty_like(self.x), self.x.transpose(0, 1).contiguous()
        self.x_class = torch.cat([self.x[:, :1], self.x], 1)  # with a class token
        self.weight = place.randn((WORDS, dim), dtype)
        self.ids = torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(0)).to(device)
        self.ids32, self.seed = self.ids.int(), torch.tensor(1, device=device)
        self.pe = sinpe.table(max(128, self.stop), dim, dtype=dtype, device=device)
        self.pe_class = functional.pad(self.pe[:length], (0, 0, 1, 0))
        self.starts, self.alpha = torch.arange(batch, device=device), torch.full((1,), 0.5, device=device, dtype=dtype)
        self.steps, self.positions = (torch.arange(first, first + length, device=device) for first in (0, START))
        self.positions32 = self.positions.int()
        self.mask = (torch.arange(batch * length, device=device) % 8 > 4).view(batch, length)
        self.image = place.randn((2, HEIGHT, WIDTH, CHANNELS), torch.float32)
        self.grid, self.grid_later = (
            sinpe.table((HEIGHT, WIDTH), "mae2d", dim=CHANNELS, start=start, device=device) for start in (0, (3, 5))
        )
        self.image_class = torch.cat([self.image.new_ones(2, 1, CHANNELS), self.image.flatten(1, 2)], 1)
        self.grid_class = functional.pad(self.grid.flatten(0, 1), (0, 0, 1, 0))

    def rows_of_starts(self) -> Tensor:
        if self.length == 1:
            return self.pe[self.starts].unsqueeze(1)
        return self.pe[self.starts.unsqueeze(1) + self.steps]

    def embedded(self) -> Tensor:
        return functional.embedding(self.ids, self.weight) * 2.0 + self.pe[: self.length]

    @cached_property
    def layers(self) -> tuple[nn.Module, nn.Module]:
        """Ours, and the tutorial's module."""
        dim = self.x.shape[-1]
        return sinpe.SinusoidalPositionalEncoding(dim, P), _tutorial(dim).to(self.x.device)

    @cached_property
    def embeddings(self) -> tuple[nn.Module, nn.Module]:
        """The same after a lookup of `weight`, with which they share memory."""
        theirs = nn.Sequential(nn.Embedding.from_pretrained(self.weight, freeze=False), _tutorial(self.x.shape[-1]))
        return sinpe.SinusoidalEmbedding.from_pretrained(self.weight, freeze=False, dropout=P), theirs.to(self.x.device)


def _tutorial(dim: int) -> nn.Module:
    return nn.Sequential(peer.NaiveModule(128, dim), nn.Dropout(P))


class Work(NamedTuple):
    """A call and the same in eager PyTorch; gradient: of which tensor, with a forward and backward pass."""

    title: str
    ours: Callable[[Tensors], Tensor]
    eager: Callable[[Tensors], Tensor]
    dropout: bool = False
    gradient: str = ""


# fmt: off
WORK: dict[str, Work] = {
    "add": Work("add", lambda t: sinpe.add(t.x, start=START), lambda t: t.x + t.pe[START : t.stop]),
    "add_from_0": Work("add, start=0", lambda t: sinpe.add(t.x), lambda t: t.x + t.pe[: t.length]),
    "out": Work("add, out=", lambda t: sinpe.add(t.x, start=START, out=t.y),
        lambda t: torch.add(t.x, t.pe[START : t.stop], out=t.y)),
    "starts": Work("add, starts in a tensor", lambda t: sinpe.add(t.x, start=t.starts),
        lambda t: t.x + t.rows_of_starts()),
    "positions": Work("add, positions", lambda t: sinpe.add(t.x, positions=t.positions),
        lambda t: t.x + t.pe[t.positions]),
    "positions32": Work("add, positions in int32", lambda t: sinpe.add(t.x, positions=t.positions32),
        lambda t: t.x + t.pe[t.positions32]),
    "alpha": Work("add, alpha in a tensor", lambda t: sinpe.add(t.x, start=START, alpha=t.alpha),
        lambda t: t.x + t.alpha * t.pe[START : t.stop]),
    "mask": Work("add, padding mask", lambda t: sinpe.add(t.x, start=START, padding_mask=t.mask),
        lambda t: torch.where(t.mask.unsqueeze(-1), t.x, t.x + t.pe[START : t.stop])),
    "sequence_first": Work("add, seq_dim=0", lambda t: sinpe.add(t.x_first, seq_dim=0, start=START),
        lambda t: t.x_first + t.pe[START : t.stop].unsqueeze(1)),
    "extra_tokens": Work("add, extra_tokens=1", lambda t: sinpe.add(t.x_class, extra_tokens=1),
        lambda t: t.x_class + t.pe_class),
    "dropout": Work("add + dropout", lambda t: sinpe.add(t.x, start=START, dropout=P),
        lambda t: functional.dropout(t.x + t.pe[START : t.stop], P), dropout=True),
    "dropout_seed": Work("add + dropout, seed=1", lambda t: sinpe.add(t.x, start=START, dropout=P, seed=1),
        lambda t: functional.dropout(t.x + t.pe[START : t.stop], P), dropout=True),
    "dropout_seed_tensor": Work("add + dropout, seed in a tensor",
        lambda t: sinpe.add(t.x, start=START, dropout=P, seed=t.seed),
        lambda t: functional.dropout(t.x + t.pe[START : t.stop], P), dropout=True),
    "embed": Work("embed", lambda t: sinpe.embed(t.ids, t.weight, scale=2.0), lambda t: t.embedded()),
    "embed32": Work("embed, ids in int32", lambda t: sinpe.embed(t.ids32, t.weight, scale=2.0),
        lambda t: functional.embedding(t.ids32, t.weight) * 2.0 + t.pe[: t.length]),
    "embed_dropout": Work("embed + dropout", lambda t: sinpe.embed(t.ids, t.weight, scale=2.0, dropout=P),
        lambda t: functional.dropout(t.embedded(), P), dropout=True),
    "train_plain": Work("add, backward", lambda t: sinpe.add(t.x, start=START), lambda t: t.x + t.pe[START : t.stop],
        gradient="x"),
    "train_alpha": Work("add, backward to alpha", lambda t: sinpe.add(t.x, start=START, alpha=t.alpha),
        lambda t: t.x + t.alpha * t.pe[START : t.stop], gradient="alpha"),
    "train": Work("add + dropout, backward", lambda t: sinpe.add(t.x, start=START, dropout=P),
        lambda t: functional.dropout(t.x + t.pe[START : t.stop], P), dropout=True, gradient="x"),
    "embed_train_plain": Work("embed, backward", lambda t: sinpe.embed(t.ids, t.weight, scale=2.0),
        lambda t: t.embedded(), gradient="weight"),
    "embed_train": Work("embed + dropout, backward", lambda t: sinpe.embed(t.ids, t.weight, scale=2.0, dropout=P),
        lambda t: functional.dropout(t.embedded(), P), dropout=True, gradient="weight"),
    "layer_train": Work("layer, backward", lambda t: t.layers[0](t.x), lambda t: t.layers[1](t.x),
        dropout=True, gradient="x"),
    "embedding_layer_train": Work("embedding layer, backward", lambda t: t.embeddings[0](t.ids),
        lambda t: t.embeddings[1](t.ids), dropout=True, gradient="embeddings"),
    "table": Work("table", lambda t: sinpe.table(t.length, t.x.shape[-1], start=START, dtype=t.x.dtype),
        lambda t: t.pe[START : t.stop].clone()),
    "grid": Work("add, mae2d", lambda t: sinpe.add(t.image, "mae2d"), lambda t: t.image + t.grid),
    "grid_start": Work("add, mae2d, start=(3, 5)", lambda t: sinpe.add(t.image, "mae2d", start=(3, 5)),
        lambda t: t.image + t.grid_later),
    "grid_extra_tokens": Work("add, mae2d, extra_tokens=1",
        lambda t: sinpe.add(t.image_class, "mae2d", grid_shape=(HEIGHT, WIDTH), extra_tokens=1),
        lambda t: t.image_class + t.grid_class),
    "grid_dropout": Work("add + dropout, mae2d", lambda t: sinpe.add(t.image, "mae2d", dropout=P),
        lambda t: functional.dropout(t.image + t.grid, P), dropout=True),
}
# fmt: on


def agree(ours: Tensor, eager: Tensor, dropout: bool) -> None:
    """Compares a row's two results; with dropout, for which each draws its own mask, the elements that both keep."""
    kept = (ours != 0) & (eager != 0) if dropout else torch.ones_like(ours, dtype=torch.bool)
    if not kept.any():
        raise AssertionError("small: expected elements that are not 0 in both results, got none")
    scale = KEPT_SCALE * (1 - P) if dropout else 1.0
    bound = max(2.0**-16, 64 * ROUNDING[ours.dtype])  # a gradient is summed in another order
    peer.agree("small", ours[kept].cpu(), eager[kept].double().cpu() * scale, bound)


def calls(place: Place, work: Work, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Calls:
    t = Tensors(place, shape, dtype)
    pair: list[Callable[[], Any]] = [partial(work.ours, t), partial(work.eager, t)]
    if work.gradient == "embeddings":
        wanted = [layer.get_parameter(name) for layer, name in zip(t.embeddings, ("weight", "0.weight"), strict=True)]
    elif work.gradient:
        wanted = [getattr(t, work.gradient).requires_grad_()] * 2
    if work.gradient:
        pair = [gradients(run, [tensor], t.grad) for run, tensor in zip(pair, wanted, strict=True)]
    ours, eager = pair

    def check() -> None:
        mine, theirs = ours(), eager()
        if work.gradient:
            (mine,), (theirs,) = mine, theirs
        agree(mine, theirs, work.dropout)

    return Calls(ours, eager, check=check, moved=0 if work.gradient else 2 * t.x.nbytes)


def decode_layer(place: Place, *, grad: bool) -> Calls:
    """One decoding step, x of shape (1, 1, 512), with the layers."""
    ours = sinpe.SinusoidalPositionalEncoding(512, P).eval()
    naive = peer.NaiveModule(4096, 512).eval()
    x = torch.randn(1, 1, 512, requires_grad=grad)
    return Calls(
        lambda: ours(x, start=START),
        lambda: naive(x, START),
        check=lambda: agree(ours(x, start=START), naive(x, START), False),
    )


def compiled_sum(place: Place, shape: tuple[int, int, int]) -> Calls:
    """torch.compile of a sum and LayerNorm."""
    t, norm = Tensors(place, shape, torch.float32), nn.LayerNorm(shape[-1]).requires_grad_(False)
    ours, stored = torch.compile(lambda: norm(sinpe.add(t.x))), torch.compile(lambda: norm(t.x + t.pe[: t.length]))

    def check() -> None:
        peer.agree("torch.compile", ours(), stored().double(), 1e-4)  # LayerNorm sums in another order

    return Calls(ours, stored, check=check)


def rows_of(
    prefix: str,
    title: str,
    targets: dict[str, float | None],
    shape: tuple[int, int, int],
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> Iterable[Row]:
    """A row for each name in `targets`, the largest ratios of ours to eager."""
    for name, target in targets.items():
        build = partial(calls, work=WORK[name], shape=shape, dtype=dtype)
        yield Row(prefix + name, f"{title}: {WORK[name].title}", build, "eager", target, threads=1, **fields)


def host_targets() -> dict[str, float | None]:
    trained = {name: 1.25 for name in WORK if "train" in name}
    return {name: 2.0 if name.startswith("grid") else trained.get(name, 1.1) for name in WORK}


# Inside the cache, the stored table is read from it as fast as x; dropout in torch is several passes.
CACHED: dict[str, float | None] = {"add_from_0": 1.15, "add": 1.15, "alpha": 1.15, "sequence_first": 1.25}
CACHED |= {"starts": 1.0, "mask": 1.0, "embed": 1.0, "positions": 1.15, "train_plain": 1.2, "dropout": 0.25}
CACHED_SHAPES = ((1, 32, 512), (1, 128, 512), (1, 136, 1024), (8, 64, 512), (4, 196, 768))
STEP, ONE_STEP = (8, 1, 512), (1, 1, 512)

DECODE_ROWS = (
    Row("decode", "decode step (1,1,512)", partial(calls, work=WORK["add"], shape=ONE_STEP), "x + pe[i:i+1]", 1.1,
        threads=1),
    Row("decode_out", "decode step, out=", partial(calls, work=WORK["out"], shape=ONE_STEP), "out=y", threads=1),
    Row("decode_layer", "decode step, layer", partial(decode_layer, grad=False), "a module", 1.25, threads=1),
    Row("decode_grad", "decode step, layer, gradients", partial(decode_layer, grad=True), "a module", threads=1,
        grad=True),
)  # fmt: skip
HOST_ROWS = tuple(rows_of("host_", "host time", host_targets(), STEP))
CACHED_ROWS = tuple(
    row
    for dtype, s in ((torch.float32, ""), (torch.bfloat16, "bf16_"))
    for shape in CACHED_SHAPES
    for row in rows_of(
        f"cached_{s}{'x'.join(map(str, shape))}_",
        f"in the cache {shape}{' bf16' if s else ''}",
        CACHED | {"table": 2.0 if s else 1.5},
        shape,
        dtype,
        slow=bool(s) or shape not in (CACHED_SHAPES[0], CACHED_SHAPES[3]),
    )
)
COMPILED_ROWS = tuple(
    Row(f"compile_cached_{'x'.join(map(str, shape))}", f"compiled sum, LayerNorm {shape}",
        partial(compiled_sum, shape=shape), "ready table", 1.05, threads=1)
    for shape in ((1, 32, 512), (1, 128, 512), (32, 128, 512))
)  # fmt: skip
EAGER_ROWS = tuple(
    row
    for shape in ((1, 1, 512), (1, 128, 512), (8, 128, 512))
    for row in rows_of(f"eager_{'x'.join(map(str, shape))}_", f"eager PyTorch {shape}", {"add_from_0": None}, shape,
                       backend="eager")
)  # fmt: skip
CUDA_HOST_ROWS = tuple(rows_of("cuda_host_", "CUDA host time", host_targets(), STEP, device="cuda", host=True))
CUDA_DECODE_ROWS = tuple(
    row
    for dtype, s in ((torch.float32, "f32"), (torch.bfloat16, "bf16"))
    for row in rows_of(f"cuda_decode_{s}_", f"CUDA: decode step {s}", {"add": 1.15, "dropout": None}, (8, 1, 4096),
                       dtype, device="cuda")
)  # fmt: skip
