"""Hugging Face accelerate: layers created on the meta device, loaded from a file, and offloaded to disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Peer
from torch import nn

import sinpe_ext as sinpe


def made() -> nn.Module:
    tokens = sinpe.SinusoidalEmbedding(100, 32, padding_idx=0, dropout=0.0, scale=2.0)
    with_table = sinpe.SinusoidalPositionalEncoding(32, 0.0, max_len=512, learned_alpha=True, persistent_table=True)
    return nn.Sequential(tokens, with_table, nn.Linear(32, 8)).eval()


@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("buffers", [False, True])
def test_layers_lose_nothing_on_the_meta_device(buffers: bool, place: str, peer: Peer, tmp_path: Path) -> None:
    accelerate = peer("accelerate")
    model, ids = made(), torch.randint(1, 100, (2, 300))
    with torch.no_grad():
        model[1].alpha.fill_(0.7)
        accelerate.Accelerator(cpu=True).save_model(model, str(tmp_path))
        with accelerate.init_empty_weights(include_buffers=buffers):
            empty = made()
        assert empty[2].weight.is_meta and empty[1].pe.is_meta == buffers
        loaded = accelerate.load_checkpoint_and_dispatch(
            empty, str(tmp_path), {"0": place, "1": place, "2": "cpu"}, offload_folder=str(tmp_path / "offload"),
            offload_buffers=buffers,
        )  # fmt: skip
        assert torch.equal(loaded(ids), model(ids))
