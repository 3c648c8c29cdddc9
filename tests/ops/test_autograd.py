"""Gradients of add, add_ and encode: first to third order, all layouts, no graph node where none is needed."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import sinpe_ext as sinpe
from sinpe_ext import SinusoidalPositionalEncoding as Layer
from sinpe_ext.operations import plans
from sinpe_ext.operator import OPERATORS

pytestmark = pytest.mark.emulated

B, S, D = 2, 4, 5
# All layouts, one frequency list or two, a zero channel, whole turns; small frequencies for numerical derivatives.
ENCODINGS = {
    "paper": sinpe.Encoding(D),
    "t2t": sinpe.convention("t2t", D, amplitude=-0.7, start=3),
    "own": sinpe.Encoding(D, cos_frequency="own", layout="cos_sin", unit="turn", base=3.0),
}
POSITIONS = [0.0, 0.75, -2.5, 3.0]


def double_x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)


def positions(*shape: int) -> Tensor:
    tensor = torch.tensor(POSITIONS, dtype=torch.float64).expand(shape).clone()
    return tensor.requires_grad_()


MASK = torch.tensor([[False, True, False, False], [True, False, False, True]])
DROPPED = {"dropout": 0.4, "seed": 6}
ADD: dict[str, tuple[Callable[..., Tensor], tuple[Callable[[], Tensor], ...]]] = {  # function, functions of its inputs
    "x": (lambda e, x: sinpe.add(x, e, start=7, scale=1.7), (lambda: double_x(B, S, D),)),
    "x 2-D": (lambda e, x: sinpe.add(x, e), (lambda: double_x(S, D),)),
    "x 4-D masked": (lambda e, x: sinpe.add(x, e, padding_mask=MASK), (lambda: double_x(B, 2, S, D),)),
    "x sequence first": (lambda e, x: sinpe.add(x, e, seq_dim=0, scale=0.3), (lambda: double_x(S, B, D),)),
    "x channels first": (lambda e, x: sinpe.add(x, e, seq_dim=2, channel_dim=1), (lambda: double_x(B, D, S),)),
    "alpha (1,)": (
        lambda e, x, a: sinpe.add(x, e, alpha=a, start=torch.tensor([3, 40]), padding_mask=MASK),
        (lambda: double_x(B, S, D), lambda: double_x(1)),
    ),
    "alpha ()": (lambda e, a: sinpe.add(torch.ones(S, D).double(), e, alpha=a), (lambda: double_x(1)[0],)),
    "alpha at the end of int64": (
        lambda e, a: sinpe.add(torch.ones(S, D).double(), e, alpha=a, start=2**63 - 4 - e.start),
        (lambda: double_x(1),),
    ),
    "positions (S,)": (
        lambda e, x, p: sinpe.add(x, e, positions=p, scale=2.0, alpha=0.3),
        (lambda: double_x(B, S, D), lambda: positions(S)),
    ),
    "positions (B, S) masked": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, padding_mask=MASK),
        (lambda: double_x(B, 3, S, D), lambda: positions(B, S), lambda: double_x(1)),
    ),
    "positions 2-D": (
        lambda e, x, p, a: sinpe.add(x.t(), e, positions=p, alpha=a, seq_dim=1, channel_dim=0),
        (lambda: double_x(S, D), lambda: positions(S), lambda: double_x(1)),
    ),
    "dropout": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, padding_mask=MASK, scale=0.3, **DROPPED),
        (lambda: double_x(B, 3, S, D), lambda: positions(B, S), lambda: double_x(1)),
    ),
    "dropout, shared positions": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, **DROPPED),
        (lambda: double_x(B, S, D), lambda: positions(S), lambda: double_x(1)[0].detach().requires_grad_()),
    ),
    "dropout, no positions": (
        lambda e, x, a: sinpe.add(x, e, start=9, alpha=a, padding_mask=MASK[1], **DROPPED),
        (lambda: double_x(B, S, D), lambda: double_x(1)),
    ),
    "dropout, channels first": (
        lambda e, x, p, a: sinpe.add(x, e, positions=p, alpha=a, seq_dim=2, channel_dim=1, **DROPPED),
        (lambda: double_x(B, D, S), lambda: positions(B, S), lambda: double_x(1)),
    ),
    "dropout, in place": (
        lambda e, x, p, a: sinpe.add_(x.clone(), e, positions=p, alpha=a, seq_dim=0, **DROPPED),
        (lambda: double_x(S, B, D), lambda: positions(1, S), lambda: double_x(1)),
    ),
    "dropout of everything": (
        lambda e, x, a: sinpe.add(x, e, alpha=a, dropout=1.0),
        (lambda: double_x(S, D), lambda: double_x(1)),
    ),
    "in place": (
        lambda e, x, p, a: sinpe.add_(x.clone(), e, positions=p, alpha=a, scale=3.0),
        (lambda: double_x(B, S, D), lambda: positions(1, S), lambda: double_x(1)),
    ),
    "in place, sequence first": (lambda e, x: sinpe.add_(x * 2, e, seq_dim=0), (lambda: double_x(S, B, D),)),
    "encode": (lambda e, p: sinpe.encode(p, e, dtype=torch.float64), (lambda: positions(S),)),
    "encode layout": (lambda e, p: sinpe.encode(p.t()[::2], e, dtype=torch.float64), (lambda: positions(B, S),)),
    "encode scalar": (
        lambda e, p: sinpe.encode(p, e, dtype=torch.float64),
        (lambda: positions(S)[2].detach().requires_grad_(),),
    ),
}


@pytest.mark.sampled("values")
@pytest.mark.bad_input(19, "compiled", "eager")
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("case", ADD.values(), ids=ADD)
def test_first_and_second_order(case: Any, name: str, backend: str) -> None:
    function, makers = case
    inputs = tuple(make() for make in makers)

    def call(*given: Tensor) -> Tensor:
        return function(ENCODINGS[name], *given)

    assert gradcheck(call, inputs)
    assert gradgradcheck(lambda *given: call(*given).sin(), inputs, fast_mode=True)


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
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dropped", [{}, {"dropout": 0.5, "seed": 6}], ids=["all", "half"])
def test_grad_output_of_any_layout(grad: str, dtype: torch.dtype, in_place: bool, dropped: Any, backend: str) -> None:
    x, alpha, p = torch.ones(B, S, D, dtype=dtype), torch.tensor([0.5]), torch.tensor(POSITIONS)
    for t in (x, alpha, p):
        t.requires_grad_()
    add = sinpe.add_ if in_place else sinpe.add
    out = add(x * 1, positions=p, alpha=alpha, scale=3.0, **dropped)
    got = torch.autograd.grad(GRADS[grad](out), (x, alpha, p))
    wide = [t.detach().double().requires_grad_() for t in (x, alpha, p)]
    rows = sinpe.encode(wide[2], D, dtype=torch.float64)
    kept = 2.0 * (sinpe.add(torch.full((B, S, D), 9.0), **dropped) != 0) if dropped else 1.0
    want = torch.autograd.grad(GRADS[grad]((3.0 * wide[0] + wide[1] * rows) * kept), wide)
    for mine, theirs, given in zip(got, want, (x, alpha, p), strict=True):
        assert mine.dtype == given.dtype and mine.shape == given.shape
        assert torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-4)


def test_backward_returns_grad_output_if_unscaled(backend: str) -> None:
    """Without dropout and scale, backward returns its argument; with either, a new tensor."""
    x, grad = torch.randn(B, S, D).requires_grad_(), torch.randn(B, S, D)
    weight = torch.randn(3, D).requires_grad_()
    for y in (sinpe.add(x), sinpe.add(x, alpha=0.5, start=7), sinpe.add_(x * 1)):
        y.sum().backward()
    assert torch.autograd.grad(sinpe.add(x), x, grad)[0].data_ptr() == grad.data_ptr()
    for given in ({"scale": 2.0}, {"dropout": 0.5, "seed": 1}):
        (mine,) = torch.autograd.grad(sinpe.add(x, **given), x, grad)
        assert mine.data_ptr() != grad.data_ptr()
    ids = torch.zeros(B, S, dtype=torch.long)
    assert torch.autograd.grad(sinpe.embed(ids, weight), weight, grad)[0].shape == weight.shape
    for name in ("add", "dropout", "add_backward"):  # an operator never returns its argument
        arguments = {
            "add": (x, plans.pack_plan(sinpe.Encoding(D)), *(None,) * 5, 0, False, 1.0, 0, 0, []),
            "dropout": (x, None, 0, 1.0, []),
            "add_backward": (x, plans.pack_plan(sinpe.Encoding(D)), *(None,) * 3, 0, False, 1.0, 0, []),
        }[name]
        for call in (getattr(torch.ops.sinpe_ext, name).default, OPERATORS[name].reference):
            made = call(*arguments)
            assert (made[0] if isinstance(made, tuple) else made).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", ["alpha", "positions", "dropout", "embed"])
def test_torch_func_of_a_backward_alone(name: str, backend: str) -> None:
    """torch.func.vmap over gradients: one backward pass per sample. torch.func.grad: right, or an error."""
    x, alpha, p, weight = torch.randn(B, S, D), torch.ones(1), torch.rand(S), torch.randn(3, D)
    of: Tensor = {"alpha": alpha, "positions": p, "embed": weight}.get(name, x).requires_grad_()
    y = {
        "dropout": lambda: sinpe.add(x, dropout=0.5, seed=1),
        "alpha": lambda: sinpe.add(x, alpha=alpha),
        "positions": lambda: sinpe.add(x, positions=p),
        "embed": lambda: sinpe.embed(torch.zeros(B, S, dtype=torch.long), weight),
    }[name]()
    backward = partial(torch.autograd.grad, y, of, retain_graph=True)
    grads = torch.randn(3, *y.shape)
    many = torch.func.vmap(lambda grad: backward(grad)[0])(grads)
    assert torch.equal(many, torch.stack([backward(grad)[0] for grad in grads]))
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


@pytest.mark.parametrize("name", ["dropout", "scale", "alpha", "positions", "grid", "embed"])
def test_forward_mode_of_a_backward_alone(name: str, backend: str) -> None:
    """The tangent of torch's own operations, or an error, but never none."""
    x, alpha, p, weight = torch.randn(B, S, D), torch.ones(1), torch.rand(S), torch.randn(3, D)
    of: Tensor = {"alpha": alpha, "positions": p, "embed": weight}.get(name, x).requires_grad_()
    y = {
        "dropout": lambda: sinpe.add(x, dropout=0.5, seed=1),
        "scale": lambda: sinpe.add(x, scale=2.0),
        "alpha": lambda: sinpe.add(x, alpha=alpha),
        "positions": lambda: sinpe.add(x, positions=p),
        "grid": lambda: sinpe.add(
            x, sinpe.GridEncoding((sinpe.Encoding(3), sinpe.Encoding(2))), grid_shape=(2, 2), dropout=0.5, seed=1
        ),
        "embed": lambda: sinpe.embed(torch.zeros(B, S, dtype=torch.long), weight, dropout=0.5, seed=1),
    }[name]()
    grad, tangent = torch.randn(y.shape), torch.randn(y.shape)
    with forward_ad.dual_level():
        if name != "scale":
            with pytest.raises(NotImplementedError, match=r"^(x|grad): expected no forward-mode differentiation of a "):
                torch.autograd.grad(y, of, forward_ad.make_dual(grad, tangent))
            return
        (made,) = torch.autograd.grad(y, of, forward_ad.make_dual(grad, tangent))
        assert torch.equal(forward_ad.unpack_dual(made).tangent, tangent * 2.0)


