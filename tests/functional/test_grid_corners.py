"""Combinations of grid options: odd dims, zero channels, start overflow, extra tokens, vmap, masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from grids import truth

import sinpe_ext as sinpe
from sinpe_ext import Encoding, GridEncoding

GRID = sinpe.convention("mae2d", 8)


@pytest.mark.parametrize("layout", ["sin_cos", "cos_sin"])
@pytest.mark.parametrize("dim", range(1, 9))
def test_odd_dim_of_side_by_side_halves(backend: str, layout: str, dim: int) -> None:
    axes = (Encoding(4, layout=layout), Encoding(4, layout=layout, base=50))
    grid = GridEncoding(axes, arrangement="interleaved", dim=dim)
    rows = [sinpe.table(3, axis) for axis in axes]
    whole = torch.stack([rows[0][:, None].expand(3, 3, 4), rows[1][None].expand(3, 3, 4)], -1).flatten(-2)
    assert torch.equal(sinpe.table((3, 3), grid), whole[..., :dim])
    x = torch.randn(2, 3, 3, dim)
    assert torch.equal(sinpe.add(x, grid), x + whole[..., :dim])


@pytest.mark.parametrize(
    "arrangement, odd, dim",
    [
        ("blocks", "round", 5),
        ("blocks", "truncate", 5),
        ("blocks", "pad", 5),
        ("blocks", "round", 6),
        ("grouped", "round", 6),
    ],
)
def test_odd_dim_with_frequencies_of_each_channel(arrangement: str, odd: str, dim: int, backend: str) -> None:
    """With an odd dim that drops a sine, the list of frequencies (sin 0, cos 0, sin 1, ...) has no entry for it."""
    given = tuple(0.1 * k for k in range(1, dim + 1 - (odd == "pad")))
    axis = Encoding(dim, layout="cos_sin", odd=odd, cos_frequency="own", frequencies=given)
    rows = sinpe.table(6, axis)
    for kept in range(1, dim + 1):
        assert torch.equal(sinpe.table((6,), GridEncoding((axis,), arrangement=arrangement, dim=kept)), rows[:, :kept])


@pytest.mark.parametrize("arrangement", ["blocks", "interleaved"])
@pytest.mark.parametrize("channel_dim", [-1, 1])
def test_zero_channels_have_the_sign_of_alpha(backend: str, channel_dim: int, arrangement: str) -> None:
    """alpha * 0 is added as in other channels, on each path: one pass, with gradients, with positions."""
    grid = GridEncoding((Encoding(4), Encoding(4)), arrangement=arrangement, dim=11)
    for alpha in (-1.0, 1.0):
        for zero in (0.0, -0.0):
            x = torch.full((2, 11, 3, 3) if channel_dim == 1 else (2, 3, 3, 11), zero)
            ways = [sinpe.add(x, grid, alpha=alpha, channel_dim=channel_dim)]
            ways.append(sinpe.add(x.clone().requires_grad_(), grid, alpha=alpha, channel_dim=channel_dim).detach())
            places = sinpe.positions.grid((3, 3)).expand(2, 3, 3, 2)
            ways.append(sinpe.add(x, grid, alpha=alpha, positions=places, channel_dim=channel_dim))
            for way in ways:
                zeros = way.movedim(channel_dim, -1)[..., 8:]
                assert bool((zeros == 0).all()) and bool((zeros.signbit() == (alpha < 0 and str(zero) == "-0.0")).all())


def test_one_axis_equals_sequence(backend: str) -> None:
    x = torch.randn(5, 3, 8)
    one = GridEncoding((Encoding(8),))
    for seq_dim in (0, 1, -2):
        assert torch.equal(sinpe.add(x, one, seq_dim=seq_dim), sinpe.add(x, Encoding(8), seq_dim=seq_dim))


def test_unsupported_seq_dim_is_rejected(backend: str) -> None:
    x = torch.zeros(2, 3, 4, 8)
    with pytest.raises(ValueError, match="seq_dim: expected -2, its default"):
        sinpe.add(x, GRID, seq_dim=0)
    with pytest.raises(IndexError, match="seq_dim"):
        sinpe.add(x, GRID, seq_dim=99)
    with pytest.raises(ValueError, match="seq_dim: expected -2"):
        sinpe.SinusoidalPositionalEncoding(8, 0.0, encoding="mae2d", batch_first=False)(x)
    flat = sinpe.SinusoidalPositionalEncoding(8, 0.0, encoding=GRID, batch_first=False, grid_shape=(3, 4))
    tokens = torch.randn(2, 12, 8)
    want = sinpe.add(tokens, GRID, grid_shape=(3, 4))
    assert torch.equal(flat(tokens.transpose(0, 1)).transpose(0, 1), want)


@pytest.mark.parametrize(
    "start", [torch.full((1, 2), 2**63 - 2), torch.tensor(2**63 - 2), torch.full((2, 2), 2**63 - 1)]
)
def test_start_overflow_is_rejected(backend: str, start: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="start: expected every position"):
        sinpe.add(torch.zeros(2, 4, 4, 8), "hf2d", start=start)


def test_extra_tokens_allocate_no_table() -> None:
    """A long sequence with a class token needs no memory beyond its result."""
    import resource

    if sinpe.backend_info().device("cpu").backend != "compiled":
        pytest.skip("the kernels' memory")
    x = torch.randn(1, 1 + 2**17, 256, dtype=torch.bfloat16)
    sinpe.add(x[:, :9], 256, extra_tokens=1)
    sinpe.add(x, 256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sinpe.add(x, 256, extra_tokens=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 100, f"{grown} MiB beyond what add takes; its float32 table would be 128"


def test_vmap_of_uneven_coordinates(backend: str) -> None:
    grid = GridEncoding((Encoding(4), Encoding(4)), arrangement="interleaved", dim=5)
    places = torch.randn(3, 6, 2)
    assert torch.equal(torch.func.vmap(lambda p: sinpe.encode(p, grid))(places), sinpe.encode(places, grid))


COMPILED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"start": (1, True), "grid_shape": (4, 4)}, TypeError),
    ({"start": 1.5, "grid_shape": (4, 4)}, TypeError),
    ({"extra_tokens": 0.0, "grid_shape": (4, 4)}, TypeError),
    ({"grid_shape": (4.0, 4)}, TypeError),
]


@pytest.mark.parametrize(("arguments", "error"), COMPILED)
def test_compiled_call_raises_the_same_errors(arguments: dict[str, Any], error: type[Exception]) -> None:
    x = torch.zeros(2, 16, 8)
    for call in (sinpe.add, torch.compile(sinpe.add, backend="eager")):
        torch._dynamo.reset()
        with pytest.raises(error):
            call(x, GRID, **arguments)


def test_channels_first_through_the_layer(backend: str) -> None:
    x = torch.randn(2, 8, 5)
    layer = sinpe.SinusoidalPositionalEncoding(8, 0.0, channel_dim=1)
    assert torch.equal(layer(x), sinpe.add(x, seq_dim=2, channel_dim=1))
    flat = sinpe.SinusoidalPositionalEncoding(8, 0.0, encoding=GRID, channel_dim=1, grid_shape=(3, 4))
    x = torch.randn(2, 8, 12)
    assert torch.equal(flat(x), sinpe.add(x.view(2, 8, 3, 4), GRID, channel_dim=1).flatten(2))


def test_padding_mask_shapes_of_a_flat_grid(backend: str) -> None:
    for height, width in ((3, 4), (1, 8), (8, 1)):
        x = torch.randn(2, height * width, 8)
        mask = torch.rand(2, height, width) < 0.5
        want = sinpe.add(x, GRID, grid_shape=(height, width), padding_mask=mask.flatten(1))
        assert torch.equal(sinpe.add(x, GRID, grid_shape=(height, width), padding_mask=mask), want)
        as_dimensions = sinpe.add(x.view(2, height, width, 8), GRID, grid_shape=(height, width), padding_mask=mask)
        assert torch.equal(as_dimensions.flatten(1, 2), want)


def test_coordinates_with_several_batch_dimensions(backend: str) -> None:
    x, places = torch.randn(2, 3, 5, 8), torch.rand(2, 5, 2)
    want = x + sinpe.encode(places, GRID)[:, None]
    assert torch.equal(sinpe.add(x, "mae2d", positions=places), want)


def test_convention_overrides_grid_fields() -> None:
    assert sinpe.convention("mae2d", 8, order=(0, 1)) == sinpe.convention("hf2d", 8)
    assert sinpe.convention("hf2d", 8, arrangement="grouped") == sinpe.convention("timm2d", 8)


def test_padded_channels_are_plus_zero(backend: str) -> None:
    grid = sinpe.convention("t2t2d", 10)
    x = torch.full((1, 2, 3, 10), -0.0)
    for more in ({}, {"positions": sinpe.positions.grid((2, 3))}):
        got = sinpe.add(x, grid, **more)
        assert torch.equal(got, truth(grid, (2, 3))[None]) and not torch.signbit(got[..., 8:]).any()


def test_checkpoint_of_another_grid_is_identified() -> None:
    layer = sinpe.SinusoidalPositionalEncoding(16, encoding="hf2d", grid_shape=(3, 5))
    with pytest.warns(UserWarning, match=r'it is sinpe.convention\("mae2d", 16\)'):
        layer.load_state_dict({"pe": sinpe.table((3, 5), sinpe.convention("mae2d", 16), flatten=True)[None]})


def test_plot_of_a_grid_says_what_to_pass() -> None:
    pytest.importorskip("matplotlib")
    for draw in (sinpe.plot.heatmap, sinpe.plot.curves):
        for table in (GRID, "mae2d"):
            with pytest.raises(TypeError, match=r"sinpe_ext.table\(\(H, W\), grid, flatten=True\)"):
                draw(table)
