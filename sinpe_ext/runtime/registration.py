"""Registering with torch once and whole, although Ctrl-C may cut an import short, which is then begun anew."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_made: dict[str, Any] = {}  # here, where it outlives an import of ops that was cut short


def once(name: str, make: Callable[[], Any]) -> Any:
    """What `make` made, the first time this was called for `name`."""
    with interrupts_held():
        if name not in _made:
            _made[name] = make()
        return _made[name]


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
