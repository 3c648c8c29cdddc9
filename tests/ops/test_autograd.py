"""Gradients of eager calls: their values to the third order, for any incoming gradient, and what a result keeps."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from public_calls import CALLS
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sinpe_ext as sinpe

pytestmark = pytest.mark.emulated

B, S, D = 2, 4, 5
# All layouts, one frequency list or two, a zero channel, whole turns; small frequencies for numerical derivatives.
ENCODINGS = (
    sinpe.Encoding(D),
    sinpe.convention("t2t", D, amplitude=-0.7, start=3),
    sinpe.Encoding(D, cos_frequency="own", layout="cos_sin", unit="turn", base=3.0),
)
MASK = torch.tensor([[False, True, False, False], [True, False, False, True]])
POSITIONS = [0.0, 0.75, -2.5, 3.0]
DROPPED: dict[str, Any] = {"dropout": 0.4, "seed": 6}
DIFFERENTIABLE = [name for name, call in CALLS.items() if call.tensors]


def double_x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)


def positions(*shape: int) -> Tensor:
    return torch.tensor(POSITIONS, dtype=torch.float64).expand(shape).clone().requires_grad_()


@pytest.mark.bad_input(19, "compiled", "eager", "layer", "embedding", "grid")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_formula(name: str, backend: str) -> None:
    """Of first and second order, with respect to all tensors and the incoming gradient."""
    call = CALLS[name]

    def derivatives(function: Callable[..., Tensor], kept: Any) -> list[Tensor]:
        given = {name: t.clone().requires_grad_() for name, t in call.tensors.items()}
        result = function(**given) * kept
        upstream = torch.linspace(-1, 2, result.numel(), dtype=torch.float64).reshape(result.shape).requires_grad_()
        first = torch.autograd.grad(result, [*given.values()], upstream, create_graph=True)
        total = torch.stack([(t * t * t).sum() for t in first]).sum()
        second = torch.autograd.grad(total, [*given.values(), upstream], materialize_grads=True)
        return [*first, *second]

    for got, want in zip(derivatives(call.run, 1.0), derivatives(call.formula, call.mask()), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


Form = tuple[Callable[..., Tensor], list[Tensor]]
X, TALL, FIRST, CHANNELS = double_x(B, S, D), double_x(B, 3, S, D), double_x(S, B, D), double_x(B, D, S)
ALPHA, ONE_ALPHA, AT, EACH = double_x(1), double_x(1)[0].detach().requires_grad_(), positions(S), positions(B, S)
ONES, TOKENS = torch.ones(S, D, dtype=torch.float64), torch.tensor([[0, 2, 2, 1], [1, 0, 0, 0]])
FORMS: dict[str, Form] = {  # forms of x, positions and alpha that the table of public calls has not
    "2-D": (lambda e, x: sinpe.add(x, e, start=7, scale=1.7), [double_x(S, D)]),
    "alpha ()": (lambda e, a: sinpe.add(ONES, e, alpha=a), [ONE_ALPHA]),
    "alpha at the end of int64": (lambda e, a: sinpe.add(ONES, e, alpha=a, start=2**63 - 4 - e.start), [ALPHA]),
    "positions (B, S), masked": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, padding_mask=MASK), [TALL, EACH, ALPHA],
    ),
    "transposed": (
        lambda e, x, p, a: sinpe.add(x.t(), e, positions=p, alpha=a, seq_dim=1, channel_dim=0),
        [double_x(S, D), AT, ALPHA],
    ),
    "dropout, masked": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, padding_mask=MASK, scale=0.3, **DROPPED),
        [TALL, EACH, ALPHA],
    ),
    "dropout, shared positions": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, **DROPPED), [X, AT, ONE_ALPHA],
    ),
    "dropout, shared mask": (
        lambda e, x, a: sinpe.add(x, e, start=9, alpha=a, padding_mask=MASK[1], **DROPPED), [X, ALPHA],
    ),
    "dropout, channels first": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, seq_dim=2, channel_dim=1, **DROPPED),
        [CHANNELS, EACH, ALPHA],
    ),
    "dropout, in place": (
        lambda e, x, p, a: sinpe.add_(x.clone(), e, positions=p, alpha=a, seq_dim=0, **DROPPED),
        [FIRST, positions(1, S), ALPHA],
    ),
    "dropout of everything": (lambda e, x, a: sinpe.add(x, e, alpha=a, dropout=1.0), [double_x(S, D), ALPHA]),
    "encode, strides": (lambda e, p: sinpe.encode(p.t()[::2], e, dtype=torch.float64), [EACH]),
    "encode, ()": (lambda e, p: sinpe.encode(p, e, dtype=torch.float64), [AT[2].detach().requires_grad_()]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_gradcheck(name: str, backend: str) -> None:
    """Numerical derivatives of first and second order."""
    function, inputs = FORMS[name]
    call = partial(function, dict(zip(FORMS, cycle(ENCODINGS)))[name])
    assert gradcheck(call, inputs, fast_mode=backend == "eager")
    assert gradgradcheck(lambda *given: call(*given).sin(), inputs, fast_mode=True)


def test_second_order_of_embed_with_padding(backend: str) -> None:
    """As of torch's embedding, padding_idx gets no gradient and contributes none."""
    weight, upstream = double_x(3, D), double_x(B, S, D)
    derivatives = []
    for result in (
        sinpe.embed(TOKENS, weight, padding_idx=0, scale=0.3),
        0.3 * torch.nn.functional.embedding(TOKENS, weight, padding_idx=0) + sinpe.table(S, D, dtype=torch.float64),
    ):
        (first,) = torch.autograd.grad(result.sin(), weight, upstream, create_graph=True)
        derivatives.append([first, *torch.autograd.grad((first + 1).square().sum(), (weight, upstream))])
    for got, want in zip(*derivatives, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_third_order(backend: str) -> None:
    """With angular frequency 1: sin, cos, -sin, -cos."""
    p = positions(S)
    value = sinpe.encode(p, sinpe.Encoding(1), dtype=torch.float64).sum()
    for expected in (p.cos(), -p.sin(), -p.cos()):
        (grad,) = torch.autograd.grad(value, p, create_graph=True)
        assert torch.allclose(grad, expected, rtol=0, atol=1e-15)
        value = grad.sum()


GRADS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda y: y.sum(),
    "contiguous": lambda y: (y * torch.arange(B * S * D).reshape(B, S, D)).sum(),
    "transposed": lambda y: (y.transpose(0, 2) * torch.arange(B * S * D).reshape(D, S, B)).sum(),
    "half of it": lambda y: y[:, ::2, 1::2].sum(),
    "one entry": lambda y: y[1, 2, 3],
}


