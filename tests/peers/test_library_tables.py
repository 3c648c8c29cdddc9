"""The encodings of other libraries, function by function, against ours."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agreement import LENGTH, compare
from torch import Tensor

import sinpe_ext as sinpe

Peer = Callable[[str], Any]
ROWS = torch.arange(LENGTH)[:, None]


@pytest.mark.parametrize("dim", [2, 6, 64, 512])
def test_tutorial_of_pytorch(dim: int) -> None:
    position = torch.arange(LENGTH).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    pe = torch.zeros(LENGTH, dim)
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    what = "the tutorial's PositionalEncoding"
    compare("torch", what, pe, sinpe.Encoding(dim), LENGTH, convention="paper", positions=ROWS, mode="float32_exp")


# diffusers

DIFFUSERS = "diffusers.models.embeddings"
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
def test_timesteps(dim: int, flip: bool, shift: float, name: str, fields: dict, same_bits: bool, peer: Peer) -> None:
    module = peer(DIFFUSERS)
    torch.manual_seed(3)
    for t in (torch.arange(LENGTH), torch.rand(500) * 1000, torch.tensor([0.0, 998.39, 999.0])):
        theirs = module.get_timestep_embedding(t, dim, flip_sin_to_cos=flip, downscale_freq_shift=shift)
        assert torch.equal(theirs, module.Timesteps(dim, flip, shift)(t))
        compare(
            "diffusers",
            f"get_timestep_embedding(flip_sin_to_cos={flip}, downscale_freq_shift={shift:g})",
            theirs, sinpe.convention(name, dim, **fields), t, convention=f"{name} {fields or ''}".strip(),
            positions=t.double()[:, None], mode="float32_exp", same_bits=same_bits,
        )  # fmt: skip


def test_timestep_scale_and_period(peer: Peer) -> None:
    """scale=1000 is FLUX's factor, but diffusers multiplies the angle by it, not the timestep."""
    module, t = peer(DIFFUSERS), torch.rand(300, generator=torch.Generator().manual_seed(1))
    for dim, scale, period in ((256, 1000, 10000), (64, 0.125, 500)):
        theirs = module.get_timestep_embedding(t, dim, True, 0, scale=scale, max_period=period)
        assert torch.equal(theirs, module.get_timestep_embedding(t, dim, True, 0, scale, period))
        compare(
            "diffusers", f"get_timestep_embedding(scale={scale}, max_period={period})",
            theirs, sinpe.convention("adm", dim, position_scale=scale, base=period), t,
            convention=f"adm, position_scale={scale}" if scale != 1000 else "flux",
            positions=t.double()[:, None] * scale, mode="float32_exp",
            same_bits=scale == 0.125,  # a power of two does not change rounding
        )  # fmt: skip
    # As in the FLUX pipelines: the timestep itself is multiplied, and that product is rounded as well.
    theirs = module.get_timestep_embedding(t * 1000, 256, True, 0)
    what, positions = "get_timestep_embedding(t * 1000)", t.double()[:, None] * 2000
    flux = sinpe.convention("flux", 256)
    compare("diffusers", what, theirs, flux, t, convention="flux", positions=positions, mode="float32_exp")
    for arguments, ours in (((64, False, 1), "ddpm"), ((64, True, 0), "adm")):
        steps = torch.tensor([0.0, 1.0, 998.39])
        theirs = module.Timesteps(*arguments)(steps)
        got = sinpe.TimestepEncoding(64, encoding=ours)(steps)
        assert got.dtype == theirs.dtype and torch.allclose(got, theirs, rtol=0, atol=1000 * 2.0**-22)


