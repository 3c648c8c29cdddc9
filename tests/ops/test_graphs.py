"""Graphs of all public calls: no graph break, no recompilation after the second size, eager results."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from children import library_environment, run
from test_compile import EVERY_BACKEND, needs_aoti_dtypes, needs_inductor
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import sinpe_ext as sinpe
from sinpe_ext.integrations import standard_operators

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit.script"), pytest.mark.usefixtures("reset_dynamo")]

D, P = 8, 0.3
T2T = sinpe.convention("t2t", D, start=4)
GRID = sinpe.convention("mae2d", 32)

# Inductor's sine, and a contracted sum: one ULP of the largest value, 16
SINES: dict[str, float] = {"rtol": 0.0, "atol": 2.0**-19}


def make_module(make: Callable[..., nn.Module], *arguments: Any, training: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(2)
    return make(*arguments, **options).train(training)


LAYER = make_module(sinpe.SinusoidalPositionalEncoding, D, 0.1, 5000, scale=3.0)
LEARNED = make_module(sinpe.SinusoidalPositionalEncoding, D, P, learned_alpha=True, batch_first=False, training=True)
DROPPING = make_module(sinpe.SinusoidalPositionalEncoding, D, P, training=True)
EMBEDDING = make_module(sinpe.SinusoidalEmbedding, 30, D, 0, scale=2.0, encode_padding=False)
EMBEDDING_TRAINED = make_module(sinpe.SinusoidalEmbedding, 30, D, dropout=P, learned_alpha=True, training=True)
TIMESTEPS = make_module(sinpe.TimestepEncoding, D)
PATCHES = make_module(sinpe.SinusoidalPositionalEncoding, 32, 0.1, encoding=GRID)
WEIGHT = torch.randn(30, D, generator=torch.Generator().manual_seed(1))


class Inputs:
    """Arguments of one call, for sizes that differ from call to call."""

    def __init__(self, batch: int, length: int, start: int) -> None:
        generator = torch.Generator().manual_seed(batch + length)
        self.x = torch.randn(batch, length, D, generator=generator)
        self.ids = torch.randint(30, (batch, length), generator=generator)
        self.real = torch.rand(batch, length, generator=generator) * 1000
        self.picture = torch.randn(batch, length, length + 3, 32, generator=generator)
        self.start = start
        self.tensor = torch.tensor(start)
        self.starts = torch.arange(batch) * 7 + start
        self.seed = torch.tensor(start * 2**33 + 5)


Case = tuple[Callable[..., Tensor], str]  # a call, and the names of the arguments it takes
CALLS: dict[str, Case] = {
    "layer": (lambda x: LAYER(x), "x"),
    "layer, start": (lambda x, s: LAYER(x, start=s), "x start"),
    "layer, start tensor": (lambda x, s: LEARNED(x, start=s, seed=3), "x tensor"),
    "embedding": (lambda ids: EMBEDDING(ids), "ids"),
    "embedding, start": (lambda ids, s: EMBEDDING(ids, start=s), "ids start"),
    "embedding, start per sample": (lambda ids, s: EMBEDDING(ids, start=s), "ids starts"),
    "add": (lambda x, s: sinpe.add(x * 2, T2T, start=s) * 3, "x start"),
    "add, start tensor": (lambda x, s: sinpe.add(x, start=s, scale=0.3, alpha=0.7), "x tensor"),
    "add, start per sample": (lambda x, s: sinpe.add(x, start=s), "x starts"),
    "add, positions": (lambda x, p: sinpe.add(x, "fairseq", positions=p), "x ids"),
    "add_": (lambda x, s: sinpe.add_(x * 1, start=s), "x start"),
    "embed": (lambda ids, s: sinpe.embed(ids, WEIGHT, T2T, start=s, scale=2.0), "ids start"),
    "table": (lambda x, s: sinpe.table(x.shape[1], D, start=s) + x, "x start"),
    "encode": (lambda ids: sinpe.encode(ids * 1000003, T2T), "ids"),
    "encode, real": (lambda p: sinpe.encode(p, D) * 2, "real"),
    "timesteps": (lambda p: TIMESTEPS(p), "real"),
    "grid": (lambda x: sinpe.add(x, GRID), "picture"),
    "grid, layer": (lambda x: PATCHES(x), "picture"),
}
DROPOUT: dict[str, Case] = {
    "add, seed": (lambda x, s, seed: sinpe.add(x + 1, start=s, dropout=P, seed=seed), "x start seed"),
    "add, int seed": (lambda x, s: sinpe.add(x, start=3, dropout=P, seed=s), "x start"),
    "add, drawn": (lambda x, s: sinpe.add(x, start=s, dropout=P) + sinpe.add(x, dropout=P), "x starts"),
    "layer": (lambda x, s: DROPPING(x, start=s), "x start"),
    "layer, start tensor": (lambda x, s, seed: LEARNED(x, start=s, seed=seed), "x tensor seed"),
    "embed, seed": (lambda ids, seed: sinpe.embed(ids, WEIGHT, dropout=P, seed=seed), "ids seed"),
    "embedding": (lambda ids, s: EMBEDDING_TRAINED(ids, start=s), "ids start"),
    "grid": (lambda x, seed: sinpe.add(x, GRID, dropout=P, seed=seed), "picture seed"),
}
SIZES = [(2, 5, 3), (3, 7, 2), (4, 9, 11), (5, 12, 30), (6, 2, 9), (2, 30, 100)]
INDUCED = ["layer, start tensor", "embedding, start", "encode, real"]
INDUCED_DROPOUT = ["layer", "embedding", "grid"]
EVERY = [(name, "aot_eager") for name in CALLS] + [(name, "inductor") for name in INDUCED]
EVERY_DROPOUT = [(name, "aot_eager") for name in DROPOUT] + [(name, "inductor") for name in INDUCED_DROPOUT]


def cases(pairs: list[tuple[str, str]]) -> list[Any]:
    return [pytest.param(*p, marks=needs_inductor if p[1] == "inductor" else ()) for p in pairs]


def compare(case: Case, compiler: str, dynamic: bool | None = None) -> int:
    """Runs each size in both modes; a recompilation after the second size raises. Returns the number of graphs."""
    call, names = case
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic)
    for index, size in enumerate(SIZES):
        arguments = [getattr(Inputs(*size), name) for name in names.split()]
        with torch._dynamo.config.patch(error_on_recompile=index >= 2):
            torch.manual_seed(index)
            got = compiled(*arguments)
        torch.manual_seed(index)
        want = call(*arguments)
        assert torch.equal(got, want) and torch.equal(got == 0, want == 0) and got.stride() == want.stride()
    return int(counter.frame_count)


@pytest.mark.sampled(3, "test_dynamic_graph_serves_all_sizes has all calls")
@pytest.mark.parametrize("name, compiler", cases(EVERY))
def test_two_graphs_serve_all_sizes_and_starts(name: str, compiler: str) -> None:
    assert compare(CALLS[name], compiler) <= 2


@pytest.mark.sampled(3, "test_dynamic_graph_serves_all_sizes has all calls")
@pytest.mark.parametrize("name, compiler", cases(EVERY_DROPOUT))
def test_dropout_mask_equals_eager(name: str, compiler: str) -> None:
    assert compare(DROPOUT[name], compiler) <= 2


@pytest.mark.parametrize("name", [*CALLS, *(f"dropout, {name}" for name in DROPOUT)])
def test_dynamic_graph_serves_all_sizes(name: str) -> None:
    case = DROPOUT[name.removeprefix("dropout, ")] if name.startswith("dropout, ") else CALLS[name]
    assert compare(case, "eager", dynamic=True) == 1


def graphs(call: Callable[..., Tensor], each: list[tuple[Any, ...]]) -> int:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for arguments in each:
        assert torch.equal(compiled(*arguments), call(*arguments))
    return int(counter.frame_count)


X = Inputs(2, 5, 3).x
# Calls that recompile more often than necessary, or raise.
LEFT: dict[str, Callable[[], int]] = {
    "a float scale that changes, with dropout": lambda: graphs(
        lambda x, a: sinpe.add(x, scale=a, dropout=P, seed=3), [(X, a) for a in (0.3, 0.4, 0.5, 0.6)]
    ),
    "a grid interpolated to a size that changes": lambda: graphs(
        lambda x: sinpe.add(x, GRID.interpolated((4, 4), tuple(x.shape[1:3]))),
        [(Inputs(2, length, 0).picture,) for length in (3, 4, 5, 6)],
    ),
    "a torch.Generator for a seed": lambda: graphs(
        lambda x: sinpe.add(x, dropout=P, seed=torch.Generator().manual_seed(3)), [(X,)]
    ),
}


@pytest.mark.xfail(strict=True, reason="known limitation: a graph per value, or an error")
@pytest.mark.parametrize("name", LEFT)
def test_known_limitations(name: str) -> None:
    assert LEFT[name]() <= 2


def test_changing_alpha_does_not_recompile() -> None:
    """Float or tensor alpha; a changing float scale recompiles with dropout, see above."""
    factors = (0.3, 0.4, 0.5, 0.6)
    each = [(X, a) for a in factors]
    assert graphs(lambda x, a: sinpe.add(x, alpha=a, dropout=P, seed=3), each) <= 2
    assert graphs(lambda x, a: sinpe.add(x, scale=a, alpha=a), each) <= 2
    each = [(X, torch.tensor(a)) for a in factors]
    assert graphs(lambda x, a: sinpe.add(x, alpha=a, dropout=P, seed=3), each) == 1


@needs_inductor
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dropout", [0.0, P])
def test_reduce_overhead(device: str, dropout: float) -> None:
    """Replayed graphs: the same results, and another mask for another seed."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible")
    weight = torch.randn(30, D, generator=torch.Generator().manual_seed(1)).to(device)

    def call(ids: Tensor, start: Tensor, seed: Tensor) -> Tensor:
        tokens = sinpe.embed(ids, weight, T2T, start=start, dropout=dropout, seed=seed)
        return sinpe.add(tokens * 2, dropout=dropout, seed=seed + 1)

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for round_ in range(5):  # recorded in the second run, replayed afterwards
        ids = torch.randint(30, (2, 5), generator=torch.Generator().manual_seed(round_)).to(device)
        start, seed = torch.tensor(round_ * 1000, device=device), torch.tensor(round_, device=device)
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(ids, start, seed).clone(), call(ids, start, seed))


