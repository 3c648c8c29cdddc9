"""`integrations.swap` on diffusers' models with tiny random configurations: outputs, checkpoints, 16-bit timesteps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import swapping
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

STEPS = 1000.0


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

    def loss(self, model: nn.Module) -> Tensor:
        return self.run(model).square().mean()


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


MODELS: list[Callable[[Any], Case]] = [unet, ddpm, flux]


@pytest.fixture(params=MODELS, ids=lambda build: build.__name__)
def case(request: Any, peer: Any) -> Case:
    torch.manual_seed(0)
    built = request.param(peer("diffusers"))
    with torch.no_grad():  # blocks initialized to the identity would hide differences
        for p in built.model.parameters():
            if not bool(p.any()):
                p.normal_(std=0.05)
    return built


def test_model(case: Case) -> None:
    swapped = swapping.outputs(case.model, case.run, STEPS, same_bits=case.same_bits)
    assert [entry.name for entry in sinpe.integrations.swap(swapped)] == case.swapped
    swapping.checkpoints(case.model, swapped, case.run, STEPS)
    swapping.copies(swapped, case.run)


def test_training_step(case: Case) -> None:
    swapped = sinpe.integrations.swap(case.model, inplace=False, strict=True).model
    swapping.step(case.model, swapped, case.loss, STEPS)


def test_save_pretrained(case: Case, tmp_path: Any) -> None:
    model = case.model.eval()
    with torch.no_grad():
        before = case.run(model)
        sinpe.integrations.swap(model, strict=True)
        after = case.run(model)
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        assert not swapping.drop_ins(loaded)
        assert float((case.run(loaded) - before).abs().max()) <= swapping.bound(STEPS)
        sinpe.integrations.swap(loaded, strict=True)
        assert torch.equal(case.run(loaded), after)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_sixteen_bits(half: torch.dtype, peer: Any, recwarn: Any) -> None:
    """A 16-bit model with 16-bit timesteps, as in FLUX's pipelines: the rows of the stored values."""
    torch.manual_seed(0)
    case = flux(peer("diffusers"))
    model = case.model.to(half).eval()
    other = copy.deepcopy(model)
    report = sinpe.integrations.swap(other, strict=True)
    with torch.no_grad():
        old, new = case.run(model), case.run(other)
        assert old.dtype == new.dtype == half
        # Rows rounded to 16 bits from values that differ slightly: some are off by one unit, times the gain.
        unit = torch.finfo(half).eps * max(1.0, float(old.abs().max()))
        assert float((new.double() - old.double()).abs().max()) <= swapping.GAIN * unit
    t = torch.tensor([0.25, 998.39, 3.0]).to(half)
    for entry in report:
        module = other.get_submodule(entry.name)
        if entry.form == "rows of timesteps":
            got = module(t)
            assert got.dtype == torch.float32
            assert torch.equal(got, sinpe.encode(t.float(), entry.encoding))
            assert float((got - model.get_submodule(entry.name)(t)).abs().max()) <= STEPS * swapping.ANGLE
    assert not [str(warning.message) for warning in recwarn if "timestep" in str(warning.message)]


TIMESTEPS = [(flip, shift, scale) for flip in (False, True) for shift in (0, 1, 0.5) for scale in (1, 1000, 0.25)]


@pytest.mark.parametrize(("flip", "shift", "scale"), TIMESTEPS)
def test_timesteps(flip: bool, shift: float, scale: float, peer: Any) -> None:
    """All fields of Timesteps, and odd widths: the exact rows, and the library's bits if imitated."""
    module = peer("diffusers.models.embeddings")
    for dim in (32, 33):
        old = module.Timesteps(dim, flip, shift, scale)
        exact = sinpe.integrations.swap(copy.deepcopy(old), strict=True).model
        imitated = sinpe.integrations.swap(copy.deepcopy(old), strict=True, angle="float32")
        for t in (torch.rand(50) * 1000 / max(scale, 1), torch.tensor([0.0, 0.5])):
            reference = sinpe.encode(t.double(), exact._sinpe_encoding, dtype=torch.float64)
            assert torch.equal(exact(t), reference.float())
            assert float((old(t) - reference).abs().max()) <= 1000 * swapping.ANGLE + swapping.VALUE
        assert exact(t).dtype == old(t).dtype == torch.float32
        assert imitated[0].difference <= exact_difference(old)
        if shift != 1 and scale != 1000:
            assert imitated[0].difference == 0.0 and torch.equal(imitated.model(t), old(t))
        for module_ in (old, exact):
            with pytest.raises((AssertionError, ValueError)):
                module_(torch.zeros(2, 3))


def exact_difference(old: nn.Module) -> float:
    return sinpe.integrations.swap(copy.deepcopy(old), dry_run=True).difference


def test_compiled_timesteps(peer: Any) -> None:
    module = peer("diffusers.models.embeddings")
    new = sinpe.integrations.swap(module.Timesteps(32, True, 0), strict=True).model
    compiled = torch.compile(new, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        t = torch.tensor([0.0, 17.0, 981.0]).to(dtype)
        assert torch.equal(compiled(t), new(t))


def test_modules_that_are_not_replaced(peer: Any) -> None:
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
    report = sinpe.integrations.swap(model)
    assert [entry.name for entry in report.swapped] == ["4"]
    left = {entry.name: entry for entry in report.left}
    assert left.keys() == {"0", "3"} and left["0"].convention.startswith("mae2d")
    assert "`pos_embed` holds mae2d" in left["0"].reason and "`proj` (Conv2d)" in left["0"].reason
    assert "differ" in left["3"].reason