def test_no_graph_node_if_no_gradient_is_needed(backend: str) -> None:
    x, alpha, p = torch.randn(B, S, D), torch.ones(1), torch.rand(S)
    assert sinpe.add(x, alpha=alpha, positions=p).grad_fn is None
    assert sinpe.add_(x, alpha=alpha, positions=p).grad_fn is None
    assert sinpe.encode(p, D).grad_fn is None and not sinpe.table(S, D).requires_grad
    for needs in (x, alpha, p):
        needs.requires_grad_()
        assert sinpe.add(x, alpha=alpha, positions=p).grad_fn is not None
        with torch.no_grad():
            assert sinpe.add(x, alpha=alpha, positions=p).grad_fn is None
            assert sinpe.add_(x, alpha=alpha, positions=p) is x and x.grad_fn is None
            assert sinpe.encode(p, D).grad_fn is None
        with torch.inference_mode():
            assert not sinpe.add(x, alpha=alpha, positions=p).requires_grad
        needs.requires_grad_(False)
    x.requires_grad_()
    layer = Layer(D).eval()
    assert layer(x).grad_fn is not None
    with torch.no_grad():
        assert layer(x).grad_fn is None


@pytest.mark.bad_input(19, "compiled", "eager")
def test_integer_positions_get_no_gradient(backend: str) -> None:
    x = torch.ones(B, S, D, requires_grad=True)
    whole = torch.arange(S)
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


