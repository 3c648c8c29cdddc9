"""torch.compile: one graph for any batch, length and start, with the bits of eager mode, and what is not compiled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from children import finish as finished
from children import library_environment, start_forked
from public_calls import CALLS as PUBLIC
from public_calls import MAKERS, Form
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import sinpe_ext as sinpe
from sinpe_ext.backend import loader
from sinpe_ext.operations import encoded_rows, plans
from sinpe_ext.reference import kept_rows

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit.script"), pytest.mark.usefixtures("reset_dynamo")]

D, P, VOCABULARY = 16, 0.3, 30
T2T = sinpe.convention("t2t", D, start=4)
GRID = sinpe.convention("mae2d", D)
FLOAT32 = sinpe.Encoding(D, angle="float32_exp", start=3)
# Inductor's float32 sine differs from torch's by one ULP
FLOAT32_ANGLES = {"rtol": 0.0, "atol": 2.0**-22}
# float32 sums in another order
GRADIENT = {"rtol": 1e-5, "atol": 1e-5}

needs_inductor = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))),
    reason="Inductor needs a C++ compiler",
)
needs_aoti_dtypes = pytest.mark.skipif(
    not (Path(torch.__file__).parent / "include/torch/csrc/inductor/aoti_torch/generated_enum_converters.h").exists(),
    reason="AOTInductor of this torch decodes dtype arguments wrongly (pytorch#169157)",
)
EVERY_BACKEND = [
    "aot_eager",
    pytest.param("inductor", marks=[needs_inductor, pytest.mark.thorough("the same with aot_eager")]),
]


class Inputs(NamedTuple):
    """Arguments of the calls."""

    x: Tensor
    ids: Tensor
    real: Tensor
    mask: Tensor
    picture: Tensor
    start: int
    tensor: Tensor
    starts: Tensor
    seed: Tensor
    alpha: Tensor
    weight: Tensor


def inputs(batch: int = 2, length: int = 5, start: int = 3, dtype: torch.dtype = torch.float32) -> Inputs:
    generator = torch.Generator().manual_seed(batch + length)
    return Inputs(
        x=torch.randn(batch, length, D, generator=generator).to(dtype),
        ids=torch.randint(VOCABULARY, (batch, length), generator=generator),
        real=torch.rand(batch, length, generator=generator, dtype=torch.float64) * 1000,
        mask=torch.rand(batch, length, generator=generator) < 0.4,
        picture=torch.randn(batch, length, length + 3, D, generator=generator).to(dtype),
        start=start,
        tensor=torch.tensor(start),
        starts=torch.arange(batch) * 7 + start,
        seed=torch.tensor(start * 2**33 + 5),
        alpha=torch.tensor([0.7]),
        weight=torch.randn(VOCABULARY, D, generator=generator),
    )


def layer(make: Callable[..., nn.Module], *arguments: Any, training: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(2)
    return make(*arguments, **options).train(training)


Layer, Embedding = sinpe.SinusoidalPositionalEncoding, sinpe.SinusoidalEmbedding
LIMITED = layer(Layer, D, 0.1, 20_000, scale=3.0)
OPTIONS = layer(Layer, D, 0.0, encoding=T2T, alpha=0.5)
LEARNED = layer(Layer, D, P, learned_alpha=True, batch_first=False, training=True)
DROPPING = layer(Layer, D, P, training=True)
TOKENS = layer(Embedding, VOCABULARY, D, 0, scale=2.0, encode_padding=False)
TRAINED_TOKENS = layer(Embedding, VOCABULARY, D, dropout=P, learned_alpha=True, training=True)
TIMESTEPS = layer(sinpe.TimestepEncoding, D)

CALLS: dict[str, Callable[[Inputs], Tensor]] = {  # what the table of public calls has not

    "add": lambda i: sinpe.add(i.x * 2, T2T, start=i.start) * 3,
    "add, name": lambda i: sinpe.add(i.x, "fairseq", start=i.start, scale=3.0),
    "add, width": lambda i: sinpe.add(i.x, D, scale=0.3, alpha=0.7, padding_mask=i.mask),
    "add, tensors": lambda i: sinpe.add(i.x, scale=0.3, alpha=i.alpha, start=i.tensor),
    "add, starts": lambda i: sinpe.add(i.x, T2T, start=i.starts),
    "add, narrow start": lambda i: sinpe.add(i.x, T2T, start=torch.tensor(250, dtype=torch.uint8)),
    "add_": lambda i: sinpe.add_(i.x * 1, T2T, start=i.start),
    "add, out": lambda i: sinpe.add(i.x, T2T, out=torch.empty_like(i.x)),
    "table": lambda i: sinpe.table(i.x.shape[1], T2T, start=i.start) + i.x,
    "table, out": lambda i: sinpe.table(i.x.shape[1], T2T, out=torch.empty(i.x.shape[1], D)),
    "encode": lambda i: sinpe.encode(i.ids * 1000003, T2T),
    "encode, real": lambda i: sinpe.encode(i.real, D, dtype=torch.float64) * 2,
    "layer": lambda i: LIMITED(i.x, start=i.start),
    "layer, options": lambda i: OPTIONS(i.x, positions=i.ids + 4, padding_mask=i.mask),
    "timesteps": lambda i: TIMESTEPS(i.real),
    "embed": lambda i: sinpe.embed(i.ids, i.weight, T2T, start=i.start, scale=2.0) * 2,
    "embedding": lambda i: TOKENS(i.ids, start=i.starts),
    "grid": lambda i: sinpe.add(i.picture, GRID, start=(2, 3)),
    "grid, name": lambda i: sinpe.add(i.picture, "timm2d", scale=2.0, alpha=0.5),
    "grid, table": lambda i: sinpe.table((i.x.shape[1], 5), GRID, extra_tokens=1, start=(2, i.start)),
    # with dropout
    "dropout": lambda i: sinpe.add(i.x * 2, T2T, start=i.start, dropout=P, seed=i.start) * 2,
    "dropout, all": lambda i: sinpe.add(
        i.x, alpha=i.alpha, positions=i.real, padding_mask=i.mask, dropout=P, seed=i.seed
    ),
    "dropout, drawn": lambda i: sinpe.add(i.x, start=i.starts, dropout=P) + sinpe.add(i.x, dropout=0.5),
    "dropout, float32 angles": lambda i: sinpe.add(i.x, FLOAT32, alpha=0.0, dropout=P, seed=9),
    "dropout of everything": lambda i: sinpe.add(i.x, T2T, dropout=1.0),
    "dropout, layer": lambda i: DROPPING(i.x, start=i.start),
    "dropout, layer, learned": lambda i: LEARNED(i.x, start=i.tensor, seed=i.seed),
    "dropout, embedding": lambda i: TRAINED_TOKENS(i.ids, start=i.start),
    "dropout, grid": lambda i: sinpe.add(i.picture, GRID, dropout=P, seed=i.seed),
}  # fmt: skip


def ids_of(x: Tensor) -> Tensor:
    return (x[..., 0] * 0).long() + 3


WEIGHT = torch.randn(9, D, generator=torch.Generator().manual_seed(1))
# Calls that use the length T of x, (B, T, D), as a size, a start or a factor; test_export.py and test_onnx.py, too.
SIZED: dict[str, Callable[[Tensor], Any]] = {
    "positions.relative": lambda x: sinpe.encode(sinpe.positions.relative(x.size(1)), D),
    "positions.relative of a cache": lambda x: sinpe.positions.relative(x.size(1) + 7),
    "positions.from_padding_idx, past": lambda x: sinpe.positions.from_padding_idx(ids_of(x), 1, past=x.size(1))[0],
    "positions.packed, total": lambda x: sinpe.positions.packed(torch.tensor([0, 2]), T2T, total=x.size(1)),
    "positions.grid": lambda x: sinpe.positions.grid((x.size(1), 3), GRID, start=x.size(1)),
    "positions.from_mask_2d, scale": lambda x: sinpe.positions.from_mask_2d(
        x[..., :3] > 9, GRID, normalize=True, scale=x.size(1) / 2, eps=1 / x.size(1)
    ),
    "table, length": lambda x: sinpe.table(2 * x.size(1) - 1, T2T, start=1 - x.size(1)),
    "table of a grid": lambda x: sinpe.table((x.size(1), 3), GRID, start=(x.size(1), 1)),
    "table, extra_tokens": lambda x: sinpe.table(4, T2T, extra_tokens=x.size(1)),
    "encode, positions divided": lambda x: sinpe.encode(torch.arange(x.size(1)) / x.size(1), T2T),
    "add, start": lambda x: sinpe.add(x, T2T, start=x.size(1)),
    "add, dropout, start": lambda x: sinpe.add(x, T2T, start=x.size(1), dropout=0.5, seed=1),
    "add, grid_shape": lambda x: sinpe.add(x, GRID, grid_shape=(1, x.size(1))),
    "add, scale": lambda x: sinpe.add(x, T2T, scale=x.size(1) ** 0.5),
    "add_, scale and alpha": lambda x: sinpe.add_(x + 0, T2T, scale=x.size(1) / 4, alpha=x.size(1) ** 0.5),
    "add, dropout, alpha": lambda x: sinpe.add(x, T2T, alpha=x.size(1) ** 0.5, dropout=0.5, seed=1),
    "add of a grid, scale": lambda x: sinpe.add(x.unsqueeze(1), GRID, scale=x.size(1) ** 0.5, alpha=x.size(1) / 3),
    "layer with max_len, start": lambda x: LIMITED(x, start=x.size(1)),
    "embed, scale": lambda x: sinpe.embed(ids_of(x), WEIGHT, T2T, scale=x.size(1) ** 0.5, alpha=x.size(1)),
    "embed, dropout, start": lambda x: sinpe.embed(ids_of(x), WEIGHT, T2T, start=x.size(1), dropout=0.5, seed=1),
}
EVERY: dict[str, Callable[[Inputs], Any]] = CALLS | {
    f"size: {name}": lambda i, call=call: call(i.x)  # type: ignore[misc]
    for name, call in SIZED.items()
}
SIZES = [(2, 5, 3), (3, 7, 2), (5, 30, 100)]
CHUNKS = [[*EVERY][first : first + 5] for first in range(0, len(EVERY), 5)]  # a graph of several calls takes less time


def check(call: Callable[[Inputs], Any], got: Any, given: Inputs, name: str) -> None:
    """Equal bits; float64 within one ULP if a graph uses another test's kernels and `want` comes from eager PyTorch."""
    want = call(given)
    assert (got.dtype, got.stride()) == (want.dtype, want.stride()), name
    bound = 2.0**-42 if got.dtype == torch.float64 and loader.setting() == "eager" else 0.0
    torch.testing.assert_close(got, want, rtol=0.0, atol=bound, msg=lambda text: f"{name}: {text}")
    assert torch.equal(got == 0, want == 0), name


