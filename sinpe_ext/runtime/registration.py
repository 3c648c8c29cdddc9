"""Registering with torch once, whole and for good, although Ctrl-C may cut an import short; it is then begun anew."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_made: dict[str, Any] = {}  # here, where it outlives an import of ops that was cut short


def once(name: str, make: Callable[[], Any]) -> Any:
    """What `make` made, the first time this was called for `name`."""
    with interrupts_held():
        if name not in _made:
            _made[name] = make()
        return _made[name]


def fragment(namespace: str) -> Any:
    """A torch.library.Library that stays as long as the process.

    torch takes a library's operators away when Python ends, also from a daemon thread that is inside of one: a crash.
    """
    import torch

    library = torch.library.Library(namespace, "FRAGMENT")
    for reference in weakref.getweakrefs(library):
        if isinstance(reference.__callback__, weakref.finalize):
            reference.__callback__.atexit = False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # nor with the module that holds it
    return library


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C takes effect at the end of the block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no KeyboardInterrupt comes here
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
