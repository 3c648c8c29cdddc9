"""`integrations.swap` recognizes modules by their tensors and results, not by names."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from children import SANITIZED
from swap_modules import (
    DIM,
    ROWS,
    Autoencoder,
    Bar,
    Baz,
    ChannelsFirst,
    ChannelsFirstRows,
    Foo,
    Frequencies,
    Scales,
    Sinusoids,
    halves,
    naive,
)  # fmt: skip
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap
from sinpe_ext.integrations.tables import may_be_table

HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
GENERATED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def times(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def limit(position: float, dtype: torch.dtype = torch.float32) -> float:
    """The float32 error of an angle and of sine and cosine, then the roundings of sums below 8 to a dtype."""
    return position * 2.0**-22 + 2.0**-23 + 2.0**-21 + 8 * HALF.get(dtype, 0.0)


class Case(NamedTuple):
    """A module, its description in the report, calls with the largest position, and the exact results."""

    build: Callable[[], nn.Module]
    form: str
    convention: str
    calls: list[tuple[tuple[Any, ...], dict[str, Any], float]]
    exact: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Tensor] | None
    name: str = ""


def lengths(make: Callable[..., Tensor], *given: Any) -> list[tuple[tuple[Any, ...], dict[str, Any], float]]:
    """Calls with x of several lengths and dtypes; `given` is its shape, with None for the length."""
    return [
        ((make(*(length if n is None else n for n in given), dtype=dtype),), {}, float(length))
        for dtype in GENERATED
        for length in (1, 2, 9, ROWS)
    ]


STEPS = [
    ((times(*values, dtype=dtype),), {}, 1000.0)
    for values in ((0.0,), (0.0, 1.0, 2.5, 17.0, 999.0), (3.0, 998.0))
    for dtype in (torch.float32, torch.float64, torch.float16)
] + [((torch.tensor([0, 7, 999]),), {}, 1000.0)]


def rows_of(convention: str, dtype: torch.dtype | None = None, **fields: Any) -> Callable[..., Tensor]:
    def exact(module: Any, args: Any, named: Any) -> Tensor:
        t = args[0].reshape(len(args[0]))
        # As in the old code: float32, but float64 for timesteps.
        kind = dtype or torch.promote_types(t.dtype, torch.float32)
        t = t.float() if t.dtype == torch.float16 else t
        return sinpe.encode(t, sinpe.convention(convention, DIM, **fields), dtype=kind)

    return exact


def scaled(module: Any, args: Any, named: Any) -> Tensor:
    places = named.get("pos", torch.arange(args[0].shape[1]) + named.get("offset", 0))
    return sinpe.encode(places, sinpe.convention("paper_concat", DIM)) * module.scale


def added(convention: str, **arguments: Any) -> Callable[..., Tensor]:
    def exact(module: Any, args: Any, named: Any) -> Tensor:
        given = {key: getattr(module, value) if isinstance(value, str) else value for key, value in arguments.items()}
        x = args[0]
        return sinpe.add(x.to(torch.promote_types(x.dtype, torch.float32)), sinpe.convention(convention, DIM), **given)

    return exact


FIRST = {"seq_dim": -1, "channel_dim": -2}
FOR_X = "rows for the length of x"
SCALED = [
    *(((noise(2, n, DIM),), {}, float(n)) for n in (1, 9, 4000)),
    ((noise(2, 4, DIM),), {"offset": 900}, 904.0),
    ((noise(2, 3, DIM),), {"pos": torch.tensor([8, 0, 999])}, 999.0),
    ((noise(2, 3, DIM),), {"pos": torch.tensor([8.5, 0.0, 999.25])}, 1000.0),
]
CASES = {
    "neutral names": Case(Foo, "x + rows, batch first", "paper", lengths(noise, 2, None, DIM), added("paper")),
    "neutral names, a parameter": Case(
        Bar, "x + gain * rows, batch first", "t2t", lengths(noise, 2, None, DIM), added("t2t", alpha="gain")
    ),
    "neutral names, an attribute": Case(
        Baz, "x + rows, sequence first", "paper", lengths(noise, None, 2, DIM), added("paper", seq_dim=0)
    ),
    "channels first": Case(
        ChannelsFirst, "x + rows, channels first", "paper", lengths(noise, 2, DIM, None), added("paper", **FIRST)
    ),
    "channels first, rows of a table": Case(
        ChannelsFirstRows,
        "4 * x + rows, channels first",
        "paper_concat",
        lengths(noise, 2, DIM, None),
        added("paper_concat", scale=4.0, **FIRST),
    ),
    "lucidrains": Case(Sinusoids, "rows of timesteps", "t2t", STEPS, rows_of("t2t")),
    "lucidrains, theta": Case(
        lambda: Sinusoids(theta=100.0), "rows of timesteps", "t2t, base 100", STEPS, rows_of("t2t", base=100.0)
    ),
    "x-transformers": Case(Scales, f"scale * {FOR_X}", "paper_concat", SCALED, scaled),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def old_and_new(case: Case) -> tuple[Any, Any, Any]:
    """The old module, a replaced copy, and the report line."""
    torch.manual_seed(7)
    old = case.build().eval()
    new = copy.deepcopy(old)
    (entry,) = swap(new, strict=True)
    return old, new, entry


def apart(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape and a.dtype == b.dtype
    return float((a.detach().double() - b.detach().double()).abs().max())


@pytest.mark.sampled("values")
@cases
def test_replaced_module_equals_the_old_one(case: Case, backend: str) -> None:
    old, new, entry = old_and_new(case)
    assert (entry.swapped, entry.name, entry.form, entry.convention) == (True, case.name, case.form, case.convention)
    assert (
        0 <= entry.difference <= limit(4096.0)
        and isinstance(new, type(old))
        and type(old) is not type(new.get_submodule(case.name))
    )
    assert inspect.signature(new.forward) == inspect.signature(old.forward)
    for args, named, far in case.calls:
        before, after = copy.deepcopy(old)(*args, **named), new(*args, **named)
        assert apart(before, after) <= limit(far, before.dtype)
        if case.exact is not None:
            assert torch.equal(after, case.exact(new, args, named).to(after.dtype))


@pytest.mark.sampled("values", where=lambda case, **_: case.exact is not None)
@cases
def test_replaced_module_is_exact(case: Case, backend: str) -> None:
    """Against the encoding's exact values, not the old module's rounding errors."""
    if case.exact is None:
        pytest.skip("its output is not rows only")
    _, new, _ = old_and_new(case)
    args, named, _ = max(case.calls, key=lambda call: call[2])
    exact = case.exact(new, args, named)
    assert torch.equal(new(*args, **named), exact.to(new(*args, **named).dtype))
    wrong = copy.deepcopy(new)
    inside = wrong.get_submodule(case.name)
    change = inside._sinpe_encoding
    change = change.with_axes if isinstance(change, sinpe.GridEncoding) else change.replace
    inside.__dict__["_sinpe_encoding"] = change(amplitude=0.5)
    assert apart(wrong(*args, **named), new(*args, **named)) > limit(1000.0), "wrong rows would not be detected"


@cases
def test_checkpoints_and_copies(case: Case) -> None:
    old, new, _ = old_and_new(case)
    args, named, far = case.calls[0]
    before, after = copy.deepcopy(old)(*args, **named), new(*args, **named)
    state = {name: value.clone() for name, value in old.state_dict().items()}
    assert list(state) == list(new.state_dict())
    for assign in (False, True):
        new.load_state_dict({name: value.clone() for name, value in state.items()}, strict=True, assign=assign)
        assert torch.equal(new(*args, **named), after)
    other = copy.deepcopy(old)
    other.load_state_dict(new.state_dict(), strict=True)
    assert apart(other(*args, **named), before) <= limit(far, before.dtype)
    for other in (copy.deepcopy(new), pickle.loads(pickle.dumps(new))):
        assert type(other.get_submodule(case.name)) is type(new.get_submodule(case.name))
        assert torch.equal(other(*args, **named), after)
    (again,) = swap(new, strict=True)
    assert again.reason == "it is swapped already"


@cases
def test_hooks_and_conversion(case: Case) -> None:
    old = case.build().eval()
    seen: list[int] = []
    old.get_submodule(case.name).register_forward_hook(lambda *_: seen.append(1))
    new = copy.deepcopy(old)
    swap(new, strict=True)
    assert not seen
    args, named, _ = case.calls[0]
    after = new(*args, **named)
    assert len(seen) == 1
    new.get_submodule(case.name).half().float()  # rounds rows and frequencies, which are not read
    if not list(new.get_submodule(case.name).parameters()):
        assert torch.equal(new(*args, **named), after)
    assert new(*args, **named).dtype == after.dtype
    for dtype in (torch.bfloat16, torch.float64):
        x = tuple(a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
        assert copy.deepcopy(new).to(dtype)(*x, **named).dtype == copy.deepcopy(old).to(dtype)(*x, **named).dtype


@cases
def test_compiled(case: Case) -> None:
    _, new, _ = old_and_new(case)
    torch.compiler.reset()
    compiled = torch.compile(new, fullgraph=True, backend="aot_eager")
    for args, named, _ in (case.calls[0], case.calls[1]):
        assert torch.equal(compiled(*args, **named), new(*args, **named))


def test_untried_calls_run_the_old_forward() -> None:
    old, new, _ = old_and_new(CASES["lucidrains"])
    odd = torch.tensor([[1.0, 2.0]])  # one angle of two timesteps: runs the old code
    for args in ((odd.expand(2, 2)[:, :1],), (torch.tensor([3], dtype=torch.int16),)):
        assert torch.equal(old(*args), new(*args))
    for module in (old, new):
        module.theta = 50.0
    t = times(1.0, 999.0)
    assert torch.equal(old(t), new(t))
    old, new, _ = old_and_new(CASES["x-transformers"])
    with pytest.raises(RuntimeError):
        old(noise(2, 5, DIM), seq_start_pos=torch.tensor([1, 2]))
    with pytest.raises(RuntimeError):
        new(noise(2, 5, DIM), seq_start_pos=torch.tensor([1, 2]))


def test_gradients_reach_the_same_parameters() -> None:
    for name, args in (("neutral names, a parameter", (noise(2, 7, DIM),)), ("x-transformers", (noise(2, 7, DIM),))):
        old, new, _ = old_and_new(CASES[name])
        for module in (old, new):
            module(*args).square().sum().backward()
        pairs = [pair for pair in zip(old.parameters(), new.parameters(), strict=True) if pair[0].requires_grad]
        assert pairs and all(a.grad is not None and b.grad is not None for a, b in pairs)
        for a, b in pairs:
            assert apart(a.grad, b.grad) <= 64 * limit(500.0) * max(1.0, float(a.grad.abs().max()))
    _, new, _ = old_and_new(CASES["lucidrains"])
    t = times(1.0, 2.0).requires_grad_()
    new(t).sum().backward()
    assert t.grad is not None and bool(t.grad.any())


def test_checkpoint_with_other_frequencies_warns() -> None:
    new: Any = Frequencies(DIM)
    assert swap(new).swapped
    before = new(times(1.0, 2.0))
    with pytest.warns(UserWarning, match="frequency: the checkpoint's table is not"):
        new.load_state_dict({"frequency": new.frequency * 2})
    assert torch.equal(new(times(1.0, 2.0)), before)
    new.load_state_dict({"frequency": Frequencies(DIM).frequency})


@pytest.mark.parametrize("angle", ["float32", "float32_exp"])
def test_float32_angle_keeps_the_naive_roundings(angle: str) -> None:
    for name in ("neutral names", "channels first"):
        new = CASES[name].build()
        (entry,) = swap(new, angle=angle)
        assert entry.difference == 0.0 and entry.encoding.angle == "float32_exp"


# reported, or not replaced


def test_parameter_used_in_forward_is_reported() -> None:
    model = Autoencoder()
    kind = type(model)
    (entry,) = swap(model)
    assert not entry.swapped and type(model) is kind and entry.convention == "mae2d"
    assert "`pos_embed` holds mae2d, 37 rows" in entry.reason and "`patches` (Conv2d)" in entry.reason
    assert "; `decoder_pos_embed` holds mae2d" in entry.reason
    with pytest.raises(ValueError, match="1 that are not; pass strict=False"):
        swap(model, strict=True)
    renamed = Autoencoder()
    renamed.a, renamed.b = renamed.pos_embed, renamed.decoder_pos_embed
    del renamed.pos_embed, renamed.decoder_pos_embed
    (entry,) = swap(renamed)
    assert "`a` holds mae2d" in entry.reason and "; `b` holds mae2d" in entry.reason


@pytest.mark.parametrize("name", ["mae2d", "hf2d", "bigvision2d", "timm2d", "t2t2d", "detr2d"])
def test_grid_is_reported_by_name(name: str) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", sinpe.table((12, 12), sinpe.convention(name, 32), flatten=True)[None])

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b

    (entry,) = swap(Holds())
    assert not entry.swapped and "sums with grids are not replaced" in entry.reason
    assert entry.convention == name and isinstance(entry.encoding, sinpe.GridEncoding)


def test_16_bit_rows_of_timesteps_remain_the_module_s_own() -> None:
    class InDtypeOfX(Sinusoids):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).to(x.dtype)

    module = InDtypeOfX()
    t = times(1.0, 3.0, dtype=torch.bfloat16)
    before = module(t)
    swap(module, strict=True)
    assert torch.equal(module(t), before) and before.dtype == torch.bfloat16
    assert torch.equal(module(t.float()), sinpe.encode(t.float(), sinpe.convention("t2t", DIM)))


class ClampedSinusoids(Sinusoids):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(max=1000))


class Noisy(Sinusoids):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if self.training else 1.0)


class Counts(Sinusoids):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class ShiftedSinusoids(Sinusoids):
    """Further tensors that its rows depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.by)


