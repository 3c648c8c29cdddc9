"""Numbers as the tensors that operators take: the seed of a dropout mask, drawn where none was given, and others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..backend import loader
from ..checks import INT64_MAX
from ..runtime import observers
from ..runtime.tracing import is_jit_traced
from .operator import Operator

_CPU = torch.device("cpu")


def tensor(seed: Any, device: torch.device) -> Tensor:
    """A checked seed as an int64 tensor of shape () on `device`, or a `number`; None draws one with its generator."""
    if (torch.compiler.is_compiling() or is_jit_traced()) and observers.is_exporting():
        # A mask is drawn by an operator that ONNX lacks, and a file that drops at random is hardly meant.
        raise ValueError(
            "dropout: expected none in a graph of standard operations, got a layer in training or dropout > 0; call "
            "model.eval() before the export"
        )
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
        if seed.device.type != "cpu" or device.type == "cpu" or observers.unreadable(seed):
            return seed.detach().reshape(()).to(device, copy=True)  # the caller's may count on before the backward pass
        seed = seed.item()  # a copy from the CPU would wait for the device
    return number(seed, torch.int64, device)


def number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as the tensor of shape () that operators take: on the CPU for a CUDA kernel that is called now, which
    gets it with its launch and needs no other kernel to fill memory. In a graph, and for all else, on `device`."""
    if device.type == "cuda" and loader.compiled("cuda") and not observers.needs_operations():
        device = _CPU
    return torch.full((), value, dtype=dtype, device=device)


def draw(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A seed from a generator, or from the device's."""
    return torch.randint(INT64_MAX, (), generator=generator, dtype=torch.int64, device=device)


Operator(
    # `like` is a tensor of its own for each draw: two draws with equal arguments would be merged into one in a graph.
    "draw_seed(Tensor like) -> Tensor",
    reference=lambda like: draw(like.device),
    fake=lambda like: like.new_empty((), dtype=torch.int64),
    tags=(torch.Tag.nondeterministic_seeded,),
)
