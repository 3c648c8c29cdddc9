"""`integrations.swap` on transformers' models: lookups of stored tables are reported and left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sinpe_ext as sinpe

SIZES = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}


def whisper(T: Any) -> nn.Module:
    return T.WhisperModel(T.WhisperConfig(**SIZES, num_mel_bins=8, max_source_positions=60))


def marian(T: Any) -> nn.Module:
    return T.MarianModel(T.MarianConfig(**SIZES, max_position_embeddings=64))


def m2m_100(T: Any) -> nn.Module:
    return T.M2M100Model(T.M2M100Config(**SIZES, max_position_embeddings=64))


@pytest.mark.parametrize(
    ("build", "reported"),
    [
        (whisper, {"encoder.embed_positions": "`weight` holds t2t, 60 rows; "}),
        (
            marian,
            {
                "encoder.embed_positions": "`weight` holds paper_concat, 64 rows; ",
                "decoder.embed_positions": "`weight` holds paper_concat, 64 rows; ",
            },
        ),
        (
            m2m_100,
            {
                "encoder.embed_positions": "`weights` holds t2t, 66 rows; ",
                "decoder.embed_positions": "`weights` holds t2t, 66 rows; ",
            },
        ),
    ],
    ids=["whisper", "marian", "m2m_100"],
)
def test_lookups_are_reported(build: Callable[[Any], nn.Module], reported: dict[str, str], peer: Any) -> None:
    model = build(peer("transformers")).eval()
    kinds = {name: type(module) for name, module in model.named_modules()}
    report = sinpe.integrations.swap(model)
    assert not report.swapped and {entry.name for entry in report} == reported.keys()
    for entry in report:
        assert entry.reason.startswith(reported[entry.name]) and entry.encoding is not None
    assert {name: type(module) for name, module in model.named_modules()} == kinds


@pytest.mark.parametrize(
    ("model", "prefix"), [("conditional_detr", "ConditionalDetr"), ("sam2", "Sam2"), ("rt_detr", "RTDetr")]
)
def test_images_are_left_alone(model: str, prefix: str, peer: Any) -> None:
    """The library keeps the rows of a shape; computed again in each call they would cost hundreds of times as much."""
    made = getattr(peer(f"transformers.models.{model}.modeling_{model}"), f"{prefix}SinePositionEmbedding")(16)
    (entry,) = sinpe.integrations.swap(made)
    assert not entry.swapped and "looks sinusoidal by its name" in entry.reason


def test_learned_and_inner_tables(peer: Any) -> None:
    """Learned positions are not reported; trained or fused tables are, with the reason."""
    T = peer("transformers")
    bert = T.BertModel(T.BertConfig(vocab_size=99, **SMALL))
    assert not sinpe.integrations.swap(bert)
    with torch.no_grad():
        bert.embeddings.position_embeddings.weight.copy_(sinpe.table(512, 32))
    (entry,) = sinpe.integrations.swap(bert)
    assert not entry.swapped and "requires_grad=True" in entry.reason and entry.convention == "paper"
    videomae = T.VideoMAEModel(T.VideoMAEConfig(image_size=32, patch_size=16, num_frames=8, **SMALL))
    (entry,) = sinpe.integrations.swap(videomae)
    assert not entry.swapped and "too, on which its forward may depend" in entry.reason
    with pytest.raises(ValueError, match="strict=False"):
        sinpe.integrations.swap(videomae, strict=True)
