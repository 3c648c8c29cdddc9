"""Hugging Face accelerate: a model created on the meta device, loaded from a file, with some layers offloaded to disk.

    python examples/accelerate_meta.py     needs accelerate

The layers lose nothing on the meta device, because they compute rows from a few numbers and store no table. With
`persistent_table=True` there is a buffer `pe` for code that expects one, which is loaded in the same way.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import accelerate
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from torch import Tensor, nn

import sinpe_ext as sinpe

WIDTH = 32


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = sinpe.SinusoidalEmbedding(100, WIDTH, padding_idx=0, dropout=0.0, scale=WIDTH**0.5)
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH), nn.LayerNorm(WIDTH))
        # Like the tutorial's module: a buffer `pe` of max_len rows, which is saved in the checkpoint.
        self.again = sinpe.SinusoidalPositionalEncoding(
            WIDTH, 0.0, max_len=512, learned_alpha=True, persistent_table=True
        )
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.again(self.body(self.tokens(ids))))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ids = torch.randint(1, 100, (2, 300))
    model = Model().eval()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model.again.alpha.fill_(0.7)
        expected = model(ids)
        accelerate.Accelerator(cpu=True).save_model(model, folder)
        print(f"accelerate {accelerate.__version__}, torch {torch.__version__}")
        for buffers in (False, True):
            for place in ("cpu", "disk"):
                with init_empty_weights(include_buffers=buffers):
                    empty = Model().eval()
                assert empty.head.weight.is_meta and empty.again.pe.is_meta == buffers
                devices = {"tokens": place, "body": place, "again": place, "head": "cpu"}
                loaded = load_checkpoint_and_dispatch(
                    empty, folder, devices, offload_folder=str(Path(folder, "offload")), offload_buffers=buffers
                )
                same = torch.equal(loaded(ids), expected)
                print(f"include_buffers={buffers!s:5}  layers on the {place:4}: same bits {same}")
                assert same
        # to_empty, as accelerate and FSDP call it: weights and the table are uninitialized memory.
        with torch.device("meta"):
            empty = Model().eval()
        empty.to_empty(device="cpu")
        empty.again.pe.fill_(float("nan"))  # the worst possible content of that memory
        empty.load_state_dict({name: value for name, value in model.state_dict().items() if name != "again.pe"})
        table = sinpe.table(512, WIDTH).reshape(empty.again.pe.shape)
        same, saved = torch.equal(empty(ids), expected), torch.equal(empty.state_dict()["again.pe"], table)
        print(f"to_empty, then a checkpoint without the table: same bits {same}, it saves the right table {saved}")
        assert same and saved


if __name__ == "__main__":
    main()
