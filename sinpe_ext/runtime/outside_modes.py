"""A decorator for functions that make constants: it suspends torch's modes, and restores them even after Ctrl-C."""

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

    The context managers are written in C, where Python handles no signals. `torch.inference_mode` is written in Python:
    after a KeyboardInterrupt inside its `__exit__`, its guard would be released last and restore the state that it
    found, in which dispatch modes are suspended. torch.compile and make_fx would then no longer work in this thread.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch._C._DisableTorchDispatch(), torch._C._DisableFuncTorch(), torch._C._InferenceMode(False):
            return function(*args, **kwargs)

    return run
