"""Workaround for a race in MKL's first call of a vector function."""

from __future__ import annotations

import threading

import torch

from ..torch_state import outside_modes

_lock = threading.Lock()
_done = False


def warm_up() -> None:
    """Calls sin, cos and exp once on one element, so that MKL selects its kernels before several threads call them.

    MKL before 2025.0 (torch 2.11 to 2.15 ship 2024.2) selects the kernel of a function at its first call; if several
    threads make that call at the same time, one of them may run a kernel of half the precision: pytorch/pytorch issue
    188792.
    """
    global _done
    if _done:
        return
    with _lock:
        _call_each()
        _done = True


@outside_modes
def _call_each() -> None:
    """Calls each function once in each dtype."""
    for dtype in (torch.float64, torch.float32):
        one = torch.ones(1, dtype=dtype, device="cpu")
        for function in (torch.sin, torch.cos, torch.exp):
            function(one)
