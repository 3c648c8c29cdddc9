"""`integrations.swap`: modules that are not replaced, arguments, report."""

from __future__ import annotations

import copy
import re
import sys
from typing import Any

import pytest
import torch
from children import execute
from swap_modules import (
    DIM,
    GPT,
    ROWS,
    Attribute,
    BatchFirst,
    Before,
    ChannelsFirstGives,
    Functional,
    Gives,
    Layered,
    Odd,
    Offset,
    Picture,
    SequenceFirst,
    SinusoidalNoise,
    Sinusoids,
    Tokens,
    Trained,
    halves,
    naive,
)  # fmt: skip
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import Report, Swap, swap

# The float32 error of the angle of the last row and of sine and cosine, then the rounding of sums below 8.
LIMIT = ROWS * 2.0**-22 + 2.0**-23 + 2.0**-21


def _wrong(change: str) -> Any:
    forwards = {
        "from the second row": lambda m, x: x + m.pe[:, 1 : 1 + x.size(1)],
        "reversed": lambda m, x: x + m.pe[:, : x.size(1)].flip(1),
        "squared": lambda m, x: x * x + m.pe[:, : x.size(1)],
        "times the rows": lambda m, x: x * m.pe[:, : x.size(1)],
        "by the batch's size": lambda m, x: x + m.pe[:, : x.size(1)] * x.size(0),
        "the last rows": lambda m, x: x + m.pe[:, -x.size(1) :],
        "normalised": lambda m, x: torch.nn.functional.layer_norm(x + m.pe[:, : x.size(1)], (DIM,)),
        "cut at eight": lambda m, x: x + torch.cat([m.pe[:, : min(8, x.size(1))], m.pe[:, : max(x.size(1) - 8, 0)]], 1),
        "without a gradient": lambda m, x: x.detach() + m.pe[:, : x.size(1)],
        "two results": lambda m, x: (x + m.pe[:, : x.size(1)], x),
        "broken": lambda m, x: x + undefined,  # noqa: F821
        "always float64": lambda m, x: (x + m.pe[:, : x.size(1)]).double(),
    }
    return Odd(forwards[change])


WRONG = [
    "from the second row", "reversed", "squared", "times the rows", "by the batch's size",
    "the last rows", "normalised", "cut at eight", "without a gradient", "two results", "broken", "always float64",
]  # fmt: skip
LEFT = [
    *((lambda change=change: _wrong(change), "^`pe` holds paper, 60 rows; ") for change in WRONG),
    (Layered, r"the module has `proj` \(Linear\), too"),
    (Offset, "forward takes x, start"),
    (Functional, "would differ in training"),
    (Before, "would differ in training"),
    (Trained, "trained .*freeze it first"),
    (Picture, "`pos_embed` holds .*; sums with grids are not replaced"),
    (SinusoidalNoise, "no convention that identify knows"),
]


