"""A `torch.no_grad` decorator that restores the grad mode even after Ctrl-C."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run the function under `torch.no_grad`.

    `torch.no_grad` is a context manager written in Python: a KeyboardInterrupt raised inside its `__enter__` or
    `__exit__`, where Python handles signals, leaves grad mode permanently disabled in this thread. Between the two
    calls into C below and the `try` and `finally` around them, Python handles no signals.
    """
    enabled, switch = torch.is_grad_enabled, torch._C._set_grad_enabled

    @functools.wraps(function)
    def without_gradients(*args: P.args, **kwargs: P.kwargs) -> R:
        before = enabled()
        try:
            switch(False)
            return function(*args, **kwargs)
        finally:
            switch(before)

    return without_gradients
