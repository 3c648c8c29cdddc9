"""identify recovers the numbers of a table: rounded from the naive float32 formulas, unchanged from exact tables."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.encoding import Encoding

FAR = 131072  # beyond the rows of any table
FORMS = ("exp", "pow", "power")
FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16
EXACTLY = 1e-14  # relative: order of float64 operations in a field
FAR_OFF = 1e-6  # at FAR, relative to the amplitude


def naive(form: str, rows: int, encoding: Encoding, dtype: torch.dtype = FLOAT32) -> torch.Tensor:
    """A table by a common formula, in float32 throughout."""
    dim, base = encoding.dim, float(encoding.base)
    width = dim - 2 * float(encoding.shift)
    index = torch.arange(0, dim, 2).float()
    position = torch.arange(encoding.start, encoding.start + rows).float()[:, None]
    if encoding.position_scale != 1:
        position = position * float(encoding.position_scale)
    if form == "exp":
        angle = position * torch.exp(index * (-math.log(base) / width))
    elif form == "pow":
        angle = position / torch.pow(torch.tensor(base), index / width)
    else:
        angle = position * base ** (-index / width)
    sine, cosine = angle.sin(), angle.cos()
    if encoding.layout == "interleaved":
        table = torch.stack([sine, cosine], -1).reshape(rows, dim)
    else:
        table = torch.cat([sine, cosine] if encoding.layout == "sin_cos" else [cosine, sine], 1)
    return (table * encoding.amplitude).to(dtype)


def check(table: torch.Tensor, encoding: Encoding) -> sinpe.Match:
    """The printed code evaluates to the encoding: each number, and the values far past the end of the table."""
    matches = sinpe.identify(table)
    assert matches, (encoding, matches.reason)
    match = matches[0]
    pasted = eval(match.code, {"sinpe": sinpe})
    assert pasted == match.encoding
    context = (match.code, encoding)
    assert pasted.start == encoding.start, context
    assert pasted.amplitude == pytest.approx(encoding.amplitude, rel=EXACTLY), context
    assert pasted.frequencies_radians() == pytest.approx(encoding.frequencies_radians(), rel=EXACTLY), context
    assert off_at(FAR, pasted, encoding) < FAR_OFF, context
    return match


def off_at(position: int, one: Encoding, other: Encoding) -> float:
    at = torch.tensor([position])
    values = (sinpe.encode(at, encoding, dtype=torch.float64) / encoding.amplitude for encoding in (one, other))
    return float((next(values) - next(values)).abs().max())


# Frequency 1 at another index than 0: the last one of ascending frequencies, or one before the first.
OTHER_ENDS: list[tuple[Encoding, str]] = [
    (Encoding(64, layout="sin_cos", base=1e-4, position_scale=10000 ** (-62 / 64)), "=10000**(-62/64), base=0.0001)"),
    (Encoding(127, odd="pad", base=1e-4, position_scale=10000 ** (-124 / 126)), "=10000**(-124/126)"),
    (
        Encoding(128, layout="cos_sin", base=1 / 300, position_scale=300 ** (-126 / 128)),
        "=300**(-126/128), base=1/300)",
    ),
    (Encoding(320, base=1e-4, position_scale=10000 ** (-318 / 320)), "=10000**(-318/320)"),
    (Encoding(512, shift=1, layout="sin_cos", position_scale=10000 ** (-2 / 510)), "=10000**(-2/510))"),
    (Encoding(768, layout="sin_cos", base=1e-4, position_scale=10000 ** (-766 / 768)), "=10000**(-766/768)"),
    (Encoding(1024, base=500, position_scale=500 ** (-2 / 1024)), "=500**(-2/1024), base=500.0)"),
]
CODES: list[tuple[Encoding, str]] = [  # of exact float32 tables of 64 rows
    (sinpe.convention("t2t", 512, base=500.0), 'sinpe.convention("t2t", 512, base=500.0)'),
    (sinpe.convention("t2t", 64, start=2), 'sinpe.convention("fairseq", 64)'),
    (sinpe.convention("t2t", 64, start=5), 'sinpe.convention("t2t", 64, start=5)'),
    (Encoding(64, layout="sin_cos", shift=0.5), 'sinpe.convention("paper_concat", 64, shift=0.5)'),
    (Encoding(64, layout="sin_cos", shift=0.5, base=500), ""),
    (Encoding(64, exponent_dim=1024), 'sinpe.convention("paper", 64, exponent_dim=1024)'),
    (Encoding(64, layout="cos_sin", cos_frequency="own", base=300), ""),
    (Encoding(64, position_scale=-1, start=-63), 'sinpe.convention("paper", 64, start=-63, position_scale=-1.0)'),
    (sinpe.convention("flux", 64, base=2000), 'sinpe.convention("flux", 64, base=2000.0)'),
    (sinpe.convention("adm", 64, position_scale=14 / 24), ""),
    (sinpe.convention("paper", 64, base=1e-4), 'sinpe.convention("paper", 64, base=0.0001)'),
    (sinpe.convention("paper", 2), 'sinpe.convention("paper", 2)'),
    (sinpe.convention("nerf", 12, position_scale=0.25), 'sinpe.convention("nerf", 12, position_scale=0.25)'),
    *OTHER_ENDS,
]


@pytest.mark.parametrize(("encoding", "code"), CODES, ids=str)
def test_exact_tables(encoding: Encoding, code: str) -> None:
    match = sinpe.identify(sinpe.table(64, encoding))[0]
    assert eval(match.code, {"sinpe": sinpe}) == match.encoding
    assert match.encoding.frequencies_radians() == pytest.approx(encoding.frequencies_radians(), rel=1e-15)
    assert match.code == code if code.startswith("sinpe") else code in match.code


FIELDS: list[dict[str, Any]] = [
    {"base": 100000.0},
    {"base": 500.0},
    {"base": 50.0, "shift": 1},
    {"base": 2048.0, "start": 1},
    {"base": 1234.0, "amplitude": 0.5},
    {"base": 256.5},
    {"amplitude": 0.1},
    {"amplitude": 0.02, "base": 20000.0, "shift": 1},
    {"amplitude": "1/sqrt(d)", "position_scale": 20.0},
    {"amplitude": "sqrt(d)", "start": 5},
    {"position_scale": 20.0, "base": 100000.0},
    {"position_scale": 0.1},
    {"position_scale": 1 / 30, "base": 77.0},
    {"position_scale": 14 / 24},
    {"position_scale": 1 / 64},
    {"position_scale": 2 * math.pi},
    {"position_scale": math.pi, "base": 1000.0},
]
SIZES = [(3, 512), (10, 32), (200, 128), (2048, 64)]
LAYOUTS = ("interleaved", "sin_cos", "cos_sin")


def with_fields(dim: int, fields: dict[str, Any], **more: Any) -> Encoding:
    sizes = {"1/sqrt(d)": 1 / math.sqrt(dim), "sqrt(d)": math.sqrt(dim)}
    given = {**fields, **more}
    return Encoding(dim, **{**given, "amplitude": sizes.get(given.get("amplitude"), given.get("amplitude", 1.0))})


@pytest.mark.parametrize("number", range(len(FIELDS)))
def test_round_numbers(number: int) -> None:
    """Each from a float32 table, by one of the formulas, and from a table of 16 bits."""
    fields, (rows, dim) = FIELDS[number], SIZES[number % 4]
    encoding = with_fields(dim, fields, layout=LAYOUTS[number // 2 % 3])
    check(naive(FORMS[number % 3], rows, encoding), encoding)
    if fields != {"base": 256.5}:  # see test_uncertainty_of_16_bit_tables_is_reported
        rows, dim = ((64, 128), (1024, 256))[number % 2]
        layout = "sin_cos" if "shift" in fields else "interleaved"  # the named conventions with that shift
        encoding = with_fields(dim, fields, layout=layout)
        check(naive("exp", rows, encoding, (FLOAT16, BFLOAT16)[number // 2 % 2]), encoding)


def test_step_of_20_and_one_frequency() -> None:
    """DiT's table at 0, 20, 40, ...; and a table of one pair."""
    encoding = Encoding(256, layout="cos_sin", position_scale=20)
    assert check(naive("pow", 50, encoding), encoding).code == 'sinpe.convention("adm", 256, position_scale=20.0)'
    for scale in (0.5, 1.0):
        check(naive("exp", 100, Encoding(2, position_scale=scale)), Encoding(2, position_scale=scale))


