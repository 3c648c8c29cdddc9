"""identify for tables with more or less than an encoding: zeros, class tokens, videos."""

from __future__ import annotations

import time

import pytest
import torch

import sinpe_ext as sinpe
from sinpe_ext.encodings.encoding import Encoding

ROWS = 64
SHORT = 2.5  # seconds of CPU time, for a search that took 8 to 130
PAPER = sinpe.table(ROWS, 62)
MAE = sinpe.table((14, 14), sinpe.convention("mae2d", 64), flatten=True)
LEARNED = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)) * 0.02


def single_match(table: torch.Tensor, **fields: object) -> sinpe.Match:
    matches = sinpe.identify(table, **fields)  # type: ignore[arg-type]
    assert matches, matches.reason
    return matches[0]


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        (0, 2, "columns 62 to 63 are zero"),
        (0, 1, "column 62 is zero"),
        (0, 64, "columns 62 to 125 are zero"),
        (2, 0, "columns 0 to 1 are zero"),
        (2, 3, "columns 0, 1, 64, 65, 66 are zero"),
    ],
)
def test_zero_columns_around(before: int, after: int, named: str) -> None:
    held = torch.cat([torch.zeros(ROWS, before), PAPER, torch.zeros(ROWS, after)], 1)
    match = single_match(held)
    assert (match.code, match.encoding) == ('sinpe.convention("paper", 62)', Encoding(62))
    assert match.note == f"{named}: sinpe.table(64, encoding) gives the other 62"
    kept = [column for column in range(held.shape[1]) if column not in match.zero_columns]
    assert torch.equal(sinpe.table(ROWS, match.encoding), held[:, kept])


def test_zero_columns_between() -> None:
    match = single_match(torch.cat([PAPER[:, :30], torch.zeros(ROWS, 2), PAPER[:, 30:]], 1))
    assert (match.encoding, match.zero_columns) == (Encoding(62), (30, 31))


@pytest.mark.parametrize(
    ("name", "dim", "fields"), [("adm", 60, {}), ("t2t", 64, {"base": 500.0}), ("paper", 64, {"start": 7})]
)
def test_zero_columns_with_any_encoding(name: str, dim: int, fields: dict[str, float]) -> None:
    encoding = sinpe.convention(name, dim, **fields)
    began = time.thread_time()
    match = single_match(torch.cat([sinpe.table(ROWS, encoding), torch.zeros(ROWS, 3)], 1))
    assert time.thread_time() - began < SHORT
    assert (match.name, match.encoding, match.zero_columns) == (name, encoding, (dim, dim + 1, dim + 2))


def test_padded_columns_of_the_encoding_are_not_reported() -> None:
    for encoding in (sinpe.convention("t2t", 65, base=500.0), sinpe.convention("nerf", 12, position_scale=0.125)):
        match = single_match(sinpe.table(ROWS, encoding))
        assert (match.encoding, match.zero_columns) == (encoding, ())


@pytest.mark.parametrize("leading", [0, 1])
def test_zero_columns_with_a_grid(leading: int) -> None:
    held = torch.cat([torch.zeros(leading, 67), torch.cat([MAE, torch.zeros(196, 3)], 1)])
    for shape in (None, (14, 14)):
        match = single_match(held, shape=shape)
        assert (match.code, match.zero_columns) == ('sinpe.convention("mae2d", 64)', (64, 65, 66))
        assert (match.shape, match.extra_tokens) == ((14, 14), leading)
        assert "sinpe.table((14, 14), encoding) gives the other 64" in match.note


@pytest.mark.parametrize("shape", [(4, 6, 8), (8, 14, 14), (1, 6, 8), (6, 1, 8), (6, 8, 1)], ids=str)
@pytest.mark.parametrize("name", ["multidim3d", "monai3d", "fairseq2_3d", "cogvideo3d"])
def test_flattened_video(name: str, shape: tuple[int, ...]) -> None:
    held = sinpe.table(shape, sinpe.convention(name, 96), flatten=True)
    began = time.thread_time()
    match = single_match(held, shape=shape)
    assert time.thread_time() - began < SHORT
    assert name in (match.name, *match.aliases) and match.shape == shape
    assert torch.equal(sinpe.table(shape, match.encoding, flatten=True), held)


def test_flattened_16_bit_video_after_a_class_token() -> None:
    held = sinpe.table((16, 14, 14), sinpe.convention("cogvideo3d", 768), flatten=True)
    match = single_match(torch.cat([torch.zeros(1, 768), held]).bfloat16(), shape=(16, 14, 14))
    assert (match.name, match.shape, match.extra_tokens) == ("cogvideo3d", (16, 14, 14), 1)


