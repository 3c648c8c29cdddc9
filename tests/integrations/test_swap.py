"""`integrations.swap`: which modules it replaces by what, what of them stays, its arguments and report."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from swap_modules import (
    DIM,
    ROWS,
    Another,
    BatchFirst,
    ChannelsFirst,
    ChannelsFirstRows,
    Follows,
    Grows,
    Inherits,
    Learned,
    Odd,
    OneSequence,
    Scaled,
    Scales,
    SequenceFirst,
    SinusoidalFrequencies,
    Sinusoids,
    Timesteps,
    noise,
    rows,
)  # fmt: skip
from torch import Tensor, nn
from widths import WIDTHS, names_at

import sinpe_ext as sinpe
from sinpe_ext.integrations import Report, Swap, swap

Call = tuple[tuple[Any, ...], dict[str, Any], float]  # arguments, and the largest position


def limit(position: float = ROWS, dtype: torch.dtype = torch.float32) -> float:
    """The float32 error of an angle and of sine and cosine, then of sums below 8, or 16 of a 16-bit dtype."""
    half = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(dtype, 0.0)
    return position * 2.0**-22 + 2.0**-23 + 2.0**-21 + 16 * half


class Case(NamedTuple):
    """A module that is replaced: its entry in the report, calls, and the call of this library that it becomes."""

    build: Callable[[], Any]
    form: str
    convention: str
    calls: list[Call]
    exact: Callable[..., Tensor]  # of the module and the arguments


def a_sum(build: Any, form: str, shape: tuple, convention: str = "paper", **arguments: Any) -> Case:
    """Of x with this shape (None: the length); arguments of `add`, a string for an attribute of the module."""

    def exact(module: Any, x: Tensor, **dropout: float) -> Tensor:
        given = {key: getattr(module, value) if isinstance(value, str) else value for key, value in arguments.items()}
        x = x if build is Follows else x.to(torch.promote_types(x.dtype, torch.float32))
        return sinpe.add(x, sinpe.convention(convention, DIM), **given, **dropout)

    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    sizes = [(torch.float32, length) for length in (1, 2, ROWS)] + [(dtype, 9) for dtype in dtypes]
    calls: list[Call] = [
        ((noise(*(length if n is None else n for n in shape), dtype=dtype),), {}, length) for dtype, length in sizes
    ]
    return Case(build, form, convention, calls, exact)


def times(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def timesteps(build: Any, convention: str, *, fields: str = "", always_float32: bool = False, **changed: Any) -> Case:
    """Of rows at timesteps; `fields`, of the changed fields of the convention, is in the report."""
    most = float(changed.get("position_scale", 1))

    def exact(module: Any, t: Tensor) -> Tensor:
        kind = torch.float32 if always_float32 else torch.promote_types(t.dtype, torch.float32)
        t = t.float() if t.dtype.itemsize == 2 or (always_float32 and t.is_floating_point()) else t
        return sinpe.encode(t, sinpe.convention(convention, DIM, **changed), dtype=kind)

    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    given = [times(0.0, 1.0 / most, 2.5 / most, 999.0 / most, dtype=dtype) for dtype in floats]
    given += [times(3.0), torch.tensor([0, 7, 999])]
    calls: list[Call] = [((t,), {}, most * float(t.max())) for t in given]
    return Case(build, "rows of timesteps", convention + fields, calls, exact)


def scaled(module: Any, x: Tensor, pos: Tensor | None = None, offset: int = 0) -> Tensor:
    pos = torch.arange(x.shape[1]) + offset if pos is None else pos
    return sinpe.encode(pos, sinpe.convention("paper_concat", DIM)) * module.scale


OFFSETS: list[Call] = [
    *(((noise(2, n, DIM),), {}, n) for n in (1, 9, 4000)),
    ((noise(2, 4, DIM),), {"offset": 900}, 904),
    ((noise(2, 3, DIM),), {"pos": torch.tensor([8, 0, 999])}, 999),
    ((noise(2, 3, DIM), torch.tensor([8.5, 0.0, 999.25])), {}, 1000),
]
FIRST = {"seq_dim": -1, "channel_dim": -2}
CASES = {
    "batch first": a_sum(BatchFirst, "x + rows, batch first", (2, None, DIM)),
    "sequence first": a_sum(SequenceFirst, "x + rows, sequence first", (None, 2, DIM), seq_dim=0),
    "scaled": a_sum(Scaled, "4 * x + rows, batch first", (2, None, DIM), scale=4.0),
    "grows": a_sum(Grows, "4 * x + rows, batch first", (2, None, DIM), scale=4.0),
    "learned": a_sum(Learned, "x + alpha * rows, batch first", (2, None, DIM), alpha="alpha"),
    "follows x": a_sum(Follows, "x + 0.25 * rows, batch first", (2, None, DIM), alpha=0.25),
    "one sequence": a_sum(OneSequence, "x + rows, one sequence", (None, DIM)),
    "fairseq": a_sum(Another, "x + rows, batch first", (2, None, DIM), "fairseq"),
    "channels first": a_sum(ChannelsFirst, "x + rows, channels first", (2, DIM, None), **FIRST),
    "channels first, rows": a_sum(
        ChannelsFirstRows, "4 * x + rows, channels first", (2, DIM, None), "paper_concat", scale=4.0, **FIRST
    ),
    "an nn.Embedding": a_sum(Inherits, "x + rows, batch first", (2, None, DIM)),
    "lucidrains": timesteps(Sinusoids, "t2t"),
    "lucidrains, theta": timesteps(lambda: Sinusoids(theta=100.0), "t2t", fields=", base 100", base=100.0),
    "torch_geometric": timesteps(
        lambda: SinusoidalFrequencies(DIM, 0.01, 4.0),
        "t2t", fields=", base 100, position_scale 0.25", base=100.0, position_scale=0.25,
    ),
    "diffusers, ddpm": timesteps(lambda: Timesteps(DIM, False, 1), "ddpm", always_float32=True),
    "diffusers, adm": timesteps(lambda: Timesteps(DIM, True, 0), "adm", always_float32=True),
    "diffusers, all fields": timesteps(
        lambda: Timesteps(DIM, True, 0.5, 1000),
        "adm", fields=", position_scale 1000, shift 0.5", always_float32=True, position_scale=1000, shift=0.5,
    ),
    "x-transformers": Case(Scales, "scale * rows for the length of x", "paper_concat", OFFSETS, scaled),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def old_and_new(name: str | Case, **arguments: Any) -> tuple[Any, Any, Swap]:
    """A module in evaluation mode, a replaced copy, and the entry of the report."""
    old = (name if isinstance(name, Case) else CASES[name]).build().eval()
    new = copy.deepcopy(old)
    (entry,) = swap(new, strict=True, **arguments)
    return old, new, entry


def apart(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape and a.dtype == b.dtype
    return float((a.detach().double() - b.detach().double()).abs().max())


@cases
def test_module_is_replaced_by_the_exact_encoding(case: Case, backend: str) -> None:
    old, new, entry = old_and_new(case)
    assert (entry.swapped, entry.name, entry.reason) == (True, "", "") and isinstance(new, type(old))
    assert (entry.form, entry.convention) == (case.form, case.convention) and not new.training
    assert entry.old_class == f"swap_modules.{type(old).__name__}" and 0 < entry.difference <= limit(4096.0)
    parameters = inspect.signature(old.forward).parameters
    assert inspect.signature(new.forward).parameters == parameters
    for args, named, position in case.calls:
        before, after = copy.deepcopy(old)(*args, **named), new(*args, **named)
        assert apart(before, after) <= limit(position, before.dtype)
        assert torch.equal(after, case.exact(new, *args, **named).to(after.dtype))
        by_name = dict(zip(parameters, args, strict=False)) | named
        assert torch.equal(new(**by_name), after)


@cases
@pytest.mark.filterwarnings("error")
def test_checkpoints_copies_and_hooks_stay_valid(case: Case) -> None:
    """The same keys, strict loading in both directions; the table stays in the checkpoint and is not read."""
    old, seen = case.build().eval(), []
    old.register_forward_hook(lambda *_: seen.append(1))
    new = copy.deepcopy(old)
    swap(new, strict=True)
    assert not seen  # the trials run no hook
    args, named, position = case.calls[0]
    before, after = copy.deepcopy(old)(*args, **named), new(*args, **named)
    assert len(seen) == 2
    for module in (old, new):
        module._forward_hooks.clear()
    state = old.state_dict()
    assert list(state) == list(new.state_dict()) and all(torch.equal(new.state_dict()[n], state[n]) for n in state)
    for assign in (False, True):
        given = {name: value.clone() for name, value in state.items()}
        new.load_state_dict(given, strict=True, assign=assign)
        assert torch.equal(new(*args, **named), after) and given.keys() == state.keys()
    old.load_state_dict(new.state_dict(), strict=True)
    assert apart(copy.deepcopy(old)(*args, **named), before) <= limit(position, before.dtype)
    assert "Encoding(16" in repr(new)
    for other in (copy.deepcopy(new), copy.copy(new), pickle.loads(pickle.dumps(new))):
        assert type(other) is type(new) and repr(other) == repr(new)
        assert torch.equal(other(*args, **named), after) and other.state_dict().keys() == state.keys()
    for dtype in (torch.bfloat16, torch.float64):
        x = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
        assert copy.deepcopy(new).to(dtype)(*x, **named).dtype == copy.deepcopy(old).to(dtype)(*x, **named).dtype
    other = copy.deepcopy(new).half().float()  # rounds rows and frequencies
    assert torch.equal(other(*args, **named), after) or any(p.requires_grad for p in new.parameters())


@pytest.mark.parametrize("name", ["learned", "torch_geometric"])
def test_compiled(name: str) -> None:
    _, new, _ = old_and_new(name)
    torch.compiler.reset()
    compiled = torch.compile(new, fullgraph=True, backend="eager")
    args, named, _ = CASES[name].calls[0]
    assert torch.equal(compiled(*args, **named), new(*args, **named))


def test_any_length_and_any_factor() -> None:
    _, new, _ = old_and_new("batch first")
    x = noise(2, 3 * ROWS, DIM)
    assert torch.equal(new(x), sinpe.add(x))
    for scale in (-0.5, 1000.0):  # found by least squares, not in a list
        module = Odd(lambda m, x, scale=scale: scale * x + rows(m, x)).eval()
        (entry,) = swap(module, strict=True)
        assert torch.equal(module(x[:, :9]), sinpe.add(x[:, :9], scale=scale))
        assert entry.form.startswith(f"{scale:.6g} * x")
    module = Odd(lambda m, x: x + m.a * rows(m, x), a=nn.Parameter(torch.full((1, 1, 1), 0.5)))
    swap(module, strict=True)
    assert torch.equal(module(x), sinpe.add(x, alpha=0.5))
    # The old code rounds 22.6 * x to bfloat16 before it adds float32 rows: the formula is the same.
    assert swap(Scaled(512))[0].form.startswith("22.6274 * x")


@pytest.mark.parametrize("name", ["batch first", "sequence first", "scaled", "channels first, rows"])
def test_dropout_of_the_module(name: str) -> None:
    """fuse_dropout=False: torch's masks; otherwise this library's. The child's p and mode are read at each call."""
    old, new, _ = old_and_new(name, fuse_dropout=False)
    _, fused, _ = old_and_new(name)
    ((x,), _, _), exact = CASES[name].calls[2], CASES[name].exact
    dropout, of_fused = (next(m for m in each.modules() if isinstance(m, nn.Dropout)) for each in (new, fused))
    of_fused.p = 0.25
    results = []
    for run in (old.train(), new.train(), fused.train(), lambda x: exact(fused, x, dropout=0.25)):
        torch.manual_seed(1)
        results.append(run(x))
    before, after, masked, want = results
    assert torch.equal(before == 0, after == 0) and bool((after == 0).any()) and apart(before, after) <= 2 * limit()
    assert torch.equal(masked, want) and bool((masked == 0).any())
    dropout.p = 1.0
    assert not new(x).any() and new.eval()(x).all() and torch.equal(fused.eval()(x), exact(fused, x))


