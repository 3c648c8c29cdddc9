"""diffusers: timesteps, images, videos, and its 1-D module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import LENGTH, compare

import sinpe_ext as sinpe

MODULE = "diffusers.models.embeddings"
# flip_sin_to_cos, downscale_freq_shift, our layout, and whether the order of operations is imitated: with a shift of 1
# the fields are those of fairseq and MusicGen, whose order differs.
TIMESTEPS = [
    (False, 1.0, "ddpm", {}, False),
    (True, 0.0, "adm", {}, True),
    (False, 0.0, "adm", {"layout": "sin_cos"}, True),
    (True, 1.0, "adm", {"shift": 1}, False),
    (True, 0.5, "adm", {"shift": 0.5}, True),
]


@pytest.mark.parametrize("dim", [32, 33, 320])
@pytest.mark.parametrize(("flip", "shift", "name", "fields", "same_bits"), TIMESTEPS)
def test_timesteps(
    dim: int, flip: bool, shift: float, name: str, fields: dict, same_bits: bool, peer: Any, release: Callable
) -> None:
    module = peer(MODULE)
    encoding = sinpe.convention(name, dim, **fields)
    torch.manual_seed(3)
    for t in (torch.arange(LENGTH), torch.rand(500) * 1000, torch.tensor([0.0, 998.39, 999.0])):
        theirs = module.get_timestep_embedding(t, dim, flip_sin_to_cos=flip, downscale_freq_shift=shift)
        assert torch.equal(theirs, module.Timesteps(dim, flip, shift)(t))
        compare(
            release("diffusers"),
            f"get_timestep_embedding(flip_sin_to_cos={flip}, downscale_freq_shift={shift:g})",
            theirs,
            convention=f"{name} {fields or ''}".strip(),
            exact=sinpe.encode(t, encoding, dtype=torch.float64),
            positions=t.double()[:, None],
            compatible=sinpe.encode(t, encoding.replace(angle="float32_exp")),
            mode="float32_exp",
            same_bits=same_bits,
        )


def test_timestep_scale_and_period(peer: Any, release: Callable) -> None:
    """scale=1000 is FLUX's factor, but diffusers multiplies the angle by it, not the timestep."""
    module, t = peer(MODULE), torch.rand(300, generator=torch.Generator().manual_seed(1))
    for dim, scale, period in ((256, 1000, 10000), (64, 0.125, 500)):
        theirs = module.get_timestep_embedding(t, dim, True, 0, scale=scale, max_period=period)
        assert torch.equal(theirs, module.get_timestep_embedding(t, dim, True, 0, scale, period))
        encoding = sinpe.convention("adm", dim, position_scale=scale, base=period)
        compare(
            release("diffusers"),
            f"get_timestep_embedding(scale={scale}, max_period={period})",
            theirs,
            convention=f"adm, position_scale={scale}" if scale != 1000 else "flux",
            exact=sinpe.encode(t, encoding, dtype=torch.float64),
            positions=t.double()[:, None] * scale,
            compatible=sinpe.encode(t, encoding.replace(angle="float32_exp")),
            mode="float32_exp",
            # A power of two does not change rounding.
            same_bits=scale == 0.125,
        )
    # As in the FLUX pipelines: the timestep itself is multiplied.
    theirs = module.get_timestep_embedding(t * 1000, 256, True, 0)
    encoding = sinpe.convention("flux", 256)
    compare(
        release("diffusers"),
        "get_timestep_embedding(t * 1000)",
        theirs,
        convention="flux",
        exact=sinpe.encode(t, encoding, dtype=torch.float64),
        positions=t.double()[:, None] * 2000,  # the product t * 1000 is rounded as well
        compatible=sinpe.encode(t, encoding.replace(angle="float32_exp")),
        mode="float32_exp",
    )


def test_timestep_layer(peer: Any) -> None:
    """TimestepEncoding as a replacement for Timesteps, before a half-precision Linear."""
    module, t = peer(MODULE), torch.tensor([0.0, 1.0, 998.39])
    for arguments, ours in (((64, False, 1), "ddpm"), ((64, True, 0), "adm")):
        theirs = module.Timesteps(*arguments)(t)
        got = sinpe.TimestepEncoding(64, encoding=ours)(t)
        assert got.dtype == theirs.dtype and torch.allclose(got, theirs, rtol=0, atol=1000 * 2.0**-22)


def test_sequence(peer: Any, release: Callable) -> None:
    module = peer(MODULE)
    for dim in (6, 64, 512):
        layer = module.SinusoidalPositionalEmbedding(dim, LENGTH)
        encoding = sinpe.Encoding(dim)
        compare(
            release("diffusers"),
            "SinusoidalPositionalEmbedding",
            layer.pe[0],
            convention="paper",
            exact=sinpe.table(LENGTH, encoding, dtype=torch.float64),
            positions=torch.arange(LENGTH)[:, None],
            compatible=sinpe.table(LENGTH, encoding.replace(angle="float32_exp")),
            mode="float32_exp",
        )
        x = torch.randn(2, 10, dim)
        assert torch.equal(layer(x), sinpe.add(x, encoding.replace(angle="float32_exp")))