class Model(nn.Module):
    """An embedding with the encoding, a sum, and timesteps; any batch size, length and starts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer, self.timesteps = EMBEDDING, LAYER, TIMESTEPS

    def forward(self, ids: Tensor, starts: Tensor, t: Tensor) -> Tensor:
        return self.layer(self.tokens(ids, start=starts)) + self.timesteps(t)[:, None]


def arguments(batch: int, length: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    given = Inputs(batch, length, start)
    return given.ids, given.starts, given.real[:, 0].contiguous()


def export_model(strict: bool = False) -> Any:
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    sizes = ({0: batch, 1: length}, {0: batch}, {0: batch})
    return torch.export.export(Model().eval(), arguments(3, 5, 1), dynamic_shapes=sizes, strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_batch_and_length(strict: bool) -> None:
    program, stored = export_model(strict), io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    for exported in (program, torch.export.load(stored)):
        for size in SIZES:
            assert torch.equal(exported.module()(*arguments(*size)), Model().eval()(*arguments(*size)))


@pytest.mark.builds
@needs_inductor
@pytest.mark.parametrize("standard", [pytest.param(False, marks=needs_aoti_dtypes), True])
def test_aot_package_with_dynamic_batch_and_length(standard: bool, tmp_path: Path) -> None:
    """With and without our operators."""
    with standard_operators() if standard else nullcontext():
        program = export_model()
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(package)
    for size in SIZES:
        got, want = run(*arguments(*size)), Model().eval()(*arguments(*size))
        assert torch.allclose(got, want, **SINES) if standard else torch.equal(got, want)


@needs_inductor
@pytest.mark.parametrize("compiler", EVERY_BACKEND)
def test_model_compiles_to_one_graph(compiler: str) -> None:
    counter = CompileCounterWithBackend(compiler)
    model = Model().eval()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    compiled(*arguments(*SIZES[0]))
    made_first = counter.frame_count  # more if a float becomes a constant: torch discards that graph
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in SIZES:
            assert torch.equal(compiled(*arguments(*size)), model(*arguments(*size)))
    assert counter.frame_count == made_first


FIRST_USE = """
import torch, sinpe_ext as sinpe
class Model(torch.nn.Module):
    def forward(self, x):
        return sinpe.add(x, dropout=0.5, seed=3) + sinpe.table(3, 8)
graph = torch.export.export(Model(), (torch.zeros(2, 3, 8),)).graph
names = {str(node.target) for node in graph.nodes if str(node.target).startswith("sinpe_ext")}
assert names <= {"sinpe_ext.add.default", "sinpe_ext.table.default"}, names
"""


@pytest.mark.processes
def test_loading_a_library_leaves_nothing_in_a_graph() -> None:
    """The first use of the kernels in a process is while torch.export traces."""
    run(FIRST_USE, env=library_environment())
