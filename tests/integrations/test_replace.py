"""After `integrations.swap`: a change of the module or a call that was not verified runs the module's own forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from swap_modules import (
    DIM,
    ROWS,
    BatchFirst,
    ChannelsFirst,
    Odd,
    Scaled,
    Scales,
    SinusoidalFrequencies,
    Sinusoids,
    noise,
    rows,
)
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap
from sinpe_ext.integrations.replace import Call, LeftAlone, Replacement, compare

# The float32 error of the angle of the last row and of sine and cosine, then the rounding of sums below 8.
LIMIT = ROWS * 2.0**-22 + 2.0**-23 + 2.0**-21


def same(a: Tensor, b: Tensor, limit: float) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and float((a - b).abs().nan_to_num().max()) <= limit


CHANGED: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    # attributes, forward, later changes
    "factor of x": ({"w": 1.0}, lambda m, x: m.w * x + rows(m, x), {"w": 2.5}),
    "square root": ({"width": 9}, lambda m, x: m.width**0.5 * x + rows(m, x), {"width": 4}),
    "of both": ({"w": 2.0}, lambda m, x: m.w * (x + rows(m, x)), {"w": 0.5}),
    "two": ({"a": 2.0, "b": 2.0}, lambda m, x: m.a * x + m.b * rows(m, x), {"b": 5.0}),
    "tuple": ({"ab": (1.0, 2.0)}, lambda m, x: m.ab[0] * x + m.ab[1] * rows(m, x), {"ab": (1.0, 3.0)}),
    "offset": ({"offset": 0}, lambda m, x: x + rows(m, x, m.offset), {"offset": 7}),
    "offset, a tensor": ({"offset": 0}, lambda m, x: x + rows(m, x, m.offset), {"offset": torch.tensor(0)}),
    "flag": ({"on": True}, lambda m, x: x + rows(m, x) * (m.on is True), {"on": 1}),  # of another type
    "word": ({"how": "sum"}, lambda m, x: x + rows(m, x) if m.how == "sum" else x, {"how": "none"}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_attributes_are_read_at_each_call(name: str) -> None:
    held, forward, changes = CHANGED[name]
    old, new, x = Odd(forward, **held).eval(), Odd(forward, **held).eval(), noise(2, 9, DIM)
    swap(new, strict=True)
    as_swapped = new(x)
    assert not torch.equal(as_swapped, old(x)) and same(as_swapped, old(x), 5 * LIMIT)  # factors of up to 5
    for module in (old, new):
        for key, value in changes.items():
            setattr(module, key, value)
    assert torch.equal(new(x), old(x))
    for key, value in held.items():
        setattr(new, key, value)
    assert torch.equal(new(x), as_swapped)  # restored


class Loud(BatchFirst):
    loud = False

    def forward(self, x: Tensor) -> Tensor:
        return x + rows(self, x) * (2 if self.loud else 1)


def test_class_attribute_overridden_on_the_instance() -> None:
    new, x = Loud().eval(), noise(2, 9, DIM)
    swap(new, strict=True)
    assert torch.equal(new(x), sinpe.add(x))
    new.loud = True
    assert torch.equal(new(x), x + 2 * new.pe[:, :9])


def test_attributes_of_the_dropout_are_its_own() -> None:
    new, x = Scaled().eval(), noise(2, 9, DIM)
    swap(new, strict=True)
    new.drop.p = 0.7  # not an attribute of the module itself
    assert torch.equal(new(x), sinpe.add(x, scale=4.0))


def test_table_that_is_trained_after_the_swap() -> None:
    module = Odd(lambda m, x: x + m.table[: x.size(1)], table=None)
    table = module.pe[0].clone()
    del module.pe
    module.table = nn.Parameter(table, requires_grad=False)
    assert swap(module).swapped
    module.requires_grad_(True)
    module(noise(2, 7, DIM)).sum().backward()
    assert bool(module.table.grad.any())


def test_child_of_another_class_after_the_swap() -> None:
    module = Odd(lambda m, x: m.dropout(x + rows(m, x)), dropout=nn.Identity())
    assert swap(module).swapped
    module.dropout = nn.Dropout(0.5)
    dropped = module.train()(torch.ones(2, 50, DIM)) == 0
    assert 0.3 < float(dropped.float().mean()) < 0.7


def test_tables_and_frequencies_that_are_not_float32() -> None:
    """A table of 16 bits: in the dtype of before. Frequencies of 16 bits: the module's own code."""
    for kind in (BatchFirst, Scaled):
        old, new, x = kind().half().eval(), kind().half().eval(), noise(2, 9, DIM).half()
        swap(new, strict=True)
        assert same(new(x), old(x), LIMIT + 16 * torch.finfo(torch.float16).eps)
    old, new, t = SinusoidalFrequencies(), SinusoidalFrequencies(), torch.tensor([1.0, 999.0])
    swap(new)
    assert torch.equal(old.half()(t), new.half()(t))


