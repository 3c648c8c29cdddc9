"""A small language model, evaluated far beyond its training length.

    python examples/extrapolation.py             # with the package installed, or PYTHONPATH=. before it
    python examples/extrapolation.py --quick     # takes seconds; too short for meaningful results
    python examples/extrapolation.py --text FILE --length 128 --evaluate-lengths 128 256 1024 --steps 2000

Three character-level models are trained on windows of one length. They differ only in the positions of a window: "from
0" starts at 0, "random start" starts anywhere in the longest evaluated length (start= with one value per sample), and
"none" has no encoding, since a causal Transformer can derive positions without one.

The table has the loss per character, in nats, on a held-out part of the text. Every column predicts the same
characters, at the end of windows of different lengths. A loss that rises from left to right shows that more context
harms the model. examples/README.md has the results.
"""

from __future__ import annotations

import argparse
import time
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional
from train_language_model import HELD_OUT, WIDTH, LanguageModel, numbered, read_text

import sinpe_ext as sinpe

BATCH, RATE, DROPOUT = 16, 2e-3, 0.1
KINDS = ("from 0", "random start", "none")


class AnyLength(LanguageModel):
    """The model of train_language_model.py, for windows of any length that start at any position."""

    def forward(self, ids: Tensor, start: int | Tensor = 0) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.blocks(self.front(ids, start=start), mask=mask, is_causal=True)
        return functional.linear(hidden, self.front.weight)


def train(kind: str, data: Tensor, vocabulary: int, seed: int, options: argparse.Namespace) -> tuple[nn.Module, str]:
    """A model trained on windows of --length characters, and a line about the training."""
    torch.manual_seed(seed)
    alpha = 0.0 if kind == "none" else 1.0
    front = sinpe.SinusoidalEmbedding(vocabulary, WIDTH, dropout=DROPOUT, scale=WIDTH**0.5, alpha=alpha)
    model = AnyLength(front, DROPOUT)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=options.steps)
    order = torch.Generator().manual_seed(seed)
    longest, losses, began = max(options.evaluate_lengths), [], time.perf_counter()
    for _ in range(options.steps):
        begin = torch.randint(len(data) - options.length - 1, (BATCH, 1), generator=order)
        window = data[begin + torch.arange(options.length + 1)]
        start: int | Tensor = 0
        if kind == "random start":
            start = torch.randint(longest - options.length + 1, (BATCH,), generator=order)
        loss = functional.cross_entropy(model(window[:, :-1], start).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    tenth = max(options.steps // 10, 1)
    fell = f"training loss {mean(losses[:tenth]):.3f} -> {mean(losses[-tenth:]):.3f}"
    return model.eval(), f"{fell} in {time.perf_counter() - began:.0f} s"


@torch.no_grad()
def loss_at(model: nn.Module, data: Tensor, length: int, options: argparse.Namespace) -> float:
    """The loss on the last --length characters of windows of `length` characters; the same ones for any length."""
    where = torch.Generator().manual_seed(0)
    longest = max(options.evaluate_lengths)
    ends = torch.randint(longest, len(data), (options.windows, 1), generator=where)
    losses = []
    for end in ends.split(8):
        window = data[end + torch.arange(-length, 1)]
        logits = model(window[:, :-1])[:, -options.length :]
        losses.append(functional.cross_entropy(logits.flatten(0, 1), window[:, -options.length :].flatten()) * len(end))
    return float(sum(losses)) / options.windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a UTF-8 text file; default: the language reference that comes with Python")
    parser.add_argument("--length", type=int, default=64, help="length of the training windows")
    parser.add_argument("--evaluate-lengths", type=int, nargs="+", help="default: 1, 2, 4, 8 and 16 times --length")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--windows", type=int, default=128, help="number of held-out windows for each length")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, 30 steps, 8 windows, length 16")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.windows, options.length = [0], 30, 8, 16
    options.evaluate_lengths = options.evaluate_lengths or [options.length * k for k in (1, 2, 4, 8, 16)]
    if min(options.evaluate_lengths) < options.length:
        parser.error(
            f"--evaluate-lengths: expected {options.length} (--length) or more, got {options.evaluate_lengths}"
        )
    name, text = read_text(options.text)
    data, vocabulary = numbered(text)
    cut = int(len(data) * (1 - HELD_OUT))
    if len(data) - cut <= max(options.evaluate_lengths) or cut <= options.length + 1:
        parser.error(f"--text: expected more than {10 * max(options.evaluate_lengths)} characters, got {len(data)}")
    print(
        f"{name}: {len(data)} characters, {vocabulary} different; {options.steps} steps of {BATCH} x {options.length}"
    )
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for seed in options.seeds:
        for kind in KINDS:
            model, line = train(kind, data[:cut], vocabulary, seed, options)
            found[kind].append([loss_at(model, data[cut:], n, options) for n in options.evaluate_lengths])
            print(f"seed {seed}  {kind:12}  {line}", flush=True)
    print(f"\nheld-out loss per character at length, mean +- spread over {len(options.seeds)} seed(s)")
    print(f"{'positions':12}" + "".join(f"{n:>16}" for n in options.evaluate_lengths))
    for kind, rows in found.items():
        columns = list(zip(*rows, strict=True))
        spreads = [stdev(column) if len(column) > 1 else 0.0 for column in columns]
        cells = (f"{mean(column):.3f} +- {spread:.3f}" for column, spread in zip(columns, spreads, strict=True))
        print(f"{kind:12}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