ODD: list[dict[str, Any]] = [
    {"base": 99999.97237},
    {"base": 500.00004},
    {"base": 10000.02},
    {"base": 9999.99},
    {"position_scale": 19.9999997},
    {"position_scale": 1.000002, "base": 500.0},
    {"position_scale": 3.1415927},
    {"amplitude": 0.1000001, "base": 77.0},
    {"base": 31234.5678, "position_scale": 0.12345678, "amplitude": 0.87654321},
]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_numbers_are_kept(number: int) -> None:
    """From float64 tables by a float64 formula, and from exact float32 tables as far as their rows determine them."""
    fields, rows = ODD[number], (64, 500, 5000)[number % 3]
    encoding = Encoding(64, **fields)
    rate = encoding.position_scale * encoding.base ** (-torch.arange(32, dtype=torch.float64) / 32)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * rate
    check(encoding.amplitude * torch.stack([angle.sin(), angle.cos()], -1).reshape(rows, 64), encoding)
    match = sinpe.identify(sinpe.table(5000, encoding))[0]
    assert off_at(FAR, match.encoding, encoding) < 1e-5
    for name, value in fields.items():
        assert getattr(match.encoding, name) == pytest.approx(value, rel=3e-8 if name == "amplitude" else 1e-10)


def scaled(formula: str, rows: int, dim: int, scale: float, first: float = 0.0) -> torch.Tensor:
    """A table at the positions (row + first) * scale, by a formula in float64 or in float32, in float32."""
    position = ((torch.arange(rows, dtype=torch.float64) + first) * scale)[:, None]
    index = torch.arange(0, dim, 2, dtype=torch.float64)
    if formula == "exact":
        angle = position * 10000 ** (-index / dim)
    elif formula == "exp":
        angle = position.float() * torch.exp(index.float() * (-math.log(10000.0) / dim))
    else:
        angle = position.float() / torch.pow(torch.tensor(10000.0), index.float() / dim)
    return torch.cat([angle.sin(), angle.cos()], 1).float()


