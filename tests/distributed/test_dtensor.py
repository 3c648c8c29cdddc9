"""Runs the cases of distributed_cases.py and distributed_models.py in 2 and 4 processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import distributed_cases
import distributed_models
import distributed_support
import pytest
from children import SUPPORT, Server, environment
from rank_group import Group

assert distributed_cases.case is distributed_models.case  # both modules register their cases in the same registry
CASES = distributed_support.CASES
MODULES = (distributed_cases.__name__, distributed_models.__name__)


class Groups:
    """Starts at most one group of ranks at a time; reused while world size and backend stay the same."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(SUPPORT), environment()["PYTHONPATH"]])
        self.server = Server(*MODULES, env=environment(PYTHONPATH=path))
        self.group: Group | None = None
        self.of: tuple[int, str] | None = None

    def get(self, world: int, backend: str) -> Group:
        if self.group is None or not self.group.alive or self.of != (world, backend):
            self.end()
            self.group, self.of = Group(self.server, world, backend, MODULES), (world, backend)
        return self.group

    def end(self) -> None:
        if self.group is not None and self.group.alive:
            self.group.end()
        self.group = None


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    started = Groups()
    yield started
    started.end()
    started.server.close()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("backend", "world"),
    [
        ("compiled", 2),
        pytest.param("compiled", 4, marks=pytest.mark.processes),
        pytest.param("eager", 2, marks=pytest.mark.processes),
    ],
    indirect=["backend"],
)
def test_in_processes(name: str, world: int, backend: str, groups: Groups) -> None:
    groups.get(world, backend).run(name)
