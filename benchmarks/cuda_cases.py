"""The rows of the CUDA benchmark: kernels against a copy or a fill of the same bytes, and other implementations.

The tensors are several times the size of the L2 cache, so that every call streams through device memory. `ROWS` at the
end is the list with its targets; `check` of every row runs before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import sinpe_ext as sinpe

from . import peers as peer
from .cases import CHECK_ROWS, ROUNDING, Row, Subjects, token_ids

P = 0.1
LENGTH, DIM, VOCABULARY = 4096, 1024, 32000
ENCODED = 1_000_000  # positions
ELEMENTS = 2**27  # of x: 512 MiB in float32, 256 MiB in 16 bits


@dataclass(frozen=True)
class Place:
    """The device, and the size of the tensors."""

    device: torch.device
    elements: int = ELEMENTS

    def shape(self) -> tuple[int, int, int]:
        length = min(LENGTH, max(1, self.elements // DIM))
        return max(1, self.elements // (length * DIM)), length, DIM

    def randn(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)

    def ids(self, *, of_text: bool) -> Tensor:
        """Token ids of x's shape."""
        return token_ids(VOCABULARY, self.shape()[:2], of_text=of_text).to(self.device)


cuda_row = partial(Row, device="cuda")  # its `build` takes a Place


def rows_agree(
    name: str, got: Tensor, want: Tensor, dtype: torch.dtype, size: float = 1.0, farthest: float = 0.0
) -> None:
    """Compare values up to `size`, rounded to dtype from rows within one ULP; positions up to `farthest` add the error
    of the float64 reference to the tolerance."""
    peer.agree(name, got.detach().cpu(), want.cpu(), size * 8 * ROUNDING[dtype] + farthest * 2.0**-51)


def table(place: Place, dtype: torch.dtype) -> Subjects:
    batch, length, dim = place.shape()
    length *= batch
    out = torch.empty(length, dim, device=place.device, dtype=dtype)
    encoding = sinpe.Encoding(dim)
    position, index = (t.to(place.device) for t in peer.usual_parts(length, dim))

    def check() -> None:
        rows = torch.linspace(0, length - 1, CHECK_ROWS, dtype=torch.float64).long()
        got = sinpe.table(length, encoding, out=out)[rows.to(place.device)]
        rows_agree("table", got, peer.exact_rows(rows, dim), dtype)

    def usual() -> Tensor:
        angle = position * torch.exp(index * (-math.log(peer.BASE) / dim))
        out[:, 0::2] = torch.sin(angle)
        out[:, 1::2] = torch.cos(angle)
        return out

    moved = out.numel() * out.element_size()
    return Subjects(
        lambda: sinpe.table(length, encoding, out=out),
        lambda: out.fill_(1),
        {"naive float32 formula": usual},
        check,
        moved,
    )


def roofline(place: Place, dtype: torch.dtype, *, copy: bool) -> Subjects:
    """The floors: the speed of torch's copy and fill. "Ours" is the floor again, which shows the spread."""
    x = place.randn(place.elements, dtype=dtype)
    y = torch.empty_like(x)
    call: Callable[[], object] = (lambda: y.copy_(x)) if copy else (lambda: y.fill_(1))
    return Subjects(call, call, moved=(2 if copy else 1) * x.numel() * x.element_size())


def encode(place: Place, dtype: torch.dtype, dim: int = 128) -> Subjects:
    """Rows at random positions."""
    count = min(ENCODED * 128, place.elements) // dim
    encoding, out = sinpe.Encoding(dim), torch.empty(count, dim, device=place.device, dtype=dtype)
    at = torch.randint(2**20, (count,), generator=torch.Generator().manual_seed(0)).to(place.device)
    frequency = torch.exp(peer.usual_parts(1, dim)[1].to(place.device) * (-math.log(peer.BASE) / dim))

    def ours() -> Tensor:
        return sinpe.encode(at, encoding, dtype=dtype)

    def usual() -> Tensor:
        angle = at[:, None].float() * frequency
        return torch.stack([torch.sin(angle), torch.cos(angle)], -1).flatten(1).to(dtype)

    def check() -> None:
        rows = torch.linspace(0, count - 1, CHECK_ROWS, dtype=torch.float64).long()
        rows_agree("encode", ours().cpu()[rows], peer.exact_rows(at.cpu()[rows], dim), dtype)

    moved = out.numel() * out.element_size() + 8 * count
    return Subjects(ours, lambda: out.fill_(1), {"naive float32 formula": usual}, check, moved)


def add_inplace(place: Place, dtype: torch.dtype) -> Subjects:
    batch, length, dim = place.shape()
    encoding, x = sinpe.Encoding(dim), place.randn(batch, length, dim, dtype=dtype)
    pe = sinpe.table(length, encoding, dtype=dtype, device=place.device)
    y = torch.zeros_like(x)  # sums of many calls stay below 3000: no infinity, the speed is the same

    def check() -> None:
        got = sinpe.add_(x[-1:].clone(), encoding)
        want = x[-1].double().cpu() + peer.exact_rows(torch.arange(length), dim)
        rows_agree("add_", got[0], want, dtype, 8.0)

    moved = 2 * x.numel() * x.element_size()
    eager = {"eager": lambda: x.add_(pe)}
    return Subjects(lambda: sinpe.add_(y, encoding), lambda: y.mul_(1.0), eager, check, moved)


