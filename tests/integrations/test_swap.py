"""`integrations.swap` on user-defined modules: which are replaced, and what stays unchanged."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from swap_modules import (
    DIM,
    ROWS,
    Another,
    BatchFirst,
    Follows,
    Grows,
    Learned,
    OneSequence,
    Scaled,
    SequenceFirst,
    naive,
)  # fmt: skip
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap

# The float32 error of the angle of the last row and of sine and cosine, then the rounding of sums below 8.
LIMIT = ROWS * 2.0**-22 + 2.0**-23 + 2.0**-21

SERVED = [
    # class, form, an input's shape (None: the length), convention
    (BatchFirst, "x + rows, batch first", (2, None, DIM), "paper"),
    (SequenceFirst, "x + rows, sequence first", (None, 2, DIM), "paper"),
    (Scaled, "4 * x + rows, batch first", (2, None, DIM), "paper"),
    (Grows, "4 * x + rows, batch first", (2, None, DIM), "paper"),
    (Learned, "x + alpha * rows, batch first", (2, None, DIM), "paper"),
    (Follows, "x + 0.25 * rows, batch first", (2, None, DIM), "paper"),
    (OneSequence, "x + rows, one sequence", (None, DIM), "paper"),
    (Another, "x + rows, batch first", (2, None, DIM), "fairseq"),
]
ids = pytest.mark.parametrize(("kind", "form", "shape", "convention"), SERVED, ids=[row[0].__name__ for row in SERVED])


def given(shape: tuple, length: int, dtype: torch.dtype = torch.float32) -> Tensor:
    sizes, generator = [length if n is None else n for n in shape], torch.Generator().manual_seed(3)
    return torch.randn(sizes, generator=generator).to(dtype)


@ids
def test_module_is_replaced(kind: Any, form: str, shape: tuple, convention: str, backend: str) -> None:
    old = kind().eval()
    new = copy.deepcopy(old)
    report = swap(new, strict=True)
    (entry,) = report
    assert report.model is new and isinstance(new, kind) and not new.training
    assert (entry.swapped, entry.form, entry.convention, entry.reason) == (True, form, convention, "")
    assert entry.old_class == f"swap_modules.{kind.__name__}" and entry.name == ""
    assert 0 < entry.difference <= LIMIT and report.difference == entry.difference
    assert inspect.signature(new.forward) == inspect.signature(old.forward)
    name = next(iter(inspect.signature(old.forward).parameters))
    for length in (1, 2, 9, ROWS):
        x = given(shape, length)
        before, after = old(x).detach(), new(x).detach()
        assert before.shape == after.shape and before.dtype == after.dtype
        assert float((after - before).abs().max()) <= LIMIT
        assert torch.equal(new(**{name: x}), after)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        x = given(shape, 7, dtype)
        old = kind().eval()  # some convert their table to the dtype of x in place
        assert old(x).dtype == new(x).dtype
        # A 16-bit result is rounded once: x + rows is below 8, and the old code rounds rows too.
        allowed = LIMIT + 8 * (torch.finfo(old(x).dtype).eps if old(x).dtype.itemsize == 2 else 0)
        assert float((new(x).detach().double() - old(x).detach().double()).abs().max()) <= allowed
    assert new(given(shape, 3 * ROWS)).numel() > 0  # any length


@ids
def test_rows_are_exact(kind: Any, form: str, shape: tuple, convention: str, backend: str) -> None:
    new = kind().eval()
    (entry,) = swap(new)
    length = 2 * ROWS
    x = given(shape, length)
    factors = {"scale": 4.0 if "4 *" in form else 1.0, "alpha": 0.25 if "0.25" in form else 1.0}
    factors["alpha"] = new.alpha if "alpha" in form else factors["alpha"]
    expected = sinpe.add(x, entry.encoding, seq_dim=0 if "sequence first" in form else -2, **factors)
    assert torch.equal(new(x), expected)


def test_table_is_kept() -> None:
    """It is in the checkpoint as before, and not read."""
    new = BatchFirst(0.0)
    swap(new)
    x = torch.randn(2, 9, DIM)
    assert torch.equal(new.pe, BatchFirst(0.0).pe) and torch.equal(new(x), sinpe.add(x))
    new.pe.zero_()
    assert torch.equal(new(x), sinpe.add(x))


@ids
def test_checkpoints(kind: Any, form: str, shape: tuple, convention: str) -> None:
    """The same keys, strict loading in both directions, and nothing added to the checkpoint."""
    old, new = kind().eval(), kind().eval()
    swap(new)
    x = given(shape, 9)
    before, after, state = old(x), new(x), old.state_dict()
    assert list(state) == list(new.state_dict())
    for assign in (False, True):
        checkpoint = {name: value.clone() for name, value in state.items()}
        new.load_state_dict(checkpoint, strict=True, assign=assign)
        assert torch.equal(new(x), after)
        assert all(torch.equal(value, checkpoint[name]) for name, value in state.items())
    old.load_state_dict(new.state_dict(), strict=True)
    assert float((old(x) - before).detach().abs().max()) <= LIMIT and not hasattr(old, "_sinpe_encoding")


@ids
def test_copies_and_conversions(kind: Any, form: str, shape: tuple, convention: str) -> None:
    new = kind().eval()
    swap(new)
    x = given(shape, 9)
    for other in (copy.deepcopy(new), copy.copy(new), pickle.loads(pickle.dumps(new))):
        assert type(other) is type(new) and torch.equal(other(x), new(x))
        assert other.state_dict().keys() == new.state_dict().keys() and repr(other) == repr(new)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        old = kind().eval().to(dtype)
        other = copy.deepcopy(new).to(dtype)
        assert other(x.to(dtype)).dtype == old(x.to(dtype)).dtype
    assert "Encoding(16" in repr(new)
    before = new(x)
    new.half().float()  # rounds the table, which is not read
    if not hasattr(new, "alpha"):
        assert torch.equal(new(x), before)


@ids
def test_compiled(kind: Any, form: str, shape: tuple, convention: str) -> None:
    new = kind().eval()
    swap(new)
    torch.compiler.reset()
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
    for length in (5, 9):
        x = given(shape, length)
        assert torch.equal(compiled(x), new(x))


def test_dropout_of_the_module_is_used() -> None:
    """fuse_dropout=False: the same mask for the same generator state; train, eval and p work as before."""
    for kind in (BatchFirst, SequenceFirst, Scaled):
        old, new = kind().train(), kind().train()
        swap(new, fuse_dropout=False)
        assert new.training
        x = torch.randn(3, 3, DIM)
        torch.manual_seed(1)
        before = old(x)
        torch.manual_seed(1)
        after = new(x)
        assert torch.equal(before == 0, after == 0) and bool((after == 0).any())
        assert float((before - after).abs().max()) <= 2 * LIMIT
        next(module for module in new.modules() if isinstance(module, nn.Dropout)).p = 1.0
        assert not new(x).any() and new.eval()(x).all()


def test_fused_dropout() -> None:
    """By default, applied in the same pass as the sum, with this library's masks."""
    new = BatchFirst(0.25).train()
    swap(new)
    x = torch.randn(4, 20, DIM)
    torch.manual_seed(2)
    got = new(x)
    torch.manual_seed(2)
    assert torch.equal(got, sinpe.add(x, dropout=0.25))
    assert torch.equal(new.eval()(x), sinpe.add(x))


