"""`integrations.swap`: modules that are reported and not replaced, with the reason, and those not reported."""

from __future__ import annotations

import copy
import random
import re
import types
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from swap_modules import DIM, ROWS, BatchFirst, Odd, Scales, Sinusoids, halves, naive, noise, rows
from torch import Tensor, nn
from torch.nn import functional as F

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap
from sinpe_ext.integrations.tables import may_be_table


def storing(what: Any) -> Any:
    def forward(m: Any, x: Tensor) -> Tensor:
        what(m, x)
        return x + rows(m, x)

    return forward


def step(m: Any, x: Tensor) -> Tensor:
    y = x + rows(m, x, m.step)
    m.step += x.size(1)
    return y


def factor(value: float, *shape: int, trained: bool = True) -> nn.Parameter:
    return nn.Parameter(torch.full(shape or (1,), value), requires_grad=trained)


NONE = {"dropout": nn.Identity()}
STATE, MAY_DEPEND, NO_SUM, DIFFERS = "keeps a state", "may depend", "is not dropout", "output would differ"
TRAINING, GRADIENTS, RANDOM = "differ in training", "gradients would differ", "draws random numbers besides dropout"
A_LOOKUP = "a lookup of a stored table gains nothing"
FORWARDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    # what the forward does with x: (forward, what the module holds, reason)
    "from the second row": (lambda m, x: x + rows(m, x, 1), {}, NO_SUM),
    "times the rows": (lambda m, x: x * rows(m, x), {}, NO_SUM),
    "no row where x is zero": (lambda m, x: x + rows(m, x) * (x[..., :1] != 0), {}, DIFFERS),
    "clamped at 3000": (lambda m, x: (x + rows(m, x)).clamp(-3000, 3000), {}, DIFFERS),
    "NaN replaced": (lambda m, x: x.where(~x.isnan(), 0) + rows(m, x), {}, DIFFERS),
    "clamped if finite": (lambda m, x: x.where(x.isinf(), x.clamp(-6e4, 6e4)) + rows(m, x), {}, DIFFERS),
    "cut to the table": (lambda m, x: x[:, : m.pe.size(1)] + rows(m, x), {}, DIFFERS),
    "begun again after the table": (lambda m, x: x + m.pe[0, torch.arange(x.size(1)) % ROWS], {}, DIFFERS),
    "cut at eight": (lambda m, x: x + torch.cat([rows(m, x[:, :8]), rows(m, x[:, 8:])], 1), {}, DIFFERS),
    "always float64": (lambda m, x: (x + rows(m, x)).double(), {}, f"{DIFFERS} in the dtype"),
    "a sum of everything": (lambda m, x: (x + rows(m, x)).sum(1), {}, "returns something else"),
    "broken": (lambda m, x: x + undefined, {}, "failed: NameError"),  # noqa: F821
    "in place": (lambda m, x: x.add_(rows(m, x)), {}, "writes to its argument in place"),
    "a step": (step, {"step": 0}, STATE),
    "a step in training": (storing(lambda m, x: setattr(m, "n", m.n + m.training)), {"n": 0}, STATE),
    "the longest so far": (storing(lambda m, x: setattr(m, "most", max(m.most, len(x[0])))), {"most": 5}, STATE),
    "its last x": (storing(lambda m, x: setattr(m, "last", x)), {}, STATE),
    "its rows written to": (storing(lambda m, x: m.pe.mul_(0.5)), {}, STATE),
    "a step in a buffer": (storing(lambda m, x: m.calls.add_(1)), {"calls": torch.zeros(1)}, f"`calls`.*{MAY_DEPEND}"),
    "a list": (storing(lambda m, x: m.seen.append(1)), {"seen": []}, f"`seen`.*{MAY_DEPEND}"),
    "a dictionary": (lambda m, x: x + rows(m, x, m.at["at"]), {"at": {"at": 0}}, f"`at`.*{MAY_DEPEND}"),
    "a layer": (lambda m, x: m.proj(x) + rows(m, x), {"proj": nn.Linear(DIM, DIM)}, r"`proj` \(Linear\), too"),
    "a factor in a buffer": (lambda m, x: x * m.w + rows(m, x), {"w": torch.tensor(4.0)}, f"`w`.*{MAY_DEPEND}"),
    "a clamped factor": (lambda m, x: x + m.a.clamp(0, 1) * rows(m, x), {"a": factor(0.5)}, NO_SUM),
    "a factor of both": (lambda m, x: m.a * (x + rows(m, x)), {"a": factor(0.75, trained=False)}, NO_SUM),
    "an unused factor": (lambda m, x: x + rows(m, x), {"gain": factor(1.0)}, NO_SUM),
    "scaled in training": (lambda m, x: m.dropout(x * (1 + m.training) + rows(m, x)), {}, TRAINING),
    "dropout of the rows": (lambda m, x: x + m.dropout(rows(m, x)), {}, TRAINING),
    "dropout by a function": (lambda m, x: F.dropout(x + rows(m, x), 0.1, m.training), NONE, TRAINING),
    "float32 in training": (lambda m, x: (x + rows(m, x)).to(torch.float32 if m.training else x.dtype), NONE, TRAINING),
    "a detached x": (lambda m, x: x.detach() + rows(m, x), NONE, f"{GRADIENTS} where one is detached"),
    "a detached factor": (lambda m, x: x + m.a.detach() * rows(m, x), {"a": factor(0.5)} | NONE, GRADIENTS),
    "a smaller gradient": (lambda m, x: x * 0.25 + x.detach() * 0.75 + rows(m, x), NONE, GRADIENTS),
    "sometimes nothing": (
        lambda m, x: x if m.training and torch.rand(()) < 0.1 else x + rows(m, x), NONE, RANDOM,
    ),
    "sometimes nothing, by Python": (
        lambda m, x: m.dropout(x if m.training and random.random() < 1e-9 else x + rows(m, x)), {}, "numbers of Python",
    ),
    "sometimes nothing, by NumPy": (
        lambda m, x: m.dropout(x if numpy.random.rand() < 1e-9 else x + rows(m, x)), {}, "random numbers of Python or",
    ),
}  # fmt: skip


