"""Lightning: a run resumed from a checkpoint has the same dropout masks if the step is the seed.

    python examples/lightning_module.py     needs lightning

`seed=` determines the mask. With the number of the step as seed, a resumed run uses the masks of an uninterrupted one.
Without a seed, the masks come from torch's generator, whose state is not in Lightning's checkpoints, so the resumed run
differs.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sinpe_ext as sinpe

WIDTH, EPOCHS, SAVED = 32, 20, 10


class Tagger(lightning.LightningModule):
    """Predicts, for each token, the token two positions earlier, which requires positions."""

    def __init__(self, seeded: bool) -> None:
        super().__init__()
        self.seeded = seeded
        self.embedding = nn.Embedding(20, WIDTH)
        self.encoding = sinpe.SinusoidalPositionalEncoding(WIDTH, dropout=0.2, learned_alpha=True)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 20)
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        (ids,) = batch
        x = self.encoding(self.embedding(ids), seed=self.global_step if self.seeded else None)
        loss = nn.functional.cross_entropy(self.head(self.body(x)).flatten(0, 1), ids.roll(2, 1).flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(folder: Path, seeded: bool, resume: Path | None = None) -> Tagger:
    lightning.seed_everything(0 if resume is None else 1, verbose=False)  # as in a new process
    model = Tagger(seeded)
    ids = torch.randint(20, (128, 16), generator=torch.Generator().manual_seed(2))
    each_epoch = ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1, every_n_epochs=1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, callbacks=[each_epoch], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(ids), batch_size=16), ckpt_path=resume)
    return model


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of Lightning, about DataLoader workers and a folder that is not empty
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"lightning {lightning.__version__}, torch {torch.__version__}")
    for seeded in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            whole = fit(Path(folder), seeded)
            resumed = fit(Path(folder), seeded, resume=Path(folder, f"epoch={SAVED - 1}.ckpt"))
        rest = whole.losses[-len(resumed.losses) :]
        difference = max(abs(a - b) for a, b in zip(rest, resumed.losses, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
        print(
            f"{'seed=step' if seeded else 'no seed  '}  loss {whole.losses[0]:.4f} -> {whole.losses[-1]:.4f}, "
            f"resumed after {SAVED} of {EPOCHS} epochs: largest difference {difference:.1e}, same weights: {same}"
        )
        assert len(resumed.losses) == len(whole.losses) * (EPOCHS - SAVED) // EPOCHS
        assert whole.losses[-1] < whole.losses[0] - 0.5, "it does not learn"
        assert same == seeded and (difference == 0) == seeded


if __name__ == "__main__":
    main()
