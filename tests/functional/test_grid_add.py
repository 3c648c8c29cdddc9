"""`table`, `encode` and `add` of grids against each place computed separately, for each form of x."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from grids import EXAMPLES, lengths_of, positions_of, truth
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding
from sinpe_ext.operations import grid_rows

pytestmark = pytest.mark.emulated

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FORMULA = {"scale": 2.0, "alpha": 0.5}
B = 2


def accumulation(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def expected(x: Tensor, pe: Tensor, scale: float = 2.0, alpha: float = 0.5) -> Tensor:
    acc = accumulation(x.dtype)
    return (x.to(acc) * scale + pe.to(acc) * alpha).to(x.dtype)


def nan_like(x: Tensor) -> Tensor:
    return torch.full_like(x, float("nan"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_table(backend: str, name: str) -> None:
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    for dtype in DTYPES:
        pe = truth(grid, lengths, dtype=dtype)
        assert torch.equal(sinpe.table(lengths, grid, dtype=dtype), pe)
        assert torch.equal(sinpe.table(lengths, grid, dtype=dtype, flatten=True), pe.flatten(0, -2))
        with_tokens = sinpe.table(lengths, grid, dtype=dtype, extra_tokens=2)
        assert torch.equal(with_tokens, torch.cat([torch.zeros(2, grid.dim, dtype=dtype), pe.flatten(0, -2)]))
        out = nan_like(pe)
        assert sinpe.table(list(lengths), grid, out=out) is out and torch.equal(out, pe)
        strided = nan_like(torch.stack([pe, pe], -1))[..., 1]
        assert torch.equal(sinpe.table(lengths, grid, out=strided), pe)
        flat = nan_like(with_tokens)
        assert torch.equal(sinpe.table(lengths, grid, out=flat, extra_tokens=2), with_tokens)
    starts = (5, -3, 2**40, 7)[: grid.ndim]
    assert torch.equal(sinpe.table(lengths, grid, start=starts), truth(grid, lengths, starts))
    assert torch.equal(sinpe.table(lengths, grid, start=3), truth(grid, lengths, [3] * grid.ndim))
    assert sinpe.table((0, *lengths[1:]), grid).shape == (0, *lengths[1:], grid.dim)


@pytest.mark.parametrize("name", EXAMPLES)
def test_encode(backend: str, name: str) -> None:
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    places = positions_of(grid, lengths)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        pe = truth(grid, lengths, dtype=dtype)
        assert torch.equal(sinpe.encode(places, grid, dtype=dtype), pe)
        assert torch.equal(sinpe.encode(places.int().flatten(0, -2), grid, dtype=dtype), pe.flatten(0, -2))
        assert torch.equal(sinpe.encode(places[(0,) * grid.ndim], grid, dtype=dtype), pe[(0,) * grid.ndim])
    assert sinpe.encode(torch.zeros(0, 3, grid.ndim), grid).shape == (0, 3, grid.dim)
    half = sinpe.encode(places + 0.5, grid, dtype=torch.float64)
    for group in grid.channel_groups:
        rows = sinpe.encode(places[..., group.axis] + 0.5, group.encoding, dtype=torch.float64)
        assert torch.equal(half[..., group.first :: group.step][..., : group.encoding.dim], rows)
    bad = places.double()
    bad[(-1,) * grid.ndim] = float("nan")
    marked = sinpe.encode(bad, grid).isnan()
    fed = sum(group.encoding.dim - (group.encoding == Encoding(5, odd="pad")) for group in grid.channel_groups)
    assert int(marked.sum()) == fed and int(marked[(-1,) * grid.ndim].sum()) == fed


@pytest.mark.parametrize("name", EXAMPLES)
def test_numpy(name: str) -> None:
    pytest.importorskip("numpy")
    grid = EXAMPLES[name]
    lengths, starts = lengths_of(grid), (5, -3, 2**40, 7)[: grid.ndim]
    pe = truth(grid, lengths)
    assert torch.equal(torch.from_numpy(sinpe.numpy.table(lengths, grid)), pe)
    assert torch.equal(torch.from_numpy(sinpe.numpy.encode(positions_of(grid, lengths).numpy(), grid)), pe)
    out = torch.full_like(truth(grid, lengths, starts), float("nan")).numpy()
    assert sinpe.numpy.table(lengths, grid, start=starts, out=out) is out
    assert torch.equal(torch.from_numpy(out), truth(grid, lengths, starts))


def forms(x: Tensor, grid: GridEncoding) -> dict[str, tuple[Tensor, dict[str, Any], Any]]:
    """x of shape (B, *lengths, C) in other forms: (tensor, arguments, inverse)."""
    lengths, n = tuple(x.shape[1:-1]), grid.ndim
    back = lambda t: t.unflatten(1, lengths)  # noqa: E731
    tokens = torch.cat([torch.ones(B, 3, grid.dim, dtype=x.dtype), x.flatten(1, n)], 1)
    gaps = torch.empty(B, *lengths[:-1], 2 * lengths[-1], grid.dim, dtype=x.dtype)[..., ::2, :].copy_(x)
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    first = x.movedim(-1, 1)
    return {
        "as dimensions": (x, {}, lambda t: t),
        "with its shape": (x, {"grid_shape": lengths}, lambda t: t),
        "rows apart": (gaps, {}, lambda t: t),
        "batch innermost": (turned, {}, lambda t: t),
        "more batches": (x[:, None], {}, lambda t: t[:, 0]),
        "flat": (x.flatten(1, n), {"grid_shape": lengths}, back),
        "flat, more batches": (x.flatten(1, n)[:, None], {"grid_shape": list(lengths)}, lambda t: back(t[:, 0])),
        "extra tokens": (tokens, {"grid_shape": lengths, "extra_tokens": 3}, lambda t: back(t[:, 3:])),
        "channels first": (first.contiguous(), {"channel_dim": 1}, lambda t: t.movedim(1, -1)),
        "channels first, a view": (first, {"channel_dim": 1}, lambda t: t.movedim(1, -1)),
        "channels first, flat": (
            first.flatten(2).contiguous(),
            {"channel_dim": 1, "seq_dim": 2, "grid_shape": lengths},
            lambda t: back(t.movedim(1, -1)),
        ),
        "sequence first": (
            x.flatten(1, n).transpose(0, 1).contiguous(),
            {"seq_dim": 0, "grid_shape": lengths},
            lambda t: back(t.transpose(0, 1)),
        ),
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_rows_of_axes_are_cached(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached row is not scaled by the alpha of another call, and large grids compute their rows in each call."""
    grid = EXAMPLES[name]
    x = torch.randn(B, *lengths_of(grid), grid.dim, dtype=torch.float64)
    calls: list[dict[str, Any]] = [{"alpha": 0.5}, {}, {"alpha": torch.tensor(-2.0)}, {}, {"start": 3}, {}]
    cached = [sinpe.add(x, grid, **call) for call in calls]
    monkeypatch.setattr(grid_rows, "MAX_CACHED", 0)
    for got, call in zip(cached, calls, strict=True):
        assert torch.equal(got, sinpe.add(x, grid, **call))


