"""Checks of the seed of a dropout mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..encodings.values import integer
from . import INT64_MAX, INT64_MIN, dense_tensor


def checked(seed: Any, device: torch.device) -> Any:
    """Checks the seed for a result on `device`; an int is checked for its range, anything else is returned as it is."""
    # Not for tensors: since torch 2.15 the compiler cannot trace this isinstance of a tensor.
    if seed is None or (not isinstance(seed, Tensor) and isinstance(seed, torch.Generator)):
        return seed
    if torch.compiler.is_compiling() and isinstance(seed, (int, torch.SymInt)) and not isinstance(seed, bool):
        return seed  # may be a symbolic int of the graph
    if isinstance(seed, Tensor):
        dense_tensor("seed", seed)
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TypeError(
                f"seed: expected an int64 tensor of one element, got {seed.dtype} of shape {tuple(seed.shape)}; pass "
                "torch.tensor(seed)"
            )
        if seed.is_meta and device.type != "meta":
            raise RuntimeError(f"seed: expected a tensor with data, got one on meta; move it to {device} before")
        return seed
    return integer("seed", seed, INT64_MIN, INT64_MAX, "pass an int, an int64 tensor, a torch.Generator or None")
