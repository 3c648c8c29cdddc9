"""What a grid has beyond a sequence: `table` and `encode` against each place computed separately, and corners.

test_fuzz.py has the other arguments, forms of x and gradients.
"""

from __future__ import annotations

from collections.abc import Callable
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
B, GRID = 2, sinpe.convention("mae2d", 8)


@pytest.mark.parametrize("name", EXAMPLES)
def test_table_and_encode(backend: str, name: str) -> None:
    grid, lengths = EXAMPLES[name], lengths_of(EXAMPLES[name])
    places, starts = positions_of(grid, lengths), (5, -3, 2**40, 7)[: grid.ndim]
    for dtype in DTYPES:
        pe = truth(grid, lengths, dtype=dtype)
        assert torch.equal(sinpe.table(lengths, grid, dtype=dtype), pe)
        assert torch.equal(sinpe.table(list(lengths), grid, dtype=dtype, flatten=True), pe.flatten(0, -2))
        tokens = torch.cat([torch.zeros(2, grid.dim, dtype=dtype), pe.flatten(0, -2)])
        out = torch.full((*tokens.shape, 2), torch.nan, dtype=dtype)[..., 1]
        assert torch.equal(sinpe.table(lengths, grid, out=out, extra_tokens=2), tokens)
        assert torch.equal(sinpe.encode(places, grid, dtype=dtype), pe)
        assert torch.equal(sinpe.encode(places.int().flatten(0, -2), grid, dtype=dtype), pe.flatten(0, -2))
    assert torch.equal(sinpe.table(lengths, grid, start=starts), truth(grid, lengths, starts))
    assert torch.equal(torch.from_numpy(sinpe.numpy.table(lengths, grid, start=starts)), truth(grid, lengths, starts))
    assert torch.equal(torch.from_numpy(sinpe.numpy.encode(places.numpy(), grid)), truth(grid, lengths))
    bad = places.double() + 0.5
    bad[(-1,) * grid.ndim] = float("nan")
    got = sinpe.encode(bad, grid, dtype=torch.float64)
    for group in grid.channel_groups:
        rows = sinpe.encode(bad[..., group.axis], group.encoding, dtype=torch.float64)
        assert torch.equal(
            got.nan_to_num(9)[..., group.first :: group.step][..., : group.encoding.dim], rows.nan_to_num(9)
        )


