"""`integrations.swap` on other libraries' modules, and on models with tiny random configurations."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import migrating
import pytest
import torch
from agreement import ANGLE, VALUE
from test_integrations_page import run as run_page
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap
from sinpe_ext.integrations.replace import Swapped

Peer = Callable[[str], Any]
Run = Callable[[nn.Module], Tensor]
# Ratio of a difference in the output to one in the rows: a few layers of random weights, each after a LayerNorm. Small
# enough that halving the rows exceeds the bound, which `check_model` checks.
GAIN = 16.0
STEPS = 1000.0


def bound(position: float) -> float:
    """Difference of a model's output explained by the float32 angles of rows up to a position."""
    return GAIN * (position * ANGLE + VALUE)


def drop_ins(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Swapped)]


def check_model(model: nn.Module, run: Run, position: float, *, same_bits: bool = True) -> nn.Module:
    """The swapped copy of a model: outputs in both modes, copies, strict loading in both directions, a training step;
    the model itself is unchanged."""
    model.eval()
    with torch.no_grad():
        before = run(model)
        if same_bits:
            assert torch.equal(run(swap(model, inplace=False, strict=True, angle="float32").model), before)
        report = swap(model, inplace=False, strict=True)
        swapped: Any = report.model
        assert report.swapped and report.difference <= bound(position) / GAIN * 2
        assert not drop_ins(model) and torch.equal(run(model), before)
        after = run(swapped)
        assert float((after - before).abs().max()) <= bound(position)
        other = copy.deepcopy(swapped)
        for module in drop_ins(other):
            module.__dict__["_sinpe_encoding"] = module._sinpe_encoding.replace(amplitude=0.5)
        assert float((run(other) - before).abs().max()) > bound(position), "the test would not detect wrong rows"
        old, new = model.state_dict(), swapped.state_dict()
        assert [(n, t.shape, t.dtype) for n, t in old.items()] == [(n, t.shape, t.dtype) for n, t in new.items()]
        for other in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
            other.load_state_dict(old, strict=True)
            assert torch.equal(run(other), after) and len(drop_ins(other)) == len(report.swapped)
        other = copy.deepcopy(model)
        other.load_state_dict(new, strict=True)
        assert float((run(other) - before).abs().max()) <= bound(position)
    gradients = []
    for each in (copy.deepcopy(model).train(), copy.deepcopy(swapped).train()):
        torch.manual_seed(5)  # the same dropout
        run(each).square().mean().backward()
        gradients.append({name: p.grad for name, p in each.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, grad in gradients[0].items():
        # Relative to the gradient's size, since losses differ in scale.
        limit = bound(position) * max(1.0, float(grad.abs().max()))
        assert float((gradients[1][name] - grad).abs().max()) <= limit, name
    return swapped


# diffusers


class Case(NamedTuple):
    """A model, its inputs, the replaced modules, and whether angle="float32" gives the library's bits."""

    model: nn.Module
    inputs: dict[str, Any]
    swapped: list[str]
    same_bits: bool = True

    def run(self, model: nn.Module) -> Tensor:
        dtype = next(model.parameters()).dtype
        # FLUX's pipelines pass timesteps in the dtype of the model, others in float32 or int64.
        return model(**{name: _cast(value, dtype) for name, value in self.inputs.items()}).sample


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def unet(D: Any) -> Case:
    model = D.UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=16, norm_num_groups=2, cross_attention_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=2,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    hidden = torch.randn(2, 5, 8)
    inputs = {"sample": torch.randn(2, 4, 16, 16), "timestep": torch.tensor([3, 980]), "encoder_hidden_states": hidden}
    return Case(model, inputs, ["time_proj"])


def ddpm(D: Any) -> Case:
    """downscale_freq_shift 1, whose order of operations is not imitated."""
    model = D.UNet2DModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=16, norm_num_groups=2, in_channels=3,
        out_channels=3, freq_shift=1, flip_sin_to_cos=False, attention_head_dim=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    inputs = {"sample": torch.randn(2, 3, 16, 16), "timestep": torch.tensor([3, 980])}
    return Case(model, inputs, ["time_proj"], same_bits=False)


def flux(D: Any) -> Case:
    model = D.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8], guidance_embeds=True,
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(2, 16, 4), "encoder_hidden_states": torch.randn(2, 7, 32),
        "pooled_projections": torch.randn(2, 32), "timestep": torch.tensor([0.25, 0.98]),
        "guidance": torch.tensor([3.5, 3.5]), "txt_ids": torch.zeros(7, 3), "img_ids": torch.zeros(16, 3),
    }  # fmt: skip
    return Case(model, inputs, ["time_text_embed.time_proj"])


