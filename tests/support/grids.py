"""Grids by definition, for tests: each place separately, from the one-dimensional `table`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import sinpe_ext as sinpe
from sinpe_ext.encodings.grid_catalogue import GRIDS

EXAMPLES = {  # dims that the libraries support, some with truncated or zero channels
    **{name: sinpe.convention(name, 48) for name in GRIDS},
    "multidim2d cut": sinpe.convention("multidim2d", 45),
    "multidim3d cut": sinpe.convention("multidim3d", 5),
    "fairseq2_3d cut": sinpe.convention("fairseq2_3d", 44),
    "t2t2d zeros": sinpe.convention("t2t2d", 47),
    "nerf": sinpe.convention("nerf", 36, axes=3),
    "tcnn": sinpe.convention("tcnn", 16, axes=2),
    "one axis": sinpe.GridEncoding((sinpe.Encoding(7),)),
    "uneven, zeros": sinpe.GridEncoding((sinpe.Encoding(5, odd="pad"), sinpe.Encoding(2, layout="cos")), dim=10),
    "side by side, zeros": sinpe.GridEncoding(
        (sinpe.Encoding(4), sinpe.Encoding(4)), arrangement="interleaved", dim=11
    ),
    "side by side, cut": sinpe.GridEncoding((sinpe.Encoding(4), sinpe.Encoding(4)), arrangement="interleaved", dim=5),
    "four axes": sinpe.GridEncoding([sinpe.Encoding(2, base=10 + k, start=k) for k in range(4)], order=(2, 0, 3, 1)),
}
LENGTHS = (3, 4, 5, 2)


def lengths_of(grid: sinpe.GridEncoding) -> tuple[int, ...]:
    return LENGTHS[: grid.ndim]


def truth(
    grid: sinpe.GridEncoding, lengths: Sequence[int], starts: Sequence[int] | None = None, dtype=torch.float32
) -> Tensor:
    """(*lengths, dim), one place after the other."""
    starts = starts or [0] * grid.ndim
    out = torch.zeros(*lengths, grid.dim, dtype=dtype)
    for group in grid.channel_groups:
        rows = sinpe.table(lengths[group.axis], group.encoding, start=starts[group.axis], dtype=dtype)
        for place in itertools.product(*map(range, lengths)):
            for channel in range(group.encoding.dim):
                out[place][group.first + channel * group.step] = rows[place[group.axis], channel]
    return out


def positions_of(grid: sinpe.GridEncoding, lengths: Sequence[int]) -> Tensor:
    """The implicit coordinates, (*lengths, axes)."""
    axes = [torch.arange(n) + axis.start for n, axis in zip(lengths, grid.axes, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
