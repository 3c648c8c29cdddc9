"""Encodings constructed inside a compiled function or a strict export."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

D, TENTH = 8, Decimal("0.1")
OUTSIDE, THIRD = sinpe.convention("hf2d", 4).interpolated((5, 3), base_size=7), Fraction(1, 3)
T2T, THIRDS = sinpe.convention("t2t", D), sinpe.Encoding(D, base=THIRD)
PICTURE, IDS = (2, 3, 2, 4), torch.arange(3)


def make_encoding(name: str) -> Callable[[Tensor], Tensor]:
    """A convention with 48 channels, which all support."""
    shape = 2, *(3,) * getattr(sinpe.convention(name, 48), "ndim", 1), 48
    return lambda x: sinpe.add(x.new_ones(shape), sinpe.convention(name, 48))


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "Encoding": lambda x: sinpe.add(x, sinpe.Encoding(D)),
    "fields": lambda x: sinpe.add(x, sinpe.Encoding(D, layout="sin_cos", base=500, start=-3, amplitude=0.5)),
    "frequencies": lambda x: sinpe.add(x, sinpe.Encoding(D, frequencies=(1.0, 0.5, 0.25, 2.0))),
    "angle": lambda x: sinpe.add(x, sinpe.Encoding(D, angle="float32_exp")),
    "dropout": lambda x: sinpe.add(x, sinpe.Encoding(D), dropout=0.5, seed=3),
    "of its size": lambda x: sinpe.add(x, sinpe.Encoding(x.shape[-1], odd="pad")),
    "replace": lambda x: sinpe.add(x, sinpe.Encoding(D).replace(base=500.0).replace(start=2)),
    "convention": lambda x: sinpe.add(x, sinpe.convention("ddpm", D, start=1)),
    "in place": lambda x: sinpe.add_(x.clone(), sinpe.convention("t2t", D)),
    "table": lambda x: x + sinpe.table(3, sinpe.Encoding(D), start=5),
    "encode": lambda x: x + sinpe.encode(IDS / 3, sinpe.convention("adm", D)),
    "embed": lambda x: sinpe.embed(IDS, x[0], sinpe.Encoding(D, base=100.0), scale=2.0),
    "grid convention": lambda x: sinpe.add(x.view(PICTURE), sinpe.convention("mae2d", 4)),
    "axes": lambda x: sinpe.add(x.view(PICTURE), sinpe.GridEncoding([sinpe.Encoding(2), sinpe.Encoding(2, base=9)])),
    "with_axes": lambda x: sinpe.add(x.view(PICTURE), sinpe.convention("detr2d", 4).with_axes(start=(1, 2))),
    "Fraction": lambda x: sinpe.add(x, sinpe.Encoding(D, base=Fraction(1001, 3), position_scale=THIRD)),
    "interpolated": lambda x: sinpe.add(x.view(PICTURE), OUTSIDE.interpolated((3, 2), base_size=7, scale=1.7)),
    "interpolated in it": lambda x: sinpe.add(x.view(PICTURE), sinpe.convention("mae2d", 4).interpolated((3, 2), 7)),
    "grid table": lambda x: x.view(PICTURE) + sinpe.table((3, 2), sinpe.convention("hf2d", 4)),
    "coordinates": lambda x: x + sinpe.encode(x[..., :2], sinpe.convention("mae2d", D)),
    "its frequencies": lambda x: x[..., :4] * torch.tensor(sinpe.Encoding(D, base=9.0).frequencies_radians()),
    "frequencies of two": lambda x: x[..., :4] * torch.tensor(T2T.frequencies_radians()) + max(THIRDS.timescales()),
    **{f'"{name}"': make_encoding(name) for name in sinpe.conventions()},
}


def data(*shape: int) -> Tensor:
    return torch.randn(shape or (2, 3, D), generator=torch.Generator().manual_seed(0))


@pytest.mark.sampled("values")
@pytest.mark.parametrize("name", MADE)
def test_compiled_equals_eager(name: str, backend: str) -> None:
    torch._dynamo.reset()
    x, run = data(), MADE[name]
    torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="eager")(x), run(x), rtol=0, atol=1e-6)


@pytest.mark.sampled("values")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "name", ["fields", "convention", "encode", "grid convention", "axes", "interpolated", "its frequencies", '"unit"']
)
def test_exported_equals_eager(name: str, strict: bool, backend: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return MADE[name](x)

    x = data()
    exported = torch.export.export(Module(), (x,), strict=strict).module()
    torch.testing.assert_close(exported(x), MADE[name](x), rtol=0, atol=1e-6)


def test_symbolic_dim_and_start(backend: str) -> None:
    """dim is a symbol of the graph, start an argument."""

    def run(x: Tensor, start: int) -> Tensor:
        return sinpe.add(x, sinpe.Encoding(x.shape[-1], base=100.0, start=start))

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for k, shape in enumerate(((2, 3, 8), (2, 5, 8), (4, 7, 8), (2, 3, 10), (2, 3, 12), (1, 9, 6))):
        torch.testing.assert_close(compiled(data(*shape), k // 2), run(data(*shape), k // 2), rtol=0, atol=1e-6)


def test_grid_with_symbolic_sizes(backend: str) -> None:
    def run(x: Tensor, base: int) -> Tensor:
        return sinpe.add(x, OUTSIDE.interpolated(x.shape[1:3], base_size=base))

    compiled = torch.compile(run, fullgraph=True, backend="eager")
    for height, width, base in ((5, 3, 7), (6, 3, 7), (6, 4, 9), (7, 7, 11)):
        x = data(2, height, width, 4)
        torch.testing.assert_close(compiled(x, base), run(x, base), rtol=0, atol=1e-6)


def test_encoding_returned_from_the_graph(backend: str) -> None:
    """It equals one constructed outside, and survives a graph break and the next graph."""

    def run(x: Tensor) -> tuple[Tensor, sinpe.Encoding]:
        encoding = sinpe.Encoding(D, base=50.0)
        y = sinpe.add(x, encoding)
        torch._dynamo.graph_break()
        return sinpe.add(y, encoding), encoding

    torch._dynamo.reset()
    x = data()
    y, encoding = torch.compile(run, backend="eager")(x)
    outside = sinpe.Encoding(D, base=50.0)
    torch.testing.assert_close(y, run(x)[0], rtol=0, atol=1e-6)
    assert encoding == outside and hash(encoding) == hash(outside) and repr(encoding) == repr(outside)
    assert encoding.__getstate__().keys() >= outside.__getstate__().keys()

    def taken(x: Tensor, encoding: sinpe.Encoding) -> Tensor:
        return sinpe.add(x, encoding)

    compiled = torch.compile(taken, fullgraph=True, backend="eager")
    for one in (encoding, outside, encoding.replace(base=60.0), encoding.replace(base=70.0), sinpe.Encoding(D)):
        torch.testing.assert_close(compiled(x, one), sinpe.add(x, one), rtol=0, atol=1e-6)


ERRORS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "Decimal": (
        lambda x: sinpe.add(x, sinpe.convention("t2t", D, base=TENTH)),
        "got Decimal; pass a Fraction, or make the Encoding outside",
    ),
    "base": (lambda x: sinpe.add(x, sinpe.Encoding(D, base=-1.0)), "base: expected a number above 0, got -1"),
    "field": (lambda x: sinpe.add(x, sinpe.Encoding(D, temperature=9)), "use base="),  # type: ignore[call-arg]
    "layout": (lambda x: sinpe.add(x, sinpe.Encoding(D, layout="foo")), 'layout: expected .* got "foo"; pass one of'),
    "a misspelling": (lambda x: sinpe.add(x, sinpe.Encoding(D, odd="pads")), 'odd: expected .* did you mean "pad"'),
    "no field": (lambda x: sinpe.add(x, sinpe.Encoding(D, foo=1)), "foo: not a field"),  # type: ignore[call-arg]
    "nearly one": (lambda x: sinpe.add(x, sinpe.convention("adm", D, layot=1)), "did you mean layout?"),
    "no name": (
        lambda x: sinpe.add(x, sinpe.convention("foo", D)),
        'name: expected the name of a convention, got "foo"',
    ),
    "nearly a name": (lambda x: sinpe.add(x, sinpe.convention("papers", D)), "did you mean paper"),
    "a library": (lambda x: sinpe.add(x, sinpe.convention("whisper", D)), '"t2t" is used by Whisper'),
    "a multiple": (lambda x: sinpe.add(x, sinpe.convention("mae2d", 6)), "expected a multiple of 4 for mae2d, got 6"),
    "arrangement": (
        lambda x: sinpe.add(x, sinpe.GridEncoding([sinpe.Encoding(D)], arrangement="block")),
        'arrangement: expected .* did you mean "blocks"',
    ),
    "dim": (lambda x: sinpe.add(x, sinpe.Encoding(6)), "expected 6 channels, those of the encoding, got 8"),
    "step": (lambda x: sinpe.add(x, sinpe.Encoding(D, shift=4.0)), "shift: expected "),
    "a tuple": (lambda x: sinpe.add(x, ("Encod", 8)), "encoding: expected .* got tuple"),  # type: ignore[arg-type]
}


@pytest.mark.sampled("values")
@pytest.mark.parametrize("case", ERRORS)
def test_bad_arguments(case: str, backend: str) -> None:
    """The messages are those outside a graph; what cannot be a constant raises with a remedy."""
    torch._dynamo.reset()
    run, message = ERRORS[case]
    with pytest.raises(Exception) as caught:
        torch.compile(run, fullgraph=True, backend="eager")(data())
    said = str(caught.value).partition("from user code")[0]  # after it, torch shows the source line
    assert re.search(message, said), said
    if case != "Decimal":
        with pytest.raises((TypeError, ValueError), match=message):
            run(data())