class Extra(Scales):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(())

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        return super().forward(x, pos) + self.shift


REPORTED = {
    "further tensors": (Extra, "has `shift` .*, too"),
    "a trained embedding": (
        lambda: nn.ModuleDict({"wpe": nn.Embedding.from_pretrained(naive(), freeze=False)}),
        "`weight` holds paper, 60 rows; it is trained",
    ),
    "clamped": (ClampedSinusoids, "output would differ"),
    "training": (Noisy, "would differ in training"),
    "counting": (Counts, "keeps a state"),
    "another tensor": (ShiftedSinusoids, "looks sinusoidal by its name"),
}


@pytest.mark.parametrize("name", REPORTED)
def test_module_is_reported(name: str) -> None:
    build, reason = REPORTED[name]
    module = build()
    (entry,) = swap(module)
    assert not entry.swapped and re.search(reason, entry.reason), entry.reason
    assert not any("_sinpe_encoding" in vars(each) for each in module.modules())
    with pytest.raises(ValueError, match="1 that are not"):
        swap(module, strict=True)


class Rotary(nn.Module):
    """The halves of a rotary encoding, which are not added to anything."""

    def __init__(self) -> None:
        super().__init__()
        angle = torch.arange(64)[:, None] * 10000 ** -(torch.arange(0, 32, 2) / 32)
        self.register_buffer("c", angle.cos())
        self.register_buffer("s", angle.sin())

    def forward(self, q: Tensor) -> Tensor:
        a, b = q.chunk(2, -1)
        c, s = self.c[: q.shape[1]], self.s[: q.shape[1]]
        return torch.cat([a * c - b * s, a * s + b * c], -1)


