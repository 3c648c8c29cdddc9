"""The rows of the benchmark: the timed call, its floor, its peers and its target.

`ROWS` at the end is the complete list, with targets. A builder returns the calls of one row; its `check` runs before
any timing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

from . import peers as peer

Call = Callable[[], object]

CHECK_ROWS = 97  # rows compared with float64 before timing, spread over the whole length
# Rounding once to the output type costs at most half a unit in the last place of a value below 1.
ROUNDING = {torch.float32: 2.0**-25, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float64: 2.0**-54}


@dataclass
class Subjects:
    """The calls of one row; `moved`: bytes that the floor and ours at least read and write, 0 if not reported."""

    ours: Call
    floor: Call | None = None
    peers: Mapping[str, Call] = field(default_factory=dict)
    check: Call = lambda: None
    moved: int = 0


@dataclass(frozen=True)
class Row:
    """One line of the report: ours / floor at most `target`, peer / ours at least its target (None: no target)."""

    name: str
    title: str
    build: Callable[..., Subjects]
    floor: str = ""
    target: float | None = None
    peers: dict[str, float | None] = field(default_factory=dict)
    threads: int | None = None
    grad: bool = False
    backend: str = "auto"
    slow: bool = False  # left out of a quick run
    device: str = "cpu"
    host: bool = False  # the host's time for a call, also on a device


def tolerance(dtype: torch.dtype, farthest: float) -> float:
    """Half a unit in the last place, plus the error of the float64 reference, which grows with the position."""
    return ROUNDING[dtype] * 1.0001 + abs(farthest) * 2.0**-51


def token_ids(vocabulary: int, shape: tuple[int, ...], *, of_text: bool) -> Tensor:
    """Uniformly random tokens, or tokens distributed as in a text: the most frequent word is 6 % of all, and the n-th
    about 1/n of that (Zipf's law)."""
    generator = torch.Generator().manual_seed(0)
    if not of_text:
        return torch.randint(vocabulary, shape, generator=generator)
    weights = 1 / (torch.arange(vocabulary) + 1.7)
    return torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator).view(shape)