SCALED = [  # rows, dim, position_scale, first row, position_scale as printed
    (300, 64, 1 / 299, 0.0, "=1/299"),
    (623, 128, 1 / 622, 0.0, "=1/622"),
    (3777, 32, 1 / 3776, 0.0, "=1/3776"),
    (719, 64, 1 / 719, 0.5, "=1/719"),
    (926, 256, 1 / 926, 0.5, "=1/926"),
    (770, 128, 2 * math.pi / 770, 0.5, "=3.141592653589793/385"),
    (339, 128, 2 * math.pi / 339, 0.0, "=6.283185307179586/339"),
    (110, 512, 3 / 995, 0.0, "=3/995"),
    (378, 256, 9 / 1817, 0.0, ""),
    (300, 64, 1 / 64, 0.0, "=0.015625"),
    (300, 64, 0.004, 0.0, "=0.004"),
]


@pytest.mark.parametrize("formula", ["exact", "exp", "pow"])
@pytest.mark.parametrize(("rows", "dim", "scale", "first", "printed"), SCALED)
def test_fractions_as_scales(formula: str, rows: int, dim: int, scale: float, first: float, printed: str) -> None:
    """Positions in [0, 1] or [0, 2 pi]: the angles are so small that their float32 errors hardly show."""
    held = scaled(formula, rows, dim, scale, first)
    (match,) = sinpe.identify(held)
    assert match.name == "paper_concat" and match.start == first and f"position_scale{printed}" in match.code
    assert match.encoding.position_scale == pytest.approx(scale, rel=EXACTLY) and match.encoding.base == 10000
    if formula == "exact":
        assert match.max_error < 4e-8 and match.float32_angle == "" and match.note == ""
    for same in (copy.deepcopy(match), pickle.loads(pickle.dumps(match))):
        assert same == match and repr(same) == repr(match)


