"""A stand-in for the table of kernels of the loaded library, with which the module `_core` repeats large calls."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from sinpe_ext.backend import loader


class Kernels(ctypes.Structure):
    """The first fields of the struct in csrc/core/kernels.h; its last one is `run`."""

    _fields_ = (
        ("bytes", ctypes.c_int64),
        ("in_host_memory", ctypes.c_bool),
        ("max_elements", ctypes.c_int64),
        ("is_ready", ctypes.c_void_p),
    )


IS_READY = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int32)
RUN = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_int32] * 2, ctypes.c_void_p, ctypes.c_int32, *[ctypes.c_bool] * 2)
MESSAGE = ctypes.create_string_buffer(b"a kernel could not be launched")


@contextmanager
def stand_in(in_host_memory: bool = True, fails: bool = False) -> Iterator[list[str]]:
    """Yields the calls of the functions, "is_ready", "check" and "run".

    Args:
        in_host_memory: False: as the kernels of a device.
        fails: the last call fails after its checks.
    """
    original, calls = ctypes.CDLL(loader.resolve("cpu").library).sinpe_kernels, []
    original.restype = ctypes.c_void_p
    address = original()
    size = Kernels.from_address(address).bytes
    real = RUN(ctypes.c_void_p.from_address(address + size - 8).value)

    def run(op: int, device: int, operands: int, count: int, is_new: bool, check_only: bool) -> int | None:
        calls.append("check" if check_only else "run")
        return real(op, device, operands, count, is_new, check_only or fails) or (
            ctypes.addressof(MESSAGE) if fails and not check_only else None
        )

    memory = (ctypes.c_char * size).from_buffer_copy(ctypes.string_at(address, size))
    table, functions = Kernels.from_buffer(memory), (IS_READY(lambda device: not calls.append("is_ready")), RUN(run))
    table.in_host_memory = in_host_memory
    table.is_ready, last = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    ctypes.c_void_p.from_buffer(memory, size - 8).value = last
    module = loader.core_module()[0]
    module.set_kernels(1, ctypes.addressof(memory))
    try:
        yield calls
    finally:
        module.set_kernels(1, address)
