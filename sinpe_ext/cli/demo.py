"""`python -m sinpe_ext demo`: encodes the embedding of a text, and shows accuracy, times and plots."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

DIM = 512
LAST_POSITIONS = (10, 1_000, 10_000, 100_000, 1_000_000)
WINDOW = 8  # positions compared with mpmath, up to and including each of the above
MPMATH_BITS = 200
ROUNDS = 9
TIE = 1.3  # the ratio of two times that still counts as a tie
COMPILE_SECONDS = 20  # torch.compile is left out of the demo when its first compilation takes longer
TOKEN = re.compile(r"\w+|[^\w\s]")


class DemoError(Exception):
    """Raised if the demo cannot run; the message is one line for the user."""


def main(options: argparse.Namespace) -> int:
    """Runs the demo, prints its results and returns 0. Raises DemoError."""
    from .timing import load

    begin, average = time.perf_counter(), load()
    name, text = read_text(options.text)
    import torch

    torch.manual_seed(0)
    heading("1. Text, embedding, encoding")
    encode_text(name, text)
    heading("2. Backend")
    from .info import backend_lines

    print("\n".join(backend_lines()))
    heading(f"3. Accuracy against mpmath ({MPMATH_BITS} bits), float32, {DIM} channels, {WINDOW} positions up to each")
    accuracy()
    heading("4. Time, medians of interleaved runs")
    timing(options.quick, average)
    heading("5. Pictures")
    pictures(Path(options.output))
    print(f"\nDone in {time.perf_counter() - begin:.1f} s.")
    return 0


def heading(text: str) -> None:
    """Prints an underlined heading."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


# -------------------------------------------------------------------------------------------- 1. text to encoded tensor


def read_text(path: str | None) -> tuple[str, str]:
    """(name, text) of what to encode: a file, otherwise the README, otherwise the description of the package."""
    if path is not None:
        try:
            return path, Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DemoError(
                f"text: expected a UTF-8 text file, got {path} ({error.reason}); convert it first"
            ) from None
        except OSError as error:
            raise DemoError(
                f"text: expected a readable file, got {path} ({error.strerror}); pass --text FILE"
            ) from None
    root = Path(__file__).resolve().parent.parent.parent
    if (root / "pyproject.toml").is_file() and (root / "README.md").is_file():
        return "README.md", (root / "README.md").read_text(encoding="utf-8")
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        described = metadata.metadata("sinpe_ext")
        if "Description" in described:
            return "the package's description", described["Description"]
    return "this module's docstring", __doc__ or ""


def tokenise(text: str) -> tuple[list[int], list[str]]:
    """The ids of the words and punctuation marks of a text, and the vocabulary, most frequent first."""
    tokens = TOKEN.findall(text.lower())
    vocabulary = [token for token, _ in Counter(tokens).most_common()]
    ids = {token: index for index, token in enumerate(vocabulary)}
    return [ids[token] for token in tokens], vocabulary


def encode_text(name: str, text: str) -> None:
    """Part 1: ids -> embedding * sqrt(d) -> x + PE, with some values of each."""
    import torch
    from torch import nn

    import sinpe_ext as sinpe

    ids, vocabulary = tokenise(text)
    if not ids:
        raise DemoError(f"text: expected at least one word, got none in {name}; pass --text FILE")
    embedding = nn.Embedding(len(vocabulary), DIM)
    encoder = sinpe.SinusoidalPositionalEncoding(DIM).eval()
    with torch.no_grad():
        x = embedding(torch.tensor([ids])) * DIM**0.5
        encoded = encoder(x)
    print(f"text        {name}: {len(text):,} characters, {len(ids):,} tokens, a vocabulary of {len(vocabulary):,}")
    print(f"embedded    nn.Embedding({len(vocabulary)}, {DIM})(ids) * sqrt({DIM})  ->  {tuple(x.shape)}, {x.dtype}")
    print(f"encoded     SinusoidalPositionalEncoding({DIM})(x)  ->  {tuple(encoded.shape)}, {encoded.dtype}")
    last = len(ids) - 1
    shown = sorted({0, min(1, last), last})
    added = sinpe.encode(torch.tensor(shown), DIM)
    print(f"\n{'position':>8}  {'token':<14}  {'channel':>7}  {'x':>10}  {'x + PE':>10}  {'PE':>10}")
    for row, position in zip(added, shown, strict=True):
        for channel in (0, 1):
            before, after, pe = (float(t[channel]) for t in (x[0, position], encoded[0, position], row))
            token = vocabulary[ids[position]][:14]
            print(f"{position:>8}  {token:<14}  {channel:>7}  {before:>10.6f}  {after:>10.6f}  {pe:>10.6f}")