@pytest.mark.parametrize("scale", [0.00015844645574507449, 0.0018285832579799238, 0.0028654, 0.20001312726868092])
@pytest.mark.parametrize("rows", [150, 278])
def test_small_scales_keep_the_digits_that_the_table_shows(rows: int, scale: float) -> None:
    (match,) = sinpe.identify(scaled("exact", rows, 64, scale))
    assert match.max_error < 1e-7 and match.float32_angle == "" and match.encoding.base == 10000
    assert match.encoding.position_scale == pytest.approx(scale, rel=1e-5)


@pytest.mark.parametrize(("size", "rows"), [(300, 300), (100, 100), (25, 25), (300, 64)])
def test_the_base_is_short_if_the_scale_is_not(size: int, rows: int) -> None:
    """DETR's normalised positions, row / (size + 1e-6) * 2 pi."""
    scale = 2 * math.pi / (size + 1e-6)
    match = sinpe.identify(scaled("exact", rows, 64, scale, 1.0))[0]
    assert match.encoding.base == 10000 and "base" not in match.code and match.max_error < 6e-8
    assert match.start == 1 and match.encoding.position_scale == pytest.approx(scale, rel=1e-8)


def test_errors_of_other_formulas_are_not_called_those_of_an_angle() -> None:
    match = sinpe.identify(naive("power", 64, Encoding(64)))[0]
    assert match.float32_angle == "other" and "neither float32_exp nor float32_pow" in match.note
    assert "angle errors" not in match.note
    assert "angle errors" in sinpe.identify(naive("exp", 64, Encoding(64)))[0].note


@pytest.mark.parametrize("dtype", [FLOAT32, torch.float64], ids=str)
def test_similar_conventions_are_distinguished(dtype: torch.dtype) -> None:
    near = sinpe.table(2000, sinpe.convention("t2t", 128, base=10000.01), dtype=dtype)
    assert sinpe.identify(near)[0].encoding.base == pytest.approx(10000.01, rel=1e-8)
    assert sinpe.identify(sinpe.table(2000, sinpe.convention("t2t", 128), dtype=dtype))[0].code.endswith('"t2t", 128)')
    half = sinpe.table(500, sinpe.convention("t2t", 128, base=10100.0), dtype=BFLOAT16)
    assert sinpe.identify(half)[0].encoding.base == 10100.0


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_few_rows(rows: int) -> None:
    for encoding in (Encoding(64, base=1234.5), Encoding(64, layout="sin_cos", shift=1, base=500, amplitude=0.1)):
        check(sinpe.table(rows, encoding), encoding)
    assert sinpe.identify(sinpe.table(rows, 64))[0].name == "paper"
    for few in (
        sinpe.table(rows, Encoding(64, cos_frequency="own", base=1234.5)),
        sinpe.table(2, Encoding(8, base=77)),
    ):
        assert f"{len(few)} rows are too few" in sinpe.identify(few).reason


def test_uncertainty_of_16_bit_tables_is_reported() -> None:
    held = sinpe.table(10, Encoding(16, base=256.5, layout="sin_cos"), dtype=BFLOAT16)
    match = sinpe.identify(held)[0]
    assert match.encoding.base != 256.5 and "gives its base to" in match.note
    assert "gives its base" not in sinpe.identify(sinpe.table(1000, Encoding(64, base=256.5), dtype=BFLOAT16))[0].note
    assert "gives its base" not in sinpe.identify(sinpe.table(10, Encoding(64, base=500), dtype=BFLOAT16))[0].note


