"""`integrations.swap` on transformers' models with tiny random configurations: outputs, checkpoints, training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import swapping
import torch
from torch import Tensor
from transformers_models import (
    MODELS,
    Case,
    frozen_distilbert,
    fsmt,
    ids,
    m2m_100,
    marian,
    musicgen,
    whisper,
    xglm,
)  # fmt: skip

import sinpe_ext as sinpe


@pytest.fixture(params=MODELS, ids=lambda build: build.__name__)
def case(request: Any, peer: Any) -> Case:
    torch.manual_seed(0)
    return request.param(peer("transformers"))


def test_model(case: Case) -> None:
    swapped = swapping.outputs(case.model, case.run, case.position)
    assert len(swapping.drop_ins(swapped)) == case.swapped
    swapping.checkpoints(case.model, swapped, case.run, case.position)
    swapping.copies(swapped, case.run)
    with torch.no_grad():
        assert case.run(swapped.to(torch.bfloat16)).dtype == torch.bfloat16


def test_training_step(case: Case) -> None:
    swapped = sinpe.integrations.swap(case.model, inplace=False, strict=True).model
    swapping.step(case.model, swapped, case.loss, case.position)


@pytest.mark.parametrize("build", [marian, m2m_100, fsmt, whisper, xglm], ids=lambda build: build.__name__)
def test_generation_with_a_cache(build: Callable[[Any], Case], peer: Any) -> None:
    """Positions continue from past_key_values: the same tokens from the same bits."""
    torch.manual_seed(0)
    case = build(peer("transformers"))
    model = case.model.eval()
    given = {name: value for name, value in case.inputs.items() if name != "decoder_input_ids"}
    first = given.pop("input_ids" if "input_ids" in given else "input_features")
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, **given}
    before = model.generate(first, **options)
    sinpe.integrations.swap(model, strict=True, angle="float32")
    assert torch.equal(model.generate(first, **options), before)


def test_codebooks_with_a_cache(peer: Any) -> None:
    """MusicGen step by step: the position continues from the cache."""
    case = musicgen(peer("transformers"))
    model, tokens = case.model.eval(), case.inputs["input_ids"]

    def in_two() -> Tensor:
        first = model(input_ids=tokens[:, :9], use_cache=True)
        return model(input_ids=tokens[:, 9:], past_key_values=first.past_key_values, use_cache=True).logits

    with torch.no_grad():
        before = in_two()
        sinpe.integrations.swap(model, strict=True, angle="float32")
        assert torch.equal(in_two(), before)


@pytest.mark.parametrize("build", [marian, m2m_100, whisper, musicgen], ids=lambda build: build.__name__)
def test_save_pretrained(build: Callable[[Any], Case], peer: Any, tmp_path: Any) -> None:
    """A swapped model's checkpoint equals the library's: from_pretrained gives its class, which swaps again."""
    torch.manual_seed(0)
    case = build(peer("transformers"))
    model = case.model.eval()
    with torch.no_grad():
        before = case.run(model)
        sinpe.integrations.swap(model, strict=True)
        after = case.run(model)
        model.save_pretrained(tmp_path)
        loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert not swapping.drop_ins(loaded)
        assert float((case.run(loaded.eval()) - before).abs().max()) <= swapping.bound(case.position)
        sinpe.integrations.swap(loaded, strict=True)
        assert torch.equal(case.run(loaded), after)


def test_longer_than_the_table(peer: Any) -> None:
    """The old modules extend a table, or fail; ours has no limit, and no attribute is set in forward."""
    T = peer("transformers")
    for build in (m2m_100, musicgen, marian):
        model = build(T).model.eval()
        for entry in sinpe.integrations.swap(model, strict=True):
            module = model.get_submodule(entry.name)
            rows = sinpe.table(500, module._sinpe_encoding)
            if build is not musicgen:  # rows from the table and from the encoding, across the table's end
                call = (lambda n, m=module: m(torch.full((1, n), 7))[0]) if build is m2m_100 else (
                    lambda n, m=module: m(torch.Size((1, n)))
                )  # fmt: skip
                assert torch.equal(call(40), call(400)[:40])
            if build is m2m_100:
                got = module(torch.full((1, 400), 7))[0]
                assert torch.equal(got, rows[2:402]) and module.weights.shape[0] == 66
            elif build is musicgen:
                assert torch.equal(module(torch.zeros(1, 4, 400), 10), rows[10:410])
            else:
                assert torch.equal(module(torch.Size((1, 400)), 10), rows[10:410])


def test_classes_and_weight_initialisation(peer: Any) -> None:
    """isinstance, and the library's code for modules, including `_init_weights`."""
    T = peer("transformers")
    for build, library in ((marian, "marian"), (m2m_100, "m2m_100"), (musicgen, "musicgen"), (whisper, "whisper")):
        model = build(T).model
        kinds = [type(model.get_submodule(e.name)) for e in sinpe.integrations.swap(model, inplace=False)]
        report = sinpe.integrations.swap(model)
        for entry, kind in zip(report, kinds, strict=True):
            module = model.get_submodule(entry.name)
            assert isinstance(module, kind) and type(module).__module__ == kind.__module__, library
            tables = {name: getattr(module, name).clone() for name in module._sinpe_tables}
            model._init_weights(module) if library != "whisper" else model._init_weights(model.model.encoder)
            for name, table in tables.items():
                limit = 66 * swapping.ANGLE + swapping.VALUE if library == "whisper" else 0.0
                assert float((getattr(module, name) - table).abs().max()) <= limit
        assert entry.old_class.rpartition(".")[2] in ("Embedding", kind.__name__)