@pytest.mark.bad_input(19, "compiled", "eager")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grad", GRADS)
def test_grad_output_of_any_layout(grad: str, dtype: torch.dtype, backend: str) -> None:
    for add, dropped in ((sinpe.add, DROPPED | {"dropout": 0.5}), (sinpe.add_, {})):
        x, alpha, p = torch.ones(B, S, D, dtype=dtype), torch.tensor([0.5]), torch.tensor(POSITIONS)
        for t in (x, alpha, p):
            t.requires_grad_()
        out = add(x * 1, positions=p, alpha=alpha, scale=3.0, **dropped)
        got = torch.autograd.grad(GRADS[grad](out), (x, alpha, p))
        wide = [t.detach().double().requires_grad_() for t in (x, alpha, p)]
        rows = sinpe.encode(wide[2], D, dtype=torch.float64)
        kept = 2.0 * (sinpe.add(torch.full((B, S, D), 9.0), **dropped) != 0) if dropped else 1.0
        want = torch.autograd.grad(GRADS[grad]((3.0 * wide[0] + wide[1] * rows) * kept), wide)
        for mine, theirs, given in zip(got, want, (x, alpha, p), strict=True):
            assert mine.dtype == given.dtype and mine.shape == given.shape
            assert torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-4)


def test_unscaled_gradient_of_x_is_the_incoming_one(backend: str) -> None:
    """No pass over it; with dropout or a scale, a new tensor."""
    x, grad = torch.randn(B, S, D).requires_grad_(), torch.randn(B, S, D)
    for given, is_same in (({}, True), ({"alpha": 0.5, "start": 7}, True), ({"scale": 2.0}, False), (DROPPED, False)):
        (mine,) = torch.autograd.grad(sinpe.add(x, **given), x, grad)
        assert (mine.data_ptr() == grad.data_ptr()) is is_same


