"""Rows of an encoding, tile by tile, as the data is processed: reference implementation of `csrc/cpu/tiles.h`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..encodings.plan import Plan
from .arrays import arrays
from .kept_rows import encode, table
from .rows import COMPUTED_HERE

FEWEST_ROWS = 16  # generated at a time even if the data is wide: with fewer, each row costs more


def accumulation(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to which products and sums are rounded."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """float64; float32 for devices that may lack it, such as Apple's MPS."""
    return torch.float64 if device.type in COMPUTED_HERE or device.type == "meta" else torch.float32


def block(device: torch.device) -> int:
    """Number of elements processed in one pass."""
    return arrays(None, device).block


def arranged(rows: Tensor, rank: int) -> Tensor:
    """(S, *) or (1 or B, S, *) as a tensor broadcastable to one of `rank` dimensions in canonical form."""
    if rows.dim() == 2:
        return rows
    return rows[0] if rank == 2 else rows.reshape(rows.shape[0], *(1,) * (rank - 3), *rows.shape[1:])


class Rows(NamedTuple):
    """The rows of an encoding that belong to data of one shape."""

    plan: Plan
    positions: Tensor | None
    start: int
    acc: torch.dtype
    device: torch.device
    alpha: float | Tensor = 1.0

    def at(self, samples: slice, rows: slice, rank: int) -> Tensor:
        """alpha * PE of the given rows and samples in acc, broadcastable to `rank` dimensions; not to be written to."""
        p = self.positions
        if p is None:
            pe = table(self.plan, rows.stop - rows.start, self.start + rows.start, self.acc, self.device)
        else:
            p = p if p.dim() == 1 or p.shape[0] == 1 else p[samples]
            if p.dim() == 2 and p.shape[1] == 1 and not p.is_floating_point():
                p = p + torch.arange(rows.start, rows.stop, device=p.device)
            else:
                p = p[..., rows]
            pe = encode(self.plan, p, self.acc).to(self.device)
        if isinstance(self.alpha, Tensor):
            pe = pe * self.alpha.to(self.acc).reshape(())
        elif self.alpha != 1.0:
            pe = pe * self.alpha
        return arranged(pe, rank)

    def tiles(self, shape: Sequence[int]) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yields (samples, rows, their encoding), covering every row of `shape`, (B, *M, S, D), once."""
        samples, length, width = shape[0], shape[-2], math.prod(shape[1:-2]) * shape[-1]
        size = block(self.device)
        height = min(length, max(FEWEST_ROWS, size // width))
        depth = max(1, size // (width * height))
        shared = self.positions is None or self.positions.dim() == 1 or self.positions.shape[0] == 1
        for first in range(0, length, height):
            rows, pe = slice(first, min(length, first + height)), None
            for sample in range(0, samples, depth):
                some = slice(sample, sample + depth)
                if pe is None or not shared:
                    pe = self.at(some, rows, len(shape))
                yield some, rows, pe
