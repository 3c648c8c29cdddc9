"""torch.compile and torch.export: one graph with the same results, for any batch, length and start."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer
from sinpe_ext.backend import loader
from sinpe_ext.encodings import tracing

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit.script"), pytest.mark.usefixtures("reset_dynamo")]

B, S, D = 2, 5, 8
T2T = sinpe.convention("t2t", D, start=4)
FLOAT32 = sinpe.Encoding(D, angle="float32_exp", start=3)
MASK = torch.tensor([[True, True, False, False, False], [False, False, True, False, True]])
WHOLE = torch.arange(B * S).reshape(B, S) * 3
REAL = torch.rand(S, dtype=torch.float64) * 100
ALPHA = torch.tensor([0.7])
IDS = torch.tensor([[0, 4, 1, 1, 2], [3, 3, 0, 1, 4]])
SEED = torch.tensor(2**40 + 3)

# float32 sums in another order
GRADIENT = {"rtol": 1e-5, "atol": 1e-5}
# Inductor's float32 sine differs from torch's by one ULP
FLOAT32_ANGLES = {"rtol": 0.0, "atol": 2.0**-22}


needs_inductor = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))),
    reason="Inductor needs a C++ compiler",
)
needs_aoti_dtypes = pytest.mark.skipif(
    not (Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated_enum_converters.h").exists(),
    reason="AOTInductor of this torch decodes dtype arguments wrongly (pytorch#169157)",
)
EVERY_BACKEND = ["aot_eager", pytest.param("inductor", marks=needs_inductor)]


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or (B, S, D), generator=torch.Generator().manual_seed(5)).to(dtype)


CALLS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "fused sum": lambda x, s: sinpe.add(x * 2, start=3) * 2,
    "start": lambda x, s: sinpe.add(x * 2, start=s) * 2,
    "encoding": lambda x, s: sinpe.add(x, T2T, start=s),
    "name": lambda x, s: sinpe.add(x, "fairseq", start=s),
    "int": lambda x, s: sinpe.add(x, D, start=s),
    "factors": lambda x, s: sinpe.add(x, scale=0.3, alpha=0.7, padding_mask=MASK),
    "alpha": lambda x, s: sinpe.add(x, scale=0.3, alpha=ALPHA),
    "positions": lambda x, s: sinpe.add(x, T2T, positions=WHOLE),
    "real positions": lambda x, s: sinpe.add(x, T2T, positions=REAL, padding_mask=MASK),
    "starts": lambda x, s: sinpe.add(x, T2T, start=torch.tensor([3, 7])),
    "narrow start": lambda x, s: sinpe.add(x, T2T, start=torch.tensor(250, dtype=torch.uint8)),
    "sequence first": lambda x, s: sinpe.add(x.transpose(0, 1), T2T, seq_dim=0),
    "channels first": lambda x, s: sinpe.add(x.transpose(1, 2), T2T, seq_dim=2, channel_dim=1),
    "in place": lambda x, s: sinpe.add_(x * 1, T2T, start=s),
    "out": lambda x, s: sinpe.add(x, T2T, out=torch.empty_like(x)),
    "table": lambda x, s: sinpe.table(x.shape[1], T2T, start=s) + x,
    "table bf16": lambda x, s: sinpe.table(x.shape[1], D, start=s, dtype=torch.bfloat16),
    "table out": lambda x, s: sinpe.table(S, T2T, start=s, out=torch.empty(S, D)),
    "encode": lambda x, s: sinpe.encode(WHOLE, T2T) + x,
    "encode real": lambda x, s: sinpe.encode(REAL, T2T, dtype=torch.float64) + x,
    "layer": lambda x, s: LAYER(x, start=s),
    "layer with options": lambda x, s: OPTIONS(x, positions=WHOLE + 4, padding_mask=MASK),
    "dropout": lambda x, s: sinpe.add(x * 2, T2T, start=s, dropout=0.3, seed=s) * 2,
    "dropout drawn": lambda x, s: seeded(lambda: sinpe.add(x, start=s, dropout=0.3) + sinpe.add(x, dropout=0.5)),
    "dropout, all": lambda x, s: sinpe.add(x, alpha=ALPHA, positions=REAL, padding_mask=MASK, dropout=0.3, seed=SEED),
    "dropout, float32 angle": lambda x, s: sinpe.add(x.new_zeros(x.shape), FLOAT32, alpha=0.0, dropout=0.3, seed=9),
    "dropout, channels first": lambda x, s: sinpe.add(
        x.transpose(1, 2), T2T, seq_dim=2, channel_dim=1, dropout=0.3, seed=9
    ),
    "dropout in place": lambda x, s: sinpe.add_(x * 1, T2T, start=s, dropout=0.3, seed=SEED),
    "dropout of all": lambda x, s: sinpe.add(x, T2T, dropout=1.0),
    "embed": lambda x, s: sinpe.embed(IDS, x[0], T2T, start=s, scale=3.0) * 2,
    "embed, dropout": lambda x, s: sinpe.embed(IDS, x[0], alpha=0.5, padding_mask=MASK, dropout=0.3, seed=SEED),
    "embed, padding": lambda x, s: sinpe.embed(IDS, x[0], T2T, padding_idx=1, encode_padding=False),
    "layer with dropout": lambda x, s: seeded(lambda: DROPPING(x, start=s)),
    "embedding layer": lambda x, s: EMBEDDING(IDS).to(x.dtype) + x,
    "embedding layer in training": lambda x, s: seeded(lambda: EMBEDDING_TRAINED(IDS).to(x.dtype) + x),
    "layer in training": lambda x, s: TRAINED(x.transpose(0, 1), start=torch.tensor([1, 2])),
}  # fmt: skip
LAYER = Layer(D, 0.1, 5000).eval()
DROPPING = Layer(D, 0.4, encoding=T2T, scale=2.0)
EMBEDDING = sinpe.SinusoidalEmbedding(S, D, dropout=0.1, encoding=T2T, max_len=100).eval()
EMBEDDING_TRAINED = sinpe.SinusoidalEmbedding(S, D, 1, dropout=0.1, learned_alpha=True)
OPTIONS = Layer(D, 0.1, 5000, encoding=T2T, scale=3.0, alpha=0.5).eval()
TRAINED = Layer(D, 0.0, encoding=T2T, batch_first=False, learned_alpha=True)


def same(got: Tensor, want: Tensor) -> bool:
    """Equal bits; float64 within one ULP if a graph uses another test's kernels and `want` comes from eager PyTorch."""
    if got.dtype == torch.float64 and loader.setting() == "eager":
        return torch.allclose(got, want, rtol=0, atol=2.0**-49)
    return torch.equal(got, want)


