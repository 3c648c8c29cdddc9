"""The shape of a flattened grid, read off the rows at which its columns change for the first time."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import torch
from torch import Tensor

from .fit import scattered
from .grid import likely_shapes, lines_of

COLUMNS, VALUES = 256, 2**21  # looked at
MOST_PERIODS = 12
MOST_SHAPES = 4
MOST_EXTRA = 16  # rows of zeros around a grid
LEVEL = 0.2  # share of columns that never change, from which an axis has length 1
FEWEST_LEVEL = 0.1
FEWEST_PLACES = 12  # below it, columns of rows may stay level by rounding


def inside(flat: Tensor) -> Tensor:
    """The rows between leading and trailing rows of zeros."""
    number = len(flat)
    first = next((k for k in range(min(number, MOST_EXTRA)) if bool(flat[k].any())), 0)
    last = next((k for k in range(min(number, MOST_EXTRA)) if bool(flat[number - 1 - k].any())), 0)
    return flat[first : number - last]


def shapes_of(flat: Tensor) -> tuple[list[tuple[int, ...]], bool]:
    """Shapes that a flattened grid may have, likeliest first, and whether it can be nothing but a grid."""
    body = inside(flat)
    for rows in (body, flat, body[1:], flat[1:]):  # the last two: behind a learned class token
        found = _read(rows)
        if found:
            sure = len(rows) >= FEWEST_PLACES and all(min(shape) > 1 for shape in found)
            return found, sure
    return [shape for shape in likely_shapes(body)[:MOST_SHAPES]], False


def _level(rows: Tensor) -> bool:
    """Whether some columns keep their value from one row to the next, as those of all axes but the last do."""
    return float((rows[1:] == rows[:-1]).any(0).double().mean()) >= FEWEST_LEVEL


def _read(body: Tensor) -> list[tuple[int, ...]]:
    """Shapes whose axes are as long as columns stay level: those of the last axis 1 row, of the one before W, H * W."""
    number = len(body)
    if number < 2 or not (_level(body[:3]) or _level(body[-3:])):
        return []
    sample = body[:, scattered(body.shape[1], max(1, min(COLUMNS, VALUES // number)))]
    if not bool(sample[0].any()):
        sample = sample.flip(0)
    changed = (sample != sample[:1]) & sample.any(1)[:, None]
    first = torch.where(changed.any(0), changed.to(torch.uint8).argmax(0), number)
    counts = Counter(first.tolist())
    periods = [at for at in counts if 1 < at < number and number % at == 0]
    periods = sorted(sorted(periods, key=lambda at: -counts[at])[:MOST_PERIODS])
    chains = [(a, b) for a, b in itertools.combinations(periods, 2) if b % a == 0]
    shapes: list[tuple[int, ...]] = [(number // b, b // a, a) for a, b in chains]
    shapes += [(number // a, a) for a in periods]
    found = [shape for shape in shapes if lines_of(body, shape, 2.0**-24) is not None]
    found.sort(key=lambda shape: (-len(shape), abs(math.log(shape[-1] / shape[-2]))))
    if len(first) > counts[number] >= LEVEL * len(first):  # an axis of one place
        flat = [shape for shape in found if len(shape) == 2]
        videos = found[: len(found) - len(flat)][:MOST_SHAPES]
        found = [*videos, *((*shape[:at], 1, *shape[at:]) for shape in flat for at in range(3)), *flat]
        found = found or [(1, number), (number, 1)]
    return found[: 2 * MOST_SHAPES]