def run_all(names: list[str], sizes: Any, dtype: torch.dtype, compiler: str, dynamic: bool | None) -> None:
    """Compares each size. The first graph may have constant sizes, the next one serves all: one more raises."""
    calls = [EVERY[name] for name in names]
    together = lambda given: [call(given) for call in calls]  # noqa: E731
    compiled = torch.compile(together, fullgraph=True, backend=compiler, dynamic=dynamic)
    for index, size in enumerate(sizes):
        given = inputs(*size, dtype=dtype)
        torch.manual_seed(index)
        with torch._dynamo.config.patch(error_on_recompile=index >= (1 if dynamic else 2)):
            results = compiled(given)
        torch.manual_seed(index)
        for name, got in zip(names, results, strict=True):
            check(EVERY[name], got, given, name)


DTYPES = torch.float32, torch.bfloat16, torch.float64
COMPILERS = [pytest.param(k, "eager" if k % 6 else "aot_eager", id=" | ".join(c)) for k, c in enumerate(CHUNKS)]
OTHERS = [
    pytest.param(k, "aot_eager" if k % 6 else "inductor", marks=pytest.mark.thorough("the same with another compiler"))
    for k in range(len(CHUNKS))
]


@pytest.mark.bad_input(25, "compiled", "layer", "embedding", "grid", "timestep")
@pytest.mark.parametrize(("number", "compiler"), [*COMPILERS, *OTHERS])
def test_one_dynamic_graph_serves_all_sizes(number: int, compiler: str) -> None:
    run_all(CHUNKS[number], SIZES, DTYPES[number % 3] if compiler != "inductor" else torch.float32, compiler, True)


