"""`identify` for rows of one coordinate: names, rows and columns around the encoding, shapes, tables that are none."""

from __future__ import annotations

import itertools
import math
import random
import warnings

import numpy
import pytest
import torch
from test_identify_numbers import naive
from widths import WIDTHS, names_at

import sinpe_ext as sinpe
from sinpe_ext.encodings.catalogue import CATALOGUE
from sinpe_ext.encodings.encoding import Encoding

ROWS = 64
NAMES = tuple(CATALOGUE)
STORAGE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Largest difference, relative to the amplitude, between the encoding found and the true one: rounding to the dtype,
# plus the error of fitted numbers.
HIDDEN = {torch.float32: 3e-5, torch.float64: 3e-5, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


def table(encoding: Encoding, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sinpe.table(rows, encoding, dtype=torch.float64).to(dtype)


def names(match: sinpe.Match) -> set[str]:
    return {match.name, *match.aliases}


def found(held: torch.Tensor, **fields: object) -> sinpe.Match:
    """The best match; the printed code, and that of each alias, evaluates to an encoding."""
    matches = sinpe.identify(held, **fields)  # type: ignore[arg-type]
    assert matches, matches.reason
    match = matches[0]
    assert eval(match.code, {"sinpe": sinpe}) == match.encoding
    for name, code in zip(match.aliases, match.alias_codes, strict=True):
        assert f'"{name}"' in code and type(eval(code, {"sinpe": sinpe})) is type(match.encoding)
    return match


EVERY = [(name, dim, STORAGE[(k + dim) % 4]) for dim in (8, 33, *WIDTHS) for k, name in enumerate(names_at(dim, 1))]


@pytest.mark.parametrize(("name", "dim", "dtype"), EVERY, ids=str)
def test_every_name_from_64_rows(name: str, dim: int, dtype: torch.dtype) -> None:
    encoding = sinpe.convention(name, dim)
    match = found(table(encoding, dtype=dtype))
    assert name in names(match)
    assert match.encoding.replace(odd="truncate") == encoding.replace(odd="truncate") or dim % 2 == 0
    assert (match.start, match.amplitude) == (encoding.start, encoding.amplitude)
    assert match.rows == ROWS and match.shape is None and match.zero_rows == () and match.extra_tokens == 0
    assert torch.equal(sinpe.table(ROWS, match.encoding), sinpe.table(ROWS, encoding))
    assert match.max_error == pytest.approx(
        float((table(encoding, dtype=dtype).double() - table(encoding)).abs().max()), abs=2e-7
    )


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


@pytest.mark.sampled(8, "drawn cases")
@pytest.mark.parametrize("seed", range(60))
def test_random_encodings(seed: int) -> None:
    name, encoding, dtype = random_encoding(seed)
    pe = table(encoding, dtype=dtype)
    match = found(pe.float() if dtype is torch.bfloat16 and seed % 2 else pe)
    off = (sinpe.table(ROWS, match.encoding, dtype=torch.float64) - table(encoding, dtype=torch.float64)).abs().max()
    assert float(off) <= HIDDEN[dtype] * abs(encoding.amplitude), (encoding, match)
    assert match.start == encoding.start, (encoding, match)
    assert math.isclose(match.amplitude, encoding.amplitude, rel_tol=2 * HIDDEN[dtype])
    if name and name not in ("fairseq", "ctranslate2", "unit"):  # whose start or amplitude was changed
        assert name in names(match), (encoding, match)


def test_aliases_and_printed_text() -> None:
    matches = sinpe.identify(table(sinpe.convention("fairseq", 64)))
    assert len(matches) == 1 and (matches[0].name, matches[0].aliases) == ("fairseq", ("t2t", "ddpm"))
    assert matches[0].alias_codes[0] == 'sinpe.convention("t2t", 64, start=2)'
    text = 'fairseq (also t2t, ddpm), 64 rows, start 2, max error 3e-08\n    sinpe.convention("fairseq", 64)'
    assert str(matches[0]) == text == str(matches) and repr(matches).startswith("Matches([Match(name='fairseq'")
    assert found(table(sinpe.convention("multidim1d", 64))).aliases == ("multidim1d",)
    assert found(table(sinpe.convention("multidim1d", 65))).aliases == ()
    any_base = found(table(sinpe.convention("t2t", 64, base=3217.5523)))
    assert any_base.name == "paper_concat" and {"t2t", "ddpm"} <= names(any_base)  # they have different bases
    lines = str(any_base).splitlines()
    assert "(also" not in lines[0] and '    also sinpe.convention("t2t", 64, base=3217.5523)' in lines


@pytest.mark.parametrize("dim", [64, 127, 128, 320, 512, 768, 1024])
def test_other_encodings_that_are_as_near_are_not_returned(dim: int) -> None:
    """Unless their numbers are as simple: `ctranslate2, base=453.731` is no answer."""
    for name in ("bigvision2d", "t2t2d", "mae2d"):
        if dim % 4 == 0:
            (match,) = sinpe.identify(table_of_grid(name, dim))
            assert name in names(match)
    for encoding in (sinpe.convention("ctranslate2", dim), sinpe.convention("adm", dim, base=500.0)):
        for rows in (3, 64):
            (match,) = sinpe.identify(sinpe.table(rows, encoding))
            assert match.encoding.frequencies_radians() == encoding.frequencies_radians()


def table_of_grid(name: str, dim: int) -> torch.Tensor:
    return sinpe.table((7, 8), sinpe.convention(name, dim).with_axes(start=2))


def test_top() -> None:
    held = sinpe.table(ROWS, Encoding(6, layout="sin_cos", shift=0.5))  # as near: paper_concat of base 63096
    (match,) = sinpe.identify(held)
    assert match.code == 'sinpe.convention("paper_concat", 6, shift=0.5)' and list(sinpe.identify(held, top=1)) == [
        match
    ]
    other = found(sinpe.table(ROWS, 6))
    assert str(sinpe.Matches([match, other])) == f"{match}\nor, as likely:\n{other}"


# ------------------------------------------------------------------------------- rows and columns around the encoding


def test_rows_of_zeros() -> None:
    """A padding row of fairseq, class tokens, and a first row that is zero in the encoding itself."""
    for padding in (0, 1, 7):
        pe = table(sinpe.convention("fairseq", 64, start=0))
        pe[padding] = 0
        match = found(pe)
        assert (match.name, match.start, match.zero_rows, match.extra_tokens) == ("fairseq", 0, (padding,), 0)
        assert "padding row" in match.note and f"row {padding}" in match.note and "t2t" in match.aliases
        assert f"tokens start at padding_idx + 1: encode them with start={padding + 1}" in match.note
    for number in (1, 2):
        for fields in ({}, {"base": 77.0}):
            match = found(torch.cat([torch.zeros(number, 64), table(Encoding(64, **fields))]))
            assert (match.name, match.start, match.extra_tokens, match.zero_rows) == ("paper", 0, number, ())
            assert f"extra_tokens={number}" in match.note and match.encoding == Encoding(64, **fields)
    match = found(sinpe.table(ROWS, 1))
    assert (match.name, match.start, match.zero_rows, match.extra_tokens) == ("paper", 0, (), 0)
    assert "zero" not in match.note
    learned_first = sinpe.identify(torch.cat([learned(1, 64), sinpe.table(ROWS, 64)]))
    assert list(learned_first) == [] and "differs in 1 of 65 rows (0)" in learned_first.reason


COLUMNS = [  # zero columns before, between (at 30) and after the 62 of the encoding
    (0, 0, 2, "columns 62 to 63 are zero"),
    (0, 0, 1, "column 62 is zero"),
    (0, 0, 64, "columns 62 to 125 are zero"),
    (2, 0, 0, "columns 0 to 1 are zero"),
    (2, 0, 3, "columns 0, 1, 64, 65, 66 are zero"),
    (0, 2, 0, "columns 30 to 31 are zero"),
]


@pytest.mark.parametrize(("before", "between", "after", "named"), COLUMNS)
def test_columns_of_zeros(before: int, between: int, after: int, named: str) -> None:
    pe, zeros = sinpe.table(ROWS, 62), [torch.zeros(ROWS, n) for n in (before, between, after)]
    held = torch.cat([zeros[0], pe[:, :30], zeros[1], pe[:, 30:], zeros[2]], 1)
    match = found(held)
    assert (match.code, match.encoding) == ('sinpe.convention("paper", 62)', Encoding(62))
    assert match.note == f"{named}: sinpe.table(64, encoding) gives the other 62"
    kept = [column for column in range(held.shape[1]) if column not in match.zero_columns]
    assert torch.equal(sinpe.table(ROWS, match.encoding), held[:, kept])


def test_columns_of_zeros_with_other_encodings() -> None:
    for name, dim, fields in (("adm", 60, {}), ("t2t", 64, {"base": 500.0}), ("paper", 64, {"start": 7})):
        encoding = sinpe.convention(name, dim, **fields)
        match = found(torch.cat([sinpe.table(ROWS, encoding), torch.zeros(ROWS, 3)], 1))
        assert (match.name, match.encoding, match.zero_columns) == (name, encoding, (dim, dim + 1, dim + 2))
    for encoding in (sinpe.convention("t2t", 65, base=500.0), sinpe.convention("nerf", 12, position_scale=0.125)):
        match = found(sinpe.table(ROWS, encoding))  # a padded channel of the encoding itself is not reported
        assert (match.encoding, match.zero_columns) == (encoding, ())


@pytest.mark.parametrize("dim", [4, 5, 16, 17])
def test_doubled_index_is_exponent_dim_2(dim: int) -> None:
    encoding = sinpe.convention("doubled_index", dim, exponent_dim=2)
    for dtype in (torch.bfloat16, torch.float32):
        match = found(sinpe.table(ROWS, encoding, dtype=dtype))
        assert (match.code, match.encoding) == (f'sinpe.convention("doubled_index", {dim}, exponent_dim=2)', encoding)


def test_rotary_cache_of_cos_and_sin() -> None:
    angle = torch.outer(torch.arange(64.0), 500.0 ** (-torch.arange(32) / 32))
    match = found(torch.cat([angle.cos(), angle.sin()], 1))
    assert match.name == "adm" and "equals a rotary cache cos|sin (cos_sin_cache) of base 500" in match.note
    assert "rotary" not in found(sinpe.table(ROWS, sinpe.convention("adm", 64, start=3))).note


# --------------------------------------------------------------------------------------------------- float32 angles


@pytest.mark.parametrize(
    ("form", "length", "storage"),
    [
        *itertools.product(("exp", "pow"), (64, 5000), (torch.float32,)),
        ("exp", 5000, torch.bfloat16),
        ("pow", 5000, torch.bfloat16),  # at 64 rows, bfloat16 hides errors of 4e-6
        ("power", 5000, torch.float32),
    ],
)
def test_float32_angle_errors(form: str, length: int, storage: torch.dtype) -> None:
    match = found(naive(form, length, Encoding(128), storage))
    angle = {"exp": "float32_exp", "pow": "float32_pow", "power": "other"}[form]
    assert (match.name, match.float32_angle) == ("paper", angle)
    assert (f'angle="{angle}"' in match.note) == (form != "power")


def test_an_angle_is_claimed_only_if_it_gives_every_value() -> None:
    """One value of a row that a sample leaves out; and formulas of which an angle gives most values."""
    for angle in ("float32_exp", "float32_pow"):
        held = sinpe.table(5000, Encoding(64, angle=angle))
        match = found(held)
        assert match.float32_angle == angle and f'angle="{angle}" repeats every value' in match.note
        for row in (1500, 4999):
            changed = held.clone()
            changed[row, 5] = changed[row, 5].nextafter(torch.tensor(0.0))
            match = found(changed)
            assert match.float32_angle == "other" and f'angle="{angle}" gives 99 % of its values' in match.note


@pytest.mark.parametrize("dim", [64, 128, 320, 512, 768, 1024])
@pytest.mark.parametrize("form", ["exp", "pow", "power", "halves"])
def test_claimed_angles_and_shares_are_true(form: str, dim: int) -> None:
    """The better of the two is named, and only if it is notably better than the exact encoding."""
    encodings = [Encoding(dim), sinpe.convention("t2t", dim), sinpe.convention("musicgen", dim)]
    for encoding in [*encodings, sinpe.convention("adm", dim, base=500.0, amplitude=0.1)]:
        if form == "halves":
            steps = torch.arange(dim // 2, dtype=torch.float32) / (dim / 2 - encoding.shift)
            angle = torch.arange(400.0)[:, None] / (float(encoding.base) ** steps)
            parts = [angle.sin(), angle.cos()] if encoding.layout == "sin_cos" else [angle.cos(), angle.sin()]
            held = torch.cat(parts, 1) * encoding.amplitude
        else:
            held = naive(form, 400, encoding)
        match = found(held)
        tables = {
            angle: sinpe.table(400, match.encoding.replace(angle=angle))
            for angle in ("exact", "float32_exp", "float32_pow")
        }
        share = {angle: float((table == held).double().mean()) for angle, table in tables.items()}
        if "repeats" in match.note:
            assert share[match.float32_angle] == 1
        else:
            assert match.float32_angle in ("", "other")
        if "% of its values" in match.note:
            best = max(share, key=lambda angle: share[angle])
            assert f'angle="{best}" gives {math.floor(100 * share[best])} % of its values' in match.note
            assert 1 > share[best] > share["exact"]


def test_exact_tables_have_no_angle_errors() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for length in (2, 64, 5000):
            match = found(sinpe.table(length, 64, dtype=dtype))
            assert match.name == "paper" and match.float32_angle == "" and "angle" not in match.note
    for dim, dtype in ((48, torch.float32), (60, torch.float64), (72, torch.float32), (72, torch.float64)):
        # Angles to 100 * 2^35 radians, whose sines in float64 are off by 4e-4.
        match = found(sinpe.table(100, "nerf", dim=dim, dtype=dtype))
        assert (match.name, match.float32_angle) == ("nerf", "") and "angle" not in match.note
        # Half an ULP below 1; in float64, 1 ULP of the table and 1 of the reference.
        assert match.max_error <= (2.0**-25 if dtype == torch.float32 else 2.0**-52)


# ------------------------------------------------------------------------------------------------ shapes and storage


def test_storage_and_shapes() -> None:
    pe = table(sinpe.convention("adm", 33))
    expected = found(pe)
    with torch.inference_mode():
        inference = pe.clone()
    imaginary = torch.complex(torch.zeros_like(pe), -pe).conj().imag  # a lazy negative
    same = [pe[None], pe[:, None], pe.numpy(), torch.nn.Parameter(pe.clone()), inference, imaginary]
    same += [pe.expand(4, ROWS, 33), pe.T.contiguous().T, pe.numpy().astype(">f4")]  # one table per sample of a batch
    for other in same:
        assert found(other) == expected
    assert found(pe, shape=(ROWS,)) == expected and "float16" not in expected.note
    assert "float16" in found(pe.numpy().astype(numpy.float16)).note
    assert "rounded to bfloat16" in found(pe.bfloat16().float()).note
    with torch.device("meta"):  # the default device
        assert found(pe) == expected
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert found(pe) == expected and torch.get_num_threads() == 3 and torch.is_grad_enabled()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dim", [16, ROWS, 128])
def test_channels_first(dim: int) -> None:
    pe = table(sinpe.convention("t2t", dim))
    for turned in (pe.T, pe.T[None], pe.T[:, None], pe.T[..., None], pe.T.expand(3, -1, -1), pe.T.contiguous().half()):
        match = found(turned)
        assert (match.transposed, match.rows, match.name) == (True, ROWS, "t2t")
        assert f"the channels first, ({dim}, {ROWS})" in match.note and "transpose" in str(match)
    assert not found(pe).transposed  # the given orientation comes first
    pe[1] = 0
    assert found(pe.T).zero_rows == (1,)


# ------------------------------------------------------------------------------------------------ what is no encoding


def learned(rows: int = 512, dim: int = 512, scale: float = 0.02) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)) * scale


def rotary(half: int = 32, rows: int = 256) -> torch.Tensor:
    return torch.outer(torch.arange(float(rows)), 10000.0 ** (-torch.arange(half) / half))


PAPER = table(Encoding(64))
NO_ENCODING = {
    "learned": (learned(), "learned"),
    "learned, small": (learned(64, 32), "learned"),
    "learned, two rows": (learned(2, 64), ""),
    "uniform": (torch.rand(64, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1, "noise"),
    "random walk": (learned().cumsum(0), "no geometric"),
    "rotary cos": (torch.cat([rotary(), rotary()], -1).cos(), "rotary"),
    "rotary, pairs": (rotary().repeat_interleave(2, -1).sin(), "rotary"),
    "rotary, complex": (torch.polar(torch.ones(256, 32), rotary()), "rotary"),
    "rotary, scaled": (torch.cat([rotary(), rotary()], -1).cos() * 1.2, "rotary"),
    "twice": (torch.cat([PAPER, PAPER], 1), "identify one half, table[:, :64]"),
    "twice, pairs": (PAPER.repeat_interleave(2, -1), "identify one half, table[:, ::2]"),
    "ids": (torch.arange(512)[None], "int64"),
    "mask": (torch.ones(8, 8, dtype=torch.bool), "bool"),
    "zeros": (torch.zeros(64, 64), "zero"),
    "ones": (torch.ones(64, 64), "equal"),
    "NaN": (torch.full((64, 64), math.nan), "NaN"),
    "one row": (table(Encoding(64), 1), "one row"),
    "a vector": (torch.rand(64), "shape"),
    "empty": (torch.zeros(0, 512), "is not that of rows of channels"),
    "ramp": (torch.arange(64.0)[:, None] * torch.linspace(0.1, 2, 16), "no geometric"),
    "ALiBi": (-torch.arange(64.0)[:, None] * 2.0 ** -torch.arange(8.0), "no geometric"),
    "cosine transform": (
        torch.cos(math.pi / 64 * torch.outer(torch.arange(64) + 0.5, torch.arange(64.0))),
        "no geometric",
    ),
    "identity": (torch.eye(64), ""),
    "lower triangle": (torch.ones(64, 64).tril(), ""),
    "cos before sin": (PAPER[:, torch.arange(64) ^ 1], "no geometric"),
    "half of a table": (torch.cat([PAPER, learned(64, 64, 1.0)], 1), ""),
    "fine-tuned, transposed": (PAPER.T + learned(64, 64, 0.01), ""),
    "nested": (lambda: torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(2, 4)]), "no rows of one length"),
    "expanded rows": (torch.zeros(1, 64).expand(2**40, 64), "repeats what it holds"),
    "expanded channels": (torch.zeros(64, 1).expand(64, 2**40), "repeats what it holds"),
    "expanded samples": (PAPER.expand(2**40, 64, 64), "repeats what it holds"),
    "overlapping": (torch.arange(2.0**10).as_strided((2**30, 2**9), (0, 1)), "repeats what it holds"),
    "broadcast array": (numpy.broadcast_to(numpy.float32(1), (2**20, 2**20)), "repeats what it holds"),
    "wide": (torch.ones(()).expand(16, 2**20), "more than the 65536"),
    "sparse": (torch.eye(9).to_sparse(), "no rows to look at"),
    "meta": (torch.zeros(9, 9, device="meta"), "no rows to look at"),
    "float8": (torch.zeros(9, 9).to(torch.float8_e5m2), "float8_e5m2 values are not read"),
}


