"""Hugging Face Trainer with a swapped model: equal losses, also when the run is resumed from a checkpoint.

    python examples/hf_trainer.py     needs transformers and accelerate

A small M2M100 with random weights, whose encoder and decoder add sinusoids, learns to count. It is trained three times
with the same seed: unmodified, after `swap`, and after `swap` from the checkpoint that the second run saved halfway.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import M2M100Config, M2M100ForConditionalGeneration, Trainer, TrainingArguments

import sinpe_ext as sinpe

STEPS, HALF = 40, 20
# For losses of 2 to 5: float32 angles cause errors of 1e-6 in the original rows of these 12 positions, which the
# optimizer amplifies over some tens of steps.
TOLERANCE = 1e-4


def tiny_model() -> M2M100ForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return M2M100ForConditionalGeneration(M2M100Config(vocab_size=100, max_position_embeddings=64, **sizes, **heads))


def sentences(count: int = 256, length: int = 12) -> list[dict[str, Tensor]]:
    """Sequences of consecutive numbers, each from a different start."""
    first = torch.randint(96, (count, 1), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in (first + torch.arange(length)) % 96 + 4]


def losses(model: nn.Module, folder: Path, resume: Path | None = None) -> list[float]:
    """The loss at each step; saves a checkpoint at step HALF."""
    arguments = TrainingArguments(
        str(folder), max_steps=STEPS, save_steps=HALF, logging_steps=1, per_device_train_batch_size=16,
        learning_rate=1e-2, seed=0, use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=sentences())
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        own = losses(tiny_model(), Path(folder, "own"))
        model = tiny_model()
        report = sinpe.integrations.swap(model, strict=True)
        swapped = losses(model, Path(folder, "swapped"))
        again = tiny_model()
        sinpe.integrations.swap(again, strict=True)
        resumed = losses(again, Path(folder, "resumed"), resume=Path(folder, "swapped", f"checkpoint-{HALF}"))
    difference = max(abs(a - b) for a, b in zip(own, swapped, strict=True))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print("swapped:", ", ".join(entry.name for entry in report.swapped))
    print(f"{STEPS} steps, loss {own[0]:.4f} -> {own[-1]:.4f}; swapped: {swapped[0]:.4f} -> {swapped[-1]:.4f}")
    print(f"largest difference of a step's loss: {difference:.1e}")
    assert len(own) == STEPS and own[-1] < own[0] - 0.3, "it does not learn"
    assert difference <= TOLERANCE
    assert resumed == swapped, "the resumed run has other losses"
    same = all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    print(f"resumed at step {HALF}: the same losses to the end, the same weights: {same}")
    assert same


if __name__ == "__main__":
    main()
