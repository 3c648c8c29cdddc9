"""Registration with torch, once in a process."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

_made: dict[str, Any] = {}  # in this module, so that it survives a failed import of ops


def once(name: str, make: Callable[[], Any]) -> Any:
    """The result of `make`, which is called only the first time `name` is passed."""
    if name not in _made:
        _made[name] = make()
    return _made[name]


def fragment(namespace: str) -> Any:
    """A torch.library.Library that lives as long as the process.

    torch deregisters a library's operators at interpreter exit, even while a daemon thread is running one, which
    crashes.
    """
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    for reference in weakref.getweakrefs(library):
        if isinstance(reference.__callback__, weakref.finalize):
            reference.__callback__.atexit = False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # keeps it when the module that holds it is freed
    return library
