"""torch.export and AOTInductor: programs for any batch and length, from the library's operators or from torch's."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from children import library_environment, run
from test_compile import (
    DROPPING,
    LEARNED,
    LIMITED,
    SIZED,
    T2T,
    TIMESTEPS,
    TOKENS,
    D,
    inputs,
    needs_aoti_dtypes,
    needs_inductor,
)
from torch import Tensor, nn

import sinpe_ext as sinpe
from sinpe_ext.integrations import standard_operators

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit.script"), pytest.mark.usefixtures("reset_dynamo")]

# Inductor's sine, and a contracted sum: one ULP of the largest value, 16
SINES: dict[str, float] = {"rtol": 0.0, "atol": 2.0**-19}
SIZES = [(3, 5, 1), (2, 7, 2), (5, 12, 30), (2, 300, 100)]


class Model(nn.Module):
    """Layers and functions; any batch size, length and starts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.layer, self.timesteps = TOKENS, LIMITED, TIMESTEPS

    def forward(self, ids: Tensor, starts: Tensor, t: Tensor) -> Tensor:
        return self.layer(self.tokens(ids, start=starts)) + self.timesteps(t)[:, None]


class Training(nn.Module):
    """With dropout, of a given seed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.first = DROPPING, LEARNED

    def forward(self, ids: Tensor, starts: Tensor, t: Tensor) -> Tensor:
        x = (t[:, None, None] * torch.ones(D)) + ids[..., None]
        return self.layer(x, seed=3) + self.first(x.transpose(0, 1), seed=4).transpose(0, 1)


def arguments(batch: int, length: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    given = inputs(batch, length, start)
    return given.ids, given.starts, given.real[:, 0].float()


def exported(model: nn.Module, strict: bool = False) -> Any:
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    sizes = ({0: batch, 1: length}, {0: batch}, {0: batch})
    return torch.export.export(model, arguments(*SIZES[0]), dynamic_shapes=sizes, strict=strict)


@pytest.mark.bad_input(25, "compiled", "layer", "embedding", "timestep")
@pytest.mark.sampled("values")
@pytest.mark.parametrize("model", [Model().eval(), Training()], ids=["eval", "train"])
@pytest.mark.parametrize("strict", [False, True])
def test_program_serves_all_sizes_and_can_be_saved(strict: bool, model: nn.Module) -> None:
    program, stored = exported(model, strict), io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    for one in (program, torch.export.load(stored)):
        for size in SIZES:
            assert torch.equal(one.module()(*arguments(*size)), model(*arguments(*size)))


@pytest.mark.builds
@needs_inductor
@pytest.mark.parametrize("standard", [pytest.param(False, marks=needs_aoti_dtypes), True])
@pytest.mark.parametrize("model", [Model().eval(), Training()], ids=["eval", "train"])
def test_aot_inductor(model: nn.Module, standard: bool, tmp_path: Path) -> None:
    if standard and isinstance(model, Training):
        pytest.skip("standard operators have no dropout")
    with standard_operators() if standard else nullcontext():
        program = exported(model)
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for size in SIZES:
        got, want = loaded(*arguments(*size)), model(*arguments(*size))
        assert torch.allclose(got, want, **SINES) if standard else torch.equal(got, want)


class Together(nn.Module):
    """Several calls of x, and x, whose size may not be fixed."""

    def __init__(self, calls: list[Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, x: Tensor) -> list[Any]:
        return [x + 0, *(call(x) for call in self.calls)]


def export(calls: list[Callable[[Tensor], Any]], strict: bool) -> Any:
    sizes = ({1: torch.export.Dim("T", min=2, max=9999)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Together(calls), (inputs(2, 5).x,), dynamic_shapes=sizes, strict=strict)


GROUPS = [[*SIZED][first : first + 6] for first in range(0, len(SIZED), 6)]


@pytest.mark.sampled("values")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("number", range(len(GROUPS)), ids=[" | ".join(group) for group in GROUPS])
def test_export_keeps_sizes(number: int, strict: bool) -> None:
    calls = {name: SIZED[name] for name in GROUPS[number]}
    program = export([*calls.values()], strict).module()
    for length in (5, 6, 11):
        x = inputs(2, length).x
        for (name, call), got in zip(calls.items(), program(x)[1:], strict=True):
            assert torch.equal(got, call(x)), (name, length)


# A number that an operator takes, or that is compared with others, would be fixed.
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "add, dropout, scale": (
        lambda x: sinpe.add(x, T2T, scale=x.size(1) ** 0.5, dropout=0.5, seed=1),
        "Constraints violated",
    ),
    "dropout": (
        lambda x: sinpe.add(x, T2T, dropout=1 / x.size(1), seed=1),
        "Constraints violated|dropout: expected a float, got SymFloat",
    ),
    "start": (lambda x: sinpe.add(x, T2T, start=x.size(1) / 2), "start: expected int|Unsupported"),
    "start of an encoding": (
        lambda x: sinpe.add(x, sinpe.convention("t2t", D, start=x.size(1))),
        "start: expected an int, got a symbolic size|Encoding: expected one that is made outside",
    ),
}


@pytest.mark.sampled("values")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_export_refuses_to_fix_sizes(name: str, strict: bool) -> None:
    with pytest.raises(Exception, match=REFUSED[name][1]):
        export([REFUSED[name][0]], strict)


FIRST_USE = """
import torch, sinpe_ext as sinpe
class Model(torch.nn.Module):
    def forward(self, x):
        return sinpe.add(x, dropout=0.5, seed=3) + sinpe.table(3, 8)
graph = torch.export.export(Model(), (torch.zeros(2, 3, 8),)).graph
names = {str(node.target) for node in graph.nodes if str(node.target).startswith("sinpe_ext")}
assert names <= {"sinpe_ext.add.default", "sinpe_ext.table.default"}, names
"""


@pytest.mark.processes
def test_loading_a_library_leaves_nothing_in_a_graph() -> None:
    """The first use of the kernels in a process is while torch.export traces."""
    run(FIRST_USE, env=library_environment())
