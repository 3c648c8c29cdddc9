"""Cache of constants in CUDA memory: each is copied once and kept, so that no later call waits for a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .torch_state import is_capturing, outside_modes

MAX_COPIES = 512  # cached copies; a base that changes with every sequence must not fill the memory

_copies: dict[tuple[Any, torch.device], Tensor] = {}  # oldest first
_others: list[Callable[[], None]] = []  # functions that release other references to copies
_captured: dict[int, Tensor] = {}  # copies whose address a CUDA graph has recorded: never freed


def releases_with(release: Callable[[], None]) -> None:
    """Registers a function that releases its references to copies, which is called when the cache frees copies."""
    if release not in _others:
        _others.append(release)


def on_device(
    key: Any, device: torch.device, make: Callable[[], Tensor], note: Callable[[Tensor], None] | None = None
) -> Tensor:
    """The constant `key` on a CUDA device; on the CPU if CUDA is not available, as when a graph is exported for another
    machine.

    Args:
        key: hashable, identifies the constant.
        make: returns the constant, on the CPU or, with its computation finished, on the device; called on first use.
        note: called with each new copy.
    Raises:
        RuntimeError if the first use is inside a CUDA graph capture.
    """
    copy = _copies.get((key, device))
    if copy is None:
        return _new(key, device, make, note)
    if is_capturing(device):
        _captured[id(copy)] = copy
    return copy


def _new(key: Any, device: torch.device, make: Callable[[], Tensor], note: Callable[[Tensor], None] | None) -> Tensor:
    """Copies a constant to the device and caches the copy; a full cache frees its older half first."""
    if not torch.cuda.is_available():
        return make()
    if device.index is None:
        return on_device(key, torch.device("cuda", torch.cuda.current_device()), make, note)
    if is_capturing(device):
        raise RuntimeError(
            f"encoding: run one warm-up call on {device} before CUDA graph capture, got the first use during the "
            "capture, when its constants cannot be copied to the device"
        )
    if len(_copies) >= MAX_COPIES:
        dropped = list(_copies)[: MAX_COPIES // 2]
        for place in {old[1] for old in dropped}:
            torch.cuda.synchronize(place)  # kernels on any stream may still be reading the copies
        for old in dropped:
            _copies.pop(old, None)
        for release in _others:
            release()
    copy = outside_modes(lambda: make().to(device))()
    copy = _copies.setdefault((key, device), copy)
    if note is not None:
        note(copy)
    return copy