def test_compiled(peer: Any) -> None:
    """fullgraph, with padding, past and positions; the results equal eager."""
    T = peer("transformers")
    calls = {
        marian: [((torch.Size((2, 7)), 3), {}), ((torch.Size((2, 3)),), {"position_ids": torch.tensor([4, 0, 9])})],
        m2m_100: [((ids(3, 9),), {"past_key_values_length": 4}), ((), {"inputs_embeds": torch.zeros(2, 5, 32)})],
        whisper: [((torch.arange(60),), {})],
        musicgen: [((torch.zeros(2, 4, 9), 5), {})],
    }
    for build, arguments in calls.items():
        model = build(T).model.eval()
        entry = sinpe.integrations.swap(model, strict=True)[0]
        module = model.get_submodule(entry.name)
        torch.compiler.reset()
        compiled = torch.compile(module, fullgraph=True)
        for args, kwargs in arguments:
            assert torch.equal(compiled(*args, **kwargs), module(*args, **kwargs)), build.__name__


def test_half_precision_modules(peer: Any) -> None:
    """Swapped in float16 and bfloat16: rows rounded once from the exact ones, in the table's dtype."""
    T = peer("transformers")
    for dtype in (torch.float16, torch.bfloat16):
        for build in (marian, m2m_100, musicgen, whisper):
            model = build(T).model.to(dtype)
            for entry in sinpe.integrations.swap(model, strict=True):
                module = model.get_submodule(entry.name)
                rows = sinpe.table(12, module._sinpe_encoding, dtype=dtype)
                table = getattr(module, module._sinpe_tables[0])
                assert torch.equal(table[2:12], rows[2:12]) and table.dtype == dtype


@pytest.mark.parametrize(
    ("model", "prefix"), [("conditional_detr", "ConditionalDetr"), ("sam2", "Sam2"), ("rt_detr", "RTDetr")]
)
def test_images_are_left_alone(model: str, prefix: str, peer: Any) -> None:
    """The library keeps the rows of a shape; computed again in each call they would cost hundreds of times as much."""
    made = getattr(peer(f"transformers.models.{model}.modeling_{model}"), f"{prefix}SinePositionEmbedding")(16)
    (entry,) = sinpe.integrations.swap(made)
    assert not entry.swapped and "looks sinusoidal by its name" in entry.reason


def test_modules_that_are_not_replaced(peer: Any) -> None:
    """Learned positions are not reported; trained or fused tables are, with the reason, and are unchanged."""
    T = peer("transformers")
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
    bert = T.BertModel(T.BertConfig(vocab_size=99, **small))
    assert not sinpe.integrations.swap(bert)
    with torch.no_grad():
        bert.embeddings.position_embeddings.weight.copy_(sinpe.table(512, 32))
    (entry,) = sinpe.integrations.swap(bert)
    assert not entry.swapped and "requires_grad=True" in entry.reason and entry.convention == "paper"
    videomae = T.VideoMAEModel(T.VideoMAEConfig(image_size=32, patch_size=16, num_frames=8, **small))
    (entry,) = sinpe.integrations.swap(videomae)
    assert not entry.swapped and "layers of its own" in entry.reason
    with pytest.raises(ValueError, match="strict=False"):
        sinpe.integrations.swap(videomae, strict=True)
    model = marian(T).model
    with torch.no_grad():
        model.model.encoder.embed_positions.weight[5] += 0.25  # as if trained
    kept = model.model.encoder.embed_positions.weight.clone()
    report = sinpe.integrations.swap(model)
    assert [entry.name for entry in report.left] == ["model.encoder.embed_positions"]
    assert "differs by up to 0.25" in report.left[0].reason
    assert torch.equal(model.model.encoder.embed_positions.weight, kept)
    (entry,) = report.swapped
    assert entry.name == "model.decoder.embed_positions"


def test_weights_that_a_release_leaves_trainable(peer: Any) -> None:
    """Whisper's encoder after from_pretrained, DistilBERT's sinusoids: meant to be fixed; replaced and frozen."""
    T = peer("transformers")
    for build, path in (
        (whisper, "model.encoder.embed_positions"),
        (frozen_distilbert, "embeddings.position_embeddings"),
    ):
        model = build(T).model
        weight = model.get_submodule(path).weight.requires_grad_(True)
        (entry,) = sinpe.integrations.swap(model)
        assert entry.swapped and "weight frozen" in entry.form
        assert model.get_submodule(path).weight is weight and not weight.requires_grad


def test_checkpoint_with_another_table_warns(peer: Any) -> None:
    T = peer("transformers")
    model = marian(T).model.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["model.encoder.embed_positions.weight"] += 0.25
    sinpe.integrations.swap(model, strict=True)
    rows = model.model.encoder.embed_positions.weight.clone()
    with pytest.warns(UserWarning, match="model.encoder.embed_positions.weight: the checkpoint's table is not"):
        model.load_state_dict(state)
    assert torch.equal(model.model.encoder.embed_positions.weight, rows)
