"""What the benchmark times: a call of ours, the cost of its memory traffic, and other implementations of the same.

A builder makes the tensors of a row on a device and returns its calls. `check` compares the results with float64 before
anything is timed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe
from sinpe_ext.reference.naive import naive_table

from . import peers as peer

Call = Callable[[], object]

P = 0.1  # probability of dropout
KEPT_SCALE = 65536 / (65536 - round(P * 65536))  # of elements that are kept: our probability is quantized
VOCABULARY = 32000
CHECK_ROWS = 97  # rows compared with float64 before timing, spread over the whole length
# Rounding once to the output type costs at most half a unit in the last place of a value below 1.
ROUNDING = {torch.float32: 2.0**-25, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float64: 2.0**-54}
NAIVE, COMPILED = "naive float32 formula", "torch.compile"  # names of peers
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_language_model.py"


@dataclass
class Calls:
    """The calls of one row; `moved`: bytes that ours at least reads and writes, of which a device reports the speed."""

    ours: Call
    floor: Call | None = None
    peers: Mapping[str, Call] = field(default_factory=dict)
    check: Call = lambda: None
    moved: int = 0


@dataclass(frozen=True)
class Place:
    """A device, and the number of elements of the tensors whose shape a row does not give."""

    device: torch.device
    elements: int = 2**27  # 512 MiB in float32, 256 MiB in 16 bits: several times the L2 cache of a GPU

    def shape(self, length: int = 4096, dim: int = 1024) -> tuple[int, int, int]:
        length = min(length, max(1, self.elements // dim))
        return max(1, self.elements // (length * dim)), length, dim

    def randn(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)

    def seed(self) -> Tensor | None:
        """A seed of dropout that needs no draw on a device; None on the CPU."""
        return torch.tensor(1, device=self.device) if self.device.type == "cuda" else None


@dataclass(frozen=True)
class Row:
    """One line of the report: ours / floor at most `target`, peer / ours at least its target (None: no target)."""

    name: str
    title: str
    build: Callable[[Place], Calls]
    floor: str = ""
    target: float | None = None
    peers: dict[str, float | None] = field(default_factory=dict)  # of the builder's peers, those that are timed
    threads: int | None = None
    grad: bool = False
    backend: str = "auto"
    slow: bool = False  # left out of a quick run
    device: str = "cpu"
    host: bool = False  # the host's time for a call, also on a device


# ----------------------------------------------------------------------------------------------------------- checking


def close(name: str, got: Tensor, want: Tensor, *, size: float = 1.0, farthest: float = 0.0) -> None:
    """Compares values up to `size` with float64.

    Ours on the CPU are correctly rounded (16 bits up to 0.501 units), before and after x is added; on a device within
    a few units in the last place. The error of the float64 reference grows with the position, at most `farthest`.
    """
    units = 1.002 if got.device.type == "cpu" else 8.0
    of_rows = ROUNDING[torch.float64 if got.dtype == torch.float64 else torch.float32] if size > 1 else 0.0
    bound = units * (size * ROUNDING[got.dtype] + of_rows) + abs(farthest) * 2.0**-51
    peer.agree(name, got.cpu(), want.cpu(), bound)


def close_dropout(got: Tensor, total: Tensor) -> None:
    """Check that each element is 0 or the sum times the kept scale, and that about the right fraction is 0."""
    got, want = got.detach().cpu(), total.detach().cpu() * KEPT_SCALE
    kept = got != 0
    close("dropout", got[kept], want[kept], size=32.0 + 4 * float(want.abs().max()))
    share, spread = 1 - float(kept.double().mean()), 8 * math.sqrt(P * (1 - P) / got.numel())
    if not abs(share - P) <= spread + 2.0**-16:
        raise AssertionError(f"dropout: expected a share of {P} dropped, got {share:.5f}")


def gradients(run: Callable[[], Tensor], inputs: list[Tensor], grad: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """A call with its forward and backward pass."""

    def both() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(run(), inputs, grad)

    return both


# ------------------------------------------------------------------------------------------------- tables, single rows


def table(
    place: Place,
    length: int = 0,
    dim: int = 1024,
    dtype: torch.dtype = torch.float32,
    *,
    into: str = "out",
    encoding: sinpe.Encoding | None = None,
) -> Calls:
    """A table, into an existing one ("out", against its fill_), a new one ("new", against torch.full), or a new one of
    a size whose rows the kernels keep ("kept", against the copy of a stored table).

    length 0: as many rows as the place says.
    """
    length = length or place.elements // dim
    encoding = encoding or sinpe.Encoding(dim)
    paper = encoding == sinpe.Encoding(dim) and dim % 2 == 0
    out = torch.empty(length, dim, dtype=dtype, device=place.device)
    positions = torch.arange(length, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(place.device)

    def ours() -> Tensor:
        return sinpe.table(length, encoding, dtype=dtype, device=place.device, out=out if into == "out" else None)

    def check() -> None:
        if paper:
            rows = torch.linspace(0, length - 1, CHECK_ROWS, dtype=torch.float64).long()
            close("table", ours()[rows.to(place.device)], peer.exact_rows(rows, dim), farthest=length)
            return
        with sinpe.use_backend("eager"):
            expected = sinpe.table(length, encoding, dtype=dtype, device=place.device)
        if not torch.equal(ours(), expected):
            raise AssertionError(f"table of {encoding}: expected the bits of eager PyTorch")

    floors: dict[str, Call] = {
        "out": lambda: out.fill_(1),
        "new": lambda: torch.full((length, dim), 1.0, dtype=dtype, device=place.device),
        "kept": lambda: out.clone(),
    }
    return Calls(ours, floors[into], {NAIVE: lambda: naive_table(positions, dim).to(dtype)}, check, out.nbytes)


def library_table(
    place: Place, convention: str, name: str, build: Callable[[int, int], Tensor], length: int = 4096, dim: int = 1024
) -> Calls:
    """Our table under a library's convention, into an existing one, against the library's builder."""
    encoding: Any = sinpe.convention(convention, dim, start=0)
    calls = table(place, length, dim, encoding=encoding)

    def check() -> None:
        rows = torch.arange(CHECK_ROWS)
        exact = peer.exact_rows(rows, dim, shift=0.0 if convention == "paper_concat" else 1.0, interleaved=False)
        close(convention, sinpe.table(CHECK_ROWS, encoding), exact, farthest=CHECK_ROWS)
        # the peer's own float32 error at these positions stays below 1e-4: this checks that it is the same convention
        peer.agree(name, build(CHECK_ROWS, dim), exact, 1e-4)

    return Calls(calls.ours, calls.floor, {name: lambda: build(length, dim)}, check, calls.moved)


def encode(
    place: Place,
    count: int = 0,
    dim: int = 128,
    dtype: torch.dtype = torch.float32,
    *,
    largest: float = 2.0**20,
    integers: bool = True,
) -> Calls:
    """Rows at random positions up to `largest`, integers or not, into new memory; count 0: as the place says."""
    count = count or min(128_000_000, place.elements) // dim
    encoding = sinpe.Encoding(dim)
    positions = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * largest
    positions = (positions.long() if integers else positions.float()).to(place.device)

    def ours() -> Tensor:
        return sinpe.encode(positions, encoding, dtype=dtype)

    def check() -> None:
        rows = torch.linspace(0, count - 1, CHECK_ROWS, dtype=torch.float64).long()
        exact = peer.exact_rows(positions.cpu()[rows], dim)
        close("encode", ours()[rows.to(place.device)], exact, farthest=largest)

    peers: dict[str, Call] = {
        NAIVE: lambda: naive_table(positions.float(), dim).to(dtype),
        "float64 formula": lambda: naive_table(positions.double(), dim).to(dtype),
    }
    floor: Call = lambda: torch.full((count, dim), 1.0, dtype=dtype, device=place.device)  # noqa: E731
    return Calls(ours, floor, peers, check, count * (dim * dtype.itemsize + positions.itemsize))


def timesteps(
    place: Place, count: int = 8, dim: int = 320, dtype: torch.dtype = torch.float32, *, layer: bool = False
) -> Calls:
    """A diffusion model's timesteps by the function (DDPM's) or the layer of its UNets (ADM's), against diffusers."""
    name, shift = ("adm", 0.0) if layer else ("ddpm", 1.0)
    encoding: Any = sinpe.convention(name, dim)
    module, t = sinpe.TimestepEncoding(dim, encoding=encoding, dtype=dtype), torch.linspace(0.5, 999.5, count)
    t = t.to(place.device)

    def swapped(rows: Tensor) -> Tensor:  # ADM's channels are cosines, then sines
        return rows.roll(dim // 2, -1) if layer else rows

    def ours() -> Tensor:
        return module(t) if layer else sinpe.encode(t, encoding, dtype=dtype)

    def check() -> None:
        exact = swapped(peer.exact_rows(t.cpu(), dim, shift=shift, interleaved=False))
        close("timesteps", ours(), exact, farthest=1000)

    def floor() -> Tensor:
        return torch.empty(count, dim, dtype=dtype, device=place.device).fill_(1.0)

    others = {"diffusers": lambda: swapped(peer.diffusers_embedding(t, dim, shift)).to(dtype)}
    return Calls(ours, floor, others, check, count * dim * dtype.itemsize)


def points(place: Place, count: int, octaves: int) -> Calls:
    """Points with three coordinates, as in a radiance field."""
    encoding: Any = sinpe.convention("nerf", 6 * octaves, axes=3)
    p = torch.rand(count, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def check() -> None:
        want = peer.nerf(p[:CHECK_ROWS].double(), octaves)
        close("nerf", sinpe.encode(p[:CHECK_ROWS], encoding), want, farthest=2.0**octaves)

    floor: Call = lambda: torch.full((count, 6 * octaves), 1.0)  # noqa: E731
    return Calls(lambda: sinpe.encode(p, encoding), floor, {"NeRF": lambda: peer.nerf(p, octaves)}, check)


# ---------------------------------------------------------------------------------------------------------------- sums


def add(
    place: Place,
    shape: tuple[int, int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    into: str = "new",
    positions: bool = False,
    dropout: float = 0.0,
    alpha: float | None = None,
    backward: bool = False,
) -> Calls:
    """dropout(x + alpha * PE), to new memory, to other memory ("out"), or "inplace", against a copy of x.

    positions: each sample has its own, in random order. alpha: a learned one. backward: with the gradients of x and
    alpha, against two copies. Peers have a stored table.
    """
    shape = shape or place.shape()
    batch, length, dim = shape
    x, encoding = place.randn(shape, dtype), sinpe.Encoding(dim)
    y, pe = torch.empty_like(x), sinpe.table(length, encoding, dtype=dtype, device=place.device)
    at = torch.stack([torch.randperm(length) for _ in range(batch)]).to(place.device) if positions else None
    factor = 1.0 if alpha is None else torch.full((1,), alpha, device=place.device, dtype=dtype)
    options: dict[str, Any] = {"positions": at, "alpha": factor, "dropout": dropout, "seed": place.seed()}

    def ours(x: Tensor = x) -> Tensor:
        if into == "inplace":
            return sinpe.add_(x, encoding, **options)
        return sinpe.add(x, encoding, **options, out=y if into == "out" else None)

    def plain(x: Tensor) -> Tensor:
        rows = pe if at is None else pe[at]
        total = x + (rows if alpha is None else factor * rows)
        return functional.dropout(total, dropout) if dropout else total

    def eager() -> Tensor:
        if into == "inplace":
            x.add_(pe)
            return functional.dropout(x, dropout, inplace=True) if dropout else x
        if into == "out" and not dropout:
            return torch.add(x, pe if at is None else pe[at], out=y)
        return plain(x)

    def check() -> None:
        rows = torch.arange(length) if at is None else at[-1].cpu()
        want = x[-1].detach().double().cpu() + (alpha or 1.0) * peer.exact_rows(rows, dim)
        got = ours(x.detach().clone())[-1]
        if dropout:
            close_dropout(got, want)
        else:
            close("add", got, want, size=8.0, farthest=length)

    compiled, moved = torch.compile(plain), 2 * x.nbytes
    if not backward:
        floors: dict[str, Call] = {
            "new": lambda: x.clone(),
            "out": lambda: y.copy_(x),
            "inplace": lambda: x.mul_(1.0),
        }
        return Calls(ours, floors[into], {"eager": eager, COMPILED: lambda: compiled(x)}, check, moved)

    inputs, grad = [x.requires_grad_()], place.randn(shape, dtype)
    if isinstance(factor, Tensor):
        inputs.append(factor.requires_grad_())
    both = gradients(ours, inputs, grad)

    def check_gradients() -> None:
        check()
        of_x, *of_alpha = both()
        kept = of_x != 0
        close("gradient of x", of_x[-1][kept[-1]], grad[-1][kept[-1]].double() * KEPT_SCALE, size=32.0)
        if of_alpha:  # one sum over all elements, which is rounded once to dtype, PE once to float32
            products = kept * grad.double() * sinpe.table(length, encoding, dtype=torch.float64, device=place.device)
            want, size = KEPT_SCALE * products.sum(), KEPT_SCALE * float(products.abs().sum())
            bound = abs(float(want)) * 4 * ROUNDING[dtype] + size * 2.0**-22
            peer.agree("gradient of alpha", of_alpha[0], want.reshape(1), bound)

    def two_copies() -> None:
        x.detach().clone()
        grad.clone()

    peers: dict[str, Call] = {
        "eager": gradients(lambda: plain(x), inputs, grad),
        COMPILED: gradients(lambda: compiled(x), inputs, grad),
    }
    return Calls(both, two_copies, peers, check_gradients, 2 * moved)


def layout(
    place: Place,
    shape: tuple[int, int, int] | None = None,
    kind: str = "sequence first",
    dtype: torch.dtype = torch.float32,
    dropout: float = 0.0,
    backward: bool = False,
) -> Calls:
    """x in another layout, into other memory: "sequence first", "channels first" or a transposed view of "heads".

    The floor is the same sum with a table stored in that layout; with dropout, and with a backward pass, ours where the
    batch is first.
    """
    shape = shape or place.shape()
    batch, length, dim = shape
    x, width = place.randn(shape, dtype), min(64, dim) if kind == "heads" else dim
    pe = sinpe.table(length, width, dtype=dtype, device=place.device)
    options: dict[str, Any] = {"dropout": dropout, "seed": place.seed()}
    where: dict[str, Any] = {}
    if kind == "sequence first":
        z, rows, where = x.transpose(0, 1).contiguous(), pe.unsqueeze(1), {"seq_dim": 0}
    elif kind == "channels first":
        z, rows, where = x.transpose(1, 2).contiguous(), pe.t().contiguous(), {"seq_dim": 2, "channel_dim": 1}
    else:
        z, rows = x.view(batch, length, dim // width, width).transpose(1, 2), pe
    encoding, first, y, into = sinpe.Encoding(width), sinpe.Encoding(dim), torch.empty_like(x), torch.empty_like(z)

    def ours() -> Tensor:
        return sinpe.add(z, encoding, **options, **where, out=into)

    def check() -> None:
        total = z.detach().double() + rows
        if dropout:
            close_dropout(ours(), total)
        else:
            peer.agree(kind, ours(), total, 2.0**-22 if dtype == torch.float32 else 2.0**-6)

    if backward:
        leaves, grads = [z.requires_grad_(), x.requires_grad_()], [torch.randn_like(z), torch.randn_like(x)]
        both = gradients(lambda: sinpe.add(z, encoding, **options, **where), leaves[:1], grads[0])
        floor = gradients(lambda: sinpe.add(x, first, **options), leaves[1:], grads[1])
        return Calls(both, floor, moved=4 * x.nbytes)
    if dropout:
        return Calls(ours, lambda: sinpe.add(x, first, **options, out=y), check=check, moved=2 * x.nbytes)
    return Calls(ours, lambda: torch.add(z, rows, out=into), check=check, moved=2 * x.nbytes)


def add_image(
    place: Place,
    shape: tuple[int, int, int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    channels_first: bool = False,
) -> Calls:
    """Images (B, H, W, C) plus mae2d, or (B, C, H, W) plus detr2d, to other memory, against a copy of x."""
    side = max(1, min(64, math.isqrt(place.elements // 768)))
    batch, height, width, dim = shape or (max(1, place.elements // (768 * side * side)), side, side, 768)
    name, channel_dim = ("detr2d", 1) if channels_first else ("mae2d", -1)
    grid: Any = sinpe.convention(name, dim)
    x = place.randn((batch, dim, height, width) if channels_first else (batch, height, width, dim), dtype)
    pe = sinpe.table((height, width), grid, device=place.device)
    pe, y = (pe.movedim(-1, 0).contiguous() if channels_first else pe).to(dtype), torch.empty_like(x)

    def ours() -> Tensor:
        return sinpe.add(x, grid, channel_dim=channel_dim, out=y)

    def check() -> None:
        want = peer.exact_image(height, width, dim, channels_first=channels_first)
        close(name, ours()[-1], x[-1].double().cpu() + want, size=8.0, farthest=height)
        if channels_first:
            of_detr = peer.detr(torch.zeros(1, height, width, dtype=torch.bool), dim)[0]
            peer.agree("DETR", of_detr, want, 1e-4)

    mask = torch.zeros(batch, height, width, dtype=torch.bool)
    peers: dict[str, Call] = {"eager": lambda: torch.add(x, pe, out=y)}
    peers["DETR"] = lambda: torch.add(x, peer.detr(mask, dim), out=y)
    return Calls(ours, lambda: y.copy_(x), peers, check, 2 * x.nbytes)


# ------------------------------------------------------------------------------------------------ lookups and training


def token_ids(place: Place, shape: tuple[int, int], *, of_text: bool) -> Tensor:
    """Uniformly random tokens, or tokens distributed as in a text: the most frequent word is 6 % of all, and the n-th
    about 1/n of that (Zipf's law)."""
    generator = torch.Generator().manual_seed(0)
    if not of_text:
        return torch.randint(VOCABULARY, shape, generator=generator).to(place.device)
    weights = 1 / (torch.arange(VOCABULARY) + 1.7)
    ids = torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator)
    return ids.view(shape).to(place.device)


def embed(
    place: Place,
    shape: tuple[int, int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    floor: str = "copy",
    dropout: float = 0.0,
    of_text: bool = False,
    backward: bool = False,
) -> Calls:
    """dropout(scale * weight[ids] + PE), against a "copy" of the result (two with backward) or the "lookup" alone.

    backward: with the dense gradient of weight.
    """
    shape = shape or place.shape()
    batch, length, dim = shape
    encoding, scale = sinpe.Encoding(dim), math.sqrt(dim)
    weight, ids = place.randn((VOCABULARY, dim), dtype) / scale, token_ids(place, (batch, length), of_text=of_text)
    pe, grad = sinpe.table(length, encoding, dtype=dtype, device=place.device), place.randn(shape, dtype)
    y = torch.empty_like(grad)
    options: dict[str, Any] = {"scale": scale, "dropout": dropout, "seed": place.seed()}

    def ours() -> Tensor:
        return sinpe.embed(ids, weight, encoding, **options)

    def eager() -> Tensor:
        total = functional.embedding(ids, weight) * scale + pe
        return functional.dropout(total, dropout) if dropout else total

    def check() -> None:
        total = weight[ids[-1]].double() * scale + sinpe.table(length, encoding, dtype=torch.float64, device=ids.device)
        if dropout:
            close_dropout(ours()[-1], total)
        else:
            close("embed", ours()[-1], total, size=16.0, farthest=length)

    compiled = torch.compile(eager)
    if not backward:
        floors: dict[str, Call] = {
            "copy": lambda: y.copy_(grad),
            "lookup": lambda: functional.embedding(ids, weight),
        }
        return Calls(ours, floors[floor], {"eager": eager, COMPILED: lambda: compiled()}, check, 2 * y.nbytes)

    inputs = [weight.requires_grad_()]
    both = gradients(ours, inputs, grad)

    def check_gradients() -> None:
        check()
        constant = torch.full_like(weight.detach(), 8)  # so that no kept element is 0
        fixed = {**options, "seed": 1}
        kept = sinpe.embed(ids, constant, encoding, **fixed) != 0
        (got,) = gradients(lambda: sinpe.embed(ids, weight, encoding, **fixed), inputs, grad)()
        rows = torch.where(kept, grad, 0).flatten(0, 1)
        some = torch.linspace(0, VOCABULARY - 1, 7).long().tolist()
        want = torch.stack([rows[ids.flatten() == row].double().sum(0) for row in some]) * scale * KEPT_SCALE
        largest = 1 + float(want.abs().max())
        peer.agree("gradient of weight", got[some], want, largest * (8 * ROUNDING[dtype] + 2.0**-20))

    def two_copies() -> None:
        y.copy_(grad)
        y.copy_(grad)

    peers: dict[str, Call] = {
        "eager": gradients(eager, inputs, grad),
        COMPILED: gradients(lambda: compiled(), inputs, grad),
    }
    return Calls(both, two_copies, peers, check_gradients, 4 * y.nbytes)


def compiled_chain(
    place: Place, shape: tuple[int, int, int], dropout: float = 0.0, *, fused: bool = True, backward: bool = False
) -> Calls:
    """torch.compile of embedding -> scale, PE, dropout -> LayerNorm, against the same with a stored table.

    fused: by our `embed`, otherwise by `add` after a lookup. backward: with the gradients of the weights.
    """
    batch, length, dim = shape
    encoding, pe, scale = sinpe.Encoding(dim), sinpe.table(length, dim), math.sqrt(dim)
    weight, ids, norm = (
        place.randn((VOCABULARY, dim), torch.float32),
        token_ids(place, (batch, length), of_text=False),
        nn.LayerNorm(dim),
    )
    weight, grad = (weight / scale).requires_grad_(backward), torch.randn(shape)

    def ours(ids: Tensor) -> Tensor:
        if fused:
            return norm(sinpe.embed(ids, weight, encoding, scale=scale, dropout=dropout))
        return norm(sinpe.add(functional.embedding(ids, weight), encoding, scale=scale, dropout=dropout))

    def ready(ids: Tensor) -> Tensor:
        return norm(functional.dropout(functional.embedding(ids, weight) * scale + pe, dropout))

    ours_compiled, ready_compiled = torch.compile(ours), torch.compile(ready)

    def timed(call: Callable[[Tensor], Tensor]) -> Call:
        return gradients(lambda: call(ids), [weight, *norm.parameters()], grad) if backward else lambda: call(ids)

    def check() -> None:
        torch.manual_seed(0)
        want = ours(ids)
        torch.manual_seed(0)
        peer.agree("torch.compile", ours_compiled(ids), want, 1e-4)  # LayerNorm sums in another order

    return Calls(timed(ours_compiled), timed(ready_compiled), {"eager": timed(ready)}, check)


def example() -> Any:
    """examples/train_language_model.py as a module."""
    if not EXAMPLE.is_file():
        raise FileNotFoundError("the training step needs examples/train_language_model.py: run it in a checkout")
    spec = importlib.util.spec_from_file_location("sinpe_ext_train_language_model", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def training_step(place: Place, *, compiled: bool = False) -> Calls:
    """One training step of the example's language model, with our layer and with plain PyTorch layers."""
    lm = example()
    torch.manual_seed(0)
    data = torch.randint(90, (20_000,))

    def step(kind: str) -> Callable[[], float]:
        torch.manual_seed(0)
        model = lm.model_of(kind, 90)
        run = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        order = torch.Generator().manual_seed(0)

        def one() -> float:
            optimizer.zero_grad()
            loss = lm.loss_of(run, *lm.batches(data, order))
            loss.backward()
            optimizer.step()
            return loss.item()

        return one

    ours, torch_only = step("sinpe_ext"), step("torch")

    def check() -> None:
        mine, theirs = ours(), torch_only()
        if not abs(mine - theirs) < 0.05:  # the same weights and data, two dropout masks
            raise AssertionError(f"training step: expected a loss near {theirs:.3f}, got {mine:.3f}")

    return Calls(ours, torch_only, {}, check)


# --------------------------------------------------------------------------------------------------------------- others


def against(build: Callable[[Place], Calls], name: str, place: Place) -> Calls:
    """A row's call with one of its peers as its floor."""
    calls = build(place)
    return Calls(calls.ours, calls.peers[name], check=calls.check)


def identified(place: Place, length: int, dim: int) -> Calls:
    """`identify` of a checkpoint's float32 table of the naive float32 formula."""
    stored = naive_table(torch.arange(length).float(), dim)

    def check() -> None:
        best = sinpe.identify(stored)[0]
        if best.encoding != sinpe.Encoding(dim):
            raise AssertionError(f"identify: expected paper with base 10000, got {best}")

    return Calls(lambda: sinpe.identify(stored), check=check)


def copy_or_fill(place: Place, dtype: torch.dtype, *, copy: bool) -> Calls:
    """The speed of torch's copy and fill. "Ours" is the floor again, which shows the spread."""
    x = place.randn((place.elements,), dtype)
    y = torch.empty_like(x)
    call: Call = (lambda: y.copy_(x)) if copy else (lambda: y.fill_(1))
    return Calls(call, call, moved=(2 if copy else 1) * x.nbytes)
