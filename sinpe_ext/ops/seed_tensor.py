"""Numbers as tensors that operators accept: the seed of a dropout mask, drawn if none was given, and scalars."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backend import loader
from ..checks import INT64_MAX
from ..runtime import observers
from .operator import Operator

_CPU = torch.device("cpu")


def tensor(seed: Any, device: torch.device) -> Tensor:
    """A checked seed as an int64 tensor of shape () on `device`, or where `number` puts it; for None a seed is drawn
    from the device's generator."""
    if torch.compiler.is_compiling() and observers.is_exporting():
        # ONNX has no operator for the mask, and an exported model with active dropout is hardly intended.
        raise ValueError(
            "dropout: expected none in a graph of standard operations, got a layer in training or dropout > 0; call "
            "model.eval() before the export"
        )
    if seed is None:
        if not torch.compiler.is_compiling():
            return draw(device)
        # A custom operator in a graph: the compiler would replace torch.randint by another random stream.
        return torch.ops.sinpe_ext.draw_seed.default(torch.empty((), dtype=torch.int64, device=device))
    if not isinstance(seed, Tensor) and isinstance(seed, torch.Generator):
        seed = draw(seed.device, seed)
        if seed.device == device:
            return seed
    if isinstance(seed, Tensor):
        if seed.device.type != "cpu" or device.type == "cpu" or observers.unreadable(seed):
            return seed.detach().reshape(()).to(device, copy=True)  # the caller may modify theirs before backward
        seed = seed.item()  # copying a CPU tensor to the device would synchronize
    return number(seed, torch.int64, device)


def number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of shape () for an operator. If a CUDA kernel is called eagerly the tensor is on the CPU:
    the value is then a launch argument, and no fill kernel is needed. Otherwise, in a graph too, it is on `device`."""
    if device.type == "cuda" and loader.compiled("cuda") and not observers.needs_operations():
        device = _CPU
    return torch.full((), value, dtype=dtype, device=device)


def draw(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """Draws a seed from a generator, by default the device's."""
    return torch.randint(INT64_MAX, (), generator=generator, dtype=torch.int64, device=device)


Operator(
    # Each draw gets a new tensor as `like`: a graph would merge two draws with equal arguments into one.
    "draw_seed(Tensor like) -> Tensor",
    reference=lambda like: draw(like.device),
    fake=lambda like: like.new_empty((), dtype=torch.int64),
    tags=(torch.Tag.nondeterministic_seeded,),
)