def test_hooks_of_the_dropout_run() -> None:
    _, new, _ = old_and_new("batch first")
    seen: list[str] = []
    new.dropout.register_full_backward_hook(lambda *_: seen.append("backward"))
    new(noise(1, 5, DIM).requires_grad_()).sum().backward()
    assert seen == ["backward"]


@pytest.mark.parametrize("name", ["learned", "x-transformers", "lucidrains"])
def test_gradients(name: str) -> None:
    old, new, _ = old_and_new(name)
    x = times(1.0, 2.0) if name == "lucidrains" else noise(2, 9, DIM)
    gradients = []
    for module in (old, new):
        leaf = x.clone().requires_grad_()
        module(leaf).square()[..., :3].sum().backward()  # of all, sin^2 + cos^2 is constant
        gradients.append((leaf.grad, *(p.grad for p in module.parameters())))
    pairs = [(a, b) for a, b in zip(*gradients, strict=True) if a is not None]
    assert [g is None for g in gradients[0]] == [g is None for g in gradients[1]] and pairs
    for before, after in pairs:  # sums of up to 54 products of numbers below 8
        assert apart(before, after) <= 54 * 8 * limit() and bool(after.any())


# All but tcnn, of which the rows at whole positions are 0 and 1.
EVERY = [(width, name) for width in WIDTHS for name in names_at(width, 1) if name != "tcnn"]


