"""Idempotent registration with torch: safe to repeat after an import that Ctrl-C interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_made: dict[str, Any] = {}  # in this module, so that it survives an interrupted import of ops


def once(name: str, make: Callable[[], Any]) -> Any:
    """The result of `make`, which is called only the first time `name` is passed."""
    with interrupts_held():
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


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Context manager: defers SIGINT (Ctrl-C) to the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no KeyboardInterrupt is raised here
        return
    came: list[Any] = []
    try:
        signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    except ValueError:  # a subinterpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])