def test_sequence_of_diffusers(peer: Peer) -> None:
    module = peer(DIFFUSERS)
    for dim in (6, 64, 512):
        layer, encoding = module.SinusoidalPositionalEmbedding(dim, LENGTH), sinpe.Encoding(dim)
        compare(
            "diffusers", "SinusoidalPositionalEmbedding", layer.pe[0], encoding, LENGTH,
            convention="paper", positions=ROWS, mode="float32_exp",
        )  # fmt: skip
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
def test_images_of_diffusers(
    shape: tuple, base_size: int | None, scale: float, cls_token: bool, extra: int, peer: Peer
) -> None:
    module, dim = peer(DIFFUSERS), 32
    whole = base_size is None or all((base_size / length / scale).is_integer() for length in shape)
    grid = sinpe.convention("mae2d", dim)
    if base_size is None:  # integer coordinates on both axes: computed from the coordinates
        h, w = (torch.arange(length, dtype=torch.float32) for length in shape)
        coordinates = torch.stack(torch.meshgrid(w, h, indexing="xy"))
        theirs = module.get_2d_sincos_pos_embed_from_grid(dim, coordinates)
    else:
        theirs = module.get_2d_sincos_pos_embed(
            dim, shape, cls_token=cls_token, extra_tokens=extra, interpolation_scale=scale, base_size=base_size
        )
        grid = grid.interpolated(shape, base_size=base_size, scale=scale)
    assert theirs.dtype == torch.float64
    tokens = extra if cls_token else 0
    compare(
        "diffusers", "get_2d_sincos_pos_embed" + ("" if whole else ", interpolated"),
        theirs.float(), grid, shape, extra_tokens=tokens, flatten=True, convention="mae2d",
        # The coordinates are rounded to float32 twice, nothing else.
        positions=0.0 if whole or base_size is None else base_size / scale, same_bits=whole,
    )  # fmt: skip


