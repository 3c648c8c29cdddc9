"""DTensors in real processes, 2 and 4: what distributed_cases.py and distributed_models.py assert."""

from __future__ import annotations

import contextlib
import socket
from functools import lru_cache
from typing import Any

import distributed_cases
import distributed_models
import distributed_support
import pytest
import torch.multiprocessing as multiprocessing

assert distributed_cases.case is distributed_models.case  # both have put theirs in
CASES = distributed_support.CASES
PARALLEL = pytest.mark.feature("tensor and sequence parallel")
ROWS = {
    "fsdp2": pytest.mark.feature("FSDP2"),
    "an_alpha_of_no_dimension": pytest.mark.feature("FSDP2"),
    "context_parallel": pytest.mark.feature("context_parallel"),
    "parallel_styles": PARALLEL,
    "embedding_styles": PARALLEL,
    "compiled": pytest.mark.feature("DTensor, torch.compile"),
    "plain_shards": pytest.mark.feature("require_positions"),
}
SECONDS = 300  # all cases of one world; two cores may serve four processes and a compiler


@lru_cache
def outcome(world: int, backend: str) -> dict[str, list[str]]:
    """What each rank says of each case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    arguments = (world, port, backend, CASES, results)
    processes = multiprocessing.spawn(distributed_support.run, arguments, nprocs=world, join=False)
    with contextlib.suppress(Exception):  # a rank that died has not said so of every case
        processes.join(SECONDS)
    for process in processes.processes:
        process.kill()
    found: dict[str, list[str]] = {}
    while not results.empty():
        name, wrong = results.get()
        found.setdefault(name, []).append(wrong)
    return found


def named(name: str) -> Any:
    return pytest.param(name, marks=ROWS.get(name, pytest.mark.feature("DTensor")))


@pytest.mark.parametrize("name", map(named, CASES))
@pytest.mark.parametrize("world", [2, 4])
def test_in_processes(name: str, world: int, backend: str) -> None:
    if world == 4 and backend == "eager":
        pytest.skip("the kernels' case is cut up alike")
    said = outcome(world, backend).get(name, [])
    assert len(said) == world, f"{len(said)} of {world} ranks came to the end of it"
    wrong = [text for text in said if text]
    if wrong and all(text.startswith("Missing: ") for text in wrong):
        pytest.skip(wrong[0].removeprefix("Missing: "))
    assert not wrong, "\n".join(wrong)
