"""Global names used by the definitions in tests/support/library_calls.json, by heading of docs/migrating.md.

Only the file of a library's class is run (`migrating.definitions`). Its imports are provided here: torch, NumPy, and
minimal replacements for other classes and helpers of the library, which do not affect the results.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn


class EncodingOfNerfstudio(nn.Module):
    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self.forward(*args, **fields)


class Utilities:
    """A library's module `utils`: the functions that were taken from it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]


NEEDED: dict[str, dict[str, Any]] = {"nerfstudio": {"Encoding": EncodingOfNerfstudio, "TCNN_EXISTS": False}}


def scope_of(heading: str) -> dict[str, Any]:
    """A new scope for a library's definitions."""
    common = {"torch": torch, "nn": nn, "F": nn.functional, "Tensor": torch.Tensor, "math": math, "np": np}
    scope: dict[str, Any] = {**common, "Module": nn.Module, **NEEDED.get(heading, {})}
    scope["utils"] = Utilities(scope)
    return scope
