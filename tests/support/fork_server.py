"""A process that imports modules and forks for each request: see Server in tests/support/children.py.

Arguments: the modules to import, which must not start threads that a child needs. Standard input is a socket: a request
is its length, sent with the three standard streams, then JSON; the answers are (process, -1) at its start and (process,
status of waitpid) at its end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import types
from typing import Any

LENGTH, REPLY = struct.Struct("!q"), struct.Struct("!qq")
BEGUN = -1


def receive(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns in each child, with its request and its streams."""
    running: set[int] = set()

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                running.discard(ended[0])
                channel.sendall(REPLY.pack(*ended))

    signal.signal(signal.SIGCHLD, reap)
    while True:
        head, streams, _, _ = socket.recv_fds(channel, LENGTH.size, 3)
        if not head:  # the tests have ended
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
            os._exit(0)
        head += receive(channel, LENGTH.size - len(head))
        request = json.loads(receive(channel, *LENGTH.unpack(head)))
        process = os.fork()
        if process == 0:
            return request, streams
        running.add(process)
        for stream in streams:
            os.close(stream)


def become(request: dict[str, Any], streams: list[int], channel: socket.socket) -> dict[str, Any]:
    """Sets this process up like `python -c`; returns the namespace of its __main__."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    channel.sendall(REPLY.pack(os.getpid(), BEGUN))
    channel.close()
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = ["", *map(os.path.abspath, given), *(path for path in sys.path[1:] if path not in ours)]
    sys.argv[:] = ["-c"]
    importlib.invalidate_caches()
    tempfile.tempdir = None
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    return main.__dict__


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # keeps shared pages shared: children do not traverse these objects at exit
    requests = socket.socket(fileno=os.dup(0))
    asked, given = serve(requests)
    exec(compile(asked["code"], "<string>", "exec"), become(asked, given, requests))
