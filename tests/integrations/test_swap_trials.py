"""`integrations.swap` on forwards that only resemble a sum or a lookup, and side effects of its trials."""

from __future__ import annotations

import random
import re
import types
from typing import Any

import numpy
import pytest
import torch
from swap_modules import DIM, ROWS, BatchFirst, Odd, Scaled
from torch import Tensor, nn
from torch.nn import functional as F

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap
from sinpe_ext.integrations.replace import Call, LeftAlone, Replacement, compare

# The float32 error of the angle of the last row and of sine and cosine, then the rounding of sums below 8.
LIMIT = ROWS * 2.0**-22 + 2.0**-23 + 2.0**-21


def custom(forward: Any, **held: Any) -> Odd:
    module = Odd(forward)
    for name, value in held.items():
        if type(value) is Tensor and name.startswith("b_"):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module.eval()


def rows(m: Any, x: Tensor, start: int = 0) -> Tensor:
    return m.pe[:, start : start + x.size(1)]


def step(m: Any, x: Tensor) -> Tensor:
    y = x + rows(m, x, m.step)
    m.step += x.size(1)
    return y


def storing(what: Any) -> Any:
    def forward(m: Any, x: Tensor) -> Tensor:
        what(m, x)
        return x + rows(m, x)

    return forward


