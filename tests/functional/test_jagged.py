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
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding, SinusoidalPositionalEncoding

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

LENGTHS = (3, 0, 5, 1)
B, ROWS, V, D, MAX = len(LENGTHS), sum(LENGTHS), 11, 8, 2**63 - 1
T2T = sinpe.convention("t2t", D, start=4)
PLACE = torch.cat([torch.arange(n) for n in LENGTHS])  # position of each row in its sequence
STARTS = torch.tensor([7, 100, -5, 2**40])
WHOLE, REAL = torch.arange(ROWS) * 3 - 5, torch.arange(ROWS) / 3
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# float32 sums of a few terms in another order
SUMMED = {"rtol": 1e-5, "atol": 1e-5}
DROPPED: dict[str, Any] = {"dropout": 0.3, "seed": 5, "scale": 2.0}


def jagged(values: Tensor, lengths: tuple[int, ...] = LENGTHS) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *lengths]).cumsum(0))


def x(dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Tensor:
    return torch.randn(rows, D, generator=torch.Generator().manual_seed(5)).to(dtype)


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(V, (rows,), generator=torch.Generator().manual_seed(4))


def weight(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(V, D, generator=torch.Generator().manual_seed(3)).to(dtype)


def like(values: Tensor, t: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(values, t.offsets())


def call_per_sequence(call: Callable[..., Tensor], t: Tensor, **given: Any) -> Tensor:
    """Concatenated results of a call for each sequence alone."""
    start, results = given.pop("start", 0), []
    for k, part in enumerate(t.split(LENGTHS)):
        options = dict(given)
        if "positions" in given:
            options["positions"] = given["positions"].split(LENGTHS)[k]
        else:
            options["start"] = start[k] if isinstance(start, Tensor) and start.numel() > 1 else start
        results.append(call(part, **options))
    return torch.cat(results)


# All options except dropout, whose mask is indexed over all values.
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"start": 9, "scale": 3.0},
    "start 0-D": {"start": torch.tensor(-3, dtype=torch.int32), "alpha": 0.3},
    "start (1,)": {"start": torch.tensor([5])},
    "starts": {"start": STARTS, "encoding": "t2t"},
    "ends of int64": {"start": torch.tensor([MAX - 8, 0, MAX - 8, 2 - MAX])},
    "alpha": {"alpha": torch.tensor([0.7]), "encoding": None},
    "positions": {"positions": WHOLE},
    "narrow positions": {"positions": WHOLE.int()},
    "fractions": {"positions": REAL, "alpha": torch.tensor(0.7)},
    "float32 angle": {"encoding": sinpe.Encoding(D, angle="float32_exp", start=3), "start": STARTS % 100},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_sequence_equals_a_call_of_its_own(form: str, backend: str) -> None:
    given: dict[str, Any] = {"encoding": T2T} | FORMS[form]
    for dtype in FLOATS:
        calls = (
            (sinpe.add, x(dtype), {}),
            (lambda ids, **more: sinpe.embed(ids, weight(dtype), **more), tokens(), {"padding_idx": 3}),  # noqa: B023
        )
        for call, data, more in calls:
            t = jagged(data)
            options = given | more | ({"positions": like(given["positions"], t)} if "positions" in given else {})
            got: Any = call(t, **options)
            assert torch.equal(got.values(), call_per_sequence(call, data, **given, **more)) and got.dtype == dtype
            assert got.layout == torch.jagged and got.lengths() is None and got.offsets() is t.offsets()
            assert torch.equal((got + got).unbind()[2], 2 * got.values()[3:8]) and (got - got * 2).shape == got.shape


def test_options_of_values(backend: str) -> None:
    """Equal to calls of the values: masks of dropout and padding tokens, `encode`, further dimensions."""
    t, ids, drops = jagged(x()), jagged(tokens()), {"dropout": 0.3, "seed": 77, "scale": 3.0}
    place = {"positions": PLACE + STARTS.repeat_interleave(torch.tensor(LENGTHS)) + 4}
    heads, more, bare = torch.randn(ROWS, 2, D), tokens(2 * ROWS).view(ROWS, 2), {"encode_padding": False}
    grid, points = sinpe.GridEncoding((T2T, T2T)), torch.rand(ROWS, 2)
    torch.manual_seed(3)
    pairs: list[tuple[Any, Tensor]] = [(sinpe.add(t, dropout=0.5), torch.empty(0))]
    torch.manual_seed(3)
    pairs[0] = pairs[0][0], sinpe.add(x(), positions=PLACE, dropout=0.5)
    pairs += [
        (sinpe.add(t, T2T, start=STARTS, **drops), sinpe.add(x(), T2T, **place, **drops)),
        (sinpe.embed(ids, weight(), T2T, start=STARTS, **drops),
         sinpe.embed(tokens(), weight(), T2T, **place, **drops)),
        (sinpe.embed(ids, weight(), padding_idx=4, **bare),
         sinpe.embed(tokens(), weight(), padding_idx=4, positions=PLACE, padding_mask=tokens() == 4)),
        (sinpe.encode(jagged(REAL), T2T), sinpe.encode(REAL, T2T)),
        (sinpe.encode(jagged(points), grid), sinpe.encode(points, grid)),
        (sinpe.TimestepEncoding(D)(jagged(REAL)), sinpe.TimestepEncoding(D)(REAL)),
        (sinpe.add(t, positions=jagged(WHOLE)), sinpe.add(x(), positions=WHOLE)),  # equal offsets, another tensor
        (sinpe.add(jagged(heads), seq_dim=1, **drops), sinpe.add(heads, seq_dim=0, positions=PLACE, **drops)),
        (sinpe.add(jagged(heads), seq_dim=1, channel_dim=2),
         sinpe.add(heads, seq_dim=0, channel_dim=1, positions=PLACE)),
        (sinpe.embed(jagged(more), weight(), seq_dim=1), sinpe.embed(more, weight(), seq_dim=0, positions=PLACE)),
    ]  # fmt: skip
    assert (tokens() == 4).any()
    for k, (got, want) in enumerate(pairs):
        assert torch.equal(got.values(), want), k


def gaps(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """Slices of sequences: lengths, and unused rows between them."""
    first, count = torch.tensor([0, 1, 2]), torch.tensor([2, 3, 1])
    return torch.nested.narrow(torch.ones(3, 6, *shape, dtype=dtype), 1, first, count, layout=torch.jagged)


MADE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "of a list": (lambda: torch.nested.nested_tensor(list(x().split(LENGTHS)), layout=torch.jagged), LENGTHS),
    "int32 offsets": (
        lambda: torch.nested.nested_tensor_from_jagged(x(), torch.tensor([0, 3, 3, 8, 9], dtype=torch.int32)),
        LENGTHS,
    ),
    "values of any strides": (lambda: jagged(x().t().contiguous().t()), LENGTHS),
    "values that repeat": (lambda: jagged(x()[:1].expand(ROWS, D)), LENGTHS),
    "turned twice": (lambda: jagged(x()).transpose(1, 2).contiguous().transpose(1, 2), LENGTHS),
    "a parameter": (lambda: torch.nn.Parameter(jagged(x()), requires_grad=False), LENGTHS),
    "one sequence": (lambda: jagged(x(), (ROWS,)), (ROWS,)),
    "empty sequences": (lambda: jagged(x(rows=0), (0, 0)), (0, 0)),
    "empty batch": (lambda: jagged(x(rows=0), ()), ()),
    "closed gaps": (lambda: gaps(D).contiguous(), (2, 3, 1)),
}


@pytest.mark.parametrize("how", MADE)
def test_jagged_tensors_of_any_construction(how: str, backend: str) -> None:
    make, lengths = MADE[how]
    t, place = make(), torch.cat([torch.empty(0, dtype=torch.int64), *map(torch.arange, lengths)])
    wanted = sinpe.add(t.values().detach(), positions=place)
    for start in (0, torch.tensor(0), torch.zeros(len(lengths), dtype=torch.int64)):
        got: Any = sinpe.add(t, start=start)
        assert torch.equal(got.values(), wanted) and got.shape[0] == len(lengths) and (got + t).shape[1] == t.shape[1]
        known = t._maybe_min_seqlen, t._maybe_max_seqlen
        assert (got._maybe_min_seqlen, got._maybe_max_seqlen) == known and (known == (0, 5)) == (how == "of a list")


WRITTEN: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "add_": lambda t: (sinpe.add_(t, alpha=torch.ones(1)), t),
    "out=x": lambda t: (sinpe.add(t, out=t), t),
    "out": lambda t: (lambda out: (sinpe.add(t, out=out), out))(torch.empty_like(t)),
    "out of equal offsets": lambda t: (lambda out: (sinpe.add(t, out=out), out))(jagged(torch.empty(ROWS, D))),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_in_place_and_out(way: str, backend: str) -> None:
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            t = jagged(x())
            version = None if t.is_inference() else t._version
            got, where = WRITTEN[way](t)
            assert got is where and torch.equal(where.values(), sinpe.add(x(), positions=PLACE))
            assert version is None or where is not t or t._version > version


def gradients(call: Callable[..., Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    copies = [leaf.clone().requires_grad_() for leaf in leaves]
    result: Any = call(*copies)
    values = result.values() if result.layout == torch.jagged else result
    return torch.autograd.grad((values.double() ** 3).sum(), copies)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients(dtype: torch.dtype, backend: str) -> None:
    leaves = x(dtype), torch.tensor([0.7]), REAL
    theirs = gradients(lambda t, a, p: sinpe.add(t, alpha=a, positions=p, **DROPPED), *leaves)
    for ours in (
        gradients(lambda t, a, p: sinpe.add(jagged(t), alpha=a, positions=jagged(p), **DROPPED), *leaves),
        gradients(lambda t, a, p: sinpe.add_(jagged(t) * 1, alpha=a, positions=jagged(p), **DROPPED), *leaves),
    ):
        assert all(map(torch.equal, ours, theirs))
    for sparse in (False, True):
        leaves, options = (weight(dtype), torch.tensor([0.7])), DROPPED | {"sparse": sparse, "padding_idx": 4}
        ours = gradients(lambda w, a: sinpe.embed(jagged(tokens()), w, alpha=a, **options), *leaves)  # noqa: B023
        theirs = gradients(lambda w, a: sinpe.embed(tokens(), w, alpha=a, positions=PLACE, **options), *leaves)  # noqa: B023
        assert ours[0].is_sparse == sparse and ours[0].to_dense().count_nonzero()
        assert torch.equal(ours[0].to_dense(), theirs[0].to_dense()) and torch.equal(ours[1], theirs[1])


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[], Tensor], dict[str, Any]]] = {
    "options": (lambda: SinusoidalPositionalEncoding(D, 0.4, 6, encoding="t2t", learned_alpha=True, scale=2.0), x, {}),
    "table": (lambda: SinusoidalPositionalEncoding(D, 0.1, 6, persistent_table=True), x, {"start": 1}),
    "starts": (lambda: SinusoidalPositionalEncoding(D, 0.0), x, {"start": STARTS}),
    "embedding": (lambda: SinusoidalEmbedding(V, D, 3, learned_alpha=True, scale=3.0, max_len=6), tokens, {"start": 1}),
    "positions": (lambda: SinusoidalPositionalEncoding(D, require_positions=True), x, {"positions": WHOLE}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, backend: str) -> None:
    make, data, given = LAYERS[name]
    for training in (True, False):
        layer, t, start = make().train(training), jagged(data()), given.get("start", 0)
        torch.manual_seed(9)
        got: Any = layer(t, **(given | ({"positions": like(WHOLE, t)} if "positions" in given else {})))
        each = start.repeat_interleave(torch.tensor(LENGTHS)) if isinstance(start, Tensor) else start
        torch.manual_seed(9)
        want = layer(data(), positions=given.get("positions", PLACE + each + layer.encoding.start))
        assert torch.equal(got.values(), want) and got.offsets() is t.offsets()


def test_meta_and_fake_tensors() -> None:
    meta = jagged(x()).to("meta")
    got: Any = sinpe.add(meta, start=3, dropout=0.1)
    assert got.device.type == "meta" and (got + meta).shape[0] == B
    assert sinpe.embed(jagged(tokens()).to("meta"), weight().to("meta")).device.type == "meta"
    with FakeTensorMode(shape_env=ShapeEnv()):
        fake = torch.nested.nested_tensor_from_jagged(torch.empty(ROWS, D), torch.tensor([0, 3, 9]))
        got = sinpe.add(fake, dropout=0.1)
        assert isinstance(got.values(), FakeTensor) and (got + fake).shape[0] == 2


# ------------------------------------------------------------------------------------------------- torch.compile


def batch(k: int) -> tuple[int, ...]:
    """Sequence lengths of batch k, different for each k."""
    return 2 + k, 0, 3 * k + 1, 4


WEIGHT = weight()
COMPILED: dict[str, Callable[..., Any]] = {
    "add": lambda t, ids, w, a: sinpe.add(t * w, T2T, alpha=a, start=STARTS) + t,
    "in place": lambda t, ids, w, a: sinpe.add_(t * w, alpha=a, dropout=0.3, seed=5) + t,
    "positions": lambda t, ids, w, a: sinpe.add(t * w, alpha=a, positions=ids) + sinpe.encode(ids, D),
    "embed": lambda t, ids, w, a: sinpe.embed(ids, WEIGHT * w, alpha=a, padding_idx=3, dropout=0.3, seed=5) + t,
    "layer": lambda t, ids, w, a: LAYER(t * w) * a,
}
LAYER = SinusoidalPositionalEncoding(D, 0.0, encoding="t2t", scale=2.0)


@pytest.mark.parametrize("to", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough("aot_eager"))])
@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_for_all_batch_lengths(name: str, to: str, reset_dynamo: None) -> None:
    """Equal to eager mode, forward and backward."""
    counter = CompileCounterWithBackend(to)
    compiled = torch.compile(COMPILED[name], fullgraph=True, backend=counter)
    for k in range(3):
        rows, results = sum(batch(k)), []
        for f in (compiled, COMPILED[name]):
            leaves = [x(rows=1)[0].requires_grad_(), torch.tensor([0.7], requires_grad=True)]
            t = jagged(x(rows=rows), batch(k))
            y = f(t, like(tokens(rows), t), *leaves)
            (y.values() ** 2).sum().backward()
            assert (y + t).shape[1] == t.shape[1]
            results.append([y.values().detach(), *(leaf.grad for leaf in leaves)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, **SUMMED)
    assert counter.frame_count == 1


THOROUGH = pytest.mark.thorough("the same batches by offsets alone")


@pytest.mark.parametrize("extremes", [False, pytest.param(True, marks=THOROUGH)])
def test_recompilations_equal_those_of_torch_operations(extremes: bool, reset_dynamo: None) -> None:
    """extremes: the smallest and largest lengths are known."""
    counts = []
    for call in (lambda t: sinpe.add(t, out=torch.empty_like(t)), lambda t: t.sin() + t):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("eager")
        compiled = torch.compile(call, fullgraph=True, backend=counter)
        for lengths in [(3, 5), (2, 4, 6), (7,), (4, 4)]:
            values = x(rows=sum(lengths))
            listed = list(values.split(lengths))
            t = torch.nested.nested_tensor(listed, layout=torch.jagged) if extremes else jagged(values, lengths)
            got = compiled(t)
            assert torch.equal(got.values(), call(t).values())
            assert not extremes or got._maybe_max_seqlen == max(lengths)
        counts.append(counter.frame_count)
    assert counts[0] <= counts[1] + extremes


# -------------------------------------------------------------------------------------------------------- errors


def shared() -> Tensor:
    memory = torch.zeros(ROWS + 1, D)
    return sinpe.add(jagged(memory[:-1]), out=jagged(memory[1:]))


def within(**given: Callable[[Any], Any]) -> Tensor:
    """In place, with arguments that are parts of x."""
    t = jagged(x())
    return sinpe.add_(t, **{name: make(t) for name, make in given.items()})


LAST, MASK = torch.tensor([0, 0, MAX - 3, 0]), torch.zeros(B, 5, dtype=torch.bool)
OTHERS = (3, 1, 4, 1)
NESTED = torch.nested.nested_tensor
ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: sinpe.add(gaps(D)), ValueError, r"x: .* got one with lengths.*; pass x.contiguous\(\)"),
    (lambda: sinpe.embed(gaps(dtype=torch.int64), weight()), ValueError, "ids: .* with lengths"),
    (lambda: sinpe.encode(gaps(), D), ValueError, "positions: .* with lengths"),
    (lambda: sinpe.add(jagged(x()).transpose(1, 2)), ValueError, "x: .* got dimension 2 in shape"),
    (lambda: sinpe.add(NESTED([x(), x(rows=2)])), TypeError, "x: .* make it with layout=torch.jagged$"),
    (lambda: sinpe.embed(NESTED([tokens(), tokens(2)]), weight()), TypeError, "ids: .* with layout=torch.jagged$"),
    (lambda: sinpe.add(jagged(x()[:, 0])), ValueError, r"x: expected .* 3 dimensions .*\(4, j\d+\)"),
    (lambda: sinpe.add(jagged(x()), padding_mask=MASK), ValueError, "padding_mask: expected None for a jagged x"),
    (lambda: sinpe.embed(jagged(tokens()), weight(), padding_mask=MASK), ValueError, "padding_mask: .* jagged ids"),
    (lambda: sinpe.add(jagged(x()), "mae2d"), ValueError, "encoding, grid_shape.* got 'mae2d', None and 0"),
    (lambda: sinpe.add(jagged(x()), grid_shape=(3, 3)), ValueError, r"got None, \(3, 3\) and 0"),
    (lambda: sinpe.add(jagged(x()), seq_dim=0), ValueError, "seq_dim: expected 1, .* got 0"),
    (lambda: sinpe.add(jagged(torch.ones(ROWS, 2, D))), ValueError, "seq_dim: expected 1, .* got -2 for shape"),
    (lambda: SinusoidalPositionalEncoding(D, batch_first=False)(jagged(x())), ValueError, "seq_dim: .* batch_first"),
    (lambda: sinpe.add(jagged(x()), channel_dim=1), ValueError, "seq_dim, channel_dim: expected two"),
    (lambda: sinpe.add(jagged(x()), channel_dim=0), ValueError, "channel_dim: expected .* behind"),
    (lambda: sinpe.add(jagged(x()), positions=PLACE), TypeError, "positions: expected a jagged .* torch.nested"),
    (lambda: sinpe.add(jagged(x()), positions=jagged(PLACE, OTHERS)), ValueError, "positions: .* offsets of x"),
    (lambda: sinpe.add(jagged(x()), positions=jagged(x()[:, :2])), ValueError, "positions: .* one for each row"),
    (lambda: sinpe.add(x(), positions=jagged(PLACE)), TypeError, "positions: .* nested"),
    (lambda: sinpe.add(jagged(x()), start=STARTS[:3]), ValueError, r"start: expected shape \(\) or \(4,\), .* \(3,\)"),
    (lambda: sinpe.add(jagged(x()), start=[1, 2, 3, 4]), TypeError, r"start: .*tensor\(\[1, 2, 3, 4\]\)"),
    (lambda: sinpe.add(jagged(x()), start=MAX - 3), ValueError, f"start: .* to {MAX + 1};"),
    (lambda: sinpe.add(jagged(x()), start=LAST), ValueError, f"start: .* to {MAX + 1};"),
    (lambda: SinusoidalPositionalEncoding(D, max_len=4)(jagged(x())), IndexError, "positions: expected 0 to 3, .* 4"),
    (lambda: sinpe.add(jagged(x()), out=x()), TypeError, "out: expected a jagged nested tensor, as x is"),
    (lambda: sinpe.add(jagged(x()), out=jagged(x(), (9, 0, 0, 0))), ValueError, "out: expected the offsets of x"),
    (lambda: sinpe.add(jagged(x()), out=jagged(x(torch.float64))), ValueError, "out: .* dtype torch.float32"),
    (lambda: sinpe.add(x(), out=jagged(x())), TypeError, "out: expected a dense .* nested"),
    (shared, RuntimeError, "out: expected memory apart from x"),
    (lambda: within(alpha=lambda t: t.values()[0, :1]), RuntimeError, "alpha: expected memory apart"),
    (
        lambda: within(positions=lambda t: jagged(t.values()[:, 0]), alpha=lambda t: torch.ones(1, requires_grad=True)),
        RuntimeError,
        "positions: expected memory apart",
    ),
    (lambda: sinpe.add_(jagged(x()[:1].expand(ROWS, D))), RuntimeError, "x: expected one memory location"),
    (lambda: sinpe.add_(jagged(x().requires_grad_())), RuntimeError, "x: expected .* view of a leaf"),
    (lambda: sinpe.embed(jagged(tokens()), jagged(weight(), (11,))), TypeError, "weight: .* nested"),
]


@pytest.mark.parametrize("case", range(len(ERRORS)), ids=lambda k: ERRORS[k][2][:24])
def test_bad_arguments(case: int, backend: str) -> None:
    call, error, pattern = ERRORS[case]
    with pytest.raises(error, match=pattern) as caught:
        call()
    assert type(caught.value) is error and MESSAGE_FORM.match(str(caught.value))
