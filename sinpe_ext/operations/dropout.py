"""Dropout: the operator, its seed, drawn if none was given, and scalars as tensors that operators accept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch_state
from ..backend import loader
from ..encodings.values import INT64_MAX
from ..operator import Operator, one_by_one
from ..reference import apply
from .records import Dropout, save, saved

_CPU = torch.device("cpu")


def scaled(d: Dropout) -> Tensor:
    """The gradient with respect to x: d.x with dropout and scale applied, or d.x itself without dropout and scale."""
    if d.drop_threshold:
        return DROPOUT(*d)
    return d.x if d.scale == 1.0 else d.x * d.scale


def _dropout(*operands: Any) -> Tensor:
    return apply.dropout(Dropout(*operands))


def _dropout_setup(ctx: Any, inputs: Any, output: Any) -> None:
    save(ctx, Dropout(*inputs), left_out=0)


def _dropout_backward(ctx: Any, grad: Tensor) -> Any:
    return scaled(saved(ctx)._replace(x=grad)), None, None, None, None


DROPOUT = Operator(
    "dropout(Tensor x, Tensor? seed, int drop_threshold, float scale, SymInt[] rng_offsets) -> Tensor",
    reference=_dropout,
    fake=lambda x, *_: torch.empty_like(x),
    vmap=one_by_one("dropout"),
    derivative=(_dropout_setup, _dropout_backward),
)


def seed_tensor(seed: Any, device: torch.device) -> Tensor:
    """A checked seed as an int64 tensor of shape () on `device`, or where `number` puts it; for None a seed is drawn
    from the device's generator."""
    if seed is None and not torch.compiler.is_compiling():
        return torch.randint(INT64_MAX, (), dtype=torch.int64, device=device)
    if torch.compiler.is_compiling() and torch_state.is_exporting():
        # ONNX has no operator for the mask, and an exported model with active dropout is hardly intended.
        raise ValueError(
            "dropout: expected none in a graph of standard operations, got a layer in training or dropout > 0; call "
            "model.eval() before the export"
        )
    if seed is None:
        # A custom operator in a graph: the compiler would replace torch.randint by another random stream.
        return torch.ops.sinpe_ext.draw_seed.default(torch.empty((), dtype=torch.int64, device=device))
    if not isinstance(seed, Tensor) and isinstance(seed, torch.Generator):
        seed = torch.randint(INT64_MAX, (), generator=seed, dtype=torch.int64, device=seed.device)
        if seed.device == device:
            return seed
    if isinstance(seed, Tensor):
        if seed.device.type != "cpu" or device.type == "cpu" or torch_state.unreadable(seed):
            return seed.detach().reshape(()).to(device, copy=True)  # the caller may modify theirs before backward
        seed = seed.item()  # copying a CPU tensor to the device would synchronize
    return number(seed, torch.int64, device)


def number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of shape () for an operator. If a CUDA kernel is called eagerly the tensor is on the CPU:
    the value is then a launch argument, and no fill kernel is needed. Otherwise, in a graph too, it is on `device`."""
    if device.type == "cuda" and loader.compiled("cuda") and not torch_state.read().must_decompose:
        device = _CPU
    return torch.full((), value, dtype=dtype, device=device)


Operator(
    # Each draw gets a new tensor as `like`: a graph would merge two draws with equal arguments into one.
    "draw_seed(Tensor like) -> Tensor",
    reference=lambda like: seed_tensor(None, like.device),
    fake=lambda like: like.new_empty((), dtype=torch.int64),
    tags=(torch.Tag.nondeterministic_seeded,),
)