@pytest.mark.parametrize("case", NO_ENCODING)
def test_other_tables_are_rejected(case: str) -> None:
    held, reason = NO_ENCODING[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about prototypes
        matches = sinpe.identify(held() if callable(held) else held)
    assert list(matches) == [] and matches.closest is None
    assert reason in matches.reason and matches.reason
    assert str(matches) == f"no convention: {matches.reason}" and "reason=" in repr(matches)


def test_sinusoids_of_random_phase_are_rejected() -> None:
    for seed in range(8):
        draw = torch.rand(2, generator=torch.Generator().manual_seed(seed))
        assert list(sinpe.identify(torch.cos(3 * draw[0] * torch.arange(30.0) + 6 * draw[1])[:, None])) == []


def test_changed_rows_are_named() -> None:
    for encoding in (sinpe.convention("t2t", 64), sinpe.convention("paper", 64, base=777.7, start=5)):
        pe = table(encoding)
        pe[[3, 17, 40]] += torch.rand(3, 64, generator=torch.Generator().manual_seed(0))
        matches = sinpe.identify(pe)
        assert list(matches) == [] and "differs in 3 of 64 rows (3, 17, 40)" in matches.reason
        assert matches.closest is not None and matches.closest.encoding == encoding
    mixed = sinpe.table(5000, 64)
    mixed[:4096] = mixed[:4096].bfloat16().float()  # the first rows alone would pass as bfloat16
    assert "differs in 4095 of 5000 rows (1, 2" in sinpe.identify(mixed).reason
    matches = sinpe.identify(table(sinpe.convention("t2t", 64)) + learned(64, 64, 0.01))
    assert list(matches) == [] and "differs in every row" in matches.reason
    assert matches.closest is not None and matches.closest.name == "t2t" and not matches.closest.transposed


@pytest.mark.parametrize("rows", [64, 512])
def test_tables_computed_in_16_bits_are_not_recognised(rows: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        angle = torch.arange(rows, dtype=dtype)[:, None] * (10000.0 ** (-torch.arange(32) / 32)).to(dtype)
        matches = sinpe.identify(torch.cat([angle.sin(), angle.cos()], 1))
        assert not matches and "computed in 16-bit arithmetic" in matches.reason
    assert "16-bit" not in sinpe.identify(PAPER + learned(64, 64, 0.01)).reason


def test_bad_arguments() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(64, 64)
    for error, message, arguments, fields in (
        (TypeError, "table: expected a tensor or a NumPy array, got list", [1.0], {}),
        (TypeError, "table: expected a tensor or a NumPy array, got FakeTensor; pass the values", fake, {}),
        (TypeError, "shape: expected a sequence of ints, got int", learned(), {"shape": 8}),
        (ValueError, "shape: expected one of at most 512 grid points", learned(), {"shape": (32, 32)}),
        (ValueError, "shape: expected 1 to 4 lengths", learned(), {"shape": ()}),
        (ValueError, "top: expected an int in 1", learned(), {"top": 0}),
    ):
        with pytest.raises(error, match=message):
            sinpe.identify(arguments, **fields)
