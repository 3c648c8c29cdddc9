"""Jagged nested tensors: each sequence equals the same call with that sequence alone; torch can use the result.

Nested tensors are a prototype feature of torch; docs/training.md names the supported releases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from interfaces import MESSAGE_FORM
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, SinusoidalPositionalEncoding

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

LENGTHS = (3, 0, 5, 1)
B, ROWS, V, D, MAX = len(LENGTHS), sum(LENGTHS), 11, 8, 2**63 - 1
T2T = sinpe.convention("t2t", D, start=4)
PLACE = torch.cat([torch.arange(n) for n in LENGTHS])  # position of each row in its sequence
STARTS = torch.tensor([7, 100, -5, 2**40])
WHOLE, REAL = torch.arange(ROWS) * 3 - 5, torch.arange(ROWS) / 3
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# float32 sums of a few terms in another order
SUMMED = {"rtol": 1e-5, "atol": 1e-5}


def jagged(values: Tensor, lengths: tuple[int, ...] = LENGTHS) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *lengths]).cumsum(0))


def x(dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(5)).to(dtype)


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(V, (rows,), generator=torch.Generator().manual_seed(4))


def weight(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(3)).to(dtype)


def call_per_sequence(call: Callable[..., Tensor], t: Tensor, **given: Any) -> Tensor:
    """Concatenated results of a call for each sequence alone."""
    start, results = given.pop("start", 0), []
    for k, (part, place) in enumerate(zip(t.split(LENGTHS), PLACE.split(LENGTHS), strict=True)):
        options = dict(given)
        if "positions" in given:
            options["positions"] = given["positions"].split(LENGTHS)[k]
        else:
            options["start"] = start[k] if isinstance(start, Tensor) and start.dim() and start.numel() > 1 else start
        assert len(place) == len(part)
        results.append(call(part, **options))
    return torch.cat(results)


# All options except dropout, whose mask is indexed over all values.
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"start": 9, "scale": 3.0},
    "start 0-D": {"start": torch.tensor(-3, dtype=torch.int32), "alpha": 0.3},
    "start (1,)": {"start": torch.tensor([5])},
    "starts": {"start": STARTS, "encoding": "t2t"},
    "ends of int64": {"start": torch.tensor([MAX - 8, 0, MAX - 8, 2 - MAX]), "encoding": T2T},
    "alpha": {"alpha": torch.tensor([0.7]), "encoding": None},
    "positions": {"positions": WHOLE},
    "narrow positions": {"positions": WHOLE.int()},
    "fractions": {"positions": REAL, "alpha": torch.tensor(0.7)},
    "float32 angle": {"encoding": sinpe.Encoding(D, angle="float32_exp", start=3), "start": STARTS % 100},
    "no rounding": {"scale": -0.0, "alpha": -0.0},
}


def with_jagged(given: dict[str, Any], like: Any) -> dict[str, Any]:
    """Converts positions to a jagged tensor with the offsets of `like`."""
    if "positions" not in given:
        return given
    return given | {"positions": torch.nested.nested_tensor_from_jagged(given["positions"], like.offsets())}


def check_usable(result: Any, given: Any) -> None:
    """Checks that torch computes with the result and that it shares the offsets of the input."""
    assert result.layout == torch.jagged and result.lengths() is None and result.shape[1] == given.shape[1]
    assert torch.equal((result + result).unbind()[2], 2 * result.values()[3:8])
    assert result.shape[0] == B and result.offsets() is given.offsets()


@pytest.mark.sampled("values")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_add_equals_add_per_sequence(form: str, dtype: torch.dtype, backend: str) -> None:
    given = {"encoding": T2T} | FORMS[form]
    t = jagged(x(dtype))
    got: Any = sinpe.add(t, **with_jagged(given, t))
    assert torch.equal(got.values(), call_per_sequence(sinpe.add, x(dtype), **given)) and got.dtype == dtype
    check_usable(got, t)
    assert torch.equal((got - t).values(), got.values() - x(dtype))


@pytest.mark.sampled("values")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_embed_equals_embed_per_sequence(form: str, dtype: torch.dtype, backend: str) -> None:
    given = {"encoding": T2T, "padding_idx": 3} | FORMS[form]
    ids = jagged(tokens())
    got: Any = sinpe.embed(ids, weight(dtype), **with_jagged(given, ids))
    alone = call_per_sequence(lambda part, **options: sinpe.embed(part, weight(dtype), **options), tokens(), **given)
    assert torch.equal(got.values(), alone) and got.dtype == dtype
    check_usable(got, ids)


def test_embed_without_encode_padding(backend: str) -> None:
    ids = jagged(tokens())
    got: Any = sinpe.embed(ids, weight(), padding_idx=4, encode_padding=False)
    bare = tokens() == 4
    assert bare.any() and torch.equal(got.values()[bare], weight()[4].expand(int(bare.sum()), D))
    assert torch.equal(got.values()[~bare], sinpe.embed(ids, weight()).values()[~bare])  # type: ignore[attr-defined]


@pytest.mark.parametrize("positions", [WHOLE, REAL, torch.rand(ROWS, 2)], ids=["whole", "real", "coordinates"])
def test_encode(positions: Tensor, backend: str) -> None:
    encoding = sinpe.GridEncoding((T2T, T2T)) if positions.dim() > 1 else T2T
    t = jagged(positions)
    got: Any = sinpe.encode(t, encoding)
    assert torch.equal(got.values(), sinpe.encode(positions, encoding))
    check_usable(got, t)


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_mask_is_indexed_by_values(p: float, backend: str) -> None:
    t, ids, options = jagged(x()), jagged(tokens()), {"dropout": p, "seed": 77, "scale": 3.0}
    of_values = {"positions": PLACE + STARTS.repeat_interleave(torch.tensor(LENGTHS)) + T2T.start}
    got: Any = sinpe.add(t, T2T, start=STARTS, **options)
    assert torch.equal(got.values(), sinpe.add(x(), T2T, **of_values, **options))
    got = sinpe.embed(ids, weight(), T2T, start=STARTS, **options)
    assert torch.equal(got.values(), sinpe.embed(tokens(), weight(), T2T, **of_values, **options))


def test_random_seed_equals_that_of_values(backend: str) -> None:
    torch.manual_seed(3)
    got: Any = sinpe.add(jagged(x()), dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(got.values(), sinpe.add(x(), positions=PLACE, dropout=0.5))


MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "of a list": (lambda: torch.nested.nested_tensor(list(x().split(LENGTHS)), layout=torch.jagged), LENGTHS),
    "int32 offsets": (
        lambda: torch.nested.nested_tensor_from_jagged(x(), torch.tensor([0, 3, 3, 8, 9], dtype=torch.int32)),
        LENGTHS,
    ),
    "values of any strides": (lambda: jagged(x().t().contiguous().t()), LENGTHS),
    "values that repeat": (lambda: jagged(x()[:1].expand(ROWS, D)), LENGTHS),
    "turned twice": (lambda: jagged(x()).transpose(1, 2).contiguous().transpose(1, 2), LENGTHS),
    "after an operation": (lambda: jagged(x()) * 2, LENGTHS),
    "a parameter": (lambda: torch.nn.Parameter(jagged(x()), requires_grad=False), LENGTHS),
    "one sequence": (lambda: jagged(x(), (ROWS,)), (ROWS,)),
    "empty sequences": (lambda: jagged(x(rows=0), (0, 0)), (0, 0)),
    "empty batch": (lambda: jagged(x(rows=0), ()), ()),
    "closed gaps": (lambda: gaps().contiguous(), (2, 3, 1)),
}


def gaps() -> Any:
    """Slices of sequences: lengths, and unused rows between them."""
    first, count = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 1])
    return torch.nested.narrow(torch.ones(3, 6, D), 1, first, count, layout=torch.jagged)


@pytest.mark.parametrize("how", MADE)
def test_jagged_tensors_of_any_construction(how: str, backend: str) -> None:
    make, lengths = MADE[how]
    t, place = make(), torch.cat([torch.empty(0, dtype=torch.int64), *map(torch.arange, lengths)])
    wanted = sinpe.add(t.values().detach(), positions=place)
    for start in (0, torch.tensor(0), torch.zeros(len(lengths), dtype=torch.int64)):
        got: Any = sinpe.add(t, start=start)
        assert torch.equal(got.values(), wanted) and got.shape[0] == len(lengths)
        assert (got + t).shape[1] == t.shape[1]


def test_dense_dimensions_after_the_ragged_one(backend: str) -> None:
    heads = torch.randn(ROWS, 2, D)
    t = jagged(heads)
    got: Any = sinpe.add(t, seq_dim=1, dropout=0.3, seed=2)
    assert torch.equal(got.values(), sinpe.add(heads, seq_dim=0, positions=PLACE, dropout=0.3, seed=2))
    got = sinpe.add(t, seq_dim=1, channel_dim=2)
    assert torch.equal(got.values(), sinpe.add(heads, seq_dim=0, channel_dim=1, positions=PLACE))
    ids = tokens(2 * ROWS).view(ROWS, 2)
    got = sinpe.embed(jagged(ids), weight(), seq_dim=1)
    assert torch.equal(got.values(), sinpe.embed(ids, weight(), seq_dim=0, positions=PLACE))


def test_cached_sequence_lengths_are_preserved() -> None:
    t: Any = torch.nested.nested_tensor(list(x().split(LENGTHS)), layout=torch.jagged)
    got: Any = sinpe.add(t)
    assert (got._maybe_min_seqlen, got._maybe_max_seqlen) == (0, 5) == (t._maybe_min_seqlen, t._maybe_max_seqlen)
    got = sinpe.add(jagged(x()))
    assert got._maybe_max_seqlen is None


def test_positions_with_equal_offsets_in_another_tensor(backend: str) -> None:
    t = jagged(x())
    assert torch.equal(
        sinpe.add(t, positions=jagged(WHOLE)).values(),  # type: ignore[attr-defined]
        sinpe.add(x(), positions=WHOLE),
    )


WRITTEN: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "add_": lambda t: (sinpe.add_(t), t),
    "out=x": lambda t: (sinpe.add(t, out=t), t),
    "out": lambda t: (lambda out: (sinpe.add(t, out=out), out))(torch.empty_like(t)),
    "out of equal offsets": lambda t: (lambda out: (sinpe.add(t, out=out), out))(jagged(torch.empty(ROWS, D))),
    "layer's add_": lambda t: (sinpe.add_(t, alpha=torch.ones(1)), t),
}


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_in_place_and_out(mode: Callable[[], Any], way: str, backend: str) -> None:
    with mode():
        t = jagged(x())
        version = None if t.is_inference() else t._version
        got, where = WRITTEN[way](t)
        assert got is where and torch.equal(where.values(), sinpe.add(x(), positions=PLACE))
        if version is not None and where is t:
            assert t._version > version


def gradients(call: Callable[..., Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    copies = [leaf.clone().requires_grad_() for leaf in leaves]
    result: Any = call(*copies)
    values = result.values() if result.layout == torch.jagged else result
    return torch.autograd.grad((values.double() ** 3).sum(), copies)


DROPPED: dict[str, Any] = {"dropout": 0.3, "seed": 5, "scale": 2.0}


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_add(dtype: torch.dtype, backend: str) -> None:
    leaves = x(dtype), torch.tensor([0.7]), REAL
    ours = gradients(lambda t, a, p: sinpe.add(jagged(t), alpha=a, positions=jagged(p), **DROPPED), *leaves)
    theirs = gradients(lambda t, a, p: sinpe.add(t, alpha=a, positions=p, **DROPPED), *leaves)
    in_place = gradients(lambda t, a, p: sinpe.add_(jagged(t) * 1, alpha=a, positions=jagged(p), **DROPPED), *leaves)
    assert all(map(torch.equal, ours, theirs)) and all(map(torch.equal, in_place, theirs))


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_embed(sparse: bool, backend: str) -> None:
    leaves, options = (weight(), torch.tensor([0.7])), DROPPED | {"sparse": sparse, "padding_idx": 4}
    ours = gradients(lambda w, a: sinpe.embed(jagged(tokens()), w, alpha=a, **options), *leaves)
    theirs = gradients(lambda w, a: sinpe.embed(tokens(), w, alpha=a, positions=PLACE, **options), *leaves)
    assert ours[0].is_sparse == sparse and ours[0].to_dense().count_nonzero()
    assert torch.equal(ours[0].to_dense(), theirs[0].to_dense()) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool, backend: str) -> None:
    layer = SinusoidalPositionalEncoding(D, 0.3)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)

    def gradient(call: Callable[[Any], Any]) -> Any:
        torch.manual_seed(2)
        leaf = x().requires_grad_()
        (call(torch.nested.nested_tensor_from_jagged(leaf, ends)).values() ** 3).sum().backward()
        return leaf.grad

    kept = gradient(lambda t: checkpoint(layer, t, use_reentrant=use_reentrant))
    assert torch.equal(kept, gradient(layer)) and (kept == 0).any()


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[], Tensor], dict[str, Any]]] = {
    "encoding": (lambda: SinusoidalPositionalEncoding(D), x, {}),
    "options": (lambda: SinusoidalPositionalEncoding(D, 0.4, 6, encoding="t2t", learned_alpha=True, scale=2.0), x, {}),
    "table": (lambda: SinusoidalPositionalEncoding(D, 0.1, 6, persistent_table=True), x, {"start": 1}),
    "starts": (lambda: SinusoidalPositionalEncoding(D, 0.0), x, {"start": STARTS}),
    "embedding": (lambda: SinusoidalEmbedding(V, D, 3), tokens, {}),
    "embedding's options": (
        lambda: SinusoidalEmbedding(V, D, 3, learned_alpha=True, scale=3.0, max_len=6, encode_padding=False),
        tokens,
        {"start": 1},
    ),
    "positions": (lambda: SinusoidalPositionalEncoding(D, require_positions=True), x, {"positions": WHOLE}),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, training: bool, backend: str) -> None:
    make, data, given = LAYERS[name]
    layer = make().train(training)
    t = jagged(data())
    torch.manual_seed(9)
    got: Any = layer(t, **with_jagged(given, t))
    start = given.get("start", 0)
    each = start.repeat_interleave(torch.tensor(LENGTHS)) if isinstance(start, Tensor) else start
    positions = given["positions"] if "positions" in given else PLACE + each + layer.encoding.start
    torch.manual_seed(9)
    assert torch.equal(got.values(), layer(data(), positions=positions))
    check_usable(got, t)


def test_dropout_replaced_by_a_module_and_timesteps(backend: str) -> None:
    layer = SinusoidalPositionalEncoding(D)
    layer.dropout = torch.nn.Tanh()
    t = jagged(x())
    got: Any = layer(t)
    torch.testing.assert_close(got.values(), sinpe.add(x(), positions=PLACE).tanh())
    got = sinpe.TimestepEncoding(D)(jagged(REAL))
    assert torch.equal(got.values(), sinpe.TimestepEncoding(D)(REAL))


def test_meta_and_fake_tensors() -> None:
    meta = jagged(x()).to("meta")
    got: Any = sinpe.add(meta, start=3, dropout=0.1)
    assert got.device.type == "meta" and (got + meta).shape[0] == B
    assert sinpe.embed(jagged(tokens()).to("meta"), weight().to("meta")).device.type == "meta"
    with FakeTensorMode(shape_env=ShapeEnv()):
        fake = torch.nested.nested_tensor_from_jagged(torch.empty(ROWS, D), torch.tensor([0, 3, 9]))
        got = sinpe.add(fake, dropout=0.1)
        assert isinstance(got.values(), FakeTensor) and (got + fake).shape[0] == 2


class Encoded(torch.nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        result: Any = sinpe.add(jagged(values))
        return result.values()


WITHOUT: dict[str, Callable[[], Any]] = {
    "vmap": lambda: torch.func.vmap(Encoded())(x()[None]),
    "jvp": lambda: torch.func.jvp(Encoded(), (x(),), (x(),))[0],
    "export": lambda: torch.export.export(Encoded(), (x(),)).module()(x()),
    "strict export": lambda: torch.export.export(Encoded(), (x(),), strict=True).module()(x()),
    "jit.trace": lambda: torch.jit.trace(Encoded(), x(), check_trace=False)(x()),
    "make_fx": lambda: make_fx(Encoded())(x())(x()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("who", WITHOUT)
def test_unsupported_torch_features_raise(who: str) -> None:
    """Or gives the right values, if a later release supports it."""
    try:
        result = WITHOUT[who]()
    except Exception as error:
        assert str(error)
    else:
        assert torch.equal(result.reshape(ROWS, D), Encoded()(x()))


# torch.compile


def batch(k: int) -> tuple[int, ...]:
    """Sequence lengths of batch k, different for each k."""
    return 2 + k, 0, 3 * k + 1, 4


def parameters() -> list[Tensor]:
    return [x(rows=1)[0].requires_grad_(), torch.tensor([0.7], requires_grad=True)]


WEIGHT = weight()
COMPILED: dict[str, Callable[..., Any]] = {
    "add": lambda t, ids, w, a: sinpe.add(t * w, T2T, alpha=a) + t,
    "starts": lambda t, ids, w, a: sinpe.add(t * w, alpha=a, start=STARTS),
    "dropout": lambda t, ids, w, a: sinpe.add(t * w, alpha=a, dropout=0.3, seed=5) * 2,
    "positions": lambda t, ids, w, a: sinpe.add(t * w, alpha=a, positions=ids),
    "embed": lambda t, ids, w, a: sinpe.embed(ids, WEIGHT * w, alpha=a, padding_idx=3) + t,
    "embed, dropout": lambda t, ids, w, a: sinpe.embed(ids, WEIGHT * w, alpha=a, dropout=0.3, seed=5),
    "encode": lambda t, ids, w, a: sinpe.encode(ids, D) * w * a + t,
}


def check_compiled(call: Callable[..., Any], to: str) -> int:
    """Compares compiled with eager mode, forward and backward, for several lengths; returns the number of graphs."""
    counter = CompileCounterWithBackend(to)
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for k in range(4):
        rows, results = sum(batch(k)), []
        for f in (compiled, call):
            leaves, t = parameters(), jagged(x(rows=rows), batch(k))
            ids = torch.nested.nested_tensor_from_jagged(tokens(rows), t.offsets())
            y = f(t, ids, *leaves)
            (y.values() ** 2).sum().backward()
            assert (y + t).shape[1] == t.shape[1]
            results.append([y.values().detach(), *(leaf.grad for leaf in leaves)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, **SUMMED)
    return counter.frame_count


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_for_all_batch_lengths(name: str, reset_dynamo: None) -> None:
    assert check_compiled(COMPILED[name], "aot_eager") == 1


@pytest.mark.thorough("test_one_graph_for_all_batch_lengths")
@pytest.mark.parametrize("name", COMPILED)
def test_one_inductor_graph_for_all_batch_lengths(name: str, reset_dynamo: None) -> None:
    assert check_compiled(COMPILED[name], "inductor") == 1


@pytest.mark.parametrize("name", ["options", "embedding's options"])
def test_layer_compiles_to_one_graph(name: str, reset_dynamo: None) -> None:
    make, data, _ = LAYERS[name]
    layer, counter = make(), CompileCounterWithBackend("aot_eager")
    layer.max_len = None
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for k in range(3):
        t = jagged(data(rows=sum(batch(k))), batch(k))
        both = []
        for f in (compiled, layer):
            torch.manual_seed(k)
            y: Any = f(t)
            both.append([y.values().detach(), *torch.autograd.grad((y.values() ** 2).sum(), list(layer.parameters()))])
        for ours, theirs in zip(*both, strict=True):
            torch.testing.assert_close(ours, theirs, **SUMMED)
    assert counter.frame_count == 1


def test_cached_extreme_lengths_compile_one_more_graph(reset_dynamo: None) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda t: sinpe.add(t, dropout=0.3, seed=5), fullgraph=True, backend=counter)
    for k in range(4):
        t = torch.nested.nested_tensor(list(x(rows=sum(batch(k))).split(batch(k))), layout=torch.jagged)
        got, wanted = compiled(t), sinpe.add(t, dropout=0.3, seed=5)
        assert torch.equal(got.values(), wanted.values())  # type: ignore[attr-defined]
        assert got._maybe_max_seqlen == max(batch(k))
    assert counter.frame_count <= 2


# Lengths of successive batches.
NUMBERS = [(3, 5), (2, 4, 6), (7,)]
THOROUGH = pytest.mark.thorough("the same batches by offsets alone")


@pytest.mark.parametrize("extremes", [False, pytest.param(True, marks=THOROUGH)])
@pytest.mark.parametrize("batches", [NUMBERS, pytest.param([*NUMBERS[::-1], (4, 4), (6, 6)], marks=THOROUGH)])
def test_recompilations_equal_those_of_torch_operations(batches: list, extremes: bool, reset_dynamo: None) -> None:
    counts = []
    for call in (sinpe.add, lambda t: t.sin() + t):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(call, fullgraph=True, backend=counter)
        for lengths in batches:
            values = x(rows=sum(lengths))
            listed = list(values.split(lengths))
            t = torch.nested.nested_tensor(listed, layout=torch.jagged) if extremes else jagged(values, lengths)
            assert torch.equal(compiled(t).values(), call(t).values())
        counts.append(counter.frame_count)
    assert counts[0] <= counts[1] + extremes


@pytest.mark.parametrize("way", ["add_", "out"])
def test_in_place_and_out_in_a_graph(way: str, reset_dynamo: None) -> None:
    compiled = torch.compile(
        {"add_": lambda t, out: sinpe.add_(t), "out": lambda t, out: sinpe.add(t, out=out)}[way],
        fullgraph=True,
        backend="aot_eager",
    )
    for k in range(2):
        t = jagged(x(rows=sum(batch(k))), batch(k))
        wanted, out = sinpe.add(t).values().clone(), torch.empty_like(t)  # type: ignore[attr-defined]
        compiled(t, out)
        assert torch.equal((t if way == "add_" else out).values(), wanted)


# Errors

ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "gaps": (lambda: sinpe.add(gaps()), ValueError, r"x: expected .* got one with lengths.*; pass x.contiguous\(\)"),
    "ids with gaps": (
        lambda: sinpe.embed(
            torch.nested.narrow(torch.ones(2, 6, dtype=torch.int64), 1, *GAPS, layout=torch.jagged), weight()
        ),
        ValueError,
        r"ids: expected .* got one with lengths",
    ),
    "other ragged dimension": (
        lambda: sinpe.add(jagged(x()).transpose(1, 2)),
        ValueError,
        r"x: expected .* along dimension 1, .* got dimension 2 in shape \(4, 8, j\d+\); transpose it",
    ),
    "strided": (
        lambda: sinpe.add(torch.nested.nested_tensor([x(), x(rows=2)])),
        TypeError,
        "x: expected a dense .*, got a nested tensor; .* make it with layout=torch.jagged$",
    ),
    "strided ids": (
        lambda: sinpe.embed(torch.nested.nested_tensor([tokens(), tokens(2)]), weight()),
        TypeError,
        "ids: .* make it with layout=torch.jagged$",
    ),
    "no channels": (lambda: sinpe.add(jagged(x()[:, 0])), ValueError, r"x: expected .* 3 dimensions .*\(4, j\d+\)"),
    "integers": (lambda: sinpe.add(jagged(x().long())), TypeError, "x: expected torch.float32"),
    "channels": (lambda: sinpe.add(jagged(x()), 6), ValueError, "x: expected 6 channels"),
    "padding_mask": (
        lambda: sinpe.add(jagged(x()), padding_mask=torch.zeros(B, 5, dtype=torch.bool)),
        ValueError,
        "padding_mask: expected None for a jagged x, which has no padding",
    ),
    "padding_mask of ids": (
        lambda: SinusoidalEmbedding(V, D)(jagged(tokens()), padding_mask=torch.zeros(B, 5, dtype=torch.bool)),
        ValueError,
        "padding_mask: expected None for a jagged ids",
    ),
    "grid": (lambda: sinpe.add(jagged(x()), "mae2d"), ValueError, "encoding, grid_shape.* got 'mae2d', None and 0"),
    "grid_shape": (lambda: sinpe.add(jagged(x()), grid_shape=(3, 3)), ValueError, r"got None, \(3, 3\) and 0"),
    "extra_tokens": (lambda: sinpe.add(jagged(x()), extra_tokens=1), ValueError, "got None, None and 1"),
    "seq_dim": (lambda: sinpe.add(jagged(x()), seq_dim=0), ValueError, "seq_dim: expected 1, .* got 0"),
    "seq_dim of 4-D": (
        lambda: sinpe.add(jagged(torch.ones(ROWS, 2, D))),
        ValueError,
        r"seq_dim: expected 1, .* got -2 for shape \(4, j\d+, 2, 8\); pass seq_dim=1",
    ),
    "batch_first": (
        lambda: SinusoidalPositionalEncoding(D, batch_first=False)(jagged(x())),
        ValueError,
        "seq_dim: expected 1, .* batch_first=True",
    ),
    "channel_dim": (lambda: sinpe.add(jagged(x()), channel_dim=1), ValueError, "seq_dim, channel_dim: expected two"),
    "channel_dim 0": (lambda: sinpe.add(jagged(x()), channel_dim=0), ValueError, "channel_dim: expected .* behind"),
    "dense positions": (
        lambda: sinpe.add(jagged(x()), positions=PLACE),
        TypeError,
        r"positions: expected a jagged nested tensor, .* got torch.int64 of shape \(9,\); pass torch.nested",
    ),
    "other positions": (
        lambda: sinpe.add(jagged(x()), positions=jagged(PLACE, (3, 1, 4, 1))),
        ValueError,
        "positions: expected the offsets of x, got others",
    ),
    "fewer positions": (
        lambda: sinpe.add(jagged(x()), positions=jagged(x()[:, :2])),
        ValueError,
        r"positions: expected shape \(4, j\d+\), one for each row",
    ),
    "16-bit positions": (
        lambda: sinpe.add(jagged(x()), positions=jagged(REAL.half())),
        TypeError,
        "positions: expected an integer dtype, float32 or float64, got torch.float16",
    ),
    "jagged positions of a dense x": (
        lambda: sinpe.add(x(), positions=jagged(PLACE)),
        TypeError,
        "positions: .* nested",
    ),
    "start beside positions": (
        lambda: sinpe.add(jagged(x()), positions=jagged(PLACE), start=1),
        ValueError,
        "start: expected 0 together with positions",
    ),
    "starts of another batch": (
        lambda: sinpe.add(jagged(x()), start=STARTS[:3]),
        ValueError,
        r"start: expected shape \(\) or \(4,\), .* got \(3,\) for x of shape \(4, j\d+, 8\)",
    ),
    "list of starts": (
        lambda: sinpe.add(jagged(x()), start=[1, 2, 3, 4]),
        TypeError,
        r"start: .*tensor\(\[1, 2, 3, 4\]\)",
    ),
    "start beyond int64": (lambda: sinpe.add(jagged(x()), start=MAX - 3), ValueError, f"start: .* to {MAX + 1};"),
    "starts beyond int64": (
        lambda: sinpe.add(jagged(x()), start=torch.tensor([0, 0, MAX - 3, 0])),
        ValueError,
        f"start: .* to {MAX + 1};",
    ),
    "max_len": (
        lambda: SinusoidalPositionalEncoding(D, max_len=4)(jagged(x())),
        IndexError,
        "positions: expected 0 to 3, .* got 4",
    ),
    "require_positions": (
        lambda: SinusoidalPositionalEncoding(D, require_positions=True)(jagged(x())),
        ValueError,
        "positions: expected the positions of these rows",
    ),
    "dense out": (lambda: sinpe.add(jagged(x()), out=x()), TypeError, "out: expected a jagged nested tensor, as x is"),
    "out of others": (
        lambda: sinpe.add(jagged(x()), out=jagged(x(), (9, 0, 0, 0))),
        ValueError,
        "out: expected the offsets of x, got others",
    ),
    "out of another dtype": (
        lambda: sinpe.add(jagged(x()), out=jagged(x(torch.float64))),
        ValueError,
        "out: expected shape .* and dtype torch.float32",
    ),
    "jagged out of a dense x": (lambda: sinpe.add(x(), out=jagged(x())), TypeError, "out: expected a dense .* nested"),
    "shared memory": (lambda: shared(), RuntimeError, "out: expected memory apart from x"),
    "alpha in x": (
        lambda: (lambda t: sinpe.add_(t, alpha=t.values()[0, :1]))(jagged(x())),
        RuntimeError,
        "alpha: expected memory apart",
    ),
    "positions in x, gradient": (
        lambda: (lambda t: sinpe.add_(t, positions=jagged(t.values()[:, 0]), alpha=torch.ones(1, requires_grad=True)))(
            jagged(x())
        ),
        RuntimeError,
        "positions: expected memory apart",
    ),
    "overlapping": (
        lambda: sinpe.add_(jagged(x()[:1].expand(ROWS, D))),
        RuntimeError,
        "x: expected one memory location",
    ),
    "leaf": (lambda: sinpe.add_(jagged(x().requires_grad_())), RuntimeError, "x: expected .* view of a leaf"),
    "jagged weight": (lambda: sinpe.embed(jagged(tokens()), jagged(weight(), (11,))), TypeError, "weight: .* nested"),
    "ids": (lambda: sinpe.embed(jagged(tokens() + V - 1), weight()), IndexError, "ids: expected 0 to 10"),
    "encode, gaps": (
        lambda: sinpe.encode(torch.nested.narrow(torch.ones(2, 6), 1, *GAPS, layout=torch.jagged), D),
        ValueError,
        "positions: expected .* got one with lengths",
    ),
}
GAPS = torch.tensor([0, 1]), torch.tensor([2, 3])


def shared() -> Tensor:
    whole = torch.zeros(ROWS + 1, D)
    return sinpe.add(jagged(whole[:-1]), out=jagged(whole[1:]))


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_bad_arguments(case: tuple[Callable[[], Any], type[Exception], str], backend: str) -> None:
    call, error, pattern = case
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert type(caught.value) is error and MESSAGE_FORM.match(str(caught.value))


def test_embed_equals_add_of_torch_embedding(backend: str) -> None:
    ids = jagged(tokens())
    ours: Any = sinpe.embed(ids, weight(), T2T, scale=3.0)
    theirs: Any = sinpe.add(functional.embedding(ids, weight()), T2T, scale=3.0)
    assert torch.equal(ours.values(), theirs.values()) and ours.shape[1] == theirs.shape[1]