@pytest.mark.parametrize("build", [unet, ddpm, flux])
def test_models_of_diffusers(build: Callable[[Any], Case], peer: Peer, tmp_path: Path) -> None:
    """Outputs, checkpoints, copies, a training step, save_pretrained."""
    torch.manual_seed(0)
    case = build(peer("diffusers"))
    with torch.no_grad():  # blocks initialized to the identity would hide differences
        for p in case.model.parameters():
            if not bool(p.any()):
                p.normal_(std=0.05)
    swapped: Any = check_model(case.model, case.run, STEPS, same_bits=case.same_bits)
    assert [entry.name for entry in swap(swapped)] == case.swapped
    with torch.no_grad():
        before, after = case.run(case.model.eval()), case.run(swapped.eval())
        swapped.save_pretrained(tmp_path)
        loaded = type(case.model).from_pretrained(tmp_path).eval()
        assert not drop_ins(loaded)
        assert float((case.run(loaded) - before).abs().max()) <= bound(STEPS)
        swap(loaded, strict=True)
        assert torch.equal(case.run(loaded), after)


TIMESTEPS = [(flip, shift, scale) for flip in (False, True) for shift in (0, 1, 0.5) for scale in (1, 1000, 0.25)]


@pytest.mark.parametrize(("flip", "shift", "scale"), TIMESTEPS)
def test_timesteps(flip: bool, shift: float, scale: float, peer: Peer) -> None:
    """All fields of Timesteps, and odd widths: the exact rows, and the library's bits if imitated."""
    module = peer("diffusers.models.embeddings")
    for dim in (32, 33):
        old = module.Timesteps(dim, flip, shift, scale)
        report = swap(copy.deepcopy(old), strict=True)
        exact = report.model
        imitated = swap(copy.deepcopy(old), strict=True, angle="float32")
        for t in (torch.rand(50) * 1000 / max(scale, 1), torch.tensor([0.0, 0.5])):
            reference = sinpe.encode(t.double(), exact._sinpe_encoding, dtype=torch.float64)
            assert torch.equal(exact(t), reference.float())
            assert float((old(t) - reference).abs().max()) <= 1000 * ANGLE + VALUE
        assert exact(t).dtype == old(t).dtype == torch.float32
        assert imitated.difference <= report.difference
        if shift != 1 and scale != 1000:
            assert imitated.difference == 0.0 and torch.equal(imitated.model(t), old(t))
        for module_ in (old, exact):
            with pytest.raises((AssertionError, ValueError)):
                module_(torch.zeros(2, 3))


def test_modules_of_diffusers_that_are_not_replaced(peer: Peer) -> None:
    """Patch embeddings look up rows of a stored table: reported, with its convention, if `identify` finds it; the
    flattened table of a video it does not find."""
    module = peer("diffusers.models.embeddings")
    video = {"use_positional_embeddings": True, "use_learned_positional_embeddings": False}
    model = nn.ModuleList([
        module.PatchEmbed(8, 8, 2, 4, 16),
        module.PatchEmbed(8, 8, 2, 4, 16, pos_embed_type=None),
        module.CogVideoXPatchEmbed(embed_dim=32, sample_width=8, sample_height=8, max_text_seq_length=8, **video),
        module.Timesteps(2, False, 1),  # divides by zero
        module.SinusoidalPositionalEmbedding(16, 32),
    ])  # fmt: skip
    report = swap(model)
    assert [entry.name for entry in report.swapped] == ["4"]
    left = {entry.name: entry for entry in report.left}
    assert left.keys() == {"0", "3"} and left["0"].convention.startswith("mae2d")
    assert "`pos_embed` holds mae2d" in left["0"].reason and "`proj` (Conv2d)" in left["0"].reason
    assert "differ" in left["3"].reason


@pytest.mark.parametrize("library", ["diffusers"])
def test_blocks_of_the_page(library: str, peer: Peer, capsys: Any) -> None:
    """docs/integrations.md: the block that needs a library."""
    peer(library)
    assert run_page(library, capsys) == 1


# transformers

