"""torch.no_grad that Ctrl-C cannot leave switched on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def no_grad(function: Callable[P, R]) -> Callable[P, R]:
    """The function without autograd.

    `torch.no_grad` is a context manager in Python: a KeyboardInterrupt within its `__enter__` or `__exit__`, where
    Python looks for signals, leaves the thread without gradients for good. Between the two calls into C below and the
    `try` and `finally` around them it does not look.
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
