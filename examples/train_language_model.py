"""A small language model of characters, trained with these layers and with plain torch layers: the same loss?

    With the package installed or PYTHONPATH=.:
    python examples/train_language_model.py              # three seeds of each, the text that every Python carries
    python examples/train_language_model.py --text FILE --steps 1000 --seeds 0 1 2 3 4

Both kinds begin from the same weights and see the same batches in the same order; their dropout masks differ, as those
of two seeds do. What is printed at the end: the loss on the part of the text that was held out, its spread over the
seeds, and the time of a training step. The exit status is 1 when the difference is larger than the spread explains.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from statistics import mean, median, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

LENGTH, WIDTH, HEADS, LAYERS, BATCH, RATE = 128, 128, 4, 2, 32, 2e-3
HELD_OUT = 0.1  # of the text, at its end
MARGIN = 2.0  # times the spread of one training's loss over the seeds: a larger difference of the means is not noise


class TorchFront(nn.Module):
    """Token embedding, position and dropout in torch's operations: four passes and a stored mask."""

    pe: Tensor

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(LENGTH).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(LENGTH, width)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * frequency), torch.cos(position * frequency)
        self.register_buffer("pe", pe, persistent=False)

    @property
    def weight(self) -> nn.Parameter:
        return self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.embedding.embedding_dim**0.5 + self.pe[: ids.shape[1]])


def sinpe_front(vocabulary: int, width: int, dropout: float) -> nn.Module:
    """The same in one pass, forward and backward, without table and mask."""
    return sinpe.SinusoidalEmbedding(vocabulary, width, dropout=dropout, scale=width**0.5)


FRONTS = {"torch": TorchFront, "sinpe_ext": sinpe_front}


class LanguageModel(nn.Module):
    """A causal Transformer whose output layer shares the embedding's weight."""

    mask: Tensor

    def __init__(self, front: nn.Module, dropout: float = 0.1) -> None:
        super().__init__()
        self.front = front
        nn.init.normal_(self.front.weight, std=WIDTH**-0.5)
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout, batch_first=True, norm_first=True, activation="gelu"
        )
        self.blocks = nn.TransformerEncoder(block, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        hidden = self.blocks(self.front(ids), mask=self.mask[:length, :length], is_causal=True)
        return functional.linear(hidden, self.front.weight)


def read_text(path: str | None) -> tuple[str, str]:
    """A text and its name: the file asked for, else the language reference that comes with Python."""
    if path is not None:
        return path, Path(path).read_text(encoding="utf-8")
    from pydoc_data import topics

    return "Python's language reference", "\n".join(topics.topics[name] for name in sorted(topics.topics))


def numbered(text: str) -> tuple[Tensor, int]:
    """The text as numbers of its characters, and how many different ones it has."""
    index = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([index[character] for character in text]), len(index)


def batches(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """BATCH windows of the data, and each shifted by one."""
    begin = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), generator=generator)
    window = data[begin + torch.arange(LENGTH + 1)]
    return window[:, :-1], window[:, 1:]


def loss_of(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    logits = model(ids)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def model_of(kind: str, vocabulary: int, dropout: float = 0.1) -> LanguageModel:
    """With these layers or with torch's own, see FRONTS."""
    return LanguageModel(FRONTS[kind](vocabulary, WIDTH, dropout), dropout)


def train(kind: str, data: Tensor, vocabulary: int, seed: int, steps: int, dropout: float) -> tuple[float, float]:
    """The held-out loss after training, and the median seconds of a step."""
    torch.manual_seed(seed)
    model = model_of(kind, vocabulary, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(steps, 2))
    order = torch.Generator().manual_seed(seed)
    cut = int(len(data) * (1 - HELD_OUT))
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model, *batches(data[:cut], order)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - begin)
    model.eval()
    with torch.no_grad():
        held_out = torch.Generator().manual_seed(0)
        losses = [loss_of(model, *batches(data[cut:], held_out)).item() for _ in range(20)]
    return mean(losses), median(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a UTF-8 text file")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    name, text = read_text(options.text)
    data, vocabulary = numbered(text)
    print(f"{name}: {len(data)} characters, {vocabulary} different; {options.steps} steps of {BATCH} x {LENGTH}")
    losses: dict[str, list[float]] = {kind: [] for kind in FRONTS}
    for seed in options.seeds:
        for kind in FRONTS:
            loss, seconds = train(kind, data, vocabulary, seed, options.steps, options.dropout)
            losses[kind].append(loss)
            print(f"seed {seed}  {kind:9}  held-out loss {loss:.4f}  {1e3 * seconds:.1f} ms a step", flush=True)
    for kind, found in losses.items():
        spread = f" +- {stdev(found):.4f} over {len(found)} seeds" if len(found) > 1 else ""
        print(f"{kind:9}  {mean(found):.4f}{spread}")
    mine, theirs = losses["sinpe_ext"], losses["torch"]
    difference = mean(mine) - mean(theirs)
    if len(mine) == 1:
        print(f"difference {difference:+.4f} (one seed: no spread to compare it with)")
        return 0
    spread = ((stdev(mine) ** 2 + stdev(theirs) ** 2) / 2) ** 0.5
    within = abs(difference) <= MARGIN * spread
    verdict = "within noise" if within else "NOT within noise"
    print(f"difference {difference:+.4f}, spread over the seeds {spread:.4f}: {verdict} ({MARGIN:g} spreads)")
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