def test_rows_of_axes_are_cached(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached row is not scaled by the alpha of another call, and large grids compute their rows in each call."""
    for name in ("mae2d", "timm2d", "uneven, zeros", "four axes"):
        grid = EXAMPLES[name]
        x = torch.randn(B, *lengths_of(grid), grid.dim, dtype=torch.float64)
        calls: list[dict[str, Any]] = [{"alpha": 0.5}, {}, {"alpha": torch.tensor(-2.0)}, {}, {"start": 3}, {}]
        cached = [sinpe.add(x, grid, **call) for call in calls]
        with monkeypatch.context() as patch:
            patch.setattr(grid_rows, "MAX_CACHED", 0)
            for got, call in zip(cached, calls, strict=True):
                assert torch.equal(got, sinpe.add(x, grid, **call))


LARGE: dict[str, Callable[[Tensor], Tensor]] = {  # of (2, C, H, W): shape and memory
    "channels first": lambda x: x,
    "channels last": lambda x: x.movedim(1, -1).contiguous(),
    "channels last over channels first": lambda x: x.movedim(1, -1),
    "channels first over channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "channels first over batches": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first, rows apart": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


@pytest.mark.parametrize("how", LARGE)
def test_large_grids_do_not_depend_on_threads_or_backend(how: str) -> None:
    """More points than a tile holds, of which the dropout mask has an order of its own."""
    x = LARGE[how](torch.randn(2, 6, 130, 140))
    at = 1 if x.shape[1] == 6 else -1
    arguments: dict[str, Any] = {"channel_dim": at, "dropout": 0.2, "seed": 3, "alpha": 0.7}
    grid, threads, results = GridEncoding((Encoding(4), Encoding(3, odd="pad")), dim=6), torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results += [sinpe.add(x, grid, **arguments), sinpe.add_(x.clone(), grid, **arguments)]
    finally:
        torch.set_num_threads(threads)
    with sinpe.use_backend("eager"):
        results.append(sinpe.add(x, grid, **arguments))
    assert all(torch.equal(result, results[0]) for result in results)


# --------------------------------------------------------------------------------------------------------- corners


@pytest.mark.parametrize("dim", range(1, 9))
def test_dim_that_cuts_side_by_side_halves(backend: str, dim: int) -> None:
    for layout in ("sin_cos", "cos_sin"):
        axes = (Encoding(4, layout=layout), Encoding(4, layout=layout, base=50))
        grid = GridEncoding(axes, arrangement="interleaved", dim=dim)
        rows = [sinpe.table(3, axis) for axis in axes]
        pe = torch.stack([rows[0][:, None].expand(3, 3, 4), rows[1][None].expand(3, 3, 4)], -1).flatten(-2)[..., :dim]
        x, places = torch.randn(2, 3, 3, dim), torch.randn(3, 6, 2)
        assert torch.equal(sinpe.table((3, 3), grid), pe) and torch.equal(sinpe.add(x, grid), x + pe)
        assert torch.equal(torch.func.vmap(lambda p: sinpe.encode(p, grid))(places), sinpe.encode(places, grid))  # noqa: B023


@pytest.mark.parametrize("arrangement, odd, dim", [("blocks", "round", 5), ("blocks", "truncate", 5),
                         ("blocks", "pad", 5), ("blocks", "round", 6), ("grouped", "round", 6)])  # fmt: skip
def test_dim_that_cuts_an_axis_with_frequencies_of_each_channel(arrangement: Any, odd: Any, dim: int) -> None:
    """With an odd dim that drops a sine, the list of frequencies (sin 0, cos 0, sin 1, ...) has no entry for it."""
    given = tuple(0.1 * k for k in range(1, dim + 1 - (odd == "pad")))
    axis = Encoding(dim, layout="cos_sin", odd=odd, cos_frequency="own", frequencies=given)
    rows = sinpe.table(6, axis)
    for kept in range(1, dim + 1):
        assert torch.equal(sinpe.table((6,), GridEncoding((axis,), arrangement=arrangement, dim=kept)), rows[:, :kept])


@pytest.mark.parametrize("arrangement", ["blocks", "interleaved"])
@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_zero_channels_have_the_sign_of_alpha(backend: str, channel_dim: int, arrangement: Any) -> None:
    """alpha * 0 is added as in other channels, on each path: one pass, with gradients, with positions."""
    grid = GridEncoding((Encoding(4), Encoding(4)), arrangement=arrangement, dim=11)
    places = sinpe.positions.grid((3, 3), grid).expand(2, 3, 3, 2)
    for alpha, zero in ((-1.0, 0.0), (-1.0, -0.0), (1.0, 0.0), (1.0, -0.0)):
        x = torch.full((2, 11, 3, 3) if channel_dim == 1 else (2, 3, 3, 11), zero)
        given: dict[str, Any] = {"alpha": alpha, "channel_dim": channel_dim}
        ways = [sinpe.add(x, grid, **given), sinpe.add(x, grid, positions=places, **given)]
        ways.append(sinpe.add(x.clone().requires_grad_(), grid, **given).detach())
        for way in ways:
            zeros = way.movedim(channel_dim, -1)[..., 8:]
            assert bool((zeros == 0).all()) and bool((zeros.signbit() == (alpha < 0 and str(zero) == "-0.0")).all())


def test_a_grid_of_one_axis_is_a_sequence(backend: str) -> None:
    x, first, one = torch.randn(5, 3, 8), torch.randn(2, 8, 5), GridEncoding((Encoding(8),))
    for seq_dim in (0, 1, -2):
        assert torch.equal(sinpe.add(x, one, seq_dim=seq_dim), sinpe.add(x, Encoding(8), seq_dim=seq_dim))
    assert torch.equal(sinpe.add(first, one, channel_dim=1), sinpe.add(first, seq_dim=2, channel_dim=1))


def test_starts_beyond_int64_are_refused(backend: str) -> None:
    x = torch.zeros(2, 3, 4, 8)
    for start in (
        torch.full((1, 2), 2**63 - 2),
        torch.tensor(2**63 - 3),
        torch.tensor([[0, 0], [0, 2**63 - 3]]),
        (0, 2**63 - 3),
    ):
        with pytest.raises(ValueError, match="start: expected every position"):
            sinpe.add(x, GRID, start=start)
    assert sinpe.add(x, GRID, start=(2**63 - 3, 2**63 - 4)).isfinite().all()


@pytest.mark.parametrize(("height", "width"), [(3, 4), (1, 8), (8, 1)])
def test_padding_mask_and_coordinates_of_a_flat_grid(height: int, width: int, backend: str) -> None:
    x, mask = torch.randn(2, height * width, 8), torch.rand(2, height, width) < 0.5
    want = sinpe.add(x, GRID, grid_shape=(height, width), padding_mask=mask.flatten(1))
    assert torch.equal(want[mask.flatten(1)], x[mask.flatten(1)]) and not torch.equal(want, x)
    assert torch.equal(sinpe.add(x, GRID, grid_shape=(height, width), padding_mask=mask), want)
    places = sinpe.positions.grid((height, width), GRID).flatten(0, 1)
    assert torch.equal(sinpe.add(x, GRID, positions=places, padding_mask=mask.flatten(1)), want)
    more = torch.randn(2, 3, height * width, 8)  # several batch dimensions
    assert torch.equal(sinpe.add(more, GRID, positions=places), more + sinpe.encode(places, GRID))


def test_plot_of_a_grid_says_what_to_pass() -> None:
    pytest.importorskip("matplotlib")
    for draw in (sinpe.plot.heatmap, sinpe.plot.curves):
        for table in (GRID, "mae2d"):
            with pytest.raises(TypeError, match=r"sinpe_ext.table\(\(H, W\), grid, flatten=True\)"):
                draw(table)