# ---------------------------------------------------------------------------------------------------------- 3. accuracy


def exact_rows(positions: list[int], dim: int) -> Any:
    """The paper's formula at positions, computed by mpmath and rounded to a float64 array (P, dim)."""
    import mpmath
    import numpy as np

    rows = np.empty((len(positions), dim))
    with mpmath.workprec(MPMATH_BITS):
        frequencies = [mpmath.mpf(10000) ** (-mpmath.mpf(2 * i) / dim) for i in range(dim // 2)]
        for row, position in zip(rows, positions, strict=True):
            for pair, frequency in enumerate(frequencies):
                cosine, sine = mpmath.cos_sin(position * frequency)
                row[2 * pair], row[2 * pair + 1] = float(sine), float(cosine)
    return rows


def errors(got: Tensor, exact: Any) -> tuple[float, float]:
    """The largest absolute error, and the largest error in float32 ULP of the exact value."""
    import numpy as np

    difference = np.abs(got.numpy().astype(np.float64) - exact)
    _, exponent = np.frexp(exact)
    unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    return float(difference.max()), float((difference / unit).max())


def accuracy() -> None:
    """Part 3: the errors of the usual float32 formula and of this library at positions up to a million."""
    import torch

    import sinpe_ext as sinpe

    from .usual import usual_parts, usual_table

    if not importlib.util.find_spec("mpmath"):
        print("Left out: mpmath, the reference for accuracy, is not installed; run `pip install mpmath`.")
        return
    _, index = usual_parts(1, DIM)
    print(f"{'position':>15}  {'usual formula':^27}  {'sinpe_ext':^27}")
    print(f"{'':>15}  {'max error':>12}  {'max ULP':>13}  {'max error':>12}  {'max ULP':>13}")
    for last in LAST_POSITIONS:
        positions = list(range(last - WINDOW + 1, last + 1))
        exact = exact_rows(positions, DIM)
        usual = errors(usual_table(torch.tensor(positions, dtype=torch.float32).unsqueeze(1), index), exact)
        ours = errors(sinpe.encode(torch.tensor(positions), sinpe.Encoding(DIM)), exact)
        print(f"{last:>15,}  {usual[0]:>12.2e}  {usual[1]:>13,.1f}  {ours[0]:>12.2e}  {ours[1]:>13,.4f}")
    print("\n0.5 ULP is the least that rounding to float32 allows; at 0.5 every value is the correctly rounded one.")


# -------------------------------------------------------------------------------------------------------------- 4. time


def timing(quick: bool, average: float | None) -> None:
    """Part 4: the times of a table and of a sum, beside eager PyTorch and, if it compiles in time, torch.compile."""
    import torch

    import sinpe_ext as sinpe

    from .timing import interleaved, summary, warning
    from .usual import usual_parts, usual_table

    position, index = usual_parts(4096, 1024)
    x = torch.randn(8, 512, 1024)
    pe = sinpe.table(4096, 1024)
    encoding = sinpe.Encoding(1024)

    def usual_add(x: Tensor) -> Tensor:
        return x + pe[: x.size(1)]

    def usual_dropout(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(usual_add(x * 32.0), 0.1)

    cases: list[tuple[str, dict[str, Callable[[], object]]]] = [
        (
            "table 4096 x 1024",
            {"eager": lambda: usual_table(position, index), "sinpe_ext": lambda: sinpe.table(4096, encoding)},
        ),
        (
            "dropout(32 * x + PE)",
            {"eager": lambda: usual_dropout(x), "sinpe_ext": lambda: sinpe.add(x, encoding, scale=32.0, dropout=0.1)},
        ),
        (
            "x + PE, x (8, 512, 1024)",
            {"eager": lambda: usual_add(x), "sinpe_ext": lambda: sinpe.add(x, encoding)},
        ),
    ]
    reason = "left out of a quick run" if quick else compile_problem()
    if reason is None:
        fast_table, fast_add = torch.compile(usual_table), torch.compile(usual_add)
        fast_dropout = torch.compile(usual_dropout)
        cases[0][1]["torch.compile"] = lambda: fast_table(position, index)
        cases[1][1]["torch.compile"] = lambda: fast_dropout(x)
        cases[2][1]["torch.compile"] = lambda: fast_add(x)
    columns = ("eager", "torch.compile", "sinpe_ext")
    print(f"{'milliseconds':<26}" + "".join(f"{column:>15}" for column in columns) + f"{'than eager':>15}")
    with torch.no_grad(), quiet_compiler():
        for title, calls in cases:
            spent = {
                name: 1e3 * seconds for name, seconds in summary(interleaved(calls, 3 if quick else ROUNDS)).items()
            }
            cells = "".join(f"{spent[column]:>15.3f}" if column in spent else f"{'-':>15}" for column in columns)
            print(f"{title:<26}{cells}{faster(spent['eager'] / spent['sinpe_ext']):>15}")
    print("\nThe sums of eager PyTorch and torch.compile read a stored table; sinpe_ext computes its rows.")
    if reason is not None:
        print(f"torch.compile: {reason}.")
    if (note := warning(average)) is not None:
        print(note)


def faster(ratio: float) -> str:
    """The verdict on a time that is `ratio` times ours; the noise of a busy machine is called a tie."""
    return "ties" if 1 / TIE < ratio < TIE else f"{ratio:.1f} x faster" if ratio > 1 else f"{1 / ratio:.1f} x slower"


@contextlib.contextmanager
def quiet_compiler() -> Iterator[None]:
    """Suppresses the warnings of torch.compile inside the table of times."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compile_problem() -> str | None:
    """Compiles both functions into torch's cache, in a process that can be stopped. Returns why it failed, or None."""
    script = (
        "import torch\n"
        "from sinpe_ext.cli import usual as p\n"
        "torch.compile(p.usual_table)(*p.usual_parts(4096, 1024))\n"
        "torch.compile(lambda x, pe: x + pe[:x.size(1)])(torch.zeros(8, 512, 1024), torch.zeros(4096, 1024))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).resolve().parent.parent.parent,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},  # no worker processes that outlive this one
        )
    except subprocess.TimeoutExpired:
        return f"left out, its first compilation took more than {COMPILE_SECONDS} s"
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return f"left out, it does not work here ({lines[-1] if lines else 'no message'})"
    return None


# ---------------------------------------------------------------------------------------------------------- 5. pictures


def pictures(output: Path) -> None:
    """Part 5: heat maps and curves of the convention "own_index", and the error against the position, as PNG files."""
    import sinpe_ext as sinpe

    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("Left out: matplotlib is not installed; run `pip install matplotlib`.")
        return
    from .. import plot

    own = sinpe.convention("own_index", 100)
    drawings: dict[str, Callable[[Any], Any]] = {
        "heatmap_transposed.png": lambda ax: plot.heatmap(own, length=200, transpose=True, cmap="Purples", ax=ax),
        "heatmap.png": lambda ax: plot.heatmap(own, length=200, ax=ax).set_title(
            "own_index, 200 positions, 100 channels"
        ),
        "curves.png": lambda ax: plot.curves(own, positions=(5, 6, 50), ax=ax),
        "error.png": lambda ax: plot.error(sinpe.Encoding(DIM), ax=ax),
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, draw in drawings.items():
            figure = Figure(figsize=(8, 5), layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure.add_subplot())
            figure.savefig(output / name, dpi=120)
            print(output / name)
    except OSError as error:
        raise DemoError(
            f"output: expected a folder to write to, got {output} ({error.strerror}); pass --output DIR"
        ) from None