def test_gradients() -> None:
    old, new = Learned(), Learned()
    swap(new)
    x = torch.randn(2, 9, DIM)
    gradients = []
    for module in (old, new):
        leaf = x.clone().requires_grad_()
        module(leaf).square().sum().backward()
        assert module.pos_table.grad is None
        gradients.append((leaf.grad, module.alpha.grad))
    for before, after in zip(*gradients, strict=True):
        # Sums of up to 288 products of numbers below 8.
        assert float((before - after).abs().max()) <= 288 * 8 * LIMIT
    new.alpha.data.fill_(2.0)
    assert torch.equal(new(x), sinpe.add(x, alpha=2.0))


def test_replaced_module_is_the_same_object() -> None:
    """Shared, hooked and referenced modules: the same object with another class."""
    shared = BatchFirst(0.0)
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(DIM, DIM), shared), "b": shared}).eval()
    elsewhere, seen = [shared], []
    shared.register_forward_hook(lambda module, args, out: seen.append(out))
    (entry,) = swap(model)
    assert not seen and entry.name == "a.1"  # trials run no hook
    x = torch.randn(1, 5, DIM)
    assert model["a"][1] is model["b"] is elsewhere[0] is shared
    assert torch.equal(model["b"](x), sinpe.add(x)) and len(seen) == 1
    assert type(shared).__name__ == "SinpeBatchFirst" and type(shared).__module__ == "swap_modules"
    (again,) = swap(model, strict=True)
    assert again.reason == "it is swapped already" and again.encoding == sinpe.Encoding(DIM)


