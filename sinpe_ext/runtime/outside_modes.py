"""A decorator for functions that make constants: it suspends torch's modes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run the function outside of dispatch modes (fake tensors, make_fx), torch.func and inference mode, so
    that its tensors are ordinary and can be cached. A default device still applies: the function passes `device=`.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch(), torch._C._InferenceMode(False):
            return function(*args, **kwargs)

    return run
