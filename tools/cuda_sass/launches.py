"""Intercepts the kernel launches of library calls on this machine.

The library consists of the CUDA kernels compiled as plain C++ (csrc/cuda/on_host.h) and replaces the CPU library. An
intercepted launch has the bytes of the kernel's argument. Its pointers are valid in this process, so machine code that
block.py executes reads the tensors of the call and writes its results.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from .cubin import body_of


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's body, its argument, the number of blocks, and the threads per block."""

    name: str
    body: bytes
    blocks: int
    threads: int


class _Launch(ctypes.Structure):
    _fields_ = [
        ("body", ctypes.c_char_p),
        ("bytes", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("threads", ctypes.c_int32),
        ("phases", ctypes.c_int32),
    ]


_Taken = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(_Launch))


def emulate() -> str:
    """Makes the library replace the CPU library, compiling it if necessary, and returns its path. Must be called before
    any call of sinpe_ext."""
    from sinpe_ext.backend import loader

    return str(loader.emulate().library)


@contextmanager
def intercepted(
    library: str, take: Callable[[Launch], bool], multiprocessors: int, in_double: bool = True
) -> Iterator[None]:
    """Context manager: passes each launch to `take`, which returns False if the launch should run as C++."""
    switch = ctypes.CDLL(library).sinpe_cuda_on_host
    switch.argtypes = [ctypes.c_int32, ctypes.c_int32, _Taken]
    failures: list[BaseException] = []

    def taken(launch: ctypes._Pointer[_Launch]) -> bool:
        it = launch.contents
        try:
            return take(Launch(_name(it.body.decode()), ctypes.string_at(it.bytes, it.size), it.blocks, it.threads))
        except BaseException as failure:  # C++ must not see it
            failures.append(failure)
            return True

    callback = _Taken(taken)
    switch(multiprocessors, in_double, callback)
    try:
        yield
    finally:
        switch(0, -1, _Taken())
    if failures:
        raise failures[0]


class Counters(ctypes.Structure):
    """Counters of csrc/cuda/on_host.h: recomputations in exact arithmetic, and queries of launches."""

    _fields_ = [(name, ctypes.c_int64) for name in ("careful_rows", "questions", "launches")]


def counters(library: str) -> Counters:
    """The counters since the process started."""
    read = ctypes.CDLL(library).sinpe_cuda_counters
    read.restype = ctypes.POINTER(Counters)
    found = read().contents
    return Counters(*(getattr(found, name) for name, _ in Counters._fields_))


@lru_cache
def _name(type_name: str) -> str:
    done = subprocess.run(["c++filt", "-t", type_name], check=True, stdout=subprocess.PIPE, text=True)
    return body_of(done.stdout.strip())
