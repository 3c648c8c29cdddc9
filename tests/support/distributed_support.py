"""Several processes for test_dtensor.py: registration of cases, ranks, and comparison of results.

Each rank has the whole data and compares the gathered result with that of a single process. Gradients are integers, so
that sums over ranks are exact in any order, unless the encoding is part of them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

import sinpe_ext as sinpe

Case: TypeAlias = Callable[[DeviceMesh], None]

CASES: dict[str, Case] = {}
WAIT = timedelta(hours=2)  # for another rank: the test has a time limit, and kills all
SUM = 1e-5  # relative: a float32 sum of a few hundred products in another order


class Missing(Exception):
    """Raised by a case that needs a newer torch."""


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def serve(rank: int, world: int, backend: str, store: str, modules: Sequence[str]) -> None:
    """Runs one of `world` ranks: receives names of cases over standard input, a Connection, and answers with errors."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # shows where a rank hangs
    channel = Connection(os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for module in modules:
        import_module(module)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=WAIT)
    with sinpe.use_backend(backend):
        mesh = init_device_mesh("cpu", (world,))
        while True:
            try:
                name = channel.recv()
            except EOFError:
                return
            torch.manual_seed(0)
            wrong = ""
            try:
                CASES[name](mesh)
            except Missing as reason:
                wrong = f"{Missing.__name__}: {reason}"
            except Exception:
                wrong = traceback.format_exc()
            channel.send(wrong)


def distribute(t: Tensor, mesh: DeviceMesh, placements: Placement | Sequence[Placement]) -> DTensor:
    """A leaf DTensor with the values of t."""
    placements = [placements] if isinstance(placements, Placement) else list(placements)
    return distribute_tensor(t.detach(), mesh, placements).detach().requires_grad_(t.is_floating_point())


def same(actual: Tensor, expected: Tensor, what: Any = "") -> None:
    assert isinstance(actual, DTensor), what
    assert actual.shape == expected.shape and actual.dtype == expected.dtype, what
    whole = actual.full_tensor()
    assert torch.equal(whole.view(torch.uint8), expected.contiguous().view(torch.uint8)), what


def raises(kind: type[Exception], words: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Checks that a call raises with this message."""
    try:
        function(*arguments, **named)
    except kind as error:
        assert words in str(error), (words, str(error))
    else:
        raise AssertionError(f"{words}: not raised")


def compare(
    function: Callable[..., Tensor],
    data: Tensor,
    placement: Placement | Sequence[Placement],
    mesh: DeviceMesh,
    what: Any,
    result: Placement | Sequence[Placement] | None = None,
    **arguments: Any,
) -> None:
    """Compares function(data, **arguments) of one process and of all ranks: result and gradients."""
    one, many = data.detach().clone(), distribute(data, mesh, placement)
    one.requires_grad_(data.is_floating_point())
    sides = []
    for x in (one, many):
        given = dict(arguments)
        if isinstance(given.get("alpha"), Tensor):
            given["alpha"] = given["alpha"].clone().requires_grad_()
        y = function(x, **given)
        sides.append((x, given, y))
    (x1, given1, y1), (xn, givenn, yn) = sides
    places = placement if result is None else result
    assert list(yn.placements) == ([places] if isinstance(places, Placement) else list(places)), (what, yn.placements)
    same(yn, y1, what)
    grad = torch.randint(-4, 5, y1.shape).to(y1.dtype)
    if y1.requires_grad:
        y1.backward(grad)
        yn.backward(distribute_tensor(grad, mesh, yn.placements))
    if x1.requires_grad:
        same(xn.grad, x1.grad, what)
    if "alpha" in given1 and isinstance(given1["alpha"], Tensor):
        expected, actual = given1["alpha"].grad, givenn["alpha"].grad
        # Terms of -0.6 to 0.6: after cancellation, the error is that of the largest partial sum.
        torch.testing.assert_close(actual, expected, rtol=SUM, atol=SUM * y1.numel() ** 0.5)