def test_tensors_saved_for_backward(backend: str) -> None:
    """Neither x nor the result is saved; a saved tensor that is overwritten raises in backward."""
    source = torch.ones(B, S, D, requires_grad=True)
    alpha, p = torch.ones(1, requires_grad=True), torch.arange(S)
    x = source * 1
    y = sinpe.add(x, alpha=alpha, positions=p)
    held = weakref.ref(x)
    del x
    gc.collect()
    assert held() is None
    x = sinpe.add_(source * 1, alpha=alpha, positions=p)
    held = weakref.ref(x)
    z = x * 2
    del x
    gc.collect()
    assert held() is None
    z.sum().backward()
    p += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.bad_input(19, "compiled", "eager")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_torch_func(backend: str) -> None:
    encoding = ENCODINGS["t2t"]
    x, p = torch.randn(3, B, S, D), torch.rand(3, S, dtype=torch.float64)
    vmap, grad, jvp = torch.func.vmap, torch.func.grad, torch.func.jvp
    assert torch.equal(vmap(lambda t: sinpe.add(t, encoding, start=2), 1, 1)(x), sinpe.add(x, encoding, start=2))
    assert torch.equal(vmap(lambda t: sinpe.add_(t, encoding))(x.clone()), sinpe.add(x, encoding))
    each = torch.stack([sinpe.add(t, encoding, positions=q) for t, q in zip(x, p, strict=True)])
    assert torch.equal(vmap(lambda t, q: sinpe.add(t, encoding, positions=q))(x, p), each)
    starts = torch.tensor([3, 1, 4])
    each = torch.stack([sinpe.add(t, encoding, start=int(s)) for t, s in zip(x, starts, strict=True)])
    assert torch.equal(vmap(lambda t, s: sinpe.add(t, encoding, start=s))(x, starts), each)
    for q in (p, torch.arange(12).reshape(3, S)):
        assert torch.equal(vmap(lambda t: sinpe.encode(t, encoding), 1)(q), sinpe.encode(q.t(), encoding))
    layer = Layer(D).eval()
    assert torch.equal(vmap(layer)(x), layer(x))
    assert torch.equal(vmap(grad(lambda t: sinpe.add(t, scale=3.0).sum()))(x), torch.full_like(x, 3.0))

    def loss(q: Tensor) -> Tensor:
        return sinpe.encode(q, encoding, dtype=torch.float64).sin().sum()

    q = p[0].clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(q), q)
    assert torch.allclose(grad(loss)(p[0]), want) and torch.allclose(torch.func.jacfwd(loss)(p[0]), want)
    hessian = torch.autograd.functional.hessian(loss, p[0])
    assert torch.allclose(torch.func.hessian(loss)(p[0]), hessian)
    value, tangent = jvp(lambda t: sinpe.add(x.double(), encoding, positions=t), (p[0],), (torch.ones_like(p[0]),))
    assert torch.equal(value, sinpe.add(x.double(), encoding, positions=p[0])) and tangent.shape == value.shape


