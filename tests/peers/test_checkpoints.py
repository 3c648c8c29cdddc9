"""Our layers inside transformers' models: save_pretrained and from_pretrained, with and without the buffer `pe`."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sinpe_ext as sinpe

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
D = 8


class Config(transformers.PretrainedConfig):
    model_type = "sinpe_ext_test"

    def __init__(self, persistent: bool = True, **rest: object) -> None:
        super().__init__(**rest)
        self.persistent = persistent


class Model(transformers.PreTrainedModel):
    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encode = sinpe.SinusoidalPositionalEncoding(
            D, 0.0, 20, persistent_table=config.persistent, learned_alpha=True, alpha=0.5
        )
        self.linear = nn.Linear(D, D)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.encode(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("saved", [True, False], ids=["saved with pe", "saved without"])
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded with pe", "loaded without"])
def test_from_pretrained(saved: bool, loaded: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(Config(saved)).eval(), torch.randn(2, 5, D)
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        again = Model.from_pretrained(tmp_path, config=Config(loaded), dtype=dtype).eval()
    assert torch.allclose(again(x.to(dtype)).float(), model(x), atol=1e-6 if dtype == torch.float32 else 0.05)
    assert again.encode.alpha.item() == 0.5
    state = again.state_dict()
    assert ("encode.pe" in state) == loaded
    if loaded:
        assert again.get_buffer("encode.pe").shape == (1, 20, D)
        assert torch.equal(state["encode.pe"], sinpe.table(20, D)[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_pretrained_of_another_convention_warns(dtype: torch.dtype, tmp_path: Path) -> None:
    model = Model(Config())
    model.encode = sinpe.SinusoidalPositionalEncoding(
        D, 0.0, 20, encoding="t2t", persistent_table=True, learned_alpha=True
    )
    model.to(dtype).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r'pe: the checkpoint.s table is not .*; it is sinpe.convention\("t2t", 8\)'):
        again = Model.from_pretrained(tmp_path)
    assert torch.equal(again.state_dict()["encode.pe"], sinpe.table(20, D)[None])
