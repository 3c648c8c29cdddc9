"""A rank killed during FSDP2 training: the others end with an error, and a new group resumes with the same results.

A process forks the ranks after it has imported torch. Each saves a checkpoint after each step and prints its losses in
full; the dropout seed is drawn from torch's generator, seeded by step and rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from children import SUPPORT, environment, finish, library_environment, start
from torch import nn

import sinpe_ext as sinpe

WORLD, STEPS, VICTIM, LAST_STEP = 3, 4, 1, 2  # LAST_STEP of the rank that dies
WAIT = 300  # seconds, the timeout of the process group: on an idle machine all end within a second of a rank's death
MOMENTS = ["forward", "backward", "optimizer", "save"]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(rank: int, folder: Path, begin: int, moment: str | None) -> None:
    """Steps from `begin` on, from a checkpoint unless it is 0; one rank dies at a moment of LAST_STEP."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    encoding = sinpe.SinusoidalPositionalEncoding(8, 0.1, learned_alpha=True)
    model = nn.Sequential(nn.Embedding(16, 8), encoding, nn.Linear(8, 16))
    fully_shard(encoding, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    if begin:
        state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
        checkpoint.load(state, checkpoint_id=folder / f"step{begin}")
        set_state_dict(model, optimizer, model_state_dict=state["m"], optim_state_dict=state["o"])
    for step in range(begin, STEPS):
        dies = moment if rank == VICTIM and step == LAST_STEP else None
        torch.manual_seed(1000 * step + rank)
        ids = torch.randint(0, 16, (2, 6))
        if dies == "forward":
            encoding.register_forward_hook(die)
        logits = model(ids).clone()  # FSDP2 warns about views
        if dies == "backward":
            logits.register_hook(die)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        alpha = encoding.alpha.grad.full_tensor().item()
        if dies == "optimizer":
            optimizer.register_step_pre_hook(die)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", step, loss.item().hex(), alpha.hex(), flush=True)
        state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
        writer = checkpoint.FileSystemWriter(folder / f"step{step + 1}")
        if dies == "save":
            writer.write_data = die  # type: ignore[method-assign, assignment]
        checkpoint.save(state, storage_writer=writer)
    dist.barrier()


def group(folder: Path, name: str, begin: int = 0, moment: str | None = None) -> tuple[list[int], list[str]]:
    """Status and output of each rank. All end within WAIT of a rank's death, plus the start-up time."""
    folder.mkdir(exist_ok=True)
    ranks: dict[int, int] = {}
    for rank in range(WORLD):
        pid = os.fork()
        ranks[pid] = rank
        if pid == 0:
            said = (folder / f"{name}{rank}").open("w")
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            status = 1
            try:
                store, limit = dist.FileStore(str(folder / f"{name}.store"), WORLD), timedelta(seconds=WAIT)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=limit)
                train(rank, folder, begin, moment)
                dist.destroy_process_group()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
    status, end = {}, None
    while len(status) < WORLD:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid:
            status[ranks[pid]] = os.waitstatus_to_exitcode(ended)
            end = end or time.monotonic() + WAIT
        said = [(folder / f"{name}{rank}") for rank in range(WORLD)]
        assert end is None or time.monotonic() < end, (name, status, [path.read_text() for path in said])
        time.sleep(0.01)
    return [status[rank] for rank in range(WORLD)], [path.read_text() for path in said]


def losses(said: list[str]) -> list[list[str]]:
    """For each rank, one line per step: the loss and the gradient of alpha."""
    return [[line for line in text.splitlines() if line.startswith("loss ")] for text in said]


def main(folder: Path) -> None:
    """Runs once for each moment, and prints the successful ones."""
    torch.set_num_threads(1)
    sinpe.add(torch.zeros(1, 2, 4))  # loads the library
    status, said = group(folder / "whole", "whole")
    assert status == [0] * WORLD, said
    whole = losses(said)
    assert [len(lines) for lines in whole] == [STEPS] * WORLD
    for moment in MOMENTS:
        here = folder / moment
        status, said = group(here, "dying", moment=moment)
        assert status[VICTIM] == -signal.SIGKILL, (moment, said)
        for rank in {*range(WORLD)} - {VICTIM}:
            # Functional collectives of torch abort the process (SIGABRT).
            assert status[rank] in (1, -signal.SIGABRT) and "Error" in said[rank], (moment, status, said)
        done = max(k for k in range(STEPS + 1) if (here / f"step{k}" / ".metadata").exists())
        assert done == LAST_STEP, (moment, done)
        status, again = group(here, "again", begin=done)
        assert status == [0] * WORLD, (moment, again)
        for rank in range(WORLD):
            assert losses(said)[rank][:done] == whole[rank][:done], (moment, rank)
            assert losses(again)[rank] == whole[rank][done:], (moment, rank, losses(again), whole)
        print(moment, flush=True)


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_killed_rank(tmp_path: Path) -> None:
    """Checks the other ranks' status and message within the timeout, the losses and gradients of alpha after a restart
    from the last checkpoint, bit by bit, and that no process is left.
    """
    path = os.pathsep.join([str(Path(__file__).parent), str(SUPPORT), environment()["PYTHONPATH"]])
    code = f"import pathlib, test_dying_ranks; test_dying_ranks.main(pathlib.Path({str(tmp_path)!r}))"
    process = start(code, library_environment(PYTHONPATH=path))
    try:
        out, _ = finish(process)
        assert out.split() == MOMENTS
        with pytest.raises(ProcessLookupError):  # its session has no processes
            os.killpg(process.pid, 0)
    finally:
        process.end()