def test_fine_tuned_video_table() -> None:
    held = sinpe.table((4, 6, 8), sinpe.convention("multidim3d", 96), flatten=True)
    noise = torch.randn(held.shape, generator=torch.Generator().manual_seed(0)) * 0.02
    assert "pass shape=(H, W) or (T, H, W)" in sinpe.identify(held + noise).reason


@pytest.mark.parametrize("shape", [None, (14, 14)], ids=str)
def test_rows_of_zeros_around_a_grid(shape: tuple[int, ...] | None) -> None:
    match = single_match(torch.cat([MAE, torch.zeros(1, 64)]), shape=shape)
    assert (match.name, match.shape, match.zero_rows, match.rows) == ("mae2d", (14, 14), (196,), 197)
    assert "zero after the end of the grid: row 196" in match.note
    match = single_match(torch.cat([torch.zeros(2, 64), MAE, torch.zeros(1, 64)]), shape=shape)
    assert (match.shape, match.extra_tokens, match.zero_rows, match.rows) == ((14, 14), 2, (198,), 199)


@pytest.mark.parametrize("shape", [None, (14, 14)], ids=str)
def test_learned_row_before_a_grid(shape: tuple[int, ...] | None) -> None:
    assert not sinpe.identify(torch.cat([LEARNED, MAE]), shape=shape)


@pytest.mark.parametrize("row", [0, 3, 28, 90, 195])
def test_zeroed_place_of_a_grid(row: int) -> None:
    held = MAE.clone()
    held[row] = 0
    for table, before in ((held, 0), (torch.cat([torch.zeros(1, 64), held]), 1)):
        match = single_match(table, shape=(14, 14))
        assert (match.name, match.shape, match.zero_rows) == ("mae2d", (14, 14), (row + before,))
        assert match.note.endswith(f"row {row + before}") and "padding" not in match.note
    assert single_match(held).zero_rows == (row,)


def test_learned_row_before_rows() -> None:
    matches = sinpe.identify(torch.cat([LEARNED, sinpe.table(ROWS, 64)]))
    assert list(matches) == [] and "differs in 1 of 65 rows (0)" in matches.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [4, 5, 16, 17])
def test_doubled_index_is_exponent_dim_2(dim: int, dtype: torch.dtype) -> None:
    encoding = sinpe.convention("doubled_index", dim, exponent_dim=2)
    match = single_match(sinpe.table(ROWS, encoding, dtype=dtype))
    assert (match.code, match.encoding) == (f'sinpe.convention("doubled_index", {dim}, exponent_dim=2)', encoding)


def test_rotary_cache_of_cos_and_sin() -> None:
    angle = torch.outer(torch.arange(64.0), 500.0 ** (-torch.arange(32) / 32))
    match = single_match(torch.cat([angle.cos(), angle.sin()], 1))
    assert match.name == "adm" and "equals a rotary cache cos|sin (cos_sin_cache) of base 500" in match.note
    assert "rotary" not in single_match(sinpe.table(ROWS, sinpe.convention("adm", 64, start=3))).note


def test_aliases_with_other_fields_are_on_a_separate_line() -> None:
    match = single_match(sinpe.table(ROWS, sinpe.convention("t2t", 64, base=3217.5523)))
    assert {match.name, *match.aliases} >= {"t2t", "ddpm", "paper_concat"}
    lines = str(match).splitlines()
    assert match.name == "paper_concat" and "(also" not in lines[0]
    assert '    also sinpe.convention("t2t", 64, base=3217.5523)' in lines
    assert "(also t2t, ddpm)" in str(single_match(sinpe.table(ROWS, sinpe.convention("fairseq", 64))))


@pytest.mark.parametrize("padding", [0, 1, 5])
def test_padding_row_implies_the_first_token_position(padding: int) -> None:
    held = sinpe.table(ROWS, sinpe.convention("fairseq", 64, start=0))
    held[padding] = 0
    assert f"tokens start at padding_idx + 1: encode them with start={padding + 1}" in single_match(held).note


def test_single_channel_is_zero_at_position_0() -> None:
    match = single_match(sinpe.table(ROWS, 1))
    assert (match.name, match.start, match.zero_rows, match.extra_tokens) == ("paper", 0, (), 0)
    assert "zero" not in match.note
