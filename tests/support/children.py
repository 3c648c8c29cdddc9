"""Processes started by tests: time limits, expected status, and the output shown on failure.

start, run and execute start a process; forked forks one from a process that has already imported torch. Each process is
a session of its own, so that it can be killed with its children. Output goes to files, so that a full or open pipe
cannot block.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import pytest
from fork_server import BEGUN, LENGTH, REPLY, receive

SUPPORT = Path(__file__).resolve().parent
REPOSITORY = SUPPORT.parent.parent
SANITIZED = os.environ.get("SINPE_EXT_SANITIZE", "0") not in ("", "0")  # nox -s asan
# Seconds; at least ten times what any child takes on an idle machine, so that only a hang fails.
DEADLINE = 3000.0 if SANITIZED else 600.0
SHOWN = 4000  # last characters of each stream
Status: TypeAlias = "int | Sequence[int] | None"  # expected exit status; None: any
# Variables that Python, its libraries or torch read at start-up; the exceptions are read when they are used.
READ_AT_START = ("PYTHON", "LD_", "LANG", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_")
SET_BY_OTHERS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")  # by scikit-learn at import
READ_LATER = ("PYTHONPATH", "TORCH_CUDA_ARCH_LIST")


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of this process without the project's variables, then with the changes; None removes.

    No CUDA device is visible and no architectures are set, so that an empty cache does not cause a CUDA build.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SINPE_EXT_")}
    for name in ("TORCH_CUDA_ARCH_LIST", *SET_BY_OTHERS):
        kept.pop(name, None)
    kept["CUDA_VISIBLE_DEVICES"] = ""
    kept["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    for name, value in changes.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = str(value)
    return kept


def library_environment(backend: str = "auto", **changes: str | None) -> dict[str, str]:
    """The environment of this process, with its library and cache."""
    here = {name: value for name, value in os.environ.items() if name.startswith("SINPE_EXT_")}
    return environment(**{**here, "SINPE_EXT_BACKEND": backend, **changes})


class Child:
    """A running process; `pid` is also its session."""

    def __init__(self, what: str, pid: int, wait: Callable[[float], int | None], streams: Sequence[IO[bytes]]):
        self.what, self.pid, self.wait, self.streams = what, pid, wait, streams

    def poll(self) -> int | None:
        """Its status, like Popen.returncode; None while it runs."""
        return self.wait(0)

    def printed(self, since: Sequence[int] = (0, 0)) -> tuple[str, str]:
        """(stdout, stderr) up to now, from these byte offsets on."""
        texts = []
        for stream, begin in zip(self.streams, since, strict=True):
            end = os.fstat(stream.fileno()).st_size
            text = os.pread(stream.fileno(), max(end - begin, 0), begin).decode(errors="replace")
            texts.append(text.replace("\r\n", "\n").replace("\r", "\n"))
        return texts[0], texts[1]

    def report(self, reason: str, since: Sequence[int] = (0, 0)) -> str:
        said = zip(("stdout", "stderr"), self.printed(since), strict=True)
        shown = [f"--- {name}, {len(text)} characters\n{text[-SHOWN:]}" for name, text in said]
        return "\n".join([f"{reason}: {self.what}", *shown])

    def end(self, number: int = signal.SIGKILL) -> None:
        """Sends a signal to the process and its descendants."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def until(condition: Callable[[], Any], what: str, limit: float = DEADLINE, child: Child | None = None) -> Any:
    """Waits for the first true value of the condition; `child` must be running until then."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        if child is not None and (status := child.poll()) is not None:
            pytest.fail(child.report(f"status {status} before {what}"))
        if time.monotonic() > deadline:
            if child is None:
                pytest.fail(f"not within {limit:g} s: {what}")
            child.end()
            pytest.fail(child.report(f"not within {limit:g} s: {what}"))
        time.sleep(0.02)
    return value


def start_command(
    arguments: Sequence[object],
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    input: str = "",
    stdin: int | None = None,
    stdout: int | None = None,
    merged: bool = False,
) -> Child:
    """The process reads `input` or `stdin`; output goes to a file or to `stdout`; merged: stderr goes there too."""
    out, read = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    err = out if merged else tempfile.TemporaryFile()
    read.write(input.encode())
    read.seek(0)
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in arguments]
    with read:
        process = subprocess.Popen(
            words,
            env=env,
            cwd=cwd,
            stdin=read if stdin is None else stdin,
            stdout=out if stdout is None else stdout,
            stderr=err,
            start_new_session=True,
        )

    def wait(limit: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit)
        return process.returncode

    return Child(" ".join(words)[:300], process.pid, wait, [out, tempfile.TemporaryFile() if merged else err])


def start(code: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Child:
    """A new Python process."""
    return start_command([sys.executable, "-c", code], env, cwd)


def finish(child: Child, limit: float = DEADLINE, status: Status = 0) -> tuple[str, str]:
    """(stdout, stderr) of a process that must end within the limit, with this status or one of these."""
    returncode = child.wait(limit)
    if returncode is None:
        reason = child.report(f"no end within {limit:g} s")
        child.end()
        child.wait(DEADLINE)
        pytest.fail(reason)
    if status is not None and returncode not in ([status] if isinstance(status, int) else status):
        child.end()
        pytest.fail(child.report(f"status {returncode} instead of {status}"))
    return child.printed()


def run(
    code: str, env: dict[str, str] | None = None, cwd: Path | None = None, status: Status = 0, limit: float = DEADLINE
) -> tuple[str, str]:
    return finish(start(code, env, cwd), limit, status)


def execute(
    arguments: Sequence[object], *, status: Status = 0, limit: float = DEADLINE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """options: of start_command."""
    child = start_command(arguments, **options)
    out, err = finish(child, limit, status)
    returncode = child.poll()
    assert returncode is not None
    return subprocess.CompletedProcess([str(word) for word in arguments], returncode, out, err)


class Server:
    """A process that has imported the given modules and forks children."""

    def __init__(self, *modules: str, env: dict[str, str]):
        self.env, self.owner = env, os.getpid()
        self.ended: dict[int, int] = {}
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(DEADLINE)
        program = Path(__file__).with_name("fork_server.py")
        self.child = start_command([sys.executable, program, *modules], env, stdin=theirs.fileno(), merged=True)
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        """Also ends its children."""
        if os.getpid() == self.owner and self.channel.fileno() >= 0:
            self.channel.close()
            self.child.wait(10)
            self.child.end()
            atexit.unregister(self.close)

    def _reply(self) -> tuple[int, int]:
        try:
            return REPLY.unpack(receive(self.channel, REPLY.size))
        except (EOFError, ConnectionError):
            self.close()
            pytest.fail(self.child.report("the forking process has ended"))

    def start(self, code: str, env: dict[str, str], cwd: Path | None = None, stdin: int | None = None) -> Child:
        """Like start: runs the code with this environment; `stdin` is empty by default."""
        early = {name for name in {*env, *self.env} if name.startswith(READ_AT_START) and name not in READ_LATER}
        changed = sorted(name for name in early if env.get(name) != self.env.get(name))
        assert not changed, f"{changed}: read before the fork; use children.run"
        body = json.dumps({"code": code, "env": env, "cwd": str(cwd or Path.cwd())}).encode()
        streams = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno() if stdin is None else stdin, *(stream.fileno() for stream in streams)]
            try:
                socket.send_fds(self.channel, [LENGTH.pack(len(body))], files)
                self.channel.sendall(body)
            except OSError:
                self._reply()
        while (reply := self._reply())[1] != BEGUN:
            self.ended[reply[0]] = os.waitstatus_to_exitcode(reply[1])
        pid = reply[0]
        self.ended.pop(pid, None)  # an earlier process with the same pid

        def wait(limit: float) -> int | None:
            deadline = time.monotonic() + limit
            while pid not in self.ended:
                self.channel.settimeout(max(deadline - time.monotonic(), 1e-3))
                try:
                    ended, status = self._reply()
                except TimeoutError:
                    return None
                finally:
                    if self.channel.fileno() >= 0:
                        self.channel.settimeout(DEADLINE)
                self.ended[ended] = os.waitstatus_to_exitcode(status)
            return self.ended[pid]

        return Child(f"forked: {code.strip()[:300]}", pid, wait, streams)


FIRST_ENVIRONMENT = environment()
_torch: list[Server] = []


def start_forked(code: str, env: dict[str, str], cwd: Path | None = None) -> Child:
    """Like start, without the second or more that importing torch takes.

    Not for tests of Python's start-up, the order of imports, or a setting that is read there; nor of the kernels'
    threads, which differ in a forked process (csrc/cpu/own_threads.cpp).
    """
    if not hasattr(os, "fork"):
        return start(code, env, cwd)
    if not _torch or _torch[0].channel.fileno() < 0:
        _torch[:] = [Server("torch", env=FIRST_ENVIRONMENT)]
    return _torch[0].start(code, env, cwd)


def forked(
    code: str, env: dict[str, str], cwd: Path | None = None, status: Status = 0, limit: float = DEADLINE
) -> tuple[str, str]:
    """Like run, with start_forked."""
    return finish(start_forked(code, env, cwd), limit, status)
