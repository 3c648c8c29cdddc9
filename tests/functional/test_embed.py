"""`embed`: lookup, ids, padding, and gradients: dense and sparse, deterministic, in narrow dtypes.

What holds for every function: test_every_function.py; any argument and gradient, against the formula: test_fuzz.py;
derivatives to second order: tests/ops.
"""

from __future__ import annotations

import pytest
import torch
from oracles import acc_of, tree_sum
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

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
KEPT_SCALE = 65536 / (65536 - round(P * 65536))


def table(dtype: torch.dtype = torch.float32, rows: int = V, dim: int = D) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(3)).to(dtype)


def tokens(*shape: int, rows: int = V) -> Tensor:
    return torch.randint(0, rows, shape or (B, S), generator=torch.Generator().manual_seed(4))


IDS_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def test_ids_of_any_dtype_and_shape(backend: str) -> None:
    weight = table()
    for ids in (tokens(S), tokens(2, B, S), tokens(S, B).t(), tokens(B, 2 * S)[:, ::2], tokens(S).expand(B, S)):
        want = sinpe.add(functional.embedding(ids, weight).reshape(*ids.shape, D), T2T)
        for dtype in IDS_DTYPES:
            assert torch.equal(sinpe.embed(ids.to(dtype), weight, T2T), want)
    zeros = torch._efficientzerotensor((2, S), dtype=torch.int64)  # without storage: torch's own lookup crashes
    assert torch.equal(sinpe.embed(zeros, weight), sinpe.add(weight[:1].expand(2, S, D)))
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
    (theirs,) = torch.autograd.grad(torch.where(got != 0, rows * KEPT_SCALE, 0.0), weight, grad)
    assert torch.allclose(mine, theirs, **SUMMED)


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


def test_sparse_gradient_is_that_of_nn_embedding(backend: str) -> None:
    theirs = nn.Embedding(V, D, padding_idx=2, sparse=True, dtype=torch.float64)
    mine = Layer(V, D, padding_idx=2, sparse=True, dropout=0.0, dtype=torch.float64)
    for each in (theirs, mine):
        each(tokens()).sum().backward()
    assert torch.equal(mine.weight.grad._indices(), theirs.weight.grad._indices())
    assert torch.equal(mine.weight.grad.to_dense(), theirs.weight.grad.to_dense())


def test_gradient_of_a_slice_as_long_as_the_batch(backend: str) -> None:
    """A slice of a longer sequence, with length equal to the batch size: dimensions cannot be confused."""
    weight, ids = table(torch.float64).requires_grad_(), tokens(S + 1, S)
    factors = torch.arange((S + 1) * (S + 1) * D).reshape(S + 1, S + 1, D)

    def gradient(out: Tensor) -> Tensor:
        whole = torch.cat([torch.zeros(S + 1, 1, D), out], 1)
        return torch.autograd.grad((whole * factors).sum(), weight)[0]

    assert torch.equal(gradient(sinpe.embed(ids, weight, T2T)), gradient(weight[ids]))  # integer values: exact


@pytest.mark.bad_input(20, "compiled", "eager", "embedding")
def test_gradients_are_deterministic(backend: str) -> None:
    """For any number of threads: one frequent token, tokens that do not occur, more channels than one block."""
    weight = table(rows=500, dim=300).requires_grad_()
    ids = torch.where(torch.rand(4, 64) < 0.5, 7, torch.randint(0, 400, (4, 64)))
    grad, before = torch.randn(4, 64, 300), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            out = sinpe.embed(ids, weight, dropout=P, seed=SEED)
            results.append((out.detach(), *torch.autograd.grad(out, weight, grad)))
    finally:
        torch.set_num_threads(before)
    for each in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(each, results[0], strict=True))
    assert bool((results[0][1][400:] == 0).all())


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="an older torch")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_passes_accumulate_in_float32(dtype: torch.dtype, backend: str) -> None:
    """With grad_dtype, autograd adds the gradients of several passes, each rounded once, in float32."""
    weight, alone, ids = table(dtype).requires_grad_(), table(dtype).requires_grad_(), tokens(4, 300)
    weight.grad_dtype = torch.float32
    want = torch.zeros(V, D)
    for _ in range(5):
        grad = torch.randn(*ids.shape, D).to(dtype)
        sinpe.embed(ids, weight, T2T).backward(grad)
        want += torch.autograd.grad(sinpe.embed(ids, alone, T2T), alone, grad)[0].float()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert torch.equal(weight.grad, want) and not torch.equal(want, want.to(dtype).float())


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_of_a_frequent_token(dtype: torch.dtype, backend: str) -> None:
    """The tokens of a row are summed as a tree, independent of other tokens; sequentially up to 64."""
    counts = torch.tensor([4162, 64, 65, 3, 0, 128])
    ids = torch.arange(6).repeat_interleave(counts)
    ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))].reshape(3, -1)
    weight = table(dtype, 6, 9).requires_grad_()
    grad = (torch.randn(*ids.shape, 9, generator=torch.Generator().manual_seed(2)) * 100).to(dtype)
    got = torch.autograd.grad(sinpe.embed(ids, weight, scale=2.0, dropout=P, seed=SEED), weight, grad)[0]
    keep = sinpe.add(torch.full((*ids.shape, 9), 9.0), dropout=P, seed=SEED) != 0
    terms = torch.where(keep, grad.to(acc_of(dtype)), 0.0).reshape(-1, 9)
    factor = torch.tensor(2.0 * 65536 / (65536 - round(P * 65536)), dtype=terms.dtype)
    for row in range(6):
        some = terms[ids.flatten() == row]
        assert torch.equal(got[row], (tree_sum(some) * factor).to(dtype) if len(some) else torch.zeros(9, dtype=dtype))
        if 0 < len(some) <= 64:
            in_order = torch.zeros(9, dtype=terms.dtype)
            for one in some:
                in_order += one
            assert torch.equal(tree_sum(some), in_order)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_rows_accumulate_in_float32(dtype: torch.dtype, backend: str) -> None:
    """Whichever way the gradient is requested: a 16-bit sum would stop at 256 or 2048."""
    count = 5000
    ids, weight = torch.zeros(1, count, dtype=torch.long), torch.zeros(3, 8, dtype=dtype)
    want = torch.tensor(float(count)).to(dtype)

    def loss(w: Tensor) -> Tensor:
        return sinpe.embed(ids, w).sum()

    given = weight.clone().requires_grad_()
    gradients = [torch.autograd.grad(loss(given), given)[0], torch.func.grad(loss)(weight)]
    gradients.append(torch.func.vmap(torch.func.grad(loss))(weight.unsqueeze(0))[0])
    with FlopCounterMode(display=False):
        gradients.append(torch.autograd.grad(loss(given), given)[0])
    for grad in gradients:
        assert bool((grad[0] == want).all()) and bool((grad[1:] == 0).all())


def test_autograd_saves_only_the_ids(backend: str) -> None:
    saved: list[Tensor] = []
    weight, ids = table(rows=50).requires_grad_(), tokens(40, S)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        sinpe.embed(ids, weight, dropout=P)
    assert sum(t.numel() * t.element_size() for t in saved) < ids.numel() * 8 + 2000
    assert sinpe.embed(ids, weight.detach(), dropout=P).grad_fn is None
