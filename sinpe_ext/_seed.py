"""`seed`: what `add` and `embed` take for one, as the int64 tensor that operators take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _onnx
from ._checks import INT64_MAX, INT64_MIN, dense_tensor, unreadable
from .encodings.values import integer
from .runtime.tracing import is_jit_traced, untraced


@untraced
def checked(seed: Any, device: torch.device) -> Any:
    """What callers may pass for a seed of a result on `device`: an int becomes one in range, anything else stays."""
    # Asked of what is no tensor: since torch 2.15 a compiler does not trace this question about one.
    if seed is None or (not isinstance(seed, Tensor) and isinstance(seed, torch.Generator)):
        return seed
    if torch.compiler.is_compiling() and isinstance(seed, (int, torch.SymInt)) and not isinstance(seed, bool):
        return seed  # may be a symbol of the graph
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


def tensor(seed: Any, device: torch.device) -> Tensor:
    """A checked seed as an int64 tensor of shape () on `device`; None is drawn from torch's generator of the device."""
    if (torch.compiler.is_compiling() or is_jit_traced()) and _onnx.is_exporting():
        _onnx.refuse_dropout()
    if seed is None:
        if not torch.compiler.is_compiling():
            return draw(device)
        # In a graph an operator of our own: torch.randint would become another random stream there.
        return torch.ops.sinpe_ext.draw_seed.default(torch.empty((), dtype=torch.int64, device=device))
    if not isinstance(seed, Tensor) and isinstance(seed, torch.Generator):
        if is_jit_traced():
            raise TypeError(
                "seed: expected None, an int or an int64 tensor under torch.jit.trace, got a torch.Generator, which it "
                "cannot record; pass None to draw from torch's generator in each run"
            )
        seed = draw(seed.device, seed)
        if seed.device == device:
            return seed
    if isinstance(seed, Tensor):
        if seed.device.type != "cpu" or device.type == "cpu" or unreadable(seed):
            return seed.detach().reshape(()).to(device, copy=True)  # the caller's may count on before the backward pass
        seed = seed.item()  # a copy from the CPU would wait for the device
    return torch.full((), seed, dtype=torch.int64, device=device)


def draw(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A seed from a generator, or from the device's."""
    return torch.randint(INT64_MAX, (), generator=generator, dtype=torch.int64, device=device)