FORM_NAMES = list(forms(torch.zeros(B, 3, 4, 8), sinpe.convention("mae2d", 8)))


@pytest.mark.sampled("values")
@pytest.mark.parametrize("form", FORM_NAMES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_add(backend: str, name: str, form: str) -> None:
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    for dtype in DTYPES:
        x = torch.randn(B, *lengths, grid.dim, dtype=dtype)
        given, arguments, back = forms(x, grid)[form]
        want = expected(x, truth(grid, lengths, dtype=accumulation(dtype)))
        got = sinpe.add(given, grid, **arguments, **FORMULA)
        assert got.shape == given.shape and got.dtype == dtype and torch.equal(back(got), want)
        out = nan_like(given)
        assert sinpe.add(given, grid, **arguments, **FORMULA, out=out) is out and torch.equal(out, got)
        strided = nan_like(torch.stack([given, given], -1))[..., 0]
        assert torch.equal(sinpe.add(given, grid, **arguments, **FORMULA, out=strided), got)
        target = given.clone()
        assert sinpe.add_(target, grid, **arguments, **FORMULA) is target and torch.equal(target, got)
        if "extra_tokens" in arguments:
            assert torch.equal(got[:, :3], given[:, :3] * 2)
        # The mask depends on the seed and on the element's index in the given tensor.
        dropped = sinpe.add(given, grid, **arguments, **FORMULA, dropout=0.3, seed=5)
        ones = torch.ones(given.shape, dtype=dtype)
        kept = sinpe.add(ones, Encoding(given.shape[-1], amplitude=0), dropout=0.3, seed=5) != 0
        seen = got != 0  # in 16 bits, a sum may round to 0 but not its scaled value
        assert torch.equal(dropped[seen] != 0, kept[seen]) and not dropped[~kept].any()
        scale = 65536 / (65536 - round(0.3 * 65536))
        acc = accumulation(dtype)
        if acc == dtype:
            assert torch.equal(dropped, torch.where(kept, got * torch.tensor(scale, dtype=acc), 0.0))


@pytest.mark.parametrize("name", ["mae2d", "timm2d", "t2t2d zeros", "cogvideo3d", "nerf", "one axis"])
def test_positions_and_starts_equal_implicit_coordinates(backend: str, name: str) -> None:
    """Explicit positions and starts of each sample equal the same implicit coordinates."""
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    places, n = positions_of(grid, lengths), grid.ndim
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(B, *lengths, grid.dim, dtype=dtype)
        options = {**FORMULA, "dropout": 0.25, "seed": 9}
        want = sinpe.add(x, grid, **options)
        each = places.expand(B, *places.shape)
        for positions in (places, places.double(), places.float(), each, places[None], each.contiguous().int()):
            assert torch.equal(sinpe.add(x, grid, positions=positions, **options), want)
        flat = x.flatten(1, n)
        for positions in (places.flatten(0, -2), each.flatten(1, -2)):
            assert torch.equal(sinpe.add(flat, grid, positions=positions, **options).view_as(x), want)
            lengths_given = sinpe.add(flat, grid, positions=positions, grid_shape=lengths, **options)
            assert torch.equal(lengths_given.view_as(x), want)
        first = x.movedim(-1, 1).contiguous()
        assert torch.equal(
            sinpe.add(first, grid, channel_dim=1, positions=each, **FORMULA).movedim(1, -1),
            sinpe.add(x, grid, **FORMULA),
        )
        starts = torch.tensor([[1, 20, 3, 9], [5, 0, -9, 2]])[:, :n]
        moved = sinpe.add(x, grid, start=starts)
        for sample in range(B):
            pe = truth(grid, lengths, starts[sample].tolist(), accumulation(dtype))
            assert torch.equal(moved[sample], expected(x[sample], pe, 1.0, 1.0))
            one = x[sample : sample + 1]
            for start in (starts[sample], tuple(starts[sample].tolist()), starts[sample : sample + 1]):
                assert torch.equal(sinpe.add(one, grid, start=start), moved[sample : sample + 1])
        assert torch.equal(sinpe.add(x, grid, start=torch.tensor(4)), sinpe.add(x, grid, start=4))


@pytest.mark.parametrize("channel_dim", [-1, 1])
@pytest.mark.parametrize("name", ["mae2d", "multidim2d cut", "monai3d"])
def test_padding(backend: str, name: str, channel_dim: int) -> None:
    grid = EXAMPLES[name]
    lengths = lengths_of(grid)
    x = torch.randn(B, *lengths, grid.dim).movedim(-1, channel_dim).contiguous()
    masks = torch.rand(B, *lengths) < 0.4
    for mask in (masks, masks[0], masks[:1]):
        for more in ({}, {"positions": positions_of(grid, lengths)}):
            got = sinpe.add(x, grid, channel_dim=channel_dim, padding_mask=mask, **FORMULA, **more)
            full = sinpe.add(x, grid, channel_dim=channel_dim, **FORMULA)
            here = mask.expand(B, *lengths).unsqueeze(-1).movedim(-1, channel_dim)
            assert torch.equal(got, torch.where(here, x * 2, full))


def test_extra_tokens_of_a_sequence(backend: str) -> None:
    """With a class token before a sequence, positions count from the token after it."""
    encoding = sinpe.convention("fairseq", 10)
    x = torch.randn(B, 2 + 5, 10)
    rows = sinpe.table(5, encoding)
    want = torch.cat([x[:, :2], x[:, 2:] + rows], 1)
    assert torch.equal(sinpe.add(x, encoding, extra_tokens=2), want)
    assert torch.equal(sinpe.add(x[0], "fairseq", extra_tokens=2), want[0])
    positions = torch.arange(5) + 2
    for given in (positions, positions.expand(B, 5)):
        assert torch.equal(sinpe.add(x, encoding, extra_tokens=2, positions=given), want)
    starts = torch.tensor([3, 8])
    moved = sinpe.add(x, encoding, extra_tokens=2, start=starts)
    assert torch.equal(moved[:, 2:], sinpe.add(x[:, 2:].contiguous(), encoding, start=starts))
    mask = torch.rand(B, 5) < 0.5
    assert torch.equal(
        sinpe.add(x, encoding, extra_tokens=2, padding_mask=mask)[:, 2:],
        sinpe.add(x[:, 2:].contiguous(), encoding, padding_mask=mask),
    )
    assert torch.equal(sinpe.add(x, encoding, extra_tokens=7), x)
    assert torch.equal(sinpe.table(5, encoding, extra_tokens=2), torch.cat([torch.zeros(2, 10), rows]))


def test_empty(backend: str) -> None:
    grid = EXAMPLES["mae2d"]
    for shape in ((0, 3, 4, 48), (2, 0, 4, 48), (2, 3, 0, 48)):
        assert sinpe.add(torch.zeros(shape), grid, dropout=0.5).shape == shape
    x = torch.randn(2, 1, 48)
    assert torch.equal(sinpe.add(x, grid, grid_shape=(0, 5), extra_tokens=1), x)


@pytest.mark.parametrize("angle", ["float32_exp", "float32_pow"])
def test_float32_angles(backend: str, angle: str) -> None:
    grid = sinpe.convention("mae2d", 16, angle=angle)
    pe = truth(grid, (3, 4))
    x = torch.randn(B, 3, 4, 16)
    assert torch.equal(sinpe.table((3, 4), grid), pe)
    assert torch.equal(sinpe.add(x, grid), x + pe)
    assert torch.equal(sinpe.add(x, grid, positions=positions_of(grid, (3, 4))), x + pe)
    assert torch.equal(sinpe.add(x.movedim(-1, 1).contiguous(), grid, channel_dim=1).movedim(1, -1), x + pe)


def test_result_does_not_depend_on_backend_or_threads() -> None:
    grid = sinpe.convention("cogvideo3d", 96)
    x = torch.randn(3, 5, 17, 19, 96)
    options = {"dropout": 0.2, "seed": 3, "alpha": 0.7}
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(sinpe.add(x, grid, **options))
    finally:
        torch.set_num_threads(threads)
    with sinpe.use_backend("eager"):
        results.append(sinpe.add(x, grid, **options))
    assert all(torch.equal(result, results[0]) for result in results)
