"""identify for one-dimensional tables of 64 rows: every name, then any base, start, amplitude and dtype."""

from __future__ import annotations

import math
import random

import numpy
import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext import identification
from sinpe_ext.encodings.catalogue import CATALOGUE
from sinpe_ext.encodings.encoding import Encoding

ROWS = 64
NAMES = tuple(CATALOGUE)
DIMS = (8, 33, 64, 512)
STORAGE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Largest difference, relative to the amplitude, between the encoding found and the true one: rounding to the dtype,
# plus the error of fitted numbers.
HIDDEN = {torch.float32: 3e-5, torch.float64: 3e-5, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


def table(encoding: Encoding, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sinpe.table(rows, encoding, dtype=torch.float64).to(dtype)


def names(match: sinpe.Match) -> set[str]:
    return {match.name, *match.aliases}


def check_code(match: sinpe.Match) -> None:
    """The printed code evaluates to the encoding, and that of each alias gives the same table."""
    assert eval(match.code, {"sinpe": sinpe}) == match.encoding
    assert len(match.alias_codes) == len(match.aliases)
    for name, code in zip(match.aliases, match.alias_codes, strict=True):
        assert f'"{name}"' in code
        assert type(eval(code, {"sinpe": sinpe})) is type(match.encoding)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_name_from_64_rows(name: str, dim: int, dtype: torch.dtype) -> None:
    try:
        encoding = sinpe.convention(name, dim)
    except ValueError:
        pytest.skip(f"{name} has no encoding of {dim} channels")
    match = sinpe.identify(table(encoding, dtype=dtype))[0]
    assert name in names(match)
    assert match.encoding.replace(odd="truncate") == encoding.replace(odd="truncate") or dim % 2 == 0
    assert (match.start, match.amplitude) == (encoding.start, encoding.amplitude)
    assert match.rows == ROWS and match.shape is None and match.zero_rows == () and match.extra_tokens == 0
    assert torch.equal(sinpe.table(ROWS, match.encoding), sinpe.table(ROWS, encoding))
    check_code(match)


def random_encoding(seed: int) -> tuple[str, Encoding, torch.dtype]:
    """A convention, or any Encoding, with random numbers."""
    draw = random.Random(seed)
    dim = draw.choice((15, 16, 31, 33, 64, 65, 100, 128, 256))
    fields = {
        "base": draw.choice((10 ** draw.uniform(1, 6), round(10 ** draw.uniform(1, 6)), 500.0)),
        "start": draw.choice((0, 1, 2, draw.randint(0, 5000), -draw.randint(0, 5000))),
        "amplitude": draw.choice((1.0, 10 ** draw.uniform(-2, 1), -(10 ** draw.uniform(-2, 1)), math.sqrt(dim))),
    }
    dtype = draw.choice((torch.float32, torch.float32, *STORAGE))
    if draw.random() < 0.6:
        name = draw.choice([name for name in NAMES if name not in ("nerf", "tcnn", "flux")])
        return name, sinpe.convention(name, dim, **fields), dtype
    layout = draw.choice(("interleaved", "sin_cos", "cos_sin", "sin", "cos"))
    cos_frequency, odd = draw.choice(("shared", "own")), draw.choice(("truncate", "pad", "round"))
    shift = draw.choice((0, 0.5, 1))
    return "", Encoding(dim, layout=layout, cos_frequency=cos_frequency, odd=odd, shift=shift, **fields), dtype


@pytest.mark.sampled(4, "drawn cases")
@pytest.mark.parametrize("seed", range(60))
def test_random_encodings(seed: int) -> None:
    name, encoding, dtype = random_encoding(seed)
    pe = table(encoding, dtype=dtype)
    matches = sinpe.identify(pe.float() if dtype is torch.bfloat16 and seed % 2 else pe)
    assert matches, (encoding, dtype, matches.reason)
    match = matches[0]
    check_code(match)
    off = (sinpe.table(ROWS, match.encoding, dtype=torch.float64) - table(encoding, dtype=torch.float64)).abs().max()
    assert float(off) <= HIDDEN[dtype] * abs(encoding.amplitude), (encoding, match)
    assert match.start == encoding.start, (encoding, match)
    assert math.isclose(match.amplitude, encoding.amplitude, rel_tol=2 * HIDDEN[dtype])
    if name and name not in ("fairseq", "ctranslate2", "unit"):  # whose start or amplitude was changed
        assert name in names(match), (encoding, match)


@pytest.mark.parametrize(
    ("encoding", "code"),
    [
        (sinpe.convention("t2t", 512, base=500.0), 'sinpe.convention("t2t", 512, base=500.0)'),
        (sinpe.convention("t2t", 64, start=2), 'sinpe.convention("fairseq", 64)'),
        (sinpe.convention("t2t", 64, start=5), 'sinpe.convention("t2t", 64, start=5)'),
        (Encoding(64, layout="sin_cos", shift=0.5), 'sinpe.convention("paper_concat", 64, shift=0.5)'),
        (Encoding(64, layout="sin_cos", shift=0.5, base=500), None),
        (Encoding(64, exponent_dim=1024), 'sinpe.convention("paper", 64, exponent_dim=1024)'),
        (Encoding(64, layout="cos_sin", cos_frequency="own", base=300), None),
        (Encoding(64, position_scale=-1, start=-63), 'sinpe.convention("paper", 64, start=-63, position_scale=-1.0)'),
        (sinpe.convention("flux", 64, base=2000), 'sinpe.convention("flux", 64, base=2000.0)'),
        (sinpe.convention("adm", 64, position_scale=14 / 24), None),
        (sinpe.convention("paper", 64, base=1e-4), 'sinpe.convention("paper", 64, base=0.0001)'),
        (sinpe.convention("paper", 2), 'sinpe.convention("paper", 2)'),
        (sinpe.convention("nerf", 12, position_scale=0.25), 'sinpe.convention("nerf", 12, position_scale=0.25)'),
    ],
    ids=str,
)
def test_round_numbers_are_recovered(encoding: Encoding, code: str | None) -> None:
    match = sinpe.identify(table(encoding))[0]
    if code is None:
        assert match.encoding.frequencies_radians() == pytest.approx(encoding.frequencies_radians(), rel=1e-15)
    else:
        assert match.code == code
    check_code(match)


def test_names_of_the_same_table_are_aliases() -> None:
    matches = sinpe.identify(table(sinpe.convention("fairseq", 64)))
    assert len(matches) == 1
    assert (matches[0].name, matches[0].aliases) == ("fairseq", ("t2t", "ddpm"))
    assert matches[0].alias_codes[0] == 'sinpe.convention("t2t", 64, start=2)'
    assert sinpe.identify(table(sinpe.convention("multidim1d", 64)))[0].aliases == ("multidim1d",)
    assert sinpe.identify(table(sinpe.convention("multidim1d", 65)))[0].aliases == ()
    any_base = sinpe.identify(table(sinpe.convention("t2t", 64, base=3217.5523)))[0]
    assert {"t2t", "ddpm", "paper_concat"} <= names(any_base)  # they have different bases


@pytest.mark.parametrize("top", [1, 2])
def test_top(top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    result = sinpe.identify(table(Encoding(64)))  # few tables match several encodings
    monkeypatch.setattr(identification, "_search", lambda *_: sinpe.Matches([*result] * 3))
    assert len(sinpe.identify(table(Encoding(64)), top=top)) == top
    assert len(sinpe.identify(table(Encoding(64)))) == 3


@pytest.mark.parametrize("padding", [0, 1, 7])
def test_padding_row(padding: int) -> None:
    pe = table(sinpe.convention("fairseq", 64, start=0))
    pe[padding] = 0
    match = sinpe.identify(pe)[0]
    assert (match.name, match.start, match.zero_rows, match.extra_tokens) == ("fairseq", 0, (padding,), 0)
    assert "padding row" in match.note and f"row {padding}" in match.note
    assert "t2t" in match.aliases


@pytest.mark.parametrize("number", [1, 2])
def test_class_token_rows(number: int) -> None:
    pe = torch.cat([torch.zeros(number, 64), table(Encoding(64))])
    match = sinpe.identify(pe)[0]
    assert (match.name, match.start, match.extra_tokens, match.zero_rows) == ("paper", 0, number, ())
    assert f"extra_tokens={number}" in match.note
    match = sinpe.identify(torch.cat([torch.zeros(number, 64), table(Encoding(64, base=77))]))[0]
    assert (match.code, match.extra_tokens) == ('sinpe.convention("paper", 64, base=77.0)', number)


def naive(length: int, dim: int, form: str) -> torch.Tensor:
    """The two float32 formulas of common tutorials."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    steps = torch.arange(0, dim, 2)
    if form == "float32_exp":
        angle = position * torch.exp(steps.float() * (-math.log(10000.0) / dim))
    else:
        angle = position / torch.pow(10000.0, steps / dim)
    pe = torch.zeros(length, dim)
    pe[:, 0::2], pe[:, 1::2] = angle.sin(), angle.cos()
    return pe


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["float32_exp", "float32_pow"])
@pytest.mark.parametrize("length", [64, 5000])
def test_float32_angle_errors(length: int, form: str, storage: torch.dtype) -> None:
    if storage is torch.bfloat16 and length == 64:
        pytest.skip("bfloat16 hides errors of 4e-6")
    match = sinpe.identify(naive(length, 128, form).to(storage))[0]
    assert (match.name, match.float32_angle) == ("paper", form)
    assert f'angle="{form}"' in match.note
    exact = sinpe.identify(sinpe.table(length, 128, dtype=storage))[0]
    assert exact.float32_angle == "" and "angle" not in exact.note


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [48, 60, 72])
def test_exact_table_with_large_angles(dim: int, dtype: torch.dtype) -> None:
    """Angles to 100 * 2^35 radians, whose sines in float64 are off by 4e-4: the table is exact, and said to be."""
    (match, *_) = sinpe.identify(sinpe.table(100, "nerf", dim=dim, dtype=dtype))
    assert (match.name, match.float32_angle) == ("nerf", "") and "angle" not in match.note
    # Half an ULP below 1; in float64, 1 ULP of the table and 1 of the reference.
    assert match.max_error <= (2.0**-25 if dtype == torch.float32 else 2.0**-52)


def test_float32_angle_errors_of_another_formula() -> None:
    angle = torch.arange(5000.0)[:, None] * torch.pow(10000.0, -torch.arange(0, 128, 2) / 128)
    match = sinpe.identify(torch.stack([angle.sin(), angle.cos()], -1).reshape(5000, 128))[0]
    assert (match.name, match.float32_angle) == ("paper", "other")


def learned(rows: int = 512, dim: int = 512, scale: float = 0.02) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)) * scale


def rotary(half: int = 32, rows: int = 256) -> torch.Tensor:
    return torch.outer(torch.arange(float(rows)), 10000.0 ** (-torch.arange(half) / half))


ERRORS = {
    "learned": (learned(), "learned"),
    "learned, small": (learned(64, 32), "learned"),
    "uniform": (torch.rand(64, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1, "noise"),
    "random walk": (learned().cumsum(0), "no ladder"),
    "rotary cos": (torch.cat([rotary(), rotary()], -1).cos(), "rotary"),
    "rotary sin": (torch.cat([rotary(), rotary()], -1).sin(), "rotary"),
    "rotary, pairs": (rotary().repeat_interleave(2, -1).cos(), "rotary"),
    "rotary, complex": (torch.polar(torch.ones(256, 32), rotary()), "rotary"),
    "ids": (torch.arange(512)[None], "int64"),
    "mask": (torch.ones(8, 8, dtype=torch.bool), "bool"),
    "zeros": (torch.zeros(64, 64), "zero"),
    "ones": (torch.ones(64, 64), "equal"),
    "NaN": (torch.full((64, 64), math.nan), "NaN"),
    "one row": (table(Encoding(64), 1), "one row"),
    "a vector": (torch.rand(64), "shape"),
    "empty": (torch.zeros(0, 4), "shape"),
    "ramp": (torch.arange(64.0)[:, None] * torch.linspace(0.1, 2, 16), "no ladder"),
    "ALiBi": (-torch.arange(64.0)[:, None] * 2.0 ** -torch.arange(8.0), "no ladder"),
    "cosine transform": (
        torch.cos(math.pi / 64 * torch.outer(torch.arange(64) + 0.5, torch.arange(64.0))),
        "no ladder",
    ),
    "identity": (torch.eye(64), ""),
    "lower triangle": (torch.ones(64, 64).tril(), ""),
    "cos before sin": (table(Encoding(64))[:, torch.arange(64) ^ 1], "no ladder"),
    "half of a table": (torch.cat([table(Encoding(64)), learned(64, 64, 1.0)], 1), ""),
}


@pytest.mark.parametrize("case", ERRORS)
def test_other_tables_are_rejected(case: str) -> None:
    tensor, reason = ERRORS[case]
    matches = sinpe.identify(tensor)
    assert list(matches) == [] and matches.closest is None
    assert reason in matches.reason and matches.reason
    assert str(matches) == f"no convention: {matches.reason}" and "reason=" in repr(matches)


@pytest.mark.parametrize(
    "encoding", [sinpe.convention("t2t", 64), sinpe.convention("paper", 64, base=777.7, start=5)], ids=str
)
def test_changed_rows_are_named(encoding: Encoding) -> None:
    pe = table(encoding)
    pe[[3, 17, 40]] += torch.rand(3, 64, generator=torch.Generator().manual_seed(0))
    matches = sinpe.identify(pe)
    assert list(matches) == []
    assert "differs in 3 of 64 rows (3, 17, 40)" in matches.reason
    assert matches.closest is not None and matches.closest.encoding == encoding


def test_fine_tuned_table() -> None:
    matches = sinpe.identify(table(sinpe.convention("t2t", 64)) + learned(64, 64, 0.01))
    assert list(matches) == [] and "differs in every row" in matches.reason
    assert matches.closest is not None and matches.closest.name == "t2t"


def test_storage_and_shapes() -> None:
    pe = table(sinpe.convention("adm", 33, base=4321.0))
    expected = sinpe.identify(pe)[0]
    for other in (pe[None], pe[:, None], pe.numpy(), pe.clone().requires_grad_(), torch.nn.Parameter(pe)):
        assert sinpe.identify(other)[0] == expected
    assert sinpe.identify(pe.expand(4, ROWS, 33))[0] == expected  # one table per sample of a batch
    assert sinpe.identify(pe.T.contiguous().T)[0] == expected
    assert sinpe.identify(pe.numpy().astype(">f4"))[0] == expected
    assert sinpe.identify(pe, shape=(ROWS,))[0] == expected
    assert "float16" in sinpe.identify(pe.numpy().astype(numpy.float16))[0].note
    assert "bfloat16" in sinpe.identify(pe.bfloat16().float())[0].note
    assert "float16" not in expected.note
    with torch.device("meta"):
        assert sinpe.identify(pe)[0] == expected
    assert "meta" in sinpe.identify(pe.to("meta")).reason


def channels_first(dim: int = 16) -> dict[str, torch.Tensor]:
    pe = table(sinpe.convention("t2t", dim, base=777.0))
    return {
        "(d, N)": pe.T,
        "(1, d, N)": pe.T[None],
        "(d, 1, N)": pe.T[:, None],
        "(d, N, 1)": pe.T[..., None],
        "(B, d, N)": pe.T.expand(3, -1, -1),
        "contiguous": pe.T.contiguous(),
        "float16": pe.T.half(),
    }


@pytest.mark.parametrize("dim", [16, ROWS, 128])
@pytest.mark.parametrize("case", channels_first())
def test_channels_first(case: str, dim: int) -> None:
    match = sinpe.identify(channels_first(dim)[case])[0]
    assert (match.transposed, match.rows) == (True, ROWS)
    assert match.code == f'sinpe.convention("t2t", {dim}, base=777.0)'
    assert f"the channels first, ({dim}, {ROWS})" in match.note and "transpose" in str(match)


def test_channels_first_of_a_named_table() -> None:
    for rows, dim in ((3, 64), (64, 64), (100, 2), (5000, 8)):
        pe = sinpe.table(rows, dim)
        match = sinpe.identify(pe.T)[0]
        assert (match.name, match.encoding, match.transposed) == ("paper", Encoding(dim), True)
        assert not sinpe.identify(pe)[0].transposed  # the given orientation comes first
    pe[1] = 0
    assert sinpe.identify(pe.T)[0].zero_rows == (1,)


def test_no_match_in_either_orientation() -> None:
    noise = learned(64, 64, 0.01)
    matches = sinpe.identify(table(Encoding(64)).T + noise)
    assert list(matches) == [] and matches.closest is None and matches.reason
    matches = sinpe.identify(table(Encoding(64)) + noise)
    assert matches.closest is not None and not matches.closest.transposed


def test_thread_count_and_grad_mode_are_restored() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert sinpe.identify(table(Encoding(64)))
        assert not sinpe.identify(learned())
        assert torch.get_num_threads() == 3 and torch.is_grad_enabled()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("seed", range(20))
def test_sinusoids_of_random_phase_are_rejected(seed: int) -> None:
    draw = torch.rand(2, generator=torch.Generator().manual_seed(seed))
    assert list(sinpe.identify(torch.cos(3 * draw[0] * torch.arange(30.0) + 6 * draw[1])[:, None])) == []


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="table: expected a tensor or a NumPy array, got list"):
        sinpe.identify([1.0])
    with pytest.raises(TypeError, match="shape: expected a sequence of ints, got int"):
        sinpe.identify(learned(), shape=8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape: expected one of at most 512 grid points"):
        sinpe.identify(learned(), shape=(32, 32))
    with pytest.raises(ValueError, match="shape: expected 1 to 4 lengths"):
        sinpe.identify(learned(), shape=())
    with pytest.raises(ValueError, match="top: expected an int in 1"):
        sinpe.identify(learned(), top=0)


def test_match_repr() -> None:
    matches = sinpe.identify(table(sinpe.convention("fairseq", 64)))
    text = 'fairseq (also t2t, ddpm), 64 rows, start 2, max error 3e-08\n    sinpe.convention("fairseq", 64)'
    assert str(matches[0]) == text == str(matches)
    assert repr(matches).startswith("Matches([Match(name='fairseq'")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [2, 16, 64, 200])
def test_exact_16_bit_table_has_no_angle_errors(rows: int, dtype: torch.dtype) -> None:
    match = sinpe.identify(sinpe.table(rows, 64).to(dtype))[0]
    assert match.name == "paper" and match.float32_angle == "" and "angle errors" not in match.note