def add(place: Place, dtype: torch.dtype, *, positions: bool = False) -> Subjects:
    batch, length, dim = place.shape()
    encoding, x = sinpe.Encoding(dim), place.randn(batch, length, dim, dtype=dtype)
    y, pe = torch.empty_like(x), sinpe.table(length, encoding, dtype=dtype, device=place.device)
    at = torch.stack([torch.randperm(length) for _ in range(batch)]).to(place.device) if positions else None

    def ours() -> Tensor:
        return sinpe.add(x, encoding, positions=at, out=y)

    def eager() -> Tensor:
        return torch.add(x, pe, out=y) if at is None else torch.add(x, pe[at], out=y)

    def pure(x: Tensor) -> Tensor:
        return x + (pe if at is None else pe[at])

    def check() -> None:
        rows = torch.arange(length) if at is None else at[-1].cpu()
        want = x[-1].double().cpu() + peer.exact_rows(rows, dim)
        rows_agree("add", ours()[-1], want, dtype, 8.0, length)

    compiled = torch.compile(pure)
    peers = {"eager": eager, "torch.compile": lambda: compiled(x)}
    return Subjects(ours, lambda: y.copy_(x), peers, check, 2 * x.numel() * x.element_size())


def check_dropout(got: Tensor, total: Tensor, dtype: torch.dtype) -> None:
    """Check that each element is 0 or the sum times the kept scale, and that about the right fraction is 0."""
    kept = got != 0
    scale = 65536 / (65536 - round(P * 65536))
    want = total.double() * scale
    rows_agree("dropout", got[kept], want[kept], dtype, 8.0 + float(want.abs().max()))
    share, spread = 1 - float(kept.double().mean()), 8 * math.sqrt(P * (1 - P) / got.numel())
    if not abs(share - P) <= spread + 2.0**-16:
        raise AssertionError(f"dropout: expected a share of {P} dropped, got {share:.5f}")


