"""Dropout in `add`, `add_` and `embed`: mask, scale, seed, and that autograd stores no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from philox import kept  # reference implementation in Python integers
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer

pytestmark = pytest.mark.emulated

B, S, D = 3, 5, 11  # rows that start inside a group of eight
P, SEED = 0.3, 1234567890123
THRESHOLD = round(P * 65536)
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape or (B, S, D))


def mask_of(**arguments: Any) -> Tensor:
    """Mask of the elements that were kept: 2 + PE is never zero."""
    return sinpe.add(2 * ones(), dropout=P, **arguments) != 0


@pytest.mark.parametrize("seed", [0, 1, -1, SEED, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("p", [P, 0.5, 1e-9, 1 - 1e-9])
def test_mask_is_philox_of_row_major_index(p: float, seed: int, backend: str) -> None:
    threshold = min(max(round(p * 65536), 1), 65535)
    want = torch.tensor([kept(seed, e, threshold) for e in range(B * S * D)]).reshape(B, S, D)
    got = sinpe.add(2 * ones(), dropout=p, seed=seed)
    assert torch.equal(got != 0, want)
    scale = torch.tensor(65536 / (65536 - threshold))
    assert torch.equal(got, torch.where(want, (2 + sinpe.table(S, D)) * scale, 0.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_order_of_rounding(dtype: torch.dtype, backend: str) -> None:
    """Products, sum and dropout scale in acc, then one rounding; padded rows are scale * x under the same mask."""
    x, padding = randn(B, S, D, dtype=dtype), torch.arange(S) > 3
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    got = sinpe.add(x, "t2t", start=9, scale=1.7, alpha=0.3, dropout=P, seed=SEED, padding_mask=padding)
    factors = torch.tensor([1.7, 0.3, 65536 / (65536 - THRESHOLD)], dtype=acc)
    rows = factors[1] * sinpe.table(S, sinpe.convention("t2t", D), start=9, dtype=acc)
    total = factors[0] * x.to(acc) + rows.masked_fill(padding.unsqueeze(-1), -0.0)
    want = torch.where(mask_of(seed=SEED), (total * factors[2]).to(dtype), 0.0)
    assert torch.equal(got, want) and not bool(torch.signbit(got[~mask_of(seed=SEED)]).any())


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, int]]] = {  # layouts of x
    "plain": (lambda x: x, {}),
    "transposed memory": (lambda x: x.transpose(0, 2).contiguous().transpose(0, 2), {}),
    "window": (lambda x: torch.stack([x, x], 2)[:, :, 1], {}),
    "expanded": (lambda x: x[:1, :, :].expand(B, S, D), {}),
    "offset": (lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(B, S, D), {}),
    "sequence first": (lambda x: x.transpose(0, 1), {"seq_dim": 0}),
    "channels first": (lambda x: x.transpose(1, 2), {"seq_dim": 2, "channel_dim": 1}),
    "channels first, dense": (lambda x: x.transpose(1, 2).contiguous(), {"seq_dim": -1, "channel_dim": 1}),
    "four dimensions": (lambda x: torch.stack([x, x, x, x], 1), {}),
    "two dimensions": (lambda x: x[0], {}),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_mask_does_not_depend_on_memory_layout(layout: str, dtype: torch.dtype, backend: str) -> None:
    form, where = LAYOUTS[layout]
    x = form(randn(B, S, D, dtype=dtype))
    keep = torch.tensor([kept(SEED, e, THRESHOLD) for e in range(x.numel())]).reshape(x.shape)
    acc = torch.float64 if dtype == torch.float64 else torch.float32
    total = sinpe.add(x.to(acc), **where) * torch.tensor(65536 / (65536 - THRESHOLD), dtype=acc)
    want = torch.where(keep, total.to(dtype), 0.0)
    given: dict[str, Any] = {**where, "dropout": P, "seed": SEED}
    got = sinpe.add(x, **given)
    assert torch.equal(got, want) and got.stride() == torch.empty_like(x).stride()
    assert torch.equal(sinpe.add(x, **given, out=torch.full_like(x, torch.nan)), want)
    assert torch.equal(sinpe.add_(x.clone(), **given), want)
    mine = x.clone()
    assert torch.equal(sinpe.add(mine, **given, out=mine), want)
    grad = torch.randn(x.shape).to(dtype)
    x = x.detach().requires_grad_()
    (back,) = torch.autograd.grad(sinpe.add(x, **given), x, grad)
    scaled = (grad.to(acc) * torch.tensor(65536 / (65536 - THRESHOLD), dtype=acc)).to(dtype)
    assert torch.equal(back, torch.where(keep, scaled, 0.0))


def test_mask_does_not_depend_on_thread_count(backend: str) -> None:
    x, before = randn(7, 300, 129), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            given = x.clone().requires_grad_()
            y = sinpe.add(given, dropout=P, seed=SEED)
            results.append((y.detach(), *torch.autograd.grad(y, given, x)))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_element_index_beyond_32_bits(backend: str) -> None:
    """The counter has 64 bits: a shard of a large tensor may start at any element."""
    first = 2**35 * 8 - 20
    x = ones(4, 10)
    got = torch.ops.sinpe_ext.dropout.default(x, torch.tensor(SEED), THRESHOLD, 1.0, [first, 10, 1])
    want = torch.tensor([kept(SEED, first + e, THRESHOLD) for e in range(40)]).reshape(4, 10)
    assert torch.equal(got != 0, want)


@pytest.mark.bad_input(18, "compiled", "eager")
def test_dropped_inf_and_nan_become_zero(backend: str) -> None:
    keep = mask_of(seed=SEED)
    for value in (torch.inf, -torch.inf, torch.nan):
        x = torch.full((B, S, D), value, requires_grad=True)
        y = sinpe.add(x, dropout=P, seed=SEED)
        assert torch.equal(y.isfinite(), ~keep) and bool((y[~keep] == 0).all())
        assert torch.equal(y[keep].nan_to_num(7.0), torch.full((B, S, D), value)[keep].nan_to_num(7.0))
        (grad,) = torch.autograd.grad(y, x, torch.full((B, S, D), value))
        assert torch.equal(grad.isfinite(), ~keep) and bool((grad[~keep] == 0).all())


@pytest.mark.bad_input(18, "compiled", "eager")
def test_probability_one_and_zero(backend: str) -> None:
    x = randn(B, S, D).requires_grad_()
    y = sinpe.add(x, dropout=1.0)
    assert torch.equal(y, torch.zeros(B, S, D))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(B, S, D))
    assert torch.equal(sinpe.add(x, dropout=0.0, seed=SEED), sinpe.add(x))
    assert torch.equal(sinpe.add(x.detach(), dropout=1, alpha=torch.ones(1)), torch.zeros(B, S, D))


def raises(error: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    with pytest.raises(error):
        call(*arguments, **named)


# Calls that draw from torch's generator: not at all if nothing is random, else one number.
QUIET: dict[str, Callable[[], object]] = {
    "no dropout": lambda: sinpe.add(ones()),
    "p = 0": lambda: sinpe.add(ones(), dropout=0.0),
    "p = 1": lambda: sinpe.add(ones(), dropout=1.0),
    "seeded": lambda: sinpe.add(ones(), dropout=P, seed=3),
    "empty": lambda: sinpe.add(torch.ones(0, S, D), dropout=P),
    "empty, in place": lambda: sinpe.add_(torch.ones(B, 0, D), dropout=P),
    "eval": lambda: Layer(D, P).eval()(ones()),
    "layer without dropout": lambda: Layer(D, 0.0)(ones()),
    "invalid argument": lambda: raises(ValueError, sinpe.add, ones(), 7, dropout=P),
    "no tokens": lambda: sinpe.embed(torch.zeros(0, dtype=torch.long), torch.ones(3, D), dropout=P),
    "embedding in eval": lambda: sinpe.SinusoidalEmbedding(4, D, dropout=P, _weight=torch.ones(4, D)).eval()(
        torch.zeros(3, dtype=torch.long)
    ),
    "invalid id": lambda: raises(
        IndexError, sinpe.embed, torch.tensor([5]), torch.ones(3, D), dropout=0.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", QUIET.values(), ids=QUIET)
def test_generator_advances_only_if_needed(call: Callable[[], object], backend: str) -> None:
    if call is QUIET["invalid id"] and torch.ops.sinpe_ext.cpu_isa() == "emulated":
        pytest.skip("CUDA kernels do not check ids: such a row is NaN (docs/cuda.md)")
    before = torch.get_rng_state()
    call()
    assert torch.equal(torch.get_rng_state(), before)


def test_mask_follows_torch_manual_seed(backend: str) -> None:
    torch.manual_seed(5)
    first, second = mask_of(), mask_of()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(mask_of(), first) and torch.equal(mask_of(), second)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert torch.equal(mask_of(seed=None), first)


def test_seed_argument_forms(backend: str) -> None:
    want = mask_of(seed=SEED)
    for seed in (torch.tensor(SEED), torch.tensor([SEED])):
        assert torch.equal(mask_of(seed=seed), want)
    generator = torch.Generator().manual_seed(5)
    first, second = mask_of(seed=generator), mask_of(seed=generator)
    assert not torch.equal(first, second)
    assert torch.equal(mask_of(seed=torch.Generator().manual_seed(5)), first)
    torch.manual_seed(5)
    assert torch.equal(mask_of(), first)  # a generator passed as seed draws the same number as the default one
    state = generator.get_state()
    sinpe.add(ones(), dropout=0.0, seed=generator)
    assert torch.equal(generator.get_state(), state)
    counter, x = torch.tensor(SEED), ones().requires_grad_()  # a seed tensor incremented before the backward pass
    y = sinpe.add(x, dropout=P, seed=counter)
    counter += 1
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0] != 0, want)


ERRORS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "p below": ({"dropout": -0.1}, ValueError, "dropout: expected 0 to 1, got -0.1"),
    "p above": ({"dropout": 1.5}, ValueError, "dropout: expected 0 to 1, got 1.5"),
    "p nan": ({"dropout": float("nan")}, ValueError, "dropout: expected 0 to 1, got nan"),
    "p bool": ({"dropout": True}, TypeError, "dropout: expected a float, got bool"),
    "p text": ({"dropout": "0.1"}, TypeError, "dropout: expected a float, got str"),
    "seed float": ({"seed": 1.0}, TypeError, "seed: expected int, got float; pass an int, an int64 tensor, a torch"),
    "seed bool": ({"seed": True}, TypeError, "seed: expected int, got bool"),
    "seed large": ({"seed": 2**63}, ValueError, "seed: expected an int in -9223372036854775808..9223372036854775807"),
    "seed int32": ({"seed": torch.tensor(1, dtype=torch.int32)}, TypeError, "seed: expected an int64 tensor of one"),
    "seed meta": ({"seed": torch.tensor(1, device="meta")}, RuntimeError, "seed: expected a tensor with data"),
    "seeds": ({"seed": torch.tensor([1, 2])}, TypeError, r"seed: expected .* of shape \(2,\); pass an int"),
    "seed without dropout": ({"seed": "x", "dropout": 0.0}, TypeError, "seed: expected int, got str"),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_bad_arguments(case: Any, backend: str) -> None:
    arguments, error, message = case
    for call in (sinpe.add, sinpe.add_):
        x = ones()
        with pytest.raises(error, match=message):
            call(x, **{"dropout": P, **arguments})
        assert torch.equal(x, ones())
    with pytest.raises(error, match=message):
        sinpe.embed(torch.zeros(S, dtype=torch.long), torch.ones(3, D), **{"dropout": P, **arguments})


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, backend: str) -> None:
    """The recomputed forward pass draws the same mask: the gradients are those without checkpointing."""
    x, weight = randn(B, S, D).requires_grad_(), randn(D, D).requires_grad_()
    layer, embedding = Layer(D, P), sinpe.SinusoidalEmbedding(4, D, dropout=P)
    ids, seed = torch.tensor([[0, 1, 2, 3, 0]] * B), torch.tensor(SEED)

    def block(t: Tensor) -> Tensor:
        t = sinpe.add(t @ weight, dropout=P, seed=seed) + embedding(ids)
        return layer(t).sin() @ weight

    results = []
    for run in (block, lambda t: checkpoint(block, t, use_reentrant=reentrant)):
        torch.manual_seed(11)
        x.grad = weight.grad = None
        y = run(run(x))
        y.square().sum().backward()
        results.append((y.detach(), x.grad, weight.grad))
    (plain, of_x, of_weight), (checkpointed, again_x, again_weight) = results
    assert torch.equal(checkpointed, plain) and torch.equal(again_x, of_x)
    assert torch.allclose(again_weight, of_weight, rtol=1e-5, atol=1e-3)  # sums in another order


@pytest.mark.parametrize("call", [sinpe.add, lambda x, **k: sinpe.add_(x * 1, **k)], ids=["add", "add_"])
def test_autograd_saves_no_mask(call: Callable[..., Tensor], backend: str) -> None:
    """Autograd saves a plan and single numbers at most."""
    saved: list[Tensor] = []
    x = ones().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        x.exp()  # saves its result
        call(x, dropout=P)
    assert saved[0].shape == x.shape
    assert all(t.numel() == 1 or (t.dtype == torch.int64 and t.shape != x.shape) for t in saved[1:])


def test_layer_follows_its_dropout_submodule(backend: str) -> None:
    layer, x = Layer(D, P), 2 * ones()
    assert torch.equal(layer(x, seed=SEED), sinpe.add(x, dropout=P, seed=SEED))
    torch.manual_seed(2)
    drawn = layer(x)
    torch.manual_seed(2)
    assert torch.equal(drawn, sinpe.add(x, dropout=P))
    layer.dropout.p = 0.5  # schedules set p
    assert torch.equal(layer(x, seed=SEED), sinpe.add(x, dropout=0.5, seed=SEED))
    layer.dropout.p = 0.0
    assert torch.equal(layer(x), sinpe.add(x))
    layer = Layer(D, P).eval()
    layer.dropout.train()  # Monte Carlo dropout sets only these to train
    assert torch.equal(layer(x, seed=SEED), sinpe.add(x, dropout=P, seed=SEED))
    layer.train()
    layer.dropout.eval()
    assert torch.equal(layer(x), sinpe.add(x))
    layer.dropout = torch.nn.Identity()  # dropout removed
    assert torch.equal(layer(x), sinpe.add(x))
    layer.dropout = torch.nn.AlphaDropout(0.5)
    assert layer(x).shape == x.shape and not torch.equal(layer(x), sinpe.add(x))
    seen: list[Tensor] = []
    layer.dropout = torch.nn.Dropout(0.0)
    layer.dropout.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layer(x)
    assert len(seen) == 1
    inner = torch.nn.Dropout(0.9).eval()
    assert torch.equal(Layer(D, 0.0).train()(inner(x)), sinpe.add(x))


@pytest.mark.parametrize("angle", ["float32_exp", "float32_pow"])
def test_mask_does_not_depend_on_angle(angle: str, backend: str) -> None:
    encoding = sinpe.Encoding(D, angle=angle)
    x = 2 * ones().requires_grad_()
    y = sinpe.add(x, encoding, dropout=P, seed=SEED)
    keep, scale = mask_of(seed=SEED), torch.tensor(65536 / (65536 - THRESHOLD))
    assert torch.equal(y, torch.where(keep, sinpe.add(x, encoding) * scale, 0.0))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.where(keep, scale, 0.0))


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_torch_func(backend: str) -> None:
    """With a seed, the mask is the same for each sample; random seeds follow vmap's randomness rule."""
    x = randn(4, B, S, D)
    want = torch.stack([sinpe.add(t, dropout=P, seed=SEED) for t in x])
    assert torch.equal(torch.func.vmap(lambda t: sinpe.add(t, dropout=P, seed=SEED))(x), want)
    seeds = torch.tensor([3, 1, 4, 1])
    want = torch.stack([sinpe.add(t, dropout=P, seed=s) for t, s in zip(x, seeds, strict=True)])
    got = torch.func.vmap(lambda t, s: sinpe.add(t, dropout=P, seed=s))(x, seeds)
    assert torch.equal(got, want) and torch.equal(got[1] != 0, got[3] != 0)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda t: sinpe.add(t, dropout=P))(x)
    same = torch.func.vmap(lambda t: sinpe.add(t, dropout=P), randomness="same")(2 + x.abs()) != 0
    assert bool((same == same[0]).all())
    other = torch.func.vmap(lambda t: sinpe.add(t, dropout=P), randomness="different")(2 + x.abs()) != 0
    assert not bool((other == other[0]).all())
    grad = torch.func.grad(lambda t: sinpe.add(t, dropout=P, seed=SEED, scale=2.0).sum())(x[0])
    given = x[0].clone().requires_grad_()
    assert torch.equal(grad, torch.autograd.grad(sinpe.add(given, dropout=P, seed=SEED, scale=2.0).sum(), given)[0])
    assert torch.equal(torch.func.vmap(lambda t: sinpe.add(t, dropout=1.0))(x), torch.zeros_like(x))
    tangent = torch.func.jvp(lambda t: sinpe.add(t, dropout=P, seed=SEED), (x[0],), (torch.ones_like(x[0]),))[1]
    assert torch.equal(tangent != 0, mask_of(seed=SEED))
