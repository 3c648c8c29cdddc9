"""`sinpe_ext.positions`: positions of padded, packed and incremental batches, of grids and masks, against counting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import same
from strategies import spread
from strategies_calls import masks
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import positions as at

pytestmark = pytest.mark.filterwarnings("error")
DIM, P = 6, 1  # fairseq's padding_idx
ENCODINGS = (None, "paper", "fairseq", "ctranslate2", sinpe.Encoding(DIM, start=-3))
START = {"fairseq": 2, "ctranslate2": 1, ENCODINGS[-1]: -3}  # the others start at 0


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    length = draw(st.integers(0, 17))
    return draw(st.sampled_from(((length,), (draw(st.integers(0, 4)), length))))


def counted(padding: list[bool]) -> list[int]:
    positions, tokens = [], 0
    for is_padding in padding:
        positions.append(0 if is_padding else tokens)
        tokens += not is_padding
    return positions


def by_row(rows: Tensor, function: Any) -> Tensor:
    lists = rows.tolist() if rows.dim() == 2 else [rows.tolist()]
    return torch.tensor([function(row) for row in lists], dtype=torch.int64).reshape(rows.shape)


@given(st.data(), shapes(), st.sampled_from(ENCODINGS))
def test_from_padding_mask(data: st.DataObject, shape: tuple[int, ...], encoding: Any) -> None:
    mask = data.draw(masks(shape))
    got = at.from_padding_mask(mask, encoding)
    assert got.dtype == torch.int64 and torch.equal(got, by_row(mask, counted) + START.get(encoding, 0))
    if got.dim() == 2 and got.numel():  # each padded sequence equals the same sequence without padding
        x = torch.randn(*got.shape, DIM)
        y = sinpe.add(x, encoding, positions=got, padding_mask=mask)
        for sample in range(len(x)):
            real = ~mask[sample]
            assert same(y[sample][real], sinpe.add(x[sample][real], encoding))
            assert same(y[sample][~real], x[sample][~real])


@given(st.data(), shapes(), st.integers(0, 5), st.sampled_from((torch.int64, torch.int32, torch.uint8)))
def test_from_padding_idx(data: st.DataObject, shape: tuple[int, ...], idx: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    ids = torch.randint(6, shape, generator=generator).to(dtype)
    ids = data.draw(st.sampled_from((ids, spread(ids))))
    past: Any = data.draw(st.integers(0, 2**40))
    kind = data.draw(st.sampled_from(("none", "int", "0-d", "per sample")))
    each = [past] * (len(ids) if ids.dim() == 2 else 1)
    if kind == "per sample" and ids.dim() == 2:
        each = data.draw(st.lists(st.integers(0, 2**40), min_size=len(ids), max_size=len(ids)))
        past = torch.tensor(each, dtype=torch.int64)
    elif kind == "0-d":
        past = torch.tensor(past)
    arguments = {} if kind == "none" else {"past": past}
    each = [0] * len(each) if kind == "none" else each
    got, mask = at.from_padding_idx(ids, idx, **arguments)
    want = []
    for earlier, row in zip(each, ids.tolist() if ids.dim() == 2 else [ids.tolist()], strict=True):
        tokens = itertools.accumulate(int(token != idx) for token in row)
        want.append([idx if token == idx else idx + earlier + n for token, n in zip(row, tokens, strict=True)])
    assert got.dtype == torch.int64 and torch.equal(got, torch.tensor(want, dtype=torch.int64).reshape(shape))
    assert torch.equal(mask, ids == idx) and mask.dtype == torch.bool


@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(0, 6),
    st.sampled_from((torch.int32, torch.int64)),
    st.sampled_from(ENCODINGS),
)
def test_packed(lengths: list[int], more: int, dtype: torch.dtype, encoding: Any) -> None:
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)
    start = START.get(encoding, 0)
    want = [start + p for n in lengths for p in range(n)]
    assert at.packed(ends, encoding).tolist() == want
    total = len(want) + more
    assert at.packed(spread(ends), encoding, total=total).tolist() == want + list(range(start, start + more))
    x = torch.randn(len(want), DIM)
    y = sinpe.add(x, encoding, positions=at.packed(ends, encoding))
    for first, length in zip(ends.tolist(), lengths, strict=False):
        assert same(y[first : first + length], sinpe.add(x[first : first + length], encoding))


@given(st.integers(1, 300), st.integers(1, 40))
def test_relative(length: int, dim: int) -> None:
    got = at.relative(length)
    assert got.tolist() == list(range(length - 1, -length, -1)) and got.dtype == torch.int64
    assert same(sinpe.encode(got, dim).flip(0), sinpe.table(2 * length - 1, dim, start=1 - length))


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_grid(data: st.DataObject, lengths: list[int]) -> None:
    starts = data.draw(st.lists(st.integers(-(2**62), 2**62), min_size=len(lengths), max_size=len(lengths)))
    one = data.draw(st.booleans())
    starts = [starts[0]] * len(lengths) if one else starts
    grid = sinpe.GridEncoding(sinpe.Encoding(2, start=axis - 1) for axis in range(len(lengths)))
    got = at.grid(tuple(lengths), grid, start=starts[0] if one else starts)
    assert got.shape == (*lengths, len(lengths)) and got.dtype == torch.int64
    for place in itertools.product(*map(range, lengths)):
        assert got[place].tolist() == [axis - 1 + starts[axis] + p for axis, p in enumerate(place)]


@given(st.data(), st.booleans(), st.sampled_from((torch.float64, torch.float32)), st.sampled_from(("detr2d", "mae2d")))
def test_from_mask_2d(data: st.DataObject, normalize: bool, dtype: torch.dtype, encoding: str) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(0, 6), min_size=2, max_size=3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    mask = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.3, 0.0, 1.1)))
    arguments: dict[str, Any] = {}
    if normalize:
        arguments = {"normalize": True, "dtype": dtype, "scale": draw(st.sampled_from((6.283, 1.0, 100.0)))}
        arguments |= {"eps": draw(st.sampled_from((1e-6, 1.0))), "offset": draw(st.sampled_from((0.0, -0.5)))}
    got = at.from_mask_2d(mask, encoding, **arguments)
    pixels = (~mask).numpy().astype(np.int64)
    count = np.stack([pixels.cumsum(-2), pixels.cumsum(-1)], -1) - (encoding == "mae2d")
    if normalize:
        kind = np.float64 if dtype == torch.float64 else np.float32
        lasts = [count[..., -1:, :, 0] if shape[-2] else count[..., 0]]
        lasts.append(count[..., :, -1:, 1] if shape[-1] else count[..., 1])
        last = np.stack([np.broadcast_to(each, mask.shape) for each in lasts], -1)
        scale, eps, offset = (kind(arguments[name]) for name in ("scale", "eps", "offset"))
        with np.errstate(divide="ignore", invalid="ignore"):  # without pixels the last of mae2d is -1; eps may be 1
            want = (count.astype(kind) + offset) / (last.astype(kind) + eps) * scale
        assert got.dtype == dtype and same(got, torch.from_numpy(want))
    else:
        assert torch.equal(got, torch.from_numpy(count))


MASK = torch.tensor(
    [[character == "-" for character in row] for row in (".....", "...--", "--...", "-...-", ".-.-.", "-----")]
)


def test_many_tokens() -> None:
    """More than a 16-bit type holds."""
    assert torch.equal(at.from_padding_mask(torch.zeros(1, 70_000, dtype=torch.bool), None)[0], torch.arange(70_000))


@pytest.mark.parametrize("name", sinpe.conventions())
def test_a_name_starts_where_its_encodings_of_any_dim_start(name: str) -> None:
    for dim in (*range(1, 130), 320, 512, 768, 1024, 4096):
        try:
            encoding = sinpe.convention(name, dim)
        except ValueError:  # a dim that the convention does not support
            continue
        if isinstance(encoding, sinpe.GridEncoding):
            starts = [axis.start for axis in encoding.axes]
            for given in (name, encoding):
                assert at.grid((1,) * encoding.ndim, given).flatten().tolist() == starts
        else:
            for given in (name, encoding):
                assert at.from_padding_mask(torch.tensor([True, False]), given).tolist() == [encoding.start] * 2
                assert at.packed(torch.tensor([0, 1]), given).tolist() == [encoding.start]


def test_positions_of_padding_are_within_max_len(backend: str) -> None:
    """Padding has the first position, which a layer's max_len allows."""
    layer = sinpe.SinusoidalPositionalEncoding(DIM, 0.0, max_len=5, encoding="fairseq")
    x = torch.randn(*MASK.shape, DIM)
    y = layer(x, positions=at.from_padding_mask(MASK, layer.encoding), padding_mask=MASK)
    assert same(y[0], sinpe.add(x[0], "fairseq")) and same(y[2, 2:], sinpe.add(x[2, 2:], "fairseq"))


