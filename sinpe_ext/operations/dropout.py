"""Dropout: the operator, its seed, drawn if none was given, and scalars as tensors that operators accept."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from .. import torch_state
from ..backend import loader
from ..encodings.values import INT64_MAX
from ..operator import Derivative, Operator, one_by_one
from ..records import DrawSeed, Dropout
from ..reference import apply
from ..torch_state import is_capturing

_drawing = threading.Lock()


def scaled(d: Dropout) -> Tensor:
    """The gradient with respect to x: d.x with dropout and scale applied, or d.x itself without dropout and scale."""
    if d.drop_threshold:
        return DROPOUT(d)
    return d.x if d.scale == 1.0 else d.x * d.scale


def _gradients(d: Dropout, needed: Dropout, grad: Tensor) -> dict[str, Tensor | None]:
    return {"x": scaled(d._replace(x=grad))}


DROPOUT = Operator(
    "dropout",
    Dropout,
    reference=apply.dropout,
    fake=lambda d: torch.empty_like(d.x),
    vmap=one_by_one,
    derivative=Derivative(_gradients, values=lambda needed: ()),
)


def seed_tensor(seed: Any, device: torch.device) -> Tensor:
    """A checked seed as an int64 tensor of shape () on `device`, or where `number` puts it; for None a seed is drawn
    from the device's generator."""
    if seed is None and not torch.compiler.is_compiling():
        if device.type == "cuda" and _can_draw_on_host(device):
            return number(draw(None, device), torch.int64, device)
        return torch.randint(INT64_MAX, (), dtype=torch.int64, device=device)
    if torch.compiler.is_compiling() and torch_state.is_exporting():
        # ONNX has no operator for the mask, and an exported model with active dropout is hardly intended.
        raise ValueError(
            "dropout: expected none in a graph of standard operations, got a layer in training or dropout > 0; call "
            "model.eval() before the export"
        )
    if seed is None and torch_state.is_vmapped():
        # Of torch's random operations, vmap makes one draw for each sample or none, as its argument `randomness` says.
        return torch.randint(INT64_MAX, (), dtype=torch.int64, device=device)
    if seed is None:
        # A custom operator in a graph: the compiler would replace torch.randint by another random stream.
        drawn: Tensor = DRAW_SEED(DrawSeed(torch.empty((), dtype=torch.int64, device=device)))
        return drawn
    if not isinstance(seed, Tensor) and isinstance(seed, torch.Generator):
        if seed.device.type == "cuda" and _can_draw_on_host(seed.device):
            return number(_drawn(seed), torch.int64, device)
        seed = torch.randint(INT64_MAX, (), generator=seed, dtype=torch.int64, device=seed.device)
        if seed.device == device:
            return seed
    if isinstance(seed, Tensor):
        if seed.device.type != "cpu" or device.type == "cpu" or torch_state.unreadable(seed):
            return seed.detach().reshape(()).to(device, copy=True)  # the caller may modify theirs before backward
        seed = seed.item()  # copying a CPU tensor to the device would synchronize
    return number(seed, torch.int64, device)


def _can_draw_on_host(device: torch.device) -> bool:
    """Whether a seed for a CUDA device can be drawn without a kernel: not while a CUDA graph is captured, whose replays
    draw anew, nor by a tracer or transform. Dispatch modes do not change it: activation checkpointing repeats a call
    without those that were active."""
    state = torch_state.read()
    return not (state.must_decompose or state.functorch or state.fake) and not is_capturing(device)


def draw(generator: torch.Generator | None, device: torch.device) -> int:
    """A seed from a generator, or from the default generator of the CPU or a CUDA device."""
    if generator is not None:
        return int(seed_tensor(generator, device))
    if device.type == "cpu":
        return int(torch.randint(INT64_MAX, (), dtype=torch.int64, device=device))
    index = torch.cuda.current_device() if device.index is None else device.index
    return _drawn(torch.cuda.default_generators[index])


def _drawn(generator: torch.Generator) -> int:
    """A seed from the seed and offset of a CUDA generator, whose offset is advanced as by one of torch's kernels: the
    number of SplitMix64 (Steele, Lea and Flood, 2014) at that offset, without its last bit."""
    with _drawing:  # of other threads here; a kernel of torch that draws in between is not excluded
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # kernels advance it by multiples of 4, too
    bits = (generator.initial_seed() + (offset // 4 + 1) * 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return (bits ^ bits >> 31) >> 1


def number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of shape () for an operator. If a CUDA kernel is called eagerly the tensor is on the CPU:
    the value is then a launch argument, and no fill kernel is needed. Otherwise, in a graph too, it is on `device`."""
    if device.type == "cuda" and loader.compiled("cuda") and not torch_state.read().must_decompose:
        device = torch.device("cpu")
    return torch.full((), value, dtype=dtype, device=device)


DRAW_SEED = Operator(
    "draw_seed",
    DrawSeed,
    reference=lambda d: torch.randint(INT64_MAX, (), dtype=torch.int64, device=d.like.device),
    fake=lambda d: d.like.new_empty((), dtype=torch.int64),
    tags=(torch.Tag.nondeterministic_seeded,),
)
