"""Gradients of `embed`: dense and sparse, first and second order, deterministic, for empty and narrow inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import acc_of, tree_sum
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalEmbedding as Layer

pytestmark = pytest.mark.emulated

V, B, S, D = 13, 3, 6, 10
P, SEED = 0.3, 77
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
T2T = sinpe.convention("t2t", D, start=4)


def table(dtype: torch.dtype = torch.float32, rows: int = V, dim: int = D) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(3)).to(dtype)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, V, shape or (B, S), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("padding_idx", [None, 0, -1, 4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_of_weight(dtype: torch.dtype, sparse: bool, padding_idx: int | None, backend: str) -> None:
    """nn.Embedding's gradient of the masked and scaled rows; dense gradients are summed in acc and rounded once."""
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
        # Each row is the sum of a few tokens, rounded separately here.
        rounding = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
        assert torch.allclose(got.to_dense().to(acc), want.to(acc), rtol=0, atol=rounding)
    else:
        assert torch.equal(got, want)


GRADS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda y: y.sum(),
    "transposed": lambda y: (y.transpose(0, 2) * torch.arange(B * S * D).reshape(D, S, B)).sum(),
    "half of it": lambda y: y[:, ::2, 1::2].sum(),
}


@pytest.mark.bad_input(19, "compiled", "eager", "embedding")
@pytest.mark.parametrize("grad", GRADS)
@pytest.mark.parametrize("sparse", [False, True])
def test_grad_output_of_any_layout(grad: str, sparse: bool, backend: str) -> None:
    weight, ids = table(torch.float64).requires_grad_(), tokens()
    out = sinpe.embed(ids, weight, T2T, dropout=0.5, seed=SEED, sparse=sparse)
    (got,) = torch.autograd.grad(GRADS[grad](out), weight)
    (want,) = torch.autograd.grad(GRADS[grad](torch.where(out != 0, 2.0 * weight[ids], 0.0)), weight)
    assert torch.equal(got.to_dense(), want)  # integer values: exact


def test_gradient_of_a_slice_as_long_as_the_batch(backend: str) -> None:
    """A slice of a longer sequence, with length equal to the batch size: dimensions cannot be confused."""
    weight, ids = table(torch.float64).requires_grad_(), tokens(S + 1, S)
    factors = torch.arange((S + 1) * (S + 1) * D).reshape(S + 1, S + 1, D)

    def gradient(out: Tensor) -> Tensor:
        whole = torch.cat([torch.zeros(S + 1, 1, D), out], 1)
        return torch.autograd.grad((whole * factors).sum(), weight)[0]

    assert torch.equal(gradient(sinpe.embed(ids, weight, T2T)), gradient(weight[ids]))  # integer values: exact


def test_gradients_are_deterministic(backend: str) -> None:
    """For any number of threads: one frequent token, tokens that do not occur, more channels than one block."""
    weight = table(rows=500, dim=300).requires_grad_()
    ids = torch.where(torch.rand(16, 64) < 0.5, 7, torch.randint(0, 400, (16, 64)))
    grad, before = torch.randn(16, 64, 300), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 4, 4):
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
    weight, ids = table(dtype).requires_grad_(), tokens(4, 300)
    weight.grad_dtype = torch.float32
    want = torch.zeros(V, D)
    for number in range(5):
        grad = torch.randn(*ids.shape, D, generator=torch.Generator().manual_seed(number)).to(dtype)
        sinpe.embed(ids, weight, T2T).backward(grad)
        alone = table(dtype).requires_grad_()
        sinpe.embed(ids, alone, T2T).backward(grad)
        assert alone.grad is not None and alone.grad.dtype == dtype
        want += alone.grad.float()
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


def double(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)


IDS = torch.tensor([[1, 0, 3, 1], [2, 2, 0, 1]])
REAL = torch.tensor([0.0, 0.75, -2.5, 3.0], dtype=torch.float64)
DROPPED = {"dropout": 0.4, "seed": 5}
PAD = torch.tensor([[False, True, False, False], [True, False, False, True]])
# No id equals padding_idx here: the omitted gradient is not the derivative.
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


@pytest.mark.bad_input(19, "compiled", "eager", "embedding")
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
    assert torch.allclose(sparse.to_dense(), dense, rtol=1e-14, atol=1e-14)  # scaled before or after the sum
    theirs = nn.Embedding(4, 5, padding_idx=2, sparse=True, dtype=torch.float64)
    theirs(IDS).sum().backward()
    mine = Layer(4, 5, padding_idx=2, sparse=True, dropout=0.0, dtype=torch.float64)
    mine(IDS).sum().backward()
    assert torch.equal(mine.weight.grad._indices(), theirs.weight.grad._indices())
    assert torch.equal(mine.weight.grad.to_dense(), theirs.weight.grad.to_dense())


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


@pytest.mark.bad_input(9, "compiled", "eager", "embedding")
def test_empty_inputs_have_gradients(backend: str) -> None:
    none, alpha = torch.zeros(0, dtype=torch.long), torch.ones(1, requires_grad=True)
    for shape, given in (
        ((0, 3, 8), {"start": none}),
        ((0, 3, 8), {"start": none, "dropout": P}),
        ((0, 3, 8), {"start": none, "dropout": 1.0}),
        ((0, 3, 8), {"positions": torch.zeros(0, 3)}),
        ((2, 0, 8), {"positions": torch.zeros(2, 0), "padding_mask": torch.zeros(2, 0, dtype=torch.bool)}),
        ((2, 3, 0), {}),
        ((2, 3, 0), {"dropout": P}),
    ):
        for t in (torch.ones(shape), torch.ones(shape, requires_grad=True)):
            assert sinpe.add(t, **given).shape == shape
            out = sinpe.add(t, alpha=alpha, **given)
            assert out.shape == shape and torch.equal(torch.autograd.grad(out.sum(), alpha)[0], torch.zeros(1))
            assert sinpe.add_(t * 1, **given).shape == shape
        for weight in (torch.ones(4, shape[-1]), torch.ones(4, shape[-1], requires_grad=True)):
            ids = torch.zeros(shape[:-1], dtype=torch.long)
            assert sinpe.embed(ids, weight, **given).shape == shape
            out = sinpe.embed(ids, weight, alpha=alpha, **given)
            assert torch.equal(torch.autograd.grad(out.sum(), alpha)[0], torch.zeros(1))
    assert Layer(4, 8).eval()(torch.zeros(0, 3, dtype=torch.long), start=none).shape == (0, 3, 8)
    assert sinpe.embed(torch.zeros(2, 0, dtype=torch.long), torch.ones(0, 4)).shape == (2, 0, 4)


def test_autograd_saves_only_the_ids(backend: str) -> None:
    saved: list[Tensor] = []
    weight, ids = table(rows=50).requires_grad_(), tokens(40, S)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        sinpe.embed(ids, weight, dropout=P)
    assert sum(t.numel() * t.element_size() for t in saved) < ids.numel() * 8 + 2000
    assert sinpe.embed(ids, weight.detach(), dropout=P).grad_fn is None