@pytest.mark.parametrize(("dim", "padding_idx"), [(10, 0), (10, 1), (11, 7)])
def test_fairseq(dim: int, padding_idx: int, backend: str) -> None:
    """Its table in float64, with zeros at padding_idx; without padding, the implicit positions of "fairseq"."""
    ids = torch.randint(8, 20, MASK.shape).masked_fill(MASK, padding_idx)
    positions, padding = at.from_padding_idx(ids, padding_idx)
    half, rows = dim // 2, padding_idx + 1 + ids.shape[1]
    w = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * w
    table = torch.cat([angle.sin(), angle.cos(), torch.zeros(rows, dim % 2, dtype=torch.float64)], 1)
    table[padding_idx] = 0
    weight = torch.randn(20, dim, dtype=torch.float64)
    encoded = sinpe.embed(ids, weight, "fairseq", positions=positions, padding_mask=padding)
    assert torch.allclose(encoded, weight[ids] + table[positions], rtol=0, atol=1e-13)
    if padding_idx == P:
        assert torch.equal(encoded[0], sinpe.embed(ids[0], weight, "fairseq"))
        skipped = at.from_padding_mask(padding, "fairseq")
        assert torch.equal(encoded, sinpe.embed(ids, weight, "fairseq", positions=skipped, padding_mask=padding))


