"""The rows of an encoding for checked arguments, without autograd: from the kernels, or else from the eager twin."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import reference
from ..backend import loader
from ..encodings.encoding import Encoding
from ..encodings.plan import plan as _plan_of
from ..reference import float32_angle
from ..runtime import observers
from . import schemas


def table(encoding: Encoding, length: int, start: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows encoding.start + start, ..., + length - 1."""
    written_down = observers.is_written_down()
    if observers.no_data(device) and not written_down:
        return torch.empty((length, encoding.dim), dtype=dtype, device=device)
    if encoding.angle != "exact":
        positions = torch.arange(length, device=device) + (encoding.start + start)
        return float32_angle.encode(encoding, positions, dtype)
    if written_down or loader.compiled(device.type):
        words = schemas.plan_words(encoding, device)
        try:
            return torch.ops.sinpe_ext.table.default(words, start, length, encoding.dim, dtype)
        except RuntimeError:
            torch.empty(
                (length, encoding.dim), dtype=dtype, device=device
            )  # where memory was the reason, this says how much
            raise
    return reference.table(_plan_of(encoding), length, encoding.start + start, dtype, device)


def encode(positions: Tensor, words: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Rows at int64, float32 or float64 positions; `words` are those of an encoding's plan."""
    written_down = observers.is_written_down()
    if observers.no_data(positions.device) and not written_down:
        return positions.new_empty((*positions.shape, dim), dtype=dtype)
    if written_down or loader.compiled(positions.device.type):
        try:
            return torch.ops.sinpe_ext.encode.default(positions.detach().contiguous(), words, dim, dtype)
        except RuntimeError:
            torch.empty((*positions.shape, dim), dtype=dtype, device=positions.device)
            raise
    return reference.encode(schemas.decoded(words), positions.detach(), dtype)
