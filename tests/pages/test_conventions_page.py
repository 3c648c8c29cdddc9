"""docs/conventions.md: examples run as printed, the index and its pictures are current, lines of code give as much."""

from __future__ import annotations

import doctest
import math
import re
from pathlib import Path
from typing import Any

import conventions_page as tool
import pages
import pytest
import torch

import sinpe_ext as sinpe

TEXT = pages.text_of("docs/conventions.md")
PICTURES = pages.ROOT / "docs" / "images" / "conventions"
LARGEST = 15_000  # bytes per picture
SAME = 0.02  # of 1, mean difference of two drawings: text rendering differs between matplotlib versions
ROUNDED = 1e-6  # of a float32 angle below 8, and its sine


def test_examples_run_as_printed() -> None:
    options = torch._tensor_str.PRINT_OPTS
    before = dict(vars(options))  # the page sets some
    text = re.sub(r"(?m)^```.*$", "", TEXT)  # an empty line ends the expected output of an example
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, {}, "conventions.md", None, 0)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=said.append)
    vars(options).update(before)
    assert not failed, "".join(said)
    assert tried == text.count("\n>>> ") > 70


def test_index_is_current() -> None:
    assert tool.page(TEXT) == TEXT, "run python tools/conventions_page.py"
    for name in sinpe.conventions():
        assert TEXT.count(f"\n| [{name}](images/conventions/{name}.png) |") == 1, name


@pytest.mark.thorough("pictures change only if their tool is run")
def test_pictures_are_current(tmp_path: Path) -> None:
    assert {path.stem for path in PICTURES.iterdir()} == set(sinpe.conventions())
    assert max(path.stat().st_size for path in PICTURES.iterdir()) < LARGEST
    image = pytest.importorskip("matplotlib.image")
    for drawn in tool.pictures(tmp_path):
        new, old = image.imread(drawn), image.imread(PICTURES / drawn.name)
        assert new.shape == old.shape and abs(new - old).mean() < SAME, drawn.name


DIM, COUNT = 12, 6
NUMBERS = {"min_timescale": 0.5, "max_timescale": 400.0, "min_freq": 0.01, "max_freq": 4.0, "shortest": 3.0,
           "longest": 900.0, "max_wavelength": 500.0}  # fmt: skip
RISING = torch.arange(COUNT, dtype=torch.float64) / (COUNT - 1)
EVEN = 2 * torch.arange(COUNT, dtype=torch.float64) / DIM
# The fields in the table "if your code contains ...", and the angular frequencies of that code.
FIELDS = [
    ("position_scale=min_timescale, base=max_timescale / min_timescale, shift=1", 0.5 * (0.5 / 400) ** RISING),
    ("position_scale=max_freq, base=max_freq / min_freq, shift=1", 4 * (0.01 / 4) ** RISING),
    ("position_scale=min_freq, base=min_freq / max_freq, shift=1", 0.01 * (4 / 0.01) ** RISING),
    ('unit="turn", position_scale=1 / shortest, base=longest / shortest, shift=1', 2 * math.pi / (3 * 300**RISING)),
    ("base=max_wavelength", (1 / 500) ** EVEN),
]


@pytest.mark.parametrize(("fields", "frequencies"), FIELDS, ids=[fields for fields, _ in FIELDS])
def test_fields_give_the_frequencies_of_the_code(fields: str, frequencies: torch.Tensor) -> None:
    assert TEXT.count(f"| `{fields}` |") == 1
    encoding = sinpe.Encoding(DIM, **eval(f"dict({fields})", NUMBERS))
    got = torch.tensor(encoding.frequencies_radians(), dtype=torch.float64)
    assert torch.allclose(got, frequencies, rtol=1e-12, atol=0)
    timescales = torch.tensor(encoding.timescales(), dtype=torch.float64)
    assert torch.allclose(timescales, 1 / got, rtol=1e-15, atol=0)  # each rounded once


def value_of(line: str, **names: Any) -> Any:
    """The value of a line of the page."""
    assert TEXT.count(f"| `{line}` |") == 1
    return eval(line, {"sinpe": sinpe, "math": math, **names})