def test_incremental_decoding_continues_positions() -> None:
    ids = torch.full(MASK.shape, 9).masked_fill(MASK, P)
    whole, _ = at.from_padding_idx(ids, P)
    for cut in range(6):
        past = (~MASK[:, :cut]).sum(1)
        for before in (past, past.int()):
            assert torch.equal(at.from_padding_idx(ids[:, cut:], P, past=before)[0], whole[:, cut:])
        for one in (cut, torch.tensor(cut)):
            assert torch.equal(at.from_padding_idx(ids[0, cut:], P, past=one)[0], whole[0, cut:])


def test_rows_of_a_grid_equal_its_table(backend: str) -> None:
    for name in ("mae2d", "detr2d"):
        rows = sinpe.encode(at.grid((2, 3), name, start=(1, 4)), name, dim=16)
        assert torch.equal(rows, sinpe.table((6, 7), name, dim=16)[1:3, 4:7])


IMAGES = torch.ones(5, 4, 5, dtype=torch.bool)  # padded to one size
for image, (height, width) in zip(IMAGES, ((4, 5), (2, 3), (1, 1), (4, 1), (0, 0)), strict=True):
    image[:height, :width] = False


def test_detr(backend: str) -> None:
    """As in DETR, in float64; without padding, the table of "detr2d"."""
    features = 8  # per axis
    positions = at.from_mask_2d(IMAGES, "detr2d", normalize=True)
    i = torch.arange(features, dtype=torch.float64)
    angle = positions[..., None] / 10000 ** (2 * (i // 2) / features)
    pe = torch.stack([angle[..., 0::2].sin(), angle[..., 1::2].cos()], -1).flatten(-2)
    want = torch.cat([pe[..., 0, :], pe[..., 1, :]], -1)
    grid = sinpe.convention("detr2d", 2 * features)
    assert torch.allclose(sinpe.encode(positions, grid, dtype=torch.float64), want, rtol=0, atol=1e-13)
    for name in ("detr2d", "mae2d"):
        rows = sinpe.encode(at.from_mask_2d(IMAGES, name), name, dim=8)
        assert torch.equal(rows[0], sinpe.table((4, 5), name, dim=8))
        assert torch.equal(rows[1, :2, :3], sinpe.table((2, 3), name, dim=8))


@pytest.mark.filterwarnings("default")
def test_packed_positions_follow_the_total_in_a_graph() -> None:
    class Packed(torch.nn.Module):
        def forward(self, values: Tensor, ends: Tensor) -> Tensor:
            return sinpe.add(values, positions=at.packed(ends, None, total=values.shape[0]))

    sizes = {0: torch.export.Dim("total", min=2, max=1000)}, {0: torch.export.Dim("ends", min=2, max=100)}
    given = torch.randn(9, DIM), torch.tensor([0, 3, 9])
    program = torch.export.export(Packed(), given, dynamic_shapes=sizes).module()
    values, ends = torch.randn(12, DIM), torch.tensor([0, 4, 4, 11, 12])
    assert torch.equal(program(values, ends), torch.cat([sinpe.add(part) for part in values.split((4, 7, 1))]))


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("strict", [False, True])
def test_padding_with_the_encoding_of_a_layer_in_a_graph(strict: bool) -> None:
    class Padded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = sinpe.SinusoidalPositionalEncoding(DIM, 0.0, encoding="fairseq")

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            positions = at.from_padding_mask(mask, self.layer.encoding)
            return self.layer(x, positions=positions, padding_mask=mask)  # type: ignore[no-any-return]

    length = {1: torch.export.Dim("length", min=2, max=1000)}
    given = torch.randn(2, MASK.shape[1], DIM), MASK[:2]
    program = torch.export.export(Padded(), given, dynamic_shapes=(length, length), strict=strict).module()
    x, mask = torch.randn(2, 9, DIM), torch.arange(9) < torch.tensor([[4], [0]])
    want = torch.stack([torch.cat([x[0, :4], sinpe.add(x[0, 4:], "fairseq")]), sinpe.add(x[1], "fairseq")])
    assert torch.equal(program(x, mask), want)


CALLS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "packed": (lambda ends: at.packed(ends, "fairseq", total=5), (torch.tensor([0, 3, 5]),)),
    "from_padding_mask": (lambda mask: at.from_padding_mask(mask, "fairseq"), (MASK,)),
    "from_padding_mask, Encoding": (lambda mask: at.from_padding_mask(mask, ENCODINGS[-1]), (MASK,)),  # type: ignore[arg-type]
    "from_padding_idx": (
        lambda ids, past: torch.stack(at.from_padding_idx(ids, P, past=past)),
        (torch.full(MASK.shape, 9).masked_fill(MASK, P), torch.arange(len(MASK))),
    ),
    "from_mask_2d": (lambda m: at.from_mask_2d(m, "detr2d"), (IMAGES,)),
    "normalized": (lambda m: at.from_mask_2d(m, "detr2d", normalize=True, offset=-0.5), (IMAGES,)),
    "grid": (lambda m: at.grid(m.shape[1:], "detr2d", start=2, device=m.device), (IMAGES,)),
    "relative": (lambda m: at.relative(m.shape[1], device=m.device), (IMAGES,)),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CALLS)
def test_graphs_and_meta(name: str, reset_dynamo: None) -> None:
    function, arguments = CALLS[name]
    want = function(*arguments)
    got = torch.compile(function, fullgraph=True, backend="eager", dynamic=True)(*arguments)
    assert got.dtype == want.dtype and torch.equal(got, want)
    on_meta = function(*(argument.to("meta") for argument in arguments))
    assert on_meta.is_meta and on_meta.shape == want.shape and on_meta.dtype == want.dtype


IDS, NONE = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool)
T, V = TypeError, ValueError
D, G, LAST = sinpe.Encoding(DIM), "detr2d", sinpe.Encoding(DIM, start=2**63 - 2)
ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: at.packed(torch.tensor([], dtype=torch.int64), D), T, "cu_seqlens: expected int32 or int64"),
    (lambda: at.packed(torch.tensor([1, 2]), D), V, "cu_seqlens: expected values that begin with 0"),
    (lambda: at.packed(torch.tensor([0, 3, 2]), D), V, "cu_seqlens: expected values that .*do not decrease"),
    (lambda: at.packed(torch.tensor([0, 3]), D, total=2), V, "total: expected 3 or more"),
    (lambda: at.relative(0), V, "length: expected an int in 1"),
    (lambda: at.from_padding_mask(IDS, D), T, "mask: expected bool.* torch.int64; pass attention_m"),
    (lambda: at.from_padding_mask(NONE[None], D), V, r"mask: .*\(S,\) or \(B, S\), got \(1, 2, 3\)"),
    (lambda: at.from_padding_idx(IDS.float(), P), T, "ids: expected integers.* torch.float32"),
    (lambda: at.from_padding_idx(IDS[None], P), T, r"ids: .*\(1, 2, 3\)"),
    (lambda: at.from_padding_idx(IDS, -1), V, "padding_idx: expected an int in 0"),
    (lambda: at.from_padding_idx(IDS, P, past=-1), V, "past: expected an int in 0"),
    (lambda: at.from_padding_idx(IDS, P, past=IDS[0]), V, r"past: .*\(\) or \(2,\).* \(3,\)"),
    (lambda: at.from_padding_idx(IDS[0], P, past=IDS[0]), V, r"past: expected shape \(\),"),
    (lambda: at.from_padding_idx(IDS, P, past=IDS[:, 0].to("meta")), RuntimeError, "past: .*device"),
    (lambda: at.grid(4, G), T, r"shape: expected a length for each axis, got 4; pass \(H, W\)"),
    (lambda: at.grid((2, -1), G), V, "shape: expected an int in 0"),
    (lambda: at.grid((2, 3), G, start=(1, 2, 3)), V, "start: expected an int or 2 of them.* got 3"),
    (lambda: at.grid((2, 3), G, start=2**63 - 1), V, "start: .*within int64"),
    (lambda: at.from_mask_2d(IDS, G), T, "mask: expected bool"),
    (lambda: at.from_mask_2d(NONE[0], G), V, r"mask: expected shape \(H, W\) or \(B, H, W\)"),
    (lambda: at.from_mask_2d(NONE, G, dtype=torch.half), T, "dtype: expected torch.float32 or torch.float64"),
    (lambda: at.from_mask_2d(NONE, G, offset=-0.5), V, "offset: expected 0 without normalize=True"),
    (lambda: at.from_padding_mask(NONE), T, "missing .* 'encoding'"),  # type: ignore[call-arg]
    (lambda: at.from_padding_mask(NONE, G), V, "encoding: expected one with 1 axes.*got 2"),
    (lambda: at.from_padding_mask(NONE, "fairsec"), V, 'encoding: .* "fairsec"'),
    (lambda: at.from_padding_mask(NONE, 2), T, "encoding: expected an Encoding.* got .*2"),  # type: ignore[arg-type]
    (lambda: at.from_padding_mask(NONE, NONE), T, "encoding: expected an Encoding.* layer.encoding"),  # type: ignore[arg-type]
    (lambda: at.from_padding_mask(NONE, LAST), V, "every position .*within int64"),
    (lambda: at.packed(torch.tensor([0, 3]), LAST), V, "every position .*within int64"),
    (lambda: at.packed(torch.tensor([0, 3]), G), V, "encoding: expected one with 1 axes.*got 2"),
    (lambda: at.grid((2, 3), "cogvideo3d"), V, "encoding: expected one with 2 axes.*got 3"),
    (lambda: at.from_mask_2d(NONE, "paper"), V, "encoding: expected one with 2 axes.*got 1"),
]


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case[2])
def test_errors(case: Any) -> None:
    call, kind, message = case
    with pytest.raises(kind, match=message):
        call()