def test_crop_of_a_larger_image(peer: Peer) -> None:
    """SD3: a centred crop of the table for pos_embed_max_size is the grid of that size with a later start."""
    module, largest, dim = peer(DIFFUSERS), 24, 16
    layer = module.PatchEmbed(32, 32, 2, 4, dim, pos_embed_max_size=largest)
    height, width = 10, 14
    theirs = layer.cropped_pos_embed(2 * height, 2 * width)[0]
    start = ((largest - height) // 2, (largest - width) // 2)
    grid = sinpe.convention("mae2d", dim).interpolated((largest, largest), base_size=layer.base_size)
    ours = sinpe.table((height, width), grid, start=start, flatten=True)
    assert torch.allclose(ours, theirs, rtol=0, atol=16 * 2.0**-22)


@pytest.mark.parametrize("space_scale", [1.0, 1.875])
def test_videos_of_diffusers(space_scale: float, peer: Peer) -> None:
    module, dim, frames, height, width = peer(DIFFUSERS), 48, 9, 6, 11
    theirs = module.get_3d_sincos_pos_embed(dim, (width, height), frames, space_scale, 0.5)
    grid = sinpe.convention("cogvideo3d", dim, position_scale=(2, 1 / space_scale, 1 / space_scale))
    whole = space_scale == 1.0
    compare(
        "diffusers", "get_3d_sincos_pos_embed" + ("" if whole else ", interpolated"),
        theirs.float().reshape(frames, height, width, dim), grid, (frames, height, width),
        convention="cogvideo3d", positions=0.0 if whole else float(width), same_bits=whole,
    )  # fmt: skip


# transformers

MODELS = "transformers.models"
PAST = "past_key_values_length", "cache_length"  # up to 5.23, and from 5.24 on


def table_of(model: str, dim: int, peer: Peer) -> Tensor:
    """Rows 0 to 4096 of a model's table."""
    module = peer(f"{MODELS}.{model}.modeling_{model}")
    if model == "marian":
        return module.MarianSinusoidalPositionalEmbedding(LENGTH, dim).create_weight()
    if model in ("distilbert", "xlm"):
        return module.create_sinusoidal_embeddings(LENGTH, dim, out=torch.empty(LENGTH, dim))
    if model == "videomae":
        return module.get_sinusoid_encoding_table(LENGTH, dim)[0]
    if model == "ctrl":
        return module.positional_encoding(LENGTH, dim, torch.float)
    if model == "videoprism":
        return module.create_sinusoidal_positions(LENGTH, dim)
    if model == "whisper":
        return module.sinusoids(LENGTH, dim)
    if model == "musicgen":
        return module.MusicgenSinusoidalPositionalEmbedding.get_embedding(LENGTH, dim)
    if model == "speecht5":
        return module.SpeechT5ScaledPositionalEncoding(0.0, dim, max_len=LENGTH).pe[0]
    if model == "florence2":
        return torch.cat(module.Florence2VisionPositionalEmbeddingCosine1D.get_sinusoid_embeddings(LENGTH, dim), -1)
    layer = {
        "m2m_100": "M2M100SinusoidalPositionalEmbedding",
        "speech_to_text": "Speech2TextSinusoidalPositionalEmbedding",
        "fsmt": "SinusoidalPositionalEmbedding",
    }[model]
    return getattr(module, layer).get_embedding(LENGTH, dim, None)


CASES = [
    # model, our convention, mode, dims, same bits
    ("marian", "paper_concat", "exact", (64, 9), True),
    ("distilbert", "paper", "exact", (64, 9), True),
    ("xlm", "paper", "exact", (64,), True),
    ("videomae", "paper", "exact", (64,), True),
    ("ctrl", "paper_concat", "float32_pow", (8, 64, 9, 1280), True),
    ("videoprism", "paper_concat", "float32_pow", (8, 64, 768), True),
    ("whisper", "t2t", "float32_exp", (8, 384, 1280), True),
    ("m2m_100", "t2t", "float32_exp", (8, 9, 1024), True),
    ("speech_to_text", "t2t", "float32_exp", (8, 9, 256), True),
    ("fsmt", "t2t", "float32_exp", (8, 9, 1024), True),
    ("musicgen", "musicgen", "float32_exp", (8, 9, 1024), True),
    ("speecht5", "paper", "float32_exp", (8, 768), True),
    # exp(i * -(log(1e4) / h)); guided-diffusion and diffusers, with the same fields, have exp(-log(1e4) * i / h).
    ("florence2", "paper_concat", "float32_exp", (8, 64, 768), False),
]


@pytest.mark.parametrize(("model", "name", "mode", "dims", "same_bits"), CASES)
def test_tables_of_transformers(model: str, name: str, mode: str, dims: tuple, same_bits: bool, peer: Peer) -> None:
    for dim in dims:
        compare(
            "transformers", model, table_of(model, dim, peer), sinpe.convention(name, dim), LENGTH,
            convention=name, positions=0.0 if mode == "exact" else ROWS, mode=mode, same_bits=same_bits,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("m2m_100", "M2M100SinusoidalPositionalEmbedding"),
        ("speech_to_text", "Speech2TextSinusoidalPositionalEmbedding"),
    ],
)
def test_fairseq_positions(model: str, layer: str, peer: Peer) -> None:
    """Positions from token ids: padding_idx + 1 at the first token; padding gets a row of zeros."""
    module = peer(f"{MODELS}.{model}.modeling_{model}")
    dim, padding = 16, 1
    ids = torch.tensor([[5, 7, 9, 1, 1], [1, 1, 8, 6, 4], [3, 1, 3, 1, 3]])
    theirs = getattr(module, layer)(64, dim, padding)
    for past in (0, 6):
        positions, mask = sinpe.positions.from_padding_idx(ids, padding, past=past)
        t2t = sinpe.convention("t2t", dim, angle="float32_exp")
        got = sinpe.add(torch.zeros(3, 5, dim), t2t, positions=positions, padding_mask=mask)
        name = next(name for name in inspect.signature(theirs.forward).parameters if name in PAST)
        assert torch.equal(got, theirs(ids, **{name: past}))
    plain = torch.tensor([[5, 7, 9, 4]])
    first = sinpe.table(4, sinpe.convention("fairseq", dim, angle="float32_exp"))
    assert torch.equal(theirs(plain)[0], first)


def test_scaled_encoding(peer: Peer) -> None:
    """SpeechT5: x + alpha * PE, alpha learned."""
    module = peer(f"{MODELS}.speecht5.modeling_speecht5")
    theirs = module.SpeechT5ScaledPositionalEncoding(0.0, 32).eval()
    with torch.no_grad():
        theirs.alpha.fill_(0.37)
    x = torch.randn(2, 700, 32)
    encoding = sinpe.Encoding(32, angle="float32_exp")
    assert torch.equal(sinpe.add(x, encoding, alpha=theirs.alpha), theirs(x))
    assert torch.allclose(sinpe.add(x, alpha=theirs.alpha), theirs(x), rtol=0, atol=700 * 2.0**-22)


