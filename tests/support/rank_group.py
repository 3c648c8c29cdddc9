"""A group of ranks for test_dtensor.py: processes that run one case after the other.

A case that fails on any rank ends the group and shows the output of all ranks; the next case starts another group.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path

import pytest
from children import DEADLINE, Child, Server, library_environment

GRACE = 5.0  # seconds for the other ranks after a failure: they wait for the failed rank, or fail as well
MISSING = "Missing: "  # answer of a case that this torch cannot run
RANK = "import distributed_support; distributed_support.serve({rank}, {world}, {backend!r}, {store!r}, {cases!r})"


class Group:
    """`cases`: the modules that define them, imported by the server before it forks the ranks."""

    def __init__(self, server: Server, world: int, backend: str, cases: tuple[str, ...]):
        self.folder = tempfile.TemporaryDirectory()
        self.ranks: list[Child] = []
        self.channels: list[Connection] = []
        env = library_environment(PYTHONPATH=server.env["PYTHONPATH"])
        for rank in range(world):
            here, there = multiprocessing.Pipe()
            store = str(Path(self.folder.name) / "store")
            code = RANK.format(rank=rank, world=world, backend=backend, store=store, cases=cases)
            self.ranks.append(server.start(code, env, stdin=there.fileno()))
            self.channels.append(here)
            there.close()

    def run(self, name: str, limit: float = DEADLINE) -> None:
        """Runs one case on all ranks. A failed test ends the group, a skipped one does not."""
        printed = [[len(text.encode()) for text in rank.printed()] for rank in self.ranks]
        for channel in self.channels:
            with contextlib.suppress(OSError):  # it has ended, which is detected when its answer is read
                channel.send(name)
        answers: dict[int, str] = {}
        deadline = time.monotonic() + limit
        while len(answers) < len(self.ranks):
            missing = [channel for rank, channel in enumerate(self.channels) if rank not in answers]
            ready = wait(missing, max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for channel in ready:
                assert isinstance(channel, Connection)
                rank = self.channels.index(channel)
                try:
                    answers[rank] = channel.recv()
                except (EOFError, OSError):
                    answers[rank] = f"ended, status {self.ranks[rank].wait(GRACE)}"
            if any(answer and not answer.startswith(MISSING) for answer in answers.values()):
                deadline = min(deadline, time.monotonic() + GRACE)
        wrong = [answer for answer in answers.values() if answer]
        if len(answers) == len(self.ranks) and not wrong:
            return
        if len(wrong) == len(self.ranks) and all(answer.startswith(MISSING) for answer in wrong):
            pytest.skip(wrong[0].removeprefix(MISSING))
        late = [rank for rank in range(len(self.ranks)) if rank not in answers]
        self._stacks(late, printed)
        self.end()
        told = []
        for rank, child in enumerate(self.ranks):
            said = answers.get(rank, f"no answer within {limit:g} s, or {GRACE:g} s after the first failure")
            told.append(child.report(f"===== rank {rank} of {len(self.ranks)}: {said or 'right'}\n", printed[rank]))
        pytest.fail("\n".join([f"{name}: {len(wrong)} ranks failed, {len(late)} did not answer", *told]))

    def _stacks(self, late: list[int], since: list[list[int]]) -> None:
        """Makes ranks without an answer print their stacks."""
        for rank in late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ranks[rank].pid, signal.SIGUSR1)
        deadline = time.monotonic() + GRACE
        while late and time.monotonic() < deadline:
            late = [rank for rank in late if "recent call first" not in self.ranks[rank].printed(since[rank])[1]]
            time.sleep(0.2)

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()
        for channel in self.channels:
            channel.close()
        for rank in self.ranks:
            rank.wait(DEADLINE)
        self.folder.cleanup()

    @property
    def alive(self) -> bool:
        return not any(channel.closed for channel in self.channels)
