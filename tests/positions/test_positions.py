"""`sinpe_ext.positions`: positions for padded, packed and incremental batches, grids and masks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import sinpe_ext as sinpe

D = 10


def test_packed_and_relative_positions(backend: str) -> None:
    lengths = [4, 0, 1, 7]
    packed = sinpe.positions.packed(torch.tensor([0, *lengths]).cumsum(0))
    assert torch.equal(packed, torch.cat([torch.arange(n) for n in lengths]))
    assert torch.equal(
        sinpe.positions.packed(torch.tensor([0, 3], dtype=torch.int32), 5), torch.tensor([0, 1, 2, 0, 1])
    )
    weight, ids = torch.randn(9, D), torch.randint(9, (12,))
    each = torch.cat([sinpe.embed(part, weight) for part in ids.split(lengths)])
    assert torch.equal(sinpe.embed(ids, weight, positions=packed), each)
    assert torch.equal(sinpe.add(weight[ids][None], positions=packed)[0], each)
    for length in (1, 5):
        relative = sinpe.positions.relative(length)
        assert torch.equal(relative, torch.arange(length - 1, -length, -1))
        rows = sinpe.encode(relative, D)
        assert torch.equal(rows.flip(0), sinpe.table(2 * length - 1, D, start=1 - length))
        assert torch.equal(rows[:length].flip(0), sinpe.table(length, D))
    ends = torch.tensor([0, 3, 5])
    compiled = torch.compile(lambda c: sinpe.positions.packed(c, 5), fullgraph=True, backend="eager")
    assert torch.equal(compiled(ends), torch.tensor([0, 1, 2, 0, 1]))
    for bad in ([], [1, 2], [0, 3, 2]):
        with pytest.raises((TypeError, ValueError), match="cu_seqlens: expected"):
            sinpe.positions.packed(torch.tensor(bad, dtype=torch.int64))
    with pytest.raises(ValueError, match="total: expected 3 or more"):
        sinpe.positions.packed(torch.tensor([0, 3]), 2)
    with pytest.raises(ValueError, match="length: expected an int in 1"):
        sinpe.positions.relative(0)


P = 1  # fairseq's padding_idx


def counted(mask: list[bool], pad: int, first: int) -> list[int]:
    """Counts tokens from `first`; padding gets `pad`."""
    positions, count = [], 0
    for padding in mask:
        positions.append(pad if padding else first + count)
        count += not padding
    return positions


MASKS = {
    "none": [False] * 5,
    "right": [False, False, False, True, True],
    "left": [True, True, False, False, False],
    "both": [True, False, False, False, True],
    "holes": [False, True, False, True, False],
    "all": [True] * 5,
}


def test_positions_from_a_padding_mask(backend: str) -> None:
    mask = torch.tensor(list(MASKS.values()))
    positions = sinpe.positions.from_padding_mask(mask)
    assert positions.dtype == torch.int64
    assert positions.tolist() == [counted(row, 0, 0) for row in MASKS.values()]
    attention_mask = (~mask).long()  # as in Hugging Face
    assert torch.equal(positions, (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 0))
    for row, want in zip(mask, positions, strict=True):
        assert torch.equal(sinpe.positions.from_padding_mask(row), want)
    x = torch.randn(len(mask), 5, D)
    encoded = sinpe.add(x, positions=positions, padding_mask=mask)
    for row, padding, result in zip(x, mask, encoded, strict=True):  # equals the sequence alone
        tokens = row[~padding]
        assert torch.equal(result[~padding], sinpe.add(tokens)) and torch.equal(result[padding], row[padding])
    assert sinpe.positions.from_padding_mask(torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)
    many = torch.zeros(1, 70_000, dtype=torch.bool)  # more than any 16-bit type holds
    assert torch.equal(sinpe.positions.from_padding_mask(many)[0], torch.arange(70_000))


def fairseq_table(rows: int, dim: int, padding_idx: int) -> Tensor:
    """fairseq's get_embedding in float64, with zeros at padding_idx."""
    half = dim // 2
    w = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * w
    rows_of = torch.cat([angle.sin(), angle.cos(), torch.zeros(rows, dim % 2, dtype=torch.float64)], 1)
    rows_of[padding_idx] = 0
    return rows_of