GRIDS = [
    # grid_size, base_size, interpolation_scale, cls_token, extra_tokens
    ((16, 16), 16, 1.0, False, 0),
    ((4097, 2), None, 1.0, False, 0),
    ((3, 4097), None, 1.0, False, 0),
    ((12, 8), 16, 1.0, False, 0),
    ((5, 7), 64, 2.0, True, 1),
    ((8, 8), 16, 0.5, True, 3),
    ((8, 8), 16, 1.0, True, 0),  # cls_token alone adds no row: extra_tokens counts
]


@pytest.mark.parametrize(("shape", "base_size", "scale", "cls_token", "extra"), GRIDS)
def test_images(
    shape: tuple, base_size: int | None, scale: float, cls_token: bool, extra: int, peer: Any, release: Callable
) -> None:
    module, dim = peer(MODULE), 32
    whole = base_size is None or all((base_size / length / scale).is_integer() for length in shape)
    if base_size is None:  # integer coordinates on both axes: computed from the coordinates
        h, w = (torch.arange(length, dtype=torch.float32) for length in shape)
        coordinates = torch.stack(torch.meshgrid(w, h, indexing="xy"))
        theirs = module.get_2d_sincos_pos_embed_from_grid(dim, coordinates)
    else:
        theirs = module.get_2d_sincos_pos_embed(
            dim, shape, cls_token=cls_token, extra_tokens=extra, interpolation_scale=scale, base_size=base_size
        )
    grid = sinpe.convention("mae2d", dim)
    if base_size is not None:
        grid = grid.interpolated(shape, base_size=base_size, scale=scale)
    exact = sinpe.table(shape, grid, extra_tokens=extra if cls_token else 0, flatten=True, dtype=torch.float64)
    assert theirs.dtype == torch.float64
    assert torch.equal(
        exact[: exact.shape[0] - shape[0] * shape[1]], torch.zeros(extra if cls_token else 0, dim).double()
    )
    compare(
        release("diffusers"),
        "get_2d_sincos_pos_embed" + ("" if whole else ", interpolated"),
        theirs.float(),
        convention="mae2d",
        exact=exact,
        # The coordinates are rounded to float32 twice, nothing else.
        positions=0.0 if whole else base_size / scale,
        same_bits=whole,
    )


def test_crop_of_a_larger_image(peer: Any) -> None:
    """SD3: a centred crop of the table for pos_embed_max_size is the grid of that size with a later start."""
    module, largest, dim = peer(MODULE), 24, 16
    layer = module.PatchEmbed(32, 32, 2, 4, dim, pos_embed_max_size=largest)
    height, width = 10, 14
    theirs = layer.cropped_pos_embed(2 * height, 2 * width)[0]
    start = ((largest - height) // 2, (largest - width) // 2)
    grid = sinpe.convention("mae2d", dim).interpolated((largest, largest), base_size=layer.base_size)
    ours = sinpe.table((height, width), grid, start=start, flatten=True)
    assert torch.allclose(ours, theirs, rtol=0, atol=16 * 2.0**-22)


@pytest.mark.parametrize("space_scale", [1.0, 1.875])
def test_videos(space_scale: float, peer: Any, release: Callable) -> None:
    module, dim, frames, height, width = peer(MODULE), 48, 9, 6, 11
    theirs = module.get_3d_sincos_pos_embed(dim, (width, height), frames, space_scale, 0.5)
    grid = sinpe.convention("cogvideo3d", dim, position_scale=(2, 1 / space_scale, 1 / space_scale))
    exact = sinpe.table((frames, height, width), grid, dtype=torch.float64)
    compare(
        release("diffusers"),
        "get_3d_sincos_pos_embed" + ("" if space_scale == 1.0 else ", interpolated"),
        theirs.float().reshape(frames, height, width, dim),
        convention="cogvideo3d",
        exact=exact,
        positions=0.0 if space_scale == 1.0 else float(width),
        same_bits=space_scale == 1.0,
    )


ERRORS = [("mae2d", 2), ("mae2d", 6), ("mae2d", 9), ("cogvideo3d", 8), ("cogvideo3d", 24), ("cogvideo3d", 18)]


@pytest.mark.parametrize(("name", "dim"), ERRORS)
def test_rejected_by_both(name: str, dim: int, peer: Any) -> None:
    module = peer(MODULE)
    with pytest.raises(ValueError):
        if name == "mae2d":
            module.get_2d_sincos_pos_embed(dim, 4)
        else:
            module.get_3d_sincos_pos_embed(dim, 4, 2)
    with pytest.raises(ValueError, match="dim: expected a multiple of"):
        sinpe.convention(name, dim)