STATE, MAY_DEPEND, NO_SUM, DIFFERS = "keeps a state", "may depend", "is not dropout", "output would differ"
RANDOM = "draws random numbers besides dropout"
TRAINING, GRADIENTS = "output would differ in training", "gradients would differ"
LEFT = {
    # what the forward does with x: (module, reason)
    "layer norm of x": (custom(lambda m, x: F.layer_norm(x, (DIM,)) + rows(m, x)), NO_SUM),
    "centred x": (custom(lambda m, x: x - x.mean(-1, keepdim=True) + rows(m, x)), NO_SUM),
    "x by its deviation": (custom(lambda m, x: x * x.std() + rows(m, x)), DIFFERS),
    "no row where x is zero": (custom(lambda m, x: x + rows(m, x) * (x[..., :1] != 0)), DIFFERS),
    "a step": (custom(step, step=0), STATE),
    "a step in a buffer": (custom(storing(lambda m, x: m.b_calls.add_(1)), b_calls=torch.zeros(1)), MAY_DEPEND),
    "a step in training": (custom(storing(lambda m, x: setattr(m, "n", m.n + m.training)), n=0), STATE),
    "a list": (custom(storing(lambda m, x: m.seen.append(1)), seen=[]), f"`seen`.*{MAY_DEPEND}"),
    "the longest so far": (custom(storing(lambda m, x: setattr(m, "most", max(m.most, x.size(1)))), most=5), STATE),
    "its rows written to": (custom(storing(lambda m, x: m.pe.mul_(0.5))), STATE),
    "clamped at 6": (custom(lambda m, x: (x + rows(m, x)).clamp(-6, 6)), DIFFERS),
    "clamped at 3000": (custom(lambda m, x: (x + rows(m, x)).clamp(-3000, 3000)), DIFFERS),
    "scaled in training": (custom(lambda m, x: m.dropout(x * (1 + m.training) + rows(m, x))), TRAINING),
    "no row where all of x is zero": (
        custom(lambda m, x: m.dropout(x + rows(m, x) * (x.abs().sum(-1, keepdim=True) > 0))),
        DIFFERS,
    ),
    "where": (custom(lambda m, x: torch.where(x == 0, x, x + rows(m, x))), DIFFERS),
    "NaN replaced": (custom(lambda m, x: torch.nan_to_num(x) + rows(m, x)), DIFFERS),
    "dropout twice": (custom(lambda m, x: m.dropout(m.dropout(x) + rows(m, x))), TRAINING),
    "dropout of both": (custom(lambda m, x: m.dropout(x) + m.dropout(rows(m, x))), TRAINING),
    "dropout by a function": (
        custom(lambda m, x: m.dropout(F.dropout(x + rows(m, x), 0.1, m.training))),
        TRAINING,
    ),
    "dropout by a function alone": (
        custom(lambda m, x: F.dropout(x + rows(m, x), 0.1, m.training), dropout=nn.Identity()),
        TRAINING,
    ),
    "in place": (custom(lambda m, x: x.add_(rows(m, x))), "writes to its argument in place"),
    "a clamped factor": (
        custom(lambda m, x: x + m.a.clamp(0, 1) * rows(m, x), a=nn.Parameter(torch.full((1,), 0.5))),
        NO_SUM,
    ),
    "a detached factor": (
        custom(
            lambda m, x: x + m.a.detach() * rows(m, x), a=nn.Parameter(torch.full((1,), 0.5)), dropout=nn.Identity()
        ),
        GRADIENTS,
    ),
    "a smaller gradient": (
        custom(lambda m, x: x * 0.25 + x.detach() * 0.75 + rows(m, x), dropout=nn.Identity()),
        GRADIENTS,
    ),
    "cut to the table": (custom(lambda m, x: x[:, : m.pe.size(1)] + rows(m, x)), DIFFERS),
    "begun again after the table": (
        custom(lambda m, x: x + m.pe[0, torch.arange(x.size(1)) % m.pe.size(1)]),
        DIFFERS,
    ),
    "a factor in a buffer": (custom(lambda m, x: x * m.b_w + rows(m, x), b_w=torch.tensor(4.0)), f"b_w.*{MAY_DEPEND}"),
    "a bias of zeros": (custom(lambda m, x: x + rows(m, x) + m.b, b=torch.zeros(DIM)), f"`b`.*{MAY_DEPEND}"),
    "a clamped factor that is large": (
        custom(lambda m, x: x + m.a.clamp(max=1) * rows(m, x), a=nn.Parameter(torch.full((1,), 0.5))),
        NO_SUM,
    ),
    "a frozen factor of both": (
        custom(lambda m, x: m.a * (x + rows(m, x)), a=nn.Parameter(torch.full((1,), 0.75), requires_grad=False)),
        NO_SUM,
    ),
    "sometimes nothing in training": (
        custom(lambda m, x: x if m.training and torch.rand(()) < 0.1 else x + rows(m, x), dropout=nn.Identity()),
        RANDOM,
    ),
    "shifted in training": (
        custom(
            lambda m, x: x + rows(m, x, int(torch.randint(x.size(1) // 8 + 1, ())) if m.training else 0),
            dropout=nn.Identity(),
        ),
        f"{RANDOM}|{TRAINING}",
    ),
    "sometimes nothing by Python": (
        custom(lambda m, x: m.dropout(x if m.training and random.random() < 1e-9 else x + rows(m, x))),
        "random numbers of Python",
    ),
    "sometimes nothing by NumPy": (
        custom(lambda m, x: m.dropout(x if m.training and numpy.random.rand() < 1e-9 else x + rows(m, x))),
        "random numbers of Python or NumPy",
    ),
    "cut in training": (
        custom(lambda m, x: m.dropout((x + rows(m, x))[:, : 40 if m.training else None])),
        TRAINING,
    ),
    "float32 in training": (
        custom(lambda m, x: (x + rows(m, x)).to(torch.float32 if m.training else x.dtype), dropout=nn.Identity()),
        TRAINING,
    ),
    "a configuration": (
        custom(lambda m, x: m.config.w * x + rows(m, x), config=types.SimpleNamespace(w=1.0)),
        f"`config`.*{MAY_DEPEND}",
    ),
    "a dictionary": (custom(lambda m, x: x + rows(m, x, m.at["at"]), at={"at": 0}), f"`at`.*{MAY_DEPEND}"),
    "an unused factor": (custom(lambda m, x: x + rows(m, x), gain=nn.Parameter(torch.ones(1))), NO_SUM),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    module, reason = LEFT[name]
    kind = type(module)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    plain = {key: str(value) for key, value in vars(module).items() if key[0] != "_"}
    for dry_run in (True, False):
        (entry,) = swap(module, dry_run=dry_run)
        assert not entry.swapped and re.search(reason, entry.reason), entry
        assert type(module) is kind
        assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
        assert {key: str(value) for key, value in vars(module).items() if key[0] != "_"} == plain


def test_trials_do_not_modify_user_tensors() -> None:
    """Even if it raises afterwards, or if a parameter or a tensor of another object is written."""

    def forward(m: Any, x: Tensor) -> Tensor:
        m.alpha.data.add_(1)
        m.config.calls += 1
        m.pe.add_(1)
        raise RuntimeError("on purpose")

    module = custom(forward, alpha=nn.Parameter(torch.ones(1)), config=types.SimpleNamespace(calls=0))
    pe = module.pe.clone()
    version = module.pe._version, module.alpha._version
    assert not swap(module).swapped
    assert (module.pe._version, module.alpha._version) == version
    assert torch.equal(module.pe, pe) and float(module.alpha.detach()) == 1.0 and module.config.calls == 0


CHANGED = {
    # attributes, forward, later changes
    "factor of x": ({"w": 4.0}, lambda m, x: m.w * x + rows(m, x), {"w": 2.5}),
    "factor of x, 1": ({"w": 1.0}, lambda m, x: m.w * x + rows(m, x), {"w": 2.5}),
    "square root": ({"width": 9}, lambda m, x: m.width**0.5 * x + rows(m, x), {"width": 4}),
    "of rows": ({"w": 0.5}, lambda m, x: x + m.w * rows(m, x), {"w": 2.0}),
    "of both": ({"w": 2.0}, lambda m, x: m.w * (x + rows(m, x)), {"w": 0.5}),
    "two": ({"a": 2.0, "b": 2.0}, lambda m, x: m.a * x + m.b * rows(m, x), {"a": 3.0, "b": 5.0}),
    "offset": ({"offset": 0}, lambda m, x: x + rows(m, x, m.offset), {"offset": 7}),
    "flag": ({"on": True}, lambda m, x: x + rows(m, x) * m.on, {"on": False}),
    "word": ({"how": "sum"}, lambda m, x: x + rows(m, x) if m.how == "sum" else x, {"how": "none"}),
}


@pytest.mark.parametrize("name", CHANGED)
def test_attributes_are_read_at_each_call(name: str, backend: str) -> None:
    held, forward, changes = CHANGED[name]
    old, new = custom(forward, **held), custom(forward, **held)
    swap(new, strict=True)
    x = torch.randn(2, 9, DIM, generator=torch.Generator().manual_seed(5))
    for module in (old, new):
        for key, value in changes.items():
            setattr(module, key, value)
    assert float((new(x) - old(x)).abs().max()) <= 5 * LIMIT  # factors of up to 5
    for key, value in held.items():
        setattr(new, key, value)
    again = custom(forward, **held)
    swap(again)
    assert torch.equal(new(x), again(x))  # restored


def test_width_of_the_model_is_read_at_each_call() -> None:
    new = Scaled().eval()
    swap(new, strict=True)
    x = torch.randn(2, 9, DIM)
    new.drop.p = 0.7  # not an attribute of the module itself
    assert torch.equal(new(x), sinpe.add(x, scale=4.0))
    new.d_model = 25
    assert float((new(x) - sinpe.add(x, scale=5.0)).abs().max()) <= LIMIT


def test_dictionary_of_the_class() -> None:
    class Configured(BatchFirst):
        config = {"scale": 1.0}  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.config["scale"]

    (entry,) = swap(Configured())
    assert not entry.swapped and "`config`" in entry.reason


def test_table_that_is_trained_after_the_swap() -> None:
    module: Any = custom(lambda m, x: x + rows(m, x), pe=nn.Parameter(Odd(None).pe.clone(), requires_grad=False))
    assert swap(module).swapped
    module.requires_grad_(True)
    module(torch.randn(2, 7, DIM)).sum().backward()
    assert module.pe.grad is not None and bool(module.pe.grad.any())


def test_child_of_another_class_after_the_swap() -> None:
    module: Any = custom(lambda m, x: m.dropout(x + rows(m, x)), dropout=nn.Identity())
    assert swap(module).swapped
    module.dropout = nn.Dropout(0.5)
    dropped = module.train()(torch.ones(2, 50, DIM)) == 0
    assert 0.3 < float(dropped.float().mean()) < 0.7


def test_script_is_refused() -> None:
    module = BatchFirst().eval()
    assert swap(module).swapped
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.jit.script(module)


def test_class_attribute_overridden_on_the_instance() -> None:
    class Loud(BatchFirst):
        loud = False

        def forward(self, x: Tensor) -> Tensor:
            return x + rows(self, x) * (2 if self.loud else 1)

    new = Loud().eval()
    swap(new, strict=True)
    x = torch.randn(2, 9, DIM)
    quiet = new(x)
    new.loud = True
    assert torch.equal(quiet, sinpe.add(x)) and torch.equal(new(x), x + 2 * new.pe[:, :9])


def test_factor_that_is_rounded_in_16_bits() -> None:
    """The old code rounds 22.6 * x to bfloat16 before it adds float32 rows: the formula is the same."""
    (entry,) = swap(Scaled(512))
    assert entry.swapped and entry.form.startswith("22.6274 * x")


def test_nan_and_inf_differ_from_finite_values() -> None:
    """In both directions; equal non-finite values do not differ."""
    values = (1.0, float("inf"), -float("inf"), float("nan"))
    encoding, call = sinpe.Encoding(DIM), Call((torch.zeros(2),), 0)
    replacement = Replacement("", encoding, "", lambda module: None, {}, [call], ())
    for at, old in enumerate(values):
        for also_at, new in enumerate(values):
            pair = [torch.tensor([0.0, old])], [torch.tensor([0.0, new])]
            if at == also_at:
                compare(*pair, call, replacement)
                continue
            with pytest.raises(LeftAlone, match="its output would differ"):
                compare(*pair, call, replacement)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_in_half_precision(dtype: torch.dtype) -> None:
    for kind in (BatchFirst, Scaled):
        old, new = (kind().to(dtype).eval() for _ in range(2))
        swap(new, strict=True)
        x = torch.randn(2, 9, DIM).to(dtype)
        assert new(x).dtype == old(x).dtype
        assert float((new(x) - old(x)).float().abs().max()) <= LIMIT + 16 * torch.finfo(dtype).eps


def test_attribute_that_becomes_a_tensor() -> None:
    module = custom(lambda m, x: x + rows(m, x, m.offset), offset=0)
    swap(module, strict=True)
    module.offset = torch.tensor(3)
    x = torch.randn(2, 9, DIM)
    assert torch.equal(module(x), x + module.pe[:, 3:12])


def test_factor_of_three_dimensions() -> None:
    module = custom(lambda m, x: x + m.a * rows(m, x), a=nn.Parameter(torch.full((1, 1, 1), 0.5)))
    swap(module, strict=True)
    x = torch.randn(2, 9, DIM)
    assert torch.equal(module(x), sinpe.add(x, alpha=0.5))