def seeded(call: Callable[[], Tensor]) -> Tensor:
    """Marks a call that draws from torch's generator; the tests set its seed before each call."""
    return call()


@pytest.mark.sampled("values")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_full_graph_equals_eager(name: str, dtype: torch.dtype) -> None:
    call, given = CALLS[name], x(dtype=dtype)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.manual_seed(7)
    got = compiled(given, 3)
    torch.manual_seed(7)
    want = call(given, 3)
    assert same(got, want) and got.dtype == want.dtype and got.stride() == want.stride()


INDUCED = [
    "fused sum", "factors", "real positions", "sequence first", "layer with options", "dropout", "dropout drawn",
    "dropout, all", "embed, dropout", "embedding layer", "embedding layer in training", "layer with dropout",
]  # fmt: skip


@needs_inductor
@pytest.mark.parametrize("name", INDUCED)
def test_inductor_equals_eager(name: str) -> None:
    call = CALLS[name]
    compiled = torch.compile(call, fullgraph=True)
    torch.manual_seed(7)
    got = compiled(x(), 3)
    torch.manual_seed(7)
    assert torch.equal(got, call(x(), 3))
    if name in ("dropout drawn", "layer with dropout"):  # a second run draws a new seed
        assert not torch.equal(compiled(x(), 3), got)


@needs_inductor
def test_inductor_fuses_the_sum_in_bfloat16() -> None:
    """Rounded once, as by add alone; Inductor decides about the roundings of neighbouring operations."""
    given = x(dtype=torch.bfloat16)
    got = torch.compile(lambda t: sinpe.add(t, T2T, scale=0.3), fullgraph=True)(given)
    assert torch.equal(got, sinpe.add(given, T2T, scale=0.3))


@pytest.mark.parametrize("backend_name", EVERY_BACKEND)
def test_float32_angles(backend_name: str) -> None:
    got = torch.compile(lambda t: sinpe.add(t, FLOAT32), fullgraph=True, backend=backend_name)(x())
    assert torch.allclose(got, sinpe.add(x(), FLOAT32), **FLOAT32_ANGLES)


