"""The numbers of channels that models have, and the conventions that support each."""

from __future__ import annotations

import pytest

from sinpe_ext.encodings.catalogue import CATALOGUE, GRIDS

WIDTHS = (64, 127, 128, 320, 512, 768, 1024, 4096)
every_width = pytest.mark.parametrize("width", WIDTHS)

# dim must be a multiple, or, for octaves below 2**62 turns, at most this.
MULTIPLES = dict.fromkeys(("mae2d", "hf2d", "bigvision2d", "timm2d", "detr2d", "monai2d"), 4)
MULTIPLES |= {"cogvideo3d": 16, "monai3d": 6, "fairseq2_2d": 2, "fairseq2_3d": 2}
LIMITS = {"nerf": 130, "tcnn": 126}


def names_at(width: int, axes: int | None = None) -> list[str]:
    """The conventions, of this many axes, that support a width."""
    names = [name for name in (*CATALOGUE, *GRIDS) if axes in (None, int(name[-2]) if name in GRIDS else 1)]
    return [name for name in names if width % MULTIPLES.get(name, 1) == 0 and width <= LIMITS.get(name, width)]