FRACTIONS: list[tuple[float, int, str, Encoding, torch.dtype]] = [  # first position, rows, positions as printed
    (0.5, 300, "torch.arange(300) + 0.5", sinpe.convention("paper", 64), FLOAT32),
    (0.5, 300, "torch.arange(300) + 0.5", sinpe.convention("t2t", 127), BFLOAT16),
    (0.5, 300, "torch.arange(300) + 0.5", sinpe.convention("adm", 320, base=500.0), FLOAT16),
    (-0.25, 64, "torch.arange(64) - 0.25", sinpe.convention("musicgen", 128), FLOAT32),
    (1000.5, 300, "torch.arange(300) + 1000.5", sinpe.convention("paper_concat", 512, amplitude=0.1), FLOAT32),
    (0.1, 300, "torch.arange(300).double() + 0.1", sinpe.convention("own_index", 768), torch.float64),
    (0.5, 5, "torch.arange(5) + 0.5", sinpe.convention("paper", 1024), FLOAT32),
    # (i + 0.5) / 2, linspace(0.3, 1.7, 50), and interpolation from 14 to 24
    (0.5, 300, "torch.arange(300) + 0.5", sinpe.convention("paper", 64, position_scale=0.5), FLOAT32),
    (10.5, 50, "torch.arange(50) + 10.5", sinpe.convention("paper", 64, position_scale=1 / 35), FLOAT32),
    (0.5 - 12 / 14, 24, "torch.arange(24).double() - 0.357142857142857", Encoding(64, position_scale=14 / 24), FLOAT32),
]


@pytest.mark.parametrize(("first", "number", "printed", "encoding", "dtype"), FRACTIONS, ids=str)
def test_fractional_first_positions(
    first: float, number: int, printed: str, encoding: Encoding, dtype: torch.dtype
) -> None:
    """The printed line gives the rows, with the error that is reported."""
    positions = torch.arange(number, dtype=torch.float64) + first
    held = sinpe.encode(positions, encoding, dtype=torch.float64).to(dtype)
    (match,) = sinpe.identify(held)
    assert match.positions.startswith(printed) and f"sinpe.encode({match.positions}, " in match.code
    assert match.start == pytest.approx(first, abs=1e-12) and f"start {match.start}" in str(match)
    assert match.encoding.frequencies_radians() == pytest.approx(encoding.frequencies_radians(), rel=EXACTLY)
    assert match.encoding.amplitude == encoding.amplitude
    rows = eval(match.code, {"sinpe": sinpe, "torch": torch})
    assert rows.shape == held.shape
    assert float((rows - held.double()).abs().max()) == pytest.approx(match.max_error, abs=6e-8)
    assert match.max_error <= {FLOAT32: 6e-8, FLOAT16: 5e-4, BFLOAT16: 4e-3, torch.float64: 1e-12}[dtype]
    assert ("interpolation" in match.note) == (first == 0.5 - 12 / 14)


def test_fractional_positions_of_a_float32_formula() -> None:
    angle = (torch.arange(2000.0)[:, None] + 0.5) * torch.exp(torch.arange(0, 128, 2) * (-math.log(10000.0) / 128))
    match = sinpe.identify(torch.stack([angle.sin(), angle.cos()], -1).flatten(1))[0]
    assert (match.name, match.start, match.encoding) == ("paper", 0.5, Encoding(128))
    assert match.float32_angle == "float32_exp" and match.max_error > 1e-5


def test_integer_positions_are_preferred() -> None:
    """To the fraction of the nearest fit; a table of one or two frequencies fits some fraction by chance."""
    for start in (0, 7, 20_000):
        match = check(naive("exp", 200, Encoding(64, start=start)), Encoding(64, start=start))
        assert type(match.start) is int and match.positions == ""
    for seed in range(8):
        phase = 6 * torch.rand(2, generator=torch.Generator().manual_seed(seed))
        angle = torch.arange(64.0)[:, None] * torch.tensor([1.0, 0.01]) + phase
        assert not sinpe.identify(torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
