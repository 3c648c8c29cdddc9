"""`embed`: the lookup, ids that are no rows, padding, and gradients dense and sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding as Layer

V, B, S, D = 13, 3, 6, 10
P, SEED = 0.3, 77
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
T2T = sinpe.convention("t2t", D, start=4)
MASK = torch.tensor([[False, True, False, False, False, True]] * B)


def table(dtype: torch.dtype = torch.float32, rows: int = V, dim: int = D) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(3)).to(dtype)


def tokens(*shape: int, rows: int = V) -> Tensor:
    return torch.randint(0, rows, shape or (B, S), generator=torch.Generator().manual_seed(4))


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "start": {"start": 9, "scale": D**0.5},
    "starts": {"start": torch.tensor([0, 100, -5]), "alpha": 0.3},
    "alpha": {"alpha": torch.tensor([0.7])},
    "positions": {"positions": torch.arange(B * S).reshape(B, S) * 7},
    "fractions": {"positions": torch.arange(S) / 3, "padding_mask": MASK},
    "dropout": {"dropout": P, "seed": SEED, "scale": 3.0, "padding_mask": MASK[0]},
    "everything dropped": {"dropout": 1.0},
    "float32 angle": {"encoding": sinpe.Encoding(D, angle="float32_exp"), "dropout": P, "seed": SEED},
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_is_add_of_the_looked_up_rows(form: str, dtype: torch.dtype, backend: str) -> None:
    weight, ids, given = table(dtype), tokens(), dict(FORMS[form])
    encoding = given.pop("encoding", T2T)
    got = sinpe.embed(ids, weight, encoding, **given)
    assert torch.equal(got, sinpe.add(functional.embedding(ids, weight), encoding, **given))
    assert got.dtype == dtype and got.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_ids_of_any_form(dtype: torch.dtype, backend: str) -> None:
    weight = table()
    for ids in (
        tokens(S),
        tokens(),
        tokens(2, B, S),
        tokens(S, B).t(),
        tokens(B, 2 * S)[:, ::2],
        tokens(S).expand(B, S),
    ):
        want = sinpe.add(functional.embedding(ids, weight).reshape(*ids.shape, D), T2T)
        assert torch.equal(sinpe.embed(ids.to(dtype), weight, T2T), want)
    for shape in ((0,), (0, S), (B, 0)):
        assert sinpe.embed(tokens(*shape), weight).shape == (*shape, D)
    for weight in (table(dim=D).t().contiguous().t(), table(rows=2 * V)[::2], table(dim=2 * D)[:, :D]):
        ids = tokens()
        assert torch.equal(sinpe.embed(ids, weight), sinpe.add(functional.embedding(ids, weight)))
    one = table(dim=1)
    assert torch.equal(sinpe.embed(tokens(), one), sinpe.add(functional.embedding(tokens(), one)))


def test_sequence_first(backend: str) -> None:
    weight, ids = table().requires_grad_(), tokens()
    for given in ({}, {"start": torch.tensor([4, 0, 9])}, {"padding_mask": MASK, "positions": torch.rand(B, S)}):
        want = sinpe.embed(ids, weight, T2T, **given)
        assert torch.equal(sinpe.embed(ids.t(), weight, T2T, seq_dim=0, **given), want.transpose(0, 1))
    rows = functional.embedding(ids.t(), weight)
    got = sinpe.embed(ids.t(), weight, T2T, seq_dim=0, dropout=P, seed=SEED)
    assert torch.equal(got, sinpe.add(rows, T2T, seq_dim=0, dropout=P, seed=SEED))  # of the result's own elements
    grad = torch.randn(S, B, D)
    (mine,) = torch.autograd.grad(got, weight, grad)
    (theirs,) = torch.autograd.grad(torch.where(got != 0, rows / (1 - round(P * 65536) / 65536), 0.0), weight, grad)
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    layer = Layer(V, D, dropout=0.0, batch_first=False)
    assert torch.equal(layer(ids.t()), sinpe.embed(ids, layer.weight).transpose(0, 1))
    assert torch.equal(layer.eval()(ids[0]), sinpe.embed(ids[0], layer.weight))
    with pytest.raises(IndexError, match="seq_dim: expected -2 to 1 for ids of 2 dimensions, got 2"):
        sinpe.embed(ids, weight, seq_dim=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_short_cut_of_inference_gives_the_same_bits(dtype: torch.dtype, backend: str) -> None:
    layer = Layer(V, D, 3, dropout=P, encoding="fairseq", scale=1.7, max_len=50, dtype=dtype)
    for ids in (tokens(), tokens(S), tokens()[:, :1], tokens(S, B).t(), tokens(0, S), tokens(2, B, S).int()):
        for start in (0, 9, 44):
            want = sinpe.embed(ids, layer.weight, "fairseq", scale=1.7, start=start)
            with torch.no_grad():
                short = layer.eval()(ids, start=start)
            assert torch.equal(short, want) and short.stride() == want.stride()
            assert torch.equal(layer(ids, start=start), want) and layer(ids, start=start).requires_grad
    with torch.no_grad():
        for wrong, error in ((45, IndexError), (-1, IndexError), (1.5, TypeError), (2**63, ValueError)):
            with pytest.raises(error):
                layer(tokens(), start=wrong)
        free = Layer(V, D).eval()
        for wrong in (2**63, 2**63 - 2):
            with pytest.raises(ValueError, match="start: expected"):
                free(tokens(), start=wrong)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_torch_func(backend: str) -> None:
    weight, ids = table(), tokens(4, B, S)
    vmap, grad = torch.func.vmap, torch.func.grad
    want = torch.stack([sinpe.embed(each, weight, T2T, dropout=P, seed=SEED) for each in ids])
    assert torch.equal(vmap(lambda t: sinpe.embed(t, weight, T2T, dropout=P, seed=SEED))(ids), want)
    weights = torch.stack([weight, -weight, 2 * weight, weight])
    want = torch.stack([sinpe.embed(t, w, T2T, start=3) for t, w in zip(ids, weights, strict=True)])
    assert torch.equal(vmap(lambda t, w: sinpe.embed(t, w, T2T, start=3))(ids, weights), want)

    def loss(w: Tensor) -> Tensor:
        return sinpe.embed(ids[0], w, T2T, padding_idx=0, dropout=P, seed=SEED).sin().sum()

    given = weight.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(given), given)
    assert torch.allclose(grad(loss)(weight), want, rtol=1e-5, atol=1e-5)


BAD_IDS = {"beyond": (V, V), "negative": (-1, -1), "far": (2**40, 2**40), "lowest": (-(2**63), -(2**63))}


@pytest.mark.parametrize("value, told", BAD_IDS.values(), ids=BAD_IDS)
@pytest.mark.parametrize("grad", [False, True])
def test_an_id_that_is_no_row(value: int, told: int, grad: bool, backend: str) -> None:
    ids, layer = tokens(), Layer(V, D, dropout=0.0)
    ids[1, 2] = value
    weight = table().requires_grad_(grad)
    message = rf"ids: expected 0 to {V - 1}, rows of weight, got {told} \(weight has {V} rows\)"
    for given in ({}, {"dropout": P, "seed": 1}, {"encoding": sinpe.Encoding(D, angle="float32_exp")}):
        with pytest.raises(IndexError, match=message):
            sinpe.embed(ids, weight, **given)
    with pytest.raises(IndexError, match=message):
        layer(ids)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "ids float": (lambda: sinpe.embed(torch.ones(S), table()), TypeError, "ids: expected an integer tensor, got torch"),
    "ids bool": (lambda: sinpe.embed(torch.ones(S, dtype=torch.bool), table()), TypeError, "ids: expected an integer"),
    "ids list": (lambda: sinpe.embed([1, 2], table()), TypeError, "ids: expected a torch.Tensor, got list"),
    "ids scalar": (lambda: sinpe.embed(torch.tensor(1), table()), ValueError, r"ids: expected 1 to 15 dimensions"),
    "ids device": (lambda: sinpe.embed(tokens().to("meta"), table()), RuntimeError, "ids: expected the device of"),
    "weight rank": (lambda: sinpe.embed(tokens(), torch.ones(D)), ValueError, r"weight: expected shape \(num_emb"),
    "weight dtype": (lambda: sinpe.embed(tokens(), torch.ones(V, D).long()), TypeError, "weight: expected torch.f"),
    "weight sparse": (lambda: sinpe.embed(tokens(), torch.ones(V, D).to_sparse()), TypeError, "weight: expected a"),
    "dim": (lambda: sinpe.embed(tokens(), table(), 6), ValueError, r"weight: expected 6 channels"),
    "padding_idx": (lambda: sinpe.embed(tokens(), table(), padding_idx=V), ValueError, "padding_idx: expected -13 to"),
    "padding_idx type": (lambda: sinpe.embed(tokens(), table(), padding_idx=1.0), TypeError, "padding_idx: expected"),
    "positions": (
        lambda: sinpe.embed(tokens(), table(), positions=torch.arange(S + 1)),
        ValueError, r"positions: expected shape \(6,\) or \(3, 6\), .* of ids, got \(7,\) for ids of shape \(3, 6\)",
    ),
    "mask": (lambda: sinpe.embed(tokens(), table(), padding_mask=MASK.long()), TypeError, "padding_mask: expected"),
    "start": (lambda: sinpe.embed(tokens(), table(), start=2**63 - 2), ValueError, "start: expected every position"),
    "alpha": (lambda: sinpe.embed(tokens(), table(), alpha=torch.ones(3)), ValueError, r"alpha: expected a float or a"),
    "encode_padding": (
        lambda: sinpe.embed(tokens(2, B, S), table(), padding_idx=0, encode_padding=False),
        ValueError, r"encode_padding: expected ids of shape \(sequence,\) or \(batch, sequence\)",
    ),
    "layer dtype": (lambda: Layer(V, D, dtype=torch.int64), RuntimeError, "floating point"),
    "layer encoding": (lambda: Layer(V, D, encoding=sinpe.Encoding(4)), ValueError, "encoding: expected dim 10"),
    "layer padding_idx": (lambda: Layer(V, D, V), ValueError, "padding_idx: expected -13 to 12"),
    "layer dropout": (lambda: Layer(V, D, dropout=2.0), ValueError, "dropout: expected 0 to 1, got 2.0"),
    "layer size": (lambda: Layer(0, D), ValueError, "num_embeddings: expected an int in 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refusals(case: Any, backend: str) -> None:
    call, error, message = case
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("padding_idx", [None, 0, -1, 4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_gradient_of_weight(dtype: torch.dtype, sparse: bool, padding_idx: int | None, backend: str) -> None:
    """nn.Embedding's gradient of the masked and scaled rows; dense ones summed in acc and rounded once."""
    ids, weight = tokens(), table(dtype).requires_grad_()
    grad = torch.randn(B, S, D, generator=torch.Generator().manual_seed(9)).to(dtype)
    given: dict[str, Any] = {"scale": 3.0, "dropout": P, "seed": SEED}
    out = sinpe.embed(ids, weight, T2T, padding_idx=padding_idx, sparse=sparse, **given)
    (got,) = torch.autograd.grad(out, weight, grad)
    assert got.is_sparse == sparse and got.dtype == dtype
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    keep = sinpe.add(torch.full((B, S, D), 9.0), dropout=P, seed=SEED) != 0
    factor = torch.tensor(3.0 * 65536 / (65536 - round(P * 65536)), dtype=acc)
    want = torch.zeros(V, D, dtype=acc)
    for token, row in zip(ids.flatten().tolist(), torch.where(keep, grad.to(acc), 0.0).reshape(-1, D), strict=True):
        if padding_idx is None or token != padding_idx % V:
            want[token] += row
    want = (want * factor).to(dtype)
    if sparse:
        values = got._values()
        assert values.shape[0] == sum(t != (None if padding_idx is None else padding_idx % V) for t in ids.flatten())
        rounding = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
        assert torch.allclose(got.to_dense().to(acc), want.to(acc), rtol=0, atol=rounding)
    else:
        assert torch.equal(got, want)