@pytest.mark.sampled(5, "conventions and widths")
@pytest.mark.parametrize(("width", "name"), EVERY)
def test_every_convention_at_every_width(width: int, name: str) -> None:
    module: Any = Odd(lambda m, x: x + rows(m, x), pe=sinpe.table(16, name, width)[None])
    x, want = torch.zeros(1, 9, width), sinpe.table(9, name, width)
    if name in ("ddpm", "adm") and width % 2 == 0:
        module, x = Timesteps(width, name == "adm", int(name == "ddpm")), torch.arange(9)
    (entry,) = swap(module, strict=True)
    assert torch.equal(sinpe.table(9, entry.encoding), want) and torch.equal(module(x).reshape(9, width), want)


def test_float32_angle_keeps_the_naive_roundings() -> None:
    for name, angle in (("batch first", "float32"), ("channels first", "float32_exp")):
        old, new, entry = old_and_new(name, angle=angle)
        ((x,), _, _) = CASES[name].calls[2]
        assert entry.difference == 0.0 and torch.equal(old(x), new(x))
        assert entry.encoding == sinpe.Encoding(DIM, angle="float32_exp") and "angle float32_exp" in str(entry)
    _, _, other = old_and_new("batch first", angle="float32_pow")
    assert 0 < other.difference <= limit()