def halves(angle: torch.Tensor) -> torch.Tensor:
    return torch.cat([angle.sin(), angle.cos()], -1)


def test_lines_that_construct_grids() -> None:
    def check(got: torch.Tensor, want: torch.Tensor) -> None:
        assert got.shape == want.shape and torch.allclose(got, want, rtol=0, atol=ROUNDED)

    line = 'sinpe.convention("nerf", 2 * n * axes, axes=axes, layout="sin_cos", arrangement="grouped")'
    x = torch.tensor([[0.3, -1.1], [0.7, 1.9]])
    check(sinpe.encode(x, value_of(line, n=3, axes=2)), halves((x[..., None] * torch.tensor([1.0, 2, 4])).flatten(-2)))

    line = 'sinpe.GridEncoding((sinpe.Encoding(2 * num_timescales, layout="sin_cos", shift=1),), dim=d)'
    grid = value_of(line, num_timescales=3, d=9)
    want = torch.nn.functional.pad(halves(torch.arange(7)[:, None] * torch.tensor([1.0, 0.01, 0.0001])), (0, 3))
    check(sinpe.table((7,), grid), want)
    check(sinpe.add(torch.ones(2, 7, 9), grid), 1 + want.expand(2, 7, 9))

    line = 'sinpe.GridEncoding((sinpe.Encoding(2 * math.ceil(d / 6), layout="sin_cos"),) * 3, dim=d)'
    for dim in (12, 16, 20, 26):
        half = math.ceil(dim / 6)
        axis = halves(torch.arange(4)[:, None] * 10000.0 ** (-torch.arange(half) / half))
        want = torch.cat([axis[p] for p in (3, 1, 2)])[:dim]
        check(sinpe.table((4, 4, 4), value_of(line, d=dim))[3, 1, 2], want)

    line = "sinpe.SinusoidalPositionalEncoding(d, dropout, max_len, persistent_table=True)"
    layer = value_of(line, d=8, dropout=0.1, max_len=9)
    assert torch.equal(layer.pe, sinpe.table(9, 8)[None]) and torch.equal(layer.state_dict()["pe"], layer.pe)


def test_learned_frequencies() -> None:
    x = torch.tensor([0.5, -1.5, 2.0], requires_grad=True)
    frequency = torch.nn.Parameter(torch.tensor([1.0, 0.3]))
    angle = x[..., None] * frequency
    for tail, want in (
        (".flatten(-2)", torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)),
        (".transpose(-1, -2).flatten(-2)", halves(angle)),
    ):
        got = value_of(f"sinpe.encode(x[..., None] * frequency, 2){tail}", x=x, frequency=frequency)
        assert torch.allclose(got, want, rtol=0, atol=ROUNDED)
        weight = torch.randn(want.shape)
        ours, theirs = (torch.autograd.grad((y * weight).sum(), (x, frequency), retain_graph=True) for y in (got, want))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.abs().min() > 0 and torch.allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_learned_frequencies_of_16_bits() -> None:
    """A 16-bit model: rejected, unless called as the row says."""
    product = "x[..., None].float() * frequency.float()"
    assert TEXT.count(f"`{product}`, or `allow_16bit=True`") == 1
    x, frequency = torch.tensor([0.5, -1.5, 2.0]).bfloat16(), torch.nn.Parameter(torch.tensor([1, 0.3]).bfloat16())
    names = {"x": x, "frequency": frequency}
    with pytest.raises(TypeError, match="allow_16bit"):
        value_of("sinpe.encode(x[..., None] * frequency, 2).flatten(-2)", **names)
    wide, narrow = eval(product, names), x[..., None] * frequency
    for angle, got in ((wide, sinpe.encode(wide, 2)), (narrow.float(), sinpe.encode(narrow, 2, allow_16bit=True))):
        assert torch.allclose(got, torch.stack([angle.sin(), angle.cos()], -1), rtol=0, atol=ROUNDED)
        assert bool(torch.autograd.grad(got.sum(), frequency)[0].isfinite().all())