class Fourier(nn.Module):
    """Random frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(8, generator=torch.Generator().manual_seed(1)) * 16)

    def forward(self, t: Tensor) -> Tensor:
        angle = t[:, None] * self.w
        return torch.cat([angle.sin(), angle.cos()], -1)


def test_other_modules_are_not_reported() -> None:
    torch.manual_seed(0)
    for model in (
        nn.Linear(2, 2),
        nn.Transformer(16, 2, 1, 1, 32),
        nn.Sequential(nn.Conv1d(8, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.LSTM(8, 8)),
        nn.Embedding.from_pretrained(torch.randn(ROWS, DIM)),
        Rotary(),
        Fourier(),
    ):
        for each in model.modules():
            each.requires_grad_(False)
        report = swap(model, strict=True)
        assert not report and str(report).startswith("none recognized")


# the check of values


def tables() -> list[tuple[str, Tensor]]:
    pairs = []
    for name in sinpe.conventions():
        for dim in (16, 17, 30, 64, 252):
            try:
                encoding = sinpe.convention(name, dim)
            except ValueError:
                continue
            if name == "tcnn":
                continue  # 0, 1 and -1 only at integer positions, as in a mask
            axes = encoding.ndim if isinstance(encoding, sinpe.GridEncoding) else 1
            for length in ((64,), (9, 14), (5, 6, 7))[axes - 1 : axes]:
                shape = length if axes > 1 else length[0]
                pairs.append((f"{name} {dim}", sinpe.table(shape, encoding)))
                pairs.append((f"{name} {dim} flat", pairs[-1][1].reshape(1, -1, dim)))
    return pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_convention_passes_the_check_of_values(dtype: torch.dtype) -> None:
    """All tables that identify knows must reach it: with padding rows, a class token, a factor, in 16 bits."""
    for name, table in tables():
        rows = table.to(dtype)
        for form in (rows, 0.02 * rows, rows.repeat(2, *([1] * (rows.dim() - 1))) if rows.dim() == 3 else rows):
            assert may_be_table(form) or not sinpe.identify(form), name
        flat = rows.reshape(-1, rows.shape[-1])
        padded = torch.cat([torch.zeros_like(flat[:1]), flat])
        assert may_be_table(padded) or not sinpe.identify(padded), name
        assert may_be_table(nn.Parameter(flat[None])) or not sinpe.identify(flat), name


def test_learned_weights_fail_the_check_of_values() -> None:
    """Only few may pass, since identify takes milliseconds for each."""
    generator = torch.Generator().manual_seed(5)
    passed = 0
    for shape in [(16, 16), (64, 16), (64, 64), (256, 64), (768, 256), (256, 768), (30, 100), (3, 3), (64, 8, 3, 3)]:
        for _ in range(20):
            for weight in (torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) - 0.5):
                passed += may_be_table(nn.Parameter(weight)) + may_be_table(nn.Parameter(weight).mT)
    assert passed <= 7  # of 720
    for trivial in (
        torch.zeros(64, 32),
        torch.ones(64, 32),
        torch.eye(64),
        torch.ones(64, 64).tril(),
        -torch.ones(64, 64).triu() / 0,
    ):
        assert not may_be_table(trivial)


@pytest.mark.skipif(SANITIZED, reason="a limit of CPU time")
def test_large_model_is_searched_quickly() -> None:
    """A weight of any size costs a fraction of a millisecond; here 40 M parameters in 60 tensors."""
    model = nn.Sequential(*(nn.Linear(816, 816) for _ in range(60)))
    took = []
    for _ in range(5):
        start = time.thread_time()
        assert not swap(model)
        took.append(time.thread_time() - start)
    # About 15 ms on an idle machine; identify takes half a second or more for each.
    assert min(took) < 0.3


def test_devices_threads_and_generators_are_unchanged() -> None:
    model = nn.Sequential(Foo(), Sinusoids(), Scales())
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert len(swap(model).swapped) == 3
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    assert halves().shape == (ROWS, DIM)
