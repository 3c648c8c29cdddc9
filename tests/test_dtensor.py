"""DTensors in real processes: what tests/distributed_cases.py asserts, on 2 and 4 ranks, with kernels and without."""

from __future__ import annotations

import contextlib
import socket
from functools import lru_cache
from typing import Any

import distributed_cases
import pytest
import torch
import torch.multiprocessing as multiprocessing

pytestmark = [
    pytest.mark.feature("DTensor"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not in this build"),
]
SECONDS = 300  # all cases of one world; two cores may serve four processes and a compiler


@lru_cache
def outcome(world: int, backend: str) -> dict[str, list[str]]:
    """What each rank says of each case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    arguments = (world, port, backend, tuple(distributed_cases.CASES), results)
    processes = multiprocessing.spawn(distributed_cases.run, arguments, nprocs=world, join=False)
    with contextlib.suppress(Exception):  # a rank that died has not said so of every case
        processes.join(SECONDS)
    found: dict[str, list[str]] = {}
    while not results.empty():
        name, wrong = results.get()
        found.setdefault(name, []).append(wrong)
    return found


@pytest.mark.parametrize("name", distributed_cases.CASES)
@pytest.mark.parametrize("world", [2, 4])
def test_in_processes(name: str, world: int, backend: str) -> None:
    said = outcome(world, backend).get(name, [])
    assert len(said) == world, f"{len(said)} of {world} ranks came to the end of it"
    wrong = [text for text in said if text]
    assert not wrong, "\n".join(wrong)
