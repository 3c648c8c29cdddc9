"""Draws docs/images/phase.png from the library's own numbers: python tools/phase_picture.py [-o FILE]

Four panels, explained in docs/internals.md: positions on the circle of one channel pair, the integer product that
wraps, the error of rotated rows, and the roundings that its bound does not decide. Needs matplotlib; takes seconds.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pictures

import sinpe_ext.numpy as sinpe
from sinpe_ext.encodings.plan import plan

ROOT = Path(__file__).resolve().parent.parent

PICTURE = ROOT / "docs" / "images" / "phase.png"
DIM, PAIR, FAR = 512, 50, 3_803_902  # the position below 2^22 whose cosine of this pair is closest to 0
FARTHER = 10**9
TURN = 2**128
ROWS = 4096
OURS, NAIVE, ANCHOR, DROPPED = "tab:blue", "tab:red", "tab:orange", "0.75"


class Rotation(NamedTuple):
    """The constants of csrc/core/rotate.h for rotated rows."""

    rows: int  # number of rows from one anchor to the next
    bound: float  # error bound of a rotated value


def rotation() -> Rotation:
    core = ROOT / "csrc" / "core"
    rows = int(_number(core / "rotate.h", r"kAnchorRows = (\d+);"))
    fast = float.fromhex(_number(core / "sincos.h", r"kFastError = (0x1p-\d+);"))
    steps = int(_number(core / "rotate.h", r"kRotateError = kAnchorRows \* (\d+) \* 0x1p-53 \+ kFastError;"))
    return Rotation(rows, rows * steps * 2.0**-53 + fast)


def _number(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"))
    if match is None:
        raise SystemExit(f"{path}: expected {pattern}, found none; bring this tool up to date with the source")
    return match[1]


def phase(position: int, pair: int = PAIR) -> int:
    """The fraction of a turn that a pair has turned at a position, in units of 2^-128."""
    return position * plan(sinpe.Encoding(DIM)).fractions[pair] % TURN


def float32_angle(position: int) -> np.float32:
    """The naive float32 formula's angle in radians, with its roundings."""
    frequency = np.exp(np.float32(2 * PAIR) * np.float32(-math.log(10000.0) / DIM), dtype=np.float32)
    return np.float32(position) * frequency


def rotated(first: int, rows: int) -> np.ndarray:
    """Sines and cosines of all pairs, each row rotated from the previous one in float64, as the kernels do."""
    step = sinpe.table(1, DIM, start=1, dtype=np.float64)[0]
    sin_step, cos_step = step[0::2], step[1::2]
    row = sinpe.table(1, DIM, start=first, dtype=np.float64)[0]
    sin, cos = row[0::2], row[1::2]
    made = []
    for _ in range(rows):
        made.append(np.stack([sin, cos], axis=-1).reshape(DIM))
        sin, cos = sin * cos_step + cos * sin_step, cos * cos_step - sin * sin_step
    return np.array(made)


def rotation_errors(rows: int) -> np.ndarray:
    """The largest error of each rotated row."""
    return np.abs(rotated(0, rows) - sinpe.table(rows, DIM, dtype=np.float64)).max(axis=1)


def rounding_distances(bound: float) -> tuple[np.ndarray, np.ndarray]:
    """For each value of ROWS rows: its distance to the midpoint of two floats, and its error bound, in float32 ULP.

    The kernels use a smaller bound for small sines (`sine_bound` in csrc/core/rotate.h), which is ignored here.
    """
    values = sinpe.table(ROWS, DIM, dtype=np.float64)
    values = values[np.abs(values) >= 2.0**-10]
    ulp = np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)
    scaled = np.abs(values) / ulp
    return np.abs(scaled - np.floor(scaled) - 0.5), bound / ulp


