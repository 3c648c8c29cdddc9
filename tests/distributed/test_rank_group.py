"""Errors of rank_group.py if a rank fails, dies or hangs; the next case gets a new group."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.tensor")

from children import SUPPORT, Server, environment
from rank_group import Group

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
ODD = """
import os, signal, time, torch.distributed as dist
from distributed_support import Missing, case
@case
def right(mesh):
    print("of an earlier case", flush=True)
    dist.barrier()
@case
def missing(mesh):
    raise Missing("a newer torch")
@case
def fails_on_one(mesh):
    print("said by", dist.get_rank(), flush=True)
    if dist.get_rank() == 1:
        raise ValueError("not this rank")
    dist.barrier()
@case
def dies(mesh):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
@case
def hangs(mesh):
    if dist.get_rank() == 1:
        time.sleep(1000)
"""


@pytest.mark.processes
def test_failures(tmp_path: Path) -> None:
    (tmp_path / "odd_cases.py").write_text(ODD)
    path = os.pathsep.join([str(tmp_path), str(SUPPORT), environment()["PYTHONPATH"]])
    server = Server("odd_cases", env=environment(PYTHONPATH=path))
    try:
        told = {}
        for name in ("fails_on_one", "dies", "hangs"):
            group = Group(server, 2, "eager", ("odd_cases",))
            group.run("right")
            with pytest.raises(pytest.skip.Exception, match="^a newer torch$"):
                group.run("missing")
            group.run("right")
            with pytest.raises(pytest.fail.Exception) as failed:
                group.run(name, 5 if name == "hangs" else 600)
            told[name] = str(failed.value)
            assert not group.alive and all(rank.poll() is not None for rank in group.ranks)
            assert "of an earlier case" not in told[name]
        assert "ValueError: not this rank" in told["fails_on_one"]
        assert "said by 0" in told["fails_on_one"] and "said by 1" in told["fails_on_one"]
        assert "rank 1 of 2: ended, status -9" in told["dies"]
        assert re.search(r"(?s)rank 1 of 2: no answer.*in hangs", told["hangs"])  # the stack of the hanging rank
    finally:
        server.close()
