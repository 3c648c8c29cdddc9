"""Hugging Face transformers: the encodings of a dozen models."""

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

MODELS = "transformers.models"
PAST = "past_key_values_length", "cache_length"  # up to 5.23, and from 5.24 on


def table_of(model: str, dim: int, peer: Any) -> Tensor:
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
    # model, our convention, its fields, mode, dims, same bits
    ("marian", "paper_concat", {}, "exact", (64, 9), True),
    ("distilbert", "paper", {}, "exact", (64, 9), True),
    ("xlm", "paper", {}, "exact", (64,), True),
    ("videomae", "paper", {}, "exact", (64,), True),
    ("ctrl", "paper_concat", {}, "float32_pow", (8, 64, 9, 1280), True),
    ("videoprism", "paper_concat", {}, "float32_pow", (8, 64, 768), True),
    ("whisper", "t2t", {}, "float32_exp", (8, 384, 1280), True),
    ("m2m_100", "t2t", {}, "float32_exp", (8, 9, 1024), True),
    ("speech_to_text", "t2t", {}, "float32_exp", (8, 9, 256), True),
    ("fsmt", "t2t", {}, "float32_exp", (8, 9, 1024), True),
    ("musicgen", "musicgen", {}, "float32_exp", (8, 9, 1024), True),
    ("speecht5", "paper", {}, "float32_exp", (8, 768), True),
    # exp(i * -(log(1e4) / h)); guided-diffusion and diffusers, with the same fields, have exp(-log(1e4) * i / h).
    ("florence2", "paper_concat", {}, "float32_exp", (8, 64, 768), False),
]


@pytest.mark.parametrize(("model", "name", "fields", "mode", "dims", "same_bits"), CASES)
def test_tables(
    model: str, name: str, fields: dict, mode: str, dims: tuple, same_bits: bool, peer: Any, release: Callable
) -> None:
    for dim in dims:
        encoding = sinpe.convention(name, dim, **fields)
        theirs = table_of(model, dim, peer)
        compare(
            release("transformers"),
            model,
            theirs,
            convention=name,
            exact=sinpe.table(LENGTH, encoding, dtype=torch.float64),
            positions=0.0 if mode == "exact" else torch.arange(LENGTH)[:, None],
            compatible=None if mode == "exact" else sinpe.table(LENGTH, encoding.replace(angle=mode)),
            mode=mode,
            same_bits=same_bits,
        )


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("m2m_100", "M2M100SinusoidalPositionalEmbedding"),
        ("speech_to_text", "Speech2TextSinusoidalPositionalEmbedding"),
    ],
)
def test_fairseq_positions(model: str, layer: str, peer: Any) -> None:
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


def test_scaled_encoding(peer: Any) -> None:
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
def test_images(model: str, peer: Any, release: Callable) -> None:
    build = peer(f"{MODELS}.{model}.modeling_{model}").build_2d_sinusoidal_position_embedding
    for height, width, dim in ((14, 9, 64), (4097, 2, 16), (2, 4097, 16)):
        for cls_token in (False, True):
            theirs = build(height, width, dim, cls_token=cls_token)
            grid = sinpe.convention("hf2d", dim)
            exact = sinpe.table((height, width), grid, extra_tokens=int(cls_token), flatten=True, dtype=torch.float64)
            compare(
                release("transformers"),
                f"{model} build_2d_sinusoidal_position_embedding",
                theirs,
                convention="hf2d",
                exact=exact,
                positions=0.0,
            )
    for dim in (2, 6, 10):
        with pytest.raises(ValueError):
            build(2, 2, dim)
        with pytest.raises(ValueError, match="multiple of 4 for hf2d"):
            sinpe.convention("hf2d", dim)


def test_omdet_turbo_is_monai2d_by_columns(peer: Any, release: Callable) -> None:
    """[w | h] with the columns outermost: mae2d of the transposed image's places."""
    module = peer(f"{MODELS}.omdet_turbo.modeling_omdet_turbo")
    height, width, dim = 7, 12, 32
    build = module.OmDetTurboHybridEncoder.build_2d_sincos_position_embedding
    theirs = build(width, height, dim)[0].reshape(width, height, dim).transpose(0, 1)
    grid = sinpe.convention("mae2d", dim)
    compare(
        release("transformers"),
        "omdet_turbo build_2d_sincos_position_embedding, transposed",
        theirs.contiguous(),
        convention="mae2d",
        exact=sinpe.table((height, width), grid, dtype=torch.float64),
        positions=12.0,
        compatible=sinpe.table((height, width), grid.with_axes(angle="float32_pow")),
        mode="float32_pow",
    )


@pytest.mark.parametrize("normalize", [False, True])
def test_detr(normalize: bool, peer: Any, release: Callable) -> None:
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
        positions = sinpe.positions.from_mask_2d(padding, normalize=normalize)
        rounded = sinpe.positions.from_mask_2d(padding, normalize=normalize, dtype=torch.float32)
        compare(
            release("transformers"),
            f"detr DetrSinePositionEmbedding(normalize={normalize})",
            theirs.permute(0, 2, 3, 1).contiguous(),
            convention="detr2d",
            exact=sinpe.encode(positions, grid, dtype=torch.float64),
            # A normalised position is at most 2 pi, after three roundings.
            positions=4 * 2 * math.pi if normalize else float(width),
            compatible=sinpe.encode(rounded, compatible),
            mode="float32_pow",
        )
        x = torch.randn(shape)
        got = sinpe.add(x, compatible, positions=rounded, channel_dim=1)
        assert torch.equal(got, x + theirs)
        if mask is None and not normalize:
            assert torch.equal(sinpe.add(x, compatible, channel_dim=1), x + theirs)


def test_boxes(peer: Any, release: Callable) -> None:
    """Conditional DETR's anchors: coordinates in 0..1 times 2 pi, y before x."""
    module = peer(f"{MODELS}.conditional_detr.modeling_conditional_detr")
    boxes = torch.rand(5, 20, 4, generator=torch.Generator().manual_seed(2))
    theirs = module.encode_sinusoidal_position_embedding(boxes, num_pos_feats=32)
    grid = sinpe.GridEncoding((sinpe.Encoding(32, position_scale=2 * math.pi),) * 4, order=(1, 0, 2, 3))
    compare(
        release("transformers"),
        "conditional_detr encode_sinusoidal_position_embedding",
        theirs,
        convention="GridEncoding of 4, position_scale 2 pi",
        exact=sinpe.encode(boxes, grid, dtype=torch.float64),
        positions=4 * math.pi,
        compatible=sinpe.encode(boxes, grid.with_axes(angle="float32_pow")),
        mode="float32_pow",
    )


def test_rejected_by_both(peer: Any) -> None:
    whisper = peer(f"{MODELS}.whisper.modeling_whisper")
    with pytest.raises(ValueError):
        whisper.sinusoids(3, 7)
    with pytest.raises(ValueError, match="dim: expected an even number"):
        sinpe.convention("t2t", 7, odd="raise")