SIZES = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "pad_token_id": 1,
    "decoder_start_token_id": 2,
}  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
ENCODER, DECODER = "encoder.embed_positions", "decoder.embed_positions"
LOOKUPS: dict[str, tuple[Callable[[Any], nn.Module], str, tuple[str, ...]]] = {
    "whisper": (
        lambda T: T.WhisperModel(T.WhisperConfig(**SIZES, num_mel_bins=8, max_source_positions=60)),
        "`weight` holds t2t, 60 rows; ", (ENCODER,),
    ),
    "marian": (
        lambda T: T.MarianModel(T.MarianConfig(**SIZES, max_position_embeddings=64)),
        "`weight` holds paper_concat, 64 rows; ", (ENCODER, DECODER),
    ),
    "m2m_100": (
        lambda T: T.M2M100Model(T.M2M100Config(**SIZES, max_position_embeddings=64)),
        "`weights` holds t2t, 66 rows; ", (ENCODER, DECODER),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_are_reported(name: str, peer: Peer) -> None:
    build, reason, names = LOOKUPS[name]
    model = build(peer("transformers")).eval()
    kinds = {name: type(module) for name, module in model.named_modules()}
    report = swap(model)
    assert not report.swapped and sorted(entry.name for entry in report) == sorted(names)
    assert all(entry.reason.startswith(reason) and entry.encoding is not None for entry in report)
    assert {name: type(module) for name, module in model.named_modules()} == kinds


@pytest.mark.parametrize(
    ("model", "prefix"), [("conditional_detr", "ConditionalDetr"), ("sam2", "Sam2"), ("rt_detr", "RTDetr")]
)
def test_images_are_left_alone(model: str, prefix: str, peer: Peer) -> None:
    """The library keeps the rows of a shape; computed again in each call they would cost hundreds of times as much."""
    made = getattr(peer(f"transformers.models.{model}.modeling_{model}"), f"{prefix}SinePositionEmbedding")(16)
    (entry,) = swap(made)
    assert not entry.swapped and "looks sinusoidal by its name" in entry.reason


def test_learned_and_inner_tables(peer: Peer) -> None:
    """Learned positions are not reported; trained or fused tables are, with the reason."""
    T = peer("transformers")
    bert = T.BertModel(T.BertConfig(vocab_size=99, **SMALL))
    assert not swap(bert)
    with torch.no_grad():
        bert.embeddings.position_embeddings.weight.copy_(sinpe.table(512, 32))
    (entry,) = swap(bert)
    assert not entry.swapped and "requires_grad=True" in entry.reason and entry.convention == "paper"
    videomae = T.VideoMAEModel(T.VideoMAEConfig(image_size=32, patch_size=16, num_frames=8, **SMALL))
    (entry,) = swap(videomae)
    assert not entry.swapped and "too, on which its forward may depend" in entry.reason
    with pytest.raises(ValueError, match="strict=False"):
        swap(videomae, strict=True)


# x-transformers


def test_model_of_x_transformers(peer: Peer) -> None:
    torch.manual_seed(0)
    X = peer("x_transformers")
    model = X.TransformerWrapper(
        num_tokens=50,
        max_seq_len=64,
        scaled_sinu_pos_emb=True,
        attn_layers=X.Decoder(dim=32, depth=1, heads=2, attn_dim_head=16),
    ).eval()
    ids = torch.randint(0, 50, (2, 60))

    swapped = check_model(model, lambda each: each(ids), 60.0, same_bits=False)  # theta ** -x is not imitated
    assert [type(module).__name__ for module in drop_ins(swapped)] == ["SinpeScaledSinusoidalEmbedding"]


# denoising-diffusion-pytorch


@pytest.mark.parametrize(
    "file", ["denoising_diffusion_pytorch.py", "classifier_free_guidance.py", "guided_diffusion.py"]
)
def test_denoising_diffusion(file: str, installed: Callable[[str], Any]) -> None:
    """SinusoidalPosEmb with theta, and older versions without; of the file alone, the library needs further ones."""
    path, name = Path(str(installed("denoising_diffusion_pytorch").origin)).parent / file, "SinusoidalPosEmb"
    scope = {"__name__": "denoising_diffusion_pytorch", "math": math, "torch": torch, "nn": nn, "Module": nn.Module}
    migrating.definitions(path, [name], scope)
    kind: Any = scope[name]
    models = [nn.Sequential(kind(32), nn.Linear(32, 8), nn.GELU())]
    models += [nn.Sequential(kind(64, theta=500))] if "theta" in kind.__init__.__code__.co_varnames else []
    for old, base in zip(models, (10000.0, 500.0), strict=False):
        new = copy.deepcopy(old)
        (entry,) = swap(new, strict=True)
        assert entry.name == "0" and entry.form == "rows of timesteps"
        encoding = sinpe.convention("ddpm", old[0].dim, base=base)
        assert entry.encoding == encoding
        for t in (torch.arange(1000), torch.rand(50) * 1000, torch.tensor([999])):
            assert torch.equal(new[0](t), sinpe.encode(t, encoding))
            assert float((new[0](t) - old[0](t)).abs().max()) <= 1000 * 2.0**-22
            assert float((new(t) - old(t)).abs().max()) <= 16 * 1000 * 2.0**-22
        assert list(new.state_dict()) == list(old.state_dict())