class Whisper(nn.Module):
    """Like Whisper's encoder: an nn.Embedding that holds t2t."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, DIM, 3, padding=1)
        self.embed_positions = nn.Embedding.from_pretrained(halves())

    def forward(self, features: Tensor) -> Tensor:
        x = self.conv(features).mT
        return x + self.embed_positions(torch.arange(x.shape[1]))


A_LOOKUP = "a lookup of a stored table gains nothing"
LOOKUPS = {
    # module, its name in the model, the convention and the rows of its table
    "frozen embedding": (lambda: nn.Embedding.from_pretrained(naive()), "0", "paper", ROWS),
    "GPT": (lambda: GPT(naive()), "0.wpe", "paper", ROWS),
    "Whisper": (Whisper, "0.embed_positions", "t2t", ROWS),
    "fairseq": (lambda: Tokens(DIM, None), "0", "t2t", ROWS),
    "fairseq, padding": (lambda: Tokens(DIM, 0), "0", "t2t", ROWS),
    "for the length of x": (Gives, "0", "paper", ROWS),
    "for the length of x, channels first": (ChannelsFirstGives, "0", "paper", ROWS),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookup_is_reported_and_left_alone(name: str) -> None:
    """With the convention, the number of rows and the reason."""
    build, path, convention, rows = LOOKUPS[name]
    model = nn.Sequential(build())
    kind, state = type(model.get_submodule(path)), copy.deepcopy(model.state_dict())
    (entry,) = swap(model)
    assert (entry.name, entry.swapped, entry.convention) == (path, False, convention)
    assert f"holds {convention}, {rows} rows; " in entry.reason and A_LOOKUP in entry.reason
    assert f"recognized: {convention}" in str(entry) and entry.encoding.dim == DIM
    assert type(model.get_submodule(path)) is kind
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_lookup_of_ids_is_reported() -> None:
    (entry,) = swap(Attribute())
    assert not entry.swapped and entry.reason.startswith("`encoding` holds paper, 60 rows; its forward is not dropout")


def test_any_factor_of_x() -> None:
    """Found by least squares, not in a list."""
    for scale in (3.3, -0.5, 2**-0.5, 1000.0):
        module = Odd(lambda m, x, scale=scale: scale * x + m.pe[:, : x.size(1)])
        (entry,) = swap(module, strict=True)
        x = torch.randn(2, 9, DIM)
        assert torch.equal(module.eval()(x), sinpe.add(x, scale=scale)) and entry.form.startswith(f"{scale:.6g} * x")


@pytest.mark.parametrize(("build", "reason"), LEFT, ids=[*WRONG, *(row[0].__name__ for row in LEFT[len(WRONG) :])])
def test_left_alone(build: Any, reason: str) -> None:
    module = build()
    kind, state = type(module), {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    (entry,) = report = swap(nn.Sequential(module))
    assert not entry.swapped and entry.name == "0" and entry.difference != entry.difference
    assert re.search(reason, entry.reason), entry.reason
    assert report.left == [entry] and not report.swapped and report.difference == 0.0
    assert type(module) is kind and module.training and "_sinpe_encoding" not in vars(module)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    with pytest.raises(ValueError, match="1 that are not; pass strict=False"):
        swap(module, strict=True)


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
    with pytest.raises(TypeError, match="model: expected a torch.nn.Module, got str"):
        swap("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="skip: expected names"):
        swap(model, skip=[1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match='angle: expected one of "exact", "float32"'):
        swap(model, angle="float")


def test_strict_replaces_all_or_nothing() -> None:
    """strict checks all modules before it changes one."""
    model = nn.Sequential(BatchFirst(), Layered())
    with pytest.raises(ValueError, match="`proj`"):
        swap(model, strict=True)
    assert type(model[0]) is BatchFirst and "_sinpe_encoding" not in vars(model[0])


def test_modules_without_readable_values() -> None:
    """The meta device, and a forward replaced on the instance, as by offloading."""
    with torch.device("meta"):
        meta = BatchFirst()
    hooked, known = BatchFirst(), Sinusoids()  # a sum, and a known class
    hooked.forward, known.forward = hooked.forward, known.forward
    reasons = [entry.reason for entry in swap(nn.Sequential(meta, hooked, known))]
    assert "meta device" in reasons[0] and all("replaced in the instance" in reason for reason in reasons[1:])
    assert len(reasons) == 3 and type(known) is Sinusoids
    parametrised = nn.ModuleDict({"positions": nn.Embedding.from_pretrained(naive())})
    torch.nn.utils.parametrize.register_parametrization(parametrised.positions, "weight", nn.Identity())
    assert not swap(parametrised).swapped
    assert not swap(nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3), nn.MultiheadAttention(8, 2)))


def test_report() -> None:
    report = swap(nn.Sequential(BatchFirst(0.0), Layered(), nn.Linear(2, 2)))
    assert isinstance(report, Report) and isinstance(report, list) and all(isinstance(e, Swap) for e in report)
    lines = str(report).splitlines()
    assert lines[0].startswith("1 swapped, 1 left alone, largest difference ")
    assert lines[1] == "swapped  0: BatchFirst" and "x + rows, batch first; paper; differs by" in lines[2]
    assert lines[3] == "left     1: Layered" and "`proj` (Linear)" in lines[4] and "recognized: paper" in lines[5]
    assert repr(report).startswith("Report([Swap(name='0'")
    assert str(swap(nn.Linear(2, 2))).startswith("none recognized: ")
    assert "(the model itself)" in str(swap(BatchFirst()))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_script_modules_are_skipped() -> None:
    traced = torch.jit.trace(BatchFirst(0.0).eval(), torch.zeros(2, 5, DIM))
    assert not swap(traced, strict=True)
    (entry,) = swap(nn.Sequential(traced, BatchFirst()), strict=True)
    assert entry.name == "1" and entry.swapped


def test_no_library_is_imported() -> None:
    code = (
        "import sys, torch, sinpe_ext.integrations as i; i.swap(torch.nn.Transformer(8, 1, 1, 1, 8));"
        "assert not {'transformers', 'diffusers', 'timm', 'numpy.testing'} & set(sys.modules)"
    )
    execute([sys.executable, "-c", code])
    assert sinpe.integrations.swap is swap and "integrations" in dir(sinpe)
