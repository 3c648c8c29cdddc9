"""Rows of host time: a call on a few rows, where the device has nothing to do, against the same in eager PyTorch.

On the CPU, on one thread; on a device, the time until the host has queued the call. x has the shape (8, 1, 512), a
decoding step; its ids are of 1000 words; an image is (2, 4, 4, 64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

from . import peers as peer
from .cases import Row, Subjects
from .cuda_cases import Place

BATCH, DIM, VOCABULARY, AT, P = 8, 512, 1000, 7, 0.1
HEIGHT, WIDTH, CHANNELS = 4, 4, 64
CLOSE = 2.0**-20  # of sums below 16, and of a gradient summed in another order
CPU = Place(torch.device("cpu"))


class Fixture:
    """The tensors of the rows, on one device."""

    def __init__(self, place: Place) -> None:
        device = place.device
        self.x = place.randn(BATCH, 1, DIM, dtype=torch.float32)
        self.y, self.grad = torch.empty_like(self.x), torch.randn_like(self.x)
        self.weight = place.randn(VOCABULARY, DIM, dtype=torch.float32)
        self.ids = torch.randint(VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(0)).to(device)
        self.image = place.randn(2, HEIGHT, WIDTH, CHANNELS, dtype=torch.float32)
        self.pe = sinpe.table(64, DIM, device=device)
        self.grid = sinpe.table((HEIGHT, WIDTH), "mae2d", dim=CHANNELS, device=device)
        self.starts = torch.arange(BATCH, device=device)
        self.mask = self.starts.unsqueeze(1) > 4
        self.alpha = torch.full((1,), 0.5, device=device)

    def row(self) -> Tensor:
        """PE of the step, as eager code takes it from a stored table."""
        return self.pe[AT : AT + 1]


Calls = tuple[Callable[[], Tensor], Callable[[], Tensor]]  # ours, and the same work in eager PyTorch


def plain(f: Fixture) -> Calls:
    return lambda: sinpe.add(f.x, start=AT), lambda: f.x + f.row()


def into(f: Fixture) -> Calls:
    return lambda: sinpe.add(f.x, start=AT, out=f.y), lambda: torch.add(f.x, f.row(), out=f.y)


def starts(f: Fixture) -> Calls:
    return lambda: sinpe.add(f.x, start=f.starts), lambda: f.x + f.pe[f.starts].unsqueeze(1)


def alpha(f: Fixture) -> Calls:
    return lambda: sinpe.add(f.x, start=AT, alpha=f.alpha), lambda: f.x + f.alpha * f.row()


def mask(f: Fixture) -> Calls:
    def eager() -> Tensor:
        return torch.where(f.mask.unsqueeze(-1), f.x, f.x + f.row())

    return lambda: sinpe.add(f.x, start=AT, padding_mask=f.mask), eager


def dropout(f: Fixture, seed: int | None = None) -> Calls:
    return lambda: sinpe.add(f.x, start=AT, dropout=P, seed=seed), lambda: functional.dropout(f.x + f.row(), P)


def embed(f: Fixture, start: int = 0) -> Calls:
    def eager() -> Tensor:
        return functional.embedding(f.ids, f.weight) * 2.0 + f.pe[start : start + 1]

    return lambda: sinpe.embed(f.ids, f.weight, scale=2.0, start=start), eager


def embed_dropout(f: Fixture) -> Calls:
    _, eager = embed(f)
    return lambda: sinpe.embed(f.ids, f.weight, scale=2.0, dropout=P), lambda: functional.dropout(eager(), P)


def sequence_first(f: Fixture) -> Calls:
    x = f.x.transpose(0, 1).contiguous()
    return lambda: sinpe.add(x, seq_dim=0, start=AT), lambda: x + f.row().unsqueeze(1)


def extra_tokens(f: Fixture) -> Calls:
    """A class token and one row."""
    x, pe = f.x.reshape(BATCH // 2, 2, DIM), functional.pad(f.pe[:1], (0, 0, 1, 0))
    return lambda: sinpe.add(x, extra_tokens=1), lambda: x + pe


def grid(f: Fixture) -> Calls:
    return lambda: sinpe.add(f.image, "mae2d"), lambda: f.image + f.grid


def grid_start(f: Fixture) -> Calls:
    pe = sinpe.table((HEIGHT, WIDTH), "mae2d", dim=CHANNELS, start=(3, 5), device=f.x.device)
    return lambda: sinpe.add(f.image, "mae2d", start=(3, 5)), lambda: f.image + pe


def grid_channels_first(f: Fixture) -> Calls:
    image, pe = (t.movedim(-1, -3).contiguous() for t in (f.image, f.grid))
    return lambda: sinpe.add(image, "mae2d", channel_dim=1), lambda: image + pe


def grid_extra_tokens(f: Fixture) -> Calls:
    """A class token and the flattened image."""
    x = functional.pad(f.image.flatten(1, 2), (0, 0, 1, 0), value=1.0)
    pe = functional.pad(f.grid.flatten(0, 1), (0, 0, 1, 0))
    return lambda: sinpe.add(x, "mae2d", grid_shape=(HEIGHT, WIDTH), extra_tokens=1), lambda: x + pe


def grid_dropout(f: Fixture) -> Calls:
    _, eager = grid(f)
    return lambda: sinpe.add(f.image, "mae2d", dropout=P), lambda: functional.dropout(eager(), P)


def with_backward(call: Callable[[], Tensor], wanted: Tensor, grad: Tensor) -> Callable[[], Tensor]:
    """Forward and backward pass: the gradient of `wanted`."""
    wanted.requires_grad_()

    def run() -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(call(), wanted, grad)[0]

    return run


def trained(calls: Calls, wanted: Tensor, grad: Tensor) -> Calls:
    ours, eager = calls
    return with_backward(ours, wanted, grad), with_backward(eager, wanted, grad)


def train_plain(f: Fixture) -> Calls:
    return trained(plain(f), f.x, f.grad)


def train_scale(f: Fixture) -> Calls:
    return trained((lambda: sinpe.add(f.x, start=AT, scale=3.0), lambda: f.x * 3.0 + f.row()), f.x, f.grad)


def train_alpha(f: Fixture) -> Calls:
    return trained(alpha(f), f.alpha, f.grad)


def train(f: Fixture) -> Calls:
    return trained(dropout(f), f.x, f.grad)


def embed_train_plain(f: Fixture) -> Calls:
    return trained(embed(f), f.weight, f.grad)


def embed_train(f: Fixture) -> Calls:
    return trained(embed_dropout(f), f.weight, f.grad)


def layer_train(f: Fixture) -> Calls:
    ours = sinpe.SinusoidalPositionalEncoding(DIM, P)
    usual = nn.Sequential(peer.UsualModule(64, DIM), nn.Dropout(P)).to(f.x.device)
    return trained((lambda: ours(f.x), lambda: usual(f.x)), f.x, f.grad)


def embedding_layer_train(f: Fixture) -> Calls:
    ours = sinpe.SinusoidalEmbedding.from_pretrained(f.weight, freeze=False, dropout=P)
    embedding = nn.Embedding.from_pretrained(f.weight, freeze=False)
    usual = nn.Sequential(embedding, peer.UsualModule(64, DIM), nn.Dropout(P)).to(f.x.device)
    return (
        with_backward(lambda: ours(f.ids), ours.weight, f.grad),
        with_backward(lambda: usual(f.ids), embedding.weight, f.grad),
    )


def agree(ours: Tensor, eager: Tensor, drops: bool) -> None:
    """Compares a row's two results; with dropout, for which each draws its own mask, the elements that both keep."""
    kept = (ours != 0) & (eager != 0) if drops else torch.ones_like(ours, dtype=torch.bool)
    if not kept.any():
        raise AssertionError("host: expected elements that are not 0 in both results, got none")
    scale = 65536 / (65536 - round(P * 65536)) * (1 - P) if drops else 1.0  # ours divides by the quantized rate
    peer.agree("host", ours[kept].cpu(), eager[kept].double().cpu() * scale, CLOSE * 16)


