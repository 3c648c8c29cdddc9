"""A rank killed during FSDP2 training: the others end with an error, and a new group resumes with the same results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from children import SUPPORT, finish, library_environment, start
from process_support import needs_fork

pytestmark = [needs_fork]

RANKS = """
import pathlib, sys
sys.path.insert(0, {tests!r})
import dying_ranks
dying_ranks.main(pathlib.Path({folder!r}), {moments!r})
"""
MOMENTS = ["forward", "backward", "optimizer", "save"]


@pytest.mark.processes
def test_killed_rank(tmp_path: Path) -> None:
    """Checks the other ranks' status and message within the timeout, the losses and gradients of alpha after a restart
    from the last checkpoint, bit by bit, and that no process is left.
    """
    code = RANKS.format(tests=str(SUPPORT), folder=str(tmp_path), moments=MOMENTS)
    process = start(code, library_environment())
    try:
        out, _ = finish(process)
        assert out.split() == MOMENTS
        with pytest.raises(ProcessLookupError):  # its session has no processes
            os.killpg(process.pid, 0)
    finally:
        process.end()
