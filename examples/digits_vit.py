"""A small vision Transformer on handwritten digits with a grid encoding, a learned encoding, or no encoding.

    python examples/digits_vit.py                # with the package installed, or PYTHONPATH=. before it
    python examples/digits_vit.py --quick        # takes seconds: one seed, six epochs
    python examples/digits_vit.py --patch 1 --seeds 0 1 2 3 4

The data are 1797 digits of 8 x 8 pixels (UCI, in scikit-learn: pip install scikit-learn), a fifth of them for testing.
An image is divided into patches, one token each, after a class token that gets no encoding; "mae2d" is the encoding of
MAE and DiT. The three models start from the same weights and get the same batches. The output is the test accuracy,
with its mean and standard deviation over the seeds. examples/README.md has the results.
"""

from __future__ import annotations

import argparse
import time
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn import functional

import sinpe_ext as sinpe

SIDE, CLASSES, WIDTH, HEADS, LAYERS, BATCH, RATE = 8, 10, 64, 4, 2, 64, 2e-3
KINDS = ("mae2d", "learned", "none")


class VisionTransformer(nn.Module):
    def __init__(self, kind: str, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.grid_shape = (SIDE // patch, SIDE // patch)
        self.grid = sinpe.convention("mae2d", WIDTH) if kind == "mae2d" else None
        # Created last, so that the weights above are the same for every kind.
        places = self.grid_shape[0] * self.grid_shape[1]
        self.learned = nn.Parameter(torch.randn(places + 1, WIDTH) * 0.02) if kind == "learned" else None

    def forward(self, pictures: Tensor) -> Tensor:
        tokens = self.patches(pictures).flatten(2).transpose(1, 2)  # [B, 1, 8, 8] -> [B, places, WIDTH]
        x = torch.cat([self.class_token.expand(len(tokens), 1, WIDTH), tokens], 1)
        if self.grid is not None:
            x = sinpe.add(x, self.grid, grid_shape=self.grid_shape, extra_tokens=1)
        elif self.learned is not None:
            x = x + self.learned
        return self.head(self.blocks(x)[:, 0])


def digits() -> tuple[Tensor, Tensor]:
    """The images, (1797, 1, 8, 8) with values in 0 to 1, and their labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise SystemExit(
            f"digits_vit: scikit-learn, which has the digits, was not found ({error}): pip install scikit-learn"
        ) from None
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def accuracy(kind: str, pictures: Tensor, labels: Tensor, seed: int, options: argparse.Namespace) -> tuple[float, str]:
    """The test accuracy after training, and a line about the training."""
    order = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=order)
    held_out, train = shuffled[: len(labels) // 5], shuffled[len(labels) // 5 :]
    torch.manual_seed(seed)
    model, began, losses = VisionTransformer(kind, options.patch), time.perf_counter(), []
    steps = options.epochs * (len(train) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(options.epochs):
        for batch in train[torch.randperm(len(train), generator=order)].split(BATCH)[: len(train) // BATCH]:
            loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        right = (model(pictures[held_out]).argmax(-1) == labels[held_out]).float().mean().item()
    tenth = max(steps // 10, 1)
    seconds = time.perf_counter() - began
    return right, f"training loss {mean(losses[:tenth]):.3f} -> {mean(losses[-tenth:]):.3f} in {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patch", type=int, choices=(1, 2, 4), default=2, help="side of a patch in pixels")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, 6 passes")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epochs = [0], 6
    pictures, labels = digits()
    held_out, side = len(labels) // 5, SIDE // options.patch
    patches = f"{side} x {side} patches of {options.patch} x {options.patch} pixels"
    print(f"{patches}, {options.epochs} passes over {len(labels) - held_out} digits")
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in options.seeds:
        for kind in KINDS:
            right, line = accuracy(kind, pictures, labels, seed, options)
            found[kind].append(right)
            print(f"seed {seed}  {kind:8}  {line}, accuracy {right:.1%}", flush=True)
    print(f"\naccuracy on {held_out} held-out digits")
    for kind, values in found.items():
        spread = f" +- {stdev(values):.1%} over {len(values)} seeds" if len(values) > 1 else ""
        print(f"{kind:8}  {mean(values):.1%}{spread}")


if __name__ == "__main__":
    main()