RESULTS: dict[str, Callable[..., Tensor]] = {
    "dropout": lambda x, **_: sinpe.add(x, dropout=0.5, seed=1),
    "alpha": lambda x, alpha, **_: sinpe.add(x, alpha=alpha),
    "positions": lambda x, positions, **_: sinpe.add(x, positions=positions),
    "grid": lambda x, **_: sinpe.add(x[..., :4], "mae2d", grid_shape=(2, 2), dropout=0.5, seed=1),
    "encode": lambda x, **_: sinpe.encode(x, D),
    "embed": lambda x, **_: sinpe.embed(torch.zeros(2, dtype=torch.long), x[0], scale=3.0),
    "weight": lambda x, weight, **_: sinpe.embed(torch.zeros(B, S, dtype=torch.long), weight, dropout=0.5, seed=1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_transforms_of_a_backward_pass_alone(name: str, backend: str) -> None:
    """vmap: one backward pass per sample. grad and forward mode: right, or an error, but never zero or none."""
    given = {"x": torch.randn(B, S, D), "alpha": torch.ones(1), "positions": torch.rand(S), "weight": torch.ones(3, D)}
    of = given.get(name, given["x"]).requires_grad_()
    y = RESULTS[name](**given)
    backward = partial(torch.autograd.grad, y, of, retain_graph=True)
    grads = torch.randn(3, *y.shape)
    many = torch.func.vmap(lambda grad: backward(grad)[0])(grads)
    assert torch.equal(many, torch.stack([backward(grad)[0] for grad in grads]))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="expected no forward-mode differentiation"):
        backward(forward_ad.make_dual(grads[0], grads[1]))
    square = lambda grad: backward(grad, create_graph=True)[0].square().sum()  # noqa: E731
    first = grads[0].requires_grad_()
    (want,) = torch.autograd.grad(square(first), first)
    try:
        got = torch.func.grad(square)(grads[0].detach())
    except RuntimeError:  # torch refuses an autograd.Function without setup_context
        return
    assert torch.allclose(got, want)


def test_sum_of_alpha_beyond_its_dtype(backend: str) -> None:
    alpha, x = torch.ones(1, requires_grad=True), torch.zeros(1, 4, 8)
    (grad,) = torch.autograd.grad(sinpe.add(x, alpha=alpha), alpha, torch.full(x.shape, 1e38))
    assert grad.item() == math.inf


@pytest.mark.bad_input(19, "compiled", "eager")
def test_only_what_needs_a_gradient_gets_one(backend: str) -> None:
    x, alpha, p, whole = torch.randn(B, S, D), torch.ones(1), torch.rand(S), torch.arange(S)
    layer = sinpe.SinusoidalPositionalEncoding(D).eval()
    calls = [
        lambda: sinpe.add(x, alpha=alpha, positions=p),
        lambda: sinpe.add_(x * 1, alpha=alpha, positions=p),
        lambda: layer(x, positions=p),
        lambda: sinpe.add(sinpe.encode(p, D), alpha=alpha) + x,
    ]
    for call in calls:
        assert call().grad_fn is None and not call().requires_grad
        for needs in (x, alpha, p) if call is not calls[2] else (x, p):
            needs.requires_grad_()
            assert call().grad_fn is not None
            with torch.no_grad():
                assert call().grad_fn is None
            with torch.inference_mode():
                assert not call().requires_grad
            needs.requires_grad_(False)
    assert not sinpe.table(S, D).requires_grad
    x.requires_grad_()
    sinpe.add(x, positions=whole, padding_mask=MASK).sum().backward()
    assert torch.equal(x.grad, torch.ones(B, S, D)) and whole.grad is None


def test_in_place_on_non_leaf(backend: str) -> None:
    x, alpha = torch.ones(B, S, D, requires_grad=True), torch.ones(1, requires_grad=True)
    y = x * 3
    sinpe.add_(y[0], scale=5.0)  # a view: the other half is unchanged
    (y * y).sum().backward()
    rows = sinpe.table(S, D)
    assert torch.allclose(x.grad[0], 2 * (15 + rows) * 15) and torch.allclose(x.grad[1], torch.tensor(18.0))
    plain = torch.zeros(B, S, D)
    assert sinpe.add_(plain, alpha=alpha) is plain and plain.requires_grad
    plain.sum().backward()
    assert torch.allclose(alpha.grad, B * rows.sum().reshape(1))


@pytest.mark.bad_input(19, "compiled", "eager")
def test_padded_inf_does_not_reach_gradients(backend: str) -> None:
    """Padded rows are selected out, not multiplied by zero: infinities there reach neither alpha nor the positions."""
    x, alpha = torch.ones(B, S, D, requires_grad=True), torch.ones(1, requires_grad=True)
    p = torch.tensor(POSITIONS).expand(B, S).clone().masked_fill(MASK, torch.inf).requires_grad_()
    y = sinpe.add(x, alpha=alpha, positions=p, padding_mask=MASK)
    y.backward(torch.ones_like(y).masked_fill(MASK.unsqueeze(-1), torch.inf))
    assert bool(alpha.grad.isfinite().all()) and bool(p.grad.isfinite().all())
    assert torch.equal(p.grad == 0, MASK)


def test_padding_beyond_the_first_tile(backend: str) -> None:
    """More rows than a kernel processes at once."""
    mask = torch.rand(B, 200, generator=torch.Generator().manual_seed(5)) < 0.3
    grad, at = double_x(B, 200, D).detach(), torch.arange(200.0, dtype=torch.float64)
    alpha = torch.full((1,), 0.5, dtype=torch.float64, requires_grad=True)

    def gradients(sum_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        p = at.clone().requires_grad_()
        return torch.autograd.grad(sum_of(p), (alpha, p), grad)

    got = gradients(lambda p: sinpe.add(torch.zeros_like(grad), positions=p, alpha=alpha, padding_mask=mask))
    want = gradients(lambda p: (alpha * sinpe.encode(p, D, dtype=torch.float64)).masked_fill(mask[..., None], 0.0))
    for ours, plain in zip(got, want, strict=True):
        assert torch.allclose(ours, plain, rtol=0, atol=1e-12)


def test_result_keeps_neither_x_nor_itself(backend: str) -> None:
    source, alpha = torch.ones(B, S, D, requires_grad=True), torch.ones(1, requires_grad=True)
    for add in (sinpe.add, sinpe.add_):
        x = source * 1
        result = add(x, alpha=alpha, positions=torch.arange(S))
        held, y = [weakref.ref(x), weakref.ref(result)], result * 2
        del x, result
        gc.collect()
        assert [ref() for ref in held] == [None, None]
        y.sum().backward()


@pytest.mark.parametrize("learned", ["x", "alpha", "positions"])
@pytest.mark.parametrize("changed", ["x", "alpha", "positions"])
def test_arguments_changed_before_the_backward_pass(learned: str, changed: str, backend: str) -> None:
    """As in torch, only a tensor whose values the gradient depends on must not change. Of positions, the gradient of
    alpha computes the rows again."""
    given = {"x": torch.randn(2, 700, 8), "alpha": torch.tensor([0.5]), "positions": torch.rand(700)}
    reads = {"x": (), "alpha": ("positions",), "positions": ("alpha", "positions")}

    def gradient(change: bool, options: dict[str, Any]) -> Tensor:
        tensors = {name: t.clone().requires_grad_(name == learned) for name, t in given.items()}
        result = sinpe.add(tensors["x"], alpha=tensors["alpha"], positions=tensors["positions"], **options)
        if change:
            with torch.no_grad():
                tensors[changed].mul_(3.0)
        return torch.autograd.grad(result.square().sum(), tensors[learned])[0]

    for options in ({}, DROPPED, {"padding_mask": torch.ones(2, 700, dtype=torch.bool)}):
        if changed in reads[learned]:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                gradient(True, options)
        else:
            torch.testing.assert_close(gradient(True, options), gradient(False, options))


def test_batched_gradients_of_gradients(backend: str) -> None:
    x, p = torch.randn(2, 3, 8, requires_grad=True), torch.rand(3, requires_grad=True)
    result, grads = sinpe.add(x, positions=p), torch.randn(4, 2, 3, 8, requires_grad=True)
    batched = torch.autograd.grad(result, (x, p), grads, is_grads_batched=True, create_graph=True)
    each = torch.stack([torch.autograd.grad(result, (x, p), grad, create_graph=True)[1] for grad in grads])
    for got, want in zip(
        torch.autograd.grad(batched[1].square().sum(), (grads, p)),
        torch.autograd.grad(each.square().sum(), (grads, p)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)