def subjects(place: Place, *, calls: Callable[[Fixture], Calls], drops: bool) -> Subjects:
    ours, eager = calls(Fixture(place))
    return Subjects(ours, eager, {}, lambda: agree(ours(), eager(), drops))


def rows(device: str) -> Iterable[Row]:
    """The rows of a device: "cpu" or "cuda"."""
    # name, title, calls, whether they drop elements, target of ours / eager
    cases: tuple[tuple[str, str, Callable[[Fixture], Calls], bool, float], ...] = (
        ("add", "add", plain, False, 1.1),
        ("out", "add, out=", into, False, 1.1),
        ("starts", "add, starts in a tensor", starts, False, 1.1),
        ("alpha", "add, alpha in a tensor", alpha, False, 1.1),
        ("mask", "add, padding mask", mask, False, 1.1),
        ("dropout", "add + dropout", dropout, True, 1.1),
        ("dropout_seed", "add + dropout, seed=1", partial(dropout, seed=1), True, 1.1),
        ("sequence_first", "add, seq_dim=0", sequence_first, False, 1.1),
        ("extra_tokens", "add, extra_tokens=1", extra_tokens, False, 1.1),
        ("embed", "embed", embed, False, 1.1),
        ("embed_start", "embed, start=7", partial(embed, start=AT), False, 1.1),
        ("embed_dropout", "embed + dropout", embed_dropout, True, 1.1),
        ("train_plain", "add, backward", train_plain, False, 1.1),
        ("train_scale", "add, scale, backward", train_scale, False, 1.1),
        ("train_alpha", "add, backward to alpha", train_alpha, False, 1.1),
        ("train", "add + dropout, backward", train, True, 1.1),
        ("embed_train_plain", "embed, backward", embed_train_plain, False, 1.1),
        ("embed_train", "embed + dropout, backward", embed_train, True, 1.1),
        ("layer_train", "layer, backward", layer_train, True, 1.1),
        ("embedding_layer_train", "embedding layer, backward", embedding_layer_train, True, 1.1),
        ("grid", "add, mae2d", grid, False, 2.0),
        ("grid_start", "add, mae2d, start=(3, 5)", grid_start, False, 2.0),
        ("grid_first", "add, mae2d, channels first", grid_channels_first, False, 2.0),
        ("grid_extra_tokens", "add, mae2d, extra_tokens=1", grid_extra_tokens, False, 2.0),
        ("grid_dropout", "add + dropout, mae2d", grid_dropout, True, 2.0),
    )
    prefix, before = ("cuda_host_", "CUDA host time: ") if device == "cuda" else ("host_", "host time: ")
    for name, title, calls, drops, target in cases:
        build = partial(subjects, calls=calls, drops=drops)
        yield Row(
            prefix + name,
            before + title,
            build if device == "cuda" else partial(build, CPU),
            "eager",
            target,
            threads=1,
            device=device,
            host=True,
        )


HOST_ROWS = tuple(rows("cpu"))
CUDA_HOST_ROWS = tuple(rows("cuda"))