def table(length: int, dim: int, dtype: torch.dtype = torch.float32, *, reused: bool = True) -> Subjects:
    """The paper's table, against the naive float32 formula with precomputed ranges."""
    encoding = sinpe.Encoding(dim)
    out = torch.empty(length, dim, dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    position, index = peer.usual_parts(length, dim, wide)

    def ours() -> Tensor:
        if reused:
            return sinpe.table(length, encoding, dtype=dtype, out=out)
        return sinpe.table(length, encoding, dtype=dtype)

    def check() -> None:
        rows = torch.linspace(0, length - 1, CHECK_ROWS).long()
        peer.agree("table", ours()[rows], peer.exact_rows(rows, dim), tolerance(dtype, length))

    def usual() -> Tensor:
        return peer.usual_table(position, index).to(dtype)

    return Subjects(
        ours=ours,
        floor=(lambda: out.fill_(1)) if reused else (lambda: torch.full((length, dim), 1.0, dtype=dtype)),
        peers={"naive float32 formula": usual},
        check=check,
    )


def builder(convention: str, name: str, build: Callable[[int, int], Tensor], length: int, dim: int) -> Subjects:
    """Our table under a library's convention, written into an existing table, against the library's builder."""
    encoding = sinpe.convention(convention, dim, start=0)
    out = torch.empty(length, dim)
    shift = 0.0 if convention == "paper_concat" else 1.0

    def check() -> None:
        rows = torch.arange(CHECK_ROWS)
        exact = peer.exact_rows(rows, dim, shift=shift, interleaved=False)
        peer.agree(convention, sinpe.table(CHECK_ROWS, encoding), exact, tolerance(torch.float32, CHECK_ROWS))
        # the peer's own float32 error at these positions stays below 1e-4: this checks that it is the same convention
        peer.agree(name, build(CHECK_ROWS, dim), exact, 1e-4)

    return Subjects(
        ours=lambda: sinpe.table(length, encoding, out=out),
        floor=lambda: out.fill_(1),
        peers={name: lambda: build(length, dim)},
        check=check,
    )


def diffusers_table(length: int, dim: int) -> Tensor:
    return peer.diffusers_embedding(torch.arange(length), dim)


def other_layout(encoding: sinpe.Encoding, length: int) -> Subjects:
    """A table of another encoding than the paper's; compared with eager PyTorch, whose bits are the same."""
    out = torch.empty(length, encoding.dim)

    def check() -> None:
        with sinpe.use_backend("eager"):
            expected = sinpe.table(length, encoding)
        if not torch.equal(sinpe.table(length, encoding, out=out), expected):
            raise AssertionError(f"table of {encoding}: expected the bits of eager PyTorch")

    return Subjects(lambda: sinpe.table(length, encoding, out=out), lambda: out.fill_(1), check=check)


def add(shape: tuple[int, int, int], variant: str) -> Subjects:
    """x + PE: "fresh", "out" or "inplace", against the same sum with a stored table."""
    dim = shape[-1]
    encoding = sinpe.Encoding(dim)
    x = torch.randn(shape)
    y = torch.empty_like(x)
    pe = sinpe.table(shape[1], encoding)

    def check() -> None:
        rows = torch.linspace(0, shape[1] - 1, CHECK_ROWS).long()
        exact = peer.exact_rows(rows, dim)
        got = sinpe.add_(x.clone(), encoding) if variant == "inplace" else sinpe.add(x, encoding)
        # |x| < 8, so the last rounding costs at most half a unit in the last place of 8
        peer.agree("add", got[:, rows], x[:, rows].double() + exact, 2.0**-22 + tolerance(torch.float32, shape[1]))
        if variant == "out" and not torch.equal(sinpe.add(x, encoding, out=y), got):
            raise AssertionError("add: expected the same values with out= and without")

    if variant == "inplace":
        return Subjects(lambda: sinpe.add_(x, encoding), lambda: x.mul_(1.0), {"x.add_(pe)": lambda: x.add_(pe)}, check)
    if variant == "out":
        eager: Call = lambda: torch.add(x, pe, out=y)  # noqa: E731
        return Subjects(lambda: sinpe.add(x, encoding, out=y), lambda: y.copy_(x), {"out=y": eager}, check)
    return Subjects(lambda: sinpe.add(x, encoding), lambda: x.clone(), {"x + pe": lambda: x + pe}, check)


def add_positions(batch: int, length: int, dim: int) -> Subjects:
    """x + PE where each element of the batch has its own random positions, against rows of a stored table."""
    encoding = sinpe.Encoding(dim)
    x = torch.randn(batch, length, dim)
    y, pe = torch.empty_like(x), sinpe.table(16384, encoding)
    positions = torch.randint(0, len(pe), (batch, length), generator=torch.Generator().manual_seed(0))

    def ours() -> Tensor:
        return sinpe.add(x, encoding, positions=positions, out=y)

    def check() -> None:
        exact = peer.exact_rows(positions[0, :CHECK_ROWS], dim)
        bound = 2.0**-22 + tolerance(torch.float32, len(pe))
        peer.agree("add", ours()[0, :CHECK_ROWS], x[0, :CHECK_ROWS].double() + exact, bound)

    return Subjects(ours, lambda: y.copy_(x), {"x + pe[positions]": lambda: torch.add(x, pe[positions], out=y)}, check)


def encode(count: int, dim: int, dtype: torch.dtype = torch.float32) -> Subjects:
    """Random 31-bit positions, against the float64 formula, converted (in float32 its results would be noise)."""
    encoding = sinpe.Encoding(dim)
    positions = torch.randint(0, 2**31 - 1, (count,), generator=torch.Generator().manual_seed(0))

    def check() -> None:
        some = positions[:CHECK_ROWS]
        peer.agree(
            "encode", sinpe.encode(some, encoding, dtype=dtype), peer.exact_rows(some, dim), tolerance(dtype, 2.0**31)
        )

    return Subjects(
        ours=lambda: sinpe.encode(positions, encoding, dtype=dtype),
        floor=lambda: torch.full((count, dim), 1.0, dtype=dtype),
        peers={"float64 formula": lambda: peer.usual_table(positions.double().unsqueeze(1), index64(dim)).to(dtype)},
        check=check,
    )


def index64(dim: int) -> Tensor:
    return torch.arange(0, dim, 2, dtype=torch.float64)


def decode_layer(dim: int, *, grad: bool) -> Subjects:
    """One decode step, x of shape (1, 1, dim), with the layers."""
    ours = sinpe.SinusoidalPositionalEncoding(dim, 0.1).eval()
    usual = peer.UsualModule(4096, dim).eval()
    x = torch.randn(1, 1, dim, requires_grad=grad)
    return Subjects(
        lambda: ours(x, start=1234), lambda: usual(x, 1234), check=lambda: step_agrees(x, ours(x, start=1234))
    )


def decode(dim: int, kind: str) -> Subjects:
    """The same with the function: "fresh", into existing memory ("out"), or "inplace".

    "fresh" has two parts of its time as peers: `torch.empty_like`, and a step of two channels, which has nearly no
    arithmetic.
    """
    x, pe = torch.randn(1, 1, dim), sinpe.table(4096, dim)
    encoding, y = sinpe.Encoding(dim), torch.empty(1, 1, dim)
    if kind == "inplace":  # add zeros, so that x does not change
        nothing, none = sinpe.Encoding(dim, amplitude=0.0), torch.zeros_like(pe)
        return Subjects(
            lambda: sinpe.add_(x, nothing, start=1234),
            lambda: x.add_(none[1234:1235]),
            check=lambda: step_agrees(x, sinpe.add_(x.clone(), encoding, start=1234)),
        )
    out = y if kind == "out" else None

    def ours() -> torch.Tensor:
        return sinpe.add(x, encoding, start=1234, out=out)

    floor = (lambda: torch.add(x, pe[1234:1235], out=y)) if kind == "out" else (lambda: x + pe[1234:1235])
    two, narrow = torch.randn(1, 1, 2), sinpe.Encoding(2)
    parts: dict[str, Call] = {
        "empty_like": lambda: torch.empty_like(x),
        "two channels": lambda: sinpe.add(two, narrow, start=1234),
    }
    return Subjects(ours, floor, {} if kind == "out" else parts, check=lambda: step_agrees(x, ours()))


def step_agrees(x: torch.Tensor, got: torch.Tensor) -> None:
    exact = x.detach().double() + peer.exact_rows(torch.tensor([1234]), x.shape[-1])
    peer.agree("decode", got.detach(), exact, 2.0**-22 + tolerance(torch.float32, 1234))


def timesteps(count: int, dim: int) -> Subjects:
    """A diffusion model's float timesteps, against diffusers' formula."""
    encoding = sinpe.convention("ddpm", dim)
    t = torch.linspace(0.5, 999.5, count)

    def check() -> None:
        exact = peer.exact_rows(t, dim, shift=1.0, interleaved=False)
        peer.agree("timesteps", sinpe.encode(t, encoding), exact, tolerance(torch.float32, 1000))

    return Subjects(
        ours=lambda: sinpe.encode(t, encoding),
        floor=lambda: torch.empty(count, dim).fill_(1.0),
        peers={"diffusers": lambda: peer.diffusers_embedding(t, dim)},
        check=check,
    )


def eager_reference(length: int, dim: int) -> Subjects:
    """The eager fallback, against the naive float32 formula; both with a fresh output."""
    subjects = table(length, dim, reused=False)
    return Subjects(ours=subjects.ours, floor=subjects.peers["naive float32 formula"], check=subjects.check)


def compiled_chain(batch: int, length: int, dim: int, vocabulary: int = 32000) -> Subjects:
    """torch.compile of embedding -> scale, PE -> LayerNorm, against the same with a stored table."""
    encoding = sinpe.Encoding(dim)
    scale = math.sqrt(dim)
    weight = torch.randn(vocabulary, dim) / scale
    ids = torch.randint(0, vocabulary, (batch, length))
    norm = nn.LayerNorm(dim)
    pe = sinpe.table(length, encoding)

    def ours(ids: Tensor) -> Tensor:
        return norm(sinpe.add(functional.embedding(ids, weight), encoding, scale=scale))

    def ready(ids: Tensor) -> Tensor:
        return norm(functional.embedding(ids, weight) * scale + pe)

    ours_compiled, ready_compiled = torch.compile(ours), torch.compile(ready)

    def check() -> None:
        # LayerNorm of unit-variance rows in float32: both sum in different orders
        peer.agree("torch.compile", ours_compiled(ids), ready_compiled(ids), 1e-4)

    return Subjects(
        lambda: ours_compiled(ids), lambda: ready_compiled(ids), {"not compiled": lambda: ready(ids)}, check
    )


WIDE, ALONE = (32, 512, 1024), (1, 16384, 1024)
FILL, FULL, USUAL = "out.fill_(1)", "torch.full", "naive float32 formula"

# fmt: off
ROWS: tuple[Row, ...] = (
    # name, title, calls, floor, target, peers with their targets
    Row("table", "table 4096x1024, reused", lambda: table(4096, 1024), FILL, 1.45, {USUAL: 9.0}),
    Row("fairseq", "table 4096x1024 t2t", lambda: builder("t2t", "fairseq", peer.fairseq_table, 4096, 1024),
        FILL, None, {"fairseq": 10.0}),
    Row("diffusers", "table 4096x1024 ddpm", lambda: builder("ddpm", "diffusers", diffusers_table, 4096, 1024),
        FILL, None, {"diffusers": 10.0}),
    Row("transformers", "table 4096x1024 paper_concat",
        lambda: builder("paper_concat", "transformers", peer.transformers_table, 4096, 1024),
        FILL, None, {"transformers": 10.0}, slow=True),
    Row("table_long", "table 131072x512, reused", lambda: table(131072, 512), FILL, 1.2, {USUAL: None}),
    Row("table_fresh", "table 131072x512, fresh", lambda: table(131072, 512, reused=False), FULL, 1.2, {USUAL: 4.0}),
    Row("table_bf16", "table 4096x1024 bf16", lambda: table(4096, 1024, torch.bfloat16), FILL, 2.5, {USUAL: 12.0}),
    Row("table_f16", "table 4096x1024 f16", lambda: table(4096, 1024, torch.float16), FILL, 3.5, {USUAL: 12.0}),
    Row("table_f64", "table 4096x1024 f64", lambda: table(4096, 1024, torch.float64), FILL, 3.5, {USUAL: 3.0}),
    Row("table_odd", "table 4096x1023", lambda: other_layout(sinpe.Encoding(1023), 4096), FILL),
    Row("table_own", "table 4096x1024 own_index",
        lambda: other_layout(sinpe.convention("own_index", 1024, start=0), 4096), FILL),
    Row("add", "add (32,512,1024), fresh", lambda: add(WIDE, "fresh"), "x.clone()", 1.10, {"x + pe": 1.0}),
    Row("add_out", "add (32,512,1024), out=", lambda: add(WIDE, "out"), "y.copy_(x)", 1.05, {"out=y": 1.0}),
    Row("add_inplace", "add_ (32,512,1024)", lambda: add(WIDE, "inplace"), "x.mul_(1.0)", 1.10, {"x.add_(pe)": 1.0}),
    Row("add_one", "add (1,16384,1024), fresh", lambda: add(ALONE, "fresh"), "x.clone()", 1.2, {"x + pe": 1.0}),
    Row("add_one_out", "add (1,16384,1024), out=", lambda: add(ALONE, "out"), "y.copy_(x)", 1.35, {"out=y": 1.0}),
    Row("add_one_inplace", "add_ (1,16384,1024)", lambda: add(ALONE, "inplace"), "x.mul_(1.0)", None,
        {"x.add_(pe)": None}),
    Row("add_few", "add (8,2048,1024), fresh", lambda: add((8, 2048, 1024), "fresh"), "x.clone()", None,
        {"x + pe": 1.0}),
    Row("add_positions", "add (32,512,1024), random positions, out=", lambda: add_positions(*WIDE), "y.copy_(x)", None,
        {"x + pe[positions]": None}),
    Row("encode", "encode 1M random int64 x 128", lambda: encode(1_000_000, 128), FULL, 1.5, {"float64 formula": 5.0}),
    # No page faults: malloc keeps up to 32 MiB for the next call. The float64 result is larger.
    Row("encode_kept", "encode 50k random int64 x 128, kept memory", lambda: encode(50_000, 128), FULL, 2.4,
        {"float64 formula": 5.0}),
    Row("encode_bf16", "encode 50k random int64 x 128, bfloat16", lambda: encode(50_000, 128, torch.bfloat16), FULL),
    Row("encode_f64", "encode 50k random int64 x 128, float64, fresh", lambda: encode(50_000, 128, torch.float64),
        FULL),
    Row("decode", "decode step (1,1,512)", lambda: decode(512, "fresh"), "x + pe[i:i+1]", 1.1,
        {"empty_like": None, "two channels": None}, threads=1),
    Row("decode_out", "decode step, out=", lambda: decode(512, "out"), "out=y", threads=1),
    Row("decode_inplace", "decode step, add_", lambda: decode(512, "inplace"), "x.add_(pe[i:i+1])", threads=1),
    Row("decode_layer", "decode step, layer", lambda: decode_layer(512, grad=False), "a module", 1.25, threads=1),
    Row("decode_grad", "decode step, layer, gradients", lambda: decode_layer(512, grad=True), "a module", threads=1,
        grad=True),
    Row("timesteps", "encode 8 timesteps x 320", lambda: timesteps(8, 320), "empty, fill_", 2.5, {"diffusers": 4.0}),
    Row("eager", "eager reference, table 4096x1024", lambda: eager_reference(4096, 1024), USUAL, 1.5, backend="eager"),
    Row("compile", "compiled embed, PE, LayerNorm", lambda: compiled_chain(*WIDE), "ready table", 1.05,
        {"not compiled": None}, slow=True),
)
# fmt: on
