"""Dropout in `add`, `add_` and `embed`: mask, scale, seed, and that autograd stores no mask.

What holds for every function, such as activation checkpointing: test_every_function.py; the order of rounding, any
layout and gradient: test_fuzz.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from philox import kept  # reference implementation in Python integers
from torch import Tensor

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
    """Of the elements that were kept: 2 + PE is never zero."""
    return sinpe.add(2 * ones(), dropout=P, **arguments) != 0


@pytest.mark.parametrize(
    ("p", "seed"), [(P, 0), (0.5, 1), (1e-9, -1), (1 - 1e-9, SEED), (P, 2**63 - 1), (0.5, -(2**63)), (0.1, 2**32)]
)
def test_mask_is_philox_of_row_major_index(p: float, seed: int, backend: str) -> None:
    threshold = min(max(round(p * 65536), 1), 65535)
    want = torch.tensor([kept(seed, e, threshold) for e in range(B * S * D)]).reshape(B, S, D)
    got = sinpe.add(2 * ones(), dropout=p, seed=seed)
    assert torch.equal(got != 0, want)
    scale = torch.tensor(65536 / (65536 - threshold))
    assert torch.equal(got, torch.where(want, (2 + sinpe.table(S, D)) * scale, 0.0))


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
    x = torch.full((B, S, D), torch.inf).requires_grad_()
    y = sinpe.add(x, dropout=1.0)
    assert torch.equal(y, torch.zeros(B, S, D))  # not inf * 0
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(B, S, D))
    x = randn(B, S, D)
    assert torch.equal(sinpe.add(x, dropout=0.0, seed=SEED), sinpe.add(x))
    assert torch.equal(sinpe.add(x, dropout=1, alpha=torch.ones(1)), torch.zeros(B, S, D))


EMBEDDING = sinpe.SinusoidalEmbedding(4, D, dropout=P).eval()
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
    "no tokens": lambda: sinpe.embed(torch.zeros(0, dtype=torch.long), torch.ones(3, D), dropout=P),
    "embedding in eval": lambda: EMBEDDING(torch.zeros(3, dtype=torch.long)),
}


@pytest.mark.parametrize("call", QUIET.values(), ids=QUIET)
def test_generator_advances_only_if_needed(call: Callable[[], object], backend: str) -> None:
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


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_vmap_over_seeds(backend: str) -> None:
    x, seeds = 2 + randn(4, B, S, D).abs(), torch.tensor([3, 1, 4, 1])
    want = torch.stack([sinpe.add(t, dropout=P, seed=s) for t, s in zip(x, seeds, strict=True)])
    assert torch.equal(torch.func.vmap(lambda t, s: sinpe.add(t, dropout=P, seed=s))(x, seeds), want)
