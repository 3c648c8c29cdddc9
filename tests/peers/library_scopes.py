"""Global names used by the definitions in tests/support/library_calls.json, by heading of docs/migrating.md.

Only the file of a library's class is run (`migrating.definitions`). Its imports are provided here: torch, NumPy, and
minimal replacements for other classes and helpers of the library, which do not affect the results.
"""

from __future__ import annotations

import collections
import collections.abc
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn


class Based(nn.Module):
    """A base class whose arguments do not matter here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


class EncodingOfNerfstudio(Based):
    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return self.forward(*args, **fields)


class EmbedderOfTexar(Based):
    default_hparams: Any

    def __init__(self, hparams: Any = None) -> None:
        super().__init__()
        self._hparams = SimpleNamespace(**{**self.default_hparams(), **(hparams or {})})


def unsqueeze(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    for _ in range(count):
        x = x.unsqueeze(dim)
    return x


class Utilities:
    """A library's module `utils`: the functions that were taken from it."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]


def unchanged(function: Any) -> Any:
    return function


NEEDED: dict[str, dict[str, Any]] = {
    "fairseq2": {
        "ABC": object,
        "abstractmethod": unchanged,
        "override": unchanged,
        "TYPE_CHECKING": False,
        "unsqueeze": unsqueeze,
    },
    "Texar": {"EmbedderBase": EmbedderOfTexar},
    "Sockeye": {
        "pt": torch,
        "C": SimpleNamespace(FIXED_POSITIONAL_EMBEDDING="fixed", LEARNED_POSITIONAL_EMBEDDING="learned"),
    },
    "MONAI": {"collections": collections, "repeat": itertools.repeat},
    "x-transformers": {"arange": torch.arange, "einsum": torch.einsum, "cat": torch.cat},
    "transformers": {"is_torchdynamo_compiling": lambda: False},
    "MMDetection": {"BaseModule": Based},
    "nerfstudio": {"Encoding": EncodingOfNerfstudio, "TCNN_EXISTS": False},
}


def scope_of(heading: str) -> dict[str, Any]:
    """A new scope for a library's definitions."""
    usual = {"torch": torch, "nn": nn, "F": nn.functional, "Tensor": torch.Tensor, "math": math, "np": np}
    scope: dict[str, Any] = {**usual, "Module": nn.Module, **NEEDED.get(heading, {})}
    scope["utils"] = Utilities(scope)
    return scope
