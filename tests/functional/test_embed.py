"""`embed`: lookup, ids out of range, bad arguments, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding as Layer

pytestmark = pytest.mark.emulated

V, B, S, D = 13, 3, 6, 10
P, SEED = 0.3, 77
# float32 sums of a few dozen terms of size 1, in another order
SUMMED = {"rtol": 1e-5, "atol": 1e-5}
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
def test_embed_is_add_of_looked_up_rows(form: str, dtype: torch.dtype, backend: str) -> None:
    weight, ids, given = table(dtype), tokens(), dict(FORMS[form])
    encoding = given.pop("encoding", T2T)
    got = sinpe.embed(ids, weight, encoding, **given)
    assert torch.equal(got, sinpe.add(functional.embedding(ids, weight), encoding, **given))
    assert got.dtype == dtype and got.is_contiguous()


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64],
)
def test_ids_of_any_dtype_and_layout(dtype: torch.dtype, backend: str) -> None:
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
    zeros = torch._efficientzerotensor((2, S), dtype=dtype)  # a tensor without storage: torch's own lookup crashes
    assert torch.equal(sinpe.embed(zeros, table()), sinpe.add(table()[:1].expand(2, S, D)))
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
    # the mask is indexed by the result's elements
    assert torch.equal(got, sinpe.add(rows, T2T, seq_dim=0, dropout=P, seed=SEED))
    grad = torch.randn(S, B, D)
    (mine,) = torch.autograd.grad(got, weight, grad)
    (theirs,) = torch.autograd.grad(torch.where(got != 0, rows / (1 - round(P * 65536) / 65536), 0.0), weight, grad)
    assert torch.allclose(mine, theirs, **SUMMED)
    layer = Layer(V, D, dropout=0.0, batch_first=False)
    assert torch.equal(layer(ids.t()), sinpe.embed(ids, layer.weight).transpose(0, 1))
    assert torch.equal(layer.eval()(ids[0]), sinpe.embed(ids[0], layer.weight))
    with pytest.raises(IndexError, match="seq_dim: expected -2 to 1 for ids of 2 dimensions, got 2"):
        sinpe.embed(ids, weight, seq_dim=2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_inference_fast_path_is_bitwise_equal(dtype: torch.dtype, backend: str) -> None:
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
    assert torch.allclose(grad(loss)(weight), want, **SUMMED)


BAD_IDS = {"beyond": (V, V), "negative": (-1, -1), "far": (2**40, 2**40), "lowest": (-(2**63), -(2**63))}


@pytest.mark.parametrize("value, told", BAD_IDS.values(), ids=BAD_IDS)
@pytest.mark.parametrize("grad", [False, True])
def test_id_out_of_range(value: int, told: int, grad: bool, backend: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--require-backend") == "emulated":
        pytest.skip("CUDA kernels do not check ids: such a row is NaN (docs/cuda.md)")
    ids, layer = tokens(), Layer(V, D, dropout=0.0)
    ids[1, 2] = value
    weight = table().requires_grad_(grad)
    message = rf"ids: expected 0 to {V - 1}, rows of weight, got {told} \(weight has {V} rows\)"
    for given in ({}, {"dropout": P, "seed": 1}, {"encoding": sinpe.Encoding(D, angle="float32_exp")}):
        with pytest.raises(IndexError, match=message):
            sinpe.embed(ids, weight, **given)
    with pytest.raises(IndexError, match=message):
        layer(ids)


ERRORS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
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
    "layer dtype": (lambda: Layer(V, D, dtype=torch.int64), TypeError, "dtype: expected torch.float32"),
    "no padding_idx": (lambda: sinpe.embed(tokens(), table(), encode_padding=False), ValueError, "encode_padding"),
    "layer bare": (lambda: Layer(V, D, encode_padding=False), ValueError, "encode_padding: expected a padding_idx"),
    "layer encoding": (lambda: Layer(V, D, encoding=sinpe.Encoding(4)), ValueError, "encoding: expected dim 10"),
    "layer padding_idx": (lambda: Layer(V, D, V), ValueError, "padding_idx: expected -13 to 12"),
    "layer dropout": (lambda: Layer(V, D, dropout=2.0), ValueError, "dropout: expected 0 to 1, got 2.0"),
    "layer size": (lambda: Layer(0, D), ValueError, "num_embeddings: expected an int in 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_bad_arguments(case: Any, backend: str) -> None:
    call, error, message = case
    with pytest.raises(error, match=message):
        call()


def test_padding(backend: str) -> None:
    """The padding row is the stored row; encode_padding=False omits its encoding."""
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
