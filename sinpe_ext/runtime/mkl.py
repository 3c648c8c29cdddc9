"""Sines in eager PyTorch that are right at the first call as well."""

from __future__ import annotations

import threading

import torch

_lock = threading.Lock()
_done = False


def warm_up() -> None:
    """Calls what torch hands to MKL once, with one element, before several threads do.

    MKL before 2025.0 (torch 2.11 to 2.15 have 2024.2) looks up its kernel at a function's first call; where threads do
    that at once, one of them may get a kernel of half the digits for that call: pytorch/pytorch issue 188792.
    """
    global _done
    if _done:
        return
    with _lock, torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch(), torch.inference_mode(False):
        for dtype in (torch.float64, torch.float32):
            one = torch.ones(1, dtype=dtype, device="cpu")
            for function in (torch.sin, torch.cos, torch.exp):
                function(one)
        _done = True