SOME = ["add", "layer", "embedding", "dropout, drawn", "dropout, grid"]


def test_two_graphs_serve_all_sizes_and_starts() -> None:
    """The first has the sizes of the first call; the second, compiled when they change, has symbolic ones."""
    run_all(SOME, SIZES, torch.float32, "eager", None)


NARROW = inputs().x.bfloat16()


@needs_inductor
def test_inductor_equals_eager() -> None:
    """Each operator, what Inductor fuses, and gradients."""
    names = ["add", "add, width", "dropout, all", "dropout, drawn", "encode, real", "embed", "dropout, grid", "table"]

    def call(given: Inputs, narrow: Tensor) -> Any:
        results = [CALLS[name](given) for name in names]
        narrow = sinpe.add(narrow, T2T, scale=0.3)  # rounded once, as by add alone
        trained = sinpe.embed(given.ids, given.weight, alpha=given.alpha, dropout=P, seed=given.seed)
        return results, narrow, sinpe.add(given.x, FLOAT32), trained

    given = inputs()._replace(weight=inputs().weight.requires_grad_(), alpha=torch.tensor([0.7], requires_grad=True))
    compiled = torch.compile(call, fullgraph=True)
    torch.manual_seed(7)
    results, *others = compiled(given, NARROW)
    torch.manual_seed(7)
    for name, got in zip(names, results, strict=True):
        check(CALLS[name], got, given, name)
    _, narrow, rounded, trained = call(given, NARROW)
    assert torch.equal(others[0], narrow) and torch.allclose(others[1], rounded, **FLOAT32_ANGLES)
    assert torch.equal(others[2], trained)
    learned = given.weight, given.alpha
    for got, want in zip(*(torch.autograd.grad(t.sin().sum(), learned) for t in (others[2], trained)), strict=True):
        assert torch.allclose(got, want, **GRADIENT)
    assert not torch.equal(compiled(given, NARROW)[0][3], results[3])  # a second run draws a new seed