class InDtypeOfX(Sinusoids):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(x.dtype)


def test_16_bit_rows_of_timesteps_remain_the_modules_own() -> None:
    module, t = InDtypeOfX(), torch.tensor([1.0, 3.0]).bfloat16()
    before = module(t)
    swap(module, strict=True)
    assert torch.equal(module(t), before) and before.dtype == torch.bfloat16
    assert torch.equal(module(t.float()), sinpe.encode(t.float(), sinpe.convention("t2t", DIM)))


X, T, ID = noise(2, 3, DIM), torch.tensor([1.0, 999.0]), torch.tensor([1, 2])
OTHER_CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    # not verified: as before, or the error of before
    (lambda: BatchFirst(0.0), (torch.ones(1, 5, 5, DIM),), {}),
    (lambda: BatchFirst(0.0), (X.long(),), {}),
    (lambda: BatchFirst(0.0), (X[..., 1:],), {}),
    (lambda: BatchFirst(0.0), (X[0, 0],), {}),
    (lambda: BatchFirst(0.0), (X, 1), {}),
    (lambda: BatchFirst(0.0), (), {"y": X}),
    (lambda: BatchFirst(0.0), (), {}),
    (Sinusoids, (T.expand(2, 2)[:, :1],), {}),
    (Sinusoids, (torch.tensor([3], dtype=torch.int16),), {}),
    (Scales, (X,), {"seq_start_pos": ID}),
    (Scales, (X,), {"offset": torch.tensor(3)}),
    (Scales, (X,), {"pos": ID.double()}),
    (Scales, (X,), {"pos": ID[None]}),
]


@pytest.mark.parametrize(("build", "args", "named"), OTHER_CALLS)
def test_calls_that_were_not_verified_run_the_old_forward(build: Any, args: Any, named: Any) -> None:
    results: list[Any] = []
    new = build().eval()
    swap(new, strict=True)
    for module in (build().eval(), new):
        try:
            results.append(module(*args, **named).detach())
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}".replace("SinpeBatchFirst", "BatchFirst"))
    before, after = results
    assert before == after if isinstance(before, str) else torch.equal(before, after)


def test_wrong_checkpoint_warns() -> None:
    for build, name, x in (
        (lambda: BatchFirst(0.0), "pe", X),
        (ChannelsFirst, "buf", X.mT),
        (SinusoidalFrequencies, "frequency", T),
    ):
        new: Any = build()
        swap(new)
        held, before = getattr(new, name).clone(), new(x)
        with pytest.warns(UserWarning, match=f"{name}: the checkpoint's table is not the encoding"):
            new.load_state_dict({name: 1.001 * held})
        assert torch.equal(new(x), before)
        with pytest.raises(RuntimeError, match="size mismatch"):
            new.load_state_dict({name: held[..., :5]})


def test_results_that_differ() -> None:
    """In both directions: finite and not, detached and not, of another shape or dtype, by more than rounding."""
    encoding, call = sinpe.Encoding(DIM), Call((torch.zeros(2),), 0)
    replacement = Replacement("", encoding, "", lambda module: None, {}, [call], ())
    out, gradient = torch.zeros(2), torch.ones(2)
    compare([out, gradient, None], [out + 1e-7, gradient, None], call, replacement)
    numbers = [torch.tensor([0.0, value]) for value in (1.0, 1.0001, float("inf"), -float("inf"), float("nan"))]
    kinds = [out, out.double(), out[None], out[:1]]
    for values in (numbers, kinds):
        for one in values:
            for other in values:
                if one is other:
                    compare([one], [other], call, replacement)
                    continue
                with pytest.raises(LeftAlone, match="its output would differ"):
                    compare([one], [other], call, replacement)
    for one, other in (([gradient], [None]), ([gradient], []), ([gradient], [2 * gradient])):
        for pair in ((one, other), (other, one)):
            with pytest.raises(LeftAlone, match="its gradients would differ"):
                compare([out, *pair[0]], [out, *pair[1]], call, replacement)