def test_float32_angle_is_the_closest_to_each_module() -> None:
    module, angle = BatchFirst(0.0), torch.arange(float(ROWS))[:, None] / 10000 ** (torch.arange(0, DIM, 2) / DIM)
    module.pe.copy_(torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
    (entry,) = swap(module, angle="float32")
    assert entry.encoding.angle == "float32_pow"


# the same object, in a model


def test_replaced_module_is_the_same_object() -> None:
    """Shared and referenced modules: the same object with another class."""
    shared = BatchFirst(0.0)
    model = nn.ModuleDict({"a": nn.Sequential(nn.Linear(DIM, DIM), shared), "b": shared}).eval()
    (entry,) = report = swap(model)
    assert entry.name == "a.1" and report.model is model and model["a"][1] is model["b"] is shared
    x = noise(1, 5, DIM)
    assert torch.equal(model["b"](x), sinpe.add(x))
    assert type(shared).__name__ == "SinpeBatchFirst" and type(shared).__module__ == "swap_modules"
    (again,) = swap(model, strict=True)
    assert again.reason == "it is swapped already" and again.encoding == sinpe.Encoding(DIM)


def test_no_state_of_the_caller_changes_or_matters() -> None:
    """Autocast, inference mode, generators, threads; no other library is imported."""
    model, imported = nn.Sequential(BatchFirst(0.0), Scaled(), Scales(), Sinusoids()), []

    class Recorder:
        def find_spec(self, name: str, *_: Any) -> None:
            imported.append(name.partition(".")[0])

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    sys.meta_path.insert(0, Recorder())  # type: ignore[arg-type]
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            assert len(swap(model).swapped) == 4
    finally:
        sys.meta_path.pop(0)
    assert not {"transformers", "diffusers", "timm", "x_transformers", "numpy"}.intersection(imported)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)
    x = noise(2, 3, DIM).requires_grad_()
    model[:2].eval()(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 4.0))


