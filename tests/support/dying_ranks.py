"""FSDP2 training in which one rank is killed: a process for test_dying_ranks.py, which forks the ranks.

The ranks are forked after torch is imported. Each saves a checkpoint after each step and prints its losses in full; the
dropout seed is drawn from torch's generator, seeded by step and rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import sinpe_ext as sinpe

WORLD, STEPS, VICTIM, LAST_STEP = 3, 4, 1, 2  # LAST_STEP of the rank that dies
WAIT = 300  # seconds, the timeout of the process group: on an idle machine all end within a second of a rank's death


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.encoding = sinpe.SinusoidalPositionalEncoding(8, 0.1, learned_alpha=True)
        self.head = nn.Linear(8, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoding(self.embedding(ids))).clone()  # FSDP2 warns about views


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(checkpoint.FileSystemWriter):
    def write_data(self, *_: object) -> None:  # type: ignore[override]
        die()


def train(rank: int, folder: Path, begin: int, moment: str | None) -> None:
    """Steps from `begin` on, from a checkpoint unless it is 0; one rank dies at a moment of LAST_STEP."""
    mesh = init_device_mesh("cpu", (WORLD,))
    torch.manual_seed(0)
    model = Model()
    fully_shard(model.encoding, mesh=mesh)
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
            model.encoding.register_forward_hook(lambda *_: die())
        logits = model(ids)
        if dies == "backward":
            logits.register_hook(lambda _: die())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()
        alpha = model.encoding.alpha.grad.full_tensor().item()
        if dies == "optimizer":
            optimizer.register_step_pre_hook(lambda *_: die())
        optimizer.step()
        optimizer.zero_grad()
        print("loss", step, loss.item().hex(), alpha.hex(), flush=True)
        state = dict(zip("mo", get_state_dict(model, optimizer), strict=True))
        writer = DyingWriter if dies == "save" else checkpoint.FileSystemWriter
        checkpoint.save(state, storage_writer=writer(folder / f"step{step + 1}"))
    dist.barrier()


def child(rank: int, folder: Path, name: str, begin: int, moment: str | None) -> None:
    said = (folder / f"{name}{rank}").open("w")
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    status = 1
    try:
        store = dist.FileStore(str(folder / f"{name}.store"), WORLD)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=WAIT))
        train(rank, folder, begin, moment)
        dist.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def group(folder: Path, name: str, begin: int = 0, moment: str | None = None) -> tuple[list[int], list[str]]:
    """Status and output of each rank. All end within WAIT of a rank's death, plus the start-up time."""
    folder.mkdir(exist_ok=True)
    ranks = {}
    for rank in range(WORLD):
        pid = os.fork()
        if pid == 0:
            child(rank, folder, name, begin, moment)
        ranks[pid] = rank
    status: dict[int, int] = {}
    limit = None
    while len(status) < WORLD:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid:
            status[ranks[pid]] = os.waitstatus_to_exitcode(ended)
            limit = limit or time.monotonic() + WAIT
        if limit is not None and time.monotonic() > limit:
            said = [path.read_text() for path in folder.glob(f"{name}[0-9]")]
            raise AssertionError(f"{name}: no end within its limit, status {status}, {said}")
        time.sleep(0.01)
    return [status[rank] for rank in range(WORLD)], [(folder / f"{name}{rank}").read_text() for rank in range(WORLD)]


def losses(said: list[str]) -> list[list[str]]:
    """For each rank, one line per step: the loss and the gradient of alpha."""
    return [[line for line in text.splitlines() if line.startswith("loss ")] for text in said]


def main(folder: Path, moments: list[str]) -> None:
    """Runs once for each moment, and prints the successful ones."""
    torch.set_num_threads(1)
    sinpe.add(torch.zeros(1, 2, 4))  # loads the library
    status, said = group(folder / "whole", "whole")
    assert status == [0] * WORLD, said
    whole = losses(said)
    assert [len(lines) for lines in whole] == [STEPS] * WORLD
    for moment in moments:
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
