"""Models of transformers with tiny random configurations, and inputs with padding if the model supports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

PAD = 1
SIZES = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "pad_token_id": PAD, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.1,
}  # fmt: skip


class Case(NamedTuple):
    """A model, its inputs, the number of modules to replace and the largest position."""

    model: nn.Module
    inputs: dict[str, Tensor]
    swapped: int
    position: float

    def run(self, model: nn.Module) -> Tensor:
        dtype = next(model.parameters()).dtype
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in self.inputs.items() if k != "labels"}
        out = model(**given)
        for name in ("encoder_last_hidden_state", "logits"):  # DETR's output hardly depends on positions after decoding
            if name in out and (name == "logits" or "pixel_values" in given):
                return out[name]
        return out.last_hidden_state

    def loss(self, model: nn.Module) -> Tensor:
        out = model(**self.inputs)
        if out.get("loss") is not None:
            return out["loss"]
        return (out.logits if "logits" in out else out.last_hidden_state).float().square().mean()


def ids(*shape: int) -> Tensor:
    tokens = torch.randint(3, 99, shape, generator=torch.Generator().manual_seed(len(shape)))
    tokens[0, -3:] = PAD
    return tokens


def _seq2seq(T: Any, model: str, config: str, **more: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    built = getattr(T, model)(getattr(T, config)(**SIZES, **more))
    tokens = ids(3, 11)
    decoder = ids(3, 7)
    return built, {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "decoder_input_ids": decoder}


def marian(T: Any) -> Case:
    return Case(*_seq2seq(T, "MarianMTModel", "MarianConfig", max_position_embeddings=64), 2, 0)


def pegasus(T: Any) -> Case:
    return Case(*_seq2seq(T, "PegasusForConditionalGeneration", "PegasusConfig", max_position_embeddings=64), 2, 0)


def m2m_100(T: Any) -> Case:
    built, inputs = _seq2seq(T, "M2M100ForConditionalGeneration", "M2M100Config", max_position_embeddings=64)
    return Case(built, inputs, 2, 66)


def nllb_moe(T: Any) -> Case:
    more = {"max_position_embeddings": 64, "num_experts": 2, "expert_capacity": 32}
    return Case(*_seq2seq(T, "NllbMoeModel", "NllbMoeConfig", **more), 2, 66)


def xglm(T: Any) -> Case:
    config = T.XGLMConfig(vocab_size=99, d_model=32, num_layers=2, attention_heads=2, ffn_dim=37, pad_token_id=PAD)
    return Case(T.XGLMForCausalLM(config), {"input_ids": ids(3, 11)}, 1, 2050)


def fsmt(T: Any) -> Case:
    sizes = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    more = {"src_vocab_size": 99, "tgt_vocab_size": 99, "max_position_embeddings": 64, "langs": ["en", "de"]}
    model = T.FSMTForConditionalGeneration(T.FSMTConfig(**sizes, **more))
    for module in model.modules():  # meant to be fixed by the library; swap freezes them
        if type(module).__name__ == "SinusoidalPositionalEmbedding":
            module.weight.requires_grad_(False)
    return Case(model, {"input_ids": ids(3, 11), "decoder_input_ids": ids(3, 7)}, 2, 66)


def whisper(T: Any) -> Case:
    sizes = {"max_source_positions": 60, "max_target_positions": 40, "num_mel_bins": 8}
    built = T.WhisperForConditionalGeneration(T.WhisperConfig(**SIZES, **sizes))
    return Case(built, {"input_features": torch.randn(2, 8, 120), "decoder_input_ids": ids(2, 7)}, 1, 60)


def speech_to_text(T: Any) -> Case:
    sizes = {"max_source_positions": 80, "max_target_positions": 50, "conv_channels": 16, "input_feat_per_channel": 8}
    built = T.Speech2TextForConditionalGeneration(T.Speech2TextConfig(**SIZES, **sizes, input_channels=1))
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, 30:] = 0
    features = torch.randn(2, 50, 8)
    return Case(built, {"input_features": features, "attention_mask": mask, "decoder_input_ids": ids(2, 7)}, 2, 82)


def musicgen(T: Any) -> Case:
    config = T.MusicgenDecoderConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=37, num_codebooks=4,
        max_position_embeddings=64, pad_token_id=98, bos_token_id=98,
    )  # fmt: skip
    return Case(T.MusicgenForCausalLM(config), {"input_ids": torch.randint(0, 98, (2 * 4, 13))}, 1, 64)


def speecht5(T: Any) -> Case:
    config = T.SpeechT5Config(
        vocab_size=99, hidden_size=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=37, decoder_ffn_dim=37, max_speech_positions=60,
        max_text_positions=50, speech_decoder_prenet_units=16, speech_decoder_prenet_dropout=0.0,
        speech_decoder_postnet_units=16, num_mel_bins=8, pad_token_id=PAD, initializer_range=0.2,
    )  # fmt: skip
    values = {"input_ids": ids(2, 9), "decoder_input_values": torch.randn(2, 6, 8)}
    return Case(SpectrogramOnly(T.SpeechT5ForTextToSpeech(config)), values, 2, 60)


class SpectrogramOnly(nn.Module):
    """A text-to-speech model that returns the spectrogram only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        output = self.model(**inputs, return_dict=True)
        return type(output)({"last_hidden_state": output.spectrogram})


def frozen_distilbert(T: Any) -> Case:
    config = T.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=2, hidden_dim=37, sinusoidal_pos_embds=True)
    model = T.DistilBertModel(config)
    model.embeddings.position_embeddings.requires_grad_(False)  # trainable in this release
    return Case(model, {"input_ids": ids(3, 11)}, 1, 0)


MODELS: list[Callable[[Any], Case]] = [
    marian, pegasus, m2m_100, nllb_moe, xglm, fsmt, whisper, speech_to_text, musicgen, speecht5, frozen_distilbert,
]  # fmt: skip