# arguments and report


def test_arguments() -> None:
    model = nn.Sequential(BatchFirst(), SequenceFirst())
    report = swap(model, inplace=False)
    assert report.model is not model and len(report.swapped) == 2
    assert [type(module) for module in model] == [BatchFirst, SequenceFirst]
    report = swap(model, dry_run=True, inplace=False)
    assert report.model is model and len(report.swapped) == 2 and type(model[0]) is BatchFirst
    assert [entry.name for entry in swap(model, skip="0")] == ["1"]
    assert type(model[0]) is BatchFirst and type(model[1]) is not SequenceFirst
    assert not swap(model, skip=["*"])
    for error, message, call in (
        (TypeError, "model: expected a torch.nn.Module, got str", lambda: swap("model")),  # type: ignore[arg-type]
        (TypeError, "skip: expected names", lambda: swap(model, skip=[1])),  # type: ignore[list-item]
        (TypeError, "skip: expected names", lambda: swap(model, skip=1)),  # type: ignore[arg-type]
        (ValueError, 'angle: expected one of "exact", "float32"', lambda: swap(model, angle="float")),
    ):
        with pytest.raises(error, match=message):
            call()


def test_strict_replaces_all_or_nothing() -> None:
    model = nn.Sequential(BatchFirst(), Odd(lambda m, x: x * rows(m, x)))
    with pytest.raises(ValueError, match="1 that are not; pass strict=False"):
        swap(model, strict=True)
    assert type(model[0]) is BatchFirst and "_sinpe_encoding" not in vars(model[0])


def test_report() -> None:
    report = swap(nn.Sequential(BatchFirst(0.0), Scaled(), Odd(lambda m, x: x * rows(m, x)), nn.Linear(2, 2)))
    assert isinstance(report, Report) and isinstance(report, list) and all(isinstance(e, Swap) for e in report)
    assert [e.name for e in report.swapped] == ["0", "1"] and [e.name for e in report.left] == ["2"]
    assert report.difference == max(report[0].difference, report[1].difference) > 0
    lines = str(report).splitlines()
    assert lines[0].startswith("2 swapped, 1 left alone, largest difference ")
    assert lines[1] == "swapped  0: BatchFirst" and "x + rows, batch first; paper; differs by" in lines[2]
    assert lines[5] == "left     2: Odd" and "is not dropout" in lines[6] and "recognized: paper" in lines[7]
    assert repr(report).startswith("Report([Swap(name='0'")
    assert str(swap(nn.Linear(2, 2))).startswith("none recognized: ")
    assert "(the model itself)" in str(swap(BatchFirst()))
    assert "swap" in dir(sinpe.integrations) and sinpe.integrations.swap is swap


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_script_modules() -> None:
    """They are skipped, and a swapped module is not scripted."""
    traced: Any = torch.jit.trace(BatchFirst(0.0).eval(), torch.zeros(2, 5, DIM))
    (entry,) = swap(nn.Sequential(traced, BatchFirst()), strict=True)
    assert entry.name == "1" and entry.swapped
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.jit.script(old_and_new("batch first")[1])
