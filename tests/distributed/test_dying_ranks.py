"""A rank that is killed in a training loop of FSDP2: the others end with an error, and a new group goes on with the
numbers of the old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from children import SUPPORT, finish, library_environment, start
from process_support import needs_fork

pytestmark = [needs_fork, pytest.mark.feature("FSDP2")]

RANKS = """
import pathlib, sys
sys.path.insert(0, {tests!r})
import dying_ranks
dying_ranks.main(pathlib.Path({folder!r}), {moments!r})
"""
MOMENTS = ["forward", "backward", "optimizer", "save"]


@pytest.mark.processes
def test_a_killed_rank(tmp_path: Path) -> None:
    """Status and message of the others, within the time limit of the process group; after a restart from the last
    checkpoint the losses and the gradients of alpha, bit by bit; and no process is left."""
    code = RANKS.format(tests=str(SUPPORT), folder=str(tmp_path), moments=MOMENTS)
    process = start(code, library_environment())
    try:
        out, _ = finish(process)
        assert out.split() == MOMENTS
        with pytest.raises(ProcessLookupError):  # its session is empty
            os.killpg(process.pid, 0)
    finally:
        process.end()
