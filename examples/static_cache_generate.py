"""transformers' `generate` with a static cache and swapped models, eager and compiled: the same tokens.

    python examples/static_cache_generate.py     needs transformers, and a C++ compiler for Inductor

The models are tiny and have random weights. Tokens are sampled with a fixed seed, so that a wrong row of the encoding
changes them: the last column counts the tokens that change if the rows are shifted by one channel.
"""

from __future__ import annotations

import copy
import warnings

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    CompileConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    XGLMConfig,
    XGLMForCausalLM,
)

import sinpe_ext as sinpe

BOTH = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES = {"vocab_size": 99, "d_model": 32, "max_position_embeddings": 64, "pad_token_id": 1, "decoder_start_token_id": 2}
PROMPT, NEW = 9, 20


def models() -> dict[str, nn.Module]:
    feed = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    found = {
        "Marian": MarianMTModel(MarianConfig(**SIZES, **BOTH, **feed)),
        "M2M100": M2M100ForConditionalGeneration(M2M100Config(**SIZES, **BOTH, **feed)),
        "XGLM": XGLMForCausalLM(XGLMConfig(vocab_size=99, d_model=32, num_layers=1, attention_heads=2, ffn_dim=64)),
    }
    with torch.no_grad():
        for model in found.values():  # larger weights, so that the distributions of tokens are not almost uniform
            for weight in model.eval().parameters():
                weight.mul_(8.0 if weight.dim() > 1 and weight.requires_grad else 1.0)
    return found


def tokens(model: nn.Module, cache: str, compiled: bool = False) -> Tensor:
    prompt = torch.randint(3, 99, (3, PROMPT), generator=torch.Generator().manual_seed(2))
    torch.manual_seed(1)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": True, "return_dict_in_generate": True}
    if compiled:
        options["compile_config"] = CompileConfig(fullgraph=True, mode="default", dynamic=False)
        options["compile_config"]._compile_all_devices = True  # otherwise transformers compiles for GPUs only
    out = model.generate(prompt, cache_implementation=cache, **options)
    assert out.past_key_values.is_compileable == (cache == "static"), "not the cache that was asked for"
    return out.sequences[:, -NEW:]


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; 3 sequences of {NEW} new tokens")
    for name, model in models().items():
        swapped = sinpe.integrations.swap(model, inplace=False, strict=True).model
        expected = tokens(model, "dynamic")
        assert torch.equal(tokens(model, "static"), expected)
        static = torch.equal(tokens(swapped, "static"), expected)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.equal(tokens(swapped, "static", compiled=True), expected)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        wrong = copy.deepcopy(swapped)
        for entry in sinpe.integrations.swap(wrong):  # reports the modules that are swapped already
            wrong.get_submodule(entry.name).register_forward_hook(lambda module, given, rows: rows.roll(1, -1))
        changed = int((tokens(wrong, "static") != expected).sum())
        print(
            f"{name:6}  swapped, static cache: same tokens {static}; compiled, {graphs} graph: {compiled}; "
            f"with wrong rows {changed} of {expected.numel()} change"
        )
        assert static and compiled and graphs == 1 and changed > NEW


if __name__ == "__main__":
    main()
