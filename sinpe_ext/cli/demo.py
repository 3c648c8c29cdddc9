"""`python -m sinpe_ext demo`: encodes the embedding of a text, and shows accuracy, times and plots."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import sinpe_ext as sinpe

HELP = "encode a text; show accuracy, times and plots"
DIM = 512
LAST_POSITIONS = (10, 1_000, 10_000, 100_000, 1_000_000)
WINDOW = 8  # positions compared with mpmath, up to and including each of the above
ROUNDS = 3  # in which each call is timed, the two of a case in turn
AGREEMENT = 1.5  # largest quotient of two rounds' ratios on an idle machine
README = Path(__file__).resolve().parents[2] / "README.md"


def options(command: argparse.ArgumentParser) -> None:
    """Adds the options of the subcommand."""
    command.add_argument("--text", metavar="FILE", help="the text to encode (default: the README)")
    text = "folder for the plots (default: ./demo_output)"
    command.add_argument("--output", metavar="DIR", type=Path, default="demo_output", help=text)


def main(options: argparse.Namespace) -> int:
    """Runs the demo and prints its results. Raises ValueError for a text without words, OSError for files."""
    import torch

    text = Path(options.text or (README if README.is_file() else __file__)).read_text(encoding="utf-8")
    torch.manual_seed(0)
    heading("1. Text, embedding, encoding")
    encode_text(text)
    heading("2. Backend")
    print(sinpe.backend_info())
    heading(f"3. Accuracy against mpmath, float32, {DIM} channels, {WINDOW} positions up to each")
    accuracy()
    heading(f"4. Time, medians of {ROUNDS} rounds")
    timing()
    heading("5. Pictures")
    pictures(options.output)
    return 0


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def encode_text(text: str) -> None:
    """Part 1: words -> ids -> embedding * sqrt(d) -> x + PE, with some values of each."""
    import torch

    tokens = re.findall(r"\w+|[^\w\s]", text.lower())
    if not tokens:
        raise ValueError("text: expected at least one word, got none; pass --text FILE")
    vocabulary = list(dict.fromkeys(tokens))
    ids = torch.tensor([[vocabulary.index(token) for token in tokens]])
    layer = sinpe.SinusoidalEmbedding(len(vocabulary), DIM, scale=DIM**0.5).eval()
    with torch.no_grad():
        x, encoded = layer.weight[ids] * DIM**0.5, layer(ids)
    print(f"{len(text):,} characters, {len(tokens):,} tokens, a vocabulary of {len(vocabulary):,}")
    print(f"SinusoidalEmbedding({len(vocabulary)}, {DIM}, scale=sqrt({DIM}))(ids)  ->  {tuple(encoded.shape)}")
    print(f"\n{'position':>8}  {'token':<14}  {'x, channels 0, 1':>22}  {'x + PE':>22}  {'PE':>22}")
    for position in sorted({0, len(tokens) // 2, len(tokens) - 1}):
        rows = x[0, position], encoded[0, position], sinpe.encode(torch.tensor(position), DIM)
        cells = "  ".join(f"{row[0]:>10.6f}  {row[1]:>10.6f}" for row in rows)
        print(f"{position:>8}  {tokens[position][:14]:<14}  {cells}")


def accuracy() -> None:
    """Part 3: the errors of the naive float32 formula and of this library at positions up to a million."""
    try:
        import mpmath
    except ImportError:
        print("Left out: mpmath, the reference for accuracy, is not installed; run `pip install mpmath`.")
        return
    import numpy as np
    import torch

    from ..reference.naive import naive_table

    def errors(got: torch.Tensor, exact: Any) -> str:
        """The largest absolute error, and the largest error in float32 ULP of the exact value."""
        difference = np.abs(got.numpy().astype(np.float64) - exact)
        unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 24, -149))
        return f"{difference.max():>12.2e}  {(difference / unit).max():>13,.4f}"

    print(f"{'position':>15}  {'naive float32 formula':^27}  {'sinpe_ext':^27}")
    print(f"{'':>15}  {'max error':>12}  {'max ULP':>13}  {'max error':>12}  {'max ULP':>13}")
    with mpmath.workprec(200):
        frequencies = [mpmath.mpf(10000) ** (-mpmath.mpf(2 * pair) / DIM) for pair in range(DIM // 2)]
        for last in LAST_POSITIONS:
            positions = torch.arange(last - WINDOW + 1, last + 1)
            pairs = [mpmath.cos_sin(p * w)[::-1] for p in positions.tolist() for w in frequencies]
            exact = np.array(pairs, dtype=np.float64).reshape(WINDOW, DIM)
            ours, naive = sinpe.encode(positions, DIM), naive_table(positions.float(), DIM)
            print(f"{last:>15,}  {errors(naive, exact)}  {errors(ours, exact)}")
    print("\n0.5 ULP is the least that rounding to float32 allows; at 0.5 every value is the correctly rounded one.")


def timing() -> None:
    """Part 4: the times of a table and of sums, beside eager PyTorch; `make bench` has many more."""
    import torch
    from torch.nn.functional import dropout
    from torch.utils.benchmark import Timer

    from ..reference.naive import naive_table

    x, pe, encoding = torch.randn(8, 512, 1024), sinpe.table(512, 1024), sinpe.Encoding(1024)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "table 4096 x 1024": (lambda: naive_table(torch.arange(4096.0), 1024), lambda: sinpe.table(4096, encoding)),
        "dropout(32 * x + PE), x (8, 512, 1024)": (
            lambda: dropout(x * 32.0 + pe, 0.1),
            lambda: sinpe.add(x, encoding, scale=32.0, dropout=0.1),
        ),
        "x + PE": (lambda: x + pe, lambda: sinpe.add(x, encoding)),
    }
    print(f"{'milliseconds':<40}{'eager':>12}{'sinpe_ext':>12}{'ratio':>8}")
    rounds = {}
    for title, calls in cases.items():
        timers = [Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads()) for call in calls]
        times = [[1e3 * timer.blocked_autorange(min_run_time=0.1).median for timer in timers] for _ in range(ROUNDS)]
        eager, ours = (median(column) for column in zip(*times, strict=True))
        rounds[title] = [theirs / our for theirs, our in times]
        print(f"{title:<40}{eager:>12.3f}{ours:>12.3f}{eager / ours:>8.1f}")
    print("\nThe sums of eager PyTorch read a stored table; sinpe_ext computes its rows.")
    for line in disagreements(rounds):
        print(line)


def disagreements(rounds: dict[str, list[float]]) -> list[str]:
    """What to say of cases whose ratios differ between rounds, as they do if other programs take the processor."""
    differing = {title: (min(ratios), max(ratios)) for title, ratios in rounds.items()}
    lines = [f"  {title}: {a:.1f} to {b:.1f}" for title, (a, b) in differing.items() if b > AGREEMENT * a]
    head = "\nThe machine was busy: these ratios differ from round to round. Run the demo again when it is idle."
    return [head, *lines] if lines else []


def pictures(output: Path) -> None:
    """Part 5: plots of the convention "own_index", and the error against the position, as PNG files."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("Left out: matplotlib is not installed; run `pip install matplotlib`.")
        return
    from .. import plot

    encoding = sinpe.convention("own_index", 100)
    drawings: dict[str, Callable[[Any], Any]] = {
        "heatmap.png": lambda ax: plot.heatmap(encoding, length=200, ax=ax),
        "curves.png": lambda ax: plot.curves(encoding, positions=(5, 6, 50), ax=ax),
        "error.png": lambda ax: plot.error(sinpe.Encoding(DIM), ax=ax),
    }
    output.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings.items():
        figure = Figure(figsize=(8, 5), layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(output / name, dpi=120)
        print(output / name)