@pytest.mark.bad_input(19, "compiled", "eager")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
def test_forward_mode(backend: str) -> None:
    x, p = torch.randn(B, S, D), torch.rand(S, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.full_like(x, 2.0))
        for call in (lambda t: sinpe.add(t, scale=3.0), Layer(D, scale=3.0).eval(), lambda t: sinpe.add_(t * 3.0)):
            assert torch.equal(forward_ad.unpack_dual(call(dual)).tangent, torch.full_like(x, 6.0))
        rows = sinpe.encode(forward_ad.make_dual(p, torch.ones_like(p)), 1, dtype=torch.float64)
        assert torch.allclose(forward_ad.unpack_dual(rows).tangent[:, 0], p.cos(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("arguments", [{}, {"scale": 3.0}, {"dropout": 0.5, "seed": 1}, {"alpha": 0.5}])
def test_out_under_transforms(arguments: dict[str, Any], backend: str) -> None:
    """A derivative would be lost: refused, as torch refuses it, and nothing is written."""
    x, out = torch.randn(2, 3, 8), torch.zeros(2, 3, 8)
    refused = partial(pytest.raises, RuntimeError, match="out: expected no transform")
    with forward_ad.dual_level():
        with refused():
            sinpe.add(forward_ad.make_dual(x, torch.ones_like(x)), out=out, **arguments)
        with refused():
            sinpe.add(x, out=forward_ad.make_dual(out, torch.ones_like(out)), **arguments)
        assert not out.any()
        assert torch.equal(sinpe.add(x, out=torch.empty_like(x), **arguments), sinpe.add(x, **arguments))
    for transform in (torch.func.vmap, lambda call: torch.func.grad(lambda t: call(t).sum())):
        with refused():
            transform(lambda t: sinpe.add(t, out=torch.empty_like(t), **arguments))(x)


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


ALPHA, AT = torch.tensor(0.5, requires_grad=True), torch.rand(700, requires_grad=True)
BATCHED = {
    "add": lambda x: sinpe.add(x),
    "dropout": lambda x: sinpe.add(x, dropout=0.3, seed=1),
    "alpha": lambda x: sinpe.add(x, alpha=ALPHA, dropout=0.3, seed=1),
    "positions": lambda x: sinpe.add(x, positions=AT),
    "a grid": lambda x: sinpe.add(x.unflatten(1, (7, 100)), "mae2d", scale=2.0, alpha=ALPHA),
    "encode": lambda x: sinpe.encode(x[0], 8),
    "embed": lambda x: sinpe.embed(torch.arange(1400) % 90, x[0, :100], scale=3.0),
    "embed, dropout": lambda x: sinpe.embed(torch.arange(1400) % 90, x[0, :100], dropout=0.3, seed=1),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batched_gradients(name: str, backend: str) -> None:
    """autograd.grad(is_grads_batched=True), as in vectorized Jacobians; its tensors have no storage of their own."""
    x = torch.randn(2, 700, 8).requires_grad_()
    result = BATCHED[name](x)
    needed = [x, *{"alpha": [ALPHA], "a grid": [ALPHA], "positions": [AT]}.get(name, [])]
    grads = torch.randn(3, *result.shape)
    batched = torch.autograd.grad(result, needed, grads, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(result, needed, grad, retain_graph=True) for grad in grads]
    for one, parts in zip(batched, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(one, torch.stack(parts), rtol=1e-6, atol=1e-6)


def test_batched_gradients_of_gradients(backend: str) -> None:
    x, p = torch.randn(2, 3, 8, requires_grad=True), torch.rand(3, requires_grad=True)
    result, grads = sinpe.add(x, positions=p), torch.randn(4, 2, 3, 8, requires_grad=True)
    batched = torch.autograd.grad(result, (x, p), grads, is_grads_batched=True, create_graph=True)
    each = [torch.autograd.grad(result, (x, p), grad, create_graph=True)[1] for grad in grads]
    for got, want in zip(
        torch.autograd.grad(batched[1].square().sum(), (grads, p)),
        torch.autograd.grad(torch.stack(each).square().sum(), (grads, p)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("options", [{}, DROPPED, {"padding_mask": torch.ones(2, 700, dtype=torch.bool)}])
@pytest.mark.parametrize("learned", ["x", "alpha", "positions"])
@pytest.mark.parametrize("changed", ["x", "alpha", "positions"])
def test_arguments_changed_before_the_backward_pass(
    learned: str, changed: str, options: dict[str, Any], backend: str
) -> None:
    """As in torch, only a tensor whose values the gradient depends on must not change. Of positions, the gradient of
    alpha computes the rows again."""
    given = {"x": torch.randn(2, 700, 8), "alpha": torch.tensor([0.5]), "positions": torch.rand(700)}
    reads = {"x": (), "alpha": ("positions",), "positions": ("alpha", "positions")}

    def gradient(change: bool) -> Tensor:
        tensors = {name: t.clone().requires_grad_(name == learned) for name, t in given.items()}
        result = sinpe.add(tensors["x"], alpha=tensors["alpha"], positions=tensors["positions"], **options)
        if change:
            with torch.no_grad():
                tensors[changed].mul_(3.0)
        return torch.autograd.grad(result.square().sum(), tensors[learned])[0]

    if changed in reads[learned]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(True)
    else:
        torch.testing.assert_close(gradient(True), gradient(False))