def draw_circle(ax: Any) -> None:
    turns = [phase(position) / TURN for position in range(10)]
    circle = np.linspace(0, 2 * np.pi, 200)
    ax.plot(np.cos(circle), np.sin(circle), color="0.8", zorder=0)
    for position, turn in enumerate(turns):
        x, y = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
        ax.plot(x, y, "o", color=OURS)
        ax.annotate(str(position), (1.13 * x, 1.13 * y), ha="center", va="center", fontsize=8)
    for position, mark in ((FAR, "*"), (FARTHER, "P")):
        exact, naive = 2 * math.pi * phase(position) / TURN, float(float32_angle(position))
        ax.plot(math.cos(exact), math.sin(exact), mark, color=OURS, markersize=11, label=f"{position:,}")
        ax.plot(math.cos(naive), math.sin(naive), mark, color=NAIVE, markersize=8, label="naive float32 angle")
    ax.axhline(0, color="0.9", zorder=0)
    ax.axvline(0, color="0.9", zorder=0)
    ax.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.25), xlabel=f"cos: channel {2 * PAIR + 1}")
    ax.set(ylabel=f"sin: channel {2 * PAIR}", title=f"a position is a point on the circle (pair {PAIR} of {DIM})")
    ax.legend(loc="lower center", fontsize=8, frameon=False, ncols=2)


def draw_product(ax: Any) -> None:
    """The leading bits of the frequency, the product and the phase; filled squares are 1."""
    fraction = plan(sinpe.Encoding(DIM)).fractions[PAIR]
    product, shown = FAR * fraction, 24
    whole_bits = FAR.bit_length()
    from matplotlib.patches import Rectangle

    for height, value, first in ((2, fraction, 0), (1, product, -whole_bits), (0, product % TURN, 0)):
        for place in range(first, shown):
            bit = value >> (127 - place) & 1
            colour = DROPPED if place < 0 else ANCHOR if place < 2 and height < 2 else OURS
            ax.add_patch(Rectangle((place, height), 0.9, 0.55, facecolor=colour if bit else "white", edgecolor=colour))
    ax.axvline(-0.05, color="black", linewidth=1)
    quarter = (product % TURN + TURN // 8) >> 126 & 3
    labels = (
        (2.7, f"frequency: {fraction / TURN:.6f} turns per position, 128 fractional bits"),
        (1.7, f"times {FAR:,}: {product // TURN:,} whole turns, and a fraction"),
        (0.7, f"the phase: the nearest quarter turn is {quarter}, plus a remainder"),
    )
    for y, text in labels:
        ax.text(-whole_bits, y, text, fontsize=8)
    ax.set(xlim=(-whole_bits - 0.5, shown + 0.5), ylim=(-0.3, 3.2), xlabel="bit; | is the binary point", yticks=[])
    ax.set_title("the integer product wraps: whole turns are discarded")


def draw_rotation(ax: Any, facts: Rotation) -> None:
    errors = rotation_errors(facts.rows * 3)
    restarted = np.tile(errors[: facts.rows], 3)
    ax.semilogy(np.maximum(errors, 1e-17), color=NAIVE, linewidth=1, label="rotated without anchors")
    ax.semilogy(np.maximum(restarted, 1e-17), color=OURS, linewidth=1.5, label=f"an anchor every {facts.rows} rows")
    ax.axhline(facts.bound, color="black", linestyle="--", linewidth=1, label="bound in the kernels")
    ax.set(xlabel="row", ylabel="largest error of a value", ylim=(1e-16, 1e-12))
    ax.set_title("each row is rotated from the previous one")
    ax.legend(fontsize=8, frameon=False, loc="upper right")


def draw_rounding(ax: Any, facts: Rotation) -> None:
    distance, bound = rounding_distances(facts.bound)
    reach = np.sort(distance)
    ax.loglog(reach, np.arange(1, reach.size + 1), color=OURS, label=f"{reach.size:,} values of {ROWS} rows")
    left = int((distance <= bound).sum())
    widest = facts.bound * 2.0**24
    ax.axvline(widest, color="black", linestyle="--", linewidth=1, label="error bound of values from 1/2 on")
    ax.plot([], [], " ", label=f"undecided, recomputed by exact.h: {left:,} values")
    ax.set(xlim=(1e-8, 0.5), ylim=(0.5, reach.size * 2), title="few roundings are undecided")
    ax.set(xlabel="distance to the midpoint of two floats, in ULP", ylabel="number of values within it")
    ax.legend(fontsize=8, frameon=False, loc="upper left")


def draw(path: Path) -> None:
    drawn = pictures.canvas(10.0, 7.6, dpi=80)
    axes = drawn.figure.subplots(2, 2)
    facts = rotation()
    draw_circle(axes[0, 0])
    draw_product(axes[0, 1])
    draw_rotation(axes[1, 0], facts)
    draw_rounding(axes[1, 1], facts)
    pictures.save(drawn, path, colours=64)


if __name__ == "__main__":
    sys.exit(pictures.main(__doc__, PICTURE, draw))
