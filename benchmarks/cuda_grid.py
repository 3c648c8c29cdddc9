"""Rows of the CUDA benchmark for grids: images as patches, and with channels first."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import sinpe_ext as sinpe

from .cases import Subjects
from .cuda_cases import Place, cuda_row, rows_agree
from .grid import exact

DIM = 768


def add_grid(place: Place, dtype: torch.dtype, *, channels_first: bool) -> Subjects:
    """mae2d (detr2d with channels first) plus x, into an existing tensor, against the sum with a stored table."""
    name = "detr2d" if channels_first else "mae2d"
    side = max(1, min(64, int((place.elements / DIM) ** 0.5)))
    batch = max(1, place.elements // (DIM * side * side))
    grid: Any = sinpe.convention(name, DIM)
    shape = (batch, DIM, side, side) if channels_first else (batch, side, side, DIM)
    x = torch.randn(shape, device=place.device, dtype=dtype)
    y, pe = torch.empty_like(x), sinpe.table((side, side), grid, dtype=torch.float32, device=place.device)
    pe = (pe.movedim(-1, 0).contiguous() if channels_first else pe).to(dtype)
    channel_dim = 1 if channels_first else -1

    def ours() -> torch.Tensor:
        return sinpe.add(x, grid, channel_dim=channel_dim, out=y)

    def check() -> None:
        rows = exact(grid, (side, side))
        want = x[:1].double().cpu() + (rows.movedim(-1, 0) if channels_first else rows)
        rows_agree(name, ours()[:1], want, dtype, 8.0)

    moved = 2 * x.numel() * x.element_size()
    return Subjects(ours, lambda: y.copy_(x), {"eager": lambda: torch.add(x, pe, out=y)}, check, moved)


GRID_ROWS = tuple(
    cuda_row(
        f"cuda_grid{'_first' if first else ''}_{s}",
        f"CUDA: add {'detr2d, channels first' if first else 'mae2d'} {s}",
        partial(add_grid, dtype=dtype, channels_first=first),
        "y.copy_(x)",
        1.05 if s == "f32" else 1.10,
        {"eager": None},
    )
    for dtype, s in ((torch.float32, "f32"), (torch.bfloat16, "bf16"))
    for first in (False, True)
)