@pytest.mark.parametrize("model", ["vit_mae", "rt_detr", "d_fine", "aimv2"])
def test_images_of_transformers(model: str, peer: Peer) -> None:
    build = peer(f"{MODELS}.{model}.modeling_{model}").build_2d_sinusoidal_position_embedding
    what = f"{model} build_2d_sinusoidal_position_embedding"
    for height, width, dim in ((14, 9, 64), (4097, 2, 16), (2, 4097, 16)):
        for cls_token in (False, True):
            theirs = build(height, width, dim, cls_token=cls_token)
            compare(
                "transformers", what, theirs, sinpe.convention("hf2d", dim), (height, width),
                extra_tokens=int(cls_token), flatten=True, convention="hf2d", positions=0.0,
            )  # fmt: skip
    for dim in (2, 6, 10):
        rejected(ValueError, lambda dim=dim: build(2, 2, dim), "hf2d", dim, "multiple of 4 for hf2d")


def test_omdet_turbo_is_monai2d_by_columns(peer: Peer) -> None:
    """[w | h] with the columns outermost: mae2d of the transposed image's places."""
    module = peer(f"{MODELS}.omdet_turbo.modeling_omdet_turbo")
    height, width, dim = 7, 12, 32
    build = module.OmDetTurboHybridEncoder.build_2d_sincos_position_embedding
    theirs = build(width, height, dim)[0].reshape(width, height, dim).transpose(0, 1)
    compare(
        "transformers", "omdet_turbo build_2d_sincos_position_embedding, transposed",
        theirs, sinpe.convention("mae2d", dim), (height, width),
        convention="mae2d", positions=12.0, mode="float32_pow",
    )  # fmt: skip


@pytest.mark.parametrize("normalize", [False, True])
def test_detr(normalize: bool, peer: Peer) -> None:
    module = peer(f"{MODELS}.detr.modeling_detr")
    features, height, width = 32, 9, 13
    valid = torch.ones(3, height, width, dtype=torch.bool)
    valid[1, 6:], valid[1, :, 10:] = False, False
    valid[2, :, 4:] = False
    layer = module.DetrSinePositionEmbedding(features, normalize=normalize)
    shape = torch.Size((3, 2 * features, height, width))
    grid = sinpe.convention("detr2d", 2 * features)
    compatible = grid.with_axes(angle="float32_pow")
    for mask in (None, valid):
        theirs = layer(shape, torch.device("cpu"), torch.float32, mask)
        padding = torch.zeros_like(valid) if mask is None else ~valid
        rounded = sinpe.positions.from_mask_2d(padding, grid, normalize=normalize, dtype=torch.float32)
        compare(
            "transformers", f"detr DetrSinePositionEmbedding(normalize={normalize})",
            theirs.permute(0, 2, 3, 1), grid, sinpe.positions.from_mask_2d(padding, grid, normalize=normalize),
            # A normalised position is at most 2 pi, after three roundings.
            convention="detr2d", positions=4 * 2 * math.pi if normalize else float(width),
            mode="float32_pow", rounded=rounded,
        )  # fmt: skip
        x = torch.randn(shape)
        got = sinpe.add(x, compatible, positions=rounded, channel_dim=1)
        assert torch.equal(got, x + theirs)
        if mask is None and not normalize:
            assert torch.equal(sinpe.add(x, compatible, channel_dim=1), x + theirs)


def test_boxes(peer: Peer) -> None:
    """Conditional DETR's anchors: coordinates in 0..1 times 2 pi, y before x."""
    module = peer(f"{MODELS}.conditional_detr.modeling_conditional_detr")
    boxes = torch.rand(5, 20, 4, generator=torch.Generator().manual_seed(2))
    theirs = module.encode_sinusoidal_position_embedding(boxes, num_pos_feats=32)
    grid = sinpe.GridEncoding((sinpe.Encoding(32, position_scale=2 * math.pi),) * 4, order=(1, 0, 2, 3))
    compare(
        "transformers", "conditional_detr encode_sinusoidal_position_embedding", theirs, grid, boxes,
        convention="GridEncoding of 4, position_scale 2 pi", positions=4 * math.pi, mode="float32_pow",
    )  # fmt: skip


