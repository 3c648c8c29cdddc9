"""Functions as models, and their arguments, for the tests of ONNX export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Call(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Tensor:
        return self.function(*arguments)


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def ids(*shape: int) -> Tensor:
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(sum(shape)))
