"""`integrations.swap` on x-transformers, positional-encodings, denoising-diffusion-pytorch, and timm's tables."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import swapping
import torch
from conftest import installed
from timm_function import timm_sincos2d
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import swap


def class_of(library: str, file: str, name: str, **names: Any) -> Any:
    """A class from a library's file, without importing the library, which would need further libraries."""
    (folder,) = installed(library).submodule_search_locations or ()
    path = Path(folder) / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    space: dict[str, Any] = {"__name__": library, **names}
    exec(compile(ast.Module([definition], []), str(path), "exec"), space)
    return space[name]


# x-transformers


def x_transformer(X: Any) -> nn.Module:
    return X.TransformerWrapper(
        num_tokens=50,
        max_seq_len=64,
        scaled_sinu_pos_emb=True,
        attn_layers=X.Decoder(dim=32, depth=1, heads=2, attn_dim_head=16),
    )


def test_x_transformers(peer: Any) -> None:
    """A whole model: outputs, checkpoints, copies, a training step."""
    torch.manual_seed(0)
    model = x_transformer(peer("x_transformers")).eval()
    ids = torch.randint(0, 50, (2, 60))

    def run(each: nn.Module) -> Tensor:
        return each(ids)

    # theta ** -x is not imitated.
    swapped = swapping.outputs(model, run, 60.0, same_bits=False)
    assert [type(module).__name__ for module in swapping.drop_ins(swapped)] == ["SinpeScaledSinusoidalEmbedding"]
    swapping.checkpoints(model, swapped, run, 60.0)
    swapping.copies(swapped, run)
    swapping.step(model, swapped, lambda each: each(ids).square().mean(), 60.0)


def test_x_transformers_arguments(peer: Any) -> None:
    old = peer("x_transformers.x_transformers").ScaledSinusoidalEmbedding(64, theta=500)
    new = copy.deepcopy(old)
    (entry,) = swap(new, strict=True)
    assert (entry.convention, entry.form) == ("paper_concat, base 500", "scale * rows for the length of x")
    x = torch.zeros(2, 33, 64)
    positions = torch.randperm(33)
    for named in ({}, {"offset": 900}, {"pos": positions}, {"pos": positions.float() + 0.5}):
        difference = (old(x, **named) - new(x, **named)).detach().abs().max()
        assert float(difference) <= 1000 * 2.0**-22
    encoding = sinpe.convention("paper_concat", 64, base=500)
    assert torch.equal(new(x), sinpe.table(33, encoding) * new.scale)
    with pytest.raises(RuntimeError):
        new(x, seq_start_pos=torch.tensor([1, 2]))  # as in the library: einsum needs one dimension


# denoising-diffusion-pytorch


@pytest.mark.parametrize(
    "file", ["denoising_diffusion_pytorch.py", "classifier_free_guidance.py", "guided_diffusion.py"]
)
def test_denoising_diffusion(file: str) -> None:
    """SinusoidalPosEmb with theta, and older versions without."""
    names = {"math": math, "torch": torch, "nn": nn, "Module": nn.Module}
    kind = class_of("denoising_diffusion_pytorch", file, "SinusoidalPosEmb", **names)
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


# timm


@pytest.fixture
def build(timm: ModuleSpec) -> Callable[..., Tensor]:
    return timm_sincos2d()


def test_timm(build: Callable[..., Tensor]) -> None:
    """A timm table in a model with other layers: reported, not replaced."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Conv2d(3, 64, 4, 4), nn.Linear(64, 5)
            self.places = nn.Parameter(build([12, 12], 64), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x).flatten(2).mT + self.places)

    (entry,) = swap(Model())
    assert (
        not entry.swapped
        and entry.convention == "timm2d"
        and "`places` holds timm2d, 144 rows" in entry.reason
        and "`embed` (Conv2d)" in entry.reason
    )
    with pytest.raises(ValueError, match="`places` holds timm2d"):
        swap(Model(), strict=True)