@pytest.mark.parametrize("padding_idx", [0, 1, 7])
@pytest.mark.parametrize("dim", [D, D + 1])
def test_positions_from_padding_idx(dim: int, padding_idx: int, backend: str) -> None:
    mask = torch.tensor(list(MASKS.values()))
    ids = torch.randint(8, 20, mask.shape).masked_fill(mask, padding_idx)
    positions, padding = sinpe.positions.from_padding_idx(ids, padding_idx)
    assert torch.equal(padding, mask) and positions.dtype == torch.int64
    assert positions.tolist() == [counted(row, padding_idx, padding_idx + 1) for row in MASKS.values()]
    for row, want in zip(ids.int(), positions, strict=True):
        assert torch.equal(sinpe.positions.from_padding_idx(row, padding_idx)[0], want)
    weight = torch.randn(20, dim, dtype=torch.float64)
    encoded = sinpe.embed(ids, weight, "t2t", positions=positions, padding_mask=padding)
    table = fairseq_table(padding_idx + 1 + ids.shape[1], dim, padding_idx)
    assert torch.allclose(encoded, weight[ids] + table[positions], rtol=0, atol=1e-13)
    assert torch.equal(encoded[padding], weight[ids[padding]])
    if padding_idx == P:  # without padding: the convention's implicit positions
        assert torch.equal(encoded[0], sinpe.embed(ids[0], weight, "fairseq"))


def test_incremental_decoding_continues_positions() -> None:
    mask = torch.tensor(list(MASKS.values()))
    ids = torch.full(mask.shape, 9).masked_fill(mask, P)
    whole, _ = sinpe.positions.from_padding_idx(ids, P)
    for cut in range(6):
        before = (~mask[:, :cut]).sum(1)
        rest, _ = sinpe.positions.from_padding_idx(ids[:, cut:], P, past=before)
        assert torch.equal(rest, whole[:, cut:])
        assert torch.equal(sinpe.positions.from_padding_idx(ids[:, cut:], P, past=before.int())[0], rest)
        one, _ = sinpe.positions.from_padding_idx(ids[0, cut:], P, past=cut)
        assert torch.equal(one, whole[0, cut:])
        assert torch.equal(sinpe.positions.from_padding_idx(ids[0, cut:], P, past=torch.tensor(cut))[0], one)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (4, 1), (2, 3, 4), (0, 3), (2, 2, 2, 2)])
@pytest.mark.parametrize("start", [0, -7, "each"])
def test_grid(shape: tuple[int, ...], start: int | str) -> None:
    starts = tuple(range(10, 10 + len(shape))) if start == "each" else (start,) * len(shape)
    coordinates = sinpe.positions.grid(shape, start=starts if start == "each" else start)
    want = [[s + n for s, n in zip(starts, cell, strict=True)] for cell in itertools.product(*map(range, shape))]
    assert coordinates.shape == (*shape, len(shape)) and coordinates.dtype == torch.int64
    assert coordinates.reshape(-1, len(shape)).tolist() == want  # row-major


def test_grid_rows_equal_table(backend: str) -> None:
    encoding = sinpe.convention("mae2d", 16)
    assert torch.equal(sinpe.encode(sinpe.positions.grid((3, 5)), encoding), sinpe.table((3, 5), encoding))
    whole, part = sinpe.table((6, 7), encoding), sinpe.positions.grid((2, 3), start=(1, 4))
    assert torch.equal(sinpe.encode(part, encoding), whole[1:3, 4:7])


def images(*sizes: tuple[int, int], height: int = 4, width: int = 5) -> Tensor:
    """The mask of images of these sizes, padded to one size."""
    mask = torch.ones(len(sizes), height, width, dtype=torch.bool)
    for each, (h, w) in zip(mask, sizes, strict=True):
        each[:h, :w] = False
    return mask


def detr_loop(mask: Tensor, normalize: bool, scale: float, eps: float, offset: float) -> Tensor:
    """DETR's positions, one pixel at a time, in Python floats."""
    batch, height, width = mask.shape
    out = torch.zeros(batch, height, width, 2, dtype=torch.float64)
    for b, i, j in itertools.product(range(batch), range(height), range(width)):
        y = float(sum(not mask[b, k, j] for k in range(i + 1)))
        x = float(sum(not mask[b, i, k] for k in range(j + 1)))
        if normalize:
            y = (y + offset) / (float(sum(not mask[b, k, j] for k in range(height))) + eps) * scale
            x = (x + offset) / (float(sum(not mask[b, i, k] for k in range(width))) + eps) * scale
        out[b, i, j, 0], out[b, i, j, 1] = y, x
    return out