@pytest.mark.parametrize("angle", ["float32", "float32_exp"])
def test_float32_angle_keeps_the_naive_roundings(angle: str) -> None:
    old, new = BatchFirst(0.0), BatchFirst(0.0)
    (entry,) = swap(new, angle=angle)
    x = torch.randn(2, ROWS, DIM)
    assert entry.difference == 0.0 and torch.equal(old(x), new(x)) and torch.equal(new.pe, old.pe)
    assert entry.encoding == sinpe.Encoding(DIM, angle="float32_exp") and "angle float32_exp" in str(entry)
    (other,) = swap(BatchFirst(0.0), angle="float32_pow")
    assert 0 < other.difference <= LIMIT


def test_wrong_checkpoint_warns() -> None:
    new = BatchFirst(0.0)
    swap(new)
    rows, x = new.pe.clone(), torch.randn(2, 9, DIM)
    with pytest.warns(UserWarning, match="pe: the checkpoint's table is not the encoding"):
        new.load_state_dict({"pe": -rows})
    assert torch.equal(new(x), sinpe.add(x))
    with pytest.raises(RuntimeError, match="size mismatch"):
        new.load_state_dict({"pe": rows[:, :5]})


def test_calls_that_were_not_verified_run_the_old_forward() -> None:
    old, new = BatchFirst(0.0), BatchFirst(0.0)
    swap(new)
    for x in (torch.ones(1, 5, 5, DIM), torch.ones(2, 3, DIM, dtype=torch.int64)):
        assert new(x).dtype == old(x).dtype and float((new(x) - old(x)).abs().max()) <= LIMIT
    for args, kwargs, error in (
        ((torch.zeros(2, 3, DIM + 1),), {}, RuntimeError),
        ((torch.zeros(2, 3, 4, DIM),), {}, RuntimeError),
        ((torch.zeros(2, 3, DIM), 1), {}, TypeError),
        ((), {"y": torch.zeros(2, 3, DIM)}, TypeError),
        ((), {}, TypeError),
    ):
        for module in (old, new):
            with pytest.raises(error):
                module(*args, **kwargs)


def test_under_autocast_and_without_gradients() -> None:
    """The trials ignore the caller's autocast and grad mode."""
    model = nn.Sequential(BatchFirst(0.0), Scaled())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        report = swap(model)
        assert len(report.swapped) == 2
    x = torch.randn(2, 3, DIM, requires_grad=True)
    model.eval()(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 4.0))


class Inherits(nn.Embedding):
    """An nn.Embedding by inheritance, and a sum by its forward."""

    def __init__(self) -> None:
        super().__init__(ROWS, DIM, _weight=naive(), _freeze=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.size(1)]


def test_forward_decides_not_the_base_class() -> None:
    new, x = Inherits(), torch.randn(2, 9, DIM)
    (entry,) = swap(new, strict=True)
    assert entry.form == "x + rows, batch first" and isinstance(new, nn.Embedding)
    assert torch.equal(new(x), sinpe.add(x))
