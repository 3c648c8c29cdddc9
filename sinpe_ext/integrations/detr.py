"""DETR and its descendants in transformers: the encoding of a feature map whose positions follow from its mask."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import positions as _positions
from ..encodings.catalogue import convention
from ..functional import encode, table
from .dropin import Candidate, DropIn, Left, has, number, parameters
from .measure import Probe

# A normalised position is at most `scale` and has three more roundings.
NORMALISED = 4.0


class PictureRows(DropIn):
    """[B, 2 F, H, W], channels of rows before those of columns; positions count the unmasked points from 1."""

    _sinpe_normalize: bool = False
    _sinpe_scale: float = 2 * math.pi
    _sinpe_offset: float = 0.0

    def _sinpe_places(self, padding: Tensor, dtype: torch.dtype) -> Tensor:
        """The encoding of the points of a padded feature map."""
        coordinates = _positions.from_mask_2d(
            padding,
            normalize=self._sinpe_normalize,
            scale=self._sinpe_scale,
            offset=self._sinpe_offset,
            dtype=None if self._sinpe_encoding.axes[0].angle == "exact" else torch.float32,
        )
        return encode(coordinates, self._sinpe_encoding, dtype=dtype).permute(0, 3, 1, 2)


class ShapeRows(PictureRows):
    """Modules called with a shape: DETR, Conditional and Deformable DETR, MaskFormer, Mask2Former, OneFormer, SAM 2."""

    def forward(
        self, shape: torch.Size, device: torch.device | str, dtype: torch.dtype, mask: Tensor | None = None
    ) -> Tensor:
        if mask is not None:
            return self._sinpe_places(~mask.to(torch.bool), dtype)
        padding = torch.zeros((1, shape[2], shape[3]), dtype=torch.bool, device=device)
        return self._sinpe_places(padding, dtype).expand(shape[0], -1, -1, -1)


class MaskRows(PictureRows):
    """Modules called with the pixels and their mask: Table Transformer, Grounding DINO."""

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> Tensor:
        return self._sinpe_places(~pixel_mask.to(torch.bool), torch.float32)


class GridRows(DropIn):
    """[1, H W, C] for the points of a feature map: RT-DETR, D-FINE and related models."""

    def forward(self, width: int, height: int, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        rows = table((int(height), int(width)), self._sinpe_encoding, flatten=True, dtype=dtype, device=device)
        return rows.unsqueeze(0)


def pictures_of(module: Any) -> list[Candidate] | Left | None:
    """Candidates for a sine position embedding of images; None for any other module."""
    names = parameters(module)
    if not has(module, "temperature"):
        return None
    if names == ("width", "height", "device", "dtype") and number(getattr(module, "embed_dim", None)):
        cells = convention("hf2d", module.embed_dim, base=module.temperature)
        calls = [((13, 9, torch.device("cpu"), dtype), 13.0) for dtype in (torch.float32, torch.float64)]
        probes = [Probe(args, {}, furthest) for args, furthest in calls]
        return [Candidate(GridRows, cells, (), probes, {}, "points of a feature map")]
    mixin: type[PictureRows]
    if names == ("shape", "device", "dtype", "mask") and has(module, "num_position_features"):
        mixin, features = ShapeRows, module.num_position_features
    elif names == ("pixel_values", "pixel_mask") and has(module, "embedding_dim"):
        mixin, features = MaskRows, module.embedding_dim
    else:
        return None
    if not number(features) or not number(module.temperature):
        return None
    normalize: Any = getattr(module, "normalize", True)
    scale: Any = getattr(module, "scale", None)
    scale = 2 * math.pi if scale is None else scale
    grid = convention("detr2d", 2 * int(features), base=module.temperature)
    candidates = []
    for offset in (0.0, -0.5) if normalize else (0.0,):
        options = {"_sinpe_normalize": bool(normalize), "_sinpe_scale": float(scale), "_sinpe_offset": offset}
        furthest, slack = (float(scale), NORMALISED) if normalize else (13.0, 1.0)
        probes = [Probe(args, {}, furthest, slack) for args in _arguments(mixin, int(features), offset)]
        candidates.append(Candidate(mixin, grid, (), probes, options, "points of a feature map"))
    return candidates


def _arguments(mixin: type[PictureRows], features: int, offset: float) -> list[tuple[Any, ...]]:
    """Arguments for a feature map without and with padding."""
    height, width = 9, 13
    whole = torch.ones(3, height, width, dtype=torch.bool)
    padded = whole.clone()
    padded[1, 6:], padded[1, :, 10:], padded[2, :, 4:] = False, False, False
    if offset:  # in a row of padding only, the positions would be divided by eps alone and be huge
        padded[:, 0], padded[:, :, 0] = True, True
    if mixin is MaskRows:
        pixels = torch.zeros(3, 3, height, width)
        return [(pixels, whole), (pixels, padded), (pixels, padded.long())]
    shape = torch.Size((3, 2 * features, height, width))
    start = (shape, torch.device("cpu"), torch.float32)
    return [start, (*start, padded), (*start, padded.long())]