IMAGES = images((4, 5), (2, 3), (1, 1), (4, 1), (0, 0))
NORMALISED: dict[str, dict[str, float]] = {
    "default": {},
    "mmdet": {"offset": -0.5, "eps": 1e-6},
    "unit": {"scale": 1.0, "eps": 0.5},
}


@pytest.mark.parametrize("options", NORMALISED.values(), ids=NORMALISED)
def test_positions_from_masks_of_images(options: dict[str, float]) -> None:
    plain = sinpe.positions.from_mask_2d(IMAGES)
    assert plain.dtype == torch.int64 and torch.equal(plain.double(), detr_loop(IMAGES, False, 0, 0, 0))
    full = {"scale": 2 * math.pi, "eps": 1e-6, "offset": 0.0, **options}
    coordinates = sinpe.positions.from_mask_2d(IMAGES, normalize=True, **options)
    assert coordinates.dtype == torch.float64 and torch.equal(coordinates, detr_loop(IMAGES, True, **full))
    assert torch.equal(sinpe.positions.from_mask_2d(IMAGES[1], normalize=True, **options), coordinates[1])
    count = (~IMAGES).cumsum(1, dtype=torch.float32)  # as in DETR, in float32
    y = (count + full["offset"]) / (count[:, -1:, :] + full["eps"]) * full["scale"]
    single = sinpe.positions.from_mask_2d(IMAGES, normalize=True, dtype=torch.float32, **options)
    assert single.dtype == torch.float32 and torch.equal(single[..., 0], y)
    for shape in ((2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 2, 3)):
        empty = torch.zeros(shape, dtype=torch.bool)
        for normalize in (False, True):
            positions = sinpe.positions.from_mask_2d(empty, normalize=normalize)
            assert positions.shape == (*empty.shape, 2) and positions.is_floating_point() == normalize