SIZES = [(2, 5, 0), (3, 7, 2), (4, 9, 11), (5, 12, -3), (6, 2, 9), (2, 30, 10**6)]
GRAPHS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": lambda x, s: sinpe.add(x, start=s),
    "add name": lambda x, s: sinpe.add(x * 2, "t2t", start=s, scale=3.0),
    "add starts": lambda x, s: sinpe.add(x, T2T, start=torch.full((x.shape[0],), 3)),
    "table": lambda x, s: sinpe.table(x.shape[1], T2T, start=s) + x,
    "dropout": lambda x, s: sinpe.add(x, start=s, dropout=0.3, seed=s),
    "embed": lambda x, s: sinpe.embed((x[..., 0] > 0).long(), WEIGHT, start=s, dropout=0.3, seed=4),
    "layer": lambda x, s: FREE(x, start=s),
    "sequence first": lambda x, s: TRAINED(x, start=s),
}
FREE = Layer(D).eval()
WEIGHT = torch.randn(2, D, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.bad_input(25, "compiled")
@pytest.mark.parametrize("name", GRAPHS)
def test_second_graph_serves_all_sizes_and_starts(name: str) -> None:
    """The first graph has constant sizes; the second, compiled when they change, has symbolic ones."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(GRAPHS[name], fullgraph=True, backend=counter)
    for batch, length, start in SIZES:
        given = x(batch, length, D)
        assert torch.equal(compiled(given, start), GRAPHS[name](given, start))
    assert counter.frame_count == 2


def test_decoding_compiles_two_graphs() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(LAYER, fullgraph=True, backend=counter)
    token = x(1, 1, D)
    for start in range(0, 60, 3):
        assert torch.equal(compiled(token, start=start), LAYER(token, start=start))
    assert counter.frame_count == 2


def test_each_width_and_encoding_compiles_its_own_graph() -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda t, e: sinpe.add(t, e), fullgraph=True, backend=counter)
    for width in (4, 6, 8, 6, 4):
        assert torch.equal(compiled(x(S, width), None), sinpe.add(x(S, width)))
    for encoding in (T2T, FLOAT32, "t2t", D, T2T, FLOAT32):
        assert torch.equal(compiled(x(), encoding), sinpe.add(x(), encoding))
    assert counter.frame_count <= 3 + 4
    table = torch.compile(lambda n, d: sinpe.table(n, d), fullgraph=True, backend="eager")
    for length, dim in ((3, 4), (4, 6), (4, 9)):
        assert torch.equal(table(length, dim), sinpe.table(length, dim))


def test_limits_are_checked_in_a_graph() -> None:
    limited = Layer(D, 0.0, 10).eval()
    compiled = torch.compile(limited, backend="aot_eager")
    assert torch.equal(compiled(x(), start=5), limited(x(), start=5))
    with pytest.raises(IndexError, match="start: expected rows at positions 0 to 9"):
        compiled(x(), start=6)
    torch._dynamo.reset()  # torch does not compile a function again that has raised
    with pytest.raises(RuntimeError, match="positions: expected 0 to 9"):
        compiled(x(), positions=WHOLE)
    with pytest.raises((RuntimeError, ValueError), match="int64"):  # from the kernel and from eager PyTorch
        torch.compile(lambda s: sinpe.table(S, D, start=s), fullgraph=True, backend="aot_eager")(2**63 - 2)


def test_errors_in_a_graph() -> None:
    """Without fullgraph the call runs outside the graph and raises the usual message."""
    for call, error, message in (
        (lambda t: sinpe.add(t, 6), ValueError, "x: expected 6 channels"),
        (lambda t: sinpe.add(t, positions=MASK), TypeError, "positions: .* got torch.bool"),
        (lambda t: sinpe.add(t, start=1.5), TypeError, "start: expected int, got float"),
        (lambda t: sinpe.add(t, seq_dim=5), IndexError, "seq_dim: expected -3 to 2"),
    ):
        with pytest.raises(error, match=message):
            torch.compile(call, backend="eager")(x())


@pytest.mark.bad_input(25, "compiled", "layer")
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    length = torch.export.Dim("length")
    program = torch.export.export(FREE, (x(),), dynamic_shapes=({1: length},), strict=strict)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    for exported in (program, torch.export.load(saved)):
        for given in (x(), x(B, 11, D), x(B, 300, D)):
            assert torch.equal(exported.module()(given), FREE(given))


def test_torch_func_in_a_graph() -> None:
    batch, positions = x(3, B, S, D), torch.rand(3, S)

    def call(given: Tensor, at: Tensor) -> Tensor:
        return torch.func.vmap(lambda t, p: sinpe.add(t, T2T, positions=p))(given, at)

    assert torch.equal(
        torch.compile(call, fullgraph=True, backend="aot_eager")(batch, positions), call(batch, positions)
    )


def test_constant_in_graph_equals_assume_constant_result() -> None:
    """`constant_in_graph` sets the same attribute as torch.compiler.assume_constant_result."""

    def marked() -> None: ...

    torch.compiler.assume_constant_result(marked)
    assert vars(marked) == vars(tracing.constant_in_graph(lambda: None))


def test_kernels_are_loaded_before_the_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    compiled = loader.compiled
    monkeypatch.setattr(loader, "compiled", lambda device: asked.append(device) or compiled(device))
    torch.compile(lambda t: sinpe.add(t, T2T), fullgraph=True, backend="eager")(x())
    assert asked == ["cpu"]