def dropout(place: Place, dtype: torch.dtype, *, backward: bool = False) -> Subjects:
    shape = place.shape()
    encoding, x = sinpe.Encoding(shape[-1]), place.randn(*shape, dtype=dtype)
    y, pe = torch.empty_like(x), sinpe.table(shape[1], encoding, dtype=dtype, device=place.device)
    seed = torch.tensor(1, device=place.device)

    def eager(x: Tensor) -> Tensor:
        return functional.dropout(x + pe, P)

    def check() -> None:
        got = sinpe.add(x, encoding, dropout=P, seed=seed)
        check_dropout(got[-1], x[-1].double() + sinpe.table(shape[1], encoding, device=place.device), dtype)

    peers: dict[str, Callable[[], object]]
    compiled, moved = torch.compile(eager), 2 * x.numel() * x.element_size()
    if not backward:
        peers = {"eager": lambda: eager(x), "torch.compile": lambda: compiled(x)}
        return Subjects(
            lambda: sinpe.add(x, encoding, dropout=P, seed=seed, out=y), lambda: y.copy_(x), peers, check, moved
        )
    grad, given = torch.randn_like(x), x.detach().requires_grad_()

    def differentiated(run: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def both() -> object:
            with torch.enable_grad():
                return torch.autograd.grad(run(given), given, grad)

        return both

    def floor() -> None:
        y.copy_(x)
        y.copy_(grad)

    ours = differentiated(lambda x: sinpe.add(x, encoding, dropout=P, seed=seed))
    peers = {"eager": differentiated(eager), "torch.compile": differentiated(compiled)}
    return Subjects(ours, floor, peers, check, 2 * moved)


def embed(place: Place, dtype: torch.dtype, *, drop: float = 0.0, of_text: bool = False) -> Subjects:
    batch, length, dim = place.shape()
    encoding, scale = sinpe.Encoding(dim), math.sqrt(dim)
    weight = place.randn(VOCABULARY, dim, dtype=dtype) / scale
    ids = place.ids(of_text=of_text)
    pe, seed = (
        sinpe.table(length, encoding, dtype=dtype, device=place.device),
        torch.tensor(1, device=place.device),
    )
    x, y = (torch.empty(batch, length, dim, device=place.device, dtype=dtype) for _ in range(2))

    def ours() -> Tensor:
        return sinpe.embed(ids, weight, encoding, scale=scale, dropout=drop, seed=seed if drop else None)

    def eager(ids: Tensor) -> Tensor:
        total = functional.embedding(ids, weight) * scale + pe
        return functional.dropout(total, drop) if drop else total

    def check() -> None:
        rows = sinpe.table(length, encoding, dtype=torch.float64, device=place.device)
        total = weight[ids[-1]].double() * scale + rows
        if drop:
            check_dropout(ours()[-1], total, dtype)
        else:
            rows_agree("embed", ours()[-1], total, dtype, 8.0)

    compiled = torch.compile(eager)
    peers = {"eager": lambda: eager(ids), "torch.compile": lambda: compiled(ids)}
    return Subjects(ours, lambda: y.copy_(x), peers, check, 2 * x.numel() * x.element_size())


def timesteps(place: Place, dtype: torch.dtype) -> Subjects:
    """One small kernel, bound by the launch."""
    count, dim = 8, 320
    encoding, t = sinpe.convention("ddpm", dim), torch.linspace(0.5, 999.5, count, device=place.device)
    one = torch.zeros(1, device=place.device)

    def ours() -> Tensor:
        return sinpe.encode(t, encoding, dtype=dtype)

    def check() -> None:
        exact = peer.exact_rows(t.cpu(), dim, shift=1.0, interleaved=False)
        peer.agree("timesteps", ours().cpu(), exact, 8 * ROUNDING[dtype] + 1e-12)

    others = {"diffusers": lambda: peer.diffusers_embedding(t, dim).to(dtype)}
    return Subjects(ours, lambda: one.fill_(1.0), others, check, count * dim * 4)


def decode(place: Place, dtype: torch.dtype) -> Subjects:
    ours = sinpe.SinusoidalPositionalEncoding(512, 0.1).eval()
    usual = peer.UsualModule(4096, 512).eval().to(place.device, dtype)
    x = place.randn(1, 1, 512, dtype=dtype)

    def check() -> None:
        want = x.double().cpu() + peer.exact_rows(torch.tensor([1234]), 512)
        rows_agree("decode", ours(x, start=1234), want, dtype, 8.0)

    return Subjects(lambda: ours(x, start=1234), lambda: usual(x, 1234), {}, check, 2 * x.numel() * x.element_size())


# fmt: off
# name, title, calls, floor, target of ours / floor (float32, 16 bits), targets of the peers
ROWS = (
    *(cuda_row(f"cuda_{name}_{s}", f"CUDA: torch's {name} {s}", partial(roofline, dtype=dtype, copy=name == "copy"),
               "itself")
      for dtype, s in ((torch.float32, "f32"), (torch.bfloat16, "bf16")) for name in ("copy", "fill")),
    cuda_row("cuda_add_f64", "CUDA: add f64", partial(add, dtype=torch.float64), "y.copy_(x)", None,
             {"eager": None, "torch.compile": None}),
    *(row
    for dtype, s, narrow in ((torch.float32, "f32", 0), (torch.bfloat16, "bf16", 1), (torch.float16, "f16", 1))
    for row in (
        cuda_row(f"cuda_table_{s}", f"CUDA: table {s}", partial(table, dtype=dtype), "out.fill_(1)",
                 (1.05, 1.10)[narrow], {"naive float32 formula": None}),
        cuda_row(f"cuda_add_{s}", f"CUDA: add {s}", partial(add, dtype=dtype), "y.copy_(x)",
                 1.03, {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_positions_{s}", f"CUDA: add, positions {s}", partial(add, dtype=dtype, positions=True),
                 "y.copy_(x)", (1.05, 1.06)[narrow], {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_dropout_{s}", f"CUDA: add + dropout {s}", partial(dropout, dtype=dtype), "y.copy_(x)",
                 (1.06, 1.10)[narrow], {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_dropout_train_{s}", f"CUDA: add + dropout, backward {s}",
                 partial(dropout, dtype=dtype, backward=True), "two copies",
                 (1.06, 1.10)[narrow], {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_embed_{s}", f"CUDA: embed {s}", partial(embed, dtype=dtype), "y.copy_(x)",
                 1.03, {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_embed_text_{s}", f"CUDA: embed, ids of a text {s}", partial(embed, dtype=dtype, of_text=True),
                 "y.copy_(x)", (0.78, 0.80)[narrow], {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_embed_dropout_{s}", f"CUDA: embed + dropout {s}", partial(embed, dtype=dtype, drop=P),
                 "y.copy_(x)", None, {"eager": None, "torch.compile": 1.0}),
        cuda_row(f"cuda_timesteps_{s}", f"CUDA: encode 8 timesteps {s}", partial(timesteps, dtype=dtype),
                 "fill_ of one", None, {"diffusers": None}),
        cuda_row(f"cuda_decode_{s}", f"CUDA: decode step {s}", partial(decode, dtype=dtype), "x + pe[i:i+1]", 1.1),
        cuda_row(f"cuda_add_inplace_{s}", f"CUDA: add_ {s}", partial(add_inplace, dtype=dtype), "y.mul_(1.0)",
                 None, {"eager": None}),
        cuda_row(f"cuda_encode_{s}", f"CUDA: encode 1M positions x 128 {s}", partial(encode, dtype=dtype),
                 "out.fill_(1)", (1.15, 1.20)[narrow], {"naive float32 formula": None}),
        *(cuda_row(f"cuda_encode_{dim}_{s}", f"CUDA: encode random positions x {dim} {s}",
                   partial(encode, dtype=dtype, dim=dim), "out.fill_(1)", None, {"naive float32 formula": 1.0})
          for dim in (2, 8, 32)),
    )),
)
# fmt: on