def test_detr(backend: str) -> None:
    features = 8  # per axis; as in DETR, in float64
    positions = sinpe.positions.from_mask_2d(IMAGES, normalize=True)
    i = torch.arange(features, dtype=torch.float64)
    angle = positions[..., None] / 10000 ** (2 * (i // 2) / features)
    pe = torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1).flatten(-2)
    want = torch.cat([pe[..., 0, :], pe[..., 1, :]], -1)
    encoded = sinpe.encode(positions, sinpe.convention("detr2d", 2 * features), dtype=torch.float64)
    assert torch.allclose(encoded, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("strict", [False, True])
def test_packed_positions_follow_the_total_in_a_graph(strict: bool) -> None:
    class Packed(torch.nn.Module):
        def forward(self, values: Tensor, ends: Tensor) -> Tensor:
            return sinpe.add(values, positions=sinpe.positions.packed(ends, values.shape[0]))

    sizes = {0: torch.export.Dim("total", min=2, max=1000)}, {0: torch.export.Dim("ends", min=2, max=100)}
    given = torch.randn(9, D), torch.tensor([0, 3, 9])
    program = torch.export.export(Packed(), given, dynamic_shapes=sizes, strict=strict).module()
    for lengths in ((3, 6), (4, 0, 7, 1)):
        values, ends = torch.randn(sum(lengths), D), torch.tensor([0, *lengths]).cumsum(0)
        assert torch.equal(program(values, ends), torch.cat([sinpe.add(part) for part in values.split(lengths)]))


def test_positions_under_compile_and_on_meta() -> None:
    mask, pixels = torch.tensor(list(MASKS.values())), IMAGES
    ids, past = torch.full(mask.shape, 9).masked_fill(mask, P), torch.arange(len(mask))
    calls: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
        "from_padding_mask": (sinpe.positions.from_padding_mask, (mask,)),
        "from_padding_idx": (lambda i, n: torch.stack(sinpe.positions.from_padding_idx(i, P, past=n)), (ids, past)),
        "from_mask_2d": (sinpe.positions.from_mask_2d, (pixels,)),
        "normalised": (lambda m: sinpe.positions.from_mask_2d(m, normalize=True, offset=-0.5), (pixels,)),
        "grid": (lambda m: sinpe.positions.grid(m.shape[1:], start=2, device=m.device), (pixels,)),
    }
    for name, (function, arguments) in calls.items():
        want = function(*arguments)
        for options in ({"backend": "eager"}, {"backend": "inductor"}, {"backend": "eager", "dynamic": True}):
            torch.compiler.reset()
            got = torch.compile(function, fullgraph=True, **options)(*arguments)
            assert got.dtype == want.dtype and torch.equal(got, want), (name, options)
        on_meta = function(*(argument.to("meta") for argument in arguments))
        assert on_meta.is_meta and on_meta.shape == want.shape and on_meta.dtype == want.dtype, name


MASK, IDS = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.int64)
at = sinpe.positions
ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "attention mask": (
        lambda: at.from_padding_mask(IDS),
        TypeError,
        "mask: expected bool.* torch.int64; pass attention_m",
    ),
    "mask rank": (lambda: at.from_padding_mask(MASK[None]), ValueError, r"mask: .*\(S,\) or \(B, S\), got \(1, 2, 3\)"),
    "mask list": (lambda: at.from_padding_mask([True]), TypeError, "mask: expected a torch.Tensor, got list"),
    "ids float": (lambda: at.from_padding_idx(IDS.float(), P), TypeError, "ids: expected integers.* torch.float32"),
    "ids bool": (lambda: at.from_padding_idx(MASK, P), TypeError, "ids: expected integers.* torch.bool"),
    "ids rank": (lambda: at.from_padding_idx(IDS[None], P), TypeError, r"ids: .*\(1, 2, 3\)"),
    "no padding_idx": (lambda: at.from_padding_idx(IDS, None), TypeError, "padding_idx: expected int, got NoneType"),
    "padding_idx": (lambda: at.from_padding_idx(IDS, -1), ValueError, "padding_idx: expected an int in 0"),
    "past": (lambda: at.from_padding_idx(IDS, P, past=-1), ValueError, "past: expected an int in 0"),
    "past float": (lambda: at.from_padding_idx(IDS, P, past=IDS[:, 0].float()), TypeError, "past: expected an int or"),
    "past shape": (lambda: at.from_padding_idx(IDS, P, past=IDS[0]), ValueError, r"past: .*\(\) or \(2,\).* \(3,\)"),
    "past of one": (lambda: at.from_padding_idx(IDS[0], P, past=IDS[0]), ValueError, r"past: expected shape \(\),"),
    "past device": (lambda: at.from_padding_idx(IDS, P, past=IDS[:, 0].to("meta")), RuntimeError, "past: .*device"),
    "grid int": (lambda: at.grid(4), TypeError, r"shape: expected a length for each axis, got 4; pass \(H, W\)"),
    "grid none": (lambda: at.grid(()), TypeError, "shape: expected a length for each axis"),
    "grid length": (lambda: at.grid((2, -1)), ValueError, "shape: expected an int in 0"),
    "grid start": (lambda: at.grid((2, 3), start=(1, 2, 3)), ValueError, "start: expected an int or 2 of them.* got 3"),
    "grid range": (lambda: at.grid((2, 3), start=2**63 - 1), ValueError, "start: .*within int64"),
    "image mask": (lambda: at.from_mask_2d(IDS), TypeError, "mask: expected bool"),
    "image rank": (lambda: at.from_mask_2d(MASK[0]), ValueError, r"mask: expected shape \(H, W\) or \(B, H, W\)"),
    "dtype": (
        lambda: at.from_mask_2d(MASK, dtype=torch.half),
        TypeError,
        "dtype: expected torch.float32 or torch.float64",
    ),
    "offset": (lambda: at.from_mask_2d(MASK, offset=-0.5), ValueError, "offset: expected 0 without normalize=True"),
    "scale": (lambda: at.from_mask_2d(MASK, normalize=True, scale="2"), TypeError, "scale: expected a float, got str"),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS)
def test_errors(case: Any) -> None:
    call, kind, message = case
    with pytest.raises(kind, match=message):
        call()
