"""docs/conventions.md: examples run as printed, the index and its pictures are current."""

from __future__ import annotations

import doctest
import math
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import conventions_page as tool
import pytest
import torch

import sinpe_ext as sinpe

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "conventions.md"
PICTURES = ROOT / "docs" / "images" / "conventions"
LARGEST = 15_000  # bytes per picture
SAME = 0.02  # of 1, mean difference of two drawings: text rendering differs between matplotlib versions


@pytest.fixture(scope="module")
def text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture
def printing() -> Iterator[None]:
    """Restores torch's print options, which the page sets."""
    options = torch._tensor_str.PRINT_OPTS
    before = dict(vars(options))
    yield
    vars(options).update(before)


def sessions(page: str) -> str:
    """The page with its fences as empty lines, which end the expected output of an example."""
    return re.sub(r"^```.*$", "", page, flags=re.MULTILINE)


@pytest.mark.parametrize("kernels", ["as it is", "eager"])
def test_examples_run_as_printed(text: str, printing: None, kernels: str) -> None:
    test = doctest.DocTestParser().get_doctest(sessions(text), {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    with sinpe.use_backend("eager") if kernels == "eager" else nullcontext():
        failed, tried = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=said.append)
    assert not failed, "".join(said)
    assert tried == text.count("\n>>> ") > 70


def test_wrong_number_is_detected(text: str, printing: None) -> None:
    wrong = sessions(text).replace("[-0.2624, -0.0474, -0.6798,  0.9737]", "[-0.2624, -0.0474, -0.6797,  0.9737]")
    assert wrong != sessions(text)
    test = doctest.DocTestParser().get_doctest(wrong, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(test, out=lambda _: None).failed == 1


def test_index_is_current(text: str) -> None:
    assert tool.page(text) == text, "run python tools/conventions_page.py"
    for name in sinpe.conventions():
        assert text.count(f"\n| [{name}](images/conventions/{name}.png) |") == 1, name


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
# The fields in the table "if your code contains ...", and the angular frequencies of that code.
FIELDS = {
    "position_scale=min_timescale, base=max_timescale / min_timescale, shift=1": 0.5
    * torch.exp(-RISING * math.log(400 / 0.5)),
    "position_scale=max_freq, base=max_freq / min_freq, shift=1": torch.exp(
        math.log(4) + RISING * (math.log(0.01) - math.log(4))
    ),
    "position_scale=min_freq, base=min_freq / max_freq, shift=1": torch.logspace(
        math.log10(0.01), math.log10(4), COUNT, dtype=torch.float64
    ),
    'unit="turn", position_scale=1 / shortest, base=longest / shortest, shift=1': 2
    * math.pi
    / (3 * (900 / 3) ** RISING),
    "base=max_wavelength": (1 / 500) ** (2 * torch.arange(COUNT, dtype=torch.float64) / DIM),
}


@pytest.mark.parametrize("fields", FIELDS)
def test_fields_give_the_frequencies_of_the_code(text: str, fields: str) -> None:
    assert text.count(f"| `{fields}` |") == 1
    encoding = sinpe.Encoding(DIM, **eval(f"dict({fields})", NUMBERS))
    got = torch.tensor(encoding.frequencies_radians(), dtype=torch.float64)
    assert torch.allclose(got, FIELDS[fields], rtol=1e-12, atol=0)
    timescales = torch.tensor(encoding.timescales(), dtype=torch.float64)
    assert torch.allclose(timescales, 1 / got, rtol=1e-15, atol=0)  # each rounded once


def value_of(text: str, line: str, **names: Any) -> Any:
    """The value of a line of the page."""
    assert text.count(f"| `{line}` |") == 1
    return eval(line, {"sinpe": sinpe, "math": math, **names})


ROUNDED = 1e-6  # of a float32 angle below 8, and its sine


def test_order_of_harmonics(text: str) -> None:
    line = 'sinpe.convention("nerf", 2 * n * axes, axes=axes, layout="sin_cos", arrangement="grouped")'
    grid = value_of(text, line, n=3, axes=2)
    x = torch.tensor([[0.3, -1.1], [0.7, 1.9]])
    embed = x[..., None] * torch.tensor([1.0, 2.0, 4.0])
    want = torch.cat([embed.flatten(-2).sin(), embed.flatten(-2).cos()], -1)
    assert torch.allclose(sinpe.encode(x, grid), want, rtol=0, atol=ROUNDED)


def test_fewer_timescales_than_channels(text: str) -> None:
    line = 'sinpe.GridEncoding((sinpe.Encoding(2 * num_timescales, layout="sin_cos", shift=1),), dim=d)'
    grid = value_of(text, line, num_timescales=3, d=9)
    angle = torch.arange(7)[:, None] * torch.tensor([1.0, 0.01, 0.0001])
    want = torch.nn.functional.pad(torch.cat([angle.sin(), angle.cos()], -1), (0, 3))
    assert torch.allclose(sinpe.table((7,), grid), want, rtol=0, atol=ROUNDED)
    assert torch.allclose(sinpe.add(torch.ones(2, 7, 9), grid), 1 + want.expand(2, 7, 9), rtol=0, atol=ROUNDED)


@pytest.mark.parametrize("dim", [12, 16, 20, 26])
def test_uniform_power(text: str, dim: int) -> None:
    line = 'sinpe.GridEncoding((sinpe.Encoding(2 * math.ceil(d / 6), layout="sin_cos"),) * 3, dim=d)'
    grid = value_of(text, line, d=dim)
    half = math.ceil(dim / 6)
    angle = torch.arange(4)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    axis = torch.cat([angle.sin(), angle.cos()], -1)
    place = (3, 1, 2)
    want = torch.cat([axis[p] for p in place])[:dim]
    assert torch.allclose(sinpe.table((4, 4, 4), grid)[place], want, rtol=0, atol=ROUNDED)


def test_learned_frequencies(text: str) -> None:
    x = torch.tensor([0.5, -1.5, 2.0], requires_grad=True)
    frequency = torch.nn.Parameter(torch.tensor([1.0, 0.3]))
    angle = x[..., None] * frequency
    alternating, halves = (
        value_of(text, f"sinpe.encode(x[..., None] * frequency, 2){tail}", x=x, frequency=frequency)
        for tail in (".flatten(-2)", ".transpose(-1, -2).flatten(-2)")
    )
    for got, want in (
        (alternating, torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)),
        (halves, torch.cat([angle.sin(), angle.cos()], -1)),
    ):
        assert torch.allclose(got, want, rtol=0, atol=ROUNDED)
        weight = torch.randn(want.shape)
        ours, theirs = (torch.autograd.grad((y * weight).sum(), (x, frequency), retain_graph=True) for y in (got, want))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.abs().min() > 0 and torch.allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_learned_frequencies_of_16_bits(text: str, dtype: torch.dtype) -> None:
    """A 16-bit model: rejected, unless called as the row says."""
    product = "x[..., None].float() * frequency.float()"
    assert text.count(f"`{product}`, or `allow_16bit=True`") == 1
    x, frequency = torch.tensor([0.5, -1.5, 2.0], dtype=dtype), torch.nn.Parameter(torch.tensor([1, 0.3], dtype=dtype))
    names = {"x": x, "frequency": frequency}
    with pytest.raises(TypeError, match="allow_16bit"):
        value_of(text, "sinpe.encode(x[..., None] * frequency, 2).flatten(-2)", **names)
    wide = eval(product, names)
    for angle, got in (
        (wide, sinpe.encode(wide, 2)),
        ((x[..., None] * frequency).float(), sinpe.encode(x[..., None] * frequency, 2, allow_16bit=True)),
    ):
        assert torch.allclose(got, torch.stack([angle.sin(), angle.cos()], -1), rtol=0, atol=ROUNDED)
        assert bool(torch.autograd.grad(got.sum(), frequency)[0].isfinite().all())


def test_code_that_reads_pe(text: str) -> None:
    line = "sinpe.SinusoidalPositionalEncoding(d, dropout, max_len, persistent_table=True)"
    layer = value_of(text, line, d=8, dropout=0.1, max_len=9)
    assert torch.equal(layer.pe, sinpe.table(9, 8)[None]) and torch.equal(layer.state_dict()["pe"], layer.pe)


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 3), ({"odd": "pad"}, 2), ({"odd": "round"}, 3), ({"cos_frequency": "own"}, 5), ({"layout": "cos"}, 5)],
)
def test_number_of_frequencies(fields: dict, count: int) -> None:
    encoding = sinpe.Encoding(5, **fields)
    assert len(encoding.frequencies_radians()) == len(encoding.timescales()) == count