# timm, MONAI, positional-encodings, x-transformers


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("shape", [(14, 9), (4097, 2), (2, 4097)])
def test_images_of_timm(shape: tuple, interleave: bool, timm_sincos2d: Any) -> None:
    name, build = "hf2d" if interleave else "timm2d", timm_sincos2d
    for dim, base in ((16, 10000.0), (64, 10000.0), (64, 100.0)):
        compare(
            "timm", f"build_sincos2d_pos_embed(interleave_sin_cos={interleave})",
            build(list(shape), dim, temperature=base, interleave_sin_cos=interleave),
            sinpe.convention(name, dim, base=base), shape, flatten=True,
            convention=name, positions=float(max(shape)), mode="float32_pow",
        )  # fmt: skip
    for dim in (2, 6, 7, 10):
        rejected(AssertionError, lambda dim=dim: build([2, 2], dim), "timm2d", dim, "multiple of 4 for timm2d")
    # reverse_coord reverses the image's shape, nothing else.
    theirs = build([5, 3], 16, reverse_coord=True)
    ours = sinpe.table((3, 5), sinpe.convention("timm2d", 16, angle="float32_pow"), flatten=True)
    assert torch.equal(ours, theirs)


SHAPES = {2: [(14, 9), (4097, 2), (2, 4097)], 3: [(4, 6, 5), (4097, 1, 2), (1, 2, 4097)]}


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(("channels", "base"), [(4, 10000.0), (16, 10000.0), (16, 50.0)])
def test_tables_of_monai(number: int, channels: int, base: float, peer: Peer) -> None:
    module = peer("monai.networks.blocks.pos_embed_utils")
    dim, name = number * channels, f"monai{number}d"
    for shape in SHAPES[number]:
        theirs = module.build_sincos_position_embedding(list(shape), dim, number, temperature=base)
        compare(
            "monai", f"build_sincos_position_embedding(spatial_dims={number})",
            theirs.detach()[0], sinpe.convention(name, dim, base=base), shape, flatten=True,
            convention=name, positions=float(max(shape)), mode="float32_pow",
        )  # fmt: skip


POINTS = {1: [(LENGTH,)], 2: [(6, 11), (LENGTH, 2), (2, LENGTH)], 3: [(3, 5, 4), (LENGTH, 1, 2), (1, 2, LENGTH)]}
DIMS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 64, 125, 169]


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("dim", DIMS)
def test_tables_of_positional_encodings(number: int, dim: int, peer: Peer) -> None:
    module, name = peer("positional_encodings.torch_encodings"), f"PositionalEncoding{number}D"
    layer = getattr(module, name)(dim)
    for shape in POINTS[number][: 3 if dim < 12 else 1]:
        theirs = layer(torch.empty(1, *shape, dim))[0]
        compare(
            "positional-encodings", name,
            theirs, sinpe.convention(f"multidim{number}d", dim), shape[0] if number == 1 else shape,
            convention=f"multidim{number}d", positions=float(max(shape)), mode="float32_pow",
        )  # fmt: skip


def test_sums_of_positional_encodings(peer: Peer) -> None:
    """Also channels first; ours rejects what the library silently cuts or pads."""
    module = peer("positional_encodings.torch_encodings")
    encoding = sinpe.convention("multidim2d", 12, angle="float32_pow")
    x = torch.randn(3, 5, 7, 12)
    assert torch.equal(sinpe.add(x, encoding), module.Summer(module.PositionalEncoding2D(12))(x))
    y = x.movedim(-1, 1).contiguous()
    theirs = module.PositionalEncodingPermute2D(12)(y)
    assert torch.equal(sinpe.add(y, encoding, channel_dim=1), y + theirs)
    x = torch.randn(1, 4, 10)
    assert module.PositionalEncoding1D(5)(x).shape == (1, 4, 6)
    with pytest.raises(ValueError, match="5.*10|10.*5"):
        sinpe.add(x, sinpe.convention("multidim1d", 5))