class Offset(BatchFirst):
    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return self.dropout(x + rows(self, x, start))


class Configured(BatchFirst):
    config = {"scale": 1.0}  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.config["scale"]


class Gives(nn.Module):
    """As in BERT-pytorch: rows with a batch dimension of one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pe", naive().unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        return rows(self, x)


class Tokens(nn.Module):
    """Like fairseq's SinusoidalPositionalEmbedding."""

    def __init__(self) -> None:
        super().__init__()
        self.padding_idx = 0
        self.register_buffer("weights", halves(), persistent=False)
        self.weights[0] = 0

    def forward(self, input: Tensor, incremental_state: Any = None, timestep: Tensor | None = None) -> Tensor:
        there = input.ne(self.padding_idx).int()
        places = (there.cumsum(1).type_as(there) * there).long() + self.padding_idx
        return self.weights.index_select(0, places.view(-1)).view(*input.shape, -1).detach()


class Autoencoder(nn.Module):
    """Like MAE: two frozen grids inside a forward with other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, 4, 4)
        for name, dim in (("a", DIM), ("b", 8)):
            table = sinpe.table((6, 6), sinpe.convention("mae2d", dim), flatten=True, extra_tokens=1)
            self.register_parameter(name, nn.Parameter(table[None], requires_grad=False))

    def forward(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).mT + self.a[:, 1:]


def count(m: Any, rows: Tensor) -> Tensor:
    m.calls += 1
    return rows


class Around(Sinusoids):
    """Does something with the timesteps, or with the rows."""

    calls = 0

    def __init__(self, before: Any = lambda m, t: t, after: Any = lambda m, rows: rows) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, super().forward(self.before(self, x)))


class Extra(Scales):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(())

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        return super().forward(x, pos) + self.shift


class Flips(Scales):
    """An argument that the class of the library has not."""

    def forward(self, x: Tensor, pos: Tensor | None = None, flip: bool = False) -> Tensor:
        return super().forward(x, pos).flip(-1) if flip else super().forward(x, pos)


def holding(module: nn.Module | None = None, **tensors: Tensor) -> nn.Module:
    module = module or nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def hooked(module: nn.Module) -> nn.Module:
    """As offloading does."""
    module.forward = module.forward
    return module


def on_meta(kind: Any) -> Any:
    with torch.device("meta"):
        return kind()


class SinusoidalTable(nn.Module):
    """x + a table of any kind."""

    def __init__(self, table: Tensor, trained: bool = False) -> None:
        super().__init__()
        self.pe = nn.Parameter(table) if trained else table

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(1)]


def parametrised() -> nn.Module:
    module = nn.Embedding.from_pretrained(naive())
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Identity())
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], str, str, str]] = {
    # (module, the name in it of the one that is reported, the convention, the reason)
    "frozen embedding": (lambda: nn.Embedding.from_pretrained(naive()), "", "paper", A_LOOKUP),
    "trained embedding": (lambda: nn.Embedding.from_pretrained(naive(), False), "", "paper", "trained .*freeze it"),
    "fairseq": (Tokens, "", "t2t", f"^`weights` holds t2t, 60 rows; .*{A_LOOKUP}"),
    "rows for the length": (Gives, "", "paper", A_LOOKUP),
    "a start": (Offset, "", "paper", "forward takes x, start"),
    "a dictionary of the class": (Configured, "", "paper", "`config`"),
    "trained": (lambda: SinusoidalTable(naive(), True), "", "paper", "trained .*freeze it first"),
    "with a row of zeros": (lambda: SinusoidalTable(F.pad(naive(), (0, 0, 1, 0))), "", "paper", "rows of it are zero"),
    "short": (lambda: SinusoidalTable(naive(4)), "", "paper", "too short"),
    "noise": (lambda: SinusoidalTable(noise(ROWS, DIM)), "", "", "no convention that identify knows"),
    "fractional positions": (lambda: holding(BatchFirst(0.0), pe=sinpe.encode(torch.arange(ROWS) + 0.5, DIM)[None]),
                             "", "", r"`pe` has rows at fractional positions, torch.arange\(60\) \+ 0.5"),
    "two grids and a layer": (Autoencoder, "", "mae2d", r"^`a` holds mae2d, 37 rows; .*`patches`.*; `b` holds mae2d"),
    "a grid": (lambda: SinusoidalTable(sinpe.table((12, 12), sinpe.convention("hf2d", 32), flatten=True)[None]),
               "", "hf2d", "grids are not replaced"),
    "parametrised": (parametrised, "parametrizations.weight", "paper", "takes nothing"),
    "clamped": (lambda: Around(before=lambda m, t: t.clamp(max=1000)), "", "", DIFFERS),
    "other in training": (lambda: Around(after=lambda m, rows: rows * (1.0 + m.training)), "", "", TRAINING),
    "counting": (lambda: Around(after=count), "", "", STATE),
    "a further attribute": (Extra, "", "", "`shift` .*, too"),
    "a further tensor": (lambda: holding(Sinusoids(), by=torch.zeros(1)), "", "", "looks sinusoidal by its name"),
    "table on meta": (lambda: on_meta(BatchFirst), "", "", "meta device"),
    "frequencies on meta": (lambda: on_meta(Scales), "", "", "meta device"),
    "forward of the instance": (lambda: hooked(BatchFirst()), "", "paper", "replaced in the instance"),
    "forward of the instance, known": (lambda: hooked(Sinusoids()), "", "", "replaced in the instance"),
}  # fmt: skip
LEFT = {
    **{f"x: {name}": (lambda of=of, held=held: Odd(of, **copy.deepcopy(held)), "", "paper", f"^`pe` holds.*{reason}")
       for name, (of, held, reason) in FORWARDS.items()},
    **MODULES,
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_module_is_reported_and_unchanged(name: str) -> None:
    build, inner, convention, reason = LEFT[name]
    model = nn.Sequential(build())
    path, state = f"0.{inner}".rstrip("."), copy.deepcopy(model.state_dict())
    module = model.get_submodule(path)
    kind, held = type(module), {key: str(value) for key, value in vars(module).items() if key[0] != "_"}
    versions, generator = [t._version for t in (*module.parameters(), *module.buffers())], torch.get_rng_state()
    (entry,) = report = swap(model)
    assert report.left == [entry] and not report.swapped and report.difference == 0.0
    assert (entry.name, entry.swapped, entry.convention) == (path, False, convention)
    assert entry.difference != entry.difference and (entry.encoding is None) == (convention == "")
    assert re.search(reason, entry.reason, re.DOTALL) and entry.reason in str(entry), entry.reason
    assert not convention or f"recognized: {convention}" in str(entry)
    assert type(module) is kind and {k: str(v) for k, v in vars(module).items() if k[0] != "_"} == held
    assert versions == [t._version for t in (*module.parameters(), *module.buffers())] and module.training
    assert all(value.is_meta or torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    with pytest.raises(ValueError, match="1 that are not"):
        swap(model, strict=True)


def test_trials_do_not_modify_what_a_module_refers_to() -> None:
    """Even if it raises afterwards."""

    def forward(m: Any, x: Tensor) -> Tensor:
        m.alpha.data.add_(1)
        m.config.calls += 1
        raise RuntimeError("on purpose")

    module = Odd(forward, alpha=factor(1.0), config=types.SimpleNamespace(calls=0))
    assert not swap(module).swapped
    assert float(module.alpha.detach()) == 1.0 and module.alpha._version == 0 and module.config.calls == 0


def test_other_modules_are_not_reported() -> None:
    angle = torch.arange(64)[:, None] * 10000 ** -(torch.arange(0, 32, 2) / 32)
    for model in (
        nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        nn.Sequential(nn.Conv1d(8, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.LSTM(8, 8)),
        nn.LazyLinear(3),
        Flips(),
        nn.Embedding.from_pretrained(torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(1))),
        holding(c=angle.cos(), s=angle.sin()),  # the halves of a rotary encoding
        holding(w=torch.randn(8, generator=torch.Generator().manual_seed(1)) * 16),  # random frequencies
    ):
        for tensor in model.parameters():
            if not isinstance(tensor, nn.UninitializedParameter):
                tensor.requires_grad_(False)
        report = swap(model, strict=True)
        assert not report and str(report).startswith("none recognized")


# the check of values, which decides whether a tensor may be a table


def tables() -> list[tuple[str, Tensor]]:
    pairs = []
    for name in sinpe.conventions():
        for dim in (16, 17, 30, 252):
            try:
                encoding = sinpe.convention(name, dim)
            except ValueError:
                continue
            if name == "tcnn":
                continue  # 0, 1 and -1 only at integer positions, as in a mask
            axes = encoding.ndim if isinstance(encoding, sinpe.GridEncoding) else 1
            shape = (64, (9, 14), (5, 6, 7))[axes - 1] if axes < 4 else None
            if shape is not None:
                pairs.append((f"{name} {dim}", sinpe.table(shape, encoding)))
                pairs.append((f"{name} {dim} flat", pairs[-1][1].reshape(1, -1, dim)))
    return pairs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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
        for _ in range(5):
            for weight in (torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) - 0.5):
                passed += may_be_table(nn.Parameter(weight)) + may_be_table(nn.Parameter(weight).mT)
    assert passed <= 2  # of 180
    ones = torch.ones(64, 64)
    for trivial in (torch.zeros(64, 32), ones, torch.eye(64), ones.tril(), -ones.triu() / 0):
        assert not may_be_table(trivial)