DIFFERENTIABLE = [name for name, call in PUBLIC.items() if call.tensors and name != "add, grid, flat"]
FORMS = Form(batch=7, length=12), Form(batch=4, length=6), Form(batch=9, length=30)  # the first: no size occurs twice


@pytest.mark.parametrize("compiler", EVERY_BACKEND)
@pytest.mark.parametrize("first", range(4))
def test_values_and_gradients(first: int, compiler: str) -> None:
    """Of all public functions and layers, in one graph for all sizes; the backward graph recomputes masks."""
    names = DIFFERENTIABLE[first::4]

    def run(given: list[dict[str, Tensor]]) -> list[Tensor]:
        return [PUBLIC[name].run(**tensors) for name, tensors in zip(names, given, strict=True)]

    compiled = torch.compile(run, fullgraph=True, backend=compiler, dynamic=True)
    for index, form in enumerate(FORMS):
        calls = [MAKERS[name](form) for name in names]
        leaves = [t.requires_grad_() for call in calls for t in call.tensors.values()]
        given = [{n: t for n, t in {**call.others, **call.tensors}.items() if isinstance(t, Tensor)} for call in calls]
        derivatives = []
        for function in (compiled, run):
            with torch._dynamo.config.patch(error_on_recompile=index > 0):
                results = function(given)
            total = torch.stack([t.square().sum() for t in results]).sum()
            derivatives.append([*results, *torch.autograd.grad(total, leaves)])
        for got, want in zip(*derivatives, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("compiler", EVERY_BACKEND)
def test_training_equals_eager(compiler: str) -> None:
    """float32, drawn seeds, float positions, and several encodings, each a constant of its own."""
    torch.manual_seed(0)
    front = Embedding(9, D, 0, dropout=0.2, learned_alpha=True)
    model = nn.Sequential(
        front, Layer(D, 0.2, encoding=T2T, learned_alpha=True), Layer(D, 0.2, encoding=FLOAT32), nn.Linear(D, 1)
    )
    ids, at = torch.arange(10).reshape(2, 5) % 9, torch.rand(5, requires_grad=True)
    model[1].register_forward_hook(lambda module, _, result: sinpe.add(result, "paper", positions=at, dropout=0.1))
    gradients = []
    for run in (model, torch.compile(model, fullgraph=True, backend=compiler)):
        torch.manual_seed(4)
        gradients.append(torch.autograd.grad(run(ids).square().sum(), [at, *model.parameters()]))
    for got, want in zip(*gradients, strict=True):
        assert torch.allclose(got, want, **GRADIENT)


def graphs(call: Callable[..., Tensor], each: list[tuple[Any, ...]]) -> int:
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for arguments in each:
        assert torch.equal(compiled(*arguments), call(*arguments))
    return int(counter.frame_count)


X = inputs().x
FACTORS = 0.3, 0.4, 0.5, 0.6
LEFT: dict[str, Callable[[], int]] = {  # calls that recompile more often than necessary, or raise
    "a float scale that changes, with dropout": lambda: graphs(
        lambda x, a: sinpe.add(x, scale=a, dropout=P, seed=3), [(X, a) for a in FACTORS]
    ),
    "a grid interpolated to a size that changes": lambda: graphs(
        lambda x: sinpe.add(x, GRID.interpolated((4, 4), tuple(x.shape[1:3]))),
        [(inputs(2, length).picture,) for length in (3, 4, 5, 6)],
    ),
    "a torch.Generator for a seed": lambda: graphs(
        lambda x: sinpe.add(x, dropout=P, seed=torch.Generator().manual_seed(3)), [(X,)]
    ),
}


@pytest.mark.xfail(strict=True, reason="known limitation: a graph per value, or an error")
@pytest.mark.parametrize("name", LEFT)
def test_known_limitations(name: str) -> None:
    assert LEFT[name]() <= 2


def test_changing_numbers_do_not_recompile() -> None:
    """A changing float scale recompiles with dropout, see above."""
    assert graphs(lambda x, a: sinpe.add(x, alpha=a, dropout=P, seed=3), [(X, a) for a in FACTORS]) <= 2
    assert graphs(lambda x, a: sinpe.add(x, scale=a, alpha=a), [(X, a) for a in FACTORS]) <= 2
    each = [(X, torch.tensor(a)) for a in FACTORS]
    assert graphs(lambda x, a: sinpe.add(x, alpha=a, dropout=P, seed=3), each) == 1
    token = inputs(1, 1).x
    assert graphs(lambda x, s: LIMITED(x, start=s), [(token, s) for s in range(0, 60, 9)]) == 2  # decoding


def operators(call: Callable[[Tensor], Any], x: Tensor, **options: Any) -> list[str]:
    """The operators of this package in the graph of a call, whose result equals that of the call."""
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    assert torch.equal(torch.compile(call, backend=keep, fullgraph=True, **options)(x), call(x))
    targets = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    return [target for target in targets if target.startswith("sinpe_ext.")]


def test_few_rows_of_static_positions_are_constants() -> None:
    """So that the compiler can fuse what follows."""
    few, many = torch.randn(2, 5, D), torch.randn(2, (1 << 20) // (4 * D) + 1, D)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda x: sinpe.add(x, T2T, start=3, scale=2.0, alpha=0.3),
        lambda x: sinpe.add(x.bfloat16(), T2T, padding_mask=torch.zeros(2, x.shape[1], dtype=torch.bool)),
        lambda x: sinpe.table(x.shape[1], T2T, dtype=torch.float16),
        LIMITED,
    ]
    for call in calls:
        assert operators(call, few) == []
        assert len(operators(call, few, dynamic=True)) == 1
        if call is not LIMITED:
            assert len(operators(call, many)) == 1
    assert len(operators(lambda x: sinpe.add(x, T2T), few.double())) == 1  # rows in float64
    assert operators(lambda x: sinpe.add(x, GRID), torch.randn(2, 3, 4, D)) == []


def test_constants_of_all_graphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond, and where nothing is to be kept, a graph has the operator."""
    calls = [lambda x, k=k: sinpe.add(x, D, start=1000 + k) for k in range(3)]
    size = 4 * 5 * D
    before = plans.constants_bytes("rows")
    monkeypatch.setattr(encoded_rows, "MAX_CONSTANT_BYTES", before + 2 * size)
    x = torch.randn(2, 5, D)
    assert [len(operators(call, x)) for call in (*calls, calls[0])] == [0, 0, 1, 0]
    assert plans.constants_bytes("rows") == before + 2 * size
    monkeypatch.setattr(kept_rows, "KEPT_BYTES", 0)
    assert len(operators(calls[0], x)) == 1


def test_table_in_a_graph_is_new() -> None:
    compiled = torch.compile(lambda: sinpe.table(5, D), backend="eager", fullgraph=True)
    compiled().zero_()
    assert torch.equal(compiled(), sinpe.table(5, D))


def test_each_width_and_encoding_compiles_its_own_graph() -> None:
    assert graphs(lambda x: sinpe.add(x), [(torch.ones(5, width),) for width in (4, 6, 8, 6, 4)]) <= 3
    each = [(X, encoding) for encoding in (T2T, FLOAT32, "t2t", D, T2T, FLOAT32)]
    assert graphs(lambda x, e: sinpe.add(x, e), each) <= 4


def test_errors_and_limits_in_a_graph() -> None:
    """Without fullgraph a call that is refused runs outside of the graph and raises the usual message."""
    limited, x = Layer(D, 0.0, 10).eval(), X
    compiled = torch.compile(limited, backend="aot_eager")
    assert torch.equal(compiled(x, start=5), limited(x, start=5))
    with pytest.raises(IndexError, match="start: expected rows at positions 0 to 9"):
        compiled(x, start=6)
    torch._dynamo.reset()  # torch does not compile a function again that has raised
    with pytest.raises(RuntimeError, match="positions: expected 0 to 9"):
        compiled(x, positions=torch.arange(10).reshape(2, 5) * 3)
    with pytest.raises((RuntimeError, ValueError), match="int64"):  # from the kernel and from eager PyTorch
        torch.compile(lambda s: sinpe.table(5, D, start=s), fullgraph=True, backend="aot_eager")(2**63 - 2)
    for call, error, message in (
        (lambda x: sinpe.add(x, 6), ValueError, "x: expected 6 channels"),
        (lambda x: sinpe.add(x, positions=x[..., 0] > 0), TypeError, "positions: .* got torch.bool"),
        (lambda x: sinpe.add(x, start=1.5), TypeError, "start: expected int, got float"),
        (lambda x: sinpe.add(x, seq_dim=5), IndexError, "seq_dim: expected -3 to 2"),
    ):
        with pytest.raises(error, match=message):
            torch.compile(call, backend="eager")(x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible")
@pytest.mark.parametrize("dropout", [0.0, P])
def test_reduce_overhead(dropout: float) -> None:
    """Replayed CUDA graphs: the same results, and another mask for another seed."""
    weight = WEIGHT.cuda()

    def call(ids: Tensor, start: Tensor, seed: Tensor) -> Tensor:
        tokens = sinpe.embed(ids, weight, T2T, start=start, dropout=dropout, seed=seed)
        return sinpe.add(tokens * 2, dropout=dropout, seed=seed + 1)

    compiled = torch.compile(call, fullgraph=True, mode="reduce-overhead")
    for k in range(5):  # recorded in the second run, replayed afterwards
        ids = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(k)).cuda()
        start, seed = torch.tensor(k * 1000, device="cuda"), torch.tensor(k, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(ids, start, seed).clone(), call(ids, start, seed))


COLD = """
import torch

class Guard:
    def __enter__(self): print("a graph break")
    def __exit__(self, *_): pass

def call(x):
    import sinpe_ext as sinpe
    with Guard():
        return x + sinpe.add(x)

x = torch.zeros(4, 6)
compiled = torch.compile(call, backend="eager")
got = compiled(x)
assert torch.equal(compiled(x), got) and torch.equal(got, call(x))
"""


def test_first_call_of_a_process() -> None:
    """Nothing is cached, and the library itself is imported in the function."""
    _, err = finished(start_forked(COLD, library_environment()))
    assert "recompile_limit" not in err and "sinpe_ext" not in err, err


SOME_PUBLIC = ["encode", "add", "add, grid", "embed, dropout", "SinusoidalEmbedding"]


def test_function_that_is_not_compiled() -> None:
    """Where torch.compile gives up the calling function, it must not compile functions of this library one by one."""

    def interrupted(given: list[dict[str, Tensor]]) -> list[Tensor]:
        try:
            torch._dynamo.graph_break()
            return [PUBLIC[name].run(**tensors) for name, tensors in zip(SOME_PUBLIC, given, strict=True)]
        finally:
            pass

    compiled = torch.compile(interrupted, backend="eager")
    for factor in (1.0, 0.5):
        given = [{k: (t * factor).requires_grad_() for k, t in PUBLIC[name].tensors.items()} for name in SOME_PUBLIC]
        results, wants = compiled(given), interrupted(given)
        for name, tensors, got, want in zip(SOME_PUBLIC, given, results, wants, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
            grads = [torch.autograd.grad(t.square().sum(), [*tensors.values()]) for t in (got, want)]
            torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def test_functions_can_be_compiled_by_themselves() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    x, ids, weight = torch.zeros(2, 4, 8), torch.tensor([[0, 1]]), torch.ones(3, 8)
    for function, arguments in (
        (sinpe.add, (x,)),
        (sinpe.encode, (x[0, 0], 8)),
        (sinpe.embed, (ids, weight)),
        (Layer(8), (x,)),
        (sinpe.TimestepEncoding(8), (x[0, 0],)),
    ):
        torch._dynamo.reset()
        graphs.clear()
        torch.compile(function, backend=keep, fullgraph=True)(*arguments)
        assert len(graphs) == 1