def test_gradients_have_the_same_bits_each_time(backend: str) -> None:
    """Whatever the number of threads: one hot token, tokens that never occur, more channels than one block."""
    weight = table(rows=500, dim=300).requires_grad_()
    ids = torch.where(torch.rand(16, 64) < 0.5, 7, torch.randint(0, 400, (16, 64)))
    grad, before = torch.randn(16, 64, 300), torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 4, 4):
            torch.set_num_threads(threads)
            out = sinpe.embed(ids, weight, dropout=P, seed=SEED)
            found.append((out.detach(), *torch.autograd.grad(out, weight, grad)))
    finally:
        torch.set_num_threads(before)
    for each in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(each, found[0], strict=True))
    assert bool((found[0][1][400:] == 0).all())


def double(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)


IDS = torch.tensor([[1, 0, 3, 1], [2, 2, 0, 1]])
REAL = torch.tensor([0.0, 0.75, -2.5, 3.0], dtype=torch.float64)
DROPPED = {"dropout": 0.4, "seed": 5}
PAD = torch.tensor([[False, True, False, False], [True, False, False, True]])
# No id equals padding_idx here: a gradient that is left out is no derivative.
CHECKED: dict[str, tuple[Callable[..., Tensor], tuple[Callable[[], Tensor], ...]]] = {
    "weight": (lambda w: sinpe.embed(IDS, w, scale=1.7), (lambda: double(4, 5),)),
    "weight dropped": (lambda w: sinpe.embed(IDS, w, scale=1.7, padding_idx=4, **DROPPED), (lambda: double(5, 5),)),
    "one dimension": (
        lambda w, a: sinpe.embed(IDS[0], w, alpha=a, **DROPPED), (lambda: double(4, 5), lambda: double(1)),
    ),
    "three dimensions": (
        lambda w, a, p: sinpe.embed(IDS.reshape(1, 2, 4), w, alpha=a, positions=p, **DROPPED),
        (lambda: double(4, 5), lambda: double(1), lambda: REAL.clone().requires_grad_()),
    ),
    "everything": (
        lambda w, a, p: sinpe.embed(
            IDS, w, alpha=a, positions=p, padding_mask=PAD, scale=0.3, padding_idx=4, **DROPPED
        ),
        (lambda: double(5, 5), lambda: double(1), lambda: REAL.expand(2, 4).clone().requires_grad_()),
    ),
    "no padding encoded": (
        lambda a: sinpe.embed(IDS, torch.ones(4, 5).double(), alpha=a, padding_idx=0, encode_padding=False),
        (lambda: double(1)[0].detach().requires_grad_(),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKED.values(), ids=CHECKED)
def test_first_and_second_order(case: Any, backend: str) -> None:
    function, makers = case
    inputs = tuple(make() for make in makers)
    assert gradcheck(function, inputs)
    assert gradgradcheck(lambda *given: function(*given).sin(), inputs, fast_mode=True)


def test_sparse_gradients_pass_gradcheck(backend: str) -> None:
    weight = double(4, 5)
    (dense,) = torch.autograd.grad(sinpe.embed(IDS, weight, **DROPPED).sin().sum(), weight)
    (sparse,) = torch.autograd.grad(sinpe.embed(IDS, weight, sparse=True, **DROPPED).sin().sum(), weight)
    assert torch.allclose(sparse.to_dense(), dense, rtol=1e-14, atol=1e-14)
    theirs = nn.Embedding(4, 5, padding_idx=2, sparse=True, dtype=torch.float64)
    theirs(IDS).sum().backward()
    mine = Layer(4, 5, padding_idx=2, sparse=True, dropout=0.0, dtype=torch.float64)
    mine(IDS).sum().backward()
    assert torch.equal(mine.weight.grad._indices(), theirs.weight.grad._indices())
    assert torch.equal(mine.weight.grad.to_dense(), theirs.weight.grad.to_dense())


def test_nothing_is_kept_but_the_ids(backend: str) -> None:
    saved: list[Tensor] = []
    weight, ids = table(rows=50).requires_grad_(), tokens(40, S)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        sinpe.embed(ids, weight, dropout=P)
    assert sum(t.numel() * t.element_size() for t in saved) < ids.numel() * 8 + 2000
    assert sinpe.embed(ids, weight.detach(), dropout=P).grad_fn is None


def test_padding(backend: str) -> None:
    """The row as it is stored; its encoding may be left out."""
    weight, ids = table(), torch.tensor([[3, 5, 0, 0], [0, 1, 2, 0]])
    want = sinpe.add(functional.embedding(ids, weight))
    assert torch.equal(sinpe.embed(ids, weight, padding_idx=0), want)
    bare = sinpe.embed(ids, weight, padding_idx=0, encode_padding=False)
    assert torch.equal(bare, sinpe.add(functional.embedding(ids, weight), padding_mask=ids == 0))
    extra = torch.tensor([True, False, False, False])
    both = sinpe.embed(ids, weight, padding_idx=-V, encode_padding=False, padding_mask=extra)
    assert torch.equal(both, sinpe.add(functional.embedding(ids, weight), padding_mask=(ids == 0) | extra))
    layer = Layer(V, D, 0, dropout=0.0, encode_padding=False)
    assert bool((layer.weight[0] == 0).all()) and bool((layer(ids)[ids == 0] == 0).all())