@pytest.mark.parametrize("dim", [8, 64, 512])
def test_table_of_x_transformers(dim: int, peer: Peer) -> None:
    module = peer("x_transformers.x_transformers")
    layer = module.ScaledSinusoidalEmbedding(dim)
    with torch.no_grad():
        theirs = layer(torch.empty(1, LENGTH, dim))
        scale = float(layer.scale)
        assert scale == pytest.approx(dim**-0.5)
        encoding = sinpe.convention("paper_concat", dim, amplitude=scale)
        compare(
            "x-transformers", "ScaledSinusoidalEmbedding", theirs, encoding, LENGTH,
            convention="paper_concat, amplitude d^-0.5", positions=ROWS, mode="float32_pow", factor=scale,
            same_bits=False,  # theta ** -x here, 1 / theta ** x in all other libraries with these fields
        )  # fmt: skip
        for offset in (0, 9):
            shifted = layer(torch.empty(1, 20, dim), offset=offset)
            got = sinpe.table(20, encoding, start=offset)
            assert torch.allclose(got, shifted, rtol=0, atol=30 * 2.0**-22)


def test_learned_factor_of_x_transformers(peer: Peer) -> None:
    """x + scale * PE, scale learned: `alpha`."""
    module = peer("x_transformers.x_transformers")
    layer, x = module.ScaledSinusoidalEmbedding(32), torch.randn(2, 50, 32)
    got = sinpe.add(x, "paper_concat", alpha=layer.scale)
    assert torch.allclose(got, x + layer(x), rtol=0, atol=50 * 2.0**-22)
    got.sum().backward()
    mine, layer.scale.grad = layer.scale.grad.clone(), None
    (x + layer(x)).sum().backward()
    assert torch.allclose(mine, layer.scale.grad, rtol=1e-4)


# rejected by both


def rejected(error: type[Exception], theirs: Callable[[], Any], name: str, dim: int, match: str, **fields: Any) -> None:
    with pytest.raises(error):
        theirs()
    with pytest.raises(ValueError, match=match):
        sinpe.convention(name, dim, **fields)


POS_EMBED, SINCOS = "monai.networks.blocks.pos_embed_utils", "build_sincos_position_embedding"
X_TRANSFORMERS, ODD = "x_transformers.x_transformers", "dim: expected an even number"
REJECTED: list[tuple[str, str, tuple, type[Exception], str, tuple[int, ...], str]] = [
    # module, function, arguments (None: dim), its error, our convention, dims, our message
    (DIFFUSERS, "get_2d_sincos_pos_embed", (None, 4), ValueError, "mae2d", (2, 6, 9), "dim: expected a multiple of"),
    (DIFFUSERS, "get_3d_sincos_pos_embed", (None, 4, 2), ValueError, "cogvideo3d", (8, 24, 18), "dim: expected a mult"),
    (POS_EMBED, SINCOS, (2, None, 2), AssertionError, "monai2d", (6, 7), "multiple of 4 for monai2d"),
    (POS_EMBED, SINCOS, (2, None, 3), AssertionError, "monai3d", (4, 8, 9), "multiple of 6 for monai3d"),
    (f"{MODELS}.whisper.modeling_whisper", "sinusoids", (3, None), ValueError, "t2t", (7,), ODD),
    (X_TRANSFORMERS, "ScaledSinusoidalEmbedding", (None,), AssertionError, "paper_concat", (7,), ODD),
]


@pytest.mark.parametrize(("module", "function", "arguments", "error", "name", "dims", "match"), REJECTED)
def test_rejected_by_both(
    module: str, function: str, arguments: tuple, error: Any, name: str, dims: tuple, match: str, peer: Peer
) -> None:
    theirs = getattr(peer(module), function)
    for dim in dims:
        given = [dim if argument is None else argument for argument in arguments]
        fields = {"odd": "raise"} if match == ODD else {}
        rejected(error, lambda given=given: theirs(*given), name, dim, match, **fields)
